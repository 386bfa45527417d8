"""Operating points and calibrated labels through the command line and Python, on an exact model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blackbox_lb
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.operating import OperatingPoint
from blackbox_lb.bias.records import Calibration, LabelTokens
from blackbox_lb.deploy.proxy.served import load_served
from blackbox_lb.errors import InputError
from blackbox_lb.tasks.sets.labels import Labels
from tests.support.commands import blb, refusal
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.labelled import fit_labels as fit
from tests.support.printed import ended_well
from tests.support.questions import write_rows

MODEL = ExactModel(
    14,
    1,
    seed=3,
    prompts=2000,
    sharpness=1.5,
    unigram=np.where(np.isin(np.arange(14), (1, 2)), -1.0, 0.0),
    end=True,
)
"""Tokens 1 and 2, " b" and " c", are the labels."""
COUNTS = {"train": 120, "validation": 120, "test": 80}
LABELS = Labels(("b", "c"), (frozenset({"b"}), frozenset({"c"})))


def drawn_rows(slope: float) -> list[dict[str, Any]]:
    """Questions whose label is drawn with a chance that rises with the model's own margin by
    ``slope``; 0 for a coin.
    """
    rng = np.random.default_rng(0)
    rows = []
    for split, count in COUNTS.items():
        for number in range(count):
            prompt = f"{split} {number}"
            logprobs = MODEL.logprobs([], MODEL.prompt_of(prompt))
            chance = 1 / (1 + np.exp(-slope * (logprobs[1] - logprobs[2])))
            answer = "b" if rng.random() < chance else "c"
            rows.append({"prompt": prompt, "answer": answer, "split": split})
    return rows


@pytest.fixture(scope="module")
def fitted(server: ExactServer, tmp_path_factory: pytest.TempPathFactory) -> blackbox_lb.Run:
    """A fit to a point of precision, from Python."""
    folder = tmp_path_factory.mktemp("operating")
    return blackbox_lb.fit(
        write_rows(folder / "data.jsonl", drawn_rows(3.0)),
        reward="exact-match",
        provider="llamacpp",
        base_url=server.base_url,
        max_tokens=1,
        objective="recall@precision=.8",
        positive="b",
        out=folder / "run",
        quiet=True,
    )


def test_another_point_is_the_same_vector_with_another_shift(
    fitted: blackbox_lb.Run, tmp_path: Path
) -> None:
    """Only the positive label's tokens move, all by the same number of nats; the verdict goes, and
    the way back leads to the same numbers. It is saved and read as it is.
    """
    assert fitted.bias.operating is not None
    assert fitted.bias.operating.check is not None
    assert fitted.status == fitted.bias.operating.check.word
    bias = fitted.bias
    assert bias.operating is not None
    assert bias.verdict
    moved = bias.at_point(recall=0.8)
    assert moved.operating is not None
    assert moved.operating.goal == "precision@recall=0.8"
    shift = moved.operating.shift - bias.operating.shift
    for token, value in moved.logit_bias.items():
        expected = bias.logit_bias.get(token, 0.0)
        if token in bias.operating.token_ids:
            expected += shift
        assert value == pytest.approx(expected, abs=1e-4)
    assert not moved.verdict
    assert moved.operating.checked is None
    again = moved.at_point(precision=0.8)
    assert again.logit_bias == pytest.approx(bias.logit_bias, abs=2e-4)
    assert moved.at_point(rate=0.5).operating is not None
    moved.save(tmp_path / "moved.json")
    assert Bias.load(tmp_path / "moved.json") == moved


def test_a_damaged_curve_is_refused(fitted: blackbox_lb.Run) -> None:
    """Points out of order, a chosen shift that is none of them, more right than decided."""
    curve = fitted.bias.operating
    assert curve is not None
    with raises_naming(ValueError, "order"):
        curve.replacing(points=curve.points[::-1])
    with raises_naming(ValueError, "123"):
        curve.replacing(shift=123.0)
    wrong = {"shift": 0.0, "training": {"decided": 1, "right": 2}, "validation": {}}
    with raises_naming(ValueError, "2 right", "1"):
        OperatingPoint.model_validate(wrong)


def test_commands_take_another_point(fitted: blackbox_lb.Run, tmp_path: Path) -> None:
    """blb export, compile and show; what compile changes nothing of keeps its curve."""
    file = fitted.folder / "bias.json"
    moved = fitted.bias.at_point(recall=0.8)
    exported = ended_well(blb("export", file, "--format", "json", "--at", "recall=.8"))
    sent = {int(token): value for token, value in json.loads(exported.stdout).items()}
    assert sent == pytest.approx(moved.logit_bias)
    out = tmp_path / "moved.json"
    ended_well(blb("compile", file, "--at", "recall=.8", "--out", out, "--quiet"))
    assert Bias.load(out).logit_bias == pytest.approx(moved.logit_bias)
    assert Bias.load(out).operating == moved.operating
    ended_well(blb("compile", file, "--integers", "--out", tmp_path / "i.json", "--quiet"))
    assert Bias.load(tmp_path / "i.json").operating is None
    shown = blb("show", file)
    assert "recall" in shown.stdout
    assert refusal(blb("export", file, "--format", "json", "--at", "recall=.9999"))


def test_the_proxy_serves_another_point(fitted: blackbox_lb.Run) -> None:
    """Of the biases with the alias that is named, or of those without one."""
    file = str(fitted.folder / "bias.json")
    rows = load_served([file, f"strict={file}"], at=["recall=.8", "strict=rate=.3"])
    moved = {row.alias: row.bias.operating for row in rows}
    assert {alias: curve.goal for alias, curve in moved.items() if curve is not None} == {
        None: "precision@recall=0.8",
        "strict": "rate=0.3",
    }
    assert rows[0].injection.bias.common == rows[0].bias.logit_bias
    for wrong in ("loose=recall=.8", "recall"):
        with pytest.raises(InputError):
            load_served([file], at=[wrong])


def test_a_coin_is_declined(server: ExactServer, tmp_path: Path) -> None:
    """Labels that the model cannot rank end the fit with exit code 2 after one token a prompt;
    --go-on goes on.
    """
    data = write_rows(tmp_path / "data.jsonl", drawn_rows(0.0))
    goal = ("--goal", "rate=.2", "--positive", "b")
    assert "AUC" in refusal(fit(server, data, tmp_path / "run", *goal))
    assert not (tmp_path / "run" / "bias.json").exists()
    assert fit(server, data, tmp_path / "run", *goal, "--go-on").exit_code == 0


@pytest.mark.parametrize(
    "arguments",
    [
        ("--objective", "recall@precision=.9"),
        ("--objective", "recall@precision", "--positive", "b"),
        ("--objective", "recall@precision=9", "--positive", "b"),
        ("--objective", "recall@precision=much", "--positive", "b"),
        ("--objective", "rate=.2", "--positive", "d"),
        ("--objective", "best"),
        ("--objective", "reward", "--positive", "b"),
        ("--objective", "cost"),
        ("--objective", "cost:missing.json"),
        ("--objective", "cost:half.json"),
        ("--objective", "cost:other.json"),
        ("--objective", "accuracy=.9"),
        ("--objective", "rate=.2", "--positive", "b", "--learn-from", "samples"),
        ("--objective", "rate=.2", "--positive", "b", "--depends-on", "words"),
        ("--objective", "recall@precision=.999", "--positive", "b"),
    ],
)
def test_what_is_no_goal_is_refused(
    server: ExactServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
) -> None:
    """One sentence and exit code 2; costs name every pair of labels, and no other label."""
    monkeypatch.chdir(tmp_path)
    for name, costs in (("half", {"b": {"c": 5}}), ("other", {"b": {"d": 5}, "c": {"b": 1}})):
        Path(f"{name}.json").write_text(json.dumps(costs))
    data = write_rows(tmp_path / "data.jsonl", drawn_rows(3.0))
    result = fit(server, data, tmp_path / "run", *arguments)
    assert refusal(result)
    assert not (tmp_path / "run" / "bias.json").exists()


def test_probabilities_are_those_of_the_labels(
    fitted: blackbox_lb.Run, server: ExactServer
) -> None:
    """New prompts cost a token each, once; the probabilities add up to 1 and are near the chances
    that the labels were drawn with; unsure ones abstain.
    """
    prompts = [f"new {number}" for number in range(60)]
    asked = len(server.requests)
    decisions = fitted.decide(prompts)
    assert fitted.decide(prompts, abstain_below=0.0)[0].abstains is False
    sent = [body for body in server.requests[asked:] if "messages" in body or "prompt" in body]
    assert len([body for body in sent if body.get("max_tokens") == 1]) == len(prompts)
    chances = []
    for prompt, decision in zip(prompts, decisions, strict=True):
        logprobs = MODEL.logprobs([], MODEL.prompt_of(prompt))
        chances.append(1 / (1 + np.exp(-3.0 * (logprobs[1] - logprobs[2]))))
        assert sum(decision.probabilities.values()) == pytest.approx(1)
        assert decision.prompt == prompt
        assert decision.abstains == (decision.probability < 0.8)
        assert decision.label == max(decision.probabilities, key=decision.probabilities.__getitem__)
    found = [decision.probabilities["b"] for decision in decisions]
    assert np.abs(np.array(found) - chances).mean() < 0.08
    assert fitted.decide([]) == ()
    with pytest.raises(InputError):
        fitted.decide(prompts, abstain_below=2)


def test_stored_decisions_are_scored(fitted: blackbox_lb.Run, tmp_path: Path) -> None:
    """blb score --decisions asks for nothing: every split has its prompts, those that do not
    abstain are right more often, and each prompt is in the lines. Without a calibration the remedy
    is named.
    """
    data = fitted.folder.parent / "data.jsonl"
    lines = tmp_path / "lines.jsonl"
    task = ("--data", data, "--reward", "exact-match", "--decisions")
    result = ended_well(blb("score", fitted.folder, *task, "--json", "--per-completion", lines))
    splits = {part["split"]: part for part in json.loads(result.stdout)["splits"]}
    assert {name: part["prompts"] for name, part in splits.items()} == COUNTS
    for part in splits.values():
        assert part["calibration_error"] < 0.15
        assert part["accuracy_acted_on"]["mean"] >= part["accuracy"]["mean"]
        assert 0 < part["abstained"] < 1
    assert len(lines.read_text().splitlines()) == sum(COUNTS.values())
    all_act = blb("score", fitted.folder, *task, "--json", "--abstain-below", 0)
    assert {part["abstained"] for part in json.loads(all_act.stdout)["splits"]} == {0}
    assert "abstain" in blb("score", fitted.folder, *task).stdout

    run = tmp_path / "run"
    run.mkdir()
    (run / "rollouts.db").write_bytes((fitted.folder / "rollouts.db").read_bytes())
    fitted.bias.replacing(calibration=None).save(run / "bias.json")
    assert "--learn-from answers" in refusal(blb("score", run, *task))


def test_a_label_that_a_list_misses_counts_as_its_least_listed_token() -> None:
    """softmax(weight * log-sum + offset); a list without any label tells nothing."""
    yes = LabelTokens(label="yes", token_ids=(1, 2), offset=0.5)
    no = LabelTokens(label="no", token_ids=(3,), offset=-0.5)
    calibration = Calibration(labels=(yes, no), weight=2.0, prompts=10)
    found = calibration.probabilities({1: np.log(0.2), 2: np.log(0.1), 9: np.log(0.05)})
    assert found is not None
    margin = 2 * np.log(0.3 / 0.05) + 1.0
    assert found["yes"] == pytest.approx(1 / (1 + np.exp(-margin)))
    assert calibration.probabilities({9: -1.0}) is None
