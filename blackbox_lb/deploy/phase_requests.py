"""A bias that changes within an answer, over an API that continues a message: one request for each
phase, and the parts joined into one answer.

A part is drawn with the bias of the prompt in one phase, and ends at the next boundary: after so
many tokens, or at a text, as a stop text. The text so far goes back as the beginning of the answer,
and the next part is drawn with the next bias. No HTTP here: a client and a proxy send the bodies
and hand back what comes.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from blackbox_lb.bias.phases import MOST_PARTS, Phases
from blackbox_lb.deploy.injection import Injection, to_json
from blackbox_lb.errors import InputError
from blackbox_lb.safety.http.header_values import retry_after

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.providers.profile import Profile

log = logging.getLogger(__name__)

GIVEN_UP = 3
"""Answers in parts that fail, before the first success, until all get the vector of the rest."""
PAUSES = (0.5, 2.0)
"""Seconds before a later part is asked for again: what came before it is with the client already,
so no client can ask again.
"""
REPEATED = 8
"""Tokens: hardly ever does an answer go on with so many tokens that it began with, unless the
server repeats them.
"""
_ONE = "asks for several completions, which would go apart after the first part; ask once for each"
_NOT_IN_PARTS = {
    "n": _ONE,
    "best_of": _ONE,
    "functions": (
        "offers functions, and a call that is cut could not be read; leave them out, or use an"
        " unbiased client"
    ),
    "response_format": (
        "fixes the form of the answer, which a server would begin anew in each part; leave it out"
    ),
    "echo": "asks for its prompt back, which grows with each part; leave it out",
    "suffix": "has a suffix, before which only the last part should end; leave it out",
}
"""Fields of a request that cannot be answered in parts, with the end of the sentence that refuses
them.
"""
_PARTS = "a bias with phases is sent in parts, and this request"


@dataclass
class PhasedRequests:
    """How a bias that changes within an answer is sent to one server.

    phases: of the bias. profile: the server's. joined, apart: answers whose parts fitted together,
    and whose parts did not.
    """

    injection: Injection
    phases: Phases
    profile: Profile
    joined: int = 0
    apart: int = 0

    @classmethod
    def of(cls, bias: Bias, injection: Injection, provider: str | None) -> PhasedRequests | None:
        """Of a bias file and its injection, None where the bias is one for the whole answer.
        provider: the server's profile, by default that of the file.

        Raises InputError: a text ends a phase, and the server is not known to say which stop text
        ended an answer.
        """
        if "prefix" not in injection.bias.scopes:
            return None
        from blackbox_lb.providers.profile import (
            load_profile,
        )  # no other bias needs one to be applied

        profile = load_profile(provider or bias.provider)
        phases = injection.bias.phases
        if phases.until and profile.answers.stop_reason is False:
            raise InputError(
                f"{profile.name} is not known to say which stop text ended an answer, so that the"
                f" end of a phase ({phases.spec}) could not be told from the end of the answer;"
                " serve the bias inside vLLM (docs/serving.md), name the server's profile with"
                " provider=, or learn one with ``phases=first``"
            )
        return cls(injection, phases, profile)

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


@dataclass
class _Part:
    """The answer to one request: its fields without the choice, the choice, and its text. The
    events of a stream are collected into the same fields.
    """

    answer: dict[str, Any] = field(default_factory=dict)
    choice: dict[str, Any] = field(default_factory=dict)
    text: str = ""

    @property
    def calls(self) -> list[Any]:
        """The calls of functions that the server read from its text."""
        return (self.choice.get("message") or {}).get("tool_calls") or []

    def add(self, event: Mapping[str, Any]) -> None:
        """One event of a stream, or a whole answer."""
        self.answer = {
            **event,
            **{name: value for name, value in self.answer.items() if value is not None},
        }
        self.answer |= {"usage": event.get("usage") or self.answer.get("usage")}
        for choice in event["choices"]:
            message = choice.get("message") or choice.get("delta") or choice
            self.text += _text(choice)
            ids = [*self.choice.get("token_ids", ()), *(choice.get("token_ids") or ())]
            self.choice |= {name: value for name, value in choice.items() if value is not None} | {
                "token_ids": ids
            }
            self.choice["thoughts"] = (
                self.choice.get("thoughts")
                or message.get("reasoning_content")
                or message.get("reasoning")
            )

    def counted(self, name: str) -> int | None:
        number = (self.answer.get("usage") or {}).get(f"{name}_tokens")
        if isinstance(number, int):
            return number
        return None


class PhasedRequest:
    """One request in parts. ``body`` is sent; ``take`` gets a whole answer, or ``feed`` its stream
    piece by piece, and then ``end`` is called; while there is ``more``, another body follows.

    streams: whether the client asked for a stream. Its events are held back until a first answer of
    this server has been joined, so that parts that do not fit together can be replaced by an answer
    with the vector of the rest.

    Raises InputError: the request cannot be answered in parts, or the server is not known to
    continue a message.
    """

    def __init__(self, sender: PhasedRequests, document: Mapping[str, Any]) -> None:
        self._sender = sender
        self._asked = document
        self._rules = sender.profile.answers
        self._chat = "messages" in document
        self._check()
        self.streams = bool(document.get("stream"))
        self.more = True
        self._limits = [
            name
            for name in ("max_completion_tokens", "max_tokens")
            if isinstance(document.get(name), int)
        ]
        self._most: int | None = min((document[name] for name in self._limits), default=None)
        self._stops: list[str] = (
            [stop] if isinstance(stop := document.get("stop") or [], str) else list(stop)
        )
        self._usage: dict[str, Any] = {}
        self._text_of_prompt = sender.injection.read(document)
        self._begin(sender.given_up)

    def _begin(self, common: bool) -> None:
        """Reset to the state before the first part.

        common: the whole answer in one part, with the vector of the rest.
        """
        self._common = common
        self._text = ""
        self._state = 0
        self._tokens = 0
        self._parts = list[_Part]()
        self._prompt = list[int]()
        self._before = 0
        self._ids = list[int]()
        self._open = _Part()
        self._line = b""
        self._held = list[bytes]()

    def _check(self) -> None:
        document = self._asked
        for name, why in _NOT_IN_PARTS.items():
            plain = name == "response_format" and document.get(name) == {"type": "text"}
            if document.get(name) not in (None, False, [], "", 1) and not plain:
                raise InputError(f"{_PARTS} {why}")
        if document.get("tools"):
            self._check_tools()
        messages = document.get("messages")
        if not self._chat and not isinstance(document.get("prompt"), str):
            raise InputError(f"{_PARTS} has a prompt that is not one text; give one as a string")
        if self._chat and self._rules.continues is False:
            raise InputError(
                f"{self._sender.profile.name} is not known to continue a message, so a bias with"
                " phases cannot be sent to its chat endpoint; name the server's profile with"
                " provider=, let blb doctor ``save`` find out, or serve the bias inside vLLM"
            )
        last = None
        if isinstance(messages, list) and messages:
            last = messages[-1]
        if isinstance(last, dict) and last.get("role") == "assistant":
            raise InputError(
                f"{_PARTS} begins the answer with a message of its own; leave that out"
            )

    def _check_tools(self) -> None:
        """Raise InputError: a call could not be put together from parts."""
        if self._sender.phases.until:
            raise InputError(
                f"{_PARTS} offers tools, whose calls may hold the text that ends a phase; learn a"
                " bias with ``phases=first``, or leave the tools out"
            )
        if self._asked.get("stream"):
            raise InputError(
                f"{_PARTS} offers tools in a stream, in which a call is known only at its end; ask"
                " without stream"
            )
        if self._asked.get("tool_choice") not in (None, "auto", "none"):
            raise InputError(
                f"{_PARTS} forces a call, whose form a server would begin anew in each part; leave"
                " out tool_choice, or use an unbiased client"
            )

    def body(self) -> bytes:
        """The next request."""
        self._failed = 0
        phases = self._sender.phases
        number = len(self._parts)
        sent = {
            key: value for key, value in self._asked.items() if key not in ("stop", *self._limits)
        }
        phase = 0
        self._awaited = list[str]()
        self._size = None if self._most is None else self._most - self._tokens
        if not self._common:
            phase = phases.of_state(self._state, self._tokens)
            boundary = phases.boundary(self._state, self._tokens)
            if boundary.tokens is not None:
                limits = [boundary.tokens] if self._size is None else [boundary.tokens, self._size]
                self._size = min(limits)
            if number + 1 < MOST_PARTS:
                self._awaited = self._awaited_texts(boundary.text)
        if self._size is not None:
            sent |= dict.fromkeys(self._limits or ["max_tokens"], self._size)
        if "min_tokens" in sent:
            sent["min_tokens"] = max(0, int(sent["min_tokens"] or 0) - self._tokens)
        if isinstance(sent.get("seed"), int):
            sent["seed"] += number  # the same numbers again would make one part depend on the other
        if self._stops or self._awaited:
            sent["stop"] = [*self._stops, *self._awaited]
        if number and self._chat:
            sent["messages"] = [
                *self._asked["messages"],
                {"role": "assistant", "content": self._text},
            ]
            sent |= self._rules.continues or {}
        elif number:
            sent["prompt"] = self._asked["prompt"] + self._text
        if self.streams:
            sent["stream_options"] = {**(sent.get("stream_options") or {}), "include_usage": True}
        if self._rules.prompt_ids is not False:
            sent["return_token_ids"] = True
        injection = self._sender.injection
        values = injection.bias.of_text(self._text_of_prompt, phase)
        return injection.body(to_json(sent), sent, values)

    def _awaited_texts(self, text: str) -> list[str]:
        """The stop texts for the text that ends a phase: the text itself, and its remainder where
        the previous part ended with its beginning.
        """
        phases = self._sender.phases
        begun = self._state
        if phases.second(self._state):
            begun -= len(phases.until.encode())
        missing = text.encode()[begun:].decode(errors="ignore")
        texts = dict.fromkeys((text, missing))
        return [stop for stop in texts if stop and stop not in self._stops]

    def take(self, content: bytes) -> None:
        """A whole answer. Raises ValueError, TypeError or KeyError: it is none."""
        self._open.add(json.loads(content))
        # A server that reads a call from the text of all parts puts none of it into the content,
        # nor the mark of a call that it cannot read.
        repeats = self._rules.repeats and self._chat and self._parts and not self._open.calls
        missing = (
            repeats and not self._open.text.startswith(self._text) and not self._has_begun_a_call()
        )
        if repeats:
            self._open.text = self._open.text.removeprefix(self._text)
        self._close(
            "the server did not repeat the part before, as its profile says" if missing else None
        )

    def _has_begun_a_call(self) -> bool:
        """Whether the text so far begins as nothing but a call does, and tools are offered."""
        if not self._asked.get("tools"):
            return False
        from blackbox_lb.types import CALL_MARKS  # numpy, which no other answer needs

        return self._text.lstrip().startswith(CALL_MARKS)

    def feed(self, piece: bytes) -> bytes:
        """A piece of a stream; what the client gets of it now."""
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                self._event(line[5:])
        return self._out()

    def end(self) -> bytes:
        """The end of a stream; what the client gets now."""
        self._close(None)
        if not self.more:
            last = self._parts[-1]
            empty = {"index": 0, "delta": {}} if self._chat else {"index": 0, "text": ""}
            ends = {"finish_reason": last.choice.get("finish_reason"), "logprobs": None}
            self._tell({**last.answer, "choices": [empty | ends], "usage": None})
            if (self._asked.get("stream_options") or {}).get("include_usage"):
                self._tell({**last.answer, "choices": [], "usage": self._usage})
            self._held.append(b"data: [DONE]\n\n")
        return self._out()

    def failed(self, content: bytes) -> bytes:
        """The end of a stream whose next part was refused with ``content``: its error as an event,
        as servers send it.
        """
        try:
            error = json.loads(content)["error"]
        except (ValueError, KeyError, TypeError):
            error = {"message": "the request for the next part was refused"}
        self._held.append(_event({"error": error}))
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
            not self._parts
            or self._failed > len(PAUSES)
            or not (status is None or status in (408, 409, 429) or status >= 500)
        ):
            return None
        seconds = retry_after(headers)
        if seconds is None:
            return PAUSES[self._failed - 1]
        return min(seconds, 60.0)

    @property
    def answer(self) -> bytes:
        """The joined answer: the last one with all text and logprobs, and the usage of all."""
        last = self._parts[-1]
        choice = {name: value for name, value in last.choice.items() if name != "thoughts"} | {
            "token_ids": self._ids
        }
        listed = [part.choice["logprobs"] for part in self._parts if part.choice.get("logprobs")]
        choice["logprobs"] = (
            {
                name: [row for lists in listed for row in lists.get(name) or ()]
                for name in listed[-1]
            }
            if listed
            else None
        )
        if last.calls:
            choice["message"] = {**choice["message"], "content": last.text or None}
        elif self._chat:
            choice["message"] = {**choice["message"], "content": self._text}
            if self._asked.get("tools"):
                choice |= _with_calls(choice)
        else:
            choice["text"] = self._text
        return json.dumps(
            self._cleared({**last.answer, "choices": [choice], "usage": self._usage})
        ).encode()

    def _close(self, why: str | None) -> None:
        """Append the received part to the answer, and set ``more``."""
        part = self._open
        self._open = _Part()
        self._line = b""
        self._usage = _summed(self._usage, part.answer.get("usage") or {})
        why = None if self._common else why or self._unfit(part)
        if why is not None:
            self._sender.count(why)
            if not (
                self.streams and self._sender.joined and self._text + part.text
            ):  # else the client has it already
                self._begin(common=True)
                return
        reason = part.choice.get(str(self._rules.stop_reason))
        ended = part.choice.get("finish_reason")
        matched = ""
        if ended == "stop" and reason in self._awaited:
            matched = reason
        completion_tokens = part.counted("completion") or 0
        self._state = self._sender.phases.after(self._state, (part.text + matched).encode())
        self._text = self._text + part.text + matched
        self._tokens = self._tokens + completion_tokens
        self._ids += part.choice.get("token_ids", ())
        self._parts.append(part)
        cut = (
            not self._common
            and ended == "length"
            and self._size is not None
            and completion_tokens >= self._size
        )
        has_tokens = self._most is None or self._tokens < self._most
        has_room = has_tokens and len(self._parts) < MOST_PARTS
        self.more = has_room and (cut or bool(matched))
        if matched and not has_room:
            part.choice["finish_reason"] = "length"
        if matched and self.streams:
            addition = {"delta": {"content": matched}} if self._chat else {"text": matched}
            self._tell(
                {
                    **part.answer,
                    "choices": [{"index": 0, **addition, "finish_reason": None}],
                    "usage": None,
                }
            )
        if not self.more and len(self._parts) > 1 and why is None:
            self._sender.count(None)

    def _unfit(self, part: _Part) -> str | None:
        """Why a part does not go on where the part before ended, None where it does."""
        counted = part.counted("prompt")
        completion_tokens = part.counted("completion")
        if part.choice.get("thoughts"):
            return "the server lists thoughts apart from the answer"
        if counted is None or completion_tokens is None:
            return "the server counts no tokens"
        if (
            completion_tokens
            and part.choice.get("finish_reason") == "length"
            and (not part.text or part.text.endswith("\N{REPLACEMENT CHARACTER}"))
        ):
            return "it ended inside a character"
        if part.calls and part.choice.get("finish_reason") == "length":
            return "it ended inside a call"
        ids = (
            part.answer.get(str(self._rules.prompt_ids))
            or part.choice.get(str(self._rules.prompt_ids))
            or []
        )
        if not self._parts:
            self._prompt = ids
            self._before = counted
        if counted != self._before + self._tokens:
            return (
                f"the server counts {counted} tokens before a part, and"
                f" {self._before + self._tokens} were to be"
            )
        if self._parts and ids[len(self._prompt) :] != self._ids and ids and self._ids:
            return "the server read the part before as other tokens"
        if self._tokens >= REPEATED and part.text.startswith(self._text):
            return "the server repeats the part before"
        return None

    def _event(self, data: bytes) -> None:
        """One event of a stream."""
        try:
            event = json.loads(data)
            self._open.add(event)
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # an error, say: the client reads it as it is
            self._held.append(b"data: " + data.strip() + b"\n\n")
            return
        first = (
            not self._parts
            and len(event["choices"])
            and "role" in (event["choices"][0].get("delta") or ())
        )
        if first or any(_text(choice) or choice.get("logprobs") for choice in event["choices"]):
            self._tell(
                {
                    **event,
                    "choices": [{**choice, "finish_reason": None} for choice in event["choices"]],
                    "usage": None,
                }
            )

    def _tell(self, event: Mapping[str, Any]) -> None:
        self._held.append(_event(self._cleared(event)))

    def _out(self) -> bytes:
        """The events held back, or nothing while they may not be sent yet."""
        if not (self._common or self._sender.joined or not self.more):
            return b""
        out = b"".join(self._held)
        self._held = []
        return out

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
        first = answer
        if self._parts:
            first = self._parts[0].answer
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


def _text(choice: Mapping[str, Any]) -> str:
    """The text of a choice, of chat or of completions, whole or as an event of a stream."""
    message = choice.get("message") or choice.get("delta") or choice
    return message.get("content") or message.get("text") or ""


def _with_calls(choice: Mapping[str, Any]) -> dict[str, Any]:
    """The message and the finish reason of a choice. A call at the beginning of its text becomes
    ``tool_calls``, because no server saw the whole text to read it; other text stays.
    """
    from blackbox_lb.types import CALL_MARKS, calls_in  # numpy, which no other answer needs

    message = dict(choice["message"])
    unchanged = {"message": message, "finish_reason": choice.get("finish_reason")}
    text = message["content"].lstrip()
    if not text.startswith(CALL_MARKS) or unchanged["finish_reason"] == "length":
        return unchanged
    calls = calls_in(text)
    if not calls:
        return unchanged
    written = [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]
    message |= {"content": None, "tool_calls": written}
    return {"message": message, "finish_reason": "tool_calls"}


def _event(document: Mapping[str, Any]) -> bytes:
    """As a stream sends it: https://html.spec.whatwg.org/multipage/server-sent-events.html."""
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def _summed(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, Any]:
    """The sum of two usage objects, field by field, nested objects included."""
    total = dict(first)
    for name, value in second.items():
        if isinstance(value, dict):
            total[name] = _summed(total.get(name) or {}, value)
        else:
            total[name] = (
                total.get(name, 0) + value
                if isinstance(value, int | float) and isinstance(total.get(name, 0), int | float)
                else value
            )
    return total
