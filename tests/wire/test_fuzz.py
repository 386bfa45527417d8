"""Broken answers by the thousand: whatever is done to a real answer of a dialect, it is read to
lawful numbers or refused by name.

The answers are those of the cassettes, recorded from llama.cpp, vLLM and SGLang and constructed for
the hosted APIs. ``--slow`` breaks 10,000 a dialect.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.transport.channel import Channel
from blackbox_lb.api.wire import AnswerReader, loads, read_answer
from blackbox_lb.api.wire.scanner import ParsedAnswer
from blackbox_lb.errors import BlbError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.store.rows import Arrays, pack, unpack
from blackbox_lb.types import NO_TOKEN, UNNAMED, Completion, Sampling
from blackbox_lb.vocabulary import Vocabulary
from tests.support.answering import Answering
from tests.support.exact.listener import Reply

FOLDER = Path(__file__).parents[2] / "cassettes"
DIALECTS: dict[str, tuple[str, Endpoint, str]] = {
    "Azure": ("azure", "chat", "collect"),
    "Azure classic": ("azure-classic", "chat", "collect"),
    "Fireworks chat": ("fireworks", "chat", "collect"),
    "Fireworks completions": ("fireworks", "completions", "completions_endpoint"),
    "LM Studio responses": ("lmstudio", "responses", "collect"),
    "OpenAI chat": ("openai", "chat", "collect"),
    "OpenAI completions": ("openai", "completions", "completions_endpoint"),
    "SGLang chat": ("sglang", "chat", "collect"),
    "SGLang completions": ("sglang", "completions", "completions_endpoint"),
    "llama.cpp chat": ("llamacpp", "chat", "collect"),
    "llama.cpp completions": ("llamacpp", "completions", "completions_endpoint"),
    "vLLM chat": ("vllm", "chat", "collect"),
    "vLLM completions": ("vllm", "completions", "completions_endpoint"),
}
MOST = 3
"""Different answers of one cassette."""
QUICK, THOROUGH = 150, 10_000
UNUSED = 1_000_000
"""No token of these models has an id as large."""
LEAST = 0.01
"""Smallest share of broken answers that must be read whole, and of those that must not, for either
to have been tried.
"""


@dataclass
class Subject:
    """What a dialect's answers are read with; ``answers``: (a whole one, the number of completions
    that were asked for).
    """

    profile: Profile
    endpoint: Endpoint
    sampling: Sampling
    vocabulary: Vocabulary
    answers: list[tuple[Any, int]]

    @cached_property
    def reader(self) -> AnswerReader:
        """The reader of lists."""
        return AnswerReader(self.profile, self.profile.endpoint(self.endpoint), self.vocabulary)


@cache
def subject(name: str) -> Subject:
    """The answers of a cassette, with a vocabulary of every token in them."""
    provider, endpoint, cassette = DIALECTS[name]
    found: list[tuple[Any, int]] = []
    asked = 0
    for each in yaml.safe_load(
        (FOLDER / provider / f"{cassette}.yaml").read_text(encoding="utf-8")
    )["interactions"]:
        if (
            each["request"]["uri"].partition("?")[0].endswith(("/completions", "/responses"))
            and len(found) < MOST
        ):
            body = json.loads(each["request"]["body"])
            asked = int(body.get("top_logprobs") or body["logprobs"])
            found.append((json.loads(each["response"]["body"]["string"]), int(body.get("n") or 1)))
    return Subject(
        load_profile(provider),
        endpoint,
        Sampling(top_logprobs=asked),
        vocabulary([each for each, _ in found]),
        found,
    )


def vocabulary(answers: list[Any]) -> Vocabulary:
    """Every text and every list of bytes in ``answers`` is a token; names like ``<|end|>`` are
    special ones. Ids are those that an answer gives beside its tokens, else numbers that no answer
    has."""
    ids: dict[bytes, int] = {}
    for choice in (
        choice
        for answer in answers
        for choice in answer.get("choices", [])
        if "token_ids" in choice
    ):
        tokens = (choice.get("logprobs") or {}).get("tokens", ())
        ids |= {
            text.encode(): token for text, token in zip(tokens, choice["token_ids"], strict=False)
        }
    names: dict[str, int] = {}
    for owner, place in places(answers):
        for value in (place, owner[place]):
            if isinstance(value, str) and value.startswith("<|"):
                names.setdefault(value, ids.pop(value.encode(), UNUSED + len(ids) + len(names)))
            elif isinstance(value, str) or place == "bytes":
                ids.setdefault(
                    value.encode() if isinstance(value, str) else bytes(value or ()),
                    UNUSED + len(ids) + len(names),
                )
    tokens = {token: text for text, token in ids.items()}
    return Vocabulary(
        "seen", tokens, names, UNUSED + len(ids) + len(names), lambda text: list(text.encode())
    )


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every field at any depth, as its container and its key."""
    waiting = [value]
    while waiting:
        owner = waiting.pop()
        for key in owner if isinstance(owner, dict) else range(len(owner)):
            yield owner, key
            if isinstance(owner[key], dict | list):
                waiting.append(owner[key])


STRANGE: list[Any] = [
    None, True, False, "", "\ud83d", "\x00", "é" * 70_000, "stop", "length", "content_filter",
    "token_id:", "token_id:" + "9" * 5000, "token_id:-1", [], {}, [None], [256], [-1], {"logprob": None},
    0, 1, -1, 2**31, 2**63, -(2**70), 10**400, 0.5, -0.0, 1e-320, 1e308, -1e308, math.nan, math.inf,
    -math.inf, -9999.0, -9998.0,
]  # fmt: skip
BREAKS = ("drop", "twice", *("strange",) * 3, "nest", "swap", "shuffle", "cut", "number", "text")


def deep(levels: int, value: Any) -> Any:
    """``value`` in so many lists and objects."""
    for level in range(levels):
        value = [value] if level % 2 else {"content": value}
    return value


def mutated(answer: Any, seed: int) -> None:
    """Break one field of ``answer``, most often one of a list of logprobs."""
    rng = random.Random(seed)
    fields = [pair for pair in places(answer) if rng.random() < 0.5] or list(places(answer))
    if not fields:
        return
    owner, key = rng.choice(fields)
    value = owner[key]
    match rng.choice(BREAKS):
        case "drop":
            del owner[key]
        case "twice" if isinstance(owner, list):
            owner.insert(rng.randrange(len(owner) + 1), copy.deepcopy(value))
        case "nest":
            owner[key] = deep(rng.choice((1, 1, 2, 300)), value)
        case "swap":
            other, name = rng.choice(fields)
            owner[key] = copy.deepcopy(other[name])
        case "shuffle" if isinstance(value, list):
            rng.shuffle(value)
        case "cut" if isinstance(value, list | str):
            owner[key] = value[: rng.randrange(len(value) + 1)]
        case "number" if (
            isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
        ):
            changed = (-value, value * 1e6, value + 1, value - 1e-4, value / 1e9, str(value))
            owner[key] = rng.choice((*changed, round(value, 1)))
        case "text" if isinstance(value, str):
            longer = (value + "\ufffd", value * 3, "<|" + value, "bytes:" + value)
            owner[key] = rng.choice((*longer, value[::-1], value.upper()))
        case _:
            owner[key] = copy.deepcopy(rng.choice(STRANGE))  # a later break may land inside it


def lawful(each: Completion, k: int) -> None:
    """What holds for every completion that was read."""
    for text in (each.text, each.finish_reason, each.model, each.fingerprint):
        text.encode()
    t = len(each.token_ids)
    assert each.token_ids.shape == each.logprobs.shape == (t,)
    assert each.top_ids.shape == each.top_logprobs.shape
    assert each.top_ids.shape[0] == t
    assert each.top_ids.shape[1] <= k
    assert np.isfinite(each.logprobs).all()
    assert (each.logprobs <= 0).all()
    assert (each.logprobs >= -1000).all()
    assert (each.top_logprobs <= 0).all(), "NaN compares false"
    assert (each.top_logprobs[:, 1:] <= each.top_logprobs[:, :-1]).all(), "from most likely"
    assert (each.token_ids >= UNNAMED).all()
    assert (each.top_ids >= UNNAMED).all()
    for row in each.top_ids.tolist():
        named = [token for token in row if token not in (NO_TOKEN, UNNAMED)]
        assert len(set(named)) == len(named)
    assert not each.whole or (each.token_ids >= 0).all()
    for column in (each.propensities, each.bounded):
        assert column is None or column.shape == (t,)
    assert each.propensities is None or (
        np.isfinite(each.propensities).all() and (each.propensities <= 0).all()
    )
    assert 0 <= each.n_tokens < 2**31
    assert 0 <= each.prompt_tokens < 2**31
    assert all(0 <= token < 2**31 for token in each.token_bytes)
    arrays = Arrays(*(getattr(each, name) for name in Arrays._fields))
    again = unpack(pack(arrays))
    assert all(
        np.array_equal(kept, column) for kept, column in zip(again[:4], arrays[:4], strict=True)
    )


def examples(config: pytest.Config) -> int:
    """How many answers of each dialect are broken."""
    return THOROUGH if config.getoption("--slow") else QUICK


def times(number: int) -> settings:
    """Hypothesis' settings for ``number`` examples, the same in every run."""
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large]
    return settings(
        max_examples=number, database=None, derandomize=True, suppress_health_check=checks
    )


@pytest.mark.parametrize("name", DIALECTS)
def test_a_broken_answer_is_read_to_lawful_numbers_or_refused(
    name: str, pytestconfig: pytest.Config
) -> None:
    """Up to four fields and now and then the bytes are broken; nothing but an error of the tree
    comes out, what is read keeps to the laws, and the reader of lists says the same as the plain
    one, bit for bit.
    """
    about = subject(name)
    count: Counter[str] = Counter()

    @times(examples(pytestconfig))
    @given(
        which=st.integers(0, len(about.answers) - 1),
        seeds=st.lists(st.integers(0, 2**32 - 1), max_size=4),
        cuts=st.lists(st.integers(0, 2**32 - 1), max_size=1),
        ascii_only=st.booleans(),
    )
    def check(which: int, seeds: list[int], cuts: list[int], ascii_only: bool) -> None:
        whole, n = about.answers[which]
        answer = copy.deepcopy(whole)
        for seed in seeds:
            mutated(answer, seed)
        content = json.dumps(answer, separators=(",", ":"), ensure_ascii=ascii_only).encode(
            "utf-8", "surrogatepass"
        )
        for seed in cuts:
            content = overwritten(content, random.Random(seed))
        truth = assert_read_alike(about, content, n)
        if isinstance(truth, str):
            count["refused"] += 1
            assert 40 < len(truth.partition(": ")[2]) < 1000
        elif truth is not None:
            count["read" if all(each.whole for each in truth) else "refused"] += 1
            for each in truth:
                lawful(each, about.sampling.top_logprobs)

    for whole, n in about.answers:
        found = outcome(about, whole, n)
        assert not isinstance(found, str)
        assert all(each.whole for each in found)
    check()
    assert min(count["read"], count["refused"]) > LEAST * examples(pytestconfig)


def test_broken_bytes_are_an_answer_or_refused(pytestconfig: pytest.Config) -> None:
    """Bytes of real answers cut, repeated, overwritten: the channel gives JSON, or an error of the
    tree.
    """
    bodies = [
        json.dumps(answer).encode() for name in DIALECTS for answer, _ in subject(name).answers
    ]
    count: Counter[str] = Counter()
    answer = b""

    @times(examples(pytestconfig))
    @given(
        which=st.integers(0, len(bodies) - 1),
        seeds=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=4),
    )
    def check(which: int, seeds: list[int]) -> None:
        nonlocal answer
        answer = bodies[which]
        for seed in seeds:
            answer = overwritten(answer, random.Random(seed))
        try:
            runner.run(channel.post("/chat/completions", {"model": "m"}))
            count["JSON"] += 1
        except BlbError:
            count["refused"] += 1

    with asyncio.Runner() as runner:
        transport = Answering(lambda request: Reply(200, answer))
        channel = Channel(
            load_profile("vllm"), "http://127.0.0.1:9/v1", attempts=1, transport=transport
        )
        check()
        runner.run(channel.close())
    assert min(count["JSON"], count["refused"]) > 0


def overwritten(content: bytes, rng: random.Random) -> bytes:
    """``content`` with a piece of it cut out, repeated, moved to the end or replaced."""
    start = rng.randrange(len(content) + 1)
    end = min(len(content), start + rng.choice((0, 1, 1, 4, 100)))
    own = (content[start:end] * 2, rng.randbytes(end - start))
    piece = rng.choice((b"", *own, b"NaN", b"1" * 5000, b'"', b"[" * 5000, b"-"))
    return content[:start] + piece + content[end:]


PLAIN = ("Azure", "Azure classic", "Fireworks chat", "OpenAI chat", "vLLM chat")
"""Dialects whose lists ``AnswerReader`` is to read by itself, as far as the profile's rows allow.
"""


def outcome(about: Subject, answer: Any, n: int) -> list[Completion] | str:
    """What an answer is read to, or the words of its refusal."""
    try:
        return read_answer(
            about.profile,
            Draw(about.sampling, endpoint=about.endpoint),
            answer,
            about.vocabulary,
            n,
        )
    except BlbError as error:
        return f"{type(error).__name__}: {error}"


def assert_same(found: list[Completion] | str, truth: list[Completion] | str) -> None:
    """Equal words, or equal completions: the same types, and arrays to the last bit."""
    if isinstance(truth, str) or isinstance(found, str):
        assert found == truth
        return
    for one, other in zip(found, truth, strict=True):
        for name in Completion.__slots__:
            a, b = getattr(one, name), getattr(other, name)
            if isinstance(a, Mapping) and isinstance(
                b, Mapping
            ):  # a dictionary, or one that is made when it is read
                assert dict(a) == dict(b), name
                continue
            assert type(a) is type(b), name
            if isinstance(a, np.ndarray):
                assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes()), name
            else:
                assert a == b, name


def assert_read_alike(about: Subject, content: bytes, n: int = 1) -> list[Completion] | str | None:
    """The reader of lists and the plain one agree; what both say, None where it is no JSON."""
    try:
        plain = loads(content)
    except (ValueError, RecursionError):
        with pytest.raises((ValueError, RecursionError)):
            about.reader.loads(content)
        return None
    truth = outcome(about, plain, n)
    assert_same(outcome(about, about.reader.loads(content), n), truth)
    return truth


def in_another_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object with its bytes before its logprob, as SGLang has them."""
    table = dict(pairs)
    if "bytes" not in table:
        return table
    order = ("token", "bytes", "logprob", "top_logprobs")
    return {name: table[name] for name in order if name in table}


@pytest.mark.parametrize("name", PLAIN)
def test_ordinary_answers_are_not_left_to_the_plain_reader(name: str) -> None:
    """The recorded answers are of the plain kind, with blanks and in another order too, but for
    those of a profile with a row that ``AnswerReader`` leaves alone. Indented ones are left.
    """
    about = subject(name)
    is_left = about.profile.logprobs.propensity != "logprob" or "Fireworks" in name
    for whole, n in about.answers:
        swapped = json.loads(json.dumps(whole), object_pairs_hook=in_another_order)
        for text in (
            json.dumps(whole, separators=(",", ":")),
            json.dumps(whole),
            json.dumps(swapped),
        ):
            answer = about.reader.loads(text.encode())
            assert isinstance(answer, ParsedAnswer) is not is_left
            if isinstance(answer, ParsedAnswer):
                answer.content = b"not to be read again"
                assert_same(outcome(about, answer, n), outcome(about, json.loads(text), n))
        assert_read_alike(about, json.dumps(whole, indent=2).encode(), n)


def listed(*positions: str, blanks: str = "") -> bytes:
    """An answer of OpenAI's chat with these positions, ``blanks`` around the list."""
    choice = '{"index":0,"message":{"role":"assistant","content":"x"},"finish_reason":"length","logprobs":{"content":%s}}'
    choice %= blanks + "[" + ",".join(positions) + "]" + blanks
    answer = '{"id":"chatcmpl-1","model":"gpt-4o","choices":[%s],"usage":{"completion_tokens":%d}}'
    return (answer % (choice, len(positions))).encode("utf-8", "surrogatepass")


def entry(token: str = '"a"', logprob: str = "-1.5", raw: str = "[97]", more: str = "") -> str:
    """One entry as JSON, of fields as JSON."""
    return f'{{"token":{token},"logprob":{logprob},"bytes":{raw}{more}}}'


def position(*entries: str, **own: str) -> str:
    """A position with these alternatives."""
    return entry(**own, more=f',"top_logprobs":[{",".join(entries)}]')


GOOD = position(entry(), entry('"b"', "-2.25", "[98]"))
ODD = {
    "a key twice": position(entry(more=',"token":"a"')),
    "a key twice, other values": position(entry(more=',"token":"b"')),
    "another key": position(entry(more=',"id":7')),
    "no bytes": position('{"token":"a","logprob":-1.5}'),
    "fields swapped": position('{"token":"a","bytes":[97],"logprob":-1.5}'),
    "null bytes": position(entry(raw="null")),
    "bytes of another token": position(entry(raw="[98]")),
    "bytes that are an object": position(entry(raw='{"a":1,"a":2}')),
    "bytes that are true": position(entry(raw="[true]")),
    "bytes without an end": position(entry(raw="[97")),
    "bytes too many": position(entry(raw="[97]]")),
    "two values": position(entry(raw="[97],[97]")),
    "two numbers": position(entry(logprob="-1.5,-2")),
    "no number": position(entry(logprob="")),
    "two numbers and none": position(entry(logprob="-1.5,-2"), entry('"b"', "", "[98]")),
    "NaN": position(entry(logprob="NaN")),
    "-Infinity": position(entry(logprob="-Infinity")),
    "null": position(entry(logprob="null")),
    "a text for a number": position(entry(logprob='"-1.5"')),
    "-0": position(entry(logprob="-0"), logprob="-0"),
    "-0.0": position(entry(logprob="-0.0"), logprob="-0.0"),
    "0": position(entry(logprob="0"), logprob="0"),
    "an exponent": position(entry(logprob="-1.5e-07"), logprob="-15E-8"),
    "17 digits": position(entry(logprob="-0.84911239147186279"), logprob="-1.2077898979187012e-05"),
    "24 characters": position(entry(logprob="-0.849112391471862790000")),
    "a leading zero": position(entry(logprob="-01.5")),
    "a bare point": position(entry(logprob="-1.")),
    "blanks about a number": position(entry(logprob=" -1.5 ")),
    "an escape": position(entry(r'"\u0061"')),
    "half a pair": position(entry(r'"\ud83d"')),
    "half a pair in bytes": position(entry('"\ud83d"')),
    "a raw line end": position(entry('"a\nb"')),
    "a wrong escape": position(entry(r'"\x"')),
    "quotes and colons": position(
        entry(r'"\",\"logprob\":-3,\"bytes\":[1]},{\"token\":"', raw="[34]")
    ),
    "a zero": position(entry(r'"\u0000"', raw="[0]")),
    "an empty token": position(entry('""', raw="[]")),
    "nothing for bytes": position(entry('""', raw="")),
    "65 characters of bytes": position(
        entry(json.dumps("a" * 22), raw=json.dumps([97] * 22, separators=(",", ":")))
    ),
    "U+FFFD": position(entry('"\ufffd"', raw="[195]"), entry('"\ufffd"', "-2", "[169]")),
    "a long token": position(entry(json.dumps("a" * 1000), raw=json.dumps([97] * 1000))),
    "33 bytes": position(
        entry(json.dumps("a" * 33), raw=json.dumps([97] * 33, separators=(",", ":")))
    ),
    "no alternatives": position(),
    "an alternative twice": position(entry(), entry()),
    "a position without a list": entry(),
    "a list in a list": position(position(entry())),
    "a comma too many": position(entry(), entry('"b"', "-2", "[98]") + ","),
    "a text for a list": position("7"),
    "-9999": position(entry(), entry('"b"', "-9999.0", "[98]")),
}


ODD_TOKENS = {
    97: b"a",
    98: b"b",
    195: b"\xc3",
    169: b"\xa9",
    34: b'"',
    0: b"\0",
    22: b"a" * 22,
    33: b"a" * 33,
    1000: b"a" * 1000,
}
"""Tokens of one byte, of a part of a character and of many."""


@pytest.mark.parametrize("odd", [*ODD, "cut off", "another layout", "no list", "no position"])
def test_what_is_odd_about_a_list_is_read_as_ever(odd: str) -> None:
    """Among regular positions, before or behind them, in a list on one line and with the same
    blanks everywhere; of answers that arrive together, an unreadable one fails alone.
    """
    vocabulary = Vocabulary("odd", ODD_TOKENS, {}, 2000, lambda text: list(text.encode()))
    profile = subject("OpenAI chat").profile
    about = Subject(profile, "chat", Sampling(top_logprobs=2), vocabulary, [])
    good = listed(GOOD, GOOD)
    assert isinstance(about.reader.loads(good), ParsedAnswer)
    position = ODD.get(odd, GOOD)
    for row in ([position, GOOD, GOOD], [GOOD, GOOD, position], [position]):
        assert_read_alike(about, listed(*row))
        assert_read_alike(about, listed(*row, blanks=" \n"))
        assert_read_alike(about, listed(*row).replace(b',"bytes":', b',\n  "bytes": '))
    strange = {
        "cut off": good[:-9],
        "another layout": listed(GOOD, blanks=" "),
        "no list": b'{"error": 1}',
        "no position": listed(),
    }.get(odd, listed(GOOD, position))
    contents = [good, listed(GOOD), strange, good, strange, listed(GOOD, GOOD, GOOD)]

    async def together() -> list[Any]:
        return await asyncio.gather(*map(about.reader.read, contents), return_exceptions=True)

    for content, answer in zip(contents, asyncio.run(together()), strict=True):
        truth = assert_read_alike(about, content)
        if truth is None:
            assert isinstance(answer, ValueError | RecursionError)
        else:
            assert_same(outcome(about, answer, 1), truth)
