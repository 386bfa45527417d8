"""``--reward distribution``: answers with wanted shares, from the file to the verdict."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.phases import Prefix
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import DataError
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.extras.rivals.prompts import label_drawn_in_code
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Task, load_task, parse_reward
from blackbox_lb.tasks.records.files import load_examples
from blackbox_lb.types import Example, Prompt
from tests.support.commands import asking, blb, options, refusal
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows

MODEL = ExactModel(
    14, 3, seed=3, prompts=12, unigram=np.where(np.isin(np.arange(14), (1, 2)), 1.0, 0.0), end=True
)
"""Tokens 1 and 2, " b" and " c", are the labels."""
SPLITS = (("train", 60), ("validation", 40), ("test", 40))
NORTH = {"b": 0.2, "c": 0.8}
SOUTH = {"b": 9, "c": 1}


def rows(**shares: Any) -> list[dict[str, Any]]:
    """Questions of all splits, in turn for each city, with its shares."""
    cities = list(shares)
    return [
        {
            "prompt": f"{city} question {number} of {split}",
            "answer": shares[city],
            "city": city,
            "split": split,
        }
        for split, count in SPLITS
        for number in range(count)
        for city in [cities[number % len(cities)]]
    ]


def run(command: str, server: ExactServer, data: Path, *more: object) -> Result:
    """A command with two tokens a completion."""
    where = asking(server, data=data, max_tokens=2, seed=1)
    return blb(command, *where, "--quiet", *more)


@pytest.mark.parametrize(
    ("names", "is_predicted"), [(("b", "c"), True), (("b d", "c e"), False)], ids=["one", "two"]
)
def test_only_labels_of_one_token_are_raced_by_lists(
    server: ExactServer, tmp_path: Path, names: tuple[str, str], is_predicted: bool
) -> None:
    """The first token of a longer label does not tell whether the rest follows: its candidates are
    compared by completions.
    """
    data = write_rows(tmp_path / "data.jsonl", rows(all=dict(zip(names, (1, 4), strict=True))))
    few = options(limit=30, validation_limit=20, test_limit=5, test_samples=1)
    words = options(reward="distribution", out=tmp_path / "run")
    result = run("fit", server, data, *words, *few, "--json")
    assert result.exit_code == 0, result.output
    tried = json.loads(result.stdout)["validation"]["tried"]
    (chosen,) = [candidate for candidate in tried if candidate["status"] == "chosen"]
    assert (chosen["samples"] == 0) == is_predicted


@pytest.fixture(scope="module")
def by_city(server: ExactServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a fit to shares that differ by city, with its data."""
    folder = tmp_path_factory.mktemp("cities")
    data = write_rows(folder / "data.jsonl", rows(north=NORTH, south=SOUTH))
    reward = ("--reward", "distribution:city", "--out", folder / "run")
    fitted = run("fit", server, data, *reward, "--depends-on", "groups:city", "--json")
    assert fitted.exit_code == 0, fitted.output
    return folder


def test_a_bias_depends_on_the_groups(by_city: Path) -> None:
    """Shares that differ by group are met by a bias that depends on it, and better than by the
    fixed one.
    """
    bias = Bias.load(by_city / "run" / "bias.json")
    assert bias.settings["depends_on"] == "groups:city"
    found = json.loads((by_city / "run" / "result.json").read_text())
    (against,) = found["beside"]
    assert (against["against"], against["verdict"]) == ("fixed bias", "HELPS")
    overall, north, south = found["shares"]["temperature 1"]["biased"]
    assert [group["group"] for group in (overall, north, south)] == ["", "north", "south"]
    assert north["drawn"]["c"] > north["drawn"]["b"]
    assert south["drawn"]["b"] > south["drawn"]["c"]
    by_group = (north["total_variation"] + south["total_variation"]) / 2
    assert found["verdict"][0]["biased"] == pytest.approx(-by_group)


def labels_behind(folder: Path) -> float:
    """The share of labels among the second tokens of a run's biased completions."""
    bias = Bias.load(folder / "bias.json")
    with RolloutStore(folder / "rollouts.db", read_only=True) as store:
        (request,) = [
            request
            for request, settings in store.requests().items()
            if settings["bias"] == to_request_bias(bias).store_key
        ]
        completions = list(store.completions(store.prompts(request)))
    behind = [row.token_ids[1] for row in completions if len(row.token_ids) > 1]
    assert len(behind) > 100
    return float(np.mean(np.isin(behind, (1, 2))))


def test_a_bias_confined_to_the_first_token_leaves_the_rest_alone(
    server: ExactServer, by_city: Path, tmp_path: Path
) -> None:
    """The labels come in the wanted shares, by group, and behind them the model writes what it
    would have written there; a bias for every token repeats the labels.
    """
    words = ("--reward", "distribution:city", "--depends-on", "groups:city", "--json")
    confined = ("--phases", "only-first", "--out", tmp_path)
    result = run("fit", server, by_city / "data.jsonl", *words, *confined)
    assert result.exit_code == 0, result.output
    for document in (result.stdout, (by_city / "run" / "result.json").read_text()):
        assert json.loads(document)["verdict"][0]["verdict"] == "HELPS"
    bias = Bias.load(tmp_path / "bias.json")
    assert bias.depends_on == "groups:city, only-first"
    assert bias.settings["phases"] == "only-first"
    north = replace(Prompt.user("x"), columns={"city": "north"})
    assert bias.at(north)
    assert bias.at(north, Prefix(1, b" b")) == {}
    assert labels_behind(tmp_path) < labels_behind(by_city / "run") / 2


def test_eval_and_report_show_the_shares_of_all_policies(
    server: ExactServer, by_city: Path, tmp_path: Path
) -> None:
    """Each policy has both distances, overall and by group; rivals are a higher temperature, the
    shares in words, and a label drawn in code and asked for in the prompt.
    """
    out = by_city / "run"
    words = ("--reward", "distribution:city", "--out", out, out / "bias.json", "--test-samples", 5)
    rivals = ("--rivals",)
    result = run("eval", server, by_city / "data.jsonl", *words, *rivals, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    policies = {policy["name"]: policy for policy in found["policies"]}
    alone = {"base", "run", "T = 1.5", "shares asked in words", "label drawn in code"}
    assert alone < set(policies)
    for policy in policies.values():
        overall, *groups = policy["shares"]
        assert (overall["prompts"], overall["completions"]) == (40, 200)
        assert [group["group"] for group in groups] == ["north", "south"]
        distance = sum(group["total_variation"] * group["prompts"] for group in groups) / 40
        assert policy["metrics"]["-total variation"]["mean"] == pytest.approx(-distance)
        divergence = sum(group["jensen_shannon"] * group["prompts"] for group in groups) / 40
        assert policy["metrics"]["Jensen-Shannon"]["mean"] == pytest.approx(divergence)
    page = tmp_path / "report.html"
    assert blb("report", out, "--out", page).exit_code == 0
    text = page.read_text()
    assert 'id="shares"' in text
    assert text.count("label drawn in code") >= 3


def test_a_label_drawn_in_code_is_asked_for_by_its_share() -> None:
    """Over many prompts each label is asked for as often as its share says, and the same labels
    again with the same seed.
    """
    examples = [
        Example(str(number), Prompt.user(f"{number}"), ("x", "y", "z"), weights=(0.5, 0.3, 0.2))
        for number in range(400)
    ]
    reward = parse_reward("distribution", max_tokens=4)
    task = Task("t", (), (), tuple(examples))
    rival = label_drawn_in_code(Case(task, reward, (SAMPLED,), seed=3), "")
    counts = Counter[str]()
    for example in examples:
        requests = rival.requests(example, 5)
        assert requests == rival.requests(example, 5)
        assert sum(draw.samples for draw in requests) == 5
        for draw in requests:
            counts[draw.example.prompt.text.partition(" ")[2]] += draw.samples
    shares = sorted(count / 2000 for count in counts.values())
    assert shares == pytest.approx([0.2, 0.3, 0.5], abs=0.04)


@pytest.mark.parametrize(
    "answer",
    [
        {"b": -0.1, "c": 1.1},
        {"b": 0, "c": 0},
        {"b": 1},
        {},
        {"b": "half", "c": 1},
        {"b": True, "c": 1},
        {"b": 1e400, "c": 1},
        {"b": 1, "B": 2},
        {"b": 1, " ": 2},
        {"b": 1, "d": 2},
        "b",
        ["b", "c"],
    ],
    ids=str,
)
def test_bad_shares_are_errors_of_their_row(tmp_path: Path, answer: Any) -> None:
    """Shares that are negative, sum to 0, are of one label, no numbers, or of other labels than
    those of the other rows: the error names the row.
    """
    content = rows(all=NORTH)
    content[7]["answer"] = answer
    path = write_rows(tmp_path / "data.jsonl", content)
    with pytest.raises(DataError) as caught:
        load_task(None, path)
    assert "line 8" in str(caught.value)


def test_counts_are_shares_in_every_format(tmp_path: Path) -> None:
    """An object of counts is the same as one of shares, in JSON Lines and as JSON text in CSV, in
    the column that is named.
    """
    lines = tmp_path / "data.jsonl"
    table = tmp_path / "data.csv"
    lines.write_text('{"prompt": "p", "counts": {"yes": 6, "no": 2}}\n')
    table.write_text('prompt,counts\np,"{""yes"": 6, ""no"": 2}"\n')
    for path in (lines, table):
        (example,) = load_examples(path, answer_column="counts")
        assert (example.answers, example.weights) == (("yes", "no"), (0.75, 0.25))


def test_rows_of_one_prompt_want_one_distribution(tmp_path: Path) -> None:
    """Equal rows count once; other shares for the same prompt are refused."""
    path = tmp_path / "data.jsonl"
    row = {"prompt": "p", "answer": {"b": 1, "c": 1}}
    write_rows(path, [row, {"prompt": "p", "answer": {"b": 2, "c": 2}}])
    assert len(load_examples(path)) == 1
    write_rows(path, [row, {"prompt": "p", "answer": {"b": 2, "c": 1}}])
    with pytest.raises(DataError):
        load_examples(path)


@pytest.mark.parametrize(
    ("command", "more", "named"),
    [
        ("fit", ("--deploy", "greedy"), "greedy"),
        ("eval", ("--deploy", "greedy"), "greedy"),
        ("eval", ("--rival", "temperature:0"), "--rival temperature:0"),
        ("fit", ("--learn-from", "samples"), "--learn-from"),
        ("fit", ("--labels", "b,c"), "--labels"),
        ("fit", ("--objective", "pareto"), "--objective"),
        ("fit", ("--objective", "balanced"), "wanted shares"),
        ("fit", ("--reward", "distribution:town"), "town"),
        ("eval", ("--rival", "few-shot:2"), "--rival few-shot"),
        ("eval", ("--reward", "contains", "--rival", "drawn-label"), "--rival drawn-label"),
        ("collect", (), "blb fit"),
        ("check", (), "blb fit"),
        ("score", (), "distribution"),
    ],
)
def test_what_no_distribution_can_do_is_refused(
    server: ExactServer, tmp_path: Path, command: str, more: tuple[object, ...], named: str
) -> None:
    """A sentence that names the option or the value, exit code 2, and nothing drawn."""
    data = write_rows(tmp_path / "data.jsonl", rows(all=NORTH))
    out = tmp_path / "run"
    asked = len(server.requests)
    if command == "score":
        out.mkdir()
        RolloutStore(out / "rollouts.db").close()
        result = blb("score", out, "--data", data, "--reward", "distribution")
    else:
        result = run(command, server, data, "--reward", "distribution", "--out", out, *more)
    assert named in refusal(result)
    assert not [body for body in server.requests[asked:] if "max_tokens" in body]


@pytest.mark.parametrize(
    ("answer", "named"),
    [("b", "line 1"), ({"bb": 1, "bc": 1}, "'bb'")],
    ids=["no shares", "labels that begin alike"],
)
def test_answers_that_are_no_shares_of_labels_are_refused(
    server: ExactServer, tmp_path: Path, answer: Any, named: str
) -> None:
    """The reward needs shares, of labels that their first tokens tell apart."""
    data = write_rows(tmp_path / "data.jsonl", rows(all=answer))
    result = run("fit", server, data, "--reward", "distribution", "--out", tmp_path / "run")
    assert named in refusal(result)
