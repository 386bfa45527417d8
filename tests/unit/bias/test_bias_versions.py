"""Bias files of versions 1 to 3 give each request what they always gave it.

``bias_files`` was written by the release that had these versions: files, and in
``expected.json`` what it sent for some requests at some places of an answer.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.features import Embedding, PromptText
from blackbox_lb.bias.request_bias import DIGITS, RequestBias, to_request_bias
from blackbox_lb.errors import BiasError
from tests.support.errors import raises_naming

FILES = Path(__file__).parent / "bias_files"
EXPECTED: dict[str, list[dict[str, Any]]] = json.loads((FILES / "expected.json").read_text())


def encoder(name: str) -> Any:
    """The embedding model with which the files were written."""
    del name
    return lambda texts: [[3.0, 4.0] if "refund" in text else [0.0, 2.0] for text in texts]


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_an_old_file_gives_each_request_the_same(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also once it is written as version 4. What changes within an answer is now rounded to the
    decimals that a bias of the prompt always had.
    """
    monkeypatch.setattr("blackbox_lb.vocabulary.embedding.load_encoder", encoder)
    bias = Bias.load(FILES / name)
    bias.save(tmp_path / "again.json")
    assert json.loads((tmp_path / "again.json").read_text())["version"] == 4
    assert Bias.load(tmp_path / "again.json") == bias
    sent = to_request_bias(bias)
    for row in EXPECTED[name]:
        values = sent
        if isinstance(sent, RequestBias):
            *_, phase = sent.phases.along(part.encode() for part in row["answer"])
            values = sent.of_text(PromptText.of_request(row["request"]), phase)
        assert isinstance(values, dict)
        wanted = {int(token): value for token, value in row["logit_bias"].items()}
        if bias.scopes == {"prefix"}:
            wanted = {token: round(value, DIGITS) for token, value in wanted.items()}
        assert values == wanted


def test_what_the_old_files_say_beside_is_kept() -> None:
    """Errors, readable words, the model that embeds, and the number of positions."""
    plain = Bias.load(FILES / "version-1.json")
    assert (plain.status, plain.entries[0].error) == ("HELPS: accuracy (greedy)", 0.1)
    (words,) = Bias.load(FILES / "version-2-words.json").features
    assert words.vectors[0].name == "refund | a refund"
    assert words.vectors[0].errors == (0.1, 0.2, 0.3)
    (embedding,) = Bias.load(FILES / "version-2-embedding.json").features
    assert isinstance(embedding, Embedding)
    assert (embedding.model, embedding.probe) == ("some/model", (0.0, 1.0))
    first, after = Bias.load(FILES / "version-3-first-after.json").features
    assert (first.spec, after.spec, after.model_dump()["positions"]) == ("first", "after:b", 33)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("version-1", {"version": 2}),
        ("version-1", {"version": 3}),
        ("version-1", {"features": []}),
        ("version-2-words", {"version": 1}),
        ("version-2-words", {"depends": {"on": "words"}}),
        ("version-2-words", {"depends": [1]}),
        ("version-2-words", {"settings": 1}),
        ("version-3-first", {"version": 2}),
        ("version-3-first", {"phases": [{"phase": "first", "values": [1.0]}]}),
        ("version-3-first", {"phases": [{"phase": "first", "values": "x"}]}),
        ("version-3-first", {"phases": {"phase": "first"}}),
        ("version-3-first", {"phases": [3]}),
        ("version-3-first", {"entries": [3, None, {}]}),
        ("version-3-first", {"entries": 3}),
    ],
)
def test_a_damaged_old_file_is_refused(name: str, change: dict[str, Any], tmp_path: Path) -> None:
    """With parts of another version, and with parts of another form."""
    document = json.loads((FILES / f"{name}.json").read_text()) | change
    (tmp_path / "bias.json").write_text(json.dumps(document))
    with pytest.raises(BiasError):
        Bias.load(tmp_path / "bias.json")


def test_features_of_an_old_file_that_were_changed_are_refused(tmp_path: Path) -> None:
    """As by the release that wrote it."""
    document = json.loads((FILES / "version-2-words.json").read_text())
    document["depends"]["features"][0]["values"][0] = 9.0
    (tmp_path / "bias.json").write_text(json.dumps(document))
    with raises_naming(BiasError, "fingerprint"):
        Bias.load(tmp_path / "bias.json")
