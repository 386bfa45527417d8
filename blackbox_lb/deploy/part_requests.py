"""A request whose answer is drawn in parts, over an API that continues a message, and joined.

What came so far goes back as the beginning of the answer, and the next part is drawn from there. No
HTTP here: a client and a proxy send the bodies and hand back what comes.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.stepping import with_bans
from blackbox_lb.deploy.injection import Injection, to_json
from blackbox_lb.deploy.part_answers import server_sent
from blackbox_lb.errors import InputError
from blackbox_lb.safety.http.header_values import retry_after

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.phrases import PhraseList
    from blackbox_lb.providers.profile import Profile

log = logging.getLogger(__name__)

GIVEN_UP = 3
"""Answers in parts that fail, before the first success, until all get the vector of the rest."""
PAUSES = (0.5, 2.0)
"""Seconds before a later part is asked for again: what came before it is with the client already,
so no client can ask again.
"""


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

        profile = load_profile(provider or bias.provider)
        phases = injection.bias.phases
        phrases = injection.bias.phrases
        if phrases is not None:
            from blackbox_lb.providers.stepping_back import check_steps_back

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
        from blackbox_lb.deploy.phase_requests import PhasedRequest, left_alone

        if self.phrases is None:
            return PhasedRequest(self, document)
        from blackbox_lb.deploy.phrase_requests import SteppedRequest

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
        self.joined += why is None
        self.apart += why is not None
        if why is not None and self.apart == 1:
            log.warning(
                "an answer in parts could not be joined, because %s: it gets the vector of the rest"
                " throughout",
                why,
            )
        if why is not None and self.given_up:
            log.warning(
                "%d answers in parts, and none could be joined: all get the vector of the rest from"
                " now on",
                self.apart,
            )

    @property
    def given_up(self) -> bool:
        """Whether no more parts are tried."""
        return not self.joined and self.apart >= GIVEN_UP


class PartRequest(ABC):
    """One request in parts. ``body`` is sent; ``take`` gets a whole answer, or ``feed`` its stream
    piece by piece, and then ``end`` is called; while there is ``more``, another body follows.

    streams: whether the client asked for a stream. reads_streams: whether the parts come as
    streams. is_cut: nothing more of this stream is wanted. fault: an error of the server within a
    stream, as JSON.
    """

    reads_streams: bool

    def __init__(self, sender: PartSender, document: Mapping[str, Any]) -> None:
        self._sender = sender
        self._asked = document
        self._rules = sender.profile.answers
        self._chat = "messages" in document
        self.streams = bool(document.get("stream"))
        self.more = True
        self.is_cut = False
        self.fault: bytes | None = None
        self._limits = [
            name
            for name in ("max_completion_tokens", "max_tokens")
            if isinstance(document.get(name), int)
        ]
        self._most: int | None = min((document[name] for name in self._limits), default=None)
        self._stops: list[str] = (
            [stop] if isinstance(stop := document.get("stop") or [], str) else list(stop)
        )
        self._text_of_prompt = sender.injection.read(document)
        self._size: int | None = None
        # The first part, whose id and time the answer has; empty before it came.
        self._opening: Mapping[str, Any] = {}
        self._failed = 0
        self._line = b""
        self._held = list[bytes]()

    @abstractmethod
    def body(self) -> bytes:
        """The next request."""

    @abstractmethod
    def take(self, content: bytes) -> None:
        """A whole answer. Raises ValueError, TypeError or KeyError: it is none."""

    @abstractmethod
    def end(self) -> bytes:
        """The end of a stream; what the client gets now."""

    @property
    @abstractmethod
    def answer(self) -> bytes:
        """The joined answer."""

    @abstractmethod
    def _event(self, data: bytes) -> None:
        """One event of a stream."""

    def _out(self) -> bytes:
        """The events that the client gets now."""
        out = b"".join(self._held)
        self._held = []
        return out

    def feed(self, piece: bytes) -> bytes:
        """A piece of a stream; what the client gets of it now."""
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            if self.is_cut:
                break
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                self._event(line[5:])
        return self._out()

    def failed(self, content: bytes) -> bytes:
        """The end of a stream whose next part was refused with ``content``: its error as an event,
        as servers send it.
        """
        try:
            error = json.loads(content)["error"]
        except (ValueError, KeyError, TypeError):
            error = {"message": "the request for the next part was refused"}
        self._held.append(server_sent({"error": error}))
        return b"".join(self._held)

    def pause(
        self, status: int | None = None, headers: Mapping[str, str] = MappingProxyType({})
    ) -> float | None:
        """Seconds until a part whose request failed is sent again; None: no more. The first part is
        the client's own to repeat.

        status, headers: of the answer, None and none where there is no answer. What it asks to wait
        counts up to a minute.
        """
        self._failed += 1
        if (
            not self._opening  # so that the client can simply ask again
            or self._failed > len(PAUSES)
            or not (status is None or status in (408, 409, 429) or status >= 500)
        ):
            return None
        seconds = retry_after(headers)
        if seconds is None:
            return PAUSES[self._failed - 1]
        return min(seconds, 60.0)

    def _encoded(
        self, fields: Mapping[str, Any], phase: int, banned: Collection[int] = ()
    ) -> bytes:
        """A body with the bias of a phase, and without ``banned`` tokens."""
        sent = dict(fields)
        injection = self._sender.injection
        values: Mapping[int, float] = injection.bias.of_text(self._text_of_prompt, phase)
        bans: Mapping[int, float] = {}
        if banned:
            rule = self._sender.profile.bias
            values = with_bans(values, banned, rule.low, rule.entries)
            bans = dict.fromkeys(banned, rule.low)
        return injection.body(to_json(sent), sent, values, bans)

    def _fields(self, number: int, text: str, tokens: int) -> dict[str, Any]:
        """The fields of a request for a part, of at most ``_size`` tokens.

        number: of requests before. text, tokens: of the answer so far.
        """
        sent = {
            key: value for key, value in self._asked.items() if key not in ("stop", *self._limits)
        }
        if self._size is not None:
            sent |= dict.fromkeys(self._limits or ["max_tokens"], self._size)
        if "min_tokens" in sent:
            sent["min_tokens"] = max(0, int(sent["min_tokens"] or 0) - tokens)
        if isinstance(sent.get("seed"), int):
            sent["seed"] += number  # the same numbers again would make one part depend on the other
        if self._stops:
            sent["stop"] = [*self._stops]
        if text and self._chat:
            sent["messages"] = [*self._asked["messages"], {"role": "assistant", "content": text}]
            sent |= self._rules.continues or {}
        elif text:
            sent["prompt"] = self._asked["prompt"] + text
        if self._rules.prompt_ids is not False:
            sent["return_token_ids"] = True
        return sent

    def _tell(self, event: Mapping[str, Any]) -> None:
        self._held.append(server_sent(self._cleared(event)))

    def _cleared(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The answer with the id and the time of the first part, without fields that the client did
        not ask for.
        """
        hidden = (
            {"token_ids", "prompt_token_ids"}
            if not self._asked.get("return_token_ids")
            else set[str]()
        )
        if answer.get("usage") is None:
            hidden.add("usage")
        first = self._opening or answer
        choices = [
            {name: value for name, value in choice.items() if name not in hidden}
            for choice in answer["choices"]
        ]
        visible = {name: value for name, value in answer.items() if name not in hidden}
        return (
            visible
            | {name: first[name] for name in ("id", "created") if name in first}
            | {"choices": choices}
        )
