"""Stepping back: how phrases are kept out of an answer while it is drawn.

Text is held back as long as a phrase could still come of it. Where one is complete, the answer is
cut before the token with which it begins, that token is banned at that one place, and the answer is
drawn afresh from there. What is left is not what drawing whole answers again and again until one
holds no phrase would give: docs/phrases.md says the difference.

No requests here: what draws, over a stream or in parts, adds the pieces and does what it is told.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from blackbox_lb.bias.phrases import PhraseList, Sight

MOST_AT_PLACE = 8
"""Tokens that are banned at one place before a phrase is let through there."""
MOST_IN_ANSWER = 100
"""Steps back of one answer before all further phrases are let through."""
REQUESTS_A_STEP = 2
"""Requests that a step back adds: one token without the banned ones, and the rest."""
REST = 3
"""Tokens behind the first of a character, at most: UTF-8 has four bytes."""
LONGEST_HELD = 300
"""Characters that are held back for a phrase that is not complete yet."""


def with_bans(
    values: Mapping[int, float], banned: Iterable[int], low: float, most: int | None
) -> dict[int, float]:
    """Token id -> nats of a request that bans tokens.

    Args:
        values: of the request without bans.
        banned: the tokens.
        low: the lowest value that the server takes, in nats.
        most: the most entries that it takes, None for no limit; where there are more, the weakest
            of ``values`` are left out, at this one place.
    """
    bans = dict.fromkeys(banned, low)
    entries = {token: value for token, value in values.items() if token not in bans}
    if most is not None and len(entries) + len(bans) > most:
        strongest = sorted(entries, key=lambda token: -abs(entries[token]))
        entries = {token: entries[token] for token in strongest[: max(most - len(bans), 0)]}
    return {**entries, **bans}


class AnswerPiece(NamedTuple):
    """A token of an answer, or several that come as one text.

    text: of them. token: the id of the first, None where that is not known. tokens: how many.
    """

    text: str
    token: int | None
    tokens: int = 1


class SteppingBack:
    """One answer from which phrases are kept out.

    Args:
        phrases: that are kept out.
        stops: the stop texts of the request, which a server cannot see where they begin before the
            place at which the answer was continued.

    Attributes:
        pieces: of the answer so far, without what was discarded.
        steps: how often the answer was cut.
        discarded: tokens that were drawn and thrown away.
        let_through: phrases that were left in, since no more steps are made there.
        unknown: those of them whose first token the server does not name.
        is_possible: whether a phrase can be stepped back from; else it is let through.
    """

    def __init__(self, phrases: PhraseList, stops: Sequence[str] = ()) -> None:
        self.pieces = list[AnswerPiece]()
        self.steps = 0
        self.discarded = 0
        self.let_through = 0
        self.unknown = 0
        self.is_possible = True
        self._phrases = phrases
        self._stops = tuple(stops)
        self._text = ""
        self._ends = list[int]()  # characters up to the end of each piece
        self._searched = 0  # no phrase begins before
        self._continued_at = 0  # characters that were there when the answer was last continued
        self._bans: dict[int, set[int]] = {}  # piece -> tokens that may not begin it

    @property
    def text(self) -> str:
        """Of the answer so far."""
        return self._text

    @property
    def tokens(self) -> int:
        """Of the answer so far."""
        return sum(piece.tokens for piece in self.pieces)

    @property
    def banned(self) -> frozenset[int]:
        """The tokens that may not be drawn next."""
        return frozenset(self._bans.get(len(self.pieces), ()))

    @property
    def safe(self) -> int:
        """The number of pieces that no phrase can hold any more, so that they may be delivered."""
        return bisect_right(self._ends, self._searched)

    def add(self, piece: AnswerPiece) -> bool:
        """One more piece. True: a phrase is complete and the answer has been cut, so that it goes
        on after ``pieces`` without ``banned``.
        """
        self.pieces.append(piece)
        self._text += piece.text
        self._ends.append(len(self._text))
        return self._look(ended=False)

    def end(self) -> bool:
        """The answer has ended. True: a phrase at its end was cut off, as in ``add``."""
        return self._look(ended=True)

    def go_on(self) -> None:
        """The answer is continued at the end of ``pieces``."""
        self._continued_at = len(self._text)

    def stopped(self, *, anywhere: bool = False) -> bool:
        """Whether a stop text that begins before the place where the answer was continued is
        complete. The answer then ends before it.

        anywhere: also one that begins behind that place, where a server lists the tokens of it.
        """
        limit = self._continued_at
        if anywhere:
            limit = len(self._text)
        starts = list[int]()
        for stop in self._stops:
            first = max(0, self._continued_at - len(stop) + 1)
            start = self._text.find(stop, first, limit + len(stop))
            if 0 <= start < limit:
                starts.append(start)
        if starts:
            self._cut_text(min(starts))
        return bool(starts)

    def end_at(self, size: int) -> None:
        """The answer ends behind its first ``size`` characters, of which no more are there."""
        if size < len(self._text):
            self._cut_text(size)

    def _start_of_stop(self, end: int) -> int:
        """The first character of what may become a stop text where the text is cut at ``end``."""
        start = end
        for stop in self._stops:
            for size in range(min(len(stop) - 1, end), 0, -1):
                if self._text.endswith(stop[:size], 0, end):
                    start = min(start, end - size)
        return start

    def _look(self, *, ended: bool) -> bool:
        while True:
            sight = self._sight(self._text, ended=ended)
            if sight is None:
                self._searched = self._settled(len(self._text))
                return False
            if not sight.is_complete:
                self._searched = self._settled(sight.start)
                return False
            if self._step_back(sight.start):
                self._searched = self._settled(len(self._text))
                return True
            self.let_through += 1
            self._searched = sight.end

    def _sight(self, text: str, *, ended: bool) -> Sight | None:
        """The first phrase that is complete or could still come, and not one of endless length."""
        start = self._searched
        while True:
            sight = self._phrases.find(text, start, ended)
            if sight is None or sight.is_complete or len(text) - sight.start <= LONGEST_HELD:
                return sight
            start = sight.start + 1

    def _settled(self, end: int) -> int:
        """The character up to which text can be delivered, where what follows ``end`` may change:
        where the answer is cut there, another phrase or a stop text may begin earlier and need what
        is drawn then.
        """
        while True:
            place = bisect_right(self._ends, end)
            cut = self._ends[place - 1] if place else 0
            start = self._start_of_stop(cut)
            sight = self._sight(self._text[:cut], ended=False)
            if sight is not None:
                start = min(start, sight.start)
            start = max(start, self._searched)
            if start >= min(cut, end):
                return end
            end = start

    def _step_back(self, start: int) -> bool:
        """Cut the answer before the piece with character ``start``. False: no more steps here.

        A token that comes again although it is banned is let through: that server keeps no ban.
        """
        place = bisect_right(self._ends, start)
        token = self.pieces[place].token
        bans = self._bans.get(place, set())
        is_spent = len(bans) >= MOST_AT_PLACE or self.steps >= MOST_IN_ANSWER
        self.unknown += token is None
        if token is None or token in bans or is_spent or not self.is_possible:
            return False
        self.steps += 1
        self.discarded += sum(piece.tokens for piece in self.pieces[place:])
        self._bans = {at: tokens for at, tokens in self._bans.items() if at <= place}
        self._bans[place] = {*bans, token}
        self._keep(place)
        return True

    def _cut_text(self, end: int) -> None:
        """Keep the characters before ``end``."""
        place = bisect_right(self._ends, end)
        begins = self._ends[place - 1] if place else 0
        begin = self.pieces[place]._replace(text=self._text[begins:end])
        self._keep(place)
        self.pieces.append(begin)
        self._text += begin.text
        self._ends.append(len(self._text))
        self._searched = min(self._searched, len(self._text))

    def _keep(self, count: int) -> None:
        del self.pieces[count:]
        del self._ends[count:]
        self._text = self._text[: self._ends[-1] if self._ends else 0]
