"""A bias that changes within an answer: one request for each phase, and the parts joined into one
answer.

A part is drawn with the bias of the prompt in one phase, and ends at the next boundary: after so
many tokens, or at a text, as a stop text. The text so far goes back as the beginning of the answer,
and the next part is drawn with the next bias.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from blackbox_lb.bias.phases import MOST_PARTS
from blackbox_lb.deploy.part_answers import (
    PhaseAnswer,
    joined_logprobs,
    summed,
    text_of,
    with_calls,
)
from blackbox_lb.deploy.part_requests import PartRequest, PartSender
from blackbox_lb.errors import InputError

REPEATED = 8
"""Tokens: hardly ever does an answer go on with so many tokens that it began with, unless the
server repeats them.
"""
_FIXED_FORM = (
    "response_format",
    "grammar",
    "json_schema",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "regex",
    "ebnf",
)
"""Fields that fix the form of an answer, in OpenAI's API, llama.cpp, vLLM and SGLang."""
_LEFT_ALONE = {
    **dict.fromkeys(_FIXED_FORM, "fixes the form of the answer"),
    "functions": "offers functions",
    "best_of": "asks for the best of several",
    "use_beam_search": "searches with beams",
    "echo": "asks for its prompt back",
    "suffix": "has a suffix",
}
_NOTHING: tuple[Any, ...] = (None, False, [], "", 1, {"type": "text"})
_PARTS = "a bias with phases is sent in parts, and this request"


class PhasedRequest(PartRequest):
    """One request in parts, a phase each.

    The events of a stream are held back until a first answer of this server has been joined, so
    that parts that do not fit together can be replaced by an answer with the vector of the rest.

    Raises InputError: the request cannot be answered in parts, or the server is not known to
    continue a message.
    """

    def __init__(self, sender: PartSender, document: Mapping[str, Any]) -> None:
        check_phased(sender, document)
        super().__init__(sender, document)
        self.reads_streams = self.streams
        self._usage: dict[str, Any] = {}
        self._begin(sender.given_up)

    def _begin(self, common: bool) -> None:
        """Reset to the state before the first part.

        common: the whole answer in one part, with the vector of the rest.
        """
        self._common = common
        self._text = ""
        self._state = 0
        self._tokens = 0
        self._parts = list[PhaseAnswer]()
        self._opening = {}
        self._prompt = list[int]()
        self._before = 0
        self._ids = list[int]()
        self._open = PhaseAnswer()
        self._line = b""
        self._held = list[bytes]()

    def body(self) -> bytes:
        """See ``PartRequest``."""
        self._failed = 0
        phases = self._sender.phases
        number = len(self._parts)
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
        sent = self._fields(number, self._text, self._tokens)
        if self._stops or self._awaited:
            sent["stop"] = [*self._stops, *self._awaited]
        if self.streams:
            sent["stream_options"] = {**(sent.get("stream_options") or {}), "include_usage": True}
        return self._encoded(sent, phase)

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

    @property
    def answer(self) -> bytes:
        """The joined answer: the last one with all text and logprobs, and the usage of all."""
        last = self._parts[-1]
        choice = {name: value for name, value in last.choice.items() if name != "thoughts"} | {
            "token_ids": self._ids
        }
        choice["logprobs"] = joined_logprobs(part.choice for part in self._parts)
        if last.calls:
            choice["message"] = {**choice["message"], "content": last.text or None}
        elif self._chat:
            choice["message"] = {**choice["message"], "content": self._text}
            if self._asked.get("tools"):
                choice |= with_calls(choice)
        else:
            choice["text"] = self._text
        return json.dumps(
            self._cleared({**last.answer, "choices": [choice], "usage": self._usage})
        ).encode()

    def _close(self, why: str | None) -> None:
        """Append the received part to the answer, and set ``more``."""
        part = self._open
        self._open = PhaseAnswer()
        self._line = b""
        self._usage = summed(self._usage, part.answer.get("usage") or {})
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
        self._opening = self._parts[0].answer
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

    def _unfit(self, part: PhaseAnswer) -> str | None:
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
        if first or any(text_of(choice) or choice.get("logprobs") for choice in event["choices"]):
            self._tell(
                {
                    **event,
                    "choices": [{**choice, "finish_reason": None} for choice in event["choices"]],
                    "usage": None,
                }
            )

    def _out(self) -> bytes:
        """The events held back, or nothing while they may not be sent yet."""
        if not (self._common or self._sender.joined or not self.more):
            return b""
        return super()._out()


def left_alone(document: Mapping[str, Any]) -> str | None:
    """Why the answer to a request is not drawn in parts, as the end of a sentence; None where
    nothing forbids it.
    """
    for name, reason in _LEFT_ALONE.items():
        if document.get(name) not in _NOTHING:
            return f"{reason} (``{name}``)"
    if document.get("tools") and document.get("tool_choice") not in (None, "auto", "none"):
        return "forces a call (``tool_choice``)"
    messages = document.get("messages")
    if messages is None and not isinstance(document.get("prompt"), str):
        return "has a prompt that is not one text"
    last = messages[-1] if isinstance(messages, list) and messages else None
    if isinstance(last, dict) and last.get("role") == "assistant":
        return "begins the answer with a message of its own"
    return None


def check_phased(sender: PartSender, document: Mapping[str, Any]) -> None:
    """Raise InputError: a request cannot be answered in parts, or the server is not known to
    continue a message.
    """
    reason = left_alone(document)
    if reason is not None:
        raise InputError(
            f"{_PARTS} {reason}, so that its answer could not be joined; leave that out, or use a"
            " client without a bias"
        )
    if document.get("n") not in _NOTHING:
        raise InputError(f"{_PARTS} asks for several completions (``n``); ask once for each")
    if document.get("tools"):
        _check_tools(sender, document)
    if "messages" in document and sender.profile.answers.continues is False:
        raise InputError(
            f"{sender.profile.name} is not known to continue a message, so a bias with"
            " phases cannot be sent to its chat endpoint; name the server's profile with"
            " provider=, let blb doctor ``save`` find out, or serve the bias inside vLLM"
        )


def _check_tools(sender: PartSender, document: Mapping[str, Any]) -> None:
    """Raise InputError: a call could not be put together from parts."""
    if sender.phases.until:
        raise InputError(
            f"{_PARTS} offers tools, whose calls may hold the text that ends a phase; learn a"
            " bias with ``phases=first``, or leave the tools out"
        )
    if document.get("stream"):
        raise InputError(
            f"{_PARTS} offers tools in a stream, in which a call is known only at its end; ask"
            " without stream"
        )
