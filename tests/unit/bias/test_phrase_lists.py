"""Lists of words, phrases and patterns: how they are written, and where they are found in a text that
is still coming.
"""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.bias.phrases import PhraseList, forms_of
from blackbox_lb.errors import InputError
from tests.support.errors import names, raises_naming

LIST = Path("list.txt")


def phrases(*lines: str) -> PhraseList:
    """The list of these lines."""
    return PhraseList.parse("\n".join(lines), LIST)


# How it is written


@pytest.mark.parametrize(
    ("line", "entry", "weight"),
    [
        ("lantern", "lantern", 1.0),
        ("lantern 2", "lantern", 2.0),
        ("catch 22\t2", "catch 22", 2.0),
        ("catch 22\t2 # a comment", "catch 22", 2.0),
        ('"catch 22"\t.5', "catch 22", 0.5),
        ("lantern\t3", "lantern", 3.0),
        ("lantern # costs\t2", "lantern", 1.0),
        ('"lantern" # says "no"', "lantern", 1.0),
        ('"catch 22" 2 # says "no"', "catch 22", 2.0),
        ('"said "no" twice"', 'said "no" twice', 1.0),
        ('"no" she said, "no"', 'no" she said, "no', 1.0),
        ('"a ""b"" c"', 'a "b" c', 1.0),
        ("a\tlantern", "a lantern", 1.0),
        (r"re:lan\w+", r"lan\w+", 1.0),
        ("re:lan # 2", "lan # 2", 1.0),
        ("re:lan[0-9] 2\t4", "lan[0-9] 2", 4.0),
        ("/lan.*n/\t4", "lan.*n", 4.0),
        ("delve*", "delve", 1.0),
        ("delve* 2", "delve", 2.0),
        ('"x*"', "x*", 1.0),
        (r"re:a\tb", r"a\tb", 1.0),
        ("re: x ", " x", 1.0),
        ("/a b/ .5", "a b", 0.5),
        ('"#x" 2', "#x", 2.0),
        ("—", "—", 1.0),
    ],
)
def test_a_line_has_an_entry_and_a_weight(line: str, entry: str, weight: float) -> None:
    """A number behind a tab is always the weight, ``re:`` begins a pattern, and quotation marks of a
    sampler's list may stand around others. It returns from a bias file, with its forms and its kind.
    """
    found = phrases(line)
    (read,) = found.lines
    assert PhraseList.of_entries(found.entries).lines == found.lines
    assert (read.entry, read.weight) == (entry, weight)
    assert read.is_pattern == line.startswith(("re:", "/"))


@pytest.mark.parametrize(
    ("content", "weights"),
    [
        ('[["lantern", 0.25], ["a lone lamp", 0]]', {"lantern": 0.75, "a lone lamp": 1.0}),
        ('{"lantern": 0.25, "catch 22": 0.5}', {"lantern": 0.75, "catch 22": 0.5}),
        ('["lantern", "catch 22"]', {"lantern": 1.0, "catch 22": 1.0}),
        ('[["lamp", 0.5], ["Lamp", 0.25], ["lamp", 0.75]]', {"Lamp": 0.75}),
        ('[["a lone lamp", 812], ["lantern", 1]]', {"a lone lamp": 1.0, "lantern": 1.0}),
        ('"a lone lamp"\n"lantern"\n', {"a lone lamp": 1.0, "lantern": 1.0}),
        ("a lone lamp\nLantern,\n", {"a lone lamp": 1.0, "Lantern,": 1.0}),
        ("[sighs]\n[lamp]\n", {"[sighs]": 1.0, "[lamp]": 1.0}),
    ],
)
def test_lists_of_samplers_are_read_as_they_are(content: str, weights: dict[str, float]) -> None:
    """Words with factors, with or without: the weight is what the factor takes away. Of a word that
    stands there twice the heavier entry counts.
    """
    read = PhraseList.parse(content, LIST)
    assert {line.entry: line.weight for line in read.lines} == pytest.approx(weights)


@pytest.mark.parametrize(
    ("content", "facts"),
    [
        ('[["lantern", 1.5]]', ("lantern", "1.5", "count how often")),
        ('[["lantern", 812], ["lamp", 0.5]]', ("lantern", "812")),
        ('{"lantern": -0.5}', ("lantern", "-0.5")),
        ('{"lantern": true}', ("lantern", "True")),
        ('["lantern", 3]', ("3",)),
        ('["lantern"', ("not JSON",)),
        (r'["\\bnot only\\b"]', ("re:",)),
        ('["re:lan("]', ("not valid",)),
        ("[]", ("no line",)),
        ('["  "]', ("no word",)),
        ("lantern\nre:lan(", ("line 2", "not valid")),
        ("re:", ("line 1", "no pattern")),
        ("re:a*", ("line 1", "empty text")),
        ("/lantern", ("line 1", "slash")),
        ("/lantern/ heavy", ("line 1", "'heavy'")),
        ("*", ("line 1", "no word")),
        ("# nothing else", ("no line",)),
        ("apple 2\npear\nApple 3", ("line 3", "line 1")),
        ("re:lan\ttwo", ("line 1", "'two'")),
        ("catch 22\t0", ("line 1", "'0'")),
    ],
)
def test_a_wrong_entry_is_refused_by_name(content: str, facts: tuple[str, ...]) -> None:
    """What is wrong, its line and value."""
    with raises_naming(InputError, *facts):
        PhraseList.parse(content, LIST)


@pytest.mark.parametrize(
    "pattern",
    [r"(.*?,){16}P", "^(a|aa)+$", "say (ha|haha)+!", "(?:foo(?:x|xx)+y|b)z"],
)
def test_a_pattern_of_exponential_time_is_refused(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only a part of it is, behind letters that must come first."""
    monkeypatch.setattr("blackbox_lb.bias.phrases.SECONDS", 0.1)
    with raises_naming(InputError, "line 2", "repetitions inside repetitions"):
        phrases("lantern", f"re:{pattern}")


@pytest.mark.parametrize(
    "pattern",
    [
        r"\bnot\s+(?:just|only)?\s*(?:(?!but\b|[.?!]).){1,50}?[,;:—–-]?\s*but\s+(?:also\s+)?",
        r"(?:\w+ ){0,6}lamp",
        r"(?:very )+lone",
        r"\b\w+ly\b",
        r"(?x) lan \w+  # a comment",
        r"[—–]|(?<=\w)--(?=\w)",
    ],
)
def test_a_pattern_of_ordinary_time_is_taken(pattern: str) -> None:
    """Repetitions beside each other, bounded ones and such as must hold a separator."""
    assert phrases(f"re:{pattern}").lines[0].entry == pattern


def test_words_of_a_command_may_be_a_pattern(tmp_path: Path) -> None:
    """``re:`` begins no file's name."""
    assert [line.is_pattern for line in PhraseList.load("lamp,re:lan.ern").lines] == [False, True]
    assert PhraseList.load("re:lan.ern").lines[0].entry == "lan.ern"
    assert len(PhraseList.load(",".join(f"word{number}" for number in range(60))).lines) == 60
    path = tmp_path / "list.json"
    path.write_text('{"lantern": 0.25}')
    assert PhraseList.load(str(path)).lines[0].weight == 0.75


ENTRIES = st.one_of(
    st.text(st.sampled_from("la nté'’*\"#/0.2茶—\t:re"), min_size=1, max_size=12),
    st.sampled_from(["re:x", "/x/", "# x", "x #y", "x*", "22", "catch 22", '"', '""', "x\ty"]),
)


@settings(max_examples=300)
@given(ENTRIES, st.sampled_from([0.0, 0.25, 0.5]))
def test_a_bias_file_writes_what_was_read(entry: str, factor: float) -> None:
    """Reading the entries again gives the same lines, whatever a list holds."""
    try:
        read = PhraseList.parse(json.dumps([[entry, factor]]), Path("list.json"))
    except InputError:
        return
    again = PhraseList.of_entries(read.entries)
    assert again.lines == read.lines
    assert again.entries == read.entries


# Where it is found


def test_a_phrase_is_complete_once_more_letters_came() -> None:
    """ "testament" may become "testaments"; a word boundary before it is judged by the text that
    came earlier.
    """
    found = phrases("testament")
    assert found.find("a testa", 0, False) == (2, 7, False, "")
    assert found.find("a testament", 0, False) == (2, 11, False, "")
    assert found.find("a testament", 0, True) == (2, 11, True, "testament")
    assert found.find("a testament ", 0, False) == (2, 11, True, "testament")
    assert found.find("a testaments", 0, False) is None
    assert found.find("protestament ", 3, False) is None
    assert found.find("a testa", 0, True) is None
    assert found.find("a testament ", 3, False) is None


def test_the_leftmost_place_counts() -> None:
    """Also where a phrase that could still come begins before one that is complete; at one place a
    complete one goes first.
    """
    found = phrases("lamp", "lone lamp of the house", "re:old.{0,9}house|barn")
    assert found.find("a lone lamp of", 0, False) == (2, 14, False, "")
    assert found.find("a lone lamp off", 0, False) == (7, 11, True, "lamp")
    assert found.find("an old barn ", 0, False) == (3, 12, False, "")
    assert found.find("an old barn for the year", 0, False) == (
        7,
        11,
        True,
        "old.{0,9}house|barn",
    )
    assert phrases("lamp", "lamp post").find("a lamp p", 0, False) == (2, 6, True, "lamp")
    assert phrases("lamp", "lamp post").find("a lamp post ", 0, False) == (2, 11, True, "lamp post")


ALPHABET = "aelmp ’'\nTé茶-"
WORDS = st.text(st.sampled_from(ALPHABET), min_size=1, max_size=5)


@settings(max_examples=400)
@given(st.lists(WORDS, min_size=1, max_size=5), st.text(st.sampled_from(ALPHABET), max_size=14))
def test_words_are_the_hits_of_their_patterns(entries: list[str], text: str) -> None:
    """Looking words up gives the first place where a regular expression finds one of their forms."""
    lines = [entry + "*" for entry in entries if entry.strip()]
    lines += [json.dumps(entry) for entry in entries if entry.strip()]
    try:
        found = PhraseList.of_entries(lines)
    except InputError:
        return
    forms = [form for line in found.lines for form in forms_of(line)]
    starts = [match.start() for form in forms if (match := expression_of(form).search(text))]
    sight = found.find(text, 0, True)
    assert (sight and sight.start) == (min(starts) if starts else None)
    hits = found.hits(text)
    assert (hits[0].start if hits else None) == (min(starts) if starts else None)


def expression_of(form: str) -> regex.Pattern[str]:
    """What finds a word or phrase that is set off from other letters, over any white space and
    with either apostrophe.
    """
    pattern = r"\s+".join(re.sub("['’]", "['’]", regex.escape(word)) for word in form.split())
    letter, is_spaced = r"[\p{L}\p{M}\p{N}]", re.compile("[a-zé0-9]", re.IGNORECASE)
    before = f"(?<!{letter})" if is_spaced.match(form[0]) else ""
    behind = f"(?!{letter})" if is_spaced.match(form[-1]) else ""
    return regex.compile(f"{before}{pattern}{behind}", regex.IGNORECASE)


@settings(max_examples=300)
@given(
    st.lists(WORDS, min_size=1, max_size=4),
    st.text(st.sampled_from(ALPHABET), max_size=14),
    st.integers(0, 14),
)
def test_nothing_is_let_go_that_becomes_a_phrase(entries: list[str], text: str, cut: int) -> None:
    """Where a phrase stands in the finished text, the text before it that has come shows either the
    phrase's place, or an earlier one, or nothing behind the phrase's first letter.
    """
    lines = [json.dumps(entry) for entry in entries if entry.strip()] + ["re:(?<=a)l.?m|pp+e"]
    found = PhraseList.of_entries(lines)
    finished = found.find(text, 0, True)
    if finished is None or finished.start >= min(cut, len(text)):
        return
    sight = found.find(text[:cut], 0, False)
    assert sight is not None
    assert sight.start <= finished.start


def test_a_pattern_that_takes_too_long_is_switched_off(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is raised while an answer is being sent: it is logged once with its line, and the
    rest of the list is found as before.
    """
    monkeypatch.setattr("blackbox_lb.bias.phrases.SENDING_SECONDS", 0.1)
    found = PhraseList.of_entries(["lamp", "re:(.*?,){16}P"])
    text = "1," * 40 + " a lamp."
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            sight = found.find(text, 0, False)
            assert sight is not None
            assert sight.entry == "lamp"
    (record,) = caplog.records
    assert names(record.getMessage(), "entry 2")
