"""Scoring again: stored completions under another reward, without asking any model for anything."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

import blackbox_lb
from blackbox_lb.bias.records import Entry
from blackbox_lb.bias.request_bias import to_request_bias, to_vector
from blackbox_lb.errors import AuthenticationFailed
from blackbox_lb.store import RolloutStore
from blackbox_lb.types import Completion, Prompt
from tests.support.biases import bias_of
from tests.support.commands import asking, blb, options, refusal
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well, printed
from tests.support.questions import questions, write_rows
from tests.support.stored import text_completion as completion

MODEL = ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)
ROWS = (
    ("train", "Norway", "Oslo"),
    ("validation", "Peru", "Lima"),
    ("test", "France", "Paris"),
    ("test", "Chad", "N'Djamena"),
)
BIAS = [[1, 2.0], [3, -1.0]]
ENTRIES = (Entry(id=1, text="x", bias=2.0), Entry(id=3, text="x", bias=-1.0))


def settings(
    bias: list[list[float]], temperature: float = 1.0, max_tokens: int = 8
) -> dict[str, Any]:
    """What a request was asked with."""
    names = {"provider": "p", "model": "m", "tokenizer": "t", "endpoint": "chat", "bias": bias}
    sampling = {"temperature": temperature, "max_tokens": max_tokens}
    return {**names, "sampling": {**sampling, "top_logprobs": 0, "seed": None}}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Base and biased completions of four questions, and one of a question that is in no task."""
    with RolloutStore(tmp_path / "rollouts.db") as made:

        def add(
            country: str, bias: list[list[float]], *drawn: tuple[str, int], **more: Any
        ) -> None:
            for sample, each in enumerate(drawn):
                made.add(settings(bias, **more), Prompt.user(country), sample, completion(*each))

        add("Norway", [], ("Oslo", 4), ("Bergen", 2))
        add("France", [], ("Paris", 8), ("Rome", 4))
        add("Chad", [], ("N'Djamena", 8), ("Abuja", 8))
        add("France", BIAS, ("Paris", 2), ("Paris", 2))
        add("Chad", BIAS, ("N'Djamena", 4), ("Abuja", 1))
        add("France", [], ("Paris.", 16), temperature=0.0, max_tokens=16)
        add("Atlantis", [], ("?", 1))
        made.add(settings(BIAS), Prompt.user("Chad"), 2, Completion.empty("content_filter"))
    return tmp_path / "rollouts.db"


@pytest.fixture
def score(tmp_path: Path) -> Callable[..., Result]:
    """Run ``blb score`` on the four questions."""
    rows = [
        {"prompt": prompt, "answer": answer, "split": split, "id": prompt}
        for split, prompt, answer in ROWS
    ]
    write_rows(tmp_path / "capitals.jsonl", rows)

    def run(where: Path, reward: str, *more: object) -> Result:
        options = (where, "--data", tmp_path / "capitals.jsonl", "--reward", reward, *more)
        return blb("score", *options)

    return run


def groups(result: Result) -> list[dict[str, Any]]:
    """The groups of a JSON answer."""
    found: list[dict[str, Any]] = printed(result)["groups"]
    return found


def test_scores_by_eye(store: Path, score: Callable[..., Result]) -> None:
    """Correct x T/len of 8 tokens: 4/2 from a right and a wrong answer is 1, and so on; the base
    comes first, splits in order.
    """
    found = groups(score(store, "correct-and-short", "--json"))
    told = [
        (row["split"], row["policy"].split()[0], row["sampling"]["temperature"], row["completions"])
        for row in found
    ]
    assert told == [
        ("train", "base", 1.0, 2),
        ("test", "base", 1.0, 4),
        ("test", "base", 0.0, 1),
        ("test", "bias", 1.0, 4),
    ]
    train, base, greedy, biased = found
    assert (train["reward"]["mean"], train["accuracy"], train["tokens"]) == (1.0, 0.5, 3.0)
    assert (base["reward"]["mean"], base["accuracy"], base["tokens"]) == (0.5, 0.5, 7.0)
    assert greedy["reward"]["mean"] == 1.0, "T is the 16 tokens that it was drawn with"
    assert (greedy["prompts"], greedy["examples"]) == (1, 2)
    assert (biased["reward"]["mean"], biased["accuracy"], biased["tokens"]) == (2.5, 0.75, 2.25)
    assert (biased["left_out"], biased["entries"]) == (1, 2)
    assert biased["difference"]["mean"] == 2.0
    assert biased["difference"]["prompts"] == 2
    assert base["difference"] is None


@pytest.mark.parametrize(
    ("filters", "count"),
    [
        ("--split test --split train", 4),
        ("--split test", 3),
        ("--policy biased", 1),
        ("--policy base", 3),
        ("--setting greedy", 1),
        ("--setting temperature=1 --policy base", 2),
    ],
)
def test_filters(store: Path, score: Callable[..., Result], filters: str, count: int) -> None:
    """Splits, settings and policies narrow down what is scored."""
    assert len(groups(score(store, "length", "--json", *filters.split()))) == count


def test_every_completion_is_written(
    store: Path, score: Callable[..., Result], tmp_path: Path
) -> None:
    """One line each with the reward in nats and as it is read; what cannot be scored has none; the
    means come out of the lines.
    """
    path = tmp_path / "lines.jsonl"
    found = groups(score(store, "correct-and-short", "--json", "--per-completion", path))
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == sum(row["completions"] + row["left_out"] for row in found) == 12
    assert lines[0] == {
        "split": "train",
        "id": "Norway",
        "key": lines[0]["key"],
        "completion": "Oslo",
        "finish_reason": "stop",
        "tokens": 4,
        "nats": pytest.approx(np.log(2)),
        "value": pytest.approx(2.0),
        "correct": True,
        "spans": None,
    }
    assert (lines[1]["nats"], lines[1]["value"], lines[1]["correct"]) == ("-inf", 0.0, False)
    filtered = [line for line in lines if line["finish_reason"] == "content_filter"]
    assert [(line["nats"], line["value"], line["correct"]) for line in filtered] == [
        (None, None, None)
    ]
    assert len({line["key"] for line in lines}) == len(lines)


def test_marks_score_what_people_read(
    store: Path, score: Callable[..., Result], tmp_path: Path
) -> None:
    """The lines that ``--per-completion`` writes may come back with marks; a completion without a
    row ends the command with 2.
    """
    path = tmp_path / "lines.jsonl"
    score(store, "length", "--split", "test", "--policy", "base", "--per-completion", path)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        line["marks"] = ["Paris"] if "Paris" in line["completion"] else []
    marked = tmp_path / "marked.jsonl"
    write_rows(marked, lines)
    where = (store, f"marks:{marked}", "--policy", "base")
    found = groups(score(*where, "--split", "test", "--json", "--setting", "temperature=1"))
    assert [row["reward"]["mean"] for row in found] == [-0.25]
    assert "no marks" in refusal(score(*where))


def test_the_table_names_the_bias_of_the_run(
    store: Path, score: Callable[..., Result], tmp_path: Path
) -> None:
    """In a run's folder, what was sampled with bias.json says so, in one line."""
    bias_of(*ENTRIES, provider="p").save(tmp_path / "bias.json")
    said = ended_well(score(tmp_path, "correct-and-short", "--quiet"))
    (row,) = [line for line in said.stdout.splitlines() if "bias.json" in line]
    words = row.split()
    assert words[:4] == ["test", "bias.json,", "2", "entries"]
    assert {"T", "8", "4", "2.500", "+2.000", "0.75", "2.2"} <= set(words)
    assert "a content filter stopped them" in score(tmp_path, "length").stderr.replace("\n", " ")


@pytest.mark.parametrize(
    ("where", "more", "message"),
    [
        ("nowhere", (), "there is no rollout store"),
        ("", ("--setting", "temperature=0.7"), "none of them to be scored, chosen here and of"),
        ("", ("--setting", "warm"), "cannot deploy with 'warm'"),
        ("", ("--per-completion", "/nowhere/x.jsonl"), "cannot write /nowhere/x.jsonl"),
        ("", ("--decisions", "--examples", 3), "--examples is about completions"),
        ("", ("--abstain-below", 0.5), "give --decisions, too"),
    ],
)
def test_what_cannot_be_scored_is_explained(
    store: Path, score: Callable[..., Result], where: str, more: tuple[str, ...], message: str
) -> None:
    """Exit code 2, one sentence, and no empty store left behind."""
    assert message in refusal(score(store.parent / where, "length", *more))
    assert not (store.parent / "nowhere").exists()


def test_another_reward_reuses_the_completions(server: ExactServer, tmp_path: Path) -> None:
    """A fit with a second reward asks for no base completion again, and scoring its store asks for
    nothing at all.
    """
    data = write_rows(tmp_path / "data.jsonl", questions(8, 3, 4, answer="a"))

    def biases_asked(reward: str, *more: object) -> list[Any]:
        """Those of the fit's requests for completions, None for the base."""
        before = len(server.completions)
        where = asking(server, data=data, out=tmp_path / "run", reward=reward)
        small = options(max_tokens=8, top_logprobs=5, seed=1, tau=[0.5, 0.3])
        drawn = options(samples_per_prompt=8, validation_samples=2, test_samples=2)
        ended_well(blb("fit", *where, *small, *drawn, *more))
        return [body.get("logit_bias") for body in server.completions[before:]]

    assert biases_asked("length").count(None) >= 8 * 8
    again = biases_asked("regex:b", "--restart")
    assert again
    assert all(again)
    asked = len(server.calls)
    found = groups(blb("score", tmp_path / "run", "--data", data, "--reward", "accuracy", "--json"))
    assert len(server.calls) == asked
    policies = {(row["split"], row["policy"].split(",")[0]): row["completions"] for row in found}
    assert policies["train", "base"] == 64
    assert ("test", "bias.json") in policies


def test_a_missing_key_of_a_judge_is_said_before_anything_is_drawn(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was asked of the model but what it is."""
    monkeypatch.delenv("KEY_OF_NO_JUDGE", raising=False)
    (tmp_path / "judge.toml").write_text(
        'base_url = "http://127.0.0.1:9/v1"\nmodel = "m"\napi_key_env = "KEY_OF_NO_JUDGE"\n'
        "prompt = '{completion}'\npattern = '(.+)'\n"
    )
    data = write_rows(tmp_path / "data.jsonl", questions(8, 3, 4, answer="a"))
    reward = f"judge:{tmp_path / 'judge.toml'}"
    before = len(server.completions)
    where: dict[str, Any] = {"provider": "llamacpp", "base_url": server.base_url}
    with raises_naming(AuthenticationFailed, "KEY_OF_NO_JUDGE"):
        blackbox_lb.fit(
            data, reward=reward, out=tmp_path / "run", **where, max_tokens=8, quiet=True
        )
    assert len(server.completions) == before


def test_a_bias_that_the_store_has_by_its_hash_has_no_count_of_entries(
    score: Callable[..., Result], tmp_path: Path
) -> None:
    """One that keeps phrases out has the name of the run's file, and its vector alone another."""
    bias = bias_of(*ENTRIES, provider="p", phrases=("a lone lamp",))
    bias.save(tmp_path / "bias.json")
    with RolloutStore(tmp_path / "rollouts.db") as made:
        for drawn_with in (to_request_bias(bias), to_vector(bias)):
            asked = settings([]) | {"bias": drawn_with.store_key}
            made.add(asked, Prompt.user("Chad"), 0, completion("Abuja", 8))
    found = groups(score(tmp_path, "length", "--json"))
    policies = {row["policy"]: row["entries"] for row in found}
    assert policies == {"bias.json": None, "bias.json vector, 2 entries": 2}


@pytest.mark.parametrize("missing", ["model", "bias", "sampling", "temperature"])
def test_a_store_made_by_hand_is_refused_by_what_it_lacks(
    score: Callable[..., Result], tmp_path: Path, missing: str
) -> None:
    """With the name of the setting."""
    asked = settings([])
    for row in (asked, asked["sampling"]):
        row.pop(missing, None)
    with RolloutStore(tmp_path / "rollouts.db") as made:
        made.add(asked, Prompt.user("Chad"), 0, completion("Abuja", 8))
    assert f"have no {missing}" in refusal(score(tmp_path, "length"))


def test_wanted_shares_are_scored_over_all_completions(tmp_path: Path) -> None:
    """Two of three answers say yes where half should: the total variation is a sixth."""
    rows = [
        {"prompt": f"p{number}", "answer": {"yes": 0.5, "no": 0.5}, "split": split}
        for number, split in enumerate(("train", "validation", "test") * 3)
    ]
    write_rows(tmp_path / "rows.jsonl", rows)
    with RolloutStore(tmp_path / "rollouts.db") as made:
        for row in rows:
            for sample, text in enumerate(("yes", "no", "yes")):
                prompt = Prompt.user(str(row["prompt"]))
                made.add(settings([]), prompt, sample, completion(text, 1))
    words = ("--data", tmp_path / "rows.jsonl", "--reward", "distribution", "--json")
    found = groups(blb("score", tmp_path / "rollouts.db", *words))
    assert [row["reward"]["mean"] for row in found] == pytest.approx([-1 / 6] * 3)
    assert found[0]["accuracy"] is None
