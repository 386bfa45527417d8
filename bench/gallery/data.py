"""``python -m bench.gallery.data [FOLDER]``: the public rows that the pages were made with, for
``bench.gallery`` and for ``--data FOLDER`` of ``bench.gpu``; and the model of half of the pages.

They come from repositories at fixed commits (``data.toml``), so that each file has the same bytes
everywhere.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import click
import httpx2

from bench.measuring import jsonl

__all__ = ["DRAWN", "FOLDER", "MODEL", "TABLE", "Sources", "main", "text_of"]

Row = dict[str, Any]
TABLE: dict[str, Any] = tomllib.loads(
    Path(__file__).with_name("data.toml").read_text(encoding="utf-8")
)
DRAWN = Path(__file__).with_name("rows.json")
"""Task -> split -> the numbers or ids of its rows, in their order."""
TIMEOUT = 60.0
"""Seconds without a byte of a download."""
FOLDER = Path("runs/gallery/data")
"""Where the files are written to, and where the gallery looks for them."""
MODEL: str = TABLE["model"]["file"]
TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""Types of the leaderboard's functions -> those of JSON Schema."""


@dataclass(frozen=True, slots=True)
class Sources:
    """Files of the repositories, each fetched once. checkouts: a folder with OWNER/NAME instead."""

    checkouts: Path | None = None
    texts: dict[str, str] = field(default_factory=dict)

    def text(self, source: Sequence[str]) -> str:
        """The text of a source: a repository of ``data.toml`` and a file.

        Raises ClickException: it cannot be had.
        """
        origin = TABLE["repositories"][source[0]]
        name = origin["repository"]
        path = str(PurePosixPath(origin["folder"], source[1]))
        key = f"{name}/{origin['commit']}/{path}"
        if key not in self.texts:
            try:
                if self.checkouts is not None:
                    content = (self.checkouts / name / path).read_bytes()
                else:
                    url = f"https://raw.githubusercontent.com/{key}"
                    content = httpx2.get(url, timeout=TIMEOUT).raise_for_status().content
            except (OSError, httpx2.HTTPError) as error:
                raise click.ClickException(
                    f"{name}, {path} cannot be had: {error}; clone the repository at"
                    f" {origin['commit'][:12]} as DIR/{name}, and give --checkouts DIR"
                ) from None
            # TREC's questions are Latin-1; all other sources are UTF-8.
            self.texts[key] = content.decode("latin-1" if "/trec/" in path else "utf-8")
        return self.texts[key]


# --- Rows of each source, in its order: an answer's name, and what stands in the prompt


def _reviews(text: str) -> Iterator[tuple[str, ...]]:
    """SST-2: the label, a space, the sentence."""
    for line in _lines(text):
        yield line[0], line[2:].strip()


def _questions(text: str) -> Iterator[tuple[str, ...]]:
    """TREC: the coarse and the fine label, a space, the question."""
    for line in _lines(text):
        label, _, question = line.partition(" ")
        yield label.partition(":")[0], question.strip()


def _pairs(text: str) -> Iterator[tuple[str, ...]]:
    """RTE: a premise and a hypothesis, which follows or not."""
    for line in _lines(text):
        pair = json.loads(line)
        yield pair["label"], pair["premise"].strip(), pair["hypothesis"].strip()


def _news(text: str) -> Iterator[tuple[str, ...]]:
    """AG News: title and description, in which a backslash stands for a space."""
    for line in csv.DictReader(io.StringIO(text)):
        article = f"{line['Title'].strip()}. {line['Description'].strip()}"
        yield line["Class Index"], article.replace("\\", " ")


def _yes_no(text: str) -> Iterator[tuple[str, ...]]:
    """RBCorr's questions of yes or no, some behind a context; "''" stands for none."""
    for line in csv.DictReader(io.StringIO(text)):
        context = line["Context"].replace("''", "").strip()
        yield line["Correct Answer"], f"{context} {line['Question'].strip()}".strip()


def _inferences(text: str) -> Iterator[tuple[str, ...]]:
    """RBCorr's pairs of a premise and a hypothesis."""
    for line in csv.DictReader(io.StringIO(text)):
        yield line["Correct Answer"], line["Question"].strip()


def _options(text: str) -> Iterator[tuple[str, ...]]:
    """RBCorr's questions of MMLU with four options."""
    for line in csv.DictReader(io.StringIO(text)):
        yield line["answer"], line["question"].strip(), *(line[letter].strip() for letter in "ABCD")


READERS: Mapping[str, Callable[[str], Iterator[tuple[str, ...]]]] = {
    "reviews": _reviews,
    "questions": _questions,
    "pairs": _pairs,
    "news": _news,
    "yes_no": _yes_no,
    "inferences": _inferences,
    "options": _options,
}


def _calls(text: str, wanted: str) -> dict[str, Row]:
    """Prompts with functions by their id, of which one answers (call), or none does (answer)."""
    rows = {}
    for line in _lines(text):
        asked = json.loads(line)
        tools = [
            {
                "type": "function",
                "function": {
                    "name": function["name"].replace(".", "_"),
                    "description": function["description"],
                    "parameters": _json_schema(function["parameters"]),
                },
            }
            for function in asked["function"]
        ]
        rows[asked["id"]] = {"messages": asked["question"][0], "tools": tools, "want": wanted}
    return rows


def _json_schema(value: Any) -> Any:
    """``value`` with the types of JSON Schema, which says nothing where any type will do."""
    if isinstance(value, list):
        return [_json_schema(item) for item in value]
    if not isinstance(value, dict):
        return value
    schema = {}
    for key, item in value.items():
        if key != "type" or not isinstance(item, str):
            schema[key] = _json_schema(item)
        elif item != "any":
            schema[key] = TYPES.get(item, item)
    return schema


def _lines(text: str) -> list[str]:
    # Not splitlines(): it also breaks at characters that stand inside sentences.
    return text.removesuffix("\n").split("\n")


def text_of(file: Mapping[str, Any], drawn: Mapping[str, Sequence[Any]], sources: Sources) -> str:
    """The text of a file of the folder; drawn: split -> the numbers or ids of its rows."""
    if "source" in file:
        return sources.text(file["source"])
    if "calls" in file:
        by_id = _calls(sources.text(file["calls"]), "call")
        by_id |= _calls(sources.text(file["answers"]), "answer")
        return jsonl(by_id[name] | {"split": split} for split in drawn for name in drawn[split])
    reader = file["rows"]
    prompt = TABLE["prompts"][reader]
    answers = TABLE["answers"][reader]
    kept = []
    rows: dict[str, list[tuple[str, ...]]] = {}
    for split in drawn or file["drawn"]:
        source = _source(file, split)
        rows[split] = list(READERS[reader](sources.text(source)))
    for split, numbers in (drawn or _sampled(file, rows)).items():
        for number in numbers:
            label, *parts = rows[split][number]
            kept.append({"prompt": prompt.format(*parts), "answer": answers[label], "split": split})
    return jsonl(kept)


def _source(file: Mapping[str, Any], split: str) -> Sequence[str]:
    return list(file["test" if split == "test" else "training"])


def _sampled(
    file: Mapping[str, Any], rows: Mapping[str, Sequence[tuple[str, ...]]]
) -> dict[str, list[int]]:
    """Split -> the numbers of its rows, in an order that the source's name fixes; two splits of one
    source share no row, and no text is there twice.
    """
    left: dict[str, list[int]] = {}
    sampled = {}
    for split, number in file["drawn"].items():
        name = "/".join(_source(file, split))
        if name not in left:
            places: dict[tuple[str, ...], int] = {}
            for place, (_, *parts) in enumerate(rows[split]):
                places.setdefault(tuple(parts), place)
            left[name] = random.Random(name).sample(list(places.values()), len(places))
        sampled[split] = left[name][:number]
        left[name] = left[name][number:]
    return sampled


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=FOLDER)
@click.option(
    "--checkouts",
    metavar="DIR",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of repositories as OWNER/NAME, instead of downloads from GitHub.",
)
@click.option(
    "--model",
    "has_model",
    is_flag=True,
    help=f"Also {MODEL} (Qwen2.5-Coder-0.5B-Instruct, Q4_K_M, 491 MB).",
)
def main(folder: Path, checkouts: Path | None, has_model: bool) -> None:
    """Write the files that are not in FOLDER yet, by default runs/gallery/data, where the gallery
    looks for them.
    """
    drawn = json.loads(DRAWN.read_text(encoding="utf-8"))
    sources = Sources(checkouts)
    for name, file in TABLE["files"].items():
        path = folder / name
        if path.exists() and _sha256(path.read_bytes()) == file["sha256"]:
            click.echo(f"{path} is there")
            continue
        content = text_of(file, drawn.get(name.removesuffix(".jsonl"), {}), sources).encode()
        if _sha256(content) != file["sha256"]:
            raise click.ClickException(
                f"{name} would have other bytes than the rows of the pages; look whether its"
                " repository stands at the commit that bench/gallery/data.toml names"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_bytes(content)
        part.replace(path)
        click.echo(f"{path} written")
    if has_model:
        _download_model(folder / MODEL)


def _download_model(path: Path) -> None:
    """Raises ClickException: it cannot be had, or other bytes came."""
    if path.exists():
        click.echo(f"{path} is there")
        return
    url = TABLE["model"]["url"]
    part = path.with_suffix(".part")
    digest = hashlib.sha256()
    try:
        with (
            httpx2.stream("GET", url, follow_redirects=True, timeout=TIMEOUT) as response,
            part.open("wb") as file,
        ):
            for chunk in response.raise_for_status().iter_bytes():
                file.write(chunk)
                digest.update(chunk)
    except (OSError, httpx2.HTTPError) as error:
        raise click.ClickException(f"{url} cannot be had: {error}; save it as {path}") from None
    if digest.hexdigest() != TABLE["model"]["sha256"]:
        raise click.ClickException(f"{part} has other bytes than the model of the pages")
    part.replace(path)
    click.echo(f"{path} written")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    main()
