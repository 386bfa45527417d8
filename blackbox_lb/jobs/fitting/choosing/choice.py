"""What is chosen among, and the result: the chosen candidate, and the validation numbers of all."""

import math
from dataclasses import dataclass
from typing import Any, Protocol

from blackbox_lb.estimate.choice.candidates import Candidate
from blackbox_lb.estimate.inputs.checks import Vector


@dataclass(frozen=True, slots=True)
class Measured:
    """Results of a policy on the validation prompts: means over prompts, NaN where nothing was
    drawn.

    reward: in the user's own unit. tokens: of a completion. accuracy: None where no answer is
    known. setting: None for the mean over all.
    """

    reward: float = math.nan
    tokens: float = math.nan
    accuracy: float | None = None
    setting: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The numbers for JSON: null where not known."""
        told = {
            "reward": _known(self.reward),
            "tokens": _known(self.tokens),
            "accuracy": _known(self.accuracy),
        }
        return told if self.setting is None else {"setting": self.setting, **told}


@dataclass(frozen=True, slots=True)
class TriedCandidate:
    """One candidate with its validation numbers.

    reward, tokens, accuracy: means over the settings to deploy with, of ``samples`` fresh
    completions a prompt at each (one at greedy), NaN where there were none; accuracy is None where
    no answer is known. by_setting: the same at each. kl: nats a completion at temperature 1, None
    where it was not measured. status: "chosen", or where and why it was dropped. origin: where it
    comes from, in words.
    """

    estimator: str
    settings: dict[str, float | int | str | None]
    entries: int
    reward: float
    samples: int = 0
    status: str = ""
    tokens: float = math.nan
    accuracy: float | None = None
    kl: float | None = None
    by_setting: tuple[Measured, ...] = ()
    origin: str = ""

    def as_json(self) -> dict[str, Any]:
        """The record for JSON: null where not known."""
        return {
            "estimator": self.estimator,
            "settings": self.settings,
            "entries": self.entries,
            "reward": _known(self.reward),
            "tokens": _known(self.tokens),
            "accuracy": _known(self.accuracy),
            "kl_nats_per_completion": _known(self.kl),
            "samples": self.samples,
            "by_setting": [each.as_json() for each in self.by_setting],
            "fate": self.status,
            "origin": self.origin,
        }


@dataclass(frozen=True, slots=True, eq=False)
class Proposal:
    """A candidate that is richer than the one that stands, and has to prove itself.

    spec: its features as they are given on the command line. errors: (s,) standard errors of its
    entries in nats, NaN where not known. left_out: (p,) gains over the one that stands on training
    prompts that were left out, which count beside those on validation prompts; () for none.
    """

    candidate: Candidate
    spec: str
    errors: Vector
    left_out: Vector


class Proposer(Protocol):
    """Makes richer candidates from the one that stands."""

    @property
    def name(self) -> str:
        """The features that it adds, as they are given on the command line."""

    async def propose(self, standing: Candidate) -> list[Proposal] | str:
        """Richer candidates, or the sentence why there are none."""


@dataclass(frozen=True, slots=True)
class Choice:
    """``candidate``: the best by the goal. ``tried``: all candidates in the order given. ``base``:
    the model without a bias. ``sentence``: where the winner comes from, and what came second.
    ``uncut``: the winner before it was cut to fewer entries. ``richer``: the candidate with
    features that proved to be better than it, None where none did.

    The numbers in ``tried`` made the choice, so that of the chosen one is too good; only other
    prompts show its worth.
    ``base_by_setting``: the base at each setting to deploy with, empty where there was one
    candidate.
    """

    candidate: Candidate
    tried: tuple[TriedCandidate, ...]
    base: Measured
    base_by_setting: tuple[Measured, ...] = ()
    sentence: str = ""
    uncut: Candidate | None = None
    richer: Proposal | None = None


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
