"""Data that pages of the gallery make: rows of prompts, and lists of words.

An entry of ``rows`` in a page's table names the ``file``, the function that makes it (``by``) and
its arguments, in which a text that names a value is that value.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.commands import NAME, Commands
from bench.gallery.rewards import LETTERS_HAN
from bench.measuring import read_rows, write_rows

# The tokens of a model's file are no part of the public API.
from blackbox_lb.vocabulary.gguf import token_texts

__all__ = ["made"]

Row = Mapping[str, Any]


def made(commands: Commands, entry: Mapping[str, Any]) -> None:
    """Write the file of an entry of ``rows``."""
    arguments = {
        name: _argument(commands, value)
        for name, value in entry.items()
        if name not in ("file", "by", "for")
    }
    for name in ("source", "test_source"):
        if name in arguments:
            source = commands.place.data / arguments[name]
            if source.suffix == ".json":
                arguments[name] = json.loads(source.read_text(encoding="utf-8"))
            else:
                arguments[name] = read_rows(source)
    content = MAKERS[entry["by"]](**arguments)
    path = commands.place.out / commands.text(entry["file"])
    if isinstance(content, str):
        path.write_text(content, encoding="utf-8")
    elif content is not None:
        write_rows(path, content)


def _argument(commands: Commands, value: Any) -> Any:
    """The value of a name, or a text with the values of the names in it."""
    if not isinstance(value, str):
        return value
    name = NAME.fullmatch(value)
    return commands.value(name[2]) if name else commands.text(value)


def split_column(splits: Mapping[str, int]) -> list[str]:
    """The split of each row, for so many rows of each."""
    return [split for split, number in splits.items() for _ in range(number)]


def crossed(
    blocks: Sequence[Mapping[str, Any]],
    cross: Sequence[str],
    *,
    lists: Mapping[str, Sequence[str]] | None = None,
    splits: Mapping[str, int] | None = None,
    columns: Sequence[str] = (),
    answer: Any = None,
) -> Iterator[Row]:
    """Prompts of every combination of lists.

    Args:
        blocks: the lists by name, of which ``frame`` has the templates; ``splits``, the numbers of
            rows of each split; and whether the rows are ``shuffled`` before.
        cross: names of the lists, the outermost first.
        lists: those that all blocks share.
        splits: of blocks that name none.
        columns: lists whose value is a column of the row, too.
        answer: of all rows; or by the value of the first of ``columns``; or the name of a list.
    """
    for block in blocks:
        known = {**(lists or {}), **block}
        rows = []
        for values in itertools.product(*(known[name] for name in cross)):
            named = dict(zip(cross, values, strict=True))
            row: dict[str, Any] = {"prompt": named["frame"].format(**named)}
            if columns:
                row["answer"] = answer[named[columns[0]]]
            elif answer is not None:
                row["answer"] = named[answer] if isinstance(answer, str) else answer
            rows.append(row | {name: named[name] for name in columns})
        if block.get("shuffled"):
            random.Random(0).shuffle(rows)
        column = split_column(block.get("splits") or splits or {})
        for row, split in zip(rows, column, strict=False):
            yield row | {"split": split}


def single_words(source: Sequence[tuple[str, float]]) -> str:
    """The entries of a sampler's list that are one word, one a line."""
    return lines(entry for entry, _ in source if " " not in entry)


def lines(words: Iterable[str]) -> str:
    """A list of words, one a line."""
    return "\n".join(words) + "\n"


def han_ban(model: str) -> str | None:
    """Every token of a model's file that holds a Chinese character, one a line; None without such
    a file.
    """
    if not model.endswith(".gguf"):
        return None
    tokens = token_texts(Path(model)).values()
    texts = {raw.decode(errors="replace").strip() for raw in tokens}
    return "".join(f"{text}\n" for text in sorted(texts) if LETTERS_HAN.search(text))


def openers(
    people: Sequence[str], cities: Sequence[str], prompt: str, splits: Mapping[str, int]
) -> Iterator[Row]:
    """Sentences about people that are to be turned into JSON."""
    rng = random.Random(0)
    pairs = list(itertools.product(people, cities))
    rng.shuffle(pairs)
    for (name, city), split in zip(pairs, split_column(splits), strict=False):
        age = rng.randint(18, 80)
        answer = json.dumps({"name": name, "age": age, "city": city})
        sentence = prompt.format(name=name, age=age, city=city)
        yield {"prompt": sentence, "answer": answer, "split": split}


def problems(names: Sequence[str], things: Sequence[str], number: int) -> dict[str, int]:
    """Different word problems of one or two steps, with their answers."""
    rng = random.Random(0)
    totals: dict[str, int] = {}
    while len(totals) < number:
        name = rng.choice(names)
        thing = rng.choice(things)
        total = rng.randint(3, 12)
        text = f"{name} has {total} {thing}."
        for _ in range(rng.choice((1, 2))):
            kind = rng.choice(("buys", "finds", "loses"))
            size = rng.randint(2, 6)
            if kind == "loses" and total <= size:
                kind = "finds"
            total += -size if kind == "loses" else size
            text += f" Then {name} {kind} {size} {'of them' if kind == 'loses' else 'more'}."
        totals[f"{text} How many {thing} does {name} have now?"] = total
    return totals


def word_problems(
    names: Sequence[str],
    things: Sequence[str],
    prompt: str,
    splits: Mapping[str, int],
    begin: str | None = None,
) -> Iterator[Row]:
    """Generated problems, asked for with their reasoning. ``begin``: how each answer begins."""
    column = split_column(splits)
    totals = problems(names, things, len(column)).items()
    for (text, total), split in zip(totals, column, strict=True):
        question = prompt.format(text)
        sent: Row = {"prompt": question}
        if begin is not None:
            user = {"role": "user", "content": question}
            sent = {"messages": [user, {"role": "assistant", "content": begin}]}
        yield {**sent, "answer": str(total), "split": split}


REASONED = "{} Reason step by step, then end with 'The answer is' and the number."


def school(
    source: Sequence[Row],
    splits: Mapping[str, int],
    test_source: Sequence[Row] | None = None,
    prompt: str = REASONED,
    with_comma: bool = False,
    most_steps: int | None = None,
) -> Iterator[Row]:
    """The first problems of GSM8K's own files, whose answers end in ``#### 1,234``.

    Args:
        source: rows of one file, for one split after the other.
        splits: numbers of problems.
        test_source: rows of the file for the split test, where it is another.
        prompt: how a question is asked.
        with_comma: 1,234 is right with its comma, too.
        most_steps: those alone whose answer has so many calculations (``<<6*2=12>>``) at most, and
            one at least.
    """
    begin = 0
    rows = source if most_steps is None else _of_few_steps(source, most_steps)
    for split, number in splits.items():
        if split == "test" and test_source is not None:
            begin = 0
            rows = test_source if most_steps is None else _of_few_steps(test_source, most_steps)
        for row in rows[begin : begin + number]:
            answer = row["answer"].rpartition("#### ")[2].replace(",", "")
            accepted: str | list[str] = answer
            if with_comma and len(answer) > 3:
                accepted = [answer, f"{int(answer):,}"]
            question = prompt.format(row["question"])
            yield {"prompt": question, "answer": accepted, "split": split}
        begin += number


def _of_few_steps(source: Sequence[Row], most: int) -> list[Row]:
    return [row for row in source if 1 <= row["answer"].count("<<") <= most]


def boxed(source: Sequence[Row], number: int, prompt: str) -> Iterator[Row]:
    """Problems of MATH, to judge on."""
    for row in source[:number]:
        yield {"prompt": prompt.format(row["problem"]), "answer": row["answer"], "split": "test"}


def remainders(highest: int, splits: Mapping[str, int]) -> Iterator[Row]:
    """Products modulo 4 of factors from 2 to ``highest``, which the model does not know."""
    pairs = list(itertools.product(range(2, highest + 1), repeat=2))
    random.Random(0).shuffle(pairs)
    question = "What is {} times {} modulo 4? Answer with one digit: 0, 1, 2 or 3."
    for (left, right), split in zip(pairs, split_column(splits), strict=False):
        answer = str(left * right % 4)
        yield {"prompt": question.format(left, right), "answer": answer, "split": split}


def learned_from(source: Sequence[Row], number: int, unlabelled: int) -> list[Row]:
    """The same rows of training, the last third of them to choose on; so many others without
    their answers; and the test rows.
    """
    train = [row for row in source if row["split"] == "train"]
    rest = [row for row in source if row["split"] != "train"]
    learned = train[: number - number // 3]
    chosen_on = [{**row, "split": "validation"} for row in train[len(learned) : number]]
    remaining = [row for row in (*train[number:], *rest) if row["split"] != "test"]
    prompts = [{"prompt": row["prompt"], "split": "train"} for row in remaining[:unlabelled]]
    test = [row for row in rest if row["split"] == "test"]
    return [*learned, *prompts, *chosen_on, *test]


def _first(source: Sequence[Row], splits: Mapping[str, int]) -> list[Row]:
    """So many rows of each split, the first ones."""
    return [
        row
        for split, number in splits.items()
        for row in [row for row in source if row["split"] == split][:number]
    ]


def texts(source: Sequence[Row], behind: str, splits: Mapping[str, int]) -> Iterator[Row]:
    """The texts alone that the first rows of each split ask about: what stands in a prompt behind
    these words.
    """
    for row in _first(source, splits):
        yield {**row, "prompt": row["prompt"].partition(behind)[2]}


def records(
    source: Sequence[Row], request: str, splits: Mapping[str, int] | None = None, begun: str = ""
) -> Iterator[Row]:
    """The first rows of each split (all without ``splits``), asked for as a record; with ``begun``
    as conversations whose answer has begun so.
    """
    for row in source if splits is None else _first(source, splits):
        prompt = row["prompt"].replace("Answer with one word.", request)
        if not begun:
            yield {**row, "prompt": prompt}
            continue
        messages = [
            {"role": "user", "content": prompt},
            {"role": "assistant", "content": begun},
        ]
        yield {"messages": messages, "answer": row["answer"], "split": row["split"]}


MAKERS: Mapping[str, Callable[..., str | Iterable[Row] | None]] = {
    maker.__name__: maker
    for maker in (
        *(boxed, crossed, han_ban, learned_from, lines, openers, records, remainders),
        *(school, single_words, texts, word_problems),
    )
}
