"""``blb fit --learn-from``: given answers through the command line, on exact models and through the
rules gateway.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pytest

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
from tests.support.commands import asking, blb, options, refusal
from tests.support.exact import ExactServer
from tests.support.gateway import RulesGateway
from tests.support.hosted_keys import set_keys
from tests.support.labelled import DECIDER, answer_starts, balanced_rows, labelled_rows
from tests.support.labelled import fit_labels as fit
from tests.support.printed import ended_well, printed
from tests.support.questions import write_rows

MODEL = DECIDER
ROWS = labelled_rows(MODEL)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The rows as a file."""
    return write_rows(tmp_path / "data.jsonl", ROWS)


def test_answers_are_learned_from_one_token_a_prompt(
    server: ExactServer, data: Path, tmp_path: Path
) -> None:
    """Unasked, as the answers are two labels: what was predicted without drawing is what fresh
    completions show; training asked for one token a prompt, and a second run for nothing.

    The report shows a confusion matrix before and after; a damaged one is named.
    """
    out = tmp_path / "run"
    found = printed(fit(server, data, out, "--json"))
    (verdict,) = [each for each in found["verdict"] if each["metric"] == "accuracy"]
    assert (verdict["setting"], verdict["verdict"]) == ("greedy", "HELPS")
    assert any("b as ' b'" in notice for notice in found["provenance"]["remarks"])
    chosen = next(each for each in found["validation"]["tried"] if each["status"] == "chosen")
    assert chosen["accuracy"] == pytest.approx(verdict["biased"], abs=0.1)
    assert Bias.load(out / "bias.json").settings["learn_from"] == "answers"
    with RolloutStore(out / "rollouts.db", read_only=True) as store:
        settings = store.requests().values()
        assert {each["sampling"]["max_tokens"] for each in settings} == {1}
        size = store.size().completions
    scored = blb("score", out, *options(data=data, reward="exact-match"), "--quiet", "--json")
    splits = {each["split"] for each in json.loads(scored.stdout)["groups"]}
    assert splits == {"train", "validation", "test"}
    again = fit(server, data, out, "--json")
    assert json.loads(again.stdout) | {"provenance": found["provenance"]} == found
    with RolloutStore(out / "rollouts.db", read_only=True) as store:
        assert store.size().completions == size

    assert blb("report", out, "--plots", tmp_path / "plots").exit_code == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Which label was said for which" in page
    assert "Decisions at greedy: macro-F1" in page
    assert (tmp_path / "plots" / "confusion.png").stat().st_size > 1000
    found["decisions"]["greedy"]["base"]["confusion"].pop()
    (out / "result.json").write_text(json.dumps(found), encoding="utf-8")
    said = refusal(blb("report", out))
    assert "a confusion matrix of 2 labels has 2 rows of 3 numbers" in said


def test_balanced_accuracy_is_chosen_by(server: ExactServer, data: Path, tmp_path: Path) -> None:
    """With one label rare, the goal balanced weighs labels alike, and the rare one is said."""
    common = [row for row in ROWS if row["split"] != "train" or row["answer"] == "c"]
    rare = [row for row in ROWS if row["split"] == "train" and row["answer"] == "b"]
    path = write_rows(tmp_path / "rare.jsonl", [*rare[:8], *common])
    found, store = {}, tmp_path / "rollouts.db"
    for objective in ("reward", "balanced"):
        goal = options(objective=objective, l2=1.5, store=store)
        document = printed(fit(server, path, tmp_path / objective, *goal, "--json"))
        assert document["operating"] is None, "there is no positive label"
        found[objective] = document["decisions"]["greedy"]["biased"]["labels"]
    assert found["balanced"][0]["recall"] > found["reward"][0]["recall"]


@pytest.mark.parametrize(
    ("more", "reward", "change", "sentence"),
    [
        (("--learn-from", "answers"), "length", {}, "the reward length has none"),
        (("--learn-from", "answers", "--estimator", "ips"), "contains", {}, "not by ips"),
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
    data = write_rows(tmp_path / "data.jsonl", rows)
    assert sentence in refusal(fit(server, data, tmp_path / "run", *more, reward=reward))


def test_unequal_labels_are_named(server: ExactServer, tmp_path: Path) -> None:
    """How many rows each label has, and which answers of validation or test no training row has."""
    rows = [*ROWS, {"prompt": "another", "answer": "e", "split": "test"}]
    path = write_rows(tmp_path / "data.jsonl", rows)
    where = asking(server, data=path, out=tmp_path / "run")
    result = ended_well(
        blb("fit", *where, "--reward", "exact-match", "--max-tokens", 1, "--verbose")
    )
    assert "2 labels in 60 training rows: " in result.stderr
    assert "that no training row has: e" in result.stderr


def test_check_says_beforehand_what_a_fixed_bias_can_do(
    server: ExactServer, tmp_path: Path
) -> None:
    """From 60 prompts: its predicted share is what the fit then shows, which says the same at its
    start. Answers that differ from row to row are no labels.
    """
    data = write_rows(tmp_path / "data.jsonl", balanced_rows(MODEL))
    words = ("--reward", "exact-match", "--max-tokens", 1, "--quiet")
    where = asking(server, data=data, out=tmp_path / "run")
    found = printed(blb("check", *where, *words, "--json"))
    assert found["answer"] == "fixed"
    assert found["after"] is None, "nothing follows a label of one token"
    said = blb("check", *where, *words).stdout
    assert said.startswith("YES")
    assert "predicted with a bias" in said
    fitted = printed(fit(server, data, tmp_path / "run", "--json"))
    (verdict,) = [each for each in fitted["verdict"] if each["metric"] == "accuracy"]
    assert abs(found["predicted"] - verdict["biased"]) < 2 * found["error"] + 0.1
    assert "a fixed bias can" in "".join(fitted["provenance"]["remarks"])
    rows = [{**each, "answer": f"answer {number}"} for number, each in enumerate(ROWS)]
    write_rows(data, rows)
    assert "name the labels with --labels" in refusal(blb("check", *where, *words))


@pytest.mark.parametrize(
    ("provider", "model", "variable"),
    [
        ("azure", "gpt-4o-mini", "AZURE_OPENAI_API_KEY"),
        ("fireworks", "accounts/fireworks/models/gateway", "FIREWORKS_API_KEY"),
    ],
)
def test_hosted_providers_teach_by_first_positions(
    provider: str,
    model: str,
    variable: str,
    server: ExactServer,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through the rules of each: one token a prompt, within 300 entries, whole numbers where it
    wants them, HELPS; said is that nothing is learned of what follows an answer."""
    set_keys(monkeypatch, [variable], "a-key")
    register_encoding(monkeypatch, "answers", server.texts, 13)
    with RulesGateway(provider, server, key="a-key", largest=300) as gateway:
        where = options(
            provider=provider, model=model, base_url=gateway.base_url, tokenizer="answers"
        )
        task = options(data=data, reward="exact-match", max_tokens=1, out=tmp_path / "run")
        result = blb("fit", *where, *task, "--json")
        assert gateway.invalid_requests == []
        bodies = [call.body for call in gateway.calls if call.body is not None]
    assert {body.get("max_tokens", body.get("max_completion_tokens")) for body in bodies} == {1}
    (verdict,) = [row for row in printed(result)["verdict"] if row["metric"] == "accuracy"]
    assert verdict["verdict"] == "HELPS"
    assert verdict["biased"] > (0.2 if provider == "fireworks" else 0.8), (
        "five alternatives do not hold the labels"
    )
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert 0 < len(bias.entries) <= 300
    if provider != "fireworks":
        assert all(value == int(value) for value in bias.logit_bias.values())
    assert "is not known to continue a given answer" in result.stderr


def starts(*answers: tuple[str, int]) -> AnswerStarts:
    """Answers and the tokens that they begin with, where token 0 has .9 and token 1 has .1."""
    size = len(answers)
    lists = FirstLists(
        np.tile(np.array([0, 1], np.int32), (size, 1)),
        np.tile(np.log([0.9, 0.1]).astype(np.float32), (size, 1)),
    )
    examples = [
        Example(str(number), Prompt.user(str(number)), (name,))
        for number, (name, _) in enumerate(answers)
    ]
    return answer_starts(examples, lists, [token for _, token in answers])


@pytest.mark.parametrize("may_repeat", [False, True])
def test_an_answer_written_twice_counts_less_where_that_is_wrong(may_repeat: bool) -> None:
    """After every answer the bias makes its token the likeliest once more."""
    first = starts(*[("b", 1)] * 4)
    given = AnswersToLearn(first.rollouts(), first, first.rollouts(), np.array([1]))
    scorer = FromLists(first, given, Goal(), None, may_repeat=may_repeat)
    [scored] = asyncio.run(scorer.score([NamedBias("b", RequestBias({1: 5.0}))], 1))
    assert scored.outcome.reward.value == (1.0 if may_repeat else 0.0)


def test_answers_that_begin_with_one_token_are_counted() -> None:
    """The first token of C and of C++ tells nothing of which one it is."""
    assert "3 answers" in starts(("C", 0), ("C++", 0), ("Java", 1), ("C++", 0)).sentence
