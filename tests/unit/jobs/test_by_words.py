"""A fit from answers proposes a bias that depends on the words of the prompt where that decides
more: by lists that it has, without a request, and without a change of what it learns; and so does
``blb eval`` where a classifier of words wins.
"""

from __future__ import annotations

import json
import shlex
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
from blackbox_lb.jobs.fitting.varying.by_words import words_beside
from blackbox_lb.rollouts.positions import Positions
from tests.support.commands import asking, blb
from tests.support.exact import ExactServer
from tests.support.printed import ended_well
from tests.support.questions import write_rows
from tests.unit.jobs import test_depends_on
from tests.unit.jobs.test_depends_on import coloured, worded

MODEL = test_depends_on.MODEL

BY_WORDS = "by a bias that depends on the words of the prompt"
LIMITS = CompileLimits(None, -100.0, 100.0, integers=False)


DIVIDED = [*coloured(70, "train"), *coloured(40, "validation"), *coloured(20, "test")]


def beside(seed: int, *, others: int) -> Comparison:
    """The comparison at 120 prompts of random words, of which ``others`` are of validation, and
    whose answers are independent of the words. The fixed bias is right nowhere, so that it has no
    advantage of its own.
    """
    rng = np.random.default_rng(seed)
    training = worded(rng, 120 - others, "t", signal=False)
    validation = worded(rng, max(others, 1), "v", signal=False)
    validation = validation.only(np.arange(max(others, 1)) < others)
    given = AnswersToLearn(training.rollouts(), training, None, np.array([0, 1]))
    (fixed,) = candidates(Positions.of(given.rollouts), Sweep(l2=(1.0,)), LIMITS)
    nowhere = (np.zeros(120 - others, np.bool_), np.zeros(others, np.bool_))
    compared = words_beside(nowhere, given, validation, fixed, LIMITS)
    assert compared is not None
    assert compared.n_prompts == 120
    return compared


@pytest.mark.parametrize("others", [0, 50])
@pytest.mark.parametrize("runs", [4, pytest.param(100, marks=pytest.mark.slow)])
def test_words_that_say_nothing_are_hardly_ever_shown(runs: int, others: int) -> None:
    """In at most 5 of 100 draws of answers that are independent of the words, given the model."""
    shown = sum(beside(seed, others=others).verdict == "HELPS" for seed in range(runs))
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


@pytest.mark.parametrize(
    "plan",
    [
        {},
        {"depends_on": ["nothing"]},
        {"phases": ["only-first"]},
        {"phrases": "a lamp"},
        {"positive": "b", "objective": "accuracy", "go_on": True},
        {"objective": "balanced"},
        {"deploy": ["temperature=1"], "test_samples": 1, "validation_samples": 1},
        {"limit": 59},
    ],
    ids=lambda plan: next(iter(plan), "nothing is decided"),
)
def test_what_the_user_decides_is_not_tried(
    plan: dict[str, Any], server: ExactServer, tmp_path: Path
) -> None:
    """What a bias depends on, another goal, a source or a setting without lists alone, and fewer
    than 100 rows. Else all rows of training and validation are paired.
    """
    settings: dict[str, Any] = {"provider": "llamacpp", "base_url": server.base_url, **plan}
    task: dict[str, Any] = {"reward": "exact-match", "max_tokens": 1, "out": tmp_path / "run"}
    compared = blackbox_lb.fit(DIVIDED, quiet=True, **task, **settings).result.by_words
    paired = None if compared is None else compared.n_prompts
    assert paired == (None if plan else 110)


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
    result = ended_well(blb("fit", *where, "--quiet"))
    said = next_lines(result.stdout)
    assert "points more of" in said
    assert BY_WORDS in said
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
    again = ended_well(blb(*words[1:]))
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
        ended_well(blb("fit", *where, "--out", tmp_path / name, "--quiet", *more))
    said = {}
    for biases, rival in (
        ("fixed", "classifier:tfidf"),
        ("fixed words", "classifier:tfidf"),
        ("fixed", "labels-only"),
    ):
        paths = [tmp_path / name / "bias.json" for name in biases.split()]
        options = ("--deploy", "greedy", "--rival", rival, "--out", tmp_path / "eval", "--quiet")
        result = ended_well(blb("eval", *paths, *where, *options))
        said[biases, rival] = next_lines(result.stdout)
    proposal = said.pop(("fixed", "classifier:tfidf"))
    assert "classifier tfidf is better than fixed" in proposal
    assert BY_WORDS in proposal
    assert f"blb fit {shlex.join(where)} --deploy greedy --depends-on words" in proposal
    assert not [text for text in said.values() if "depends on the words" in text]
