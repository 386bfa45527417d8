"""Completions from which phrases are kept out, drawn in parts where a server continues token ids.

A part of some tokens is drawn, read for phrases, and cut before one that is complete; its first
token is banned at that place for one token, and the next part goes on from there. That is the
distribution of a sender that reads a stream (docs/phrases.md), in requests that a store can keep.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.bias.stepping import Piece, SteppingBack
from blackbox_lb.errors import InputError
from blackbox_lb.rollouts.phased import (
    bytes_of,
    check_continues,
    complete_by_phase,
    first_tokens,
    joined,
)
from blackbox_lb.types import NO_TOKEN, Completion, Prompt

PART = 32
"""Tokens of a part: fewer take more requests, and of more are more thrown away."""


def is_in_parts(bias: RequestBias) -> bool:
    """Whether a completion with a bias takes several requests."""
    return "prefix" in bias.scopes or bias.phrases is not None


def check_parts(session: Session, bias: RequestBias) -> None:
    """Raise InputError where the server takes no prompt of token ids, so that no part could be
    continued as it was drawn.
    """
    if bias.phrases is not None and not session.profile.follows_ids(session.vocabulary):
        raise InputError(
            f"{session.profile.name} is not known to continue token ids, so completions without"
            " phrases cannot be drawn and judged there; use vllm, llamacpp or local, or a bias"
            " without phrases"
        )
    if "prefix" in bias.scopes:
        check_continues(session, bias.phases)


async def complete_in_parts(session: Session, prompt: Prompt, draw: Draw) -> Completion:
    """One completion of a prompt with a bias for which one request is not enough."""
    if draw.bias.phrases is None:
        return await complete_by_phase(session, prompt, draw)
    return await _Stepped(session, prompt, draw).complete()


class _Stepped:
    """One completion from which phrases are kept out."""

    def __init__(self, session: Session, prompt: Prompt, draw: Draw) -> None:
        assert draw.bias.phrases is not None
        self._session = session
        self._prompt = prompt
        self._draw = draw
        self._stepping = SteppingBack(draw.bias.phrases, draw.sampling.stop)
        self._parts = list[Completion]()
        self._ends = list[int]()  # tokens up to the end of each piece of the answer
        self._tokens = list[int]()

    async def complete(self) -> Completion:
        """The completion. ``generated`` counts what a stream would have drawn and thrown away, too:
        a part that is cut here goes on a little longer.
        """
        ids = await self._session.prompt_ids(self._prompt)
        ended = False
        while not ended:
            part = await self._part(ids)
            ended = await self._take(part)
        completion = joined(self._parts, self._stepping.text)
        return replace(completion, generated=len(self._tokens) + self._stepping.discarded)

    async def _part(self, ids: Sequence[int]) -> Completion:
        """The next part. ids: of the prompt."""
        stepping = self._stepping
        stepping.go_on()
        draw = self._draw
        rules = self._session.profile.reference
        assert rules is not None  # checked before anything is drawn
        room = draw.sampling.max_tokens - len(self._tokens)
        size = min(1 if stepping.banned else PART, room)
        values = dict(draw.bias.at(self._prompt, self._phase()))
        low = self._session.profile.bias.low
        values |= dict.fromkeys(stepping.banned, low)
        sent = Draw(
            replace(draw.sampling, max_tokens=size),
            RequestBias(values),
            rules.endpoint,
            draw.fields,
        )
        [part] = await self._session.complete_many([*ids, *self._tokens], sent)
        return part

    def _phase(self) -> int:
        phases = self._draw.bias.phases
        return phases.of_state(phases.after(0, self._stepping.text.encode()), len(self._tokens))

    async def _take(self, part: Completion) -> bool:
        """Read a part; whether the completion has ended."""
        stepping = self._stepping
        phases = self._draw.bias.phases
        phase = self._phase()
        part, spelled = await self._listed(part)
        tokens = part.token_ids.tolist()
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        first: int | None = None
        waiting = 0
        self._parts.append(part)
        for number, token in enumerate(tokens):
            first = token if first is None else first
            waiting += 1
            self._tokens.append(token)
            text = decoder.decode(spelled.get(token, b""))
            if not text:
                continue
            self._ends.append(len(self._tokens))
            if stepping.add(Piece(text, first, waiting)):
                self._cut()
                return False
            first = None
            waiting = 0
            is_changed = bool(phases.features) and self._phase() != phase
            if is_changed and number + 1 < len(tokens):
                self._cut()
                return False
        has_room = len(self._tokens) < self._draw.sampling.max_tokens
        if part.cut and has_room and part.whole:
            return False
        if stepping.end():
            self._cut()
            return False
        return True

    async def _listed(self, part: Completion) -> tuple[Completion, dict[int, bytes]]:
        """The part with all tokens of its text, and their bytes. Where the server lists some of
        them not, they are those that it reads the text as, and the part is not whole.
        """
        tokens = part.token_ids.tolist()
        spelled = await bytes_of(self._session, tokens, part.token_bytes)
        raw = b"".join(spelled.get(token, b"") for token in tokens)
        if part.whole or raw.decode(errors="replace").startswith(part.text):
            return part, spelled
        tokens = await self._session.encode(part.text)
        count = len(tokens)
        unknown = replace(
            part,
            token_ids=np.array(tokens, np.int32),
            logprobs=np.zeros(count, np.float32),
            top_ids=np.full((count, 1), NO_TOKEN, np.int32),
            top_logprobs=np.full((count, 1), -np.inf, np.float32),
            propensities=None,
            bounded=None,
            whole=False,
        )
        return unknown, await bytes_of(self._session, tokens, {})

    def _cut(self) -> None:
        """Keep the tokens of the pieces that are left."""
        count = len(self._stepping.pieces)
        del self._ends[count:]
        size = self._ends[-1] if self._ends else 0
        del self._tokens[size:]
        kept = list[Completion]()
        for part in self._parts:
            length = len(part.token_ids)
            if size < length:
                part = first_tokens(part, size, "")
            if len(part.token_ids) or not kept:
                kept.append(part)
            size -= len(part.token_ids)
        self._parts = kept
