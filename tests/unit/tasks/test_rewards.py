"""Rewards: known values, what counts as correct, and what a user's own function may return."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks import parse_reward
from blackbox_lb.tasks.rewards.matching import parse_matcher
from blackbox_lb.tasks.rewards.normalising import normalise
from blackbox_lb.types import Example, Prompt
from tests.support.errors import raises_naming
from tests.support.stored import text_completion as completion


def asked(*answers: str) -> Example:
    return Example("q1", Prompt.user("What is the capital of Norway?"), answers)


OSLO = asked("Oslo")

# Normalisation and matchers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("  The  Capital\nis OSLO! ", "the capital is oslo"),
        ("Bogotá, Brasília & Chișinău", "bogotá brasília & chișinău"),
        ("N’Djaména, Nukuʻalofa", "ndjaména nukualofa"),
        ("Washington, D.C.", "washington dc"),
        ("København, Łódź, Straße, Œuvre", "københavn łódź strasse œuvre"),
        ("$1,234,567.50.", "$ 1234567.50"),
        ("1,2345", "1 2345"),
        ("x = -5, y = −5, 2020-2021", "x = -5 y = -5 2020 2021"),
        ("ﬁne ½", "fine 1 / 2"),
        ("... !?", ""),
        ("C++, C++17, `C#`, A+ or A-; **A***", "c++ c++ 17 c# a+ or a- a*"),
        ("*A*, A - b, BBB-, x+1, a->b", "a a b bbb- x + 1 a > b"),
        ("कर्म ｶﾞ", "कर्म ガ"),
    ],
)
def test_normalise_worked_examples(text: str, words: str) -> None:
    """Case, apostrophes and punctuation go; numbers, signs, marks and words stay."""
    assert normalise(text) == words


@given(
    st.text(st.characters(exclude_categories=["Cs"]))
    | st.text("aB1.,-−'´ ेกが각İßﬁ½")
    | st.text("aAB1*+#-_$% /.>\u0301")
)
def test_normalise_is_idempotent(text: str) -> None:
    """Normalising what is normalised changes nothing."""
    assert normalise(normalise(text)) == normalise(text)


@given(st.text(), st.text(), st.text("abc é.5", min_size=1))
def test_contains_finds_what_stands_between_spaces(before: str, after: str, answer: str) -> None:
    """Whatever surrounds it, an answer set off by spaces and dashes is found."""
    if normalise(answer):
        assert parse_matcher("contains")(asked(answer), f"{before} — {answer} — {after}")


@pytest.mark.parametrize(
    ("spec", "answer", "right", "wrong"),
    [
        ("contains", "Oslo", ("It is Oslo.", "OSLO"), ("",)),
        ("contains", "Rome", ("The answer: **Rome**",), ("Romero lives in Rometta.",)),
        ("contains", "New Delhi", (), ("Delhi, or New York",)),
        ("contains", "72", ("She earns $72.", "9*8=72"), ("She earns $72.50", "She earns 1,072")),
        ("contains", "5", (), ("x = -5",)),
        ("contains", "東京", ("首都は東京です",), ()),
        ("contains", "ガラス", ("ガラスがある",), ("カラスがいる",)),
        ("contains", "+", ("the operator is +",), ("the operator is -",)),
        ("contains", "-", ("the operator is -",), ()),
        ("contains", "Paris", ("Paris - the capital",), ()),
        ("contains", "C#", ("Use C# here",), ("Use C here",)),
        ("contains", "C", (), ("Use C++ here",)),
        ("exact-match", "Oslo", (" oslo.\n",), ("It is Oslo.",)),
        ("exact-match", "Paris", ("**Paris**", "“Paris!”"), ()),
        ("exact-match", "+", ("+",), ("-", "")),
        ("exact-match", "72", ("$72", "72 %"), ()),
        ("exact-match", "5%", ("5 %.",), ("$5", "5")),
        ("exact-match", "$5", (), ("5%",)),
        ("exact-match", "1/2", ("½",), ("1 2",)),
        ("exact-match", "C++", ("`c++`",), ("C",)),
        ("exact-match", "A-", ("A-.",), ("A", "A+")),
        ("exact-match", "R&D", (), ("R D",)),
        ("exact-match", "👍", (), ("👎",)),
        ("exact-match", "かぎ", (), ("かき",)),
        ("exact-match", "เสื้อ", (), ("เสือ",)),
        ("exact-match", "мой", (), ("мои",)),
        ("exact-match", "ёлка", ("елка",), ()),
        ("exact-match", "có", ("co",), ("cỏ",)),
        ("exact-match", "Chișinău", ("Chisinău", "Chişinău"), ()),
        ("exact-match", "København", ("Kobenhavn",), ()),
        ("exact-match", "≠", (), ("=",)),
        ("regex:^{answer}$", "a.b", ("a.b",), ("axb",)),
        (r"regex:#### {answer}\b", "18", ("9*2\n#### 18",), ("#### 180",)),
        ("regex:oslo", "Oslo", (), ("Oslo",)),
        ("regex:(?i)oslo", "Oslo", ("Oslo",), ()),
        ("regex:a{2}:b", "Oslo", ("aa:b",), ()),
    ],
)
def test_matchers_worked_examples(
    spec: str, answer: str, right: tuple[str, ...], wrong: tuple[str, ...]
) -> None:
    """Each matcher, on completions one can judge by eye."""
    matcher = parse_matcher(spec)
    for text in right:
        assert matcher(asked(answer), text), text
    for text in wrong:
        assert not matcher(asked(answer), text), text


# Built-in rewards


@pytest.mark.parametrize(
    ("spec", "text", "tokens", "nats", "read", "label"),
    [
        ("contains", "It is Oslo.", 5, 1.0, 1.0, "contains"),
        ("exact-match", "Oslo", 5, 1.0, 1.0, "exact-match"),
        ("regex:Os(lo|terdal)", "It is Oslo.", 5, 1.0, 1.0, "matches 'Os(lo|terdal)'"),
        ("length", "anything", 12, math.log(4), 4.0, "T/len"),
        ("length", "anything", 96, -math.log(2), 0.5, "T/len"),
        ("length", "", 0, math.log(48), 48.0, "T/len"),
        ("log-accuracy", "Oslo", 7, 0.0, 1.0, "accuracy"),
        ("log-accuracy", "Bergen", 7, -math.inf, 0.0, "accuracy"),
        ("correct-and-short", "Oslo", 12, math.log(4), 4.0, "correct x T/len"),
        ("correct-and-short", "Bergen", 12, -math.inf, 0.0, "correct x T/len"),
        ("accuracy", "Oslo", 7, 1.0, 1.0, "accuracy"),
        ("accuracy", "Bergen", 7, 0.0, 0.0, "accuracy"),
        ("accuracy-minus-length", "Oslo", 12, 0.75, 0.75, "accuracy - len/T"),
        ("accuracy-minus-length", "Bergen", 48, -1.0, -1.0, "accuracy - len/T"),
        ("accuracy-gated-length", "Oslo", 12, 4.0, 4.0, "correct x T/len"),
        ("accuracy-gated-length", "Bergen", 12, 0.0, 0.0, "correct x T/len"),
    ],
)
def test_rewards_worked_examples(
    spec: str, text: str, tokens: int, nats: float, read: float, label: str
) -> None:
    """With T = 48 tokens each reward has the value its formula gives, and is read on its scale
    under its label.
    """
    reward = parse_reward(spec, max_tokens=48)
    value = reward.score(OSLO, completion(text, tokens)).value
    assert value == pytest.approx(nats)
    assert reward.displayed(value) == pytest.approx(read)
    assert (reward.name, reward.label) == (spec, label)


def test_the_correctness_matcher_gates_the_reward() -> None:
    """What counts as correct is set by ``correct`` where the reward does not say it itself."""
    wordy = completion("It is Oslo.", 12)
    strict = parse_reward("correct-and-short", max_tokens=48, correct="exact-match")
    assert strict.score(OSLO, wordy).value == -math.inf
    searched = parse_reward("log-accuracy", max_tokens=48, correct="regex:Oslo")
    assert searched.score(asked(), wordy).value == 0.0
    assert not searched.needs_answer
    exact = parse_reward("exact-match", max_tokens=48, correct="contains")
    assert exact.correct(OSLO, wordy) is False


def test_accuracy_is_known_where_there_is_an_answer() -> None:
    """``correct`` is a truth value with an answer, and None, not False, without one."""
    reward = parse_reward("length", max_tokens=48)
    assert not reward.needs_answer
    assert reward.correct(OSLO, completion("It is Oslo.")) is True
    assert reward.correct(OSLO, completion("Bergen")) is False
    assert reward.correct(asked(), completion("Bergen")) is None


@pytest.mark.parametrize(
    "spec",
    [
        "contains",
        "exact-match",
        "regex:{answer}",
        "accuracy",
        "log-accuracy",
        "correct-and-short",
        "accuracy-gated-length",
        "accuracy-minus-length",
    ],
)
def test_an_example_without_answer_is_refused(spec: str) -> None:
    """A reward that compares never scores an example with nothing to compare with."""
    reward = parse_reward(spec, max_tokens=48)
    assert reward.needs_answer
    with raises_naming(DataError, "'q1'"):
        reward.score(asked(), completion("Oslo"))


def test_numbers_that_cannot_be_are_refused() -> None:
    """A limit of no tokens, and exp(710), which is no double."""
    with raises_naming(InputError, "max_tokens", "0", "1"):
        parse_reward("length", max_tokens=0)
    with raises_naming(InputError, "709"):
        parse_reward("length", max_tokens=48).displayed(710.0)


# The user's own function

Module = Callable[[str], str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    """Write a module into the working directory and return its name."""
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> str:
        (tmp_path / "own_reward_for_test.py").write_text(text)
        return "own_reward_for_test"

    yield write
    sys.modules.pop("own_reward_for_test", None)


@pytest.mark.parametrize(
    ("body", "nats"),
    [
        ("True", 1.0),
        ("-0.5", -0.5),
        ("np.bool_(True)", 1.0),
        ("np.float32(0.5)", 0.5),
        ("len(completion.text) - len(example.answers[0])", 0.0),
    ],
)
def test_a_users_function_is_called_with_example_and_completion(
    module: Module, body: str, nats: float
) -> None:
    """A module in the working directory is found, and numbers of Python and numpy are taken as
    nats.
    """
    name = module(f"import numpy as np\ndef f(example, completion):\n    return {body}\n")
    path = list(sys.path)
    reward = parse_reward(f"{name}:f", max_tokens=48)
    assert reward.score(OSLO, completion("Oslo")).value == nats
    assert (reward.name, reward.displayed(-2.0)) == (f"{name}:f", -2.0)
    assert sys.path == path


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        ("float('nan')", ("nan", "finite")),
        ("float('inf')", ("returned inf", "finite")),
        ("float('-inf')", ("minus infinity", "``tau``")),
        ("10**400", ("1e308",)),
        ("'0.5'", ("'0.5'",)),
        ("[0.5]", ("[0.5]",)),
        ("1 / 0", ("ZeroDivisionError", "division by zero")),
    ],
)
def test_a_users_function_must_return_a_number(
    module: Module, body: str, facts: tuple[str, ...]
) -> None:
    """Anything but a finite number is refused with the function's name and the example."""
    name = module(f"def f(example, completion):\n    return {body}\n")
    with raises_naming(InputError, f"{name}:f", "'q1'", *facts):
        parse_reward(f"{name}:f", max_tokens=48).score(OSLO, completion("Oslo"))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("def g(e, c): ...\n", ("own_reward_for_test.py", "'f'", "'g'")),
        ("def f(text): ...\n", ("(text)", "(example, completion)")),
        ("import own_reward_missing_part\n", ("'own_reward_missing_part'",)),
        ("raise SystemExit(1)\n", ("SystemExit",)),
    ],
)
def test_a_module_that_cannot_serve_is_explained_at_once(
    module: Module, text: str, facts: tuple[str, ...]
) -> None:
    """What is wrong with the module or the function is said before anything is sampled."""
    name = module(text)
    with raises_naming(InputError, name, *facts):
        parse_reward(f"{name}:f", max_tokens=48)


# JSON Schema

PERSON = json.dumps(
    {
        "type": "object",
        "required": ["name"],
        "properties": {"name": {"type": "string"}, "age": {"minimum": 0}},
    }
)
NESTED = json.dumps(
    {
        "$ref": "#/$defs/list",
        "$defs": {"list": {"type": ["array", "null"], "items": {"$ref": "#/$defs/list"}}},
    }
)
CENTS = '{"properties": {"price": {"multipleOf": 0.01}}}'


@pytest.fixture
def schema(tmp_path: Path) -> Callable[[str], str]:
    """Write a schema and return the reward of it."""

    def write(text: str) -> str:
        (tmp_path / "schema.json").write_text(text)
        return f"json-schema:{tmp_path / 'schema.json'}"

    return write


@pytest.mark.parametrize(
    ("schema_text", "text", "value"),
    [
        (PERSON, '{"name": "Ada", "age": 36}', 1.0),
        (PERSON, '\ufeff{"name": "Ada"}', 1.0),
        (PERSON, '{"name": "Ada"} is the answer', 0.0),
        (PERSON, '{"name": "Ada", "age": -1}', 0.0),
        (PERSON, '{"name": "Ada", "age": NaN}', 0.0),
        (PERSON, "null", 0.0),
        (PERSON, "", 0.0),
        (PERSON, "[" * 100_000, 0.0),
        # The first block that is fenced as JSON, or else the first fenced one.
        (PERSON, 'Here it is:\n```json\n{"name": "Ada"}\n```\nAnything else?', 1.0),
        (PERSON, '```json\n{"age": 1}\n```\n```json\n{"name": "Ada"}\n```', 0.0),
        (PERSON, '```json\n{"name":\n```\n```json\n{"name": "Ada"}\n```', 0.0),
        (PERSON, '```\n{"age": -1}\n```\n```json\n{"name": "Ada"}\n```', 1.0),
        (PERSON, '```\n{"age": -1}\n```\n```\n{"name": "Ada"}\n```', 0.0),
        (PERSON, '```python\nx = 1\n```\n```\n{"name": "Ada"}\n```', 1.0),
        (PERSON, '```python\n{"name": "Ada"}\n```', 0.0),
        # Fences as models write them.
        (PERSON, '\ufeff```Json\r\n{"name": "Ada"}\r\n```\r\n', 1.0),
        (PERSON, '```jsonc\n{"name": "\u2028"}\n```', 1.0),
        (PERSON, '```json\n{"name": "Ada"}', 1.0),
        (PERSON, '```json {"name": "Ada"} ```', 1.0),
        (PERSON, '1. ```json\n   {"name": "Ada"}\n   ```', 1.0),
        (PERSON, '````json\n{"name": "Ada"}\n````', 1.0),
        # To accept any JSON is a wish.
        ("true", "{}", 1.0),
        ("{}", "3", 1.0),
        ('{"enum": ["a", {}]}', "{}", 1.0),
        # Multiples are those of decimals, where 19.99 / 0.01 is no whole number in double precision.
        (CENTS, '{"price": 19.99}', 1.0),
        (CENTS, '{"price": -0.07}', 1.0),
        (CENTS, '{"price": 19.995}', 0.0),
        (CENTS, '{"price": 1e300}', 1.0),
        (CENTS, '{"price": "text"}', 1.0),
        ('{"multipleOf": 1e-7}', "0.0000003", 1.0),
        ('{"multipleOf": 3}', "10", 0.0),
        # A value that cannot be computed with ends no run.
        (CENTS, '{"price": 1e999}', 0.0),
        ('{"type": "number", "multipleOf": 0.01}', "1" + "0" * 400, 0.0),
        (NESTED, "[" * 300 + "]" * 300, 0.0),
        ("true", "1" * 5000, 0.0),
    ],
    ids=str,
)
def test_a_completion_that_fits_the_schema_is_worth_one(
    schema: Callable[[str], str], schema_text: str, text: str, value: float
) -> None:
    """The whole completion, or one fenced block, must be JSON that the schema accepts; no answer is
    needed.
    """
    reward = parse_reward(schema(schema_text), max_tokens=48)
    assert reward.score(asked(), completion(text)).value == value
    assert (reward.label, reward.needs_answer) == ("valid JSON", False)


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("{", ("not JSON",)),
        ("3", ("3", "object", "true", "false")),
        ('{"properties": {"a": {"type": "sting"}}}', ("properties/a/type",)),
        ('{"$schema": 5, "type": "object"}', ()),
        ('{"pattern": "("}', ()),
        # An example document, and keywords that accept everything.
        ('{"city": "Paris", "n": 3}', ()),
        ('{"title": "Person", "description": "of name and age"}', ()),
        ('{"format": "email"}', ()),
        # References that leave the file, lead nowhere, or have no end: nothing is fetched.
        ('{"$ref": "http://127.0.0.1:9/other.json"}', ()),
        ('{"properties": {"a": {"$ref": "other.json"}}}', ()),
        ('{"properties": {"a": {"$ref": "#/$defs/missing"}}}', ()),
        ('{"$ref": "#"}', ()),
        ('{"allOf": [{"$ref": "#/$defs/a"}], "$defs": {"a": {"anyOf": [{"$ref": "#"}]}}}', ()),
        # What an API wraps around a schema: the place of the inner one is named.
        ('{"name": "person", "strict": true, "schema": PERSON}', ("under schema",)),
        ('{"type": "json_schema", "json_schema": {"schema": PERSON}}', ("under json_schema.schema",)),
        ('{"type": "function", "function": {"parameters": PERSON}}', ("under function.parameters",)),
        ('{"type": "function", "name": "person", "parameters": PERSON}', ("under parameters",)),
    ],
)  # fmt: skip
def test_a_schema_that_cannot_judge_is_refused_at_once(
    schema: Callable[[str], str], text: str, facts: tuple[str, ...]
) -> None:
    """Before anything is sampled."""
    with raises_naming(InputError, "schema.json", *facts):
        parse_reward(schema(text.replace("PERSON", PERSON)), max_tokens=48)


def test_time_grows_with_the_length(schema: Callable[[str], str]) -> None:
    """Of texts that took minutes: fences that open and never close, combining marks."""
    begin = time.process_time()
    reward = parse_reward(schema("true"), max_tokens=48)
    assert reward.score(OSLO, completion("```json\n" * 100_000)).value == 0
    assert normalise("a" + "\u0301\u0323" * 200_000 + "b") == "ab"
    assert normalise("\u0f73" * 100_000) == ""
    assert time.process_time() - begin < 20


def test_jsonschema_is_an_extra(
    schema: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is missing, the message says how to get it."""
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    with raises_naming(InputError, "'.[tasks]'"):
        parse_reward(schema("true"), max_tokens=48)
