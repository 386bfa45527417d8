"""The self-test: checks in their order, what each may cost, and what a failed request says about
the rows it was to prove.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace

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
from blackbox_lb.extras.doctor.asking.exam import Exam
from blackbox_lb.extras.doctor.asking.findings import Findings, Report
from blackbox_lb.extras.doctor.asking.probe import (
    IN_FLIGHT,
    MOST_REQUESTS,
    MOST_THOROUGH,
    Probe,
    ProbesSpent,
    Withheld,
)
from blackbox_lb.extras.doctor.checks.answers import (
    check_continues,
    check_n,
    check_prompt_logprobs,
    check_seed,
    check_usage,
)
from blackbox_lb.extras.doctor.checks.bias_effect import (
    check_effect,
    check_entries,
    check_fractions,
    check_highest_id,
)
from blackbox_lb.extras.doctor.checks.bias_range import REQUESTS as RANGE_REQUESTS
from blackbox_lb.extras.doctor.checks.bias_strength import REQUESTS as STRENGTH_REQUESTS
from blackbox_lb.extras.doctor.checks.bias_strength import TOKENS as STRENGTH_TOKENS
from blackbox_lb.extras.doctor.checks.bias_strength import check_strength
from blackbox_lb.extras.doctor.checks.listed_alternatives import check_lists, check_outside
from blackbox_lb.extras.doctor.checks.logprob_meaning import check_end, check_meaning
from blackbox_lb.extras.doctor.checks.neutral_sampling import (
    LONG,
    MORE,
    MOST_TOKENS,
    REQUESTS,
    ROUNDS,
    check_neutral,
)
from blackbox_lb.extras.doctor.checks.token_identity import check_ids, check_tokenizer

ENDS = (AuthenticationFailed, ConnectionFailed, QuotaExhausted, NoLogprobs)
"""What no later request would survive either."""
OPENING = 1
"""Requests that opening a session takes: the list of models."""


@dataclass(frozen=True, slots=True)
class Check:
    """``rows``: what it proves. ``requests``: most it may make. ``tokens``: most that it may
    generate.
    """

    title: str
    rows: tuple[str, ...]
    requests: int
    tokens: int
    run: Callable[[Exam], Awaitable[None]]


CHECKS = (
    Check("tokenizer", ("tokenizer.tokenize",), 2, 0, check_tokenizer),
    Check("lists of alternatives", (), 11, 11, check_lists),
    Check("token identity", ("tokens.id", "tokens.bytes_exact"), 10, 48, check_ids),
    Check("several completions", ("sampling.n",), 1, 128, check_n),
    Check("end token", ("logprobs.end_token_listed",), 6, 72, check_end),
    Check(
        "effect of a bias",
        ("bias", "bias.high", "bias.low"),
        7 + RANGE_REQUESTS,
        5 + RANGE_REQUESTS,
        check_effect,
    ),
    Check("meaning of logprobs", ("logprobs.meaning",), 6, 6, check_meaning),
    Check("fractions", ("bias.fractions",), 6, 6, check_fractions),
    Check("highest id", ("bias.highest_id",), 2, 2, check_highest_id),
    Check("tokens outside the list", ("logprobs.censored",), 2, 2, check_outside),
    Check("neutral sampling", ("neutral",), REQUESTS + MORE + 2, MOST_TOKENS, check_neutral),
    Check(
        "strength of a bias",
        ("bias",),
        STRENGTH_REQUESTS,
        STRENGTH_REQUESTS * STRENGTH_TOKENS,
        check_strength,
    ),
    Check("continued answers", ("answers.continues", "answers.repeats"), 2, 1, check_continues),
    Check("prompt logprobs", ("answers.prompt_logprobs",), 3, 1, check_prompt_logprobs),
    Check("seed", ("sampling.seed",), 2, 24, check_seed),
    Check("entries of a bias", ("bias.entries",), 11, 11, check_entries),
)
"""In this order: what a later check leans on comes first, and what may bring a server down comes
last.
"""


def checks_of(*, thorough: bool = False) -> tuple[Check, ...]:
    """All checks. ``thorough``: more is drawn where a temperature close to 1 takes many tokens to
    see.
    """
    if not thorough:
        return CHECKS
    further = (ROUNDS - 1) * MORE
    checks = list(CHECKS)
    for place, check in enumerate(checks):
        if check.run is check_neutral:
            requests = check.requests + further
            tokens = check.tokens + further * LONG
            checks[place] = replace(check, requests=requests, tokens=tokens)
    return tuple(checks)


def most_requests(*, thorough: bool = False) -> int:
    """Requests of a whole self-test at most; below 120, or 270 for a thorough one."""
    requests = OPENING + sum(check.requests for check in checks_of(thorough=thorough))
    if thorough:
        return min(MOST_THOROUGH, requests)
    return min(MOST_REQUESTS, requests)


def most_tokens(*, thorough: bool = False) -> int:
    """Completion tokens of a whole self-test at most."""
    return sum(check.tokens for check in checks_of(thorough=thorough))


async def examine(
    session: Session,
    *,
    checks: Sequence[Check] | None = None,
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
    probe = Probe(
        session,
        min(concurrency, session.profile.connection.concurrency),
        requests=OPENING,
        most=MOST_THOROUGH if thorough else MOST_REQUESTS,
    )
    exam = Exam(probe, Findings(session.profile), thorough=thorough)
    if checks is None:
        checks = checks_of(thorough=thorough)
    for check in checks:
        watch(check.title)
        probe.allow(check.requests)
        await _carry_out(exam, check)
    check_usage(exam)
    return Report(
        profile=session.profile,
        model=session.model,
        endpoint=session.endpoint,
        base_url=session.base_url,
        findings=exam.findings.all(),
        requests=probe.requests,
        prompt_tokens=probe.prompt_tokens,
        completion_tokens=probe.completion_tokens,
        seconds=time.monotonic() - start,
        entries=probe.entries,
        named=probe.named,
    )


async def _carry_out(exam: Exam, check: Check) -> None:
    """Run one check. A refusal contradicts the rows that the check was to prove. Any other failure
    leaves them unchecked, also a content filter's refusal of the prompt. Where the model takes no
    bias, that is noted and the other checks go on."""
    first = check.run is check_lists
    try:
        await check.run(exam)
    except ENDS:
        raise
    except ModelUnsuitable as refusal:
        if first:
            raise
        _note_refused_bias(exam, check, str(refusal))
    except RequestRejected as refusal:
        if first:
            raise
        for row in check.rows:
            exam.findings.agree(row, False, f"refused: {refusal}")
    except (ProviderError, ProbesSpent) as error:
        if first:
            raise
        exam.findings.skip(check.rows, str(error))
    except Withheld as reason:
        if first:
            raise ContentFiltered(f"nothing can be checked: {reason}") from reason
        exam.findings.skip(check.rows, str(reason))


def _note_refused_bias(exam: Exam, check: Check, refusal: str) -> None:
    """Note that every request of a check was refused. In the check of a bias's effect this means
    that no bias is taken; the rows of any other check stay unchecked.
    """
    if check.run is not check_effect:
        exam.findings.skip(check.rows, refusal)
        return
    exam.works = False
    exam.findings.agree("bias", False, f"refused: {refusal}")
    exam.findings.skip(check.rows, "no bias is taken")
    setup = exam.profile.bias.refusal_of(refusal)
    if setup is not None:
        exam.findings.add("bias.refused", "CONFIRMED", f"{setup.why}: {setup.remedy}")
