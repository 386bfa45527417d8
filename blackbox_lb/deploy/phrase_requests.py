"""An answer from which phrases are kept out: read as a stream, cut before a phrase that is
complete, and drawn afresh from there.

Each step back takes two requests: one for one token, without those that led to a phrase at this
place, and one for the rest. A stream is closed as soon as a phrase is complete, so that a server
draws little that nobody gets. Where the bias changes within an answer, too, a part also ends where
a phase does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blackbox_lb.bias.phases import MOST_PARTS, Boundary
from blackbox_lb.bias.stepping import REST, SteppingBack
from blackbox_lb.deploy.part_answers import joined_logprobs, pieces_of, text_of, with_text
from blackbox_lb.deploy.part_checks import check_phased
from blackbox_lb.deploy.part_requests import NextPart, PartRequest
from blackbox_lb.deploy.part_sender import PartSender, PhraseCounts
from blackbox_lb.providers.stepping_back import check_steps_back


class SteppedRequest(PartRequest):
    """A request whose answer is kept free of phrases.

    A client gets a text once no phrase can come of it, and nothing that it got is taken back. The
    text of calls of tools is left alone, and so is an answer with thoughts, which cannot be
    continued. Several choices (``n``) are drawn one after the other.

    Raises InputError: the server cannot go on from a cut answer; or, where the bias has phases,
    too, see ``PhasedRequest``.
    """

    def __init__(self, sender: PartSender, document: Mapping[str, Any]) -> None:
        if sender.phases.features:
            check_phased(sender, document)
        check_steps_back(sender.profile, "chat" if "messages" in document else "completions")
        self._continued_tokens = 0
        self._spent = PhraseCounts()
        # A server that drops parts of characters would make these rarer, were it asked again.
        self._rest = REST if sender.profile.logprobs.drops_fragments else 0
        super().__init__(sender, {name: value for name, value in document.items() if name != "n"})
        self.reads_streams = True
        number = document.get("n")
        if isinstance(number, int) and number > 1:
            self._choices = number

    def _begin(self) -> None:
        super()._begin()
        assert self._sender.phrases is not None
        self._stepping = SteppingBack(self._sender.phrases, self._stops)
        self._hidden = 0

    @property
    def _tokens(self) -> int:
        return self._stepping.tokens

    def _next(self, boundary: Boundary) -> NextPart:
        self._stepping.go_on()
        self._unread = list[Mapping[str, Any]]()
        banned = self._stepping.banned
        self._is_redraw = bool(banned)
        self._is_last = not banned and boundary.tokens is None
        self._spent.requests += 1
        fields: dict[str, Any] = {}
        if self._rules.prompt_ids is False and not self._asked.get("logprobs"):
            fields = {"logprobs": True, "top_logprobs": 1} if self._chat else {"logprobs": 1}
        if banned:
            return NextPart(1 + self._rest, banned=banned, fields=fields)
        return NextPart(fields=fields)

    def _begun_prompt(self, text: str) -> str | list[Any]:
        """By token ids where the server takes them and has told all of them, so that nothing is
        read as other tokens.
        """
        ids = [token for _, piece in self._pieces for token in piece.ids]
        may_lack = self._sender.profile.logprobs.drops_fragments and not text.isascii()
        if len(ids) == self._tokens and not may_lack:
            if self._prompt:
                return [*self._prompt, *ids]
            if self._rules.mixed_prompts:
                return [self._asked["prompt"], *ids]
        return super()._begun_prompt(text)

    def _add(self, event: Mapping[str, Any], choice: dict[str, Any]) -> None:
        if not text_of(choice):
            self._unread.append(choice)
            return
        stepping = self._stepping
        for text in pieces_of(self._with_unread(choice)):
            self._pieces.append((event, text))
            if stepping.add(text.piece):
                self._drop()
            elif stepping.stopped():
                self._stop()
            elif self._parts < MOST_PARTS and self._phases.features:
                self._state = self._phases.after(self._state, text.piece.text.encode())
                self.is_cut = self._phases.of_state(self._state, self._tokens) != self._phase
            if self._is_redraw and self._rest:
                self.is_cut = True  # what follows was drawn with the ban, too
            if self.is_cut:
                break
        self._release(stepping.safe)

    def _with_unread(self, choice: dict[str, Any]) -> dict[str, Any]:
        """The choice with the tokens before it that ended inside a character."""
        if not self._unread:
            return choice
        rows = [*self._unread, choice]
        self._unread = []
        ids = [token for row in rows for token in row.get("token_ids") or ()]
        logprobs = joined_logprobs(rows)
        return {**choice, "logprobs": logprobs} | ({"token_ids": ids} if ids else {})

    def _drop(self) -> None:
        """What stepping back has cut off; the answer goes on."""
        del self._pieces[len(self._stepping.pieces) :]
        self._ending.pop("finish_reason", None)
        self.is_cut = True

    def _stop(self) -> None:
        """The answer ends before a stop text that no single part held."""
        pieces = self._stepping.pieces
        event, last = self._pieces[len(pieces) - 1]
        cut = last._replace(piece=pieces[-1], choice=with_text(last.choice, pieces[-1].text))
        self._pieces[len(pieces) - 1 :] = [(event, cut)]
        self._ending["finish_reason"] = "stop"
        self.is_cut = True

    def _leave_alone(self) -> None:
        super()._leave_alone()
        self._stepping.is_possible = False

    def _is_complete(self) -> bool:
        self._continued_tokens += self._before
        completion = self._usage.get("completion_tokens")
        if isinstance(completion, int) and not self.is_cut:
            # The end of an answer is a token, too, and so are parts of characters.
            self._hidden += max(0, completion - (self._tokens - self._before))
        finish = self._ending.get("finish_reason")
        if finish is None:
            return False
        has_room = self._most is None or self._tokens < self._most
        if finish == "length" and has_room and not self._is_last:
            # A redrawn token that ended inside a character: the rest tells which it is.
            if self._tokens == self._before:
                self._rest = REST
            return False
        if self._stepping.end():
            self._drop()
            return False
        return True

    def _finish(self) -> None:
        stepping = self._stepping
        self._spent.answers += 1
        self._spent.steps += stepping.steps
        self._spent.discarded += stepping.discarded
        self._spent.let_through += stepping.let_through
        self._spent.delivered += stepping.tokens + self._hidden
        if stepping.unknown:
            self._sender.tell_once("the server does not tell which tokens it draws in a stream")
        super()._finish()
        if not self.more:
            self._sender.counts.add(self._spent)

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
