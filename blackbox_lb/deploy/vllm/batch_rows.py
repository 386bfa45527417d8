"""The vector of each row of a running batch, in plain integers: the state of a logits processor, without its tensors."""

from collections.abc import Iterable, Set
from itertools import count

NOTHING = 0
"""The slot whose vector is zero: no bias."""
REFUSED = 1
"""The slot whose vector leaves only the end token: a request for an unavailable bias ends at once, never runs unbiased."""


class Rows:
    """The slots of the biased rows of a batch; ``slot_of`` has no entry for an unbiased row."""

    def __init__(self) -> None:
        self.slot_of: dict[int, int] = {}

    def update(self, removed: Iterable[int], added: Iterable[tuple[int, int]], moved: Iterable[tuple[int, int, bool]]) -> bool:
        """Follow one change of the batch, in the order that vLLM prescribes; return whether any biased row changed.

        removed: rows. added: (row, slot), replacing the row's slot. moved: (from, to, whether they swap).
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
        """The slot of the newest version, None for an unknown name."""
        return self._slots.get(name)

    def place(self, name: str, capacity: int, in_use: Set[int], gone: Iterable[str] = ()) -> int:
        """Return a slot for a new version, free of rows (``in_use``) and names.

        Before the table would outgrow its ``capacity``, a name whose file is ``gone`` loses its slot if no row uses it.
        """
        self._slots.pop(name, None)
        taken = {*self._slots.values(), *in_use}
        slot = next(each for each in count(REFUSED + 1) if each not in taken)
        if slot >= capacity:
            idle = (other for other in gone if self._slots.get(other, REFUSED) not in {REFUSED, *in_use})
            slot = self._slots.pop(next(idle, name), slot)
        self._slots[name] = slot
        return slot
