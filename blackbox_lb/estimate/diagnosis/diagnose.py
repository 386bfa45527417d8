"""Diagnosis: why a fit did or did not help, in plain words with the numbers and the remedy, from
its measurements.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from scipy import special

from blackbox_lb.estimate.diagnosis import findings
from blackbox_lb.estimate.diagnosis.findings import Finding
from blackbox_lb.estimate.diagnosis.headroom import Headroom
from blackbox_lb.estimate.diagnosis.reliability import Precision
from blackbox_lb.estimate.diagnosis.truncation import Truncation
from blackbox_lb.estimate.inputs.thresholds import (
    CONFIDENCE,
    LEAST_PROMPTS,
    POWER,
    SMALL_GAIN,
    Word,
)
from blackbox_lb.estimate.reweighting.weight_diagnostics import Censoring, TailCoverage, Touched

MANY_TIMES = 100.0
"""Factor of the test's size above which its difference does not show how large the effect is."""
MOOT = frozenset({"saturated", "tau", "samples", "already", "touched"})
"""Findings that mean nothing without variance in the reward, when a bias is noise around 0."""
OF_SAMPLES = frozenset({"reward", "saturated", "tau", "censoring", "tail"})
"""Findings on completions that were sampled, and so on nothing where answers were given."""
HIDDEN = frozenset({"reward", "saturated", "tau", "samples", "weights", "already", "test"})
"""Findings whose remedies do not help while the token limit hides what a reward by length is of."""


@dataclass(frozen=True, slots=True)
class Effect:
    """The result of the test: the mean reward biased minus base, more being better, with its 95 %
    interval.

    prompts: of the test. completions: of each policy. proven: whether the verdict confirms it,
    which counts the rows judged beside it and asks for a few prompts at least. setting: the
    sampling setting.
    """

    difference: float
    low: float
    high: float
    prompts: int
    completions: int
    proven: bool = True
    setting: str = "temperature 1"


@dataclass(frozen=True, slots=True)
class Facts:
    """The measurements; None is NOT CHECKED. estimator: its name. effective_sample: of the reward
    weights of the fit.

    effect: the test at one setting; further_effects: at the others. touched: of the sent bias.
    top_logprobs: alternatives that were asked for. truncation: None where the reward is not by
    length. given: the fit is from given answers alone. no_precision: why the projection has no
    standard errors, "" where they were not asked for.
    """

    estimator: str
    effect: Effect | None = None
    further_effects: tuple[Effect, ...] = ()
    headroom: Headroom | None = None
    precision: Precision | None = None
    effective_sample: float | None = None
    censoring: Censoring | None = None
    tail: TailCoverage | None = None
    touched: Touched | None = None
    top_logprobs: int | None = None
    truncation: Truncation | None = None
    given: bool = False
    no_precision: str = ""


def diagnose(facts: Facts) -> tuple[Finding, ...]:
    """Return every finding, the most likely reason first.

    A successful fit begins with that. Then the FAILs, in the order in which one explains the other:
    completions that were cut hide the reward, a reward that does not vary explains all that
    follows, censored data explain a bias that is noise, too few rollouts explain one that does not
    transfer. Then INCONCLUSIVE, NOT CHECKED and PASS in the same order. Codes: "test" (once for
    finding setting), "truncated" (rewards by length), "reward", "saturated", "tau", "censoring",
    "tail", "samples", "weights", "already", "touched".
    """
    room = facts.headroom
    estimator = facts.estimator
    width = facts.top_logprobs
    result = [
        *([] if facts.truncation is None else [findings.truncated(facts.truncation)]),
        findings.reward(room),
        findings.saturated(room),
        findings.tau(room),
        findings.censoring(facts.censoring, estimator, width),
        findings.tail(facts.tail, estimator, width),
        findings.samples(facts.precision, facts.given, facts.no_precision),
        findings.weights(facts.effective_sample, facts.given),
        findings.already(facts.precision, facts.no_precision),
        findings.touched(facts.touched),
        _test(room, facts.effect),
        *(_test(room, effect) for effect in facts.further_effects),
    ]
    failed = {finding.code for finding in result if finding.word == "FAIL"}
    if facts.given:
        result = _put_aside(
            result, OF_SAMPLES, "does not arise: answers were given, and none was sampled"
        )
    elif "reward" in failed:
        result = _put_aside(result, MOOT, "says nothing while the reward does not vary")
    if "truncated" in failed and facts.truncation is not None:
        remedy = f"first of all, {facts.truncation.remedy}"
        result = [
            (
                replace(finding, remedy=remedy)
                if finding.remedy and finding.code in HIDDEN
                else finding
            )
            for finding in result
        ]
    helped = next(
        (finding for finding in result if finding.code == "test" and finding.word == "PASS"), None
    )
    if helped is not None:
        result = [_beside_help(finding) for finding in result]
    ranks: dict[Word, int] = {"FAIL": 1, "INCONCLUSIVE": 2, "NOT CHECKED": 3, "PASS": 4}
    scarce = ("samples", "INCONCLUSIVE")  # which makes the others inconclusive
    return tuple(
        sorted(
            result,
            key=lambda finding: (
                0 if finding is helped else ranks[finding.word],
                (finding.code, finding.word) != scarce,
            ),
        )
    )


def _beside_help(finding: Finding) -> Finding:
    """Too few rollouts are no reason why a bias does not help where the test shows that it does."""
    if (finding.code, finding.word) != ("samples", "FAIL"):
        return finding
    sentence = f"{finding.sentence}; the test shows that it helps all the same"
    return replace(finding, word="INCONCLUSIVE", sentence=sentence)


def _put_aside(found: list[Finding], codes: frozenset[str], why: str) -> list[Finding]:
    """The findings with those of ``codes`` as NOT CHECKED, for that reason and without a remedy."""
    return [
        (
            replace(finding, word="NOT CHECKED", sentence=why, remedy="")
            if finding.code in codes
            else finding
        )
        for finding in found
    ]


def test_findings(effects: Sequence[Effect]) -> tuple[Finding, ...]:
    """What the test alone tells, a finding a setting: for a fit that nothing else explains."""
    return tuple(_test(None, effect) for effect in effects)


def _test(room: Headroom | None, seen: Effect | None) -> Finding:
    if seen is None:
        return findings.unchecked(
            "test", "whether the bias helps", "judge it on fresh completions of unseen prompts"
        )
    numbers = (seen.difference, seen.low, seen.high)
    if not all(map(math.isfinite, numbers)):
        return Finding(
            "test",
            "FAIL",
            f"the difference {seen.difference} has no interval",
            "judge the bias on more test prompts",
        )
    sentence = (
        f"at {seen.setting} the reward changed by {seen.difference:+.3g} (95 % interval"
        f" {seen.low:+.3g} to {seen.high:+.3g})"
    )
    if not seen.proven and not seen.low <= 0 <= seen.high:
        return Finding(
            "test",
            "INCONCLUSIVE",
            f"{sentence}, which alone would count, but not among all rows of the verdict or with"
            f" {seen.prompts} prompts",
            f"judge it on {max(3 * seen.prompts, LEAST_PROMPTS):,} test prompts or more",
        )
    if seen.low > 0:
        return Finding("test", "PASS", f"it helped: {sentence}")
    if seen.high < 0:
        return Finding(
            "test",
            "FAIL",
            f"it hurt: {sentence}",
            "do not deploy this bias; read the reasons below",
        )
    return _unresolved(room, seen, sentence)


def _unresolved(room: Headroom | None, seen: Effect, sentence: str) -> Finding:
    small = math.inf
    if room is not None:
        small = SMALL_GAIN * room.spread
    if -small <= seen.low < seen.high <= small < math.inf:
        return Finding(
            "test",
            "FAIL",
            f"the test shows no effect: {sentence}; one of {small:.2g} or more is excluded",
            "more test completions would not help",
        )
    sentence = f"the test does not show whether it helps: {sentence}"
    several = (
        f"{max(3 * seen.prompts, LEAST_PROMPTS):,} test prompts or more would show it, or that it"
        " is small"
    )
    if seen.low == seen.high:
        return Finding(
            "test", "INCONCLUSIVE", f"{sentence}: all {seen.prompts} prompts agree", several
        )
    half = (seen.high - seen.low) / 2
    reach = float(special.ndtri((1 + CONFIDENCE) / 2))
    times = math.inf
    if seen.difference:
        times = ((reach + float(special.ndtri(POWER))) / reach * half / abs(seen.difference)) ** 2
    if times > MANY_TIMES:
        return Finding(
            "test",
            "INCONCLUSIVE",
            f"{sentence}; the difference is far smaller than what {seen.prompts} prompts can show",
            several,
        )
    prompts = math.ceil(seen.prompts * times)
    completions = math.ceil(seen.completions * times)
    remedy = (
        f"judge it on about {prompts:,} test prompts ({completions:,} completions of each policy)"
    )
    return Finding("test", "INCONCLUSIVE", sentence, remedy)
