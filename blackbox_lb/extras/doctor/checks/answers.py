"""Checks of an answer as a whole: several completions a request, the seed, the counts of tokens,
and the reasons why completions end.

One more check compares the lists along a given answer with those of the model's own answer of the
same tokens. They must agree.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
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
from blackbox_lb.extras.doctor.asking.exam import STORY, WORDS, Exam, listed
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


async def check_n(exam: Exam) -> None:
    """As many completions of one token as the profile says one request gives, up to 128."""
    rows = ("sampling.n", "sampling.shares_prompt")
    claimed = exam.profile.sampling.n
    if not DIALECTS[exam.rules.dialect].several:
        return exam.findings.skip(rows[:1], "the Responses API gives one completion a request")
    if claimed == 1:
        return exam.findings.skip(rows[:1], "one completion a request is all that is claimed")
    n = min(claimed, MOST_AT_ONCE)
    before = len(exam.probe.draws)
    completions = await exam.probe.ask(WORDS, n=n)
    distinct = len(
        {
            (int(completion.token_ids[0]) if len(completion.token_ids) else None)
            for completion in completions
        }
    )
    evidence = f"{n} asked for, {len(completions)} came, with {distinct} different first tokens"
    if len(completions) != n or (distinct == 1 and _varies(exam)):
        del exam.probe.draws[before:]
        return exam.findings.agree(rows[0], False, evidence, 1)
    exam.n = n
    if n != claimed:
        evidence = f"{evidence}; {claimed:,} are claimed"
    exam.findings.agree(rows[0], True, evidence)
    return _shared(exam, rows[1], completions[0].prompt_tokens, n)


def _varies(exam: Exam) -> bool:
    """Whether equal first tokens of many completions would be a surprise."""
    tops = [max(row.values()) for row in exam.openings()]
    return bool(tops) and max(tops) < -0.2


def _shared(exam: Exam, row: str, prompt_tokens: int, n: int) -> None:
    singles = [
        completion.prompt_tokens for prompt, completion in exam.probe.draws if prompt is WORDS
    ][:1]
    if not prompt_tokens or not singles:
        return exam.findings.skip([row], "the answer does not count the tokens of the prompt")
    evidence = f"{prompt_tokens} prompt tokens counted for {n} completions, {singles[0]} for one"
    if exam.profile.sampling.shares_prompt:
        return exam.findings.agree(row, prompt_tokens == singles[0], evidence, False)
    return exam.findings.add(row, "MEASURED", evidence)


async def check_seed(exam: Exam) -> None:
    """Check that a seed is accepted, and report whether it repeats the completion, which no host
    promises.
    """
    row = "sampling.seed"
    if not exam.profile.sampling.seed:
        return exam.findings.skip([row], "none is sent where the profile says that none is taken")
    try:
        completions = await exam.probe.repeat(2, WORDS, seed=SEED, max_tokens=SEEDED_TOKENS)
    except (ConnectionFailed, ServerFailed) as error:
        return exam.findings.agree(
            row, False, f"the server failed at a request with a seed: {error}", False
        )
    same = "different"
    if len({completion.text for completion in completions}) == 1:
        same = "equal"
    evidence = "the content filter kept one back"
    if len(completions) > 1:
        evidence = f"two completions with seed {SEED} are {same}"
    return exam.findings.agree(row, True, f"accepted; {evidence}")


def check_usage(exam: Exam) -> None:
    """From all that came so far: token counts against lists, and finish reasons."""
    all_ = list(exam.completions())
    endpoint = exam.probe.session.endpoint
    counted = [completion for completion in all_ if completion.generated is not None]
    off = sum(completion.generated != len(completion.token_ids) for completion in counted)
    evidence = (
        f"in {len(counted)} of {len(all_)} completions; {off} of these list another number of"
        " tokens"
    )
    exam.findings.add(f"{endpoint} usage", "MEASURED", f"counted {evidence}")
    reasons = Counter(completion.finish_reason for completion in all_)
    exam.findings.add(
        f"{endpoint} finish_reason",
        "MEASURED",
        ", ".join(f"{reason} {n}" for reason, n in reasons.most_common()),
    )


async def check_continues(exam: Exam) -> None:
    """Check whether the host continues an assistant message with the first two tokens of a
    completion.

    A host that continues it answers with the list of the third token. Where the profile does not
    say how, the message goes out without further fields.
    """
    row = "answers.continues"
    fields = exam.profile.answers.continues
    session = exam.probe.session
    draw = _telling(exam, 0, PREFIX) if session.endpoint == "chat" else None
    if draw is None:
        return exam.findings.skip(
            [row],
            "no chat completion of known ids has lists that tell its third token from its first",
        )
    prompt, completion = draw
    exam.probe.count(session.vocabulary is None)
    try:
        text = await session.decode(completion.token_ids[:PREFIX].tolist())
        if not text.strip() or "\N{REPLACEMENT CHARACTER}" in text:
            return exam.findings.skip([row], f"{text!r} is no text to begin a message with")
        begun = replace(prompt, messages=(*prompt.messages, Message("assistant", text)))
        (answer,) = await exam.probe.ask(begun, top=exam.probe.top, fields=fields or {})
    except InputError as error:
        return exam.findings.skip([row], str(error))
    except RequestRejected as refusal:
        return _conclude(exam, row, fields is not False, np.inf, f"refused: {refusal}")
    if not len(answer.token_ids):
        return exam.findings.skip([row], "the answer lists no token")
    distance = _apart(listed(answer, 0), listed(completion, PREFIX))
    distance_anew = _apart(listed(answer, 0), listed(completion, 0))
    evidence = (
        f"after {text!r} total variation {distance:.2g} from the list that was seen there,"
        f" {distance_anew:.2g} from that of a new answer"
    )
    _conclude(exam, row, fields is not False, distance, evidence)
    if distance <= _limit(exam):
        repeats = answer.text.startswith(text)
        evidence = f"the answer after {text!r} begins with {answer.text[:40]!r}"
        if fields is False:
            exam.findings.add("answers.repeats", "MEASURED", evidence, repeats)
        else:
            exam.findings.agree(
                "answers.repeats", repeats == exam.profile.answers.repeats, evidence, repeats
            )
    return None


async def check_prompt_logprobs(exam: Exam) -> None:
    """The lists along the first tokens of a completion, given back in a prompt of token ids, are
    the completion's.
    """
    row = "answers.prompt_logprobs"
    rules = exam.profile.reference
    session = exam.probe.session
    field = exam.profile.answers.prompt_logprobs
    top = exam.probe.top
    if field is False or rules is None:
        return None
    example = (
        _telling(exam, *range(1, GIVEN)) if exam.profile.follows_ids(session.vocabulary) else None
    )
    if example is None:
        return exam.findings.skip(
            [row], "no completion of known ids has lists that tell its tokens apart"
        )
    prompt, completion = example
    exam.probe.count(3)
    draw = Draw(Sampling(1.0, 1, top), endpoint=rules.endpoint, fields={field: top})
    try:
        scored = await scored_along(
            session, draw, prompt, tuple(completion.token_ids[:GIVEN].tolist())
        )
    except (CorruptResponse, RequestRejected) as error:
        return _conclude(exam, row, True, np.inf, str(error))
    distance = float(
        np.mean([_apart(listed(scored, t - 1), listed(completion, t)) for t in range(1, GIVEN)])
    )
    return _conclude(
        exam,
        row,
        True,
        distance,
        f"along {GIVEN} tokens total variation {distance:.2g} from the lists that were seen there",
    )


def _conclude(exam: Exam, row: str, claimed: bool, apart: float, text: str) -> None:
    """``apart``: total variation to what must be seen. What is not claimed is measured."""
    agrees = apart <= _limit(exam)
    evidence = f"{text} (limit {_limit(exam):.2g})"
    if claimed:
        return exam.findings.agree(row, agrees, evidence, False)
    if agrees:
        return exam.findings.add(row, "MEASURED", evidence, {})
    return exam.findings.add(row, "MEASURED", evidence)


def _limit(exam: Exam) -> float:
    """The largest total variation of equal distributions: equal requests themselves differ by
    ``noise`` nats at most.
    """
    return max(FARTHEST, exam.noise / 2)


def _telling(exam: Exam, *places: int) -> tuple[Prompt, Completion] | None:
    """The completion whose lists at ``places`` differ most from one to the next; None where none
    differs by twice the limit.
    """

    def least(pair: tuple[Prompt, Completion]) -> float:
        usable = (
            exam.trusted
            and pair[0] in (WORDS, STORY)
            and pair[1].whole
            and len(pair[1].token_ids) > GIVEN
        )
        usable = usable and all(map(exam.has_text, pair[1].token_ids[:GIVEN].tolist()))
        if usable:
            return min(_apart(listed(pair[1], a), listed(pair[1], b)) for a, b in pairwise(places))
        return 0.0

    best = max(exam.probe.draws, key=least, default=None)
    if best is not None and least(best) > 2 * _limit(exam):
        return best
    return None


def _apart(
    left_probabilities: Mapping[int, float], right_probabilities: Mapping[int, float]
) -> float:
    """The smallest total variation that is possible between the distributions of two lists, id ->
    logprob. A token that a list lacks is at most as likely as its least likely token.
    """
    size = min(len(left_probabilities), len(right_probabilities))
    first, second = (
        {token: float(np.exp(value)) for token, value in list(listed_logprobs.items())[:size]}
        for listed_logprobs in (left_probabilities, right_probabilities)
    )
    both = sum(abs(first[token] - second[token]) for token in first.keys() & second.keys())
    pairs = ((first, second), (second, first)) if size else ()
    return (
        both
        + sum(
            max(a[token] - min(b.values()), 0.0) for a, b in pairs for token in a.keys() - b.keys()
        )
    ) / 2
