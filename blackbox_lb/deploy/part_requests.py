"""A request whose answer is drawn in parts, over an API that continues a message, and joined.

What came so far goes back as the beginning of the answer, and the next part is drawn from there. No
HTTP here: a client and a proxy send the bodies and hand back what comes.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from blackbox_lb.bias.phases import Boundary
from blackbox_lb.bias.stepping import with_bans
from blackbox_lb.deploy.injection import to_json
from blackbox_lb.deploy.part_answers import (
    MessageFields,
    TextPiece,
    joined_logprobs,
    server_sent,
    text_of,
)
from blackbox_lb.safety.http.header_values import retry_after

if TYPE_CHECKING:
    from blackbox_lb.deploy.part_sender import PartSender

_OF_A_PIECE = ("delta", "message", "text", "logprobs", "token_ids", "prompt_token_ids")
"""The fields of a choice that are joined; its others are those of its end."""
PAUSES = (0.5, 2.0)
"""Seconds before a later part is asked for again: what came before it is with the client already,
so no client can ask again.
"""


class NextPart(NamedTuple):
    """What the request for a part has of its own.

    most: tokens, None where the rule sets no limit. stops: texts that end the part. banned: tokens.
    fields: of the body.
    """

    most: int | None = None
    stops: Sequence[str] = ()
    banned: Collection[int] = ()
    fields: Mapping[str, Any] = MappingProxyType({})


class PartRequest(ABC):
    """One request in parts, and the answer that they are joined to. ``body`` is sent; ``take`` gets
    a whole answer to it, or ``feed`` its stream piece by piece, and then ``end`` is called; while
    there is ``more``, another body follows.

    A subclass is a rule: where a part ends, and what the next request carries.

    streams: whether the client asked for a stream. reads_streams: whether the parts come as
    streams. is_cut: nothing more of this stream is wanted. fault: an error of the server within a
    stream, as JSON.
    """

    def __init__(self, sender: PartSender, document: Mapping[str, Any]) -> None:
        self._sender = sender
        self._asked = document
        self._rules = sender.profile.answers
        self._chat = "messages" in document
        self.streams = bool(document.get("stream"))
        self.reads_streams = self.streams
        self.more = True
        self.is_cut = False
        self.fault: bytes | None = None
        self._limits = [
            name
            for name in ("max_completion_tokens", "max_tokens")
            if isinstance(document.get(name), int)
        ]
        self._most: int | None = min((document[name] for name in self._limits), default=None)
        stops = document.get("stop") or []
        self._stops: list[str] = [stops] if isinstance(stops, str) else list(stops)
        self._choices = 1
        self._text_of_prompt = sender.injection.read(document)
        self._phases = sender.phases
        # The first event, whose id and time the answer has; empty before it came.
        self._opening: Mapping[str, Any] = {}
        self._requests = 0
        self._failed = 0
        self._prompt: list[int] = []
        self._prompt_tokens: int | None = None
        self._finished = list[dict[str, Any]]()
        self._line = b""
        self._held = list[bytes]()
        self._begin()

    @property
    @abstractmethod
    def _tokens(self) -> int:
        """Of the answer so far."""

    @abstractmethod
    def _next(self, boundary: Boundary) -> NextPart:
        """The rule for the next part. boundary: where the phase may change."""

    @abstractmethod
    def _add(self, event: Mapping[str, Any], choice: dict[str, Any]) -> None:
        """Tokens of an answer, with their text unless they end inside a character."""

    @abstractmethod
    def _is_complete(self) -> bool:
        """Take the end of a part into account; whether it is the end of the answer."""

    @abstractmethod
    def _total(self) -> dict[str, Any] | None:
        """The usage of the answer."""

    def _leave_alone(self) -> None:
        """Thoughts or calls have come beside the text, of which nothing more is held back."""
        self._release(len(self._pieces))

    def _begin(self) -> None:
        """Reset to the state before the first part of a choice."""
        self._parts = 0
        self._pieces = list[tuple[Mapping[str, Any], TextPiece]]()  # with the event of each
        self._told = 0
        self._message = MessageFields()

    @property
    def _text(self) -> str:
        """The answer so far."""
        return "".join(text.piece.text for _, text in self._pieces)

    def body(self) -> bytes:
        """The next request."""
        self._failed = 0
        self._line = b""
        self.is_cut = False
        self._ending: dict[str, Any] = {}
        self._usage: dict[str, Any] = {}
        self._prompt_ids: list[int] = []
        self._before = self._tokens
        self._state = self._phases.after(0, self._text.encode())
        self._phase = self._phases.of_state(self._state, self._before)
        boundary = self._phases.boundary(self._state, self._before)
        part = self._next(boundary)
        sizes = [boundary.tokens, part.most]
        if self._most is not None:
            sizes.append(self._most - self._before)
        self._size = min((size for size in sizes if size is not None), default=None)
        document = self._document(part)
        self._requests += 1
        self._parts += 1
        return self._encoded(document, part.banned)

    def _document(self, part: NextPart) -> dict[str, Any]:
        """The request for a part, without its bias."""
        sent = {
            key: value for key, value in self._asked.items() if key not in ("stop", *self._limits)
        }
        if self._size is not None:
            sent |= dict.fromkeys(self._limits or ["max_tokens"], self._size)
        if "min_tokens" in sent:
            sent["min_tokens"] = max(0, (sent["min_tokens"] or 0) - self._before)
        seed = sent.get("seed")
        if isinstance(seed, int) and seed >= 0:  # below it the server draws one itself
            # The same numbers again would make one part depend on the other. Servers take 31 bits,
            # or more where the client sends more.
            sent["seed"] = (seed + self._requests) % max(1 << 31, seed + 1)
        if self._stops or part.stops:
            sent["stop"] = [*self._stops, *part.stops]
        text = self._text
        if text and self._chat:
            sent["messages"] = [*self._asked["messages"], {"role": "assistant", "content": text}]
            sent |= self._rules.continues or {}
        elif text:
            sent["prompt"] = self._begun_prompt(text)
        if self._rules.prompt_ids is not False:
            sent["return_token_ids"] = True
        if self.reads_streams:
            sent["stream"] = True
            sent["stream_options"] = {**(sent.get("stream_options") or {}), "include_usage": True}
        return {**sent, **part.fields}

    def _begun_prompt(self, text: str) -> str | list[Any]:
        """The prompt of a completions endpoint with the text of the answer so far."""
        return str(self._asked["prompt"]) + text

    def _encoded(self, document: dict[str, Any], banned: Collection[int]) -> bytes:
        """A body with the bias of the phase, and without ``banned`` tokens."""
        injection = self._sender.injection
        values: Mapping[int, float] = injection.bias.of_text(self._text_of_prompt, self._phase)
        bans: Mapping[int, float] = {}
        if banned:
            rule = self._sender.profile.bias
            values = with_bans(values, banned, rule.low, rule.entries)
            bans = dict.fromkeys(banned, rule.low)
        return injection.body(to_json(document), document, values, bans)

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

    def take(self, content: bytes) -> None:
        """A whole answer. Raises ValueError, TypeError or KeyError: it is none."""
        self._read(json.loads(content))
        self.end()

    def feed(self, piece: bytes) -> bytes:
        """A piece of a stream; what the client gets of it now."""
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            if self.is_cut:
                break
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                try:
                    self._read(json.loads(line[5:]))
                except (ValueError, KeyError, TypeError, AttributeError):
                    self.fault = line[5:].strip()
        return self._out()

    def _read(self, event: Mapping[str, Any]) -> None:
        """One event of a stream, or a whole answer."""
        choices = [dict(choice) for choice in event["choices"]]
        self._usage = event.get("usage") or self._usage
        if not self._opening:
            self._opening = {**event, "choices": []}
        name = str(self._rules.prompt_ids)
        for choice in choices:
            self._prompt_ids = event.get(name) or choice.get(name) or self._prompt_ids
            self._ending |= {
                name: value
                for name, value in choice.items()
                if value is not None and name not in _OF_A_PIECE
            }
            self._read_choice(event, choice)

    def _read_choice(self, event: Mapping[str, Any], choice: dict[str, Any]) -> None:
        message = choice.get("message") or choice.get("delta") or {}
        if self._message.add(message):
            self._leave_alone()
            if "delta" in choice and not text_of(choice):
                self._show(event, choice)
                return
        has_tokens = text_of(choice) or choice.get("token_ids") or choice.get("logprobs")
        if has_tokens or "message" in choice:
            self._add(event, choice)
        elif "role" in message and self._parts == 1 and not self._pieces:
            self._show(event, choice)

    def end(self) -> bytes:
        """The end of an answer to a part; what the client gets now."""
        counted = self._usage.get("prompt_tokens")
        if isinstance(counted, int) and self._prompt_tokens is None:
            self._prompt_tokens = counted - self._before
        if self._requests == 1:
            self._prompt = self._prompt_ids
        is_broken = self.reads_streams and not self.is_cut and "finish_reason" not in self._ending
        if self.fault is None and is_broken:
            message = "the upstream's stream ended without a reason; ask again"
            self.fault = json.dumps({"error": {"message": message}}).encode()
        if self.fault is not None:
            self.more = False
            self._held.append(b"data: " + self.fault + b"\n\n")
        elif self._is_complete():
            self._finish()
        return self._out()

    def _finish(self) -> None:
        """A choice is complete."""
        self._release(len(self._pieces))
        self._finished.append(self._choice())
        if self.streams:
            empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            ends = {"index": len(self._finished) - 1, "logprobs": None}
            event = {**self._opening, "choices": [{**self._ending, **empty, **ends}]}
            self._tell({**event, "usage": None})
        self.more = len(self._finished) < self._choices
        if self.more:
            self._begin()
            return
        if self.streams and (self._asked.get("stream_options") or {}).get("include_usage"):
            self._tell({**self._opening, "choices": [], "usage": self._total()})
        if self.streams:
            self._held.append(b"data: [DONE]\n\n")

    def _choice(self) -> dict[str, Any]:
        """The choice as an answer that is no stream has it."""
        choice: dict[str, Any] = {**self._ending, "index": len(self._finished), "logprobs": None}
        if self._asked.get("logprobs"):
            choice["logprobs"] = joined_logprobs(text.choice for _, text in self._pieces)
        choice["token_ids"] = [token for _, text in self._pieces for token in text.ids]
        if self._chat:
            return {**choice, "message": self._message.with_text(self._text)}
        return {**choice, "text": self._text}

    @property
    def answer(self) -> bytes:
        """The joined answer."""
        kind = "chat.completion" if self._chat else "text_completion"
        document = {**self._opening, "object": kind, "choices": self._finished}
        return json.dumps(self._cleared({**document, "usage": self._total()})).encode()

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

    def _release(self, count: int) -> None:
        """Deliver so many pieces in all."""
        for event, text in self._pieces[self._told : count]:
            if text.piece.text or text.choice.get("logprobs"):
                self._show(event, text.choice)
        self._told = max(self._told, count)

    def _show(self, event: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """An event for a client that asked for a stream."""
        if not self.streams:
            return
        row = {**choice, "index": len(self._finished), "finish_reason": None}
        if "logprobs" in row and not self._asked.get("logprobs"):
            row["logprobs"] = None
        self._tell({**event, "choices": [row], "usage": None})

    def _tell(self, event: Mapping[str, Any]) -> None:
        self._held.append(server_sent(self._cleared(event)))

    def _out(self) -> bytes:
        """The events that the client gets now."""
        out = b"".join(self._held)
        self._held = []
        return out

    def _cleared(self, answer: Mapping[str, Any]) -> dict[str, Any]:
        """The answer with the id and the time of the first part, without fields that the client did
        not ask for.
        """
        hidden = set[str]()
        if not self._asked.get("return_token_ids"):
            hidden |= {"token_ids", "prompt_token_ids"}
        if answer.get("usage") is None:
            hidden.add("usage")
        visible = {name: value for name, value in answer.items() if name not in hidden}
        for name in ("id", "created"):
            if name in self._opening:
                visible[name] = self._opening[name]
        visible["choices"] = [
            {name: value for name, value in choice.items() if name not in hidden}
            for choice in answer["choices"]
        ]
        return visible
