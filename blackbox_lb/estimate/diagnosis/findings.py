"""Findings: each possible reason why a fit did not help, judged from one measurement, with its
remedy.

Every function takes a measurement, or None where there is none, and returns one ``Finding``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from blackbox_lb.estimate.choice import table
from blackbox_lb.estimate.diagnosis.headroom import Headroom
from blackbox_lb.estimate.diagnosis.reliability import Precision
from blackbox_lb.estimate.diagnosis.truncation import (
    Truncation,
)
from blackbox_lb.estimate.inputs.thresholds import (
    CENSORED,
    EFFECTIVE_SAMPLE,
    NEGLIGIBLE_GAIN,
    RELIABILITY,
    SMALL_GAIN,
    SMALL_KL,
    TAIL_MASS,
    TOUCHED,
    UNATTRIBUTED,
    Word,
)
from blackbox_lb.estimate.reweighting.weight_diagnostics import Censoring, TailCoverage, Touched

SAMPLE_TWICE = "sample each training prompt at least twice"


@dataclass(frozen=True, slots=True)
class Finding:
    """One answer. code: its subject, for programs. word: FAIL is a reason why the fit did not help,
    PASS is none.

    sentence: the result, with the numbers. remedy: the next step; empty where there is none.
    """

    code: str
    word: Word
    sentence: str
    remedy: str = ""


def unchecked(code: str, what: str, remedy: str) -> Finding:
    """The finding without a measurement."""
    return Finding(code, "NOT CHECKED", f"{what} was not checked", remedy)


def truncated(seen: Truncation) -> Finding:
    """Whether the token limit hides how long completions are."""
    if seen.hides_lengths:
        return Finding(
            "truncated",
            "FAIL",
            f"{seen.sentence}, where a reward by length cannot tell them apart",
            seen.remedy,
        )
    return Finding("truncated", "PASS", seen.sentence)


def reward(room: Headroom | None) -> Finding:
    """Whether the reward differs between completions of one prompt."""
    if room is None:
        return unchecked("reward", "whether the reward varies", SAMPLE_TWICE)
    if room.decision == "unknown":
        return Finding(
            "reward", "INCONCLUSIVE", room.sentence, "collect completions of more training prompts"
        )
    if room.varying == 0 or room.ceiling <= NEGLIGIBLE_GAIN * room.spread:
        return Finding(
            "reward",
            "FAIL",
            room.sentence,
            "use another reward, or prompts that the model gets right at times and wrong at others",
        )
    return Finding("reward", "PASS", room.sentence)


def saturated(room: Headroom | None) -> Finding:
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
            "saturated",
            "FAIL",
            f"{sentence}: the prompt already achieves what a bias could",
            remedy,
        )
    return Finding("saturated", "INCONCLUSIVE" if room.decision == "unknown" else "PASS", sentence)


def tau(room: Headroom | None) -> Finding:
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
            "tau", "FAIL", f"{sentence}: tau holds the policy too close to the base", remedy
        )
    return Finding("tau", "INCONCLUSIVE" if room.decision == "unknown" else "PASS", sentence)


def censoring(kept: Censoring | None, estimator: str, top_logprobs: int | None) -> Finding:
    """Whether sampled tokens came without a probability that the estimator needs."""
    if kept is None:
        return unchecked(
            "censoring",
            "the share of sampled tokens without a logprob",
            "measure it on the training rollouts",
        )
    share = kept.bounded / kept.positions
    sentence = (
        f"{kept.bounded:,} of {kept.positions:,} sampled tokens ({share:.1%}) have only a bound for"
        " their logprob"
    )
    if not table.facts_of(estimator).reads_propensities:
        return Finding("censoring", "PASS", f"{sentence}, which {estimator} does not read")
    word = CENSORED.judge(share)
    if word == "PASS":
        return Finding("censoring", word, sentence)
    return Finding(
        "censoring",
        word,
        f"{sentence}: {estimator} divides by it, so the bias of rare tokens comes out too low",
        f"use ``estimator=projection``, which does not read it, or {_wider(top_logprobs)}",
    )


def tail(seen: TailCoverage | None, estimator: str, top_logprobs: int | None) -> Finding:
    """Whether the lists hold enough of the probability for an estimator that reads them."""
    if seen is None:
        return unchecked(
            "tail", "the probability outside the lists", "measure it on the training rollouts"
        )
    sentence = (
        f"{seen.tail_mass:.1%} of the probability is outside the lists, {seen.unattributed:.1%}"
        " without any token to go to"
    )
    if not table.facts_of(estimator).reads_lists:
        return Finding("tail", "PASS", f"{sentence}, which {estimator} does not read")
    order: tuple[Word, ...] = ("FAIL", "INCONCLUSIVE", "NOT CHECKED", "PASS")
    word = min(
        TAIL_MASS.judge(seen.tail_mass), UNATTRIBUTED.judge(seen.unattributed), key=order.index
    )
    if word == "PASS":
        return Finding("tail", word, sentence)
    return Finding(
        "tail",
        word,
        f"{sentence}: the normaliser of the fit is mostly a guess there",
        _wider(top_logprobs),
    )


def _wider(top_logprobs: int | None) -> str:
    more = ""
    if top_logprobs is not None:
        more = f" than {top_logprobs}"
    return f"ask for more alternatives{more} (``top_logprobs``), or a provider that returns more"


def samples(seen: Precision | None, given: bool = False, why_none: str = "") -> Finding:
    """Whether the rollouts, or the ``given`` answers, are enough, and how many would be."""
    if seen is None:
        return _without_errors("samples", "whether the rollouts are enough", why_none)
    learned_from = f"{seen.prompts} prompts x {seen.completions / seen.prompts:.3g} completions"
    if given:
        learned_from = f"the answers of {seen.prompts} prompts"
    sentence = (
        f"the bias of {learned_from} has a reliability of {seen.reliability:.2f}: it learned"
        f" {seen.signal:.2g} nats a completion, and its standard errors are worth {seen.noise:.2g}"
    )
    if seen.word == "PASS" or seen.flat:
        return Finding("samples", "PASS", sentence)
    needed = seen.prompts_needed()
    per_prompt = seen.completions / seen.prompts
    bound = "at least " if seen.signal <= SMALL_KL else "about "
    more = (
        f"collect {bound}{needed:,} prompts with {per_prompt:.3g} completions each"
        f" ({math.ceil(needed * per_prompt):,} rollouts)"
    )
    if given:
        more = f"learn from the answers of {bound}{needed:,} prompts"
    remedy = f"{more} for a reliability of {RELIABILITY.good:g}, or send fewer entries"
    return Finding("samples", seen.word, sentence, remedy)


def _without_errors(code: str, what: str, why: str) -> Finding:
    """The finding without standard errors; ``why`` the projection has none, "" for another
    estimator.
    """
    if why:
        return Finding(code, "NOT CHECKED", f"{what} was not checked: {why}")
    return unchecked(code, what, "learn with ``estimator=projection``, which has standard errors")


def weights(size: float | None, given: bool = False) -> Finding:
    """Whether enough completions, or ``given`` answers, carry the weight."""
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
        return Finding("weights", word, sentence)
    if given:
        return Finding("weights", word, sentence, "learn from more answers")
    more = "collect more rollouts"
    if 0 < size < math.inf:
        more = f"collect {EFFECTIVE_SAMPLE.good / size:.2g} times as many rollouts"
    return Finding("weights", word, sentence, f"{more}, or raise tau so that more of them count")


def already(seen: Precision | None, why_none: str = "") -> Finding:
    """Whether the fitted bias is 0 although there are enough data."""
    if seen is None:
        return _without_errors(
            "already", "whether the prompt already does what a bias could", why_none
        )
    if seen.flat:
        sentence = (
            "the fitted bias is about 0 and the data are enough to say so: it moves the policy by"
            f" at most {seen.most:.2g} nats a completion, too little to move the reward by"
            f" {SMALL_GAIN:g} of its standard deviation"
        )
        remedy = "the prompt already does what a fixed bias could: change the prompt or the reward"
        return Finding("already", "FAIL", sentence, remedy)
    sentence = f"the fitted bias moves the policy by about {seen.signal:.2g} nats a completion"
    return Finding("already", "PASS" if seen.word == "PASS" else "INCONCLUSIVE", sentence)


def touched(seen: Touched | None) -> Finding:
    """Whether the bias acts on tokens that occur."""
    if seen is None:
        return unchecked(
            "touched",
            "how much of the probability the bias touches",
            "measure it on the training rollouts",
        )
    sentence = (
        f"{seen.entries} biased tokens hold {seen.base:.1%} of the probability without the bias and"
        f" {seen.biased:.1%} with it, {seen.per_completion:.2g} tokens of a completion"
    )
    word = TOUCHED.judge(seen.per_completion)
    remedy = "send more entries, or check why common tokens have none"
    if word == "PASS":
        remedy = ""
    return Finding(
        "touched",
        word,
        sentence,
        remedy,
    )
