"""The table of phases over a vocabulary says what the bytes of the tokens say."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.bias.phases import Phases
from blackbox_lb.deploy.vllm.batch_rows import Placed, Seat
from blackbox_lb.deploy.vllm.phase_table import PhaseTable
from blackbox_lb.errors import BiasError
from tests.support.errors import raises_naming

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
