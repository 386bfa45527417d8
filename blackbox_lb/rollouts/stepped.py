"""Completions from which phrases are kept out, drawn in parts where a server continues token ids.

A part of some tokens is drawn, read for phrases, and cut before one that is complete; its first
token is banned at that place for one token, and the next part goes on from there. That is the
distribution of a sender that reads a stream (docs/phrases.md), in requests that a store can keep.

llama.cpp lists no token that leaves a character incomplete, and ends a text before such a
character. There a part is asked for with the tokens of one more character, and what begins behind
the part itself is dropped, whatever it is: a part that is asked for again where it ends inside a
character would make these characters rarer.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import replace

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.bias.stepping import REST, AnswerPiece, SteppingBack, with_bans
from blackbox_lb.errors import InputError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.fragments import places_of, with_all_tokens
from blackbox_lb.rollouts.phased import (
    bytes_of,
    check_continues,
    complete_by_phase,
    first_tokens,
    joined,
)
from blackbox_lb.types import Completion, Prompt

PART = 32
"""Tokens of a part: fewer take more requests, and of more are more thrown away."""
REPLACEMENT = "\ufffd".encode()


def check_keeps_out(profile: Profile, vocabulary: object) -> None:
    """Raise InputError where the server takes no prompt of token ids, so that no completion could
    be drawn without phrases. vocabulary: the model's, None where it is not at hand.
    """
    if not profile.follows_ids(vocabulary):
        raise InputError(
            f"{profile.name} is not known to continue token ids, so completions without phrases"
            " cannot be drawn and judged there; use vllm, llamacpp, local, or sglang with its"
            " ``tokenizer``, or a bias without phrases"
        )


def check_parts(session: Session, bias: RequestBias) -> None:
    """Raise InputError where the server takes no prompt of token ids, so that no part could be
    continued as it was drawn.
    """
    if bias.phrases is not None:
        check_keeps_out(session.profile, session.vocabulary)
    if "prefix" in bias.scopes:
        check_continues(session, bias.phases)


async def complete_in_parts(session: Session, prompt: Prompt, draw: Draw) -> Completion:
    """One completion of a prompt with a bias for which one request is not enough."""
    if draw.bias.phrases is None:
        return await complete_by_phase(session, prompt, draw)
    return await _Stepped(session, prompt, draw).complete()


class _Stepped:
    """One completion from which phrases are kept out.

    A token that leaves a character incomplete waits for the others: together they are one piece of
    the text.
    """

    def __init__(self, session: Session, prompt: Prompt, draw: Draw) -> None:
        assert draw.bias.phrases is not None
        self._session = session
        self._prompt = prompt
        self._draw = draw
        self._stepping = SteppingBack(draw.bias.phrases, draw.sampling.stop)
        self._parts = list[Completion]()
        self._ends = list[int]()  # tokens up to the end of each piece of the answer
        self._tokens = list[int]()
        self._waiting = list[int]()  # the last tokens, without a whole character so far
        self._decoder = _decoder()
        self._is_stopped = False
        self._requests = 0
        self._prompt_tokens = 0
        self._rest = 0
        if session.profile.logprobs.drops_fragments:
            self._rest = REST

    async def complete(self) -> Completion:
        """The completion. ``generated`` counts what a stream would have drawn and thrown away, too:
        a part that is cut here goes on a little longer. The prompt counts once a request.
        """
        ids = await self._session.prompt_ids(self._prompt)
        ended = False
        while not ended:
            ended = await self._next(ids)
        completion = joined(self._parts, self._stepping.text)
        if self._is_stopped:
            completion = replace(completion, finish_reason="stop")
        return replace(
            completion,
            prompt_tokens=self._prompt_tokens,
            generated=len(self._tokens) + self._stepping.discarded,
        )

    async def _next(self, ids: Sequence[int]) -> bool:
        """Draw and read the next part; whether the completion has ended. ids: of the prompt."""
        room = self._draw.sampling.max_tokens - len(self._tokens)
        banned = self._stepping.banned
        if self._waiting:
            banned = frozenset()  # they are of the token that begins the piece
        length = PART
        if banned:
            length = 1
        size = min(length + self._rest, room)
        self._stepping.go_on()
        part = await self._part([*ids, *self._tokens], size, banned)
        return await self._take(part, length, is_last=size == room)

    async def _part(self, prompt: Sequence[int], size: int, banned: frozenset[int]) -> Completion:
        """A part of ``size`` tokens behind the ``prompt``."""
        draw = self._draw
        profile = self._session.profile
        rules = profile.reference
        assert rules is not None  # checked before anything is drawn
        rule = profile.bias
        values = with_bans(
            draw.bias.at(self._prompt, self._phase()), banned, rule.low, rule.entries
        )
        sent = Draw(
            replace(draw.seeded(self._requests), max_tokens=size),
            RequestBias(values),
            rules.endpoint,
            draw.fields,
        )
        [part] = await self._session.complete_many(prompt, sent)
        self._requests += 1
        self._prompt_tokens += part.prompt_tokens
        return part

    def _phase(self) -> int:
        phases = self._draw.bias.phases
        return phases.of_state(phases.after(0, self._stepping.text.encode()), len(self._tokens))

    async def _take(self, part: Completion, length: int, *, is_last: bool) -> bool:
        """Read a part; whether the completion has ended.

        length: pieces that begin behind so many tokens are dropped. is_last: whether the part may
        fill the completion.
        """
        stepping = self._stepping
        phases = self._draw.bias.phases
        phase = self._phase()
        before = len(stepping.text)
        part, spelled = await self._listed(part, is_last=is_last)
        self._parts.append(part)
        tokens = part.token_ids.tolist()
        for number, token in enumerate(tokens):
            if number >= length and not self._waiting:
                self._cut()
                return False
            self._tokens.append(token)
            self._waiting.append(token)
            text = self._decoder.decode(spelled[number])
            if not text:
                continue
            if self._add(text):
                self._cut()
                return False
            if stepping.stopped(anywhere=True):
                return self._stop()
            is_changed = bool(phases.features) and self._phase() != phase
            if is_changed and number + 1 < len(tokens):
                self._cut()
                return False
        if part.filtered or part.broken_off:
            return True
        is_full = is_last or len(self._tokens) >= self._draw.sampling.max_tokens
        if part.cut and tokens and not is_full:
            return False
        rest = self._decoder.decode(b"", True)
        if rest and self._add(rest):
            self._cut()
            return False
        told = stepping.text[before:]
        is_longer = len(told) > len(part.text) and told.startswith(part.text)
        if self._draw.sampling.stop and not part.cut and is_longer:
            stepping.end_at(before + len(part.text))
            return self._stop()
        return self._end()

    def _add(self, text: str) -> bool:
        """The text of the tokens that wait. True: the answer has been cut before a phrase."""
        piece = AnswerPiece(text, self._waiting[0], len(self._waiting))
        self._ends.append(len(self._tokens))
        self._waiting.clear()
        return self._stepping.add(piece)

    def _stop(self) -> bool:
        """A stop text has ended the answer; see ``_end``."""
        self._cut()
        self._is_stopped = True
        return self._end()

    def _end(self) -> bool:
        """The answer is at its end; whether it stays so, without a phrase there."""
        if not self._stepping.end():
            return True
        self._is_stopped = False
        self._cut()
        return False

    async def _listed(self, part: Completion, *, is_last: bool) -> tuple[Completion, list[bytes]]:
        """The part with all tokens of its text, and the bytes of each. Where the server lists some
        of them not, they are those that it reads the text as: the part is not whole, and the tokens
        that it does not list have no logprob, only the bound of 0 nats.
        """
        listed = part.token_ids.tolist()
        spelled = await bytes_of(self._session, listed, part.token_bytes)
        spellings = [spelled[token] for token in listed]
        text = b"".join(spellings).decode(errors="replace")
        if part.whole:
            return part, spellings
        if part.cut and not is_last and text == part.text:
            return replace(part, whole=True), spellings  # but for a character that is drawn again
        if text.startswith(part.text):
            return part, spellings
        tokens = await self._session.encode(part.text)
        if listed and not part.cut and not spelled[listed[-1]]:
            tokens = [*tokens, listed[-1]]  # the token that ended it
        spelled |= await bytes_of(self._session, tokens, spelled)
        spellings = spelled_along(part.text, [spelled[token] for token in tokens])
        filled = with_all_tokens(part, tokens, places_of(listed, tokens))
        return replace(filled, whole=False), spellings

    def _cut(self) -> None:
        """Keep the tokens of the pieces that are left; of a text that a stop text has cut, those
        that hold some of it.
        """
        count = sum(bool(piece.text) for piece in self._stepping.pieces)
        del self._ends[count:]
        size = 0
        if self._ends:
            size = self._ends[-1]
        del self._tokens[size:]
        self._waiting.clear()
        self._decoder = _decoder()
        remaining = list[Completion]()
        for part in self._parts:
            length = len(part.token_ids)
            if size < length:
                part = first_tokens(part, size, "")
            if len(part.token_ids) or not remaining:
                remaining.append(part)
            size -= len(part.token_ids)
        self._parts = remaining


def spelled_along(text: str, spellings: Sequence[bytes]) -> list[bytes]:
    """The bytes of the tokens of a text, where a server spells the parts of a character as U+FFFD.

    Of several such tokens in a row the first gets the bytes of all.
    """
    raw = text.encode()
    place = 0
    recovered = list[bytes]()
    for number, spelling in enumerate(spellings):
        if REPLACEMENT not in spelling:
            recovered.append(spelling)
            place += len(spelling)
            continue
        if number and REPLACEMENT in spellings[number - 1]:
            recovered.append(b"")
            continue
        behind = number
        while behind < len(spellings) and REPLACEMENT in spellings[behind]:
            behind += 1
        end = len(raw)
        if any(spellings[behind:]):
            following = next(filter(None, spellings[behind:]))
            end = max(raw.find(following, place + behind - number), place)
        recovered.append(raw[place:end])
        place = end
    return recovered


def _decoder() -> codecs.IncrementalDecoder:
    """Of bytes that may end inside a character."""
    return codecs.getincrementaldecoder("utf-8")("replace")
