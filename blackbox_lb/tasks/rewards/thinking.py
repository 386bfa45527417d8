"""Thinking: a stretch of a completion that its own texts begin and end, its length in tokens, and
loops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from blackbox_lb.bias.phases import Phases
from blackbox_lb.errors import InputError
from blackbox_lb.types import Completion

LOOP = 10
TIMES = 4
"""So many tokens in a row, so many times in one completion, are a loop."""


@dataclass(slots=True, eq=False)
class Thinking:
    """The stretch that ``spec`` names, as ``phases`` does: ``inside:OPEN..CLOSE`` or
    ``until:TEXT``.

    count: what rewards by length count: "all" tokens, those of the "thinking" or the "answer".
    known: gives the bytes of the tokens in stored answers; it is asked once for a token that is
    missing. Those whose bytes it does not know, as the end token's, end nothing.
    """

    phases: Phases
    count: str = "all"
    known: Callable[[], Mapping[int, bytes]] = dict
    _bytes: Mapping[int, bytes] = field(default_factory=dict)

    @classmethod
    def parse(cls, spec: str, count: str = "all") -> Thinking:
        """Raises InputError: it names no stretch of text, or several."""
        problem = (
            f"``thinking={spec!r}`` is no stretch of text; give inside:OPEN..CLOSE, or until:TEXT"
            " where it begins at once, with texts of 1 to 100 bytes"
        )
        if not spec.startswith(("inside:", "until:")):
            raise InputError(problem)
        try:
            phases = Phases.parse([spec])
        except InputError as error:  # which names ``phases`` and all of its forms
            raise InputError(problem) from error
        if len(phases.names) != 1:
            raise InputError(problem)
        return cls(phases, count)

    def lengths(self, completion: Completion) -> tuple[int, int, bool]:
        """Tokens inside, tokens outside, and whether the completion ended outside; OPEN itself is
        outside, CLOSE inside.

        Where the provider lists no tokens, they are shared out by the bytes of the text.
        """
        ids = completion.token_ids.tolist()
        size = completion.n_tokens
        if not ids:
            units = [bytes([byte]) for byte in completion.text.encode()]
        else:
            if any(token not in self._bytes for token in ids):
                self._bytes = {
                    **dict.fromkeys(ids, b""),
                    **self._bytes,
                    **self.known(),
                    **completion.token_bytes,
                }
            units = [self._bytes[token] for token in ids]
        where = [phase == 1 for phase in self.phases.along(units)]
        inside = sum(where[:-1])
        ended = not where[-1]
        if not ids:
            inside = round(inside / max(len(units), 1) * size)
        elif not ended:
            inside += size - len(ids)
        return inside, size - inside, ended

    def counted(self, completion: Completion) -> int:
        """The tokens that ``count`` names; all of them where the thinking never ends."""
        if self.count == "all":
            return completion.n_tokens
        inside, outside, ended = self.lengths(completion)
        if not ended:
            return completion.n_tokens
        if self.count == "thinking":
            return inside
        return outside


def loops(token_ids: Sequence[int]) -> bool:
    """Whether ``LOOP`` tokens in a row occur ``TIMES`` times or more, none of them overlapping the
    one before.
    """
    counts = Counter[tuple[int, ...]]()
    last = dict[tuple[int, ...], int]()
    for start in range(len(token_ids) - LOOP + 1):
        row = tuple(token_ids[start : start + LOOP])
        if start - last.get(row, -LOOP) >= LOOP:
            counts[row] += 1
            last[row] = start
    return max(counts.values(), default=0) >= TIMES
