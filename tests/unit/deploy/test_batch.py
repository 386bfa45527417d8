"""Every request of a batch file that is for the model carries the bias, every other line stays, and
no half file is left.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb import apply_batch
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.errors import BiasError, InputError
from tests.support.biases import FIELDS
from tests.support.errors import raises_naming

SENT = {"2": -100, "50256": 0.1, "199998": -3.0000000000000004}


@pytest.fixture
def bias() -> Bias:
    """Three entries for the model "tiny"."""
    entries = tuple(Entry(id=int(token), bias=value) for token, value in SENT.items())
    return Bias(**FIELDS | {"model": "tiny", "entries": entries})


def line(body: Any, url: str = "/v1/chat/completions") -> dict[str, Any]:
    """One batch request."""
    return {"custom_id": "a", "method": "POST", "url": url, "body": body}


def written(path: Path, *requests: Any, ending: bytes = b"\n") -> Path:
    """A batch file of these requests."""
    path.write_bytes(
        ending.join(json.dumps(request, ensure_ascii=False).encode() for request in requests)
        + ending
    )
    return path


def test_lines_of_the_model_are_biased(tmp_path: Path, bias: Bias) -> None:
    """Chat and legacy requests of the model get the bias and keep the rest; other models and
    endpoints keep every byte.
    """
    mine = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "héllo 🙂"}],
        "temperature": 0.7,
        "seed": 10**20,
    }
    requests = [
        line(mine),
        line({"model": "other", "messages": []}),
        line({"model": "tiny", "prompt": "a"}, "/v1/completions"),
        line({"model": "tiny", "input": "a"}, "/v1/embeddings"),
    ]
    source = written(tmp_path / "in.jsonl", *requests)
    source.write_bytes(source.read_bytes() + b"\n")
    target = tmp_path / "out.jsonl"
    counts = apply_batch(source, target, bias, others="pass")
    before, after = source.read_bytes().splitlines(), target.read_bytes().splitlines()
    assert (counts.biased, counts.passed, counts.size) == (2, 2, target.stat().st_size)
    assert [json.loads(row)["body"].get("logit_bias") for row in after[:4]] == [
        SENT,
        None,
        SENT,
        None,
    ]
    assert json.loads(after[0]) == line({**mine, "logit_bias": SENT})
    assert "héllo 🙂".encode() in after[0]
    assert (after[1], after[3], after[4]) == (before[1], before[3], b"")


@pytest.mark.parametrize("ending", [b"\n", b"\r\n"])
def test_line_endings_and_escapes_stay(tmp_path: Path, bias: Bias, ending: bytes) -> None:
    """Line ends are the file's own, and what UTF-8 cannot hold stays an escape."""
    asked = {"model": "tiny", "prompt": "\ud800"}
    raw = json.dumps(line(asked, "/v1/completions")).encode()
    source = tmp_path / "in.jsonl"
    source.write_bytes(raw + ending + raw)
    apply_batch(source, source, bias)
    rows = [json.loads(row)["body"] for row in source.read_bytes().split(ending)]
    assert rows == [{**asked, "logit_bias": SENT}] * 2


def test_rules_are_those_of_apply(tmp_path: Path, bias: Bias) -> None:
    """A bias of the line's own follows ``on_conflict``; ``models`` and ``as_pairs`` mean the
    same. A broken host is left to the provider to refuse.
    """
    asked = line({"model": "dep", "logit_bias": {"2": 1}}, "/chat/completions")
    broken = line({"model": "dep"}, "http://[x/v1/embeddings")
    source, target = written(tmp_path / "in.jsonl", asked, broken), tmp_path / "out.jsonl"
    rules: Any = {"models": ["dep"]}
    assert apply_batch(source, target, bias, **rules, on_conflict="theirs").passed == 2
    assert target.read_bytes() == source.read_bytes()
    added = apply_batch(source, target, bias, **rules, on_conflict="add", as_pairs=True)
    assert (added.biased, added.passed) == (1, 1)
    sent = json.loads(target.read_bytes().splitlines()[0])["body"]["logit_bias"]
    assert sent == [[2, -99], [50256, 0.1], [199998, SENT["199998"]]]


@pytest.mark.parametrize(
    ("second", "options", "facts"),
    [
        (b"{", {}, ("UTF-8", "char 2")),
        (b"\xff", {}, ("UTF-8", "0xff")),
        (b'{"body": {}}', {}, ('{"body": {}}', '"url"')),
        (b"[1]", {}, ("[1]", '"url"')),
        (json.dumps(line({"model": "tiny"}, "/v1/responses")).encode(), {}, ("Responses", "logit_bias", "'tiny'")),
        (json.dumps(line({"model": "b"})).encode(), {"others": "raise"}, ("'tiny'", "'b'", "models=[...]")),
        (json.dumps(line({"model": "tiny", "logit_bias": {"1": 1}})).encode(), {}, ("logit_bias", "on_conflict='ours'")),
        (json.dumps(line({"model": "tiny", "seed": 0})).replace("0}", "1e400}").encode(), {}, ("NaN", "1.8e308")),
    ],
)  # fmt: skip
def test_a_bad_line_leaves_no_file(
    tmp_path: Path, bias: Bias, second: bytes, options: dict[str, Any], facts: tuple[str, ...]
) -> None:
    """The error names the line; the target stays as it was and nothing else is left behind."""
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(json.dumps(line({"model": "tiny"})).encode() + b"\n" + second + b"\n")
    target.write_bytes(b"older")
    with raises_naming(InputError, "line 2", *facts):
        apply_batch(source, target, bias, **options)
    assert target.read_bytes() == b"older"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_files_that_cannot_be_used(tmp_path: Path, bias: Bias) -> None:
    """A missing source, a folder that is not there, a missing bias: each one sentence with the
    path.
    """
    source = written(tmp_path / "in.jsonl", line({"model": "tiny"}))
    with raises_naming(InputError, "absent.jsonl"):
        apply_batch(tmp_path / "absent.jsonl", tmp_path / "out.jsonl", bias)
    with raises_naming(InputError, "nowhere"):
        apply_batch(source, tmp_path / "nowhere" / "out.jsonl", bias)
    with raises_naming(BiasError, "bias.json"):
        apply_batch(source, tmp_path / "out.jsonl", tmp_path / "bias.json")
