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
from click.testing import CliRunner, Result
from pydantic import ValidationError
from scipy.special import expit

import blackbox_lb as blb
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.operating import OperatingPoint
from blackbox_lb.bias.records import Calibration, LabelTokens
from blackbox_lb.cli import main
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.jobs.fitting.evidence.opening import SPREAD, likeliest_shift
from blackbox_lb.rollouts.answers.openings import opening_log_odds
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


def data(path: Path, slope: float, validation_offset: float = 0.0) -> Path:
    """Prompts that want the opening with a chance that rises with the model's own margin, from
    where it is -2 nats, and in the validation prompts less an offset.
    """
    rng = np.random.default_rng(1)
    rows = []
    for split, count in COUNTS.items():
        for number in range(count):
            prompt = f"{split} {number}"
            offset = validation_offset if split == "validation" else 0.0
            chance = expit(slope * (margin(prompt) + 2.0 + offset))
            want = "begins" if rng.random() < chance else "other"
            rows.append({"prompt": prompt, "want": want, "split": split})
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def fitted(
    folder: Path,
    server: ExactServer,
    slope: float = 3.0,
    validation_offset: float = 0.0,
    **more: Any,
) -> blb.Run:
    """A fit of the opening from first lists."""
    return blb.fit(
        data(folder / "data.jsonl", slope, validation_offset),
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
    decisions = run.result.decisions["greedy"]
    assert sum(row.count for row in decisions.biased.labels) == COUNTS["test"]
    assert decisions.biased.no_label == decisions.base.no_label == 0
    test_margins = np.array([margin(example.prompt.text) for example in run.task.test])
    assert curve.checked.decisions.decided == (test_margins + sent > 0).sum()


def test_without_a_goal_the_accuracy_chooses(tmp_path: Path) -> None:
    """The chosen point is the most accurate of the curve on all prompts that are not for the test:
    nothing but a shift is learned, so the training prompts choose it as well as the others.
    """
    with ExactServer(MODEL) as server:
        run = fitted(tmp_path, server, validation_offset=-1.0)
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


def base_right(run: blb.Run) -> int:
    """Right decisions on training and validation prompts without a bias."""
    examples = (*run.task.train, *run.task.validation)
    is_decided = np.array([margin(example.prompt.text) > 0 for example in examples])
    is_wanted = np.array([example.answers == ("begins",) for example in examples])
    return int((is_decided == is_wanted).sum())


@pytest.mark.parametrize("objective", ["accuracy", "recall@precision=.7"])
def test_a_tiny_test_says_how_many_prompts_it_takes(tmp_path: Path, objective: str) -> None:
    """On 8 test prompts nothing is shown, and the conclusion says that these are too few: by the
    difference that was seen, or by the promise.
    """
    with ExactServer(MODEL) as server:
        run = fitted(tmp_path, server, objective=objective, test_limit=8)
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


def checked(folder: Path, rows: list[dict[str, Any]], *more: object) -> Any:
    """What blb check says of these rows; as JSON, with the number of requests that it sent."""
    path = folder / "data.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with ExactServer(MODEL) as server:
        result = run_blb(
            *("check", "--provider", "llamacpp", "--base-url", server.base_url, "--data", path),
            *("--decide", DECIDE, "--reward", "accuracy", "--max-tokens", 1, "--quiet"),
            *("--out", folder / "check", *more),
        )
        sent = [body for body in server.requests if "messages" in body or "prompt" in body]
    assert result.exit_code == 0, result.output
    if "--json" not in more:
        return result.stdout
    return {**json.loads(result.stdout), "sent": len(sent)}


def wanting(wants: Callable[[str, int], bool]) -> list[dict[str, Any]]:
    """Rows that want the opening where ``wants`` says so."""
    rows = []
    for split, count in COUNTS.items():
        for number in range(count):
            prompt = f"{split} {number}"
            want = "begins" if wants(prompt, number) else "other"
            rows.append({"prompt": prompt, "want": want, "split": split})
    return rows


def test_a_check_of_an_opening_says_what_a_shift_can_do(tmp_path: Path) -> None:
    """From one token of 60 prompts: the shares are those of the exact model; with what is wanted
    above a margin of -2 nats a shift mends it, and no other answer than the lists is asked for.
    """
    rows = wanting(lambda prompt, number: (margin(prompt) > -2.0) != (number % 20 == 0))
    found = checked(tmp_path, rows, "--json")
    first = rows[:60]
    own = np.array([margin(row["prompt"]) for row in first])
    wanted = np.array([row["want"] == "begins" for row in first])
    assert found["sent"] == found["prompts"] == 60
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
    tmp_path: Path, wants: Callable[[str, int], bool], answer: str, verdict: str
) -> None:
    """Where nothing is wrong, where the model does not rank the prompts, and where the threshold
    is right already and a goal may still want another one.
    """
    assert checked(tmp_path, wanting(wants), "--json")["answer"] == answer
    assert checked(tmp_path, wanting(wants)).startswith(f"{verdict} ")


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
        refused = run_blb(
            "eval", *where, *common, "--rival", "labels-only", "--out", tmp_path / "no"
        )
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


def share_of_opening(prompt: str) -> float:
    """The probability of the opening at the first position."""
    return float(np.exp(MODEL.logprobs([], MODEL.prompt_of(prompt))[list(OPENING)]).sum())


def test_probabilities_of_an_opening_are_calibrated(tmp_path: Path) -> None:
    """On new prompts the probability of the opening is near the chance that the answers were drawn
    with, ranks as the model's own probability does, and costs a token a prompt, once.
    """
    prompts = [f"new {number}" for number in range(80)]
    with ExactServer(MODEL) as server:
        run = fitted(tmp_path, server)
        asked = len(server.requests)
        decisions = run.decide(prompts)
        again = run.decide([{"prompt": prompt} for prompt in prompts])
        sent = [body for body in server.requests[asked:] if "messages" in body or "prompt" in body]
    assert again == decisions
    assert len(sent) == len(prompts)
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


def test_stored_decisions_of_an_opening_are_scored(tmp_path: Path) -> None:
    """blb score --decisions asks for nothing: each split has its prompts, and those that do not
    abstain are right at least as often.
    """
    with ExactServer(MODEL) as server:
        run = fitted(tmp_path, server)
    task = ("--data", tmp_path / "data.jsonl", "--decide", DECIDE, "--reward", "accuracy")
    result = run_blb("score", run.folder, *task, "--decisions", "--json")
    assert result.exit_code == 0, result.output
    splits = {part["split"]: part for part in json.loads(result.stdout)["splits"]}
    assert {name: part["prompts"] for name, part in splits.items()} == COUNTS
    for part in splits.values():
        assert part["calibration_error"] < 0.12
        assert part["accuracy_acted_on"]["mean"] >= part["accuracy"]["mean"]
        labels = {row["label"] for row in part["decisions"]}
        assert labels == {"begins", "other"}


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
def test_a_threshold_needs_labels_that_are_spelled(tmp_path: Path, decide: str) -> None:
    """Everything else begins with no token of its own; it is refused before a request."""
    want = OpenLabels.parse(decide).names
    rows = [{"prompt": f"Q{number}", "want": want[number % 2]} for number in range(60)]
    path = tmp_path / "data.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with ExactServer(MODEL) as server:
        result = run_blb(
            *("eval", "--provider", "llamacpp", "--base-url", server.base_url, "--data", path),
            *(
                "--decide",
                decide,
                "--reward",
                "accuracy",
                "--max-tokens",
                1,
                "--rival",
                "threshold",
            ),
            *("--out", tmp_path / "out"),
        )
        assert not server.requests
    assert result.exit_code == 2
    assert "--rival threshold needs labels that are spelled" in " ".join(result.output.split())


def run_blb(*arguments: object) -> Result:
    """The command in this process."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments])
