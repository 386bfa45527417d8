"""The self-test: checks in their order, what each may cost, and what a failed request says about
the rows it was to prove.
"""

import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from blackbox_lb.api.session import Session
from blackbox_lb.errors import (
    AuthenticationFailed,
    ConnectionFailed,
    ContentFiltered,
    ModelUnsuitable,
    NoLogprobs,
    ProviderError,
    QuotaExhausted,
    RequestRejected,
)
from blackbox_lb.extras.doctor.checks import (
    answers,
    bias_effect,
    bias_range,
    bias_strength,
    listed_alternatives,
    logprob_meaning,
    neutral_sampling,
    token_identity,
)
from blackbox_lb.extras.doctor.exam import (
    MOST_REQUESTS,
    MOST_THOROUGH,
    Exam,
    NotChecked,
    Withheld,
)
from blackbox_lb.extras.doctor.findings import Report, RowFinding, agreement, unchecked

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
    rows: tuple[str, ...]
    requests: int
    tokens: int
    ask: Callable[[Exam], Awaitable[Answers | None]]
    compare: Callable[[Exam, Answers], Iterable[RowFinding]]


EFFECT = "effect of a bias"
NEUTRAL = "neutral sampling"
CHECKS: tuple[Check[Any], ...] = (
    Check(
        "tokenizer",
        ("tokenizer.tokenize",),
        2,
        0,
        token_identity.ask_tokenizer,
        token_identity.compare_tokenizer,
    ),
    Check(
        "lists of alternatives",
        (),
        11,
        11,
        listed_alternatives.ask_lists,
        listed_alternatives.compare_lists,
    ),
    Check(
        "token identity",
        ("tokens.id", "tokens.bytes_exact"),
        10,
        48,
        token_identity.ask_ids,
        token_identity.compare_ids,
    ),
    Check("several completions", ("sampling.n",), 1, 128, answers.ask_n, answers.compare_n),
    Check(
        "end token",
        ("logprobs.end_token_listed",),
        6,
        72,
        logprob_meaning.ask_end,
        logprob_meaning.compare_end,
    ),
    Check(
        EFFECT,
        ("bias", "bias.high", "bias.low"),
        5 + bias_range.REQUESTS,
        3 + bias_range.REQUESTS,
        bias_effect.ask_effect,
        bias_effect.compare_effect,
    ),
    Check(EFFECT, ("bias.low",), 5, 2, bias_effect.ask_low, bias_effect.compare_low),
    Check(
        "meaning of logprobs",
        ("logprobs.meaning",),
        6,
        6,
        logprob_meaning.ask_meaning,
        logprob_meaning.compare_meaning,
    ),
    Check(
        "fractions",
        ("bias.fractions",),
        6,
        6,
        bias_effect.ask_fractions,
        bias_effect.compare_fractions,
    ),
    Check(
        "highest id",
        ("bias.highest_id",),
        2,
        2,
        bias_effect.ask_highest_id,
        bias_effect.compare_highest_id,
    ),
    Check(
        "tokens outside the list",
        ("endpoints.{endpoint}.sampled_in_list", "logprobs.censored"),
        2,
        2,
        listed_alternatives.ask_outside,
        listed_alternatives.compare_outside,
    ),
    Check(
        NEUTRAL,
        ("neutral",),
        neutral_sampling.MOST_REQUESTS,
        neutral_sampling.MOST_TOKENS,
        neutral_sampling.ask_neutral,
        neutral_sampling.compare_neutral,
    ),
    Check(
        "strength of a bias",
        ("bias",),
        bias_strength.REQUESTS,
        bias_strength.REQUESTS * bias_strength.TOKENS,
        bias_strength.ask_strength,
        bias_strength.compare_strength,
    ),
    Check(
        "continued answers",
        ("answers.continues",),
        2,
        1,
        answers.ask_continues,
        answers.compare_continues,
    ),
    Check(
        "prompt logprobs",
        ("answers.prompt_logprobs",),
        3,
        1,
        answers.ask_prompt_logprobs,
        answers.compare_prompt_logprobs,
    ),
    Check("seed", ("sampling.seed",), 2, 24, answers.ask_seed, answers.compare_seed),
    Check(
        "entries of a bias",
        ("bias.entries",),
        11,
        11,
        bias_effect.ask_entries,
        bias_effect.compare_entries,
    ),
)
"""In this order: what a later check leans on comes first, and what may bring a server down comes
last. A check of two steps has a row for each.
"""


def checks_of(*, thorough: bool = False) -> tuple[Check[Any], ...]:
    """All checks. ``thorough``: more is drawn where a temperature close to 1 takes many tokens to
    see.
    """
    if not thorough:
        return CHECKS
    further = (neutral_sampling.ROUNDS - 1) * neutral_sampling.MORE
    checks = list(CHECKS)
    for place, check in enumerate(checks):
        if check.title == NEUTRAL:
            requests = check.requests + further
            tokens = check.tokens + further * neutral_sampling.LONG
            checks[place] = replace(check, requests=requests, tokens=tokens)
    return tuple(checks)


def most_requests(*, thorough: bool = False) -> int:
    """Requests of a whole self-test at most; below 120, or 270 for a thorough one."""
    requests = OPENING + sum(check.requests for check in checks_of(thorough=thorough))
    return min(MOST_THOROUGH if thorough else MOST_REQUESTS, requests)


def most_tokens(*, thorough: bool = False) -> int:
    """Completion tokens of a whole self-test at most."""
    return sum(check.tokens for check in checks_of(thorough=thorough))


async def examine(
    session: Session,
    *,
    checks: Sequence[Check[Any]] | None = None,
    concurrency: int = IN_FLIGHT,
    thorough: bool = False,
    watch: Callable[[str], None] = lambda title: None,
) -> Report:
    """Prove or disprove every claim of the session's profile. ``watch`` is called with the title of
    each check as it begins.

    ``checks``: a selection, in their order; the others rely on what that of the lists of
    alternatives found. ``thorough``: ask more, as in ``checks_of``.

    Raises ProviderError: nothing can be checked: no key, no credit, no answer, no logprobs, a model
    that cannot be adapted, or the first plain request is refused, by a content filter too.
    """
    start = time.monotonic()
    exam = Exam(
        session,
        concurrency=min(concurrency, session.profile.connection.concurrency),
        most=MOST_THOROUGH if thorough else MOST_REQUESTS,
        thorough=thorough,
        requests=OPENING,
    )
    title = ""
    for check in checks_of(thorough=thorough) if checks is None else checks:
        if check.title != title:
            title = check.title
            watch(title)
        exam.allow(check.requests)
        await _carry_out(exam, check)
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
    )


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
