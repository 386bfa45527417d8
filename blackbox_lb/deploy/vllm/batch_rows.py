"""Which vector each row of a running batch takes, in plain integers: what a logits processor keeps, without its tensors."""

from __future__ import annotations

from collections.abc import Iterable, Set
from itertools import count

NOTHING = 0
"""The slot whose vector is zero: no bias."""
REFUSED = 1
"""The slot whose vector leaves only the end token: a request whose bias cannot be had ends, it is not answered without."""


class Rows:
    """The slots of the biased rows of a batch; ``slot_of`` has no entry for a row without a bias."""

    def __init__(self) -> None:
        self.slot_of: dict[int, int] = {}

    def update(self, removed: Iterable[int], added: Iterable[tuple[int, int]], moved: Iterable[tuple[int, int, bool]]) -> bool:
        """Follow one change of the batch, in the order that vLLM prescribes; returns whether any biased row changed.

        ``removed``: rows. ``added``: (row, slot), in place of what was there. ``moved``: (from, to, whether they swap).
        """
        before = dict(self.slot_of)
        for row in removed:
            self.slot_of.pop(row, None)
        for row, slot in added:
            self._put(row, slot)
        for source, target, swap in moved:
            leaving, there = self.slot_of.pop(source, NOTHING), self.slot_of.pop(target, NOTHING)
            self._put(target, leaving)
            self._put(source, there if swap else NOTHING)
        return self.slot_of != before

    def _put(self, row: int, slot: int) -> None:
        if slot == NOTHING:
            self.slot_of.pop(row, None)
        else:
            self.slot_of[row] = slot


class Shelf:
    """Names of biases -> slots of a table. A new version gets a new slot, so that rows keep the vector they started with."""

    def __init__(self) -> None:
        self._slots: dict[str, int] = {}

    def names(self) -> list[str]:
        """The names that have a slot, sorted."""
        return sorted(self._slots)

    def find(self, name: str) -> int | None:
        """The slot of the newest version, None where there is none."""
        return self._slots.get(name)

    def place(self, name: str, capacity: int, in_use: Set[int], gone: Iterable[str] = ()) -> int:
        """A slot for a new version: one that neither a row (``in_use``) nor a name has.

        Before the table would outgrow its ``capacity``, a name whose file is ``gone`` gives up its slot if no row has it.
        """
        self._slots.pop(name, None)
        taken = {*self._slots.values(), *in_use}
        slot = next(each for each in count(REFUSED + 1) if each not in taken)
        if slot >= capacity:
            idle = (other for other in gone if self._slots.get(other, REFUSED) not in {REFUSED, *in_use})
            slot = self._slots.pop(next(idle, name), slot)
        self._slots[name] = slot
        return slot
