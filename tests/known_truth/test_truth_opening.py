"""Open labels on a model whose every probability is known: the curve of an opening against
everything else, the likeliest shift, and a fit from first lists alone.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from scipy.special import expit

import blackbox_lb as blb
from blackbox_lb.bias.document import Bias
from blackbox_lb.cli import main
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.prediction import FirstLists
from blackbox_lb.jobs.fitting.opening import SPREAD, likeliest_shift, opening_log_odds
from blackbox_lb.tasks.sets.labels import OpenLabels
from tests.support.exact import ExactModel, ExactServer

MODEL = ExactModel(14, 1, seed=3, prompts=2000, sharpness=1.5, end=True)
OPENING = (1, 4)
"""Tokens " b" and " e", the opening."""
DECIDE = "begins-with:b,e"
COUNTS = {"train": 150, "validation": 150, "test": 60}


def tables(count: int) -> np.ndarray:
    """(p, v) nats of the first token at the first ``count`` prompts."""
    return MODEL.next_logprobs(np.zeros((count, 0), np.int64), np.arange(count))


def test_the_log_odds_of_an_opening_are_those_of_all_its_tokens() -> None:
    """The sum of its tokens' probabilities against the sum of all others, from the whole list or
    from one that leaves others out.
    """
    logprobs = tables(200)
    share = np.exp(logprobs[:, OPENING]).sum(axis=1)
    expected = np.log(share / (1 - share))
    ids = np.broadcast_to(np.arange(14), logprobs.shape)
    whole = opening_log_odds(FirstLists(ids, logprobs), np.array(OPENING))
    np.testing.assert_allclose(whole, expected, atol=1e-9)
    kept = [*OPENING, 7, 9]
    some = opening_log_odds(FirstLists(ids[:, kept], logprobs[:, kept]), np.array(OPENING))
    np.testing.assert_allclose(some, expected, atol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_likeliest_shift_matches_the_number_of_wanted_openings(weighted: bool) -> None:
    """At temperature 1 the expected number of openings under the shift is that of the given
    answers, less what the prior pulls back: the derivative is 0.
    """
    logprobs = tables(300)
    share = np.exp(logprobs[:, OPENING]).sum(axis=1)
    odds = np.log(share / (1 - share))
    rng = np.random.default_rng(0)
    is_wanted = rng.random(300) < 0.3
    weights = rng.uniform(0.5, 2, 300) if weighted else np.ones(300)
    shift = likeliest_shift(odds, is_wanted, weights if weighted else None)
    tilted = logprobs.copy()
    tilted[:, OPENING] += shift
    probabilities = np.exp(tilted) / np.exp(tilted).sum(axis=1, keepdims=True)
    expected = (weights * probabilities[:, OPENING].sum(axis=1)).sum()
    assert expected + shift / SPREAD**2 == pytest.approx((weights * is_wanted).sum(), abs=1e-6)


def test_the_shift_of_separated_prompts_is_finite() -> None:
    """Where every prompt wants the opening, the likelihood alone would go on for ever."""
    shift = likeliest_shift(np.zeros(50), np.ones(50, np.bool_), None)
    assert 3 < shift < 10
    assert 50 * (1 - expit(shift)) == pytest.approx(shift / SPREAD**2, abs=1e-6)


def margin(prompt: str) -> float:
    """Nats by which the best token of the opening is ahead of every other."""
    logprobs = MODEL.logprobs([], MODEL.prompt_of(prompt))
    others = np.delete(logprobs, OPENING)
    return float(logprobs[list(OPENING)].max() - others.max())


def data(path: Path, slope: float) -> Path:
    """Prompts that want the opening with a chance that rises with the model's own margin."""
    rng = np.random.default_rng(1)
    rows = []
    for split, count in COUNTS.items():
        for number in range(count):
            prompt = f"{split} {number}"
            chance = expit(slope * (margin(prompt) + 2.0))
            want = "begins" if rng.random() < chance else "other"
            rows.append({"prompt": prompt, "want": want, "split": split})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def fitted(folder: Path, server: ExactServer, slope: float = 3.0, **more: Any) -> blb.Run:
    """A fit of the opening from first lists."""
    return blb.fit(
        data(folder / "data.jsonl", slope),
        reward="accuracy",
        decide=DECIDE,
        provider="llamacpp",
        base_url=server.base_url,
        max_tokens=1,
        out=folder / "run",
        quiet=True,
        **more,
    )


def test_the_curve_of_an_opening_is_the_truth(tmp_path: Path) -> None:
    """Its tokens are those that begin with the text, and at every point of the curve the counts on
    validation prompts are what the exact model decides greedily under that bias. The goal's
    promise is checked on fresh completions.
    """
    with ExactServer(MODEL) as server:
        run = fitted(tmp_path, server, objective="recall@precision=.7")
    bias = Bias.load(tmp_path / "run" / "bias.json")
    curve = bias.operating
    assert curve is not None
    assert curve.token_ids == OPENING
    assert curve.positive == "begins"
    assert set(bias.logit_bias) <= set(OPENING)
    examples = run.task.validation
    own = np.array([margin(example.prompt.text) for example in examples])
    is_wanted = np.array([example.answers == ("begins",) for example in examples])
    sent = bias.logit_bias.get(OPENING[0], 0.0)
    for point in curve.points:
        is_decided = own + sent - curve.shift + point.shift > 0
        assert point.validation.decided == is_decided.sum()
        assert point.validation.right == (is_decided & is_wanted).sum()
    assert curve.checked is not None
    base, biased = run.result.decisions["greedy"]
    assert biased.confusion.sum() == COUNTS["test"]
    assert biased.confusion[:, -1].sum() == base.confusion[:, -1].sum() == 0
    test_margins = np.array([margin(example.prompt.text) for example in run.task.test])
    assert curve.checked.decisions.decided == (test_margins + sent > 0).sum()


def test_without_a_goal_the_accuracy_chooses(tmp_path: Path) -> None:
    """The chosen point is the most accurate of the curve on the validation prompts."""
    with ExactServer(MODEL) as server:
        run = fitted(tmp_path, server)
    curve = run.bias.operating
    assert curve is not None
    total = curve.validation.prompts
    positives = curve.validation.positives

    def accuracy(right: int, decided: int) -> float:
        return (total - positives - decided + 2 * right) / total

    values = {
        point.shift: accuracy(point.validation.right, point.validation.decided)
        for point in curve.points
    }
    assert values[curve.shift] == max(values.values())
    assert values[curve.shift] > accuracy(*base_counts(run))


def base_counts(run: blb.Run) -> tuple[int, int]:
    """Right and all decisions for the opening on the validation prompts without a bias."""
    examples = run.task.validation
    is_decided = np.array([margin(example.prompt.text) > 0 for example in examples])
    is_wanted = np.array([example.answers == ("begins",) for example in examples])
    return int((is_decided & is_wanted).sum()), int(is_decided.sum())


def test_a_coin_is_declined(tmp_path: Path) -> None:
    """Where what is wanted has nothing to do with the model's margin, no point is better than
    chance, and the fit says so before it draws a completion.
    """
    with ExactServer(MODEL) as server, pytest.raises(InputError):
        fitted(tmp_path, server, slope=0.0)


@pytest.mark.parametrize(
    "more",
    [
        {"positive": "other"},
        {"positive": "b"},
        {"deploy": ("temperature=1",)},
        {"objective": "reward-kl"},
        {"learn_from": "samples"},
        {"phases": "first=1"},
        {"labels": ("begins", "other")},
    ],
)
def test_what_an_opening_has_not_is_refused(tmp_path: Path, more: dict[str, Any]) -> None:
    """A shift of the opening's tokens is one number, learned from first lists and predicted for
    greedy decisions.
    """
    with ExactServer(MODEL) as server, pytest.raises(InputError):
        fitted(tmp_path, server, **more)


def test_both_labels_are_all_labels() -> None:
    """Whatever a completion is, it has one of both."""
    labels = OpenLabels.parse(DECIDE)
    assert {labels.said(text) for text in (" b c", " c", "")} == {0, 1}


def test_eval_and_score_know_the_opening(tmp_path: Path) -> None:
    """The accuracy of both is that of the first token, beside an instruction; rivals that need
    spelled labels are refused.
    """
    with ExactServer(MODEL) as server:
        fitted(tmp_path, server)
        where = ("--provider", "llamacpp", "--base-url", server.base_url)
        task = ("--data", tmp_path / "data.jsonl", "--decide", DECIDE, "--reward", "accuracy")
        run = tmp_path / "run"
        common = (*task, "--max-tokens", 1)
        judged = run_blb(
            *("eval", run / "bias.json", *where, *common, "--deploy", "greedy", "--out", run),
            *("--rivals", "--json"),
        )
        refused = run_blb("eval", *where, *common, "--labels-only", "--out", tmp_path / "no")
    assert judged.exit_code == 0, judged.output
    assert refused.exit_code == 2
    policies = json.loads(judged.stdout)["policies"]
    base = next(row for row in policies if row["name"] == "base")
    examples = [f"test {number}" for number in range(COUNTS["test"])]
    wants = [json.loads(line) for line in (tmp_path / "data.jsonl").read_text().splitlines()]
    wanted = {row["prompt"]: row["want"] == "begins" for row in wants}
    right = np.mean([(margin(prompt) > 0) == wanted[prompt] for prompt in examples])
    assert base["metrics"]["accuracy"]["mean"] == pytest.approx(right)
    scored = run_blb("score", run, *task, "--policy", "base", "--setting", "greedy", "--json")
    assert scored.exit_code == 0, scored.output
    (group,) = [row for row in json.loads(scored.stdout)["groups"] if row["split"] == "test"]
    assert group["reward"]["mean"] == pytest.approx(right)


def run_blb(*arguments: object) -> Result:
    """The command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])
