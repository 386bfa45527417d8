"""A directory of bias files as a server reads it, and the rows of a running batch: which file,
which version, which vector, and which phase of it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.records import Entry
from blackbox_lb.deploy.bias_directory import Asked, BiasDirectory, Expected
from blackbox_lb.deploy.vllm.batch_rows import NOTHING, Placed, Rows, Seat, Shelf
from blackbox_lb.deploy.vllm.phase_table import PhaseTable
from blackbox_lb.errors import BiasError, InputError, TokenizerMismatch
from tests.support.biases import FIELDS, WIDE
from tests.support.errors import raises_naming

MODEL = Expected("probe-sha256:here", tokens=100, logits=128)


def make(value: float = 1.0, token: int = 7, **fields: Any) -> Bias:
    """A bias of one entry."""
    fitting = {"tokenizer": MODEL.fingerprint, "vocab_size": 100}
    return Bias(**FIELDS | {"entries": (Entry(id=token, bias=value),)} | fitting | fields)


class Clock:
    """Seconds that pass when told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def opened(folder: Path, clock: Clock) -> BiasDirectory[float]:
    """The directory with each bias read as the value of its first entry."""

    def first(bias: Bias) -> float:
        MODEL.check(bias)
        return bias.entries[0].bias

    return BiasDirectory(folder, first, now=clock)


def test_a_name_is_the_stem_of_a_json_file(tmp_path: Path) -> None:
    """Neither a hidden file, another extension, a folder nor the word for no bias is a bias."""
    for name in (
        "short.json",
        "a.b.json",
        ".short.json",
        "none.json",
        "notes.txt",
        ".json",
        "json",
    ):
        make().save(tmp_path / name)
    Path(tmp_path, "folder.json").mkdir()
    assert opened(tmp_path, Clock()).names() == ["a.b", "short"]


@pytest.mark.parametrize(
    "name", ["../secret", "/etc/passwd", "short.json", "sub/short", "", "\x1b[2J"]
)
def test_a_client_cannot_name_a_path(tmp_path: Path, name: str) -> None:
    """Only names that the folder lists are read, whatever a request says."""
    folder = tmp_path / "biases"
    folder.mkdir()
    make().save(tmp_path / "secret.json")
    make().save(folder / "short.json")
    with raises_naming(BiasError, "short") as caught:
        opened(folder, Clock()).get(name)
    message = str(caught.value)
    assert message.endswith(" short")
    assert "\x1b" not in message


def test_a_new_changed_or_deleted_file_is_seen_after_a_second(tmp_path: Path) -> None:
    """Within a second the old version is served, after it the new one, and the same object as long
    as nothing changes.
    """
    clock = Clock()
    path = tmp_path / "short.json"
    directory = opened(tmp_path, clock)
    with raises_naming(BiasError, "'short'"):
        directory.get("short")
    make(1.0).save(path)
    clock.now = 1.0
    assert directory.get("short") == 1.0
    make(2.0).save(path)
    clock.now = 1.9
    assert directory.get("short") == 1.0
    clock.now = 2.0
    assert directory.get("short") == 2.0
    clock.now = 9.0
    assert directory.get("short") is directory.get("short")
    path.unlink()
    clock.now = 10.0
    with raises_naming(BiasError, "'short'"):
        directory.get("short")


@pytest.mark.parametrize(
    "content", [b"", b'{"format": "blackbox-lb/bi', b"[]"], ids=["empty", "half", "foreign"]
)
def test_a_file_in_the_making_leaves_the_old_version(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A broken file is logged once and changes nothing until it is whole."""
    clock = Clock()
    path = tmp_path / "short.json"
    make(1.0).save(path)
    directory = opened(tmp_path, clock)
    directory.get("short")
    path.write_bytes(content)
    for clock.now in (1.0, 2.0, 3.0):
        assert directory.get("short") == 1.0
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    make(3.0).save(path)
    clock.now = 4.0
    assert directory.get("short") == 3.0


def test_a_folder_that_vanishes_leaves_what_was_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A volume that is being remounted does not take the biases away, and is logged once."""
    clock = Clock()
    folder = tmp_path / "biases"
    folder.mkdir()
    make(1.0).save(folder / "short.json")
    directory = opened(folder, clock)
    assert directory.get("short") == 1.0
    folder.rename(tmp_path / "away")
    for clock.now in (1.0, 2.0):
        assert directory.get("short") == 1.0
    assert len(caplog.records) == 1


def test_a_missing_folder_is_an_error_at_start(tmp_path: Path) -> None:
    """The server does not start without the folder that it was told to serve."""
    with raises_naming(BiasError, "BLB_BIAS_DIR"):
        opened(tmp_path / "absent", Clock())


FIRST = Phases.parse(["first"]).features[0]


@pytest.mark.parametrize(
    ("bias", "error"),
    [
        (make(tokenizer="probe-sha256:other"), TokenizerMismatch),
        (make(vocab_size=99), BiasError),
        (make(vocab_size=129), BiasError),
        (make(vocab_size=None, token=128), BiasError),
        (make(3.5e38), BiasError),
        (make(-1e300), BiasError),
        (make().replacing(features=(FIRST.one_vector([1e300]),), sent=WIDE), BiasError),
    ],
    ids=["tokenizer", "too small", "too large", "id", "float32", "below", "in one phase"],
)
def test_what_does_not_fit_the_model_is_refused(bias: Bias, error: type[BiasError]) -> None:
    """Another tokenizer, a vocabulary of another size, an id that the model has no logit for, and a
    number beyond float32.
    """
    MODEL.check(make(3.4e38))
    with pytest.raises(error):
        MODEL.check(bias)


def test_a_request_names_takes_or_declines() -> None:
    """Without the argument the default counts, with it the name, and "none" is no bias. Numbers go
    with a bias that takes them, and with no other; an unknown name is told.
    """
    assert Asked.of(None, None) is None
    assert Asked.of({"other": 1}, "house") == Asked("house")
    assert Asked.of({"blb_bias": "short"}, "house") == Asked("short")
    assert Asked.of({"blb_bias": "none"}, "house") is None
    row = Asked.of({"blb_bias": "b", "blb_features": ["words:1", 1]}, None)
    assert row == Asked("b", (("words:1", 1.0),))
    row.check({"words:1", "words:2"})
    Asked("b", ()).check({"words:1"})
    Asked("b").check(None)
    for wrong, known in ((row, None), (Asked("b"), {"words:1"}), (row, {"words:2"})):
        with pytest.raises(BiasError):
            wrong.check(known)


@pytest.mark.parametrize(
    "row", [3, "words", ["words:1"], ["words:1", "x"], [1, 2.0], ["words:1", True], ["a", 1e300]]
)
def test_what_is_no_row_of_numbers_is_refused(row: object) -> None:
    """With 400, where the request is admitted."""
    with raises_naming(BiasError, "blb_features"):
        Asked.of({"blb_bias": "b", "blb_features": row}, None)


SEATS = [None if slot == NOTHING else Seat(Placed((slot,))) for slot in range(12)]
"""A seat for each slot."""


@given(
    st.lists(
        st.tuples(st.sampled_from("anrms"), st.integers(0, 7), st.integers(0, 7)),
        max_size=40,
    )
)
def test_rows_follow_the_batch(steps: list[tuple[str, int, int]]) -> None:
    """After any additions (biased and not), removals, moves and swaps, also of a row with itself,
    each row has the slot of the request that is in it.
    """
    rows = Rows()
    batch: dict[int, int] = {}
    for kind, one, other in steps:
        before = {row: slot for row, slot in batch.items() if slot != NOTHING}
        if kind in "an":
            batch[one] = other + 2 if kind == "a" else NOTHING
            changed = rows.update([], [(one, SEATS[batch[one]])], [])
        elif kind == "r":
            batch.pop(one, None)
            changed = rows.update([one], [], [])
        elif kind == "m":
            moved = batch.pop(one, NOTHING)
            batch[other] = moved
            changed = rows.update([], [], [(one, other, False)])
        else:
            batch[one], batch[other] = batch.get(other, NOTHING), batch.get(one, NOTHING)
            changed = rows.update([], [], [(one, other, True)])
        biased = {row: slot for row, slot in batch.items() if slot != NOTHING}
        assert {row: seat.slot for row, seat in rows.seat_of.items()} == biased
        assert changed == (biased != before)


@given(st.lists(st.tuples(st.sampled_from("abcde"), st.sets(st.integers(2, 9))), max_size=20))
def test_no_two_owners_share_a_slot(steps: list[tuple[str, set[int]]]) -> None:
    """Whatever is placed, names have distinct slots, and the placed ones are no row's."""
    shelf = Shelf()
    for name, in_use in steps:
        slots = shelf.place(name, 2, in_use)
        assert len(slots) == 2
        assert in_use.isdisjoint(slots)
        every = [slot for each in "abcde" for slot in shelf.find(each) or ()]
        assert len(set(every)) == len(every)
        assert shelf.find(name) == slots


@pytest.mark.parametrize(
    "error", [OverflowError("date value out of range"), InputError("no tokens"), KeyError("x")]
)
def test_whatever_a_file_brings_about_is_a_refusal(error: Exception, tmp_path: Path) -> None:
    """A server answers it with 400, and goes on; any other error would end its engine."""
    make().save(tmp_path / "bad.json")

    def failing(_: Bias) -> None:
        raise error

    directory = BiasDirectory(tmp_path, failing)
    for _ in range(2):
        with pytest.raises(BiasError) as caught:
            directory.get("bad")
        assert "bias bad" in str(caught.value)
        assert str(tmp_path) not in str(caught.value)


RAWS = (b"a", b"b", b"ab", b"", b"<a", b">", b"xyz", b"bb<")
SPECS = (
    "first",
    "opening:3",
    "only-opening:2",
    "until:ab",
    "after:b<a",
    "inside:<..>",
    "first,inside:ab..ba",
    "first,after:ab",
    "opening:3,until:ab",
)


@given(st.sampled_from(SPECS), st.lists(st.integers(0, len(RAWS) - 1), max_size=15), st.booleans())
def test_a_seat_follows_the_tokens(spec: str, tokens: list[int], late: bool) -> None:
    """Also where a token stands as -1 until the next one is drawn; for a phase of the first tokens
    that is enough.
    """
    phases = Phases.parse([spec])
    slots = tuple(range(5, 5 + phases.count))
    drawn: list[int] = []
    seat = Seat(Placed(slots, PhaseTable.of(phases, RAWS)), drawn)
    expected = [slots[number] for number in phases.along(RAWS[token] for token in tokens)]
    seen = [seat.slot]
    for token in tokens:
        drawn.append(-1)
        if late and not phases.until:
            assert seat.slot == expected[len(seen)]
        drawn[-1] = token
        seen.append(seat.slot)
    assert seen == expected


@pytest.mark.parametrize(
    ("spec", "text"), [("until:q", "q"), ("inside:ab..q", "q"), ("after:>>!", ">>!")]
)
def test_a_text_that_no_tokens_spell_is_refused(spec: str, text: str) -> None:
    """With the text and the remedy."""
    with raises_naming(BiasError, repr(text), spec):
        PhaseTable.of(Phases.parse([spec]), RAWS)
