"""The bias file keeps every value, refuses what is not one of ours, and never lets a token's text
touch the terminal.
"""

from __future__ import annotations

import json
import math
import os
import unicodedata
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.bias import document as module
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.operating import OperatingCurve
from blackbox_lb.bias.records import Compiled, Entry, SamplingRecord, Verdict
from blackbox_lb.errors import BiasError
from blackbox_lb.records import Censoring, Finding
from tests.support.errors import raises_naming

finite = st.floats(allow_nan=False, allow_infinity=False)
names = st.text(min_size=1, max_size=20)


def make(**fields: Any) -> Bias:
    """A small valid bias, with any field replaced."""
    given: dict[str, Any] = {
        "provider": "local",
        "model": "tiny",
        "tokenizer": "probe-sha256:aa",
        "reward": "exact-match",
        "estimator": "projection",
        "settings": {"tau": 1.0, "l2": 5, "positions": "all"},
        "created": datetime(2026, 11, 21, 12, tzinfo=UTC),
        "blackbox_lb": "0.1.0",
        "entries": (
            Entry(id=7, bytes="20c3a9", text=" é", bias=1.25, seen=3),
            Entry(id=2, bytes="0a", text="\n", bias=-0.5, seen=40),
        ),
    }
    return Bias(**{**given, **fields})


def row(**fields: Any) -> Verdict:
    """One valid verdict row, with any field replaced."""
    given: dict[str, Any] = {
        "setting": "temperature 1",
        "metric": "accuracy",
        "base": 0.33,
        "biased": 0.41,
        "difference": 0.08,
        "low": 0.01,
        "high": 0.15,
        "p": 0.03,
        "n_prompts": 29,
        "n_base": 232,
        "n_biased": 232,
        "better": "higher",
        "verdict": "HELPS",
        "cut_base": 0.25,
    }
    return Verdict(**{**given, **fields})


biases = st.builds(
    Bias,
    provider=names,
    model=names,
    tokenizer=names,
    task=st.none() | st.text(max_size=20),
    reward=names,
    estimator=names,
    settings=st.dictionaries(
        st.text(max_size=8),
        st.none() | st.booleans() | st.integers() | finite | st.text(max_size=8),
        max_size=5,
    ),
    rollouts=st.integers(0, 2**53),
    vocab_size=st.none() | st.just(2**31),
    data_hash=st.none() | names,
    sampling=st.none()
    | st.just(SamplingRecord(max_tokens=3, top_logprobs=5, endpoint="responses")),
    censoring=st.none()
    | st.just(Censoring(positions=2**53, outside=2, bounded=1, mass=0.1, unobserved="drop")),
    compiled=st.none() | st.just(Compiled(entries_limit=3, integers=True, kept_share=0.5)),
    verdict=st.lists(st.just(row()), max_size=2),
    phrases=st.sampled_from([(), ("a lone lamp", "lan*\t2", "re:not .{1,9}but")]),
    created=st.datetimes(datetime(1970, 1, 2), timezones=st.just(timezone(timedelta(hours=2)))),
    entries=st.lists(
        st.builds(
            Entry,
            id=st.integers(0, 2**31 - 1),
            bytes=st.none() | st.binary(max_size=6).map(bytes.hex),
            text=st.none() | st.text(max_size=12),
            bias=finite,
            seen=st.integers(0, 2**53),
        ),
        max_size=12,
        unique_by=lambda entry: entry.id,
    ),
)


def written(path: Path, **changes: Any) -> Path:
    """A valid bias file whose top-level fields were changed by hand."""
    make().save(path)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, **changes}))
    return path


@given(bias=biases)
def test_round_trip(tmp_path_factory: pytest.TempPathFactory, bias: Bias) -> None:
    """What is saved is what is loaded, and saving it again gives the same bytes: UTF-8 with no
    control, bidirectional or surrogate character but its own line ends, one entry a line.
    """
    path = tmp_path_factory.mktemp("bias") / "bias.json"
    bias.save(path)
    assert ("phrases" in json.loads(path.read_text(encoding="utf-8"))) == bool(bias.phrases)
    first = path.read_bytes()
    again = Bias.load(path)
    assert again == bias
    assert [math.copysign(1, e.bias) for e in again.entries] == [
        math.copysign(1, e.bias) for e in bias.entries
    ]
    again.save(path)
    assert path.read_bytes() == first
    text = first.decode()
    assert text.endswith("}\n")
    assert not {
        c for c in text if (c != "\n" and unicodedata.category(c)[0] == "C") or c in "\u2028\u2029"
    }
    lines = [line for line in text.splitlines() if line.lstrip().startswith('{"id"')]
    assert [json.loads(line.rstrip(","))["id"] for line in lines] == [
        entry.id for entry in bias.entries
    ]


def test_the_file_as_a_person_sees_it(tmp_path: Path) -> None:
    """The format is recorded: any change of layout or key order shows here and asks for a new
    version.
    """
    path = tmp_path / "bias.json"
    make(verdict=(row(),)).save(path)
    assert (
        path.read_text(encoding="utf-8")
        == """{
  "format": "blackbox-lb/bias",
  "version": 4,
  "provider": "local",
  "model": "tiny",
  "tokenizer": "probe-sha256:aa",
  "vocab_size": null,
  "task": null,
  "reward": "exact-match",
  "estimator": "projection",
  "settings": {
    "l2": 5,
    "positions": "all",
    "tau": 1.0
  },
  "data_hash": null,
  "rollouts": 0,
  "tokens": 0,
  "sampling": null,
  "created": "2026-11-21T12:00:00Z",
  "blackbox_lb": "0.1.0",
  "censoring": null,
  "compiled": null,
  "learned": null,
  "findings": [],
  "verdict": [
    {"setting": "temperature 1", "metric": "accuracy", "base": 0.33, "biased": 0.41, "difference": 0.08, "low": 0.01, \
"high": 0.15, "p": 0.03, "n_prompts": 29, "n_base": 232, "n_biased": 232, "better": "higher", "verdict": "HELPS", "cut_base": 0.25, "cut_biased": 0.0, "commonest": null}
  ],
  "entries": [
    {"id": 2, "bytes": "0a", "text": "\\n", "bias": -0.5, "error": null, "seen": 40},
    {"id": 7, "bytes": "20c3a9", "text": " é", "bias": 1.25, "error": null, "seen": 3}
  ]
}
"""
    )


def test_a_new_verdict_takes_the_place_of_what_the_old_test_found() -> None:
    """After blb eval --save no finding speaks of the test before; the others stay."""
    old, kept = (
        Finding(code="test", word="PASS", sentence="it helped"),
        Finding(code="reward", word="PASS", sentence="varies"),
    )
    assert make(findings=(old, kept)).verified([row()]).findings == (kept,)


CENSORED = {"positions": 10, "outside": 1, "bounded": 1, "mass": 0.1, "unobserved": None}
NAN_ENTRY = {"id": 3, "bytes": None, "text": None, "bias": math.nan, "seen": 0}


@pytest.mark.parametrize(
    ("changes", "facts"),
    [
        ({"format": "other"}, ('"format"', '"blackbox-lb/bias"')),
        ({"version": 5}, ('"version"', "5", "reads 4")),
        ({"version": 3, "phases": []}, ('"version"', "3", "reads 4", "fit again")),
        ({"version": True}, ('"version"', "True")),
        ({"version": "1"}, ('"version"', '"1"')),
        (
            {"entries": [NAN_ENTRY]},
            ("entries[0].bias", "nan", "finite"),
        ),
        ({"entries": [NAN_ENTRY | {"bias": -math.inf}]}, ("entries[0].bias", "-inf")),
        ({"entries": [NAN_ENTRY | {"bias": "2.9"}]}, ("entries[0].bias", '"2.9"')),
        ({"entries": [NAN_ENTRY | {"bias": 1, "id": -1}]}, ("entries[0].id", "-1")),
        (
            {"entries": [NAN_ENTRY | {"bias": 1, "bytes": "0g"}]},
            ("entries[0].bytes", '"0g"'),
        ),
        ({"entries": [NAN_ENTRY | {"bias": 1}] * 2}, ("token id 3", "twice")),
        ({"vocab_size": 7}, ("token id 7", "7 tokens")),
        ({"settings": {"tau": [1]}}, ("settings.tau",)),
        ({"verdict": [row().model_dump() | {"low": 1.0}]}, ("1.0", "0.15")),
        ({"verdict": [row().model_dump() | {"difference": 0.3}]}, ("0.3", "0.33", "0.41")),
        ({"verdict": [row().model_dump() | {"p": 1.0}]}, ("HELPS", "p = 1", "0.05")),
        ({"verdict": [row().model_dump() | {"better": "lower"}]}, ("HELPS", "0.08", "lower")),
        ({"verdict": [row().model_dump()] * 1001}, ("verdict", "1000")),
        ({"verdict": [row().model_dump() | {"setting": "hot"}]}, ("verdict[0].setting", '"hot"')),
        ({"colour": "red\x1b[31m"}, ("colour",)),
        ({"self": 1}, ("self",)),
        ({"model": 3}, ("model", "3")),
        ({"created": "yesterday"}, ("created", '"yesterday"')),
        ({"created": "9999-12-31T23:59:59-23:59"}, ("created",)),  # in UTC beyond the calendar
        ({"created": "0001-01-01T00:00:00+23:59"}, ("created",)),
        ({"created": "2026-11-23"}, ("created",)),
        ({"created": 1e300}, ("created",)),
        ({"censoring": CENSORED | {"outside": 11}}, ("censoring",)),
        ({"censoring": CENSORED | {"bounded": 11}}, ("censoring",)),
        ({"censoring": CENSORED | {"mass": 1.5}}, ("censoring",)),
        ({"censoring": CENSORED | {"unobserved": "guess"}}, ("censoring",)),
        ({"phrases": ["lamp", "re:lan("]}, ("entry 2",)),
        ({"phrases": ["re:a*"]}, ("empty text",)),
        ({"phrases": ["lamp", "  "]}, ("entry 2",)),
        ({"phrases": ["lamp", 3]}, ("phrases[1]",)),
        ({"phrases": ["lamp"] * 20_001}, ("20000",)),
        ({"phrases": ["lamp" * 5_000]}, ("10000",)),
        ({"phrases": "lamp"}, ("phrases",)),
    ],
)
def test_bad_field_is_one_sentence(
    tmp_path: Path, changes: dict[str, Any], facts: tuple[str, ...]
) -> None:
    """A wrong field is named with its value and the file, in one line."""
    path = written(tmp_path / "bias.json", **changes)
    with raises_naming(BiasError, *facts) as caught:
        Bias.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_too_many_entries() -> None:
    """They are refused for their number."""
    entry = Entry(id=1, bias=0.0)
    with raises_naming(BiasError, "1000000"):
        make(entries=(entry,) * (module.MAX_ENTRIES + 1))


def test_too_large_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file above the limit is neither read nor written; one at the limit is."""
    path = tmp_path / "bias.json"
    make().save(path)
    monkeypatch.setattr(module, "MAX_BYTES", path.stat().st_size)
    make().save(path)
    assert Bias.load(path) == make()
    monkeypatch.setattr(module, "MAX_BYTES", path.stat().st_size - 1)
    with raises_naming(BiasError, path, path.stat().st_size - 1):
        Bias.load(path)
    with raises_naming(BiasError, path, path.stat().st_size - 1, path.stat().st_size):
        make().save(path)


def test_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the disk fills up the bias that was there is still there, and no temporary file
    stays.
    """
    path = tmp_path / "bias.json"
    make().save(path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with raises_naming(BiasError, "No space left on device"):
        make(model="other").save(path)
    assert Bias.load(path) == make()
    assert [file.name for file in tmp_path.iterdir()] == ["bias.json"]


def test_a_byte_order_mark_and_a_missing_record_are_tolerated(tmp_path: Path) -> None:
    """Neither an editor that adds a byte order mark nor an age without a record of censoring breaks
    the file.
    """
    path = tmp_path / "bias.json"
    make().save(path)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert Bias.load(path) == make()
    document = json.loads(path.read_text(encoding="utf-8-sig"))
    del document["censoring"]
    path.write_text(json.dumps(document))
    assert Bias.load(path) == make()


@pytest.mark.parametrize(
    ("goal", "measure"),
    [
        ("recall@precision=0.95", "precision"),
        ("precision@recall=0.8", "recall"),
        ("rate=0.2", "rate"),
        *((goal, None) for goal in ("accuracy", "x=y", "rate=5", "precision=0.9", "rate=nan")),
    ],
)
def test_a_goal_makes_a_promise_or_none(goal: str, measure: str | None) -> None:
    """Whatever a stranger's file has for one."""
    fields: dict[str, Any] = {"goal": goal}
    promise = OperatingCurve.model_construct(**fields).promise
    assert (promise and promise.measure) == measure
