"""What a check says of answers beyond their first token, and of tests of correctness that take one
label for another.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from blackbox_lb.rollouts.judging.decisions import confusable
from blackbox_lb.tasks.rewards.matching import parse_matcher
from blackbox_lb.tasks.sets.labels import Labels
from tests.support.commands import asking, blb, options
from tests.support.errors import names
from tests.support.exact import ExactModel, ExactServer
from tests.support.labelled import labelled_rows
from tests.support.printed import ended_well, printed
from tests.support.questions import write_rows

V = 14
MODEL = ExactModel(
    V, 2, seed=30, prompts=20, unigram=np.where(np.arange(V) == V - 1, 0.5, 0.0), end=True
)
"""Tokens 1 and 2, " b" and " c", are the labels, with which a fifth of its greedy answers begin;
most of these go on.
"""
ROWS = labelled_rows(MODEL)
TALKER = ExactModel(6, 4, seed=3, prompts=40, end=True)
"""Many of its answers name both labels."""
TALKED = [
    {**each, "answer": "bc"[number % 3 == 0]} for number, each in enumerate(labelled_rows(TALKER))
]


def small_run(
    command: str,
    server: ExactServer,
    folder: Path,
    *more: object,
    rows: Sequence[dict[str, Any]] = ROWS,
) -> Result:
    """Run a command on the rows."""
    data = write_rows(folder / "data.jsonl", rows)
    return blb(command, *asking(server, data=data, out=folder), *more)


def greedy(model: ExactModel = MODEL, split: str = "train") -> list[str]:
    """What the model says to each prompt of a split, by its own probabilities."""
    prompts = [model.prompt_of(each["prompt"]) for each in ROWS if each["split"] == split]
    texts = [f" {chr(97 + token)}" for token in range(model.vocab_size - 1)] + [""]
    drawn = model.sample(len(prompts), np.random.default_rng(0), temperature=0, prompts=prompts)
    return ["".join(texts[token] for token in each if token >= 0) for each in drawn.tolist()]


def test_what_follows_a_label_is_counted_and_said(server: ExactServer, tmp_path: Path) -> None:
    """The counts are those of the model's own greedy answers; what exact-match refuses is in the
    sentence.
    """
    begun = [text for text in greedy() if text.split()[:1] in (["b"], ["c"])]
    kept = sum(text in (" b", " c") for text in begun)
    assert 0 < kept < 0.5 * len(begun)
    exact = ("--reward", "exact-match", "--max-tokens", 2, "--quiet")
    found = json.loads(small_run("check", server, tmp_path, *exact, "--json").stdout)
    assert (found["after"]["begun"], found["after"]["kept"]) == (len(begun), kept)
    assert found["after"]["refused"] in begun
    told = small_run("check", server, tmp_path, *exact).stdout
    assert told.startswith("PERHAPS  ")
    told = " ".join(told.split())
    assert names(told, f"{found['predicted']:.0%}", f"{kept} of {len(begun)} greedy answers")
    assert names(told, "--max-tokens 1", "--reward accuracy")


@pytest.mark.parametrize(
    ("names", "spec", "said"),
    [
        ("interested,not interested", "contains", "'not interested' as right where 'interested'"),
        ("interested,not interested", "exact-match", None),
        ("no,unknown", "contains", None),
        ("no,unknown", "regex:{answer}", "'unknown' as right where 'no' is"),
        ("1,2", "regex:{answer}", "'10' as right where '1' is"),
        ("1,2", r"regex:\b{answer}\b", None),
    ],
)
def test_labels_that_are_taken_for_others_are_named(
    names: str, spec: str, said: str | None
) -> None:
    """Where one label holds another, or a number may stand inside of a longer one; ``contains``
    takes whole words.
    """
    labels = Labels(tuple(names.split(",")), tuple(frozenset({name}) for name in names.split(",")))
    found = list(confusable(labels, parse_matcher(spec)))
    assert len(found) == (said is not None)
    assert said is None or said in found[0]


@pytest.mark.parametrize(
    "command", [("check",), ("fit", "--learn-from", "answers"), ("eval", "--deploy", "greedy")]
)
def test_answers_that_name_another_label_first_are_remarked(
    command: tuple[str, ...], server: ExactServer, tmp_path: Path
) -> None:
    """A pattern that finds anything counts every answer as right."""
    flipped = [{**each, "answer": {"b": "c", "c": "b"}[each["answer"]]} for each in ROWS]
    options = ("--reward", "regex:{answer}|.", "--labels", "b,c", "--max-tokens", 2)
    done = ended_well(small_run(command[0], server, tmp_path, *command[1:], *options, rows=flipped))
    said = " ".join(done.stderr.split())
    assert "regex:{answer}|. counts the answer 'c' as right where 'b' is" in said
    assert "answers as right that name another label first, such as" in said


def test_check_fit_eval_and_report_show_one_accuracy(tmp_path: Path) -> None:
    """For the same prompts: the share of answers whose first label is the right one, counted here
    from the model itself. Answers that name both labels are right for one of them alone.
    """
    wanted = [each["answer"] for each in TALKED if each["split"] == "test"][:60]
    named = [
        [word for word in text.split() if word in "bc"] for text in greedy(TALKER, "test")[:60]
    ]
    right = np.mean([first[:1] == [own] for first, own in zip(named, wanted, strict=True)])
    held = np.mean([own in words for words, own in zip(named, wanted, strict=True)])
    assert 0 < right < held - 0.05

    words = ("--reward", "accuracy", "--max-tokens", TALKER.horizon, "--quiet")
    turned = {"train": "test", "validation": "validation", "test": "train"}
    swapped = [{**each, "split": turned[each["split"]]} for each in TALKED]
    other = tmp_path / "check"
    other.mkdir()
    judged = (*words, "--test-limit", 60, "--deploy", "greedy", "--json")
    bias = tmp_path / "bias.json"
    with ExactServer(TALKER) as talker:
        checked = printed(small_run("check", talker, other, *words, "--json", rows=swapped))
        fitted = printed(small_run("fit", talker, tmp_path, *judged, rows=TALKED))
        evaluated = printed(small_run("eval", talker, tmp_path, bias, *judged, rows=TALKED))
    assert checked["base"] == pytest.approx(right)
    (verdict,) = [each for each in fitted["verdict"] if each["metric"] == "accuracy"]
    assert verdict["base"] == pytest.approx(right)
    for policy in ("base", "biased"):
        assert fitted["decisions"]["greedy"][policy]["accuracy"] == pytest.approx(verdict[policy])

    shares = {each["name"]: each for each in evaluated["policies"]}
    for name, policy in (("base", "base"), (tmp_path.name, "biased")):
        assert shares[name]["metrics"]["accuracy"]["mean"] == pytest.approx(verdict[policy])
        assert shares[name]["decisions"]["accuracy"] == pytest.approx(verdict[policy])

    page = tmp_path / "report.html"
    ended_well(blb("report", tmp_path, "--out", page))
    text = " ".join(page.read_text().replace("\N{NO-BREAK SPACE}", " ").split())
    assert f"{100 * right:.1f} %" in text


def test_few_rows_change_what_a_fit_learns_from_and_say_so(
    server: ExactServer, tmp_path: Path
) -> None:
    """Of 60 rows with two labels three to learn from and two to choose on are too few to see it:
    the remark names the option that makes them labels again.
    """
    few_rows = options(limit=3, validation_limit=2, test_limit=5)
    drawn = options(samples_per_prompt=16, validation_samples=1, test_samples=1)
    short = ("--reward", "exact-match", "--max-tokens", 1, "--go-on", *drawn, *few_rows)
    few = " ".join(small_run("fit", server, tmp_path, *short).stderr.split())
    assert names(few, "--limit 3 leaves too few rows", "3 rows of each", "--labels b,c")
    for choice in ({"labels": "b,c"}, {"learn_from": "samples"}):
        folder = tmp_path / next(iter(choice))
        folder.mkdir()
        asked = small_run("fit", server, folder, *short, *options(**choice), "--json")
        assert "leaves too few rows" not in asked.stderr
        chosen = json.loads(asked.stdout)["chosen"]
        assert (chosen.get("learn_from") == "answers") == ("labels" in choice)


def test_a_check_looks_at_the_rows_that_the_fit_learns_from(
    server: ExactServer, tmp_path: Path
) -> None:
    """Of few rows these are all that do not judge."""
    rows = [{"prompt": row["prompt"], "answer": row["answer"]} for row in ROWS[:60]]
    told = [
        small_run(command, server, tmp_path, *options(max_tokens=1, reward="accuracy"), rows=rows)
        for command in ("check", "fit")
    ]
    [of_check, of_fit] = [ended_well(result).stderr.splitlines()[0] for result in told]
    assert of_check == of_fit
    assert "42 training prompts looked at" in told[0].stdout
