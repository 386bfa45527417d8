"""Rewards that are a sum over places: the rules about a text, the places of a function's reward, and
the token that each place falls on.
"""

from __future__ import annotations

import asyncio
import json
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.estimate.counting.distributed import Share
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.positions import Positions, scored, training_set
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.rollouts.reading import position_costs, reading_of
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, parse_reward
from blackbox_lb.tasks.rewards.forms.avoid import count_words
from blackbox_lb.tasks.rewards.spans import find_quote
from blackbox_lb.types import Completion, Example, Prompt, Span
from blackbox_lb.vocabulary.tokenizer import Tokenizer
from tests.support.errors import names, raises_naming

EXAMPLE = Example("q1", Prompt.user("Tell me a story."))


def completion(
    text: str, tokens: int = 3, finish_reason: str = "stop", first: int = 0
) -> Completion:
    """A completion of the tokens ``first``, ``first`` + 1 and so on, with two listed at each."""
    return Completion(
        text=text,
        finish_reason=finish_reason,
        token_ids=np.arange(first, first + tokens, dtype=np.int32),
        logprobs=np.full(tokens, -2.0, dtype=np.float32),
        top_ids=np.tile(np.array([[0, 9]], dtype=np.int32), (tokens, 1)),
        top_logprobs=np.tile(np.array([[-0.4, -1.5]], dtype=np.float32), (tokens, 1)),
    )


WriteList = Callable[[str], Reward]


@pytest.fixture
def avoid(tmp_path: Path) -> WriteList:
    """Make the reward of a list of these lines."""

    def write(lines: str) -> Reward:
        path = tmp_path / "list.txt"
        path.write_text(lines)
        return parse_reward(f"avoid:{path}", max_tokens=60)

    return write


def places(reward: Reward, text: str) -> dict[str, float]:
    """The passages of ``text`` and their amounts; one that occurs twice has both."""
    amounts: dict[str, float] = {}
    for span in reward.score(EXAMPLE, completion(text)).spans or ():
        passage = text[span.start : span.end]
        amounts[passage] = amounts.get(passage, 0.0) + span.amount
    return amounts


# avoid:FILE


@pytest.mark.parametrize(
    ("line", "text", "passages"),
    [
        ("tapestry*", "A Tapestry of tapestries", {"Tapestry": -1.0, "tapestries": -1.0}),
        ("tapestry 2 # overused", "A tapestry", {"tapestry": -2.0}),
        ("delve*", "delve delved delving delver", dict.fromkeys(("delve", "delved", "delving", "delver"), -1.0)),
        ("lone*", "a long, lone, lonely london", {"lone": -1.0, "lonely": -1.0}),
        ("art*", "an article on art", {"art": -1.0}),
        ("once upon a time .5", "Once  upon\na time", {"Once  upon\na time": -0.5}),
        ('"area 51" 3', "in Area 51", {"Area 51": -3.0}),
        ("don't", "Don’t", {"Don’t": -1.0}),
        ("c++", "in C++, not c", {"C++": -1.0}),
        ("deep", "deep deeply _deep_", {"deep": -2.0}),
        ("茶", "好茶好", {"茶": -1.0}),
        (r"/[—–]|(?<=\w)--(?=\w)/ 0.5", "a—b--c -- d", {"—": -0.5, "--": -0.5}),
    ],
)  # fmt: skip
def test_a_line_of_a_list_finds_its_words(
    avoid: WriteList, line: str, text: str, passages: dict[str, float]
) -> None:
    """Whole words in any case, other forms behind a star, phrases over any white space, patterns,
    and weights; in a hundred words a hit costs its weight.
    """
    padding = " so" * (100 - count_words(text))
    assert places(avoid(f"# a comment\n\n{line}\n"), text + padding) == pytest.approx(passages)


@pytest.mark.parametrize(
    ("text", "words"),
    [("Don't stop: 3 naïve cafés", 4), ("好茶 お茶", 4), ("한국어 문장", 2), ("... 17", 0)],
)
def test_a_hit_costs_a_share_of_the_words(avoid: WriteList, text: str, words: int) -> None:
    """A contraction is one word, a number none, and each letter of Han or kana one."""
    found = places(avoid("here"), f"{text} here")
    assert found == pytest.approx({"here": -100 / (words + 1)})


def test_a_place_counts_once(avoid: WriteList) -> None:
    """Of lines that overlap the one that begins first counts, and of those the longer one."""
    reward = avoid("tapestry*\nrich tapestry\nTapestry of life 3\n/of life and/\n")
    text = "tapestry of life and a rich tapestry"
    scale = 100 / 7
    assert places(reward, text) == pytest.approx(
        {"tapestry of life": -3 * scale, "rich tapestry": -scale}
    )
    assert reward.score(EXAMPLE, completion(text)).value == pytest.approx(-4 * scale)


def test_patterns_with_groups_are_searched_one_by_one(avoid: WriteList) -> None:
    """What refers to its own groups, or sets flags, means the same beside others, and in the
    workers of an engine.
    """
    reward = avoid("/(a)b\\1/\n/(c)d\\1/\n/(?-i:E)/\n/f(?=g)/\n")
    for searched in (reward, pickle.loads(pickle.dumps(reward))):
        assert set(places(searched, "aba cdc e E fg abc")) == {"aba", "cdc", "E", "f"}
    plain = avoid("/a.c/\n/d{2}/\n/lone/ 2\n")
    assert set(places(plain, "abc dd Lone a")) == {"abc", "dd", "Lone"}
    assert not places(plain, "nothing")


def test_words_of_the_command_are_a_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They count as the same lines in a file; a file of that name goes first, and which of both it
    is stands in the summary. A list that cannot be read is refused.
    """
    monkeypatch.chdir(tmp_path)
    text = "A tapestry of delving — and more."
    inline = parse_reward("avoid:delve*,tapestry 2,—", max_tokens=60)
    (tmp_path / "list.txt").write_text("delve*\ntapestry 2\n—\n")
    listed = parse_reward("avoid:list.txt", max_tokens=60)
    assert inline.score(EXAMPLE, completion(text)) == listed.score(EXAMPLE, completion(text))
    assert names(inline.summary, "delve, tapestry, —", "read as words")
    assert names(listed.summary, "delve, tapestry, —", "in the file list.txt")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9\n")
    for spec, fact in (
        ("delve,/(/", "entry 2"),
        ("latin.txt", "UTF-8"),
        (tmp_path / "nowhere.txt", "nowhere.txt"),
    ):
        with raises_naming(InputError, fact):
            parse_reward(f"avoid:{spec}", max_tokens=60)


def test_a_pattern_that_blows_up_is_stopped(
    avoid: WriteList, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that would take for ever is an error that names the line, also where only a longer
    text shows it.
    """
    monkeypatch.setattr("blackbox_lb.bias.phrases.SECONDS", 0.2)
    begun = time.process_time()
    reward = avoid("tapestry\n/(.*)-\\1[PQ]/\n")
    with raises_naming(InputError, "line 2"):
        reward.score(EXAMPLE, completion("a-" * 20_000))
    assert time.process_time() - begun < 5


def test_what_a_token_costs_by_itself(avoid: WriteList) -> None:
    """A token that holds a whole word costs it in a completion of the typical length; a piece of a
    word, and a token of another word, cost nothing.
    """
    rule = avoid("deeply\ncreak* 2\nonce upon a time\n/—/\n")
    assert rule.has_token_costs
    tokens = [" Deeply", "deeply", " cre", " creaking", " upon", "—", " so"]
    costs = rule.token_costs(tokens, ["so " * 20, "so " * 60])
    assert costs == pytest.approx([-2.5, -2.5, 0.0, -5.0, 0.0, -2.5, 0.0])
    assert rule.token_costs([" creaks"], []) == pytest.approx([-2.0])
    script = parse_reward("script:Latin", max_tokens=60)
    costs = script.token_costs(["Да", " the", "\ufffd", "語"], ["abcde" * 10, "abcde" * 30])
    assert costs == pytest.approx([-2.0, 0.0, 0.0, -1.0])


# script:NAME


@pytest.mark.parametrize(
    ("scripts", "text", "passages"),
    [
        ("Latin", "Да, 12 — abcdef 😀", {"Д": -12.5, "а": -12.5}),
        ("latin,Cyrl", "Да, 12 — abcdef 😀", {}),
        ("Hiragana,Katakana,Han", "コーヒーを飲むx", {"x": -12.5}),
        ("Old_Italic", "... 12", {}),
    ],
)
def test_letters_outside_the_scripts_cost(
    scripts: str, text: str, passages: dict[str, float]
) -> None:
    """Foreign letters are counted for each hundred letters; signs, digits, emoji and marks that no
    script has for itself are not. A script has any name of Unicode.
    """
    reward = parse_reward(f"script:{scripts}", max_tokens=60)
    assert places(reward, text) == pytest.approx(passages)
    assert reward.score(EXAMPLE, completion(text)).value == pytest.approx(sum(passages.values()))


# laws of all rules


@settings(max_examples=60)
@given(st.text("tapestry of delv—Да語a.\n ", max_size=80))
def test_places_of_a_rule_are_in_order(text: str) -> None:
    """They do not overlap, lie inside the text, and cost what was counted there."""
    for rule in RULES:
        spans = rule.score(EXAMPLE, completion(text)).spans or ()
        assert all(span.amount < 0 for span in spans)
        ends = [0, *(span.end for span in spans)]
        assert all(end <= span.start < span.end for end, span in zip(ends, spans, strict=False))
        assert ends[-1] <= len(text)


RULES = [
    parse_reward(spec, max_tokens=60)
    for spec in ("script:Latin", "script:Cyrillic", "avoid:tapestry,of,delv*,/[—.]/ 2,/a|p/")
]


# a function of the user's own


@pytest.fixture
def function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WriteList]:
    """Make the reward of a function with this body."""
    monkeypatch.chdir(tmp_path)

    def write(body: str) -> Reward:
        lines = ["from blackbox_lb import Score, Span"]
        lines += ["def f(example, completion):", f"    return {body}"]
        (tmp_path / "own_spans_for_test.py").write_text("\n".join(lines))
        return parse_reward("own_spans_for_test:f", max_tokens=60)

    yield write
    sys.modules.pop("own_spans_for_test", None)


@pytest.mark.parametrize(
    ("body", "spans"),
    [
        ("-3, [(0, 2, -1), (3, 5, -2.0)]", (Span(0, 2, -1.0), Span(3, 5, -2.0))),
        ("-3, (Span(0, 2, -1.0), Span(3, 5, -2.0))", (Span(0, 2, -1.0), Span(3, 5, -2.0))),
        ("Score(-3.0, ([0, 2, -1], [3, 5, -2]))", (Span(0, 2, -1.0), Span(3, 5, -2.0))),
        ("0, []", ()),
    ],
)
def test_a_function_may_say_where(function: WriteList, body: str, spans: tuple[Span, ...]) -> None:
    """A pair, or a ``Score``, with spans that are triples or ``Span`` objects. An empty list is
    earned nowhere, which is not the same as not knowing.
    """
    reward = function(body)
    assert not reward.has_spans
    score = reward.score(EXAMPLE, completion("ab cd"))
    assert (score.value, score.spans) == (sum(span.amount for span in spans), spans)
    assert reward.has_spans


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ("-3, [(0, 2, -1)]", ("-3", "-1")),
        ("float('-inf'), [(0, 2, -1)]", ("minus infinity", "``tau``")),
        ("-1, [(0, 9, -1)]", ("0 to 9", "5")),
        ("-1, [(-1, 2, -1)]", ("-1 to 2",)),
        ("-1, [(0, 2)]", ("(0, 2)",)),
        ("-1, [(0.5, 2, -1)]", ("0.5",)),
        ("-1, [(0, 2, float('nan'))]", ("nan",)),
        ("-1, 'ab'", ("'ab'",)),
    ],
)
def test_spans_that_cannot_be_are_refused(
    function: WriteList, body: str, facts: Sequence[str]
) -> None:
    """Places outside the text, no places at all, and amounts that add up to another number; both
    numbers are said.
    """
    with raises_naming(InputError, *facts):
        function(body).score(EXAMPLE, completion("ab cd"))


@pytest.mark.parametrize(
    ("costs", "facts"),
    [
        ("[0.0]", ("[0.0]", "2 texts")),
        ("[0.0, float('nan')]", ("nan", "2 texts")),
        ("['a', 'b']", ("ValueError", "token_costs")),
        ("1 / 0", ("ZeroDivisionError", "token_costs")),
    ],
)
def test_a_rule_gives_a_number_for_each_text(
    function: WriteList, costs: str, facts: Sequence[str]
) -> None:
    """Fewer numbers would be those of other tokens; an error of its code is named as such."""
    rule = f"class Rule:\n    def token_costs(*_): return {costs}\nf.rule = Rule()"
    reward = function(f"0\n{rule}")
    with raises_naming(InputError, *facts):
        reward.token_costs([" a", " b"], ["a b"])


# marks:FILE


def marked(folder: Path, *rows: object) -> Reward:
    """The reward of these rows of marks."""
    path = folder / "marked.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return parse_reward(f"marks:{path}", max_tokens=60)


def test_marks_are_quotes_or_places(tmp_path: Path) -> None:
    """A quote marks its next place that is not marked yet; a mark costs 1 unless it says more."""
    text = "so lone, so “lone”"
    marks = ["lone", {"quote": '"lone"', "amount": -2}, {"start": 0, "end": 2, "amount": 0.5}, "so"]
    reward = marked(tmp_path, {"completion": text, "marks": marks}, {"completion": "", "marks": []})
    assert reward.score(EXAMPLE, completion(text)).spans == (
        Span(0, 2, 0.5),
        Span(0, 2, -1.0),
        Span(3, 7, -1.0),
        Span(12, 18, -2.0),
    )
    assert reward.score(EXAMPLE, completion(text)).value == -3.5
    assert reward.score(EXAMPLE, completion("")).value == 0.0
    assert reward.has_spans


def test_marks_belong_to_one_example(tmp_path: Path) -> None:
    """The same text under two prompts may be marked differently; a completion that nobody read has
    no reward.
    """
    reward = marked(
        tmp_path,
        {"id": "q1", "completion": "No.", "marks": []},
        {"prompt": "And you?", "completion": "No.", "marks": ["No"]},
    )
    other = Example("q2", Prompt.user("And you?"))
    assert reward.score(EXAMPLE, completion("No.")).value == 0.0
    assert reward.score(other, completion("No.")).value == -1.0
    with raises_naming(InputError, "marked.jsonl", "'Yes.'", "'q1'"):
        reward.score(EXAMPLE, completion("Yes."))
    with raises_naming(InputError, "marked.jsonl", "'No.'", "'q3'"):
        reward.score(Example("q3", Prompt.user("Who?")), completion("No."))


@pytest.mark.parametrize(
    "row",
    [
        {"completion": "a b"},
        {"marks": ["a"]},
        {"completion": "a b", "marks": ["c"]},
        {"completion": "a b", "marks": ["a", "a"]},
        {"completion": "a b", "marks": [{"start": 1}]},
        {"completion": "a b", "marks": [{"start": 0, "end": 9}]},
        {"completion": "a b", "marks": [{"quote": "a", "amount": "much"}]},
        {"completion": "a b", "marks": [{"word": "a"}]},
        {"completion": "a b", "marks": [" "]},
    ],
)
def test_marks_that_cannot_be_are_refused(tmp_path: Path, row: object) -> None:
    """A mark outside its text, a quote that is not in it, and a row without a text."""
    with raises_naming(DataError, "line 1"):
        marked(tmp_path, row)


def test_a_table_of_marks_may_have_an_empty_cell(tmp_path: Path) -> None:
    """Which is refused with its line: it may mean that nothing is marked, or that nobody read."""
    path = tmp_path / "marked.csv"
    path.write_text('completion,marks\na b,"[""a""]"\nc,\n')
    with raises_naming(DataError, "line 3", "[]"):
        parse_reward(f"marks:{path}", max_tokens=60)


def test_a_quote_is_found_in_another_spelling() -> None:
    """White space, quotation marks and, where the exact one is missing, the case may differ."""
    text = "The  old\nlamp said: “don’t”. the old lamp"
    assert find_quote(text, "the old lamp") == (29, 41)
    assert find_quote(text, "The old lamp") == (0, 13)
    assert find_quote(text, "OLD LAMP") == (5, 13)
    assert find_quote(text, '"don\'t"') == (20, 27)
    assert find_quote(text, "old lamp", 13) == (33, 41)
    assert find_quote(text, "new lamp") is None


# The token that a place falls on


def costs(
    spelled: Sequence[bytes | None],
    text: str,
    spans: Sequence[Span],
    finish_reason: str = "stop",
) -> tuple[list[float], bool]:
    """What each of these tokens adds to the reward, and whether all places were found."""
    token_bytes = {n: raw for n, raw in enumerate(spelled) if raw is not None}
    found, is_located = position_costs(
        completion(text, len(spelled), finish_reason), spans, token_bytes
    )
    return found.tolist(), is_located


@pytest.mark.parametrize(
    ("spelled", "text", "span", "position"),
    [
        ([b"The", b" old", b" lamp"], "The old lamp", (4, 7), 1),
        ([b"The", b" o", b"ld", b" lamp"], "The old lamp", (4, 12), 1),
        ([b"So", b"it", b"is"], "So it is", (3, 5), 1),
        ([b"So", b" it", None], "So it", (5, 5), 2),
        ([b"So", b" it\n\nQ", b":"], "So it", (3, 5), 1),
        ([b"a", None, b"c", b"d"], "aXcd", (1, 2), 1),
        ([b"a", None, b"c", None], "aXc", (2, 3), 2),
        ([b"a", None, b"c", b"d", None, b"e"], "aXcdYe", (3, 4), 3),
        ([b"a", None, b"c", b"d", None, b"e"], "aXcdYe", (4, 5), 4),
        ([b"a", b"b", b"c\xf0\x9f"], "abc\ufffd", (2, 3), 2),
    ],
)
def test_a_place_falls_on_the_token_of_its_first_byte(
    spelled: list[bytes | None], text: str, span: tuple[int, int], position: int
) -> None:
    """Also where a phrase goes over several tokens; where the server leaves out a first space; where
    an end token or a stop text follows; and where the bytes of one token are not known.
    """
    found, is_located = costs(spelled, text, [Span(*span, -2.0)])
    assert is_located
    assert np.flatnonzero(found).tolist() == [position]
    assert found[position] == -2.0


def test_what_cannot_be_located_is_on_the_last_token() -> None:
    """Two unknown tokens in a row cannot be told apart; what stands before and behind them can."""
    spelled: list[bytes | None] = [b"a", None, None, b"d"]
    assert costs(spelled, "abcd", [Span(1, 2, -2.0)], "length") == ([0, 0, 0, -2], False)
    assert costs(spelled, "abcd", [Span(3, 4, -2.0)], "length") == ([0, 0, 0, -2], True)
    assert costs(spelled, "abcd", [Span(0, 4, -2.0)], "length") == ([-2, 0, 0, 0], True)
    assert costs([], "", [Span(0, 0, -2.0)]) == ([], False)
    several = [b"a", None, b"c", None, b"e"]  # "c" stands at three places
    assert costs(several, "aXcccYe", [Span(5, 6, -2.0)]) == ([0, 0, 0, 0, -2], False)
    assert costs(several, "aXcccYe", [Span(6, 7, -2.0)]) == ([0, 0, 0, 0, -2], False)


@settings(max_examples=100)
@given(st.text("aé—😀 語", min_size=1, max_size=12), st.data())
def test_every_character_falls_where_it_begins(text: str, data: st.DataObject) -> None:
    """Of any text, cut into tokens at any bytes: what is earned adds up, and each character counts
    in the token of its first byte. Where the bytes of some tokens are not known, it counts there or
    is said to have no token.
    """
    raw = text.encode()
    cuts = sorted(data.draw(st.sets(st.integers(1, len(raw)), max_size=6)) | {len(raw)})
    spelled = [raw[begin:end] for begin, end in zip([0, *cuts], cuts, strict=False)]
    for number in range(len(text)):
        found, is_located = costs(spelled, text, [Span(number, number + 1, 1.0)])
        begin = len(text[:number].encode())
        holder = next(n for n, cut in enumerate(cuts) if begin < cut)
        assert is_located
        assert np.flatnonzero(found).tolist() == [holder]
        withheld = data.draw(st.sets(st.integers(0, len(cuts) - 1), max_size=3))
        shown = [None if n in withheld else raw for n, raw in enumerate(spelled)]
        found, is_located = costs(shown, text, [Span(number, number + 1, 1.0)], "length")
        assert sum(found) == 1.0
        assert not is_located or np.flatnonzero(found).tolist() == [holder]


# Training sets

SETTINGS = {"model": "m", "tokenizer": "t"}
EXAMPLES = [Example(str(n), Prompt.user(f"question {n}")) for n in range(2)]
SPELLED = {0: b"A", 1: b" lone", 2: b" lamp", 3: b" \xe2\x80", 4: b"\x94", 5: b" so"}


def stored(
    folder: Path, reward: Reward, *drawn: Completion
) -> tuple[Positions, tuple[RolloutStore, list[list[str]]]]:
    """The training set of these completions, dealt to two prompts."""
    store = RolloutStore(folder / "s.db")
    keys: list[list[str]] = [[], []]
    for number, one in enumerate(drawn):
        prompt = number % 2
        keys[prompt].append(store.add(SETTINGS, EXAMPLES[prompt].prompt, number // 2, one))
    store.add_token_bytes("t", SPELLED)
    return training_set(store, EXAMPLES, keys, reward), (store, keys)


def test_spans_become_costs_of_positions(avoid: WriteList, tmp_path: Path) -> None:
    """The training set has what each token adds to the reward, as the shares of an engine's workers
    have. Where tokens do not add up to the text, the cost is on the last one, and a notice counts
    the completions.
    """
    reward = avoid("lone\n/—/ 2\n")
    drawn = [
        completion("A lone lamp —", 5),
        completion(" lamp —", 3, first=2),
        completion("his lone lamp", 3, "length", first=7),
    ]
    training, (store, keys) = stored(tmp_path, reward, *drawn)
    scale = 100 / 3
    wanted = [0, -scale, 0, -2 * scale, 0, 0, 0, -scale, 0, -200, 0]
    assert training.rollouts.costs == pytest.approx(wanted)
    assert training.rollouts.rewards == pytest.approx([-3 * scale, -scale, -200])
    assert [notice[:13] for notice in training.notices] == ["1 completions"]
    with store:
        assert scored(store, EXAMPLES, keys, reward)[0].costs == pytest.approx(wanted)
        reading = reading_of(store, EXAMPLES, keys, reward)
        shares = [Share(part.blocks(store, Counter()), None) for part in reading.parts(3)]
    parts = [share.rollouts for share in shares if share.rollouts is not None]
    assert len(parts) > 1
    assert Rollouts.join(parts).costs == pytest.approx(wanted)


def test_every_token_costs_the_same(tmp_path: Path) -> None:
    """``tokens`` is a sum over tokens; what is counted and not listed costs at the last one."""
    reward = parse_reward("tokens", max_tokens=60)
    one = replace(completion("A lone", 2), generated=3)
    training, (store, _) = stored(tmp_path, reward, one, completion("A", 1))
    store.close()
    assert reward.has_spans
    assert training.rollouts.costs == pytest.approx([-0.01, -0.02, -0.01])
    assert training.rollouts.rewards == pytest.approx([-0.03, -0.01])
    assert reward.score(EXAMPLE, completion("A lone lamp", 3)).value == pytest.approx(-0.03)


@pytest.mark.parametrize("other", ["(-1, [(0, 1, -1)])", "-1"], ids=["some", "none"])
def test_one_answer_without_spans_takes_credit_from_all(
    function: WriteList, tmp_path: Path, other: str
) -> None:
    """A function that gives spans for some completions only: all are weighed by their whole reward,
    and a notice counts those without. There is none for a reward that is no sum.
    """
    reward = function(f"{other} if len(completion.text) > 1 else -2.0")
    drawn = [completion("A lone", 2), completion("A", 1), completion("A lone", 2)]
    training, (store, _) = stored(tmp_path, reward, *drawn)
    store.close()
    assert training.rollouts.costs is None
    assert not reward.has_spans
    is_partial = "[" in other
    assert [notice[:13] for notice in training.notices] == ["1 completions"] * is_partial


class Server:
    """A session with a server that prints tokens and withholds their bytes."""

    vocabulary = None

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def bytes_of(self, tokens: Sequence[int]) -> list[bytes]:
        """A part of a character prints as the replacement character."""
        self.asked += tokens
        return [SPELLED[token].decode("utf-8", "replace").encode() for token in tokens]


@pytest.mark.parametrize(("body", "asked"), [("-1, [(0, 1, -1)]", [1, 2, 3]), ("-1", [])])
def test_bytes_that_no_answer_shows_are_asked_for(
    function: WriteList, tmp_path: Path, body: str, asked: list[int]
) -> None:
    """Where a reward has places, the server is asked once for each token; what it cannot print is
    not stored.
    """
    server: Any = Server()
    with RolloutStore(tmp_path / "s.db") as store:
        drawn = completion(" lone lamp \ufffd", 3, first=1)
        key = store.add(SETTINGS, EXAMPLES[0].prompt, 0, drawn)
        trials = Trials(server, store, Tokenizer("t", None), function(body), Silent(), 5)
        asyncio.run(trials.spell_tokens(EXAMPLES, [[key], []]))
        assert server.asked == asked
        assert store.token_bytes("t") == {n: SPELLED[n] for n in asked if n != 3}
        asyncio.run(trials.spell_tokens(EXAMPLES, [[key], []]))
        assert server.asked == asked + asked[2:]
