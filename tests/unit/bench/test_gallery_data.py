"""The public rows of the gallery: read from their repositories, and the same bytes everywhere."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from bench.gallery import data as program
from bench.gallery.data import DRAWN, FOLDER, TABLE, Sources, main, text_of

SPLITS = ("train", "validation", "test")
TEXT = "1 a fine film .\n0 a dull one .\n1 moving .\n0 long\x85 and loud .\n"


def drawn_from(texts: Mapping[str, str], name: str, drawn: Mapping[str, list[object]]) -> str:
    """The rows of a file, where each source whose path ends so has this text."""

    sources = Sources()
    for file in TABLE["files"].values():
        for source in file.values():
            for end, text in texts.items():
                if isinstance(source, list) and source[1].endswith(end):
                    origin = TABLE["repositories"][source[0]]
                    path = f"{origin['repository']}/{origin['commit']}/{origin['folder']}"
                    sources.texts[f"{path}/{source[1]}"] = text
    return text_of(TABLE["files"][name], drawn, sources)


def rows_of(text: str) -> list[dict[str, Any]]:
    """The rows of a JSONL text."""
    return [json.loads(line) for line in text.removesuffix("\n").split("\n")]


def test_reviews_and_articles() -> None:
    """The label and the words of a line, asked as the pages ask; a line ends at its line end alone,
    test rows come from a file of their own, and a backslash in an article is a space.
    """
    texts = {"binary.train": TEXT, "binary.test": "1 new .\n"}
    found = rows_of(drawn_from(texts, "sst2.jsonl", {"train": [3, 1], "test": [0]}))
    assert [(row["answer"], row["split"]) for row in found] == [
        ("negative", "train"),
        ("negative", "train"),
        ("positive", "test"),
    ]
    assert found[0]["prompt"].endswith("Answer with one word.\n\nReview: long\x85 and loud .")
    table = 'Class Index,Title,Description\n4,A chip ,"fast\\and, it is said, cheap"\n'
    (article,) = rows_of(drawn_from({"test.csv": table}, "agnews.jsonl", {"train": [0]}))
    assert article["answer"] == "technology"
    assert article["prompt"].endswith("Article: A chip. fast and, it is said, cheap")


def test_no_row_was_drawn_twice() -> None:
    """Each task has all splits, and training and validation rows, which may share a source, are
    different ones.
    """
    drawn = json.loads(DRAWN.read_text())
    files = {name for name, file in TABLE["files"].items() if not {"source", "drawn"} & file.keys()}
    assert set(drawn) == {Path(name).stem for name in files}
    for name, splits in drawn.items():
        assert tuple(splits) == SPLITS, name
        learned = [*splits["train"], *splits["validation"]]
        assert len(set(learned)) == len(learned), name
        assert len(set(splits["test"])) == len(splits["test"]), name


def test_drawn_rows_of_one_source_are_different_texts() -> None:
    """Splits of one source share no row, and a text that stands twice there is drawn once."""
    lines = ["Context,Question,Correct Answer"]
    lines += [f"'',Is {number % 900} even?,Yes" for number in range(1200)]
    found = rows_of(drawn_from({"arith-ynq-big.csv": "\n".join(lines)}, "public/arith.jsonl", {}))
    prompts = [row["prompt"] for row in found]
    assert len(set(prompts)) == len(prompts) == 900
    assert [row["split"] for row in found] == ["train"] * 500 + ["test"] * 400
    assert prompts[0].endswith(" even?\n\nAnswer with Yes or No.")


@pytest.fixture
def reviews(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """One file alone, a copy of a source; its bytes."""
    content = TEXT.encode()
    digest = hashlib.sha256(content).hexdigest()
    repository = {"repository": "a/reviews", "commit": "1" * 40, "folder": "data"}
    file = {"sha256": digest, "source": ["reviews", "all.txt"]}
    table = {"repositories": {"reviews": repository}, "files": {"reviews/all.txt": file}}
    monkeypatch.setattr(program, "TABLE", table)
    return content


def run(folder: Path, *words: object) -> Result:
    """The command."""
    return CliRunner().invoke(main, [str(folder), *map(str, words)])


def test_files_come_from_checkouts_and_stay(
    reviews: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call writes nothing; other bytes are refused, and nothing is written. Without a
    folder they are where the gallery looks.
    """
    checkouts = tmp_path / "checkouts"
    source = checkouts / "a" / "reviews" / "data" / "all.txt"
    source.parent.mkdir(parents=True)
    source.write_bytes(reviews)
    first = run(tmp_path / "out", "--checkouts", checkouts)
    assert first.exit_code == 0, first.output
    written = tmp_path / "out" / "reviews" / "all.txt"
    assert written.read_bytes() == reviews
    assert "is there" in run(tmp_path / "out", "--checkouts", checkouts).output
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(main, ["--checkouts", str(checkouts)]).exit_code == 0
    assert (FOLDER / "reviews" / "all.txt").read_bytes() == reviews
    source.write_bytes(reviews + b"1 more .\n")
    other = run(tmp_path / "other", "--checkouts", checkouts)
    assert other.exit_code == 1
    assert "other bytes" in other.output
    assert not (tmp_path / "other").exists()
