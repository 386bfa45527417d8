"""Stepping back: whatever is drawn, nothing that was delivered changes, and no phrase is left."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.bias import stepping
from blackbox_lb.bias.phrases import PhraseList
from blackbox_lb.bias.stepping import (
    LONGEST_HELD,
    MOST_AT_PLACE,
    AnswerPiece,
    SteppingBack,
    with_bans,
)

TEXTS = ("a", "b", " ", " a", " b", "ab", " aba", "-", "é", "\n")
LINES = ("a b", "ab*", "b a b", "re:b+-", "re:a .? b", "aba", "-", "é a", "re:not .*? but")
STOPS = ("b b", "-a", "\n")


def drawn(
    phrases: PhraseList, tokens: list[int], stops: tuple[str, ...] = ()
) -> tuple[SteppingBack, list[str], bool]:
    """What comes of tokens that are drawn one after the other by a server that keeps bans; what had
    been delivered after each of them; and whether a stop text ended it. Each token is kept or
    counted as discarded.
    """
    number = 0
    answer = SteppingBack(phrases, stops)
    delivered = list[str]()
    for token in tokens:
        if token in answer.banned:
            continue
        piece = AnswerPiece(TEXTS[token], token)
        number += 1
        if answer.add(piece):
            answer.go_on()
        elif answer.stopped():
            return answer, delivered, True
        delivered.append("".join(kept.text for kept in answer.pieces[: answer.safe]))
        assert answer.tokens + answer.discarded == number
    return answer, delivered, False


@settings(max_examples=500)
@given(
    st.lists(st.sampled_from(LINES), min_size=1, max_size=4, unique=True),
    st.lists(st.integers(0, len(TEXTS) - 1), max_size=40),
    st.lists(st.sampled_from(STOPS), max_size=2, unique=True),
)
def test_what_is_delivered_stays_and_holds_no_phrase(
    lines: list[str], tokens: list[int], stops: list[str]
) -> None:
    """However the phrases overlap, and whether or not stop texts are watched, too."""
    phrases = PhraseList.of_entries(lines)
    answer, delivered, is_stopped = drawn(phrases, tokens, tuple(stops))
    if not is_stopped:
        while answer.end():
            answer.go_on()
    told = [*delivered, answer.text]
    for earlier, later in pairwise(told):
        assert later.startswith(earlier)
    if answer.let_through:
        return
    for text in told:
        sight = phrases.find(text, 0, False)
        assert sight is None or not sight.is_complete
    if not is_stopped:
        assert not phrases.hits(answer.text)


def test_text_without_a_begin_of_a_phrase_is_delivered_at_once() -> None:
    """And text with one only once it is none."""
    answer = SteppingBack(PhraseList.of_entries(["a testament to"]))
    safe = []
    for word in ("This", " is", " a", " test", "ament", " of", " time"):
        assert not answer.add(AnswerPiece(word, 1))
        safe.append(answer.safe)
    assert safe == [1, 2, 2, 2, 2, 6, 7]


def test_a_place_has_so_many_bans() -> None:
    """Then the phrase is let through, and what follows is watched as before."""
    answer = SteppingBack(PhraseList.of_entries(["re:x[0-9]+;"]))
    for token in range(MOST_AT_PLACE):
        assert not answer.add(AnswerPiece(f"x{token}", token))
        assert answer.add(AnswerPiece(";", 99)) or answer.add(AnswerPiece(" ", 98))
        answer.go_on()
    assert len(answer.banned) == MOST_AT_PLACE
    assert not answer.add(AnswerPiece("x9", 100))
    assert not answer.add(AnswerPiece(";", 99))
    assert not answer.add(AnswerPiece(" ", 98))
    assert (answer.steps, answer.let_through) == (MOST_AT_PLACE, 1)


def test_an_answer_has_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """After them phrases are let through and counted."""
    monkeypatch.setattr(stepping, "MOST_IN_ANSWER", 2)
    answer = SteppingBack(PhraseList.of_entries(["-"]))
    cuts = [answer.add(AnswerPiece(text, number)) for number, text in enumerate("-a-a-a-a")]
    assert sum(cuts) == 2
    assert answer.let_through == 2


def test_a_pattern_without_end_does_not_hold_everything_back() -> None:
    """It is looked for in so many characters."""
    answer = SteppingBack(PhraseList.of_entries(["re:not .* but"]))
    answer.add(AnswerPiece("not", 1))
    for _ in range(LONGEST_HELD):
        answer.add(AnswerPiece(" x", 2))
    held = sum(len(piece.text) for piece in answer.pieces[answer.safe :])
    assert held <= LONGEST_HELD + 2


def test_a_token_without_an_id_is_let_through() -> None:
    """And counted apart, so that a sender can say why."""
    answer = SteppingBack(PhraseList.of_entries(["red fish"]))
    for word in (" red", " fish", " x"):
        assert not answer.add(AnswerPiece(word, None))
    assert (answer.let_through, answer.unknown) == (1, 1)


def test_a_ban_takes_the_place_of_the_weakest_entry_where_there_is_no_other() -> None:
    """A server's limit of entries holds for the one request that bans tokens, too."""
    values = {1: 2.0, 2: -0.5, 3: -3.0}
    assert with_bans(values, [3, 9], -100.0, None) == {1: 2.0, 2: -0.5, 3: -100.0, 9: -100.0}
    assert with_bans(values, [9], -100.0, 3) == {1: 2.0, 3: -3.0, 9: -100.0}
    assert with_bans(values, [8, 9], -100.0, 1) == {8: -100.0, 9: -100.0}
