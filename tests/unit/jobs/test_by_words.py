"""A fit from answers proposes a bias that depends on the words of the prompt where that decides
more: by lists that it has, without a request, and without a change of what it learns; and so does
``blb eval`` where a classifier of words wins.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import blackbox_lb
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Comparison
from blackbox_lb.estimate.choice.candidates import CompileLimits, candidates
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn
from blackbox_lb.jobs.fitting.varying import by_words
from blackbox_lb.jobs.fitting.varying.by_lists import LeftOut
from blackbox_lb.jobs.fitting.varying.by_words import FEWEST_ROWS, words_beside
from blackbox_lb.jobs.runs.conclusion import BY_WORDS
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.types import Prompt
from tests.support.commands import asking, blb
from tests.support.exact import ExactServer
from tests.support.questions import write_rows
from tests.unit.jobs import test_depends_on
from tests.unit.jobs.test_depends_on import COLOURS, worded

MODEL = test_depends_on.MODEL

LIMITS = CompileLimits(None, -100.0, 100.0, integers=False)


def coloured(size: int, split: str | None = None) -> list[dict[str, Any]]:
    """Rows where what is red or green is b; without a split they are divided by the fit."""
    rows = []
    for number in range(size):
        colour = COLOURS[number % 5]
        answer = "b" if colour in ("red", "green") else "c"
        row = {"prompt": f"thing {split} {number}: it is {colour}", "answer": answer}
        if split is not None:
            row["split"] = split
        rows.append(row)
    return rows


DIVIDED = [*coloured(70, "train"), *coloured(40, "validation"), *coloured(20, "test")]


def fitted(
    server: ExactServer, rows: list[dict[str, Any]], out: Path, **plan: Any
) -> blackbox_lb.Run:
    """A fit of one-token answers."""
    settings: dict[str, Any] = {"reward": "exact-match", "max_tokens": 1, "quiet": True, **plan}
    return blackbox_lb.fit(rows, out=out, provider="llamacpp", base_url=server.base_url, **settings)


def compared_at(training: AnswerStarts, validation: AnswerStarts) -> Comparison | None:
    """Words beside the same learning without them; the fixed bias is right nowhere, so that it has
    no advantage of its own.
    """
    given = AnswersToLearn(training.rollouts(), training, None, np.array([0, 1]))
    (fixed,) = candidates(Positions.of(given.rollouts), Sweep(l2=(1.0,)), LIMITS)
    sizes = (len(training.examples), len(validation.examples))
    nowhere = (np.zeros(sizes[0], np.bool_), np.zeros(sizes[1], np.bool_))
    return words_beside(nowhere, given, validation, fixed, LIMITS)


def beside(seed: int, *, signal: bool, others: int = 0) -> Comparison:
    """The comparison at 120 prompts of random words, of which ``others`` are of validation."""
    rng = np.random.default_rng(seed)
    training = worded(rng, 120 - others, "t", signal)
    validation = worded(rng, max(others, 1), "v", signal).only(np.arange(max(others, 1)) < others)
    compared = compared_at(training, validation)
    assert compared is not None
    assert compared.n_prompts == 120
    return compared


@pytest.mark.parametrize("others", [0, 50])
def test_words_that_decide_are_shown(others: int) -> None:
    """With and without validation prompts: nearly all are decided by words, and so many more than
    by a fixed bias.
    """
    compared = beside(0, signal=True, others=others)
    assert compared.verdict == "HELPS"
    assert compared.biased > 0.9
    assert compared.biased - compared.base == pytest.approx(compared.difference)
    assert 0.2 < compared.low < compared.difference < compared.high


@pytest.mark.parametrize("others", [0, 50])
@pytest.mark.parametrize("runs", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_words_that_say_nothing_are_hardly_ever_shown(runs: int, others: int) -> None:
    """In at most 5 of 100 draws of answers that are independent of the words, given the model."""
    shown = sum(
        beside(seed, signal=False, others=others).verdict == "HELPS" for seed in range(runs)
    )
    assert shown <= 0.05 * runs


def test_the_strength_is_chosen_by_other_prompts() -> None:
    """Where a hundred strengths are noise, the best of them on all prompts is better than half;
    none is, on prompts that did not choose it.
    """
    rng = np.random.default_rng(0)
    parts = np.arange(200) % 5
    settings = []
    for _ in range(100):
        hits = (rng.random(200) < 0.5).astype(np.float64)
        settings.append(LeftOut(1.0, 1.0, np.zeros(200), hits, hits))
    assert max(setting.right for setting in settings) > 0.57
    assert by_words._chosen_elsewhere(settings, parts).mean() == pytest.approx(0.5, abs=0.08)


def test_of_many_rows_as_many_are_looked_at_as_take_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And words are left alone where too many tokens begin a label."""
    monkeypatch.setattr(by_words, "MOST_WORK", 2 * 110)
    training = worded(np.random.default_rng(0), 200, "t", True)
    nobody = training.only(np.zeros(200, np.bool_))
    compared = compared_at(training, nobody)
    assert compared is not None
    assert (compared.n_prompts, compared.verdict) == (110, "HELPS")
    monkeypatch.setattr(by_words, "MOST_WORK", 2 * (FEWEST_ROWS - 1))
    assert compared_at(training, nobody) is None


def test_prompts_with_the_same_words_say_nothing() -> None:
    """There is nothing that could depend on them."""
    training = worded(np.random.default_rng(0), 120, "t", True)
    prompt = Prompt.user("what is it?")
    alike = tuple(replace(example, prompt=prompt) for example in training.examples)
    training = replace(training, examples=alike)
    assert compared_at(training, training.only(np.zeros(120, np.bool_))) is None


def test_a_fit_proposes_words_and_changes_nothing_else(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same requests are sent and the same bias is learned as where words are not tried."""
    before = len(server.calls)
    run = fitted(server, DIVIDED, tmp_path / "tried")
    asked = server.calls[before:]
    compared = run.result.by_words
    assert compared is not None
    assert (compared.n_prompts, compared.verdict) == (110, "HELPS")
    assert compared.base == pytest.approx(0.6, abs=0.01)
    assert compared.biased > 0.95
    assert [step.command for step in run.conclusion.steps if BY_WORDS in step.command]
    assert not run.bias.features

    monkeypatch.setattr(by_words, "FEWEST_ROWS", 111)
    before = len(server.calls)
    other = fitted(server, DIVIDED, tmp_path / "untried")
    assert other.result.by_words is None
    assert not [step.command for step in other.conclusion.steps if BY_WORDS in step.command]
    paths = [path for path, _ in asked]
    assert sorted(paths) == sorted(path for path, _ in server.calls[before:])
    assert other.bias.logit_bias == run.bias.logit_bias


@pytest.mark.parametrize(
    "plan",
    [
        {"depends_on": ["nothing"]},
        {"phases": ["only-first"]},
        {"phrases": "a lamp"},
        {"positive": "b", "objective": "accuracy", "go_on": True},
        {"objective": "balanced"},
        {"deploy": ["temperature=1"], "test_samples": 1, "validation_samples": 1},
        {"limit": 59},
    ],
    ids=lambda plan: next(iter(plan)),
)
def test_what_the_user_decides_is_not_tried(
    plan: dict[str, Any], server: ExactServer, tmp_path: Path
) -> None:
    """What a bias depends on, another goal, a source or a setting without lists alone, and fewer
    than 100 rows.
    """
    assert fitted(server, DIVIDED, tmp_path / "run", **plan).result.by_words is None


def next_lines(output: str) -> str:
    """What the end of a command says under ``next``, on one line."""
    return " ".join(output[output.index("\nnext") :].replace("\\\n", " ").split())


def test_the_command_of_the_proposal_learns_such_a_bias(
    server: ExactServer, tmp_path: Path
) -> None:
    """It is the user's own, runs in the same folder, asks for no list again, and the bias that it
    learns is better. Rows that a fit divides itself are decided fold by fold: all that are not test
    rows are paired.
    """
    data = write_rows(tmp_path / "data.jsonl", coloured(180))
    out = tmp_path / "run"
    where = asking(server, data=data, reward="exact-match", max_tokens=1, entries=10, out=out)
    result = blb("fit", *where, "--quiet")
    assert result.exit_code == 0, result.output
    said = next_lines(result.stdout)
    assert "points more of" in said
    assert BY_WORDS.partition("(")[0] in said
    document = json.loads((out / "result.json").read_text())
    compared = Comparison.model_validate(document["by_words"])
    assert (compared.against, compared.policy) == ("fixed bias", "depends on words")
    assert compared.n_prompts == 180 - len(blackbox_lb.load_task(data=data).test)
    assert compared.verdict == "HELPS"
    assert compared.biased > 0.95
    begin = said.index("blb fit ")
    command = said[begin : said.index("--depends-on words", begin) + len("--depends-on words")]
    words = shlex.split(command)
    assert words[:2] == ["blb", "fit"]
    assert sorted(words[2:]) == sorted([*where, "--quiet", "--depends-on", "words"])
    before = len(server.requests)
    again = blb(*words[1:])
    assert again.exit_code == 0, again.output
    new = [body for body in server.requests[before:] if body.get("max_tokens") == 1]
    assert all("logit_bias" in body for body in new)
    assert Bias.load(out / "bias.json").settings["depends_on"] == "words"
    assert "points more of" not in again.stdout


@pytest.mark.needs("sklearn")
def test_an_evaluation_where_a_classifier_wins_names_the_same_remedy(
    server: ExactServer, tmp_path: Path
) -> None:
    """And no more where a bias that depends on the words takes part, or where the classifier does
    not.
    """
    data = write_rows(tmp_path / "data.jsonl", [*DIVIDED, *coloured(60, "test")[20:]])
    where = asking(server, data=data, reward="exact-match", max_tokens=1)
    for name, more in (("fixed", ()), ("words", ("--depends-on", "words"))):
        fit = blb("fit", *where, "--out", tmp_path / name, "--quiet", *more)
        assert fit.exit_code == 0, fit.output
    said = {}
    for biases, rival in (
        ("fixed", "classifier:tfidf"),
        ("fixed words", "classifier:tfidf"),
        ("fixed", "labels-only"),
    ):
        paths = [tmp_path / name / "bias.json" for name in biases.split()]
        options = ("--deploy", "greedy", "--rival", rival, "--out", tmp_path / "eval", "--quiet")
        result = blb("eval", *paths, *where, *options)
        assert result.exit_code == 0, result.output
        said[biases, rival] = next_lines(result.stdout)
    proposal = said.pop(("fixed", "classifier:tfidf"))
    assert "classifier tfidf is better than fixed" in proposal
    assert BY_WORDS.partition("(")[0] in proposal
    assert f"blb fit {shlex.join(where)} --deploy greedy --depends-on words" in proposal
    assert not [text for text in said.values() if "depends on the words" in text]
