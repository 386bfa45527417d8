"""An answer from which phrases are kept out: read as a stream, cut before a phrase that is
complete, and drawn afresh from there.

Each step back takes two requests: one for one token, without those that led to a phrase at this
place, and one for the rest. A stream is closed as soon as a phrase is complete, so that a server
draws little that nobody gets. Where the bias changes within an answer, too, a part also ends where
a phase does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

from blackbox_lb.bias.phases import MOST_PARTS
from blackbox_lb.bias.stepping import REST, SteppingBack
from blackbox_lb.deploy.part_answers import (
    TextPiece,
    joined_logprobs,
    pieces_of,
    text_of,
    with_text,
)
from blackbox_lb.deploy.part_requests import PartRequest, PartSender, PhraseCounts
from blackbox_lb.deploy.phase_requests import check_phased
from blackbox_lb.providers.stepping_back import check_steps_back

THOUGHTS = ("reasoning_content", "reasoning")
"""The fields in which servers list thoughts apart from an answer."""
_OF_A_PIECE = ("delta", "text", "logprobs", "token_ids", "prompt_token_ids")


class SteppedRequest(PartRequest):
    """A request whose answer is kept free of phrases.

    A client gets a text once no phrase can come of it, and nothing that it got is taken back. The
    text of calls of tools is left alone, and so is an answer with thoughts, which cannot be
    continued. Several choices (``n``) are drawn one after the other.

    Raises InputError: the server cannot go on from a cut answer; or, where the bias has phases,
    too, see ``PhasedRequest``.
    """

    reads_streams = True

    def __init__(self, sender: PartSender, document: Mapping[str, Any]) -> None:
        super().__init__(sender, document)
        if sender.phases.features:
            check_phased(sender, document)
        check_steps_back(sender.profile, "chat" if self._chat else "completions")
        number = document.get("n")
        self._choices = number if isinstance(number, int) and number > 1 else 1
        self._finished = list[dict[str, Any]]()
        self._requests = 0
        self._prompt_ids: list[int] = []
        self._prompt_tokens: int | None = None
        self._continued_tokens = 0
        self._usage: dict[str, Any] = {}
        self._spent = PhraseCounts()
        # A server that drops parts of characters would make these rarer, were it asked again.
        self._rest = REST if sender.profile.logprobs.drops_fragments else 0
        self._begin()

    def _begin(self) -> None:
        """Reset to the state before the first part of a choice."""
        assert self._sender.phrases is not None
        self._stepping = SteppingBack(self._sender.phrases, self._stops)
        self._pieces = list[tuple[Mapping[str, Any], TextPiece]]()  # with the event of each
        self._told = 0
        self._parts = 0
        self._hidden = 0
        self._calls: dict[int, dict[str, Any]] = {}
        self._thoughts: dict[str, str] = {}
        self._ending: dict[str, Any] = {}

    def body(self) -> bytes:
        """See ``PartRequest``."""
        stepping = self._stepping
        stepping.go_on()
        self._failed = 0
        self._line = b""
        self._ended = False
        self.is_cut = False
        self._unread = list[Mapping[str, Any]]()
        self._before = stepping.tokens
        banned = stepping.banned
        phases = self._sender.phases
        self._state = phases.after(0, stepping.text.encode())
        self._phase = phases.of_state(self._state, self._before)
        limits = []
        if self._most is not None:
            limits.append(self._most - self._before)
        boundary = phases.boundary(self._state, self._before)
        if boundary.tokens is not None:
            limits.append(boundary.tokens)
        self._is_last = not banned and boundary.tokens is None
        self._is_redraw = bool(banned)
        if banned:
            limits.append(1 + self._rest)
        self._size = min(limits, default=None)
        sent = self._fields(self._requests, stepping.text, self._before)
        sent.pop("n", None)
        if not self._chat and stepping.pieces:
            sent["prompt"] = self._prompt_so_far()
        sent["stream"] = True
        sent["stream_options"] = {**(sent.get("stream_options") or {}), "include_usage": True}
        if self._rules.prompt_ids is False and not sent.get("logprobs"):
            sent |= {"logprobs": True, "top_logprobs": 1} if self._chat else {"logprobs": 1}
        self._requests += 1
        self._parts += 1
        self._spent.requests += 1
        return self._encoded(sent, self._phase, banned)

    def _prompt_so_far(self) -> str | list[Any]:
        """The prompt and the answer so far, for a completions endpoint: by token ids where the
        server takes them and has told all of them, so that nothing is read as other tokens.
        """
        text = self._stepping.text
        ids = [token for _, piece in self._pieces for token in piece.ids]
        may_lack = self._sender.profile.logprobs.drops_fragments and not text.isascii()
        if len(ids) == self._stepping.tokens and not may_lack:
            if self._prompt_ids:
                return [*self._prompt_ids, *ids]
            if self._rules.mixed_prompts:
                return [self._asked["prompt"], *ids]
        return str(self._asked["prompt"]) + text

    def take(self, content: bytes) -> None:
        """Parts come as streams."""
        raise TypeError("the parts of an answer that is kept free of phrases come as streams")

    def _event(self, data: bytes) -> None:
        try:
            event = json.loads(data)
            choices = [dict(choice) for choice in event["choices"]]
        except (ValueError, KeyError, TypeError):
            self.fault = data.strip()
            return
        self._usage = event.get("usage") or self._usage
        is_first = not self._opening
        if is_first:
            self._opening = {**event, "choices": []}
        name = str(self._rules.prompt_ids)
        for choice in choices:
            if self._requests == 1:
                self._prompt_ids = event.get(name) or choice.get(name) or self._prompt_ids
            self._ending |= {
                name: value
                for name, value in choice.items()
                if value is not None and name not in _OF_A_PIECE
            }
            self._ended = self._ended or choice.get("finish_reason") is not None
            self._choice(event, choice, is_first)

    def _choice(self, event: Mapping[str, Any], choice: dict[str, Any], is_first: bool) -> None:
        delta = choice.get("delta") or {}
        thoughts = {name: delta[name] for name in THOUGHTS if delta.get(name)}
        if thoughts or delta.get("tool_calls"):
            self._leave_alone(event, choice)
            for name, text in thoughts.items():
                self._thoughts[name] = self._thoughts.get(name, "") + text
            for call in delta.get("tool_calls") or ():
                _collect(self._calls, call)
            return
        choice = self._with_unread(choice)
        if text_of(choice):
            self._texts(event, choice)
        elif choice.get("token_ids") or choice.get("logprobs"):
            self._unread.append(choice)
        elif "role" in delta and (is_first or (self._parts == 1 and not self._pieces)):
            self._show(event, choice)

    def _with_unread(self, choice: dict[str, Any]) -> dict[str, Any]:
        """The choice with the tokens before it that ended inside a character."""
        if not self._unread or not text_of(choice):
            return choice
        rows = [*self._unread, choice]
        self._unread = []
        ids = [token for row in rows for token in row.get("token_ids") or ()]
        logprobs = joined_logprobs(rows)
        return {**choice, "logprobs": logprobs} | ({"token_ids": ids} if ids else {})

    def _texts(self, event: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """The text of an event."""
        stepping = self._stepping
        phases = self._sender.phases
        for text in pieces_of(choice):
            self._pieces.append((event, text))
            if stepping.add(text.piece):
                self._drop()
            elif stepping.stopped():
                self._stop()
            elif self._parts < MOST_PARTS and phases.features:
                self._state = phases.after(self._state, text.piece.text.encode())
                self.is_cut = phases.of_state(self._state, stepping.tokens) != self._phase
            if self._is_redraw and self._rest:
                self.is_cut = True  # what follows was drawn with the ban, too
            if self.is_cut:
                break
        self._release(stepping.safe)

    def _drop(self) -> None:
        """What stepping back has cut off."""
        del self._pieces[len(self._stepping.pieces) :]
        self.is_cut = True

    def _stop(self) -> None:
        """The answer ends before a stop text that no single part held."""
        pieces = self._stepping.pieces
        event, last = self._pieces[len(pieces) - 1]
        cut = last._replace(piece=pieces[-1], choice=with_text(last.choice, pieces[-1].text))
        self._pieces[len(pieces) - 1 :] = [(event, cut)]
        self._ending["finish_reason"] = "stop"
        self._ended = True
        self.is_cut = True

    def _leave_alone(self, event: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """Thoughts or calls: nothing is cut any more."""
        self._stepping.is_possible = False
        self._release(len(self._pieces))
        self._show(event, choice)

    def _release(self, count: int) -> None:
        """Deliver so many pieces in all."""
        while self._told < count:
            event, text = self._pieces[self._told]
            self._show(event, text.choice)
            self._told += 1

    def _show(self, event: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """An event for a client that asked for a stream."""
        if not self.streams:
            return
        row = {**choice, "index": len(self._finished), "finish_reason": None}
        if not self._asked.get("logprobs"):
            row["logprobs"] = None
        self._tell({**event, "choices": [row], "usage": None})

    def end(self) -> bytes:
        """See ``PartRequest``."""
        self._count_part()
        finish = self._ending.get("finish_reason")
        if self.fault is None and not self.is_cut and not self._ended:
            message = "the upstream's stream ended without a reason; ask again"
            self.fault = json.dumps({"error": {"message": message}}).encode()
        if self.fault is not None:
            self.more = False
            self._held.append(b"data: " + self.fault + b"\n\n")
            return self._out()
        if self.is_cut and not self._ended:
            return self._out()
        has_room = self._most is None or self._stepping.tokens < self._most
        if finish == "length" and has_room and not self._is_last:
            # A redrawn token that ended inside a character: the rest tells which it is.
            if self._stepping.tokens == self._before:
                self._rest = REST
            return self._out()
        if not self.is_cut and self._stepping.end():
            self._drop()
            self._ended = False
            return self._out()
        self._finish()
        return self._out()

    def _count_part(self) -> None:
        """Take the usage of a part into account."""
        usage = self._usage
        self._usage = {}
        told = usage.get("prompt_tokens")
        if isinstance(told, int) and self._prompt_tokens is None:
            self._prompt_tokens = told - self._before
        self._continued_tokens += self._before
        completion = usage.get("completion_tokens")
        if isinstance(completion, int) and not self.is_cut:
            # The end of an answer is a token, too, and so are parts of characters.
            self._hidden += max(0, completion - (self._stepping.tokens - self._before))

    def _finish(self) -> None:
        """A choice is complete."""
        stepping = self._stepping
        self._release(len(self._pieces))
        self._spent.answers += 1
        self._spent.steps += stepping.steps
        self._spent.discarded += stepping.discarded
        self._spent.let_through += stepping.let_through
        if stepping.unknown:
            self._sender.tell_once("the server does not tell which tokens it draws in a stream")
        self._spent.delivered += stepping.tokens + self._hidden
        self._finished.append(self._whole_choice())
        last = self._finished[-1]
        if self.streams:
            empty: dict[str, Any] = {"delta": {}} if self._chat else {"text": ""}
            ends = {"index": last["index"], "logprobs": None}
            event = {**self._opening, "choices": [{**self._ending, **empty, **ends}]}
            self._tell({**event, "usage": None})
        self.more = len(self._finished) < self._choices
        if self.more:
            self._begin()
            return
        self._sender.counts.add(self._spent)
        if self.streams and (self._asked.get("stream_options") or {}).get("include_usage"):
            self._tell({**self._opening, "choices": [], "usage": self._total()})
        if self.streams:
            self._held.append(b"data: [DONE]\n\n")

    def _whole_choice(self) -> dict[str, Any]:
        """The choice as an answer that is no stream has it."""
        text = self._stepping.text
        choice: dict[str, Any] = {**self._ending, "index": len(self._finished)}
        choice["logprobs"] = None
        if self._asked.get("logprobs"):
            choice["logprobs"] = joined_logprobs([text.choice for _, text in self._pieces])
        choice["token_ids"] = list(chain.from_iterable(piece.ids for _, piece in self._pieces))
        if not self._chat:
            return {**choice, "text": text}
        message: dict[str, Any] = {"role": "assistant", "content": text, **self._thoughts}
        if self._calls:
            message |= {"content": text or None}
            message["tool_calls"] = [self._calls[place] for place in sorted(self._calls)]
        return {**choice, "message": message}

    @property
    def answer(self) -> bytes:
        """See ``PartRequest``."""
        kind = "chat.completion" if self._chat else "text_completion"
        document = {**self._opening, "object": kind, "choices": self._finished}
        return json.dumps(self._cleared({**document, "usage": self._total()})).encode()

    def _total(self) -> dict[str, Any] | None:
        """The usage of the answer, and what was drawn beside it."""
        if self._prompt_tokens is None:
            return None
        spent = self._spent
        read = self._prompt_tokens * self._requests + self._continued_tokens
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": spent.delivered,
            "total_tokens": self._prompt_tokens + spent.delivered,
            "x_phrases": {
                "steps_back": spent.steps,
                "let_through": spent.let_through,
                "discarded_tokens": spent.discarded,
                "requests": spent.requests,
                "prompt_tokens_of_all_requests": read,
            },
        }


def _collect(calls: dict[int, dict[str, Any]], delta: Mapping[str, Any]) -> None:
    """Add a piece of a call of a tool to the calls so far."""
    call = calls.setdefault(int(delta.get("index") or 0), {"function": {}})
    function = call["function"]
    for name, value in (delta.get("function") or {}).items():
        is_text = name == "arguments" and name in function
        function[name] = function[name] + value if is_text else value
    call |= {name: value for name, value in delta.items() if name not in ("index", "function")}
