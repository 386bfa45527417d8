"""``blb fit --depends-on``: chosen where the prompt decides, declined where it says nothing; and
what it refuses.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import logsumexp

from blackbox_lb import logit_bias
from blackbox_lb.bias.document import Bias
from blackbox_lb.estimate.choice.candidates import CompileLimits, candidates
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.jobs.fitting.choosing.from_lists import FromLists
from blackbox_lb.jobs.fitting.choosing.scorers import Choice
from blackbox_lb.jobs.fitting.choosing.select import Search, select
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn
from blackbox_lb.jobs.fitting.varying.by_lists import ByLists
from blackbox_lb.jobs.fitting.varying.feature_matrix import PromptFeatures
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.types import Example, Prompt
from tests.support.biases import feature
from tests.support.commands import asking, blb, options, refusal
from tests.support.exact import ExactModel, ExactServer
from tests.support.labelled import answer_starts
from tests.support.labelled import fit_labels as fit
from tests.support.printed import printed
from tests.support.questions import write_rows

MODEL = ExactModel(
    14, 2, seed=3, prompts=1, unigram=np.where(np.isin(np.arange(14), (1, 2)), -4.0, 0.0), end=True
)
"""Tokens 1 and 2, " b" and " c", are the labels; the model knows nothing of the prompt."""
MATRIX = "blackbox_lb.jobs.fitting.varying.feature_matrix"
COLOURS = ("red", "blue", "green", "yellow", "black")


def coloured(size: int, split: str | None = None) -> list[dict[str, Any]]:
    """Rows where what is red or green is b; without a split they are divided by the fit."""
    rows = []
    for number in range(size):
        colour = COLOURS[number % 5]
        answer = "b" if colour in ("red", "green") else "c"
        prompt = f"thing {split} {number}: it is {colour}"
        row = {"prompt": prompt, "colour": colour, "answer": answer}
        if split is not None:
            row["split"] = split
        rows.append(row)
    return rows


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rows as a file."""
    rows = [*coloured(60, "train"), *coloured(30, "validation"), *coloured(50, "test")]
    return write_rows(tmp_path_factory.mktemp("data") / "data.jsonl", rows)


def test_what_the_prompt_decides_is_learned(
    server: ExactServer, data: Path, tmp_path: Path
) -> None:
    """A fixed bias can only say the commoner label; one that depends on the prompt is right on
    fresh completions of unseen ones.

    It is compared with the fixed bias and with a classifier, shown, judged again by ``blb eval``,
    reported, and refused where one vector is wanted.
    """
    out = tmp_path / "run"
    found = printed(fit(server, data, out, "--depends-on", "words", "--json"))
    (verdict,) = [each for each in found["verdict"] if each["metric"] == "accuracy"]
    assert verdict["verdict"] == "HELPS"
    assert verdict["biased"] > 0.95
    beside = {each["against"]: each for each in found["beside"]}
    assert beside["fixed bias"]["base"] < 0.7
    assert beside["classifier on words"]["base"] > 0.95
    bias = Bias.load(out / "bias.json")
    assert bias.scopes == frozenset({"prompt"})
    assert bias.settings["depends_on"] == bias.depends_on == "words"
    where = asking(server, data=data, reward="exact-match", max_tokens=1)
    bias_file, small_file = out / "bias.json", out / "small.json"
    smaller = ("--provider", "fireworks", "--entries", 1, "--integers", "--out", small_file)
    for line, said, code in (
        (("show", bias_file), " ± ", 0),
        (("eval", bias_file, *where, *options(deploy="greedy", out=out), "--quiet"), "HELPS", 0),
        (("report", out), "report.html", 0),
        (("compile", bias_file, *smaller), "1 of 14 tokens may be biased for fireworks", 0),
        (("score", out, "--data", data, "--reward", "exact-match", "--quiet"), "bias.json", 0),
        (("export", bias_file, "--format", "curl"), "depends on", 2),
    ):
        told = blb(*line)
        assert told.exit_code == code, told.output
        assert said in told.output, told.output
    page = (out / "report.html").read_text()
    assert "What each feature moves (depends on words)" in page
    small = Bias.load(small_file)
    assert (len(small.entries), small.verdict) == (1, ())
    assert small.sent is not None
    assert small.sent.integers
    sent = logit_bias(small, messages="it is red")
    assert all(isinstance(value, int) for value in sent.values())


@pytest.mark.parametrize(
    ("kind", "more", "sentence"),
    [
        ("words", ("--learn-from", "samples", "--estimator", "ips"), "leave out --engine and"),
        ("wrods", (), "is not known"),
        ("groups:shade", (), "no training row has a text in that column"),
        ("embedding:/no/such", (), "no folder"),
        ("embedding:.", (), "sentence-transformers"),
    ],
)
def test_what_cannot_be_depended_on(
    kind: str,
    more: tuple[str, ...],
    sentence: str,
    server: ExactServer,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each refusal is a sentence and exit code 2."""
    monkeypatch.setattr(f"{MATRIX}.find_spec", lambda name: None)
    assert sentence in refusal(fit(server, data, tmp_path / "none", "--depends-on", kind, *more))


VOCABULARY = np.array([f"w{number}" for number in range(12)])


def worded(rng: np.random.Generator, size: int, prefix: str, signal: bool) -> AnswerStarts:
    """Lists at ``size`` prompts of random words, of which one decides the answer, or none does."""
    words = [rng.choice(VOCABULARY, 4, replace=False) for _ in range(size)]
    logits = rng.normal(0, 1, (size, 8)) + np.where(np.arange(8) < 2, 0.0, 2.0)
    right = np.array(["w0" in each or "w1" in each for each in words], np.int64)
    if not signal:
        _, is_models = rng.random((2, size)) < 0.6
        right = np.where(is_models, logits[:, :2].argmax(axis=1), rng.integers(0, 2, size))
    logprobs = (logits - logsumexp(logits, axis=1, keepdims=True)).astype(np.float32)
    order = np.argsort(-logprobs, axis=1)
    lists = FirstLists(order.astype(np.int32), np.take_along_axis(logprobs, order, axis=1))
    examples = tuple(
        Example(f"{prefix}{number}", Prompt.user(" ".join(each)), (str(answer),))
        for number, (each, answer) in enumerate(zip(words, right, strict=True))
    )
    return answer_starts(examples, lists, right.tolist())


def planted(seed: int, signal: bool) -> Choice:
    """What is chosen for prompts of random words, where the answer depends on one of them or on
    none.
    """
    rng = np.random.default_rng(seed)
    training, validation = worded(rng, 60, "t", signal), worded(rng, 50, "v", signal)
    given = AnswersToLearn(training.rollouts(), training, None, np.array([0, 1]))
    table = Positions.of(given.rollouts)
    limits = CompileLimits(None, -100.0, 100.0, integers=False)
    fixed = candidates(table, Sweep(l2=(1.0,)), limits)
    features = PromptFeatures.of(feature("words"), training.examples)
    source = ByLists(features, given, validation, limits)
    scorer = FromLists(validation, given, Goal(), None)
    search = (Goal(), Search(1), table.next_token, limits, Silent())
    return asyncio.run(select(fixed, scorer, *search, challengers=[source]))


@pytest.mark.parametrize("runs", [2, pytest.param(100, marks=pytest.mark.slow)])
def test_words_that_say_nothing_are_declined(runs: int) -> None:
    """In at least 95 of 100 draws of data whose words are noise."""
    kept = sum(planted(seed, signal=False).richer is not None for seed in range(runs))
    assert kept <= 0.05 * runs


def test_a_bias_that_no_file_would_hold_has_fewer_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that move most stay, as where a provider takes fewer."""
    monkeypatch.setattr(f"{MATRIX}.MOST_NUMBERS", 300)
    choice = planted(0, signal=True)
    assert choice.richer is not None
    bias = choice.richer.bias
    assert len(bias) == 300 // len(bias.features[0].vectors) < 8
