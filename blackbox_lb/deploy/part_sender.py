"""How a bias whose answers are drawn in parts is sent to one server, and what that took so far."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from blackbox_lb.deploy.part_checks import left_alone
from blackbox_lb.errors import InputError

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.phases import Phases
    from blackbox_lb.bias.phrases import PhraseList
    from blackbox_lb.deploy.injection import Injection
    from blackbox_lb.deploy.part_requests import PartRequest
    from blackbox_lb.providers.profile import Profile

log = logging.getLogger(__name__)

GIVEN_UP = 3
"""Answers in parts that fail, before the first success, until all get the vector of the rest."""


@dataclass
class PhraseCounts:
    """What keeping phrases out took so far.

    answers: that were kept free of them. steps: how often one was cut. delivered, discarded:
    tokens that clients got, and that were thrown away. let_through: phrases that were left in.
    requests: that all of this took.
    """

    answers: int = 0
    steps: int = 0
    delivered: int = 0
    discarded: int = 0
    let_through: int = 0
    requests: int = 0

    def add(self, counts: PhraseCounts) -> None:
        """Those of one more request."""
        for name, number in asdict(counts).items():
            setattr(self, name, getattr(self, name) + number)


@dataclass
class PartSender:
    """How a bias whose answers are drawn in parts is sent to one server.

    phases: of the bias. phrases: that are kept out of answers, None for none. profile: the
    server's. joined, apart: answers whose parts fitted together, and whose parts did not.
    """

    injection: Injection
    phases: Phases
    profile: Profile
    phrases: PhraseList | None = None
    joined: int = 0
    apart: int = 0
    counts: PhraseCounts = field(default_factory=PhraseCounts)
    _told: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, bias: Bias, injection: Injection, provider: str | None) -> PartSender | None:
        """Of a bias file and its injection, None where each answer is drawn at once.
        provider: the server's profile, by default that of the file.

        Raises InputError: a text ends a phase, and the server is not known to say which stop text
        ended an answer; or phrases are kept out, and it is not known to tell the ids of tokens.
        """
        if not injection.bias.is_in_parts:
            return None
        # No other bias needs one to be applied.
        from blackbox_lb.providers.profile import load_profile
        from blackbox_lb.providers.stepping_back import check_steps_back

        profile = load_profile(provider or bias.provider)
        phases = injection.bias.phases
        phrases = injection.bias.phrases
        if phrases is not None:
            check_steps_back(profile)
        elif phases.until and profile.answers.stop_reason is False:
            raise InputError(
                f"{profile.name} is not known to say which stop text ended an answer, so that the"
                f" end of a phase ({phases.spec}) could not be told from the end of the answer;"
                " serve the bias inside vLLM (docs/serving.md), name the server's profile with"
                " provider=, or learn one with ``phases=first``"
            )
        return cls(injection, phases, profile, phrases)

    def request(self, document: Mapping[str, Any]) -> PartRequest | None:
        """The request with this body in parts; None where its answer is left alone and drawn at
        once, which is logged once for each reason.

        Raises InputError: it cannot be answered in parts.
        """
        from blackbox_lb.deploy.phase_requests import PhasedRequest
        from blackbox_lb.deploy.phrase_requests import SteppedRequest

        if self.phrases is None:
            return PhasedRequest(self, document)
        reason = left_alone(document)
        if reason is None:
            return SteppedRequest(self, document)
        self.tell_once(f"the request {reason}")
        if self.phases.features:
            return PhasedRequest(self, document)
        return None

    def tell_once(self, reason: str) -> None:
        """Log that phrases are left in an answer, the first time for each reason."""
        if reason not in self._told:
            self._told.add(reason)
            log.warning("phrases are not kept out of an answer, because %s", reason)

    def count(self, why: str | None) -> None:
        """Count an answer. The first one that fails is logged, and so is giving up.

        why: the reason that its parts do not fit together, None where they do.
        """
        if why is None:
            self.joined += 1
            return
        self.apart += 1
        if self.apart == 1:
            log.warning(
                "an answer in parts could not be joined, because %s: it gets the vector of the rest"
                " throughout",
                why,
            )
        if self.given_up:
            log.warning(
                "%d answers in parts, and none could be joined: all get the vector of the rest from"
                " now on",
                self.apart,
            )

    @property
    def given_up(self) -> bool:
        """Whether no more parts are tried."""
        return not self.joined and self.apart >= GIVEN_UP
