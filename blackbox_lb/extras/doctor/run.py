"""The self-test: checks in their order, what each may cost, and what a failed request says about
the rows it was to prove.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from blackbox_lb.api.session import Session
from blackbox_lb.errors import (
    AuthenticationFailed,
    BlbError,
    ConnectionFailed,
    ContentFiltered,
    Interrupted,
    ModelUnsuitable,
    NoLogprobs,
    ProviderError,
    QuotaExhausted,
    RequestRejected,
)
from blackbox_lb.extras.doctor.checks import (
    answers,
    effect,
    limits,
    lists,
    logprobs,
    neutral,
    pairs,
    strength,
    tokens,
)
from blackbox_lb.extras.doctor.exam import (
    MOST_REQUESTS,
    Exam,
    NotChecked,
    Withheld,
)
from blackbox_lb.extras.doctor.findings import Report, RowFinding, agreement, unchecked

Watch: TypeAlias = Callable[[str, int, float, Sequence[RowFinding] | None], None]
"""Called with the title of a check, the requests so far, and the seconds that the rest takes at
most at this pace: as the check begins, after each answer, and at its end, with its findings.
"""
IN_FLIGHT = 8
"""Requests at a time: gentle on a small server, and a hosted API answers 99 in seconds."""
ENDS = (AuthenticationFailed, ConnectionFailed, QuotaExhausted, NoLogprobs)
"""What no later request would survive either."""
OPENING = 1
"""Requests that opening a session takes: the list of models."""

Answers = TypeVar("Answers")


@dataclass(frozen=True, slots=True)
class Check(Generic[Answers]):
    """One check of the self-test.

    rows: what it proves, with the place of the endpoint's name. Without rows nothing can be checked
        where it fails.
    requests, tokens: most it may make, and most that they may generate.
    ask: the requests, and what is known by them (the fields of ``Exam``). None where there is
        nothing to compare. Raises NotChecked.
    compare: a finding for each row, of the answers and the exam, which it leaves as they are.
        Raises NotChecked, for the rows that have no finding yet.
    """

    title: str
    rows: Sequence[str]
    requests: int
    tokens: int
    ask: Callable[[Exam], Awaitable[Answers | None]]
    compare: Callable[[Exam, Answers], Iterable[RowFinding]]


EFFECT = "effect of a bias"
SAMPLED_IN_LIST = "endpoints.{endpoint}.sampled_in_list"
CHECKS: tuple[Check[Any], ...] = (
    Check(
        "tokenizer", ["tokenizer.tokenize"], 2, 0, tokens.ask_tokenizer, tokens.compare_tokenizer
    ),
    Check("lists of alternatives", [], 11, 11, lists.ask_lists, lists.compare_lists),
    Check(
        "token identity",
        ["tokens.id", "tokens.bytes_exact"],
        10,
        48,
        tokens.ask_ids,
        tokens.compare_ids,
    ),
    Check("several completions", ["sampling.n"], 1, 128, answers.ask_n, answers.compare_n),
    Check("end token", [logprobs.END], 6, 72, logprobs.ask_end, logprobs.compare_end),
    Check(
        EFFECT, ["bias", "bias.high", "bias.low"], 20, 18, effect.ask_effect, effect.compare_effect
    ),
    Check(EFFECT, ["bias.low"], 5, 2, effect.ask_low, effect.compare_low),
    Check(
        "meaning of logprobs",
        ["logprobs.meaning"],
        6,
        6,
        logprobs.ask_meaning,
        logprobs.compare_meaning,
    ),
    Check("fractions", ["bias.fractions"], 6, 6, pairs.ask_fractions, pairs.compare_fractions),
    Check(
        "highest id", ["bias.highest_id"], 2, 2, limits.ask_highest_id, limits.compare_highest_id
    ),
    Check(
        "tokens outside the list",
        [SAMPLED_IN_LIST, "logprobs.censored"],
        2,
        2,
        lists.ask_outside,
        lists.compare_outside,
    ),
    Check(
        "neutral sampling",
        ["neutral"],
        neutral.MOST_REQUESTS,
        neutral.MOST_TOKENS,
        neutral.ask_neutral,
        neutral.compare_neutral,
    ),
    Check(
        "strength of a bias",
        ["bias"],
        strength.REQUESTS,
        strength.MOST_TOKENS,
        strength.ask_strength,
        strength.compare_strength,
    ),
    Check(
        "continued answers",
        ["answers.continues"],
        2,
        1,
        answers.ask_continues,
        answers.compare_continues,
    ),
    Check(
        "prompt logprobs",
        ["answers.prompt_logprobs"],
        3,
        1,
        answers.ask_prompt_logprobs,
        answers.compare_prompt_logprobs,
    ),
    Check("seed", ["sampling.seed"], 2, 24, answers.ask_seed, answers.compare_seed),
    Check(
        "entries of a bias", ["bias.entries"], 11, 11, limits.ask_entries, limits.compare_entries
    ),
)
"""In this order: what a later check leans on comes first, and what may bring a server down comes
last. A check of two steps has a row for each.
"""


def most_tokens() -> int:
    """Completion tokens of a whole self-test at most."""
    return sum(check.tokens for check in CHECKS)


async def examine(
    session: Session,
    *,
    checks: Sequence[Check[Any]] = CHECKS,
    concurrency: int = IN_FLIGHT,
    watch: Watch = lambda title, requests, left, findings: None,
) -> Report:
    """Prove or disprove every claim of the session's profile. What ends it in the middle, Ctrl-C or
    an error, stands in the report of what was established until then.

    ``checks``: a selection, in their order; the others rely on what that of the lists of
    alternatives found.

    Raises ProviderError: nothing can be checked: no key, no credit, no answer, no logprobs, a model
    that cannot be adapted, or the first plain request is refused, by a content filter too.
    CancelledError: Ctrl-C before anything is established.
    """
    start = time.monotonic()
    exam = Exam(
        session,
        concurrency=min(concurrency, session.profile.connection.concurrency),
        most=MOST_REQUESTS,
        requests=OPENING,
    )
    ended: BlbError | None = None
    try:
        await _carry_out_all(exam, checks, watch, start)
    except ProviderError as error:
        if not exam.draws:
            raise
        ended = error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not exam.draws or task is None:
            raise
        task.uncancel()  # the session is closed as usual
        ended = Interrupted(f"Interrupted after {exam.requests} of {exam.most} requests")
    for finding in answers.compare_usage(exam):
        exam.add(finding)
    return Report(
        profile=session.profile,
        model=session.model,
        endpoint=session.endpoint,
        base_url=session.base_url,
        findings=tuple(exam.findings.values()),
        requests=exam.requests,
        prompt_tokens=exam.prompt_tokens,
        completion_tokens=exam.completion_tokens,
        seconds=time.monotonic() - start,
        entries=exam.entries,
        named=exam.named,
        ended=ended,
    )


async def _carry_out_all(
    exam: Exam, checks: Sequence[Check[Any]], watch: Watch, start: float
) -> None:
    """Run the checks in their order. start: in seconds of ``time.monotonic``."""
    for place, check in enumerate(checks):
        further = sum(later.requests for later in checks[place + 1 :])
        end = min(exam.requests + check.requests, exam.most)
        known = dict(exam.findings)

        def tell(
            findings: Sequence[RowFinding] | None = None,
            *,
            title: str = check.title,
            end: int = end,
            further: int = further,
        ) -> None:
            if exam.requests == OPENING:
                return  # no pace is known
            to_come = min(end + further, exam.most) - exam.requests
            pace = (time.monotonic() - start) / (exam.requests - OPENING)
            watch(title, exam.requests, pace * to_come, findings)

        exam.heard = tell
        tell()
        exam.allow(check.requests)
        await _carry_out(exam, check)
        rows = [row for row, finding in exam.findings.items() if known.get(row) != finding]
        tell([exam.findings[row] for row in rows])


async def _carry_out(exam: Exam, check: Check[Any]) -> None:
    """Run one check. A refusal contradicts the rows that the check was to prove. Any other failure
    leaves them unchecked, also a content filter's refusal of the prompt. Where the model takes no
    bias, that is noted and the other checks go on."""
    rows = [row.format(endpoint=exam.session.endpoint) for row in check.rows]
    findings: Iterable[RowFinding] = ()
    try:
        answer = await check.ask(exam)
        if answer is not None:
            for finding in check.compare(exam, answer):
                exam.add(finding)
        return
    except ENDS:
        raise
    except Withheld as error:
        if not rows:
            raise ContentFiltered(f"nothing can be checked: {error}") from error
        reason = str(error)
    except (ProviderError, NotChecked) as error:
        if not rows:
            raise
        reason = str(error)
        if isinstance(error, ModelUnsuitable) and check.title == EFFECT:
            exam.works = False
            findings = _refused_bias(exam, reason)
            reason = "no bias is taken"
        elif isinstance(error, RequestRejected) and not isinstance(error, ModelUnsuitable):
            findings = [agreement(row, False, f"refused: {error}") for row in rows]
    for finding in findings:
        exam.add(finding)
    for row in rows:
        if exam.status(row) == "NOT CHECKED":
            exam.add(unchecked(row, reason))


def _refused_bias(exam: Exam, refusal: str) -> Iterator[RowFinding]:
    """Every request with a bias was refused, by a set-up that the profile knows or by another."""
    yield agreement("bias", False, f"refused: {refusal}")
    setup = exam.profile.bias.refusal_of(refusal)
    if setup is not None:
        yield RowFinding("bias.refused", "CONFIRMED", f"{setup.why}: {setup.remedy}")
