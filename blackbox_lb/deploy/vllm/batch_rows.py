"""The vector of each row of a running batch, in plain integers: the state of a logits processor,
without its tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import chain, count, islice

from blackbox_lb.deploy.vllm.phase_table import PhaseTable

NOTHING = 0
"""The slot whose vector is zero: no bias."""
REFUSED = 1
"""The slot whose vector leaves only the end token: a request for an unavailable bias ends at once,
never runs unbiased.
"""


@dataclass(frozen=True)
class Placed:
    """slots: those of a bias, one for each of its phases. table: of the phases, None for a bias
    without.
    """

    slots: tuple[int, ...]
    table: PhaseTable | None = None


@dataclass(eq=False)
class Seat:
    """The vector of a request, which changes where its bias has phases.

    drawn: the tokens of the request so far, which grow in place; -1 holds the place of one that is
    not known yet, and counts.
    """

    placed: Placed
    drawn: Sequence[int] = ()
    _state: int = 0
    _read: int = 0

    @property
    def slot(self) -> int:
        """That of the next token."""
        table = self.placed.table
        if table is None:
            return self.placed.slots[0]
        while self._read < len(self.drawn) and self.drawn[self._read] >= 0:
            self._state = int(table.steps[self._state, self.drawn[self._read]])
            self._read += 1
        return self.placed.slots[table.phases.of_state(self._state, len(self.drawn))]


class Rows:
    """The seats of the biased rows of a batch; ``seat_of`` has no entry for an unbiased row."""

    def __init__(self) -> None:
        self.seat_of: dict[int, Seat] = {}

    @property
    def in_use(self) -> set[int]:
        """All slots that a row has or may have later."""
        return {slot for seat in self.seat_of.values() for slot in seat.placed.slots}

    def update(
        self,
        removed: Iterable[int],
        added: Iterable[tuple[int, Seat | None]],
        moved: Iterable[tuple[int, int, bool]],
    ) -> bool:
        """Follow one change of the batch, in the order that vLLM prescribes; return whether any
        biased row changed.

        removed: rows. added: (row, seat), replacing the row's seat, None for no bias. moved: (from,
        to, whether they swap).
        """
        before = dict(self.seat_of)
        for row in removed:
            self.seat_of.pop(row, None)
        for row, seat in added:
            self._put(row, seat)
        for source, target, swap in moved:
            if source == target:
                continue
            leaving = self.seat_of.pop(source, None)
            displaced = self.seat_of.pop(target, None)
            self._put(target, leaving)
            self._put(source, displaced if swap else None)
        return self.seat_of != before

    def _put(self, row: int, seat: Seat | None) -> None:
        if seat is None:
            self.seat_of.pop(row, None)
        else:
            self.seat_of[row] = seat


class Shelf:
    """Names of biases -> slots of a table, one for each phase. A new version gets new slots, so
    that rows keep the vectors they started with.
    """

    def __init__(self) -> None:
        self._slots: dict[str, tuple[int, ...]] = {}

    def find(self, name: str) -> tuple[int, ...] | None:
        """The slots of the newest version, None for an unknown name."""
        return self._slots.get(name)

    def free(self, number: int, in_use: Set[int]) -> tuple[int, ...]:
        """The first slots that neither a name nor a row has."""
        occupied = {*in_use, *chain.from_iterable(self._slots.values())}
        slots = (slot for slot in count(REFUSED + 1) if slot not in occupied)
        return tuple(islice(slots, number))

    def place(self, name: str, number: int, in_use: Set[int]) -> tuple[int, ...]:
        """Slots for a new version, free of rows (``in_use``) and names."""
        self._slots.pop(name, None)
        self._slots[name] = self.free(number, in_use)
        return self._slots[name]
