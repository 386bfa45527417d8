"""Checks of an answer as a whole: several completions a request, the seed, the counts of tokens,
and the reasons why completions end.

One more check compares the lists along a given answer with those of the model's own answer of the
same tokens. They must agree.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.wire.dialects import DIALECTS
from blackbox_lb.errors import (
    ConnectionFailed,
    CorruptResponse,
    InputError,
    RequestRejected,
    ServerFailed,
)
from blackbox_lb.extras.doctor.exam import (
    STORY,
    WORDS,
    Exam,
    NotChecked,
    attempt,
    first_token,
    listed,
)
from blackbox_lb.extras.doctor.findings import RowFinding, agreement, measured, unchecked
from blackbox_lb.rollouts.answers.continued import scored_along
from blackbox_lb.types import Completion, Message, Prompt, Sampling

MOST_AT_ONCE = 128
"""Completions of one token that are asked for by one request: the largest limit that a hosted
provider documents.
"""
SEED = 7
SEEDED_TOKENS = 12
GIVEN = 4
FARTHEST = 0.1
"""Largest mean total variation between the lists of two requests for the same place. Engines agree
to 2e-6 (llama.cpp) and to the last bit (vLLM in bfloat16, many at a time); a single completion in
bfloat16, whose kernels differ, is up to .1 nat apart. Lists after two different prefixes were .36
apart."""
PREFIX = 2
"""Tokens of a completion of the model's own that are given back, and those of them that a trailing
message begins with.
"""


async def ask_n(exam: Exam) -> list[Completion]:
    """As many completions of one token as the profile says one request gives, up to 128."""
    claimed = exam.profile.sampling.n
    if not DIALECTS[exam.rules.dialect].several:
        raise NotChecked("the Responses API gives one completion a request")
    if claimed == 1:
        raise NotChecked("one completion a request is all that is claimed")
    before = len(exam.draws)
    completions = await exam.ask(WORDS, n=min(claimed, MOST_AT_ONCE))
    if not _are_several(exam, completions):
        del exam.draws[before:]
    return completions


def _are_several(exam: Exam, completions: Sequence[Completion]) -> bool:
    """Whether as many came as were asked for, and differ where equal first tokens of all of them
    would be a surprise.
    """
    tops = [max(row.values()) for row in exam.openings()]
    varies = bool(tops) and max(tops) < -0.2
    if varies and len(set(map(first_token, completions))) == 1:
        return False
    return len(completions) == min(exam.profile.sampling.n, MOST_AT_ONCE)


def compare_n(exam: Exam, completions: Sequence[Completion]) -> Iterator[RowFinding]:
    """They are as many as were asked for, and the prompt is counted once."""
    claimed = exam.profile.sampling.n
    n = min(claimed, MOST_AT_ONCE)
    distinct = len(set(map(first_token, completions)))
    evidence = f"{n} asked for, {len(completions)} came, with {distinct} different first tokens"
    if not _are_several(exam, completions):
        yield agreement("sampling.n", False, evidence, 1)
        return
    if n != claimed:
        evidence = f"{evidence}; {claimed:,} are claimed"
    yield agreement("sampling.n", True, evidence)
    row = "sampling.shares_prompt"
    counted = completions[0].prompt_tokens
    single = next(
        (completion.prompt_tokens for prompt, completion in exam.draws if prompt is WORDS), 0
    )
    evidence = f"{counted} prompt tokens counted for {n} completions, {single} for one"
    if not counted:
        yield unchecked(row, "the answer does not count the tokens of the prompt")
    elif exam.profile.sampling.shares_prompt:
        yield agreement(row, counted == single, evidence, False)
    else:
        yield measured(row, evidence)


async def ask_seed(exam: Exam) -> list[Completion] | Exception:
    """Two completions with a seed."""
    if not exam.profile.sampling.seed:
        raise NotChecked("none is sent where the profile says that none is taken")
    seeded = exam.repeat(2, WORDS, seed=SEED, max_tokens=SEEDED_TOKENS)
    return await attempt(seeded, ConnectionFailed, ServerFailed)


def compare_seed(exam: Exam, completions: Sequence[Completion] | Exception) -> Iterator[RowFinding]:
    """A seed is accepted; whether it repeats the completion is told, and no host promises it."""
    row = "sampling.seed"
    if isinstance(completions, Exception):
        evidence = f"the server failed at a request with a seed: {completions}"
        yield agreement(row, False, evidence, False)
        return
    same = "different"
    if len({completion.text for completion in completions}) == 1:
        same = "equal"
    evidence = "the content filter kept one back"
    if len(completions) > 1:
        evidence = f"two completions with seed {SEED} are {same}"
    yield agreement(row, True, f"accepted; {evidence}")


def compare_usage(exam: Exam) -> Iterator[RowFinding]:
    """From all that came: token counts against lists, and finish reasons."""
    completions = list(exam.completions())
    endpoint = exam.session.endpoint
    counted = [completion for completion in completions if completion.generated is not None]
    off = sum(completion.generated != len(completion.token_ids) for completion in counted)
    yield measured(
        f"{endpoint} usage",
        f"counted in {len(counted)} of {len(completions)} completions; {off} of these list another"
        " number of tokens",
    )
    reasons = Counter(completion.finish_reason for completion in completions).most_common()
    words = ", ".join(f"{reason} {number}" for reason, number in reasons)
    yield measured(f"{endpoint} finish_reason", words)


@dataclass(frozen=True, slots=True)
class Given:
    """An answer along the beginning of an earlier completion, or why there is none."""

    before: Completion
    text: str
    answer: Completion | Exception


async def ask_continues(exam: Exam) -> Given:
    """An answer behind an assistant message with the first two tokens of a completion. Where the
    profile does not say how it is continued, the message goes out without further fields.
    """
    session = exam.session
    draw = _telling(exam, 0, PREFIX) if session.endpoint == "chat" else None
    if draw is None:
        raise NotChecked(
            "no chat completion of known ids has lists that tell its third token from its first"
        )
    prompt, before = draw
    exam.count(session.vocabulary is None)
    try:
        text = await session.decode(before.token_ids[:PREFIX].tolist())
        if not text.strip() or "\N{REPLACEMENT CHARACTER}" in text:
            raise NotChecked(f"{text!r} is no text to begin a message with")
        begun = replace(prompt, messages=(*prompt.messages, Message("assistant", text)))
        fields = exam.profile.answers.continues or {}
        (answer,) = await exam.ask(begun, top=exam.top, fields=fields)
    except InputError as error:
        raise NotChecked(str(error)) from error
    except RequestRejected as refusal:
        return Given(before, "", refusal)
    return Given(before, text, answer)


def compare_continues(exam: Exam, given: Given) -> Iterator[RowFinding]:
    """A host that continues the message answers with the list of the third token."""
    row = "answers.continues"
    claims = exam.profile.answers
    claimed = claims.continues is not False
    if isinstance(given.answer, Exception):
        yield _along(exam, row, claimed, np.inf, f"refused: {given.answer}")
        return
    if first_token(given.answer) is None:
        raise NotChecked("the answer lists no token")
    distance = _apart(listed(given.answer, 0), listed(given.before, PREFIX))
    distance_anew = _apart(listed(given.answer, 0), listed(given.before, 0))
    evidence = (
        f"after {given.text!r} total variation {distance:.2g} from the list that was seen there,"
        f" {distance_anew:.2g} from that of a new answer"
    )
    yield _along(exam, row, claimed, distance, evidence)
    if distance > _limit(exam):
        return
    repeats = given.answer.text.startswith(given.text)
    evidence = f"the answer after {given.text!r} begins with {given.answer.text[:40]!r}"
    if claimed:
        yield agreement("answers.repeats", repeats == claims.repeats, evidence, repeats)
    else:
        yield measured("answers.repeats", evidence, repeats)


async def ask_prompt_logprobs(exam: Exam) -> Given | None:
    """The first tokens of a completion given back in a prompt of token ids, with their lists."""
    rules = exam.profile.reference
    session = exam.session
    field = exam.profile.answers.prompt_logprobs
    if field is False or rules is None:
        return None
    draw = None
    if exam.profile.follows_ids(session.vocabulary):
        draw = _telling(exam, *range(1, GIVEN))
    if draw is None:
        raise NotChecked("no completion of known ids has lists that tell its tokens apart")
    prompt, before = draw
    exam.count(3)
    request = Draw(Sampling(1.0, 1, exam.top), endpoint=rules.endpoint, fields={field: exam.top})
    scored = scored_along(session, request, prompt, tuple(before.token_ids[:GIVEN].tolist()))
    return Given(before, "", await attempt(scored, CorruptResponse, RequestRejected))


def compare_prompt_logprobs(exam: Exam, given: Given) -> Iterator[RowFinding]:
    """They are the completion's own lists."""
    row = "answers.prompt_logprobs"
    if isinstance(given.answer, Exception):
        yield _along(exam, row, True, np.inf, str(given.answer))
        return
    distances = [
        _apart(listed(given.answer, t - 1), listed(given.before, t)) for t in range(1, GIVEN)
    ]
    distance = float(np.mean(distances))
    evidence = (
        f"along {GIVEN} tokens total variation {distance:.2g} from the lists that were seen there"
    )
    yield _along(exam, row, True, distance, evidence)


def _along(exam: Exam, row: str, claimed: bool, distance: float, text: str) -> RowFinding:
    """``distance``: total variation to what must be seen. What is not claimed is measured."""
    agrees = distance <= _limit(exam)
    evidence = f"{text} (limit {_limit(exam):.2g})"
    if claimed:
        return agreement(row, agrees, evidence, False)
    return measured(row, evidence, {} if agrees else None)


def _limit(exam: Exam) -> float:
    """The largest total variation of equal distributions: equal requests themselves differ by
    ``noise`` nats at most.
    """
    return max(FARTHEST, exam.noise / 2)


def _telling(exam: Exam, *places: int) -> tuple[Prompt, Completion] | None:
    """The completion whose lists at ``places`` differ most from one to the next; None where none
    differs by twice the limit.
    """
    best = None
    largest = 2 * _limit(exam)
    for prompt, completion in exam.draws:
        tokens = completion.token_ids.tolist()
        if not (exam.trusted and prompt in (WORDS, STORY) and completion.whole):
            continue
        if len(tokens) <= GIVEN or not all(map(exam.has_text, tokens[:GIVEN])):
            continue
        lists = [listed(completion, place) for place in places]
        least = min(_apart(before, after) for before, after in pairwise(lists))
        if least > largest:
            best = (prompt, completion)
            largest = least
    return best


def _apart(left: Mapping[int, float], right: Mapping[int, float]) -> float:
    """The smallest total variation that is possible between the distributions of two lists, id ->
    logprob. A token that a list lacks is at most as likely as its least likely token.
    """
    size = min(len(left), len(right))
    if not size:
        return 0.0
    first = {token: float(np.exp(value)) for token, value in list(left.items())[:size]}
    second = {token: float(np.exp(value)) for token, value in list(right.items())[:size]}
    apart = sum(abs(first[token] - second[token]) for token in first.keys() & second.keys())
    for own, lacking in ((first, second), (second, first)):
        least = min(lacking.values())
        apart += sum(max(own[token] - least, 0.0) for token in own.keys() - lacking.keys())
    return apart / 2
