"""The diagnosis: each cause is planted in a model, named there, and not named where it is
absent.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from blackbox_lb import RewardTilt
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.diagnosis.diagnose import Effect, Facts, diagnose
from blackbox_lb.estimate.diagnosis.headroom import headroom
from blackbox_lb.estimate.diagnosis.reliability import Precision
from blackbox_lb.estimate.diagnosis.truncation import Truncation
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import (
    Touched,
    censoring_of,
    effective_sample_size,
    tail_coverage,
)
from blackbox_lb.records import Finding
from tests.support.exact import ExactModel
from tests.support.exact.model import RewardOf
from tests.support.fits import projection, standard_errors

VOCAB = 30
SEEDS = range(3)


def model(seed: int, prompts: int = 40) -> ExactModel:
    """Thirty tokens, completions of at most six, prompts that differ."""
    return ExactModel(
        VOCAB,
        6,
        seed=seed,
        end=True,
        prompts=prompts,
        sharpness=0.6,
        unigram=-0.05 * np.arange(VOCAB),
    )


def good_tokens(tokens: tuple[int, ...], _: int) -> float:
    """Two tokens are good everywhere."""
    return 1.0 * (5 in tokens) + 0.5 * (7 in tokens)


def nearly_always(tokens: tuple[int, ...], _: int) -> float:
    """Wrong only where it begins with one rare token."""
    return float(tokens[0] != 22)


def facts(
    data: Rollouts, *, tau: float = 0.5, l2: float = 5.0, estimator: str = "projection"
) -> Facts:
    """Everything that is measured of a fit before it is tested."""
    table = NextToken.of(data)
    fit = projection(data, tau=tau, l2=l2, next_token=table)
    weights = RewardTilt(tau).weights(data).of_rollouts(data)
    return Facts(
        estimator,
        headroom=headroom(data.rewards, data.prompts, data.rewards, tau=tau),
        precision=Precision.of(standard_errors(data, table, fit, tau=tau, l2=l2), data),
        effective_sample=effective_sample_size(weights),
        censoring=censoring_of(data, table),
        tail=tail_coverage(table),
        touched=Touched.of(data, table, fit.delta),
        top_logprobs=data.top_ids.shape[1],
    )


def planted(seed: int, n: int, reward: RewardOf, *, top: int = 10, censored: bool = False) -> Facts:
    """The facts of n completions of the model."""
    return facts(model(seed).rollouts(n, reward, seed + 50, top=top, censored=censored))


def by_code(found: tuple[Finding, ...]) -> dict[str, Finding]:
    """The findings by their codes, each of which occurs once."""
    named = {finding.code: finding for finding in found}
    assert len(named) == len(found) == 10
    return named


def failed(found: tuple[Finding, ...]) -> list[str]:
    """The codes of what is called a reason, in order."""
    return [finding.code for finding in found if finding.word == "FAIL"]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_healthy_fit_has_no_reason_to_fail(seed: int) -> None:
    """A common good token and enough rollouts: nothing FAILs, and a bias that helped says so
    first.
    """
    known = planted(seed, 2_000, good_tokens)
    found = diagnose(replace(known, effect=Effect(0.3, 0.2, 0.4, 100, 600)))
    assert failed(found) == []
    assert found[0].code == "test"
    assert "it helped" in found[0].sentence
    words = {code: finding.word for code, finding in by_code(found).items()}
    assert (
        words["reward"]
        == words["samples"]
        == words["tau"]
        == words["censoring"]
        == words["saturated"]
        == "PASS"
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_constant_reward_is_named(seed: int) -> None:
    """It comes first, and what would only follow from it is not called a reason."""
    found = diagnose(planted(seed, 400, lambda *_: 1.0))
    assert failed(found) == ["reward"]
    assert found[0].code == "reward"
    assert "nothing to learn" in found[0].sentence
    assert by_code(found)["samples"].word == "NOT CHECKED"


@pytest.mark.parametrize("seed", SEEDS)
def test_too_few_rollouts_are_named_with_how_many_would_do(seed: int) -> None:
    """Two completions of 40 prompts: the samples are the reason, and the remedy is a number of
    rollouts.
    """
    found = diagnose(planted(seed, 80, good_tokens))
    first = next(each for each in found if each.code in ("samples", "reward", "tau", "saturated"))
    assert first.code == "samples"
    assert first.word in ("FAIL", "INCONCLUSIVE")
    assert "rollouts) for a reliability of 0.8" in first.remedy


def test_the_recommended_number_of_prompts_does() -> None:
    """With as many prompts as recommended the reliability is near .8, from above or below."""
    reached = []
    for seed in SEEDS:
        whole = model(seed, prompts=400).rollouts(4_000, good_tokens, seed, top=10)
        small = facts(whole.take(whole.prompts < 12)).precision
        assert small is not None
        assert small.word != "PASS"
        enough = facts(whole.take(whole.prompts < small.prompts_needed())).precision
        assert enough is not None
        assert 12 < enough.prompts < 400
        reached.append(enough.reliability)
    assert 0.7 < np.mean(reached) < 0.9


@pytest.mark.parametrize("seed", SEEDS)
def test_censored_lists_are_named_for_who_reads_them(seed: int) -> None:
    """With one listed token most samples are bounded: the reason for ips, and none for the
    projection.
    """
    known = planted(seed, 2_000, good_tokens, top=1, censored=True)
    ips = diagnose(replace(known, estimator="ips"))
    assert failed(ips) == ["censoring"]
    assert ips[0].code == "censoring"
    assert "more alternatives than 1 (``top_logprobs``)" in ips[0].remedy
    assert failed(diagnose(known)) == []


def test_lists_that_no_token_can_fill_are_named() -> None:
    """Unlisted mass that never was sampled has no token to go to, and the projection is told."""
    data = model(0).rollouts(400, good_tokens, 3, top=3)
    inside = (data.top_ids == data.token_ids[:, None]).any(axis=1)
    data = data.take(np.bincount(data.rollout_of, weights=~inside, minlength=400) == 0)
    assert "tail" in failed(diagnose(facts(data)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_saturated_reward_is_named(seed: int) -> None:
    """The base is nearly always right: the prompt achieves what a bias could."""
    found = diagnose(planted(seed, 2_000, nearly_always))
    assert (found[0].code, found[0].word) == ("saturated", "FAIL")
    assert "harder prompts" in found[0].remedy


@pytest.mark.parametrize("seed", SEEDS)
def test_a_tau_that_forbids_any_gain_is_named_with_one_that_does_not(seed: int) -> None:
    """At tau 50 the best policy gains nothing; at the tau recommended it does."""
    data = model(seed).rollouts(1_000, good_tokens, seed, top=10)
    first = diagnose(facts(data, tau=50))[0]
    assert (first.code, first.word) == ("tau", "FAIL")
    lower = float(first.remedy.rsplit(" ", 1)[1])
    assert "tau" not in failed(diagnose(facts(data, tau=lower)))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bias_of_nothing_is_told_from_one_of_too_little_data(seed: int) -> None:
    """A reward that no token explains: with 6,000 completions of a small model the bias is surely
    0, with 20 it is not known.
    """
    small = ExactModel(6, 3, seed=seed, prompts=40, sharpness=0.6)
    data = small.rollouts(6_000, good_tokens, seed)
    data = replace(data, rewards=np.random.default_rng(seed).integers(0, 2, 6_000).astype(float))
    two = data.take((data.prompts < 10) & (np.arange(6_000) < 80))
    many, few = diagnose(facts(data, tau=1.0)), diagnose(facts(two, tau=1.0))
    assert failed(many) == ["already"]
    assert by_code(few)["already"].word == "INCONCLUSIVE"
    assert by_code(few)["samples"].word == "FAIL"


def test_every_setting_has_its_own_test() -> None:
    """A bias that helps at greedy and not at temperature 1 says both, the success first."""
    greedy = Effect(0.3, 0.2, 0.4, 100, 100, setting="greedy")
    found = diagnose(
        Facts("ips", effect=Effect(0.1, -0.1, 0.3, 50, 300), further_effects=(greedy,))
    )
    assert (found[0].code, found[0].word) == ("test", "PASS")
    assert "at greedy" in found[0].sentence
    (other,) = [each for each in found[1:] if each.code == "test"]
    assert other.word == "INCONCLUSIVE"
    assert "at temperature 1" in other.sentence


def test_given_answers_raise_no_question_of_samples() -> None:
    """Nobody is told to sample prompts twice whose answers were given, nor to collect
    completions.
    """
    precision = Precision(signal=0.01, noise=1.0, prompts=80, completions=80)
    found = by_code(
        diagnose(Facts("projection", precision=precision, effective_sample=3.0, given=True))
    )
    for code in ("reward", "saturated", "tau", "censoring", "tail"):
        assert (found[code].word, found[code].remedy) == ("NOT CHECKED", "")
    assert found["samples"].word == "FAIL"
    assert not any(
        word in f"{each.sentence} {each.remedy}"
        for each in (found["samples"], found["weights"], found["reward"])
        for word in ("twice", "rollouts", "raise tau")
    )


def test_a_projection_without_errors_is_not_sent_to_the_projection() -> None:
    """The reason is given in the place of the advice to use what was used."""
    found = by_code(diagnose(Facts("projection", no_precision="1 completion earned a reward")))
    for code in ("samples", "already"):
        assert found[code].word == "NOT CHECKED"
        assert "1 completion earned a reward" in found[code].sentence
        assert "projection" not in found[code].remedy
    assert "``estimator=projection``" in by_code(diagnose(Facts("ips")))["samples"].remedy


def test_lengths_hidden_by_the_limit_are_the_first_reason() -> None:
    """Where nearly all completions are cut, the remedy is a longer limit and not more prompts;
    where few are, it is no reason.
    """
    lengths = np.minimum(np.random.default_rng(0).lognormal(np.log(90), 0.4, 500), 48)
    cut = Truncation.of(lengths, lengths == 48, 48)
    known = replace(planted(0, 80, good_tokens), effect=Effect(0.1, -0.1, 0.3, 50, 300))
    found = diagnose(replace(known, truncation=cut))
    assert (found[0].code, found[0].word) == ("truncated", "FAIL")
    assert not any("collect" in each.remedy or "judge it" in each.remedy for each in found)
    assert str(cut.enough) in found[0].remedy
    free = Truncation.of(lengths, lengths == 48, 48_000)
    assert free.hides_lengths
    fine = diagnose(replace(known, truncation=Truncation.of([9, 10], [False, True], 10)))
    assert "truncated" not in failed(fine)


@pytest.mark.parametrize("median", [40, 60, 90])
@pytest.mark.parametrize("spread", [0.2, 0.4])
def test_the_recommended_limit_lets_most_completions_end(median: int, spread: float) -> None:
    """Of log-normal lengths seen up to 48 tokens at least two thirds end before it, and it is not
    far above what they need.
    """
    drawn = np.random.default_rng(1).lognormal(np.log(median), spread, 20_000)
    seen = np.minimum(drawn, 48)
    found = Truncation.of(seen, drawn >= 48, 48)
    assert 2 * 48 <= found.enough <= 16 * 48
    if (drawn < 48).any() and found.enough > 2 * 48:
        assert np.mean(drawn < found.enough) > 2 / 3
        assert found.enough < 2 * np.quantile(drawn, 0.8)


def test_a_limit_that_nothing_fits_in_is_a_guess() -> None:
    """No completion ended: four times the limit, and no number is made up."""
    found = Truncation.of([48] * 30, [True] * 30, 48)
    assert (found.cut, found.enough) == (30, 192)
    with pytest.raises(InputError):
        Truncation.of([], [], 48)


def test_what_was_not_measured_is_not_fine() -> None:
    """Without facts every finding is NOT CHECKED, none PASSes, and all of it goes through JSON."""
    found = diagnose(Facts("projection"))
    assert {finding.word for finding in found} == {"NOT CHECKED"}
    assert all(finding.remedy for finding in found)
    assert len(json.loads(json.dumps([finding.model_dump() for finding in found]))) == 10


def test_an_infinite_number_is_never_fine() -> None:
    """Effective samples and effects that are not finite FAIL."""
    for bad in (math.inf, math.nan):
        found = by_code(
            diagnose(Facts("ips", effective_sample=bad, effect=Effect(bad, 0.1, 0.2, 9, 9)))
        )
        assert found["weights"].word == found["test"].word == "FAIL"


def test_the_recommended_test_has_the_power_it_says() -> None:
    """At the recommended size a true difference of that size is 1.96 + .84 standard errors, and so
    is seen in 80 % of tests.
    """
    found = by_code(diagnose(Facts("projection", effect=Effect(0.1, -0.1, 0.3, 50, 300))))["test"]
    assert found.word == "INCONCLUSIVE"
    prompts = int(found.remedy.split("about ")[1].split(" test")[0])
    error = 0.2 / 1.959964 * math.sqrt(50 / prompts)
    assert 0.1 / error == pytest.approx(1.959964 + 0.841621, rel=0.01)
    assert "2,452 completions" in found.remedy


def test_an_effect_that_is_excluded_wants_no_larger_test() -> None:
    """An interval inside a fifth of a standard deviation is an answer; one around 0 recommends no
    number; one below 0 hurts.
    """
    room = planted(0, 800, good_tokens).headroom
    tests = {
        "excluded": Effect(0.0, -0.01, 0.01, 500, 3_000),
        "far smaller than what 10 prompts can show": Effect(1e-9, -0.3, 0.3, 10, 60),
        "it hurt": Effect(-0.2, -0.3, -0.1, 10, 60),
    }
    for words, effect in tests.items():
        assert (
            words in by_code(diagnose(Facts("ips", headroom=room, effect=effect)))["test"].sentence
        )
    assert (
        by_code(diagnose(Facts("ips", effect=Effect(0.0, 0.0, 0.0, 1, 1))))["test"].word
        == "INCONCLUSIVE"
    )


def test_a_finding_never_says_more_than_the_verdict() -> None:
    """An interval beside 0 that the verdict does not count, for many rows or few prompts, neither
    helped nor hurt; nor do prompts that all agree exclude an effect."""
    room = planted(0, 800, good_tokens).headroom
    for effect in (
        Effect(0.2, 0.1, 0.3, 5, 30, proven=False),
        Effect(-0.1, -0.1, -0.1, 1, 6, proven=False),
    ):
        found = by_code(diagnose(Facts("ips", headroom=room, effect=effect)))["test"]
        assert found.word == "INCONCLUSIVE"
        assert not any(word in found.sentence for word in ("helped", "hurt"))
    agreeing = by_code(
        diagnose(Facts("ips", headroom=room, effect=Effect(0.0, 0.0, 0.0, 10, 10, proven=False)))
    )["test"]
    assert agreeing.word == "INCONCLUSIVE"
    assert "excluded" not in agreeing.sentence


@pytest.mark.parametrize("seed", SEEDS)
def test_split_half_agrees_with_the_standard_errors(seed: int) -> None:
    """Two ways to the same reliability: from two halves of the prompts and from the standard
    errors.
    """
    data = model(seed).rollouts(1_200, good_tokens, seed, top=10)
    table = NextToken.of(data)
    fit = projection(data, tau=0.5, l2=5.0, next_token=table)
    errors = standard_errors(data, table, fit, tau=0.5, l2=5.0)

    first = (
        np.random.default_rng(seed).permutation(int(data.prompts.max()) + 1)[data.prompts] % 2 == 0
    )
    one, other = (projection(data.take(half), tau=0.5, l2=2.5) for half in (first, ~first))
    halves = np.array([table.align(each.token_ids, each.delta) for each in (one, other)])
    halves -= (halves @ errors.usage / errors.usage.sum())[:, None]
    (a, both), (_, b) = (halves * errors.usage) @ halves.T
    r = both / np.sqrt(a * b)
    assert 2 * r / (1 + r) == pytest.approx(Precision.of(errors, data).reliability, abs=0.12)
