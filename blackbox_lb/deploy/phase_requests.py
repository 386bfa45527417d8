"""A bias that changes within an answer: one request for each phase, and the parts joined into one
answer.

A part is drawn with the bias of the prompt in one phase, and ends at the next boundary: after so
many tokens, or at a text, as a stop text. The text so far goes back as the beginning of the answer,
and the next part is drawn with the next bias.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blackbox_lb.bias.phases import MOST_PARTS, Boundary, Phases
from blackbox_lb.bias.stepping import AnswerPiece
from blackbox_lb.deploy.part_answers import TextPiece, summed, text_of, with_calls
from blackbox_lb.deploy.part_checks import check_phased
from blackbox_lb.deploy.part_requests import NextPart, PartRequest
from blackbox_lb.deploy.part_sender import PartSender

REPEATED = 8
"""Tokens: hardly ever does an answer go on with so many tokens that it began with, unless the
server repeats them.
"""


class PhasedRequest(PartRequest):
    """One request in parts, a phase each.

    The events of a stream are held back until a first answer of this server has been joined, so
    that parts that do not fit together can be replaced by an answer with the vector of the rest.

    Raises InputError: the request cannot be answered in parts, or the server is not known to
    continue a message.
    """

    def __init__(self, sender: PartSender, document: Mapping[str, Any]) -> None:
        check_phased(sender, document)
        self._usage_of_all: dict[str, Any] = {}
        super().__init__(sender, document)
        if sender.given_up:
            self._phases = Phases()

    def _begin(self) -> None:
        super()._begin()
        self._counted = 0

    @property
    def _tokens(self) -> int:
        return self._counted

    def _next(self, boundary: Boundary) -> NextPart:
        self._begun = self._text
        self._begun_ids = [token for _, text in self._pieces for token in text.ids]
        self._awaited = list[str]()
        self._lacks_begun = False
        if self._parts + 1 < MOST_PARTS:
            self._awaited = self._awaited_texts(boundary.text)
        return NextPart(stops=self._awaited)

    def _awaited_texts(self, text: str) -> list[str]:
        """The stop texts for the text that ends a phase: the text itself, and its remainder where
        the previous part ended with its beginning.
        """
        begun = self._state
        if self._phases.second(self._state):
            begun -= len(self._phases.until.encode())
        missing = text.encode()[begun:].decode(errors="ignore")
        texts = dict.fromkeys((text, missing))
        return [stop for stop in texts if stop and stop not in self._stops]

    def _add(self, event: Mapping[str, Any], choice: dict[str, Any]) -> None:
        text = text_of(choice)
        # A server that reads a call from the text of all parts puts none of it into the content,
        # nor the mark of a call that it cannot read.
        if "message" in choice and self._rules.repeats and not self._message.calls:
            self._lacks_begun = not text.startswith(self._begun)
            text = text.removeprefix(self._begun)
        self._append(event, choice, text)

    def _append(self, event: Mapping[str, Any], choice: dict[str, Any], text: str) -> None:
        ids = tuple(choice.get("token_ids") or ())
        self._pieces.append((event, TextPiece(AnswerPiece(text, None), choice, ids)))
        self._release(len(self._pieces))

    def _is_complete(self) -> bool:
        self._usage_of_all = summed(self._usage_of_all, self._usage)
        unfit = None
        if self._phases.features:
            unfit = self._unfit()
        if unfit is not None:
            self._sender.count(unfit)
            is_with_client = self.streams and self._sender.joined and self._text
            if not is_with_client:
                self._begin_anew()
                return False
        completion_tokens = self._counted_in("completion") or 0
        self._counted += completion_tokens
        ended = self._ending.get("finish_reason")
        reason = self._ending.get(str(self._rules.stop_reason))
        has_reached_size = self._size is not None and completion_tokens >= self._size
        is_phase_full = bool(self._phases.features) and ended == "length" and has_reached_size
        has_met_text = ended == "stop" and reason in self._awaited
        has_tokens = self._most is None or self._counted < self._most
        has_room = has_tokens and self._parts < MOST_PARTS
        if has_met_text:
            addition = {"delta": {"content": reason}} if self._chat else {"text": reason}
            self._append(self._opening, {"index": 0, **addition}, str(reason))
        if has_met_text and not has_room:
            self._ending["finish_reason"] = "length"
        goes_on = has_room and (is_phase_full or has_met_text)
        if not goes_on and self._parts > 1 and unfit is None:
            self._sender.count(None)
        return not goes_on

    def _begin_anew(self) -> None:
        """The whole answer in one part, with the vector of the rest."""
        self._phases = Phases()
        self._opening = {}
        self._requests = 0
        self._held = []
        self._begin()

    def _counted_in(self, name: str) -> int | None:
        """Tokens of the part by its usage."""
        number = self._usage.get(f"{name}_tokens")
        if isinstance(number, int):
            return number
        return None

    def _unfit(self) -> str | None:
        """Why a part does not go on where the part before ended, None where it does."""
        text = self._text.removeprefix(self._begun)
        counted = self._counted_in("prompt")
        completion_tokens = self._counted_in("completion")
        if self._message.has_thoughts:
            return "the server lists thoughts apart from the answer"
        if counted is None or completion_tokens is None or self._prompt_tokens is None:
            return "the server counts no tokens"
        has_length = self._ending.get("finish_reason") == "length"
        is_within_character = not text or text.endswith("\N{REPLACEMENT CHARACTER}")
        if completion_tokens and has_length and is_within_character:
            return "it ended inside a character"
        if self._message.calls and has_length:
            return "it ended inside a call"
        expected = self._prompt_tokens + self._counted
        if counted != expected:
            return f"the server counts {counted} tokens before a part, and {expected} were to be"
        ids = self._prompt_ids
        if ids and self._begun_ids and ids[len(self._prompt) :] != self._begun_ids:
            return "the server read the part before as other tokens"
        if self._counted >= REPEATED and text.startswith(self._begun):
            return "the server repeats the part before"
        if self._lacks_begun and not self._has_begun_a_call():
            return "the server did not repeat the part before, as its profile says"
        return None

    def _has_begun_a_call(self) -> bool:
        """Whether the text so far begins as nothing but a call does, and tools are offered."""
        if not self._asked.get("tools"):
            return False
        from blackbox_lb.types import CALL_MARKS  # numpy, which no other answer needs

        return self._begun.lstrip().startswith(CALL_MARKS)

    def _choice(self) -> dict[str, Any]:
        choice = super()._choice()
        if self._message.calls:
            choice["message"]["content"] = self._text.removeprefix(self._begun) or None
        elif self._chat and self._asked.get("tools"):
            choice |= with_calls(choice)
        return choice

    def _total(self) -> dict[str, Any] | None:
        return self._usage_of_all

    def _out(self) -> bytes:
        """The events held back, or nothing while they may not be sent yet."""
        if self._phases.features and not self._sender.joined and self.more:
            return b""
        return super()._out()
