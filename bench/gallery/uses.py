"""The uses: their data, commands and rivals, all settings fixed here before any run."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from bench.gallery.rewards import STOCK

__all__ = ["USES", "Place", "Step", "Use"]

TOPICS = "Answer with exactly one of these words and nothing else: world, sports, business, technology."
SMALL = 100
"""Test prompts of a use, where its data have more."""


@dataclass(frozen=True, slots=True)
class Place:
    """where: options of ``blb`` that name the model. out: folder of the use's runs. data: folder of tasks as JSONL, or None."""

    where: tuple[str, ...]
    out: Path
    data: Path | None


@dataclass(frozen=True, slots=True)
class Step:
    """A command of ``blb`` and the name of its result. judges: it is an evaluation, whose table the page shows under this title."""

    name: str
    words: tuple[str, ...]
    judges: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """title, intro: of the page. steps: the commands at a place."""

    title: str
    intro: str
    steps: Callable[[Place], list[Step]]


def _words(*given: object) -> tuple[str, ...]:
    return tuple(str(each) for each in given)


def _write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def _data(at: Place, name: str) -> Path:
    if at.data is None or not (at.data / name).exists():
        raise click.BadParameter(f"{name} is not in {at.data or 'any folder'}", param_hint="--data")
    return at.data / name


def _decisions(at: Place) -> list[Step]:
    """The built-in task with greedy decisions and at .6, and topics from 10 to 300 labels."""
    continents, out = ("--task", "continents", "--reward", "accuracy"), at.out
    arms = ("--labels-only", "--calibrate", "contextual", "--calibrate", "batch", "--few-shot", 4, "--classifier", "tfidf")
    found = [
        Step("continents", _words("fit", *at.where, *continents, "--out", out / "continents")),
        Step(
            "continents_eval",
            _words("eval", f"bias={out / 'continents' / 'bias.json'}", *at.where, *continents, "--deploy", "greedy")
            + _words("--deploy", "temperature=0.6", "--test-samples", 2, *arms, "--baseline-prompt", "Answer with one word.")
            + _words("--out", out / "continents"),
            "Continents of countries (built in, 80 labels)",
        ),
    ]
    if at.data is None:
        return found
    topics = _words("--data", _data(at, "agnews.jsonl"), "--reward", "contains", "--max-tokens", 4, "--test-limit", SMALL)
    topics += ("--labels", "world,sports,business,technology")
    store = _words("--store", out / "agnews.db")
    for labels in (10, 30, 100, 300):
        fit = _words("fit", *at.where, *topics, *store, "--limit", labels, "--out", out / f"agnews_{labels}")
        found.append(Step(f"agnews_{labels}", fit))
    own = out / "agnews_words"
    found.append(Step(own.name, _words("fit", *at.where, *topics, *store, "--depends-on", "words", "--out", own)))
    biases = [f"{labels}-labels={out / f'agnews_{labels}' / 'bias.json'}" for labels in (10, 30, 100, 300)]
    judged = _words("eval", *biases, f"words={own / 'bias.json'}", *at.where, *topics, *store, "--deploy", "greedy", *arms[:5])
    said = _words("eval", *at.where, *topics, *store, "--deploy", "greedy", "--baseline-prompt", TOPICS)
    found += [
        Step("agnews_eval", judged + _words("--classifier", "tfidf", "--out", out / "agnews"), "Topics of AG News"),
        Step("agnews_instruction", said + _words("--out", out / "instruction"), "Topics, an instruction alone"),
    ]
    return found


PEOPLE = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas", "Karl", "Lena", "Mona", "Nils")
CITIES = ("Oslo", "Rome", "Lyon", "Bonn", "Porto", "Turin", "Ghent", "Malmo", "Graz", "Brno", "Leeds", "Cork")


def _openers(at: Place) -> list[Step]:
    """Sentences to be turned into JSON; a model that was trained on chats puts a fence around it."""
    rng, rows = random.Random(0), list[dict[str, str]]()
    people = [(name, city) for name in PEOPLE for city in CITIES]
    rng.shuffle(people)
    for (name, city), split in zip(people, ["train"] * 30 + ["validation"] * 16 + ["test"] * 40, strict=False):
        age = rng.randint(18, 80)
        text = f"{name} is {age} years old and lives in {city}."
        asked = f'Turn this sentence into JSON with the keys "name", "age" (a number) and "city": {text}'
        rows.append({"prompt": asked, "answer": json.dumps({"name": name, "age": age, "city": city}), "split": split})
    data = _write(at.out / "records.jsonl", rows)
    # An answer of the data is one right text, and completions are judged by what they mean: nothing is learned from it.
    task = _words("--data", data, "--max-tokens", 48, "--store", at.out / "store.db", "--seed", 1, "--deploy", "greedy")
    strict, stripped = ("--reward", "bench.gallery.rewards:record"), ("--reward", "bench.gallery.rewards:stripped_record")
    learn = _words("--learn-from", "samples", "--samples-per-prompt", 8, "--tau", 0.25, "--validation-samples", 1)
    biases = [f"{name}={at.out / name / 'bias.json'}" for name in ("one", "first")]
    said = "Write the JSON object alone, without a code block or any other text."
    return [
        Step("one", _words("fit", *at.where, *task, *strict, *learn, "--out", at.out / "one")),
        Step("first", _words("fit", *at.where, *task, *strict, *learn, "--phases", "first", "--out", at.out / "first")),
        Step(
            "strict",
            _words("eval", *biases, *at.where, *task, *strict, "--baseline-prompt", said, "--out", at.out / "strict"),
            "Parsed strictly",
        ),
        Step(
            "stripped",
            _words("eval", *biases, *at.where, *task, *stripped, "--baseline-prompt", said, "--out", at.out / "stripped"),
            "Parsed by a client that takes fences off",
        ),
    ]


PLACES = ("a harbour", "a library", "a mountain village", "a night market", "an old theatre", "a train station", "a lighthouse")
EVENTS = ("a storm begins", "two friends meet again", "someone loses a letter", "a stranger asks for help", "the lights go out")


def _slop(at: Place) -> list[Step]:
    """Openings of stories, with fewer of the words that generated prose is full of, at a temperature of .7."""
    asked = [f"Write the opening of a short story in {place}, where {event}." for place in PLACES for event in EVENTS]
    random.Random(0).shuffle(asked)
    cut = {"train": asked[:15], "validation": asked[15:20], "test": asked[20:]}
    data = _write(at.out / "stories.jsonl", ({"prompt": each, "split": split} for split, rows in cut.items() for each in rows))
    words = at.out / "words.txt"
    words.write_text("\n".join(word for word in STOCK if " " not in word) + "\n")
    reward = ("--reward", "bench.gallery.rewards:few_stock_words", "--max-tokens", 60)
    task = _words("--data", data, *reward, "--store", at.out / "store.db", "--deploy", "temperature=0.7")
    learn = _words("--samples-per-prompt", 20, "--validation-samples", 8, "--test-samples", 4, "--tau", 0.5, "--tau", 0.25)
    arms = _words("--baseline-words", f"{words}:-3", "--baseline-words", f"{words}:-100")
    said = "Use plain words, no clichés and no flowery adjectives."
    return [
        Step("fit", _words("fit", *at.where, *task, *learn, "--out", at.out / "fit")),
        Step(
            "eval",
            _words("eval", f"bias={at.out / 'fit' / 'bias.json'}", *at.where, *task, "--test-samples", 4, *arms)
            + _words("--baseline-prompt", said, "--out", at.out / "eval"),
            "Stock words, T = .7",
        ),
    ]


def _limits(at: Place) -> list[Step]:
    """Decisions that a bias should not mend, looked at beforehand and fitted all the same."""
    pairs = [(one, other) for one in range(2, 16) for other in range(2, 16)]
    random.Random(0).shuffle(pairs)
    asked = "What is {} times {} modulo 4? Answer with one digit: 0, 1, 2 or 3."
    splits = ["train"] * 60 + ["validation"] * 40 + ["test"] * 80
    rows = [
        {"prompt": asked.format(one, other), "answer": str(one * other % 4), "split": split}
        for (one, other), split in zip(pairs, splits, strict=False)
    ]
    # A number is right where it is the whole answer: "20" contains a "2".
    tasks = {"numbers": (_write(at.out / "numbers.jsonl", rows), "exact-match")}
    if at.data is not None:
        tasks["entailment"] = (_data(at, "rte.jsonl"), "contains")
    found = []
    for name, (data, reward) in tasks.items():
        task = _words("--data", data, "--reward", reward, "--max-tokens", 4)
        found.append(Step(f"{name}_check", _words("check", *at.where, *task, "--out", at.out / name)))
        found.append(Step(name, _words("fit", *at.where, *task, "--test-limit", SMALL, "--out", at.out / name)))
        judged = _words(
            "eval", f"bias={at.out / name / 'bias.json'}", *at.where, *task, "--test-limit", SMALL, "--deploy", "greedy"
        )
        arms = _words("--labels-only", "--classifier", "tfidf", "--out", at.out / name)
        found.append(Step(f"{name}_eval", judged + arms, name.capitalize()))
    return found


USES: Mapping[str, Use] = {
    "decisions": Use(
        "Decisions between labels",
        "A label for each prompt, greedy and at temperature .6. Rivals: the labels alone (all else forbidden), both "
        "calibrations, examples in the prompt, an instruction, and a classifier of words without any language model. Ten rows are "
        "too few for a fit to see by itself that their answers are labels: a first run, which did not name them, learned from "
        "samples instead (5 minutes, no evidence).",
        _decisions,
    ),
    "openers": Use(
        "Openers and format",
        "A sentence is to be turned into one JSON object, and the model puts a Markdown fence around it, which a strict parser "
        "refuses. Rivals: an instruction, and a client that takes fences off, which costs nothing where one may change the client.",
        _openers,
    ),
    "slop": Use(
        "Stock words in stories",
        "Openings of stories with fewer of sixteen stock words and phrases. Rivals: the same words as a hand list, softly (-3) and "
        "as a ban (-100), and an instruction. The list was written before the run, and the reward counts exactly its words: a hand "
        "list is at its strongest here.",
        _slop,
    ),
    "limits": Use(
        "Where it does not help",
        "Decisions that depend on what the model does not know: arithmetic modulo 4, where half of all answers are 0, and whether "
        "one sentence follows from another. What `blb check` said beforehand stands beside what came. For numbers it was wrong: it "
        'predicts the first token, and the biased model says "0, 2". A first run rewarded numbers by `contains`, under which "20" '
        'holds a "2", and seemed to help, from .04 to .71; the decisions, which it told beside that, were right .45 of the time, '
        "where always saying 0 gets .49.",
        _limits,
    ),
}
