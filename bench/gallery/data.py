"""``python -m bench.gallery.data [FOLDER]``: the public rows that the pages were made with, for
``bench.gallery`` and for ``--data FOLDER`` of ``bench.gpu``; and the model of half of the pages.

They come from repositories at fixed commits. ``rows.json`` holds the numbers of the rows that were
drawn once, so that each file has the same bytes everywhere.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import httpx2

from bench.measuring import jsonl
from blackbox_lb.safety.files import write_whole

__all__ = ["FILES", "FOLDER", "MODEL", "DataFile", "Source", "main"]

Row = dict[str, Any]
Read = Callable[["Source"], str]
"""The text of a file of a repository."""
DRAWN = Path(__file__).with_name("rows.json")
"""Task -> split -> the numbers or ids of its rows, in their order."""
TIMEOUT = 60.0
"""Seconds without a byte of a download."""
FOLDER = Path("runs/gallery/data")
"""Where the files are written to, and where the gallery looks for them."""
MODEL = "qwen2.5-coder-0.5b.gguf"
MODEL_URL = (
    "https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/resolve/main/"
    "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
)
MODEL_SHA256 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"


@dataclass(frozen=True, slots=True)
class Source:
    """A file of a public repository at one commit."""

    repository: str
    commit: str
    path: str

    @property
    def url(self) -> str:
        """Where GitHub serves it."""
        return f"https://raw.githubusercontent.com/{self.repository}/{self.commit}/{self.path}"

    def below(self, checkouts: Path) -> Path:
        """Where it is in a folder of checkouts, as OWNER/NAME."""
        return checkouts / self.repository / self.path


def _few_shot(path: str) -> Source:
    commit = "e04d8643be91c2cce63f33e07760ff75d5aa3ad0"
    return Source("tonyzhaozh/few-shot-learning", commit, f"data/{path}")


def _functions(name: str) -> Source:
    folder = "berkeley-function-call-leaderboard/bfcl_eval/data"
    commit = "6ea57973c7a6097fd7c5915698c54c17c5b1b6c8"
    return Source("ShishirPatil/gorilla", commit, f"{folder}/BFCL_v4_{name}.json")


def _school(split: str) -> Source:
    commit = "3101c7d5072418e28b9008a6636bde82a006892c"
    return Source("openai/grade-school-math", commit, f"grade_school_math/data/{split}.jsonl")


MATH = Source(
    "GAIR-NLP/LIMO", "2284c6a0e6653aa8894bd12fdecc1212ba706c3a", "eval/data/math/test.jsonl"
)


# --- Rows of each source, in its order


def _reviews(text: str) -> list[Row]:
    """SST-2: the label, a space, the sentence."""
    question = "Is the sentiment of this movie review positive or negative? Answer with one word."
    names = {"0": "negative", "1": "positive"}
    return [
        {"prompt": f"{question}\n\nReview: {line[2:].strip()}", "answer": names[line[0]]}
        for line in _lines(text)
    ]


def _questions(text: str) -> list[Row]:
    """TREC: the coarse and the fine label, a space, the question."""
    names = {
        "ABBR": "abbreviation",
        "ENTY": "entity",
        "DESC": "description",
        "HUM": "person",
        "LOC": "location",
        "NUM": "number",
    }
    question = (
        "What type of thing does this question ask for: abbreviation, entity, description, person,"
        " location or number? Answer with one word."
    )
    rows = []
    for line in _lines(text):
        label, _, asked = line.partition(" ")
        answer = names[label.partition(":")[0]]
        rows.append({"prompt": f"{question}\n\nQuestion: {asked.strip()}", "answer": answer})
    return rows


def _pairs(text: str) -> list[Row]:
    """RTE: a premise and a hypothesis, which follows or not."""
    question = "Does it follow that the next sentence is true? Answer yes or no."
    names = {"entailment": "yes", "not_entailment": "no"}
    rows = []
    for line in _lines(text):
        pair = json.loads(line)
        prompt = f"{pair['premise'].strip()}\n\n{question}\n\n{pair['hypothesis'].strip()}"
        rows.append({"prompt": prompt, "answer": names[pair["label"]]})
    return rows


def _news(text: str) -> list[Row]:
    """AG News: title and description, in which a backslash stands for a space."""
    names = {"1": "world", "2": "sports", "3": "business", "4": "technology"}
    question = (
        "Which section of a newspaper does this article belong to: world, sports, business or"
        " technology? Answer with one word."
    )
    rows = []
    for line in csv.DictReader(io.StringIO(text)):
        article = f"{line['Title'].strip()}. {line['Description'].strip()}".replace("\\", " ")
        answer = names[line["Class Index"]]
        rows.append({"prompt": f"{question}\n\nArticle: {article}", "answer": answer})
    return rows


TYPES = {"dict": "object", "float": "number", "tuple": "array"}
"""Types of the leaderboard's functions -> those of JSON Schema."""


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


# --- The files


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of the folder.

    sha256: of its bytes.
    text: of the file, from a reader of sources and, by split, the rows that were drawn for it.
    """

    sha256: str
    text: Callable[[Read, Mapping[str, list[Any]]], str]


def _copied(read: Read, _drawn: Mapping[str, list[Any]], *, source: Source) -> str:
    return read(source)


def _drawn_lines(
    read: Read,
    drawn: Mapping[str, list[Any]],
    *,
    rows_of: Callable[[str], list[Row]],
    training: Source,
    test: Source,
) -> str:
    """Rows of train and validation from one source, and of test from another."""
    kept = []
    for split, numbers in drawn.items():
        rows = rows_of(read(test if split == "test" else training))
        kept += [rows[number] | {"split": split} for number in numbers]
    return jsonl(kept)


def _drawn_calls(read: Read, drawn: Mapping[str, list[Any]]) -> str:
    by_id = _calls(read(_functions("simple_python")), "call")
    by_id |= _calls(read(_functions("irrelevance")), "answer")
    return jsonl(by_id[name] | {"split": split} for split in drawn for name in drawn[split])


def _task(sha256: str, rows_of: Callable[[str], list[Row]], training: str, test: str) -> DataFile:
    """A file of a task of the repository on few-shot learning, from two files of its data."""
    return DataFile(
        sha256,
        partial(_drawn_lines, rows_of=rows_of, training=_few_shot(training), test=_few_shot(test)),
    )


FILES: Mapping[str, DataFile] = {
    "sst2.jsonl": _task(
        "08815c84c7be67ee0db736df3d291611652d502fa09d5fb76fd51003127e4bf8",
        _reviews,
        "sst2/stsa.binary.train",
        "sst2/stsa.binary.test",
    ),
    "trec.jsonl": _task(
        "e47800beb7fa849ce666cf9c7850748fc67d5d32eb1c454ebef293b743a03e5a",
        _questions,
        "trec/train.txt",
        "trec/test.txt",
    ),
    "rte.jsonl": _task(
        "ece3f2b18f320ee421efba9fdba0258ce581f94b2fadf1462160e47c09f47c92",
        _pairs,
        "rte/train.jsonl",
        "rte/val.jsonl",
    ),
    "agnews.jsonl": _task(
        "05a02fb071bf7706ccee4457012abed50c7db47e371441fbcfae5ee903cf06c0",
        _news,
        "agnews/test.csv",
        "agnews/test.csv",
    ),
    "calls.jsonl": DataFile(
        "69769679f96ee98cfbcef3661c5e5720db7b218af72227e26e8582965e332f82", _drawn_calls
    ),
    "gsm8k/train.jsonl": DataFile(
        "17f347dc51477c50d4efb83959dbb7c56297aba886e5544ee2aaed3024813465",
        partial(_copied, source=_school("train")),
    ),
    "gsm8k/test.jsonl": DataFile(
        "3730d312f6e3440559ace48831e51066acaca737f6eabec99bccb9e4b3c39d14",
        partial(_copied, source=_school("test")),
    ),
    "math500/test.jsonl": DataFile(
        "a239272930e5202bf1d5275f7fa475a56687c775a61f1354a6d3371bf9dd7a94",
        partial(_copied, source=MATH),
    ),
}


def _text_of(source: Source, checkouts: Path | None, texts: dict[Source, str]) -> str:
    """The text of a source, which is fetched once and stays in ``texts``.

    Raises ClickException: it cannot be had.
    """
    if source not in texts:
        try:
            if checkouts is not None:
                content = source.below(checkouts).read_bytes()
            else:
                response = httpx2.get(source.url, timeout=TIMEOUT)
                content = response.raise_for_status().content
        except (OSError, httpx2.HTTPError) as error:
            raise click.ClickException(
                f"{source.repository}, {source.path} cannot be had: {error}; clone the repository"
                f" at {source.commit[:12]} as DIR/{source.repository}, and give --checkouts DIR"
            ) from None
        # TREC's questions are Latin-1; all other sources are UTF-8.
        texts[source] = content.decode("latin-1" if "/trec/" in source.path else "utf-8")
    return texts[source]


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
    read = partial(_text_of, checkouts=checkouts, texts={})
    for name, file in FILES.items():
        path = folder / name
        if path.exists() and _sha256(path.read_bytes()) == file.sha256:
            click.echo(f"{path} is there")
            continue
        content = file.text(read, drawn.get(path.stem, {})).encode()
        if _sha256(content) != file.sha256:
            raise click.ClickException(
                f"{name} would have other bytes than the rows of the pages; look whether its"
                " repository stands at the commit that bench/gallery/data.py names"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
        click.echo(f"{path} written")
    if has_model:
        _download_model(folder / MODEL)


def _download_model(path: Path) -> None:
    """Raises ClickException: it cannot be had, or other bytes came."""
    if path.exists():
        click.echo(f"{path} is there")
        return
    part = path.with_suffix(".part")
    digest = hashlib.sha256()
    try:
        with (
            httpx2.stream("GET", MODEL_URL, follow_redirects=True, timeout=TIMEOUT) as response,
            part.open("wb") as file,
        ):
            for chunk in response.raise_for_status().iter_bytes():
                file.write(chunk)
                digest.update(chunk)
    except (OSError, httpx2.HTTPError) as error:
        raise click.ClickException(
            f"{MODEL_URL} cannot be had: {error}; save it as {path}"
        ) from None
    if digest.hexdigest() != MODEL_SHA256:
        raise click.ClickException(f"{part} has other bytes than the model of the pages")
    part.replace(path)
    click.echo(f"{path} written")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


if __name__ == "__main__":
    main()
