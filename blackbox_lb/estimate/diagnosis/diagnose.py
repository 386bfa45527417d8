"""Diagnosis: why a fit did or did not help, as findings in plain words with their numbers and the
remedy.

Every function takes a measurement, or None where there is none, and returns one ``Finding``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy import special

from blackbox_lb.estimate.choice import table
from blackbox_lb.estimate.diagnosis.headroom import Headroom, Rarity
from blackbox_lb.estimate.diagnosis.reliability import Precision
from blackbox_lb.estimate.diagnosis.truncation import Truncation
from blackbox_lb.estimate.inputs.thresholds import (
    CENSORED,
    CONFIDENCE,
    EFFECTIVE_SAMPLE,
    LEAST_PROMPTS,
    NEGLIGIBLE_GAIN,
    POWER,
    RELIABILITY,
    SMALL_GAIN,
    SMALL_KL,
    TAIL_MASS,
    TOUCHED,
    UNATTRIBUTED,
)
from blackbox_lb.estimate.reweighting import TailCoverage, Touched
from blackbox_lb.records import Censoring, Finding, Word

SAMPLE_TWICE = "sample each training prompt at least twice"


def unchecked(code: str, subject: str, remedy: str) -> Finding:
    """The finding without a measurement."""
    return Finding(
        code=code, word="NOT CHECKED", sentence=f"{subject} was not checked", remedy=remedy
    )


def truncated_finding(truncation: Truncation) -> Finding:
    """Whether the token limit hides how long completions are."""
    if truncation.hides_lengths:
        return Finding(
            code="truncated",
            word="FAIL",
            sentence=f"{truncation.sentence}, where a reward by length cannot tell them apart",
            remedy=truncation.remedy,
        )
    return Finding(code="truncated", word="PASS", sentence=truncation.sentence)


def reward_finding(room: Headroom | None, rarity: Rarity | None = None) -> Finding:
    """Whether the reward differs between completions of one prompt; ``rarity``: where it hardly
    differs between any.
    """
    if rarity is not None:
        return Finding(code="reward", word="FAIL", sentence=rarity.sentence, remedy=rarity.remedy)
    if room is None:
        return unchecked("reward", "whether the reward varies", SAMPLE_TWICE)
    if room.decision == "unknown":
        return Finding(
            code="reward",
            word="INCONCLUSIVE",
            sentence=room.sentence,
            remedy="collect completions of more training prompts",
        )
    if room.varying == 0 or room.ceiling <= NEGLIGIBLE_GAIN * room.spread:
        return Finding(
            code="reward",
            word="FAIL",
            sentence=room.sentence,
            remedy="use another reward, or prompts that the model gets right at times and wrong at"
            " others",
        )
    return Finding(code="reward", word="PASS", sentence=room.sentence)


def saturated_finding(room: Headroom | None) -> Finding:
    """Whether the base is so near the best that nothing is left to gain."""
    if room is None:
        return unchecked("saturated", "how near the base is to the best", SAMPLE_TWICE)
    sentence = (
        f"the base earns {room.mean:.3g}, the best completion seen of a prompt"
        f" {room.mean + room.ceiling:.3g}"
    )
    if room.decision in ("nothing", "little") and 0 < room.ceiling <= SMALL_GAIN * room.spread:
        remedy = "use harder prompts or another reward"
        return Finding(
            code="saturated",
            word="FAIL",
            sentence=f"{sentence}: the prompt already achieves what a bias could",
            remedy=remedy,
        )
    return Finding(
        code="saturated",
        word="INCONCLUSIVE" if room.decision == "unknown" else "PASS",
        sentence=sentence,
    )


def tau_finding(room: Headroom | None) -> Finding:
    """Whether tau lets the policy move far enough."""
    if room is None:
        return unchecked("tau", "whether tau leaves room for a gain", SAMPLE_TWICE)
    sentence = (
        f"{room.gain_sentence}, and the best completion seen of each prompt is {room.ceiling:.3g}"
        " above the mean"
    )
    if room.decision in ("nothing", "little") and room.ceiling > SMALL_GAIN * room.spread:
        # The gain is near Cov(r, v) / tau while it is small: aim at twice a small effect, or at the
        # ceiling.
        lower = room.tau * room.gain / min(2 * SMALL_GAIN * room.spread, room.ceiling)
        remedy = "lower tau"
        if room.gain > 0:
            remedy = f"lower tau, to about {lower:.2g}"
        return Finding(
            code="tau",
            word="FAIL",
            sentence=f"{sentence}: tau holds the policy too close to the base",
            remedy=remedy,
        )
    return Finding(
        code="tau", word="INCONCLUSIVE" if room.decision == "unknown" else "PASS", sentence=sentence
    )


def censoring_finding(
    censoring: Censoring | None, estimator: str, top_logprobs: int | None
) -> Finding:
    """Whether sampled tokens came without a probability that the estimator needs."""
    if censoring is None:
        return unchecked(
            "censoring",
            "the share of sampled tokens without a logprob",
            "measure it on the training rollouts",
        )
    share = censoring.bounded / censoring.positions
    sentence = (
        f"{censoring.bounded:,} of {censoring.positions:,} sampled tokens ({share:.1%}) have"
        " only a bound for"
        " their logprob"
    )
    if not table.facts_of(estimator).reads_propensities:
        return Finding(
            code="censoring", word="PASS", sentence=f"{sentence}, which {estimator} does not read"
        )
    word = CENSORED.judge(share)
    if word == "PASS":
        return Finding(code="censoring", word=word, sentence=sentence)
    return Finding(
        code="censoring",
        word=word,
        sentence=f"{sentence}: {estimator} divides by it, so the bias of rare tokens comes out too"
        " low",
        remedy=f"use ``estimator=projection``, which does not read it, or {_wider(top_logprobs)}",
    )


def tail_finding(
    coverage: TailCoverage | None, estimator: str, top_logprobs: int | None
) -> Finding:
    """Whether the lists hold enough of the probability for an estimator that reads them."""
    if coverage is None:
        return unchecked(
            "tail", "the probability outside the lists", "measure it on the training rollouts"
        )
    sentence = (
        f"{coverage.tail_mass:.1%} of the probability is outside the lists,"
        f" {coverage.unattributed:.1%}"
        " without any token to go to"
    )
    if not table.facts_of(estimator).reads_lists:
        return Finding(
            code="tail", word="PASS", sentence=f"{sentence}, which {estimator} does not read"
        )
    order: tuple[Word, ...] = ("FAIL", "INCONCLUSIVE", "NOT CHECKED", "PASS")
    word = min(
        TAIL_MASS.judge(coverage.tail_mass),
        UNATTRIBUTED.judge(coverage.unattributed),
        key=order.index,
    )
    if word == "PASS":
        return Finding(code="tail", word=word, sentence=sentence)
    return Finding(
        code="tail",
        word=word,
        sentence=f"{sentence}: the normaliser of the fit is mostly a guess there",
        remedy=_wider(top_logprobs),
    )


def _wider(top_logprobs: int | None) -> str:
    more = ""
    if top_logprobs is not None:
        more = f" than {top_logprobs}"
    return f"ask for more alternatives{more} (``top_logprobs``), or a provider that returns more"


def samples_finding(
    precision: Precision | None, uses_answers: bool = False, why_none: str = ""
) -> Finding:
    """Whether the rollouts, or the given answers of ``uses_answers``, are enough, and how many
    would be.
    """
    if precision is None:
        return _without_errors("samples", "whether the rollouts are enough", why_none)
    learned_from = (
        f"{precision.prompts} prompts x {precision.completions / precision.prompts:.3g} completions"
    )
    if uses_answers:
        learned_from = f"the answers of {precision.prompts} prompts"
    sentence = (
        f"the bias of {learned_from} has a reliability of {precision.reliability:.2f}: it learned"
        f" {precision.signal:.2g} nats a completion, and its standard errors are worth"
        f" {precision.noise:.2g}"
    )
    if precision.word == "PASS" or precision.flat:
        return Finding(code="samples", word="PASS", sentence=sentence)
    needed = precision.prompts_needed()
    per_prompt = precision.completions / precision.prompts
    bound = "at least " if precision.signal <= SMALL_KL else "about "
    more = (
        f"collect {bound}{needed:,} prompts with {per_prompt:.3g} completions each"
        f" ({math.ceil(needed * per_prompt):,} rollouts)"
    )
    if uses_answers:
        more = f"learn from the answers of {bound}{needed:,} prompts"
    remedy = f"{more} for a reliability of {RELIABILITY.good:g}, or send fewer entries"
    return Finding(code="samples", word=precision.word, sentence=sentence, remedy=remedy)


def _without_errors(code: str, subject: str, why: str) -> Finding:
    """The finding without standard errors; ``why`` the projection has none, "" for another
    estimator.
    """
    if why:
        return Finding(code=code, word="NOT CHECKED", sentence=f"{subject} was not checked: {why}")
    return unchecked(
        code, subject, "learn with ``estimator=projection``, which has standard errors"
    )


def weights_finding(
    size: float | None, uses_answers: bool = False, completions: int | None = None
) -> Finding:
    """Whether enough completions, or given answers, carry the weight; ``completions``: all that
    there are.
    """
    if size is None:
        return unchecked(
            "weights",
            "how many completions carry the weight",
            "compute the effective sample size of the weights",
        )
    if math.isfinite(size):
        sentence = f"the reward weights count as {size:.0f} equal completions"
    else:
        sentence = f"the effective sample is {size}"
    word = EFFECTIVE_SAMPLE.judge(size)
    if word == "PASS":
        return Finding(code="weights", word=word, sentence=sentence)
    if uses_answers:
        return Finding(
            code="weights", word=word, sentence=sentence, remedy="learn from more answers"
        )
    if completions is not None and size > EVENLY * completions:
        few = f"only {completions:,} completions were learned from"
        needed = f"collect at least {EFFECTIVE_SAMPLE.good:.0f} rollouts"
        return Finding(code="weights", word=word, sentence=few, remedy=needed)
    more = "collect more rollouts"
    if 0 < size < math.inf:
        more = f"collect {EFFECTIVE_SAMPLE.good / size:.2g} times as many rollouts"
    return Finding(
        code="weights",
        word=word,
        sentence=sentence,
        remedy=f"{more}, or raise tau so that more of them count",
    )


def reproduced_finding(precision: Precision | None, why_none: str = "") -> Finding:
    """Whether the fitted bias is 0 although there are enough data."""
    if precision is None:
        return _without_errors(
            "already", "whether the prompt already does what a bias could", why_none
        )
    if precision.flat:
        sentence = (
            "the fitted bias is about 0 and the data are enough to say so: it moves the policy by"
            f" at most {precision.most:.2g} nats a completion, too little to move the reward by"
            f" {SMALL_GAIN:g} of its standard deviation"
        )
        remedy = "the prompt already does what a fixed bias could: change the prompt or the reward"
        return Finding(code="already", word="FAIL", sentence=sentence, remedy=remedy)
    sentence = f"the fitted bias moves the policy by about {precision.signal:.2g} nats a completion"
    return Finding(
        code="already",
        word="PASS" if precision.word == "PASS" else "INCONCLUSIVE",
        sentence=sentence,
    )


def touched_finding(touched: Touched | None) -> Finding:
    """Whether the bias acts on tokens that occur."""
    if touched is None:
        return unchecked(
            "touched",
            "how much of the probability the bias touches",
            "measure it on the training rollouts",
        )
    sentence = (
        f"{touched.entries} biased tokens hold {touched.base:.1%} of the probability without"
        " the bias and"
        f" {touched.biased:.1%} with it, {touched.per_completion:.2g} tokens of a completion"
    )
    word = TOUCHED.judge(touched.per_completion)
    remedy = "send more entries, or check why common tokens have none"
    if word == "PASS":
        remedy = ""
    return Finding(
        code="touched",
        word=word,
        sentence=sentence,
        remedy=remedy,
    )


EVENLY = 0.9
"""Effective share of the completions above which not their weights but their number is small."""
MANY_TIMES = 100.0
"""Factor of the test's size above which its difference does not show how large the effect is."""
MOOT = frozenset({"saturated", "tau", "samples", "already", "touched"})
"""Findings that mean nothing without variance in the reward, when a bias is noise around 0."""
OF_SAMPLES = frozenset({"reward", "saturated", "tau", "censoring", "tail"})
"""Findings on completions that were sampled, and so on nothing where answers were given."""
DOES_NOT_ARISE = "does not arise"
"""How the sentence of such a finding begins."""
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
    weights of the fit, over so many ``completions``. rarity: None where the reward differs often.

    effect: the test at one setting; further_effects: at the others. touched: of the sent bias.
    top_logprobs: alternatives that were asked for. truncation: None where the reward is not by
    length. given: the fit is from given answers alone. no_precision: why the projection has no
    standard errors, "" where they were not asked for.
    """

    estimator: str
    effect: Effect | None = None
    further_effects: tuple[Effect, ...] = ()
    headroom: Headroom | None = None
    rarity: Rarity | None = None
    precision: Precision | None = None
    effective_sample: float | None = None
    completions: int | None = None
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
    each setting), "truncated" (rewards by length), "reward", "saturated", "tau", "censoring",
    "tail", "samples", "weights", "already", "touched".
    """
    room = facts.headroom
    estimator = facts.estimator
    width = facts.top_logprobs
    effects = [effect for effect in (facts.effect, *facts.further_effects) if effect is not None]
    rarity = facts.rarity
    if any(effect.proven and effect.low > 0 for effect in effects):
        rarity = None  # the few were enough
    result = [
        *([] if facts.truncation is None else [truncated_finding(facts.truncation)]),
        reward_finding(room, rarity),
        saturated_finding(room),
        tau_finding(room),
        censoring_finding(facts.censoring, estimator, width),
        tail_finding(facts.tail, estimator, width),
        samples_finding(facts.precision, facts.given, facts.no_precision),
        weights_finding(facts.effective_sample, facts.given, facts.completions),
        reproduced_finding(facts.precision, facts.no_precision),
        touched_finding(facts.touched),
        _test(room, facts.effect),
        *(_test(room, effect) for effect in facts.further_effects),
    ]
    failed = {finding.code for finding in result if finding.word == "FAIL"}
    if facts.given:
        result = _put_aside(
            result, OF_SAMPLES, f"{DOES_NOT_ARISE}: answers were given, and none was sampled"
        )
    elif "reward" in failed:
        result = _put_aside(result, MOOT, "says nothing while the reward hardly varies")
    if "truncated" in failed and facts.truncation is not None:
        remedy = f"first of all, {facts.truncation.remedy}"
        result = [
            (
                finding.replacing(remedy=remedy)
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
    return finding.replacing(word="INCONCLUSIVE", sentence=sentence)


def _put_aside(findings: list[Finding], codes: frozenset[str], why: str) -> list[Finding]:
    """The findings with those of ``codes`` as NOT CHECKED, for that reason and without a remedy."""
    return [
        (
            finding.replacing(word="NOT CHECKED", sentence=why, remedy="")
            if finding.code in codes
            else finding
        )
        for finding in findings
    ]


def test_findings(effects: Sequence[Effect]) -> tuple[Finding, ...]:
    """What the test alone tells, a finding a setting: for a fit that nothing else explains."""
    return tuple(_test(None, effect) for effect in effects)


def _test(room: Headroom | None, effect: Effect | None) -> Finding:
    if effect is None:
        return unchecked(
            "test", "whether the bias helps", "judge it on fresh completions of unseen prompts"
        )
    numbers = (effect.difference, effect.low, effect.high)
    if not all(map(math.isfinite, numbers)):
        return Finding(
            code="test",
            word="FAIL",
            sentence=f"the difference {effect.difference} has no interval",
            remedy="judge the bias on more test prompts",
        )
    sentence = (
        f"at {effect.setting} the reward changed by {effect.difference:+.3g} (95 % interval"
        f" {effect.low:+.3g} to {effect.high:+.3g})"
    )
    if not effect.proven and not effect.low <= 0 <= effect.high:
        return Finding(
            code="test",
            word="INCONCLUSIVE",
            sentence=f"{sentence}, which alone would count, but not among all rows of the verdict"
            f" or with {effect.prompts} prompts",
            remedy=f"judge it on {max(3 * effect.prompts, LEAST_PROMPTS):,} test prompts or more",
        )
    if effect.low > 0:
        return Finding(code="test", word="PASS", sentence=f"it helped: {sentence}")
    if effect.high < 0:
        return Finding(
            code="test",
            word="FAIL",
            sentence=f"it hurt: {sentence}",
            remedy="do not deploy this bias; read the reasons below",
        )
    return _unresolved(room, effect, sentence)


def _unresolved(room: Headroom | None, effect: Effect, sentence: str) -> Finding:
    small = math.inf
    if room is not None:
        small = SMALL_GAIN * room.spread
    if -small <= effect.low < effect.high <= small < math.inf:
        return Finding(
            code="test",
            word="FAIL",
            sentence=f"the test shows no effect: {sentence}; one of {small:.2g} or more is"
            " excluded",
            remedy="more test completions would not help",
        )
    sentence = f"the test does not show whether it helps: {sentence}"
    several = (
        f"{max(3 * effect.prompts, LEAST_PROMPTS):,} test prompts or more would show it, or that it"
        " is small"
    )
    if effect.low == effect.high:
        return Finding(
            code="test",
            word="INCONCLUSIVE",
            sentence=f"{sentence}: all {effect.prompts} prompts agree",
            remedy=several,
        )
    half = (effect.high - effect.low) / 2
    reach = float(special.ndtri((1 + CONFIDENCE) / 2))
    times = math.inf
    if effect.difference:
        times = ((reach + float(special.ndtri(POWER))) / reach * half / abs(effect.difference)) ** 2
    if times > MANY_TIMES:
        return Finding(
            code="test",
            word="INCONCLUSIVE",
            sentence=f"{sentence}; the difference is far smaller than what {effect.prompts} prompts"
            " can show",
            remedy=several,
        )
    prompts = math.ceil(effect.prompts * times)
    completions = math.ceil(effect.completions * times)
    remedy = (
        f"judge it on about {prompts:,} test prompts ({completions:,} completions of each policy)"
    )
    return Finding(code="test", word="INCONCLUSIVE", sentence=sentence, remedy=remedy)
