"""The phases of a bias as a table over a vocabulary, so that a token id alone leads from state to
state.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.bias.phases import Phases
from blackbox_lb.errors import BiasError
from blackbox_lb.safety.printable import printable


@dataclass(frozen=True, eq=False)
class PhaseTable:
    """steps: (states, tokens) the state after each token; state 0 is the beginning. held:
    (states,) the phase of the features with texts.
    """

    phases: Phases
    steps: npt.NDArray[np.int16]
    held: npt.NDArray[np.int64]

    @classmethod
    def of(cls, phases: Phases, raws: Sequence[bytes]) -> PhaseTable:
        """raws: (tokens,) the bytes of each token id. Raises BiasError: no tokens spell a text of
        the phases.
        """
        by_byte = np.array(phases.steps, np.int16)
        sizes = np.array([len(raw) for raw in raws])
        letters = np.zeros((len(raws), max(1, int(sizes.max(initial=1)))), np.uint8)
        letters[np.arange(letters.shape[1]) < sizes[:, None]] = np.frombuffer(
            b"".join(raws), np.uint8
        )
        steps = np.tile(np.arange(len(by_byte), dtype=np.int16)[:, None], len(raws))
        for place in range(letters.shape[1] if phases.until else 0):
            longer = np.flatnonzero(sizes > place)
            steps[:, longer] = by_byte[steps[:, longer], letters[longer, place]]
        if phases.until and not _lead(steps, 0, phases.second, True):
            spelled = phases.until
        elif phases.back and not _lead(steps, len(phases.until.encode()), phases.second, False):
            spelled = phases.back
        else:
            phase_of_state = [phases.held_in[phases.second(state)] for state in range(len(by_byte))]
            return cls(phases, steps, np.array(phase_of_state, np.int64))
        raise BiasError(
            f"no tokens of the served model spell {printable(spelled)!r} of the phases"
            f" {printable(phases.spec)}; use the model that they were learned on"
        )


def _lead(
    steps: npt.NDArray[np.int16], start: int, second: Callable[[int], bool], target: bool
) -> bool:
    """Whether tokens lead from a state to one that is, or is not, of the second stretch."""
    reached = {start}
    while new := set(np.unique(steps[sorted(reached)]).tolist()) - reached:
        reached |= new
    return any(second(state) == target for state in reached)
