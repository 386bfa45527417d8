"""Drift: a change of the answering model or system, by the model name and the system in every
answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from blackbox_lb.errors import Drifted

if TYPE_CHECKING:
    from blackbox_lb.types import Completion

OnDrift: TypeAlias = Literal["stop", "note"]
SYSTEM_PARTS = " / "
"""Stands between the names in ``Completion.fingerprint``: the host's, then its set-up's."""
GO_ON = (
    "what was received is kept, and what the other one answered is stored apart; give another"
    " ``out`` to start anew, or ``on_drift=note`` to take both as one"
)


class DriftWatch:
    """The names (``model``) and systems (row ``models.system``) of the answers so far, each with
    its number of completions.

    policy: another name or system stops the run, or is noted; None: it stops, but for another
    system of a fleet, and for another set-up of the same host, where the answers name both.
    notices: for the user. mixed: the tokenizer changed, so the vocabulary of the
    last completions is not known.
    """

    def __init__(self, policy: OnDrift | None = None) -> None:
        self.policy = policy
        self.models: Counter[str] = Counter()
        self.systems: Counter[str] = Counter()
        self.notices: list[str] = []
        self.mixed = False

    def seen(self, completions: Sequence[Completion], fleet: bool) -> Drifted | None:
        """Take in the completions of one answer; return the reason to stop where they are not of
        the earlier model or system.

        An answer without either name, and one that a content filter withheld, does not count.
        ``fleet``: many systems answer under one name, by the profile.
        """
        unfiltered = [completion for completion in completions if not completion.filtered]
        if not unfiltered:
            return None
        first = unfiltered[0]
        change = self._change(
            "the model that answers", self.models, first.model, self.policy or "stop"
        )
        policy = self.policy or ("note" if fleet else "stop")
        change = change or self._change_of_system(first.fingerprint, policy)
        if change is not None:
            return Drifted(f"{change}; {GO_ON}")
        self.models[first.model] += len(unfiltered)
        self.systems[first.fingerprint] += len(unfiltered)
        return None

    def _change_of_system(self, system: str, policy: OnDrift) -> str | None:
        """The change of the answering system in words, where it is a reason to stop.

        ``system``: a host's name, or that and its set-up behind ``SYSTEM_PARTS``. Another set-up of
        the same host, of which a host may have many, is noted unless the user's policy is to stop.
        """
        host = system.partition(SYSTEM_PARTS)[0]
        hosts: Counter[str] = Counter()
        setups: Counter[str] = Counter()
        for name, completions in self.systems.items():
            hosts[name.partition(SYSTEM_PARTS)[0]] += completions
            if name.startswith(f"{host}{SYSTEM_PARTS}"):
                setups[name] += completions
        if host in hosts and SYSTEM_PARTS in system:
            setup_policy = self.policy or "note"
            return self._change("the set-up that answers", setups, system, setup_policy)
        return self._change("the system that answers", hosts, host, policy)

    def _change(self, subject: str, counts: Counter[str], name: str, policy: OnDrift) -> str | None:
        """The change in words, where it is a reason to stop."""
        names = [earlier for earlier in counts if earlier]
        if not name or not names or name in names:
            return None
        change = f"{subject} changed from {' and '.join(map(repr, names))} to {name!r}"
        if policy == "stop":
            return change
        self.notices.append(f"{change}: noted, and both are taken as one")
        return None
