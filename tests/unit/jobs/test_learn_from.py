"""``blb fit --learn-from``: given answers through the command line, on exact models and through the
rules gateway.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.jobs.fitting.choosing.from_lists import FromLists
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts
from blackbox_lb.rollouts.judging.trials import NamedBias
from blackbox_lb.store import RolloutStore
from blackbox_lb.types import Example, Prompt
from tests.encodings import register_encoding
from tests.support.commands import asking, blb, options
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway
from tests.support.hosted_keys import set_keys
from tests.support.labelled import balanced_rows, labelled_rows
from tests.support.questions import write_rows

MODEL = ExactModel(
    14, 2, seed=3, prompts=12, unigram=np.where(np.isin(np.arange(14), (1, 2)), -4.0, 0.0), end=True
)
"""Tokens 1 and 2, " b" and " c", are the labels; the model hardly says either."""
ROWS = labelled_rows(MODEL)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A data file with ``rows``."""
    write_rows(path, rows)
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The rows as a file."""
    return written(tmp_path / "data.jsonl", ROWS)


@pytest.fixture(scope="module")
def server() -> Iterator[ExactServer]:
    """The model behind a llama.cpp server."""
    with ExactServer(MODEL) as running:
        yield running


def fit(
    server: ExactServer, data: Path, out: Path, *more: object, reward: str = "exact-match"
) -> Result:
    """A fit with two tokens a completion."""
    where = ("--provider", "llamacpp", "--base-url", server.base_url, "--data", data, "--out", out)
    return blb("fit", *where, "--reward", reward, "--max-tokens", 1, "--quiet", *more)


def test_answers_are_learned_from_one_token_a_prompt(
    server: ExactServer, data: Path, tmp_path: Path
) -> None:
    """Unasked, as the answers are two labels: a greedy decision that was never right is mostly
    right on unseen prompts.

    What was predicted without drawing is what fresh completions show; training asked for one token
    a prompt, and a second run for nothing.
    """
    result = fit(server, data, tmp_path / "run", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    (verdict,) = [each for each in found["verdict"] if each["metric"] == "accuracy"]
    assert (verdict["setting"], verdict["verdict"]) == ("greedy", "HELPS")
    assert verdict["base"] < 0.2
    assert any(
        "spellings: " in notice and "b as ' b'" in notice
        for notice in found["provenance"]["remarks"]
    )
    assert verdict["biased"] > 0.9
    chosen = next(each for each in found["validation"]["tried"] if each["status"] == "chosen")
    assert chosen["accuracy"] == pytest.approx(verdict["biased"], abs=0.1)
    decisions = found["decisions"]["greedy"]
    assert decisions["biased"]["accuracy"] == pytest.approx(verdict["biased"])
    assert [each["label"] for each in decisions["biased"]["labels"]] == ["b", "c"]
    assert np.sum(decisions["biased"]["confusion"]) == 80
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert bias.settings["learn_from"] == "answers"
    assert min(bias.logit_bias[1], bias.logit_bias[2]) > 1
    with RolloutStore(tmp_path / "run" / "rollouts.db", read_only=True) as store:
        settings = store.requests().values()
        assert {each["sampling"]["max_tokens"] for each in settings} == {1}
        size = store.size().completions
    scored = blb(
        "score", tmp_path / "run", *options(data=data, reward="exact-match"), "--quiet", "--json"
    )
    assert {each["split"] for each in json.loads(scored.stdout)["groups"]} == {
        "train",
        "validation",
        "test",
    }
    again = fit(server, data, tmp_path / "run", "--json")
    assert json.loads(again.stdout) | {"provenance": found["provenance"]} == found
    with RolloutStore(tmp_path / "run" / "rollouts.db", read_only=True) as store:
        assert store.size().completions == size


def test_balanced_accuracy_is_chosen_by(server: ExactServer, data: Path, tmp_path: Path) -> None:
    """With one label rare, the goal balanced weighs labels alike, and the rare one is said."""
    rare = [each for each in ROWS if each["split"] != "train"]
    train = [each for each in ROWS if each["split"] == "train"]
    few = [each for each in train if each["answer"] == "b"][:8] + [
        each for each in train if each["answer"] == "c"
    ]
    path = written(tmp_path / "rare.jsonl", [*few, *rare])
    found, store = {}, tmp_path / "rollouts.db"
    for objective in ("reward", "balanced"):
        result = fit(
            server,
            path,
            tmp_path / objective,
            *options(objective=objective, l2=1.5, store=store),
            "--json",
        )
        assert result.exit_code == 0, result.output
        found[objective] = json.loads(result.stdout)["decisions"]["greedy"]["biased"]["labels"]
    assert found["balanced"][0]["recall"] > found["reward"][0]["recall"]


@pytest.mark.parametrize(
    ("more", "reward", "change", "sentence"),
    [
        (("--learn-from", "answers"), "length", {}, "the reward length has none"),
        (("--learn-from", "answers", "--estimator", "ips"), "contains", {}, "not by ips"),
        (("--learn-from", "answers", "--full-vocab"), "contains", {}, "is no more"),
        (("--rounds", "2"), "contains", {}, "No such option"),
        (("--labels", "b"), "contains", {}, "at least two labels"),
        (("--labels", "b,d"), "contains", {}, "none of the labels"),
        (("--learn-from", "answers"), "contains", {"answer": "c"}, "have the same answer, 'c'"),
        (
            ("--learn-from", "answers", "--labels", "北,c"),
            "contains",
            {"answer": "北"},
            "begins the answer",
        ),
        (("--objective", "balanced", "--learn-from", "samples"), "contains", {}, "balanced"),
        (("--objective", "balanced", "--deploy", "temperature=1"), "contains", {}, "balanced"),
        (("--objective", "pareto"), "contains", {}, "'pareto' compares the tokens"),
    ],
)
def test_what_cannot_be_learned_is_refused(
    server: ExactServer,
    tmp_path: Path,
    more: tuple[str, ...],
    reward: str,
    change: dict[str, str],
    sentence: str,
) -> None:
    """A sentence and exit code 2, before anything is drawn from the model."""
    rows = [
        each | change if change and (change["answer"] == "c" or each["answer"] == "b") else each
        for each in ROWS
    ]
    result = fit(
        server, written(tmp_path / "data.jsonl", rows), tmp_path / "run", *more, reward=reward
    )
    assert result.exit_code == 2, result.output
    assert sentence in result.stderr
    assert "Traceback" not in result.output


def test_unequal_labels_are_named(server: ExactServer, tmp_path: Path) -> None:
    """How many rows each label has, and which answers of validation or test no training row has."""
    rows = [*ROWS, {"prompt": "another", "answer": "e", "split": "test"}]
    path = written(tmp_path / "data.jsonl", rows)
    where = asking(server, data=path, out=tmp_path / "run")
    result = blb("fit", *where, "--reward", "exact-match", "--max-tokens", 1, "--verbose")
    assert result.exit_code == 0, result.output
    assert "2 labels in 60 training rows: " in result.stderr
    assert "that no training row has: e" in result.stderr


def test_check_says_beforehand_what_a_fixed_bias_can_do(
    server: ExactServer, tmp_path: Path
) -> None:
    """From 60 prompts, half of each label: a fixed bias can; its predicted share is what the fit
    then shows, which says the same at its start.
    """
    data = written(tmp_path / "data.jsonl", balanced_rows(MODEL))
    where = asking(server, data=data, out=tmp_path / "run")
    result = blb("check", *where, "--reward", "exact-match", "--max-tokens", 1, "--quiet", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["answer"] == "fixed"
    assert len(found["margins"]) == 60
    told = blb("check", *where, "--reward", "exact-match", "--max-tokens", 1, "--quiet")
    assert told.stdout.startswith("YES")
    assert "predicted with a bias" in told.stdout
    fitted = fit(server, data, tmp_path / "run", "--json")
    (verdict,) = [
        each for each in json.loads(fitted.stdout)["verdict"] if each["metric"] == "accuracy"
    ]
    assert abs(found["predicted"] - verdict["biased"]) < 2 * found["error"] + 0.1
    assert "a fixed bias can" in "".join(json.loads(fitted.stdout)["provenance"]["remarks"])


def test_check_refuses_what_is_no_decision(server: ExactServer, tmp_path: Path) -> None:
    """Answers that differ from row to row are no labels."""
    rows = [{**each, "answer": f"answer {number}"} for number, each in enumerate(ROWS)]
    path = written(tmp_path / "data.jsonl", rows)
    where = asking(server, data=path, out=tmp_path / "run")
    result = blb("check", *where, "--reward", "contains", "--quiet")
    assert result.exit_code == 2
    assert "name the labels with --labels" in result.stderr


def test_the_report_shows_the_decisions(server: ExactServer, data: Path, tmp_path: Path) -> None:
    """A confusion matrix before and after, with its numbers, and each label's scores; a damaged
    matrix is named.
    """
    out = tmp_path / "run"
    assert fit(server, data, out).exit_code == 0
    assert blb("report", out, "--plots", tmp_path / "plots").exit_code == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Which label was said for which" in page
    assert "Decisions at greedy: macro-F1" in page
    assert (tmp_path / "plots" / "confusion.png").stat().st_size > 1000
    result = json.loads((out / "result.json").read_text(encoding="utf-8"))
    result["decisions"]["greedy"]["base"]["confusion"].pop()
    (out / "result.json").write_text(json.dumps(result), encoding="utf-8")
    refused = blb("report", out)
    assert refused.exit_code == 2
    assert "a confusion matrix of 2 labels has 2 rows of 3 numbers" in refused.stderr


HOSTED = {
    "openai": ("gpt-4o-mini", "OPENAI_API_KEY"),
    "azure": ("gpt-4o-mini", "AZURE_OPENAI_API_KEY"),
    "fireworks": ("accounts/fireworks/models/gateway", "FIREWORKS_API_KEY"),
}


@pytest.mark.parametrize("provider", ["azure", "fireworks"])
def test_hosted_providers_teach_by_first_positions(
    provider: str, server: ExactServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through the rules of each: one token a prompt, within 300 entries, whole numbers where it
    wants them, HELPS; said is that nothing is learned of what follows an answer."""
    model, variable = HOSTED[provider]
    set_keys(monkeypatch, [variable], "a-key")
    register_encoding(monkeypatch, "answers", server.texts, 13)
    with RulesGateway(provider, server, key="a-key", largest=300) as gateway:
        where = options(
            provider=provider, model=model, base_url=gateway.base_url, tokenizer="answers"
        )
        task = (
            *options(data=data, reward="exact-match", max_tokens=1, out=tmp_path / "run"),
            "--json",
        )
        result = blb("fit", *where, *task)
        assert result.exit_code == 0, result.output
        assert gateway.invalid_requests == []
        bodies = [call.body for call in gateway.calls if call.body is not None]
    assert {body.get("max_tokens", body.get("max_completion_tokens")) for body in bodies} == {1}
    (verdict,) = [
        each for each in json.loads(result.stdout)["verdict"] if each["metric"] == "accuracy"
    ]
    assert verdict["verdict"] == "HELPS"
    assert verdict["biased"] > (0.2 if provider == "fireworks" else 0.8), (
        "five alternatives do not hold the labels"
    )
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert 0 < len(bias.entries) <= 300
    if provider != "fireworks":
        assert all(value == int(value) for value in bias.logit_bias.values())
    assert "is not known to continue a given answer" in result.stderr


def nine_to_one(size: int) -> FirstLists:
    """Token 0 has .9 and token 1 has .1 at every prompt."""
    return FirstLists(
        np.tile(np.array([0, 1], np.int32), (size, 1)),
        np.tile(np.log([0.9, 0.1]).astype(np.float32), (size, 1)),
    )


@pytest.mark.parametrize("may_repeat", [False, True])
def test_an_answer_written_twice_counts_less_where_that_is_wrong(may_repeat: bool) -> None:
    """After every answer the bias makes its token the likeliest once more."""
    size = 4
    lists = nine_to_one(size)
    first = AnswerStarts(
        examples=tuple(
            Example(str(number), Prompt.user(str(number)), ("b",)) for number in range(size)
        ),
        places=np.arange(size),
        whole=lists,
        lists=lists,
        accepted=(np.array([1]),) * size,
        spelled=((1,),) * size,
        width=2,
        unanswered=0,
        longer=0,
        ambiguous=0,
    )
    given = AnswersToLearn(first.rollouts(), first, first.rollouts(), np.array([1]))
    scorer = FromLists(first, given, Goal(), None, None, may_repeat=may_repeat)
    [scored] = asyncio.run(scorer.score([NamedBias("b", RequestBias({1: 5.0}))], 1))
    assert scored.outcome.reward.value == (1.0 if may_repeat else 0.0)


def test_answers_that_begin_with_one_token_are_counted() -> None:
    """The first token of C and of C++ tells nothing of which one it is."""
    size = 4
    names = ("C", "C++", "Java", "C++")
    lists = nine_to_one(size)
    first = AnswerStarts(
        examples=tuple(
            Example(str(number), Prompt.user(str(number)), (name,))
            for number, name in enumerate(names)
        ),
        places=np.arange(size),
        whole=lists,
        lists=lists,
        accepted=tuple(np.array([int(name == "Java")]) for name in names),
        spelled=tuple((int(name == "Java"),) for name in names),
        width=2,
        unanswered=0,
        longer=0,
        ambiguous=0,
    )
    assert "3 answers" in first.sentence
