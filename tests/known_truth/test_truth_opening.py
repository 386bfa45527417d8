"""Open labels on a model whose every probability is known: the curve of an opening against
everything else, the likeliest shift, and a fit from first lists alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from scipy.special import expit

import blackbox_lb
from blackbox_lb.bias.operating import OperatingPoint
from blackbox_lb.bias.records import Calibration, LabelTokens
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.jobs.fitting.evidence.opening import SPREAD, likeliest_shift
from blackbox_lb.rollouts.answers.openings import opening_log_odds
from blackbox_lb.tasks.sets.labels import OpenLabels
from tests.support.commands import blb, refused
from tests.support.errors import names
from tests.support.exact import ExactServer
from tests.support.openings import (
    COUNTS,
    LABELLED,
    MODEL,
    OPENING,
    check,
    checked,
    fit_opening,
    margin,
    prompts_sent,
)
from tests.support.questions import write_rows


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


@pytest.fixture(scope="module")
def run(server: ExactServer, tmp_path_factory: pytest.TempPathFactory) -> blackbox_lb.Run:
    """A fit for accuracy."""
    return fit_opening(tmp_path_factory.mktemp("opening"), server)


def test_without_a_goal_the_accuracy_chooses(server: ExactServer, tmp_path: Path) -> None:
    """The chosen point is the most accurate of the curve on all prompts that are not for the test:
    nothing but a shift is learned, so the training prompts choose it as well as the others.
    """
    run = fit_opening(tmp_path, server, validation_centre=-1.0)
    curve = run.bias.operating
    assert curve is not None
    parts = (curve.training, curve.validation)
    total = sum(part.prompts - part.positives for part in parts)

    def right(point: OperatingPoint) -> int:
        decisions = (point.training, point.validation)
        return total - sum(part.decided - 2 * part.right for part in decisions)

    values = {point.shift: right(point) for point in curve.points}
    assert values[curve.shift] == max(values.values())
    assert values[curve.shift] > base_right(run)


def base_right(run: blackbox_lb.Run) -> int:
    """Right decisions on training and validation prompts without a bias."""
    examples = (*run.task.train, *run.task.validation)
    is_decided = np.array([margin(example.prompt.text) > 0 for example in examples])
    is_wanted = np.array([example.answers == ("begins",) for example in examples])
    return int((is_decided == is_wanted).sum())


@pytest.mark.parametrize("objective", ["accuracy", "recall@precision=.7"])
def test_a_tiny_test_says_how_many_prompts_it_takes(
    server: ExactServer, tmp_path: Path, objective: str
) -> None:
    """On 8 test prompts nothing is shown, and the conclusion says that these are too few: by the
    difference that was seen, or by the promise.
    """
    run = fit_opening(tmp_path, server, objective=objective, test_limit=8)
    assert run.status in ("NO EVIDENCE", "NOT SHOWN")
    curve = run.bias.operating
    assert curve is not None
    if objective == "accuracy":
        (finding,) = run.bias.findings
        assert (finding.code, finding.word) == ("test", "INCONCLUSIVE")
        assert finding.remedy in run.conclusion.why
    else:
        assert curve.check is not None
        assert run.conclusion.why == curve.check.shortage != ""


def test_a_coin_is_declined(server: ExactServer, tmp_path: Path) -> None:
    """Where what is wanted has nothing to do with the model's margin, no point is better than
    chance, and the fit says so before it draws a completion.
    """
    with pytest.raises(InputError):
        fit_opening(tmp_path, server, slope=0.0)


@pytest.mark.parametrize(
    "more",
    [
        {"positive": "other"},
        {"positive": "b"},
        {"deploy": ("temperature=1",)},
        {"learn_from": "samples"},
        {"phases": "first=1"},
        {"labels": ("begins", "other")},
    ],
)
def test_what_an_opening_has_not_is_refused(
    server: ExactServer, tmp_path: Path, more: dict[str, Any]
) -> None:
    """A shift of the opening's tokens is one number, learned from first lists and predicted for
    greedy decisions.
    """
    with pytest.raises(InputError):
        fit_opening(tmp_path, server, **more)


def wanting(wants: Callable[[str, int], bool]) -> list[dict[str, Any]]:
    """Rows that want the opening where ``wants`` says so."""
    rows = []
    for split, count in COUNTS.items():
        for number in range(count):
            prompt = f"{split} {number}"
            want = "begins" if wants(prompt, number) else "other"
            rows.append({"prompt": prompt, "want": want, "split": split})
    return rows


def test_a_check_of_an_opening_says_what_a_shift_can_do(
    server: ExactServer, tmp_path: Path
) -> None:
    """From one token of 60 prompts: the shares are those of the exact model; with what is wanted
    above a margin of -2 nats a shift mends it, and no other answer than the lists is asked for.
    """
    rows = wanting(lambda prompt, number: (margin(prompt) > -2.0) != (number % 20 == 0))
    found, sent = checked(server, write_rows(tmp_path / "data.jsonl", rows), *LABELLED)
    first = rows[:60]
    own = np.array([margin(row["prompt"]) for row in first])
    wanted = np.array([row["want"] == "begins" for row in first])
    assert sent == found["prompts"] == 60
    assert found["base"] == pytest.approx(((own > 0) == wanted).mean())
    assert found["begun_wanted"] == pytest.approx((own[wanted] > 0).mean())
    assert found["begun_unwanted"] == pytest.approx((own[~wanted] > 0).mean())
    pairs = own[wanted][:, None] - own[~wanted]
    assert found["area"]["value"] == pytest.approx((pairs > 0).mean() + (pairs == 0).mean() / 2)
    assert found["answer"] == "shift"
    assert found["predicted"] > found["base"] + 0.1
    assert found["tokens"] == list(OPENING)


@pytest.mark.parametrize(
    ("wants", "answer", "verdict"),
    [
        (lambda prompt, _: margin(prompt) > 0, "already right", "NOT NEEDED"),
        (lambda _, number: number % 2 == 0, "no skill", "NO"),
        (
            lambda prompt, number: (margin(prompt) > 0) != (number % 6 == 0),
            "another point",
            "BY GOAL",
        ),
    ],
)
def test_a_check_of_an_opening_says_where_none_helps(
    server: ExactServer,
    tmp_path: Path,
    wants: Callable[[str, int], bool],
    answer: str,
    verdict: str,
) -> None:
    """Where nothing is wrong, where the model does not rank the prompts, and where the threshold
    is right already and a goal may still want another one.
    """
    data = write_rows(tmp_path / "data.jsonl", wanting(wants))
    assert checked(server, data, *LABELLED)[0]["answer"] == answer
    assert check(server, data, *LABELLED).startswith(f"{verdict} ")


def test_eval_and_score_know_the_opening(
    run: blackbox_lb.Run, server: ExactServer, tmp_path: Path
) -> None:
    """The accuracy of both is that of the first token, beside an instruction; rivals that need
    spelled labels are refused.
    """
    data = run.folder.parent / "data.jsonl"
    where = ("--provider", "llamacpp", "--base-url", server.base_url)
    task = ("--data", data, *LABELLED)
    judged = blb(
        *("eval", run.folder / "bias.json", *where, *task, "--max-tokens", 1),
        *("--deploy", "greedy", "--out", run.folder, "--rivals", "--json"),
    )
    refused("eval", *where, *task, "--max-tokens", 1, "--rival", "labels-only", "--out", tmp_path)
    assert judged.exit_code == 0, judged.output
    base = next(row for row in json.loads(judged.stdout)["policies"] if row["name"] == "base")
    wanted = [json.loads(line) for line in data.read_text().splitlines()][-COUNTS["test"] :]
    right = np.mean([(margin(row["prompt"]) > 0) == (row["want"] == "begins") for row in wanted])
    assert base["metrics"]["accuracy"]["mean"] == pytest.approx(right)
    scored = blb("score", run.folder, *task, "--policy", "base", "--setting", "greedy", "--json")
    assert scored.exit_code == 0, scored.output
    (group,) = [row for row in json.loads(scored.stdout)["groups"] if row["split"] == "test"]
    assert group["reward"]["mean"] == pytest.approx(right)


def share_of_opening(prompt: str) -> float:
    """The probability of the opening at the first position."""
    return float(np.exp(MODEL.logprobs([], MODEL.prompt_of(prompt))[list(OPENING)]).sum())


def test_probabilities_of_an_opening_are_calibrated(
    run: blackbox_lb.Run, server: ExactServer
) -> None:
    """On new prompts the probability of the opening is near the chance that the answers were drawn
    with, ranks as the model's own probability does, and costs a token a prompt, once.
    """
    prompts = [f"new {number}" for number in range(80)]
    before = len(server.requests)
    decisions = run.decide(prompts)
    assert run.decide([{"prompt": prompt} for prompt in prompts]) == decisions
    assert prompts_sent(server, before) == len(prompts)
    own = np.array([share_of_opening(prompt) for prompt in prompts])
    found = np.array([decision.probabilities["begins"] for decision in decisions])
    np.testing.assert_array_equal(np.argsort(found), np.argsort(own))
    chances = expit(3.0 * (np.array([margin(prompt) for prompt in prompts]) + 2.0))
    assert np.abs(found - chances).mean() < 0.1
    shift = run.bias.logit_bias.get(OPENING[0], 0.0)
    for prompt, decision in zip(prompts, decisions, strict=True):
        assert sum(decision.probabilities.values()) == pytest.approx(1)
        assert decision.abstains == (decision.probability < 0.8)
        assert decision.with_bias == ("begins" if margin(prompt) + shift > 0 else "other")


def test_the_probability_of_everything_else_is_the_remainder() -> None:
    """With weight 1 and no offsets, the probabilities are the model's own, whether the list holds
    the opening or leaves it out, where the least listed token bounds it.
    """
    calibration = Calibration(
        labels=(
            LabelTokens(label="begins", token_ids=OPENING, offset=0.0),
            LabelTokens(label="other", token_ids=(), offset=0.0),
        ),
        weight=1.0,
        prompts=2,
    )
    listed = {1: np.log(0.1), 4: np.log(0.2), 7: np.log(0.4)}
    assert calibration.probabilities(listed) == pytest.approx({"begins": 0.3, "other": 0.7})
    unlisted = calibration.probabilities({7: np.log(0.9), 9: np.log(0.05)})
    assert unlisted is not None
    assert unlisted["begins"] == pytest.approx(0.05 / 1.05)
    assert calibration.probabilities({}) is None
    assert [calibration.label_begun_by(token) for token in (4, 7)] == ["begins", "other"]


def test_two_labels_without_tokens_are_refused() -> None:
    """Nothing would tell them apart."""
    labels = [LabelTokens(label=name, token_ids=(), offset=0.0) for name in ("a", "b")]
    with pytest.raises(ValidationError):
        Calibration(labels=tuple(labels), weight=1.0, prompts=2)


@pytest.mark.parametrize("decide", ["begins-with:b", "calls-tool"])
def test_a_threshold_needs_labels_that_are_spelled(
    server: ExactServer, tmp_path: Path, decide: str
) -> None:
    """Everything else begins with no token of its own; it is refused before a request."""
    want = OpenLabels.parse(decide).names
    rows = [{"prompt": f"Q{number}", "want": want[number % 2]} for number in range(60)]
    before = len(server.requests)
    told = refused(
        *("eval", "--provider", "llamacpp", "--base-url", server.base_url),
        *("--data", write_rows(tmp_path / "data.jsonl", rows), "--decide", decide),
        *("--reward", "accuracy", "--max-tokens", 1, "--rival", "threshold"),
        *("--out", tmp_path / "out"),
    )
    assert len(server.requests) == before
    assert names(told, "--rival threshold")
