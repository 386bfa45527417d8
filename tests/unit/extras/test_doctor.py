"""The doctor: nothing is contradicted of an honest server, and every planted lie is, on whatever
model stands behind it.
"""

from __future__ import annotations

import asyncio
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import log_softmax

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.errors import (
    AuthenticationFailed,
    ContentFiltered,
    QuotaExhausted,
    RequestRejected,
)
from blackbox_lb.extras.doctor.checks.pairs import Pair
from blackbox_lb.extras.doctor.exam import opening_lists
from blackbox_lb.extras.doctor.findings import Report, RowFinding, claim_of
from blackbox_lb.extras.doctor.run import CHECKS, examine
from blackbox_lb.extras.doctor.save import save_profile
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.types import Completion, Prompt
from blackbox_lb.vocabulary import Vocabulary
from tests.support.commands import blb, refusal
from tests.support.errors import names, raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import JSON, Dialect, RefusedRequest
from tests.support.exact.server import Answer
from tests.support.questions import questions, write_rows

SERVER = load_profile("llamacpp")
EFFECT = ("token identity", "effect of a bias")
"""Checks that show whether a bias acts; others lean on them."""
COMPLETION = "/v1/chat/completions"
Change = Callable[[JSON], None]


class Liar(ExactServer):
    """A server that changes requests on their way in, with ``wish``, or refuses them; ``answer``
    changes what goes out, and ``dialect`` how the model is read.
    """

    def __init__(
        self,
        model: ExactModel,
        seed: int,
        wish: Change | None = None,
        answer: Change | None = None,
        dialect: type[Dialect] = Dialect,
    ) -> None:
        super().__init__(model, seed=seed)
        self._dialect = dialect(model, "exact", None, seed)
        self._wish, self._changed = wish, answer

    def post(self, path: str, body: JSON) -> Answer:
        """The answer to a changed request."""
        if path != COMPLETION:
            return super().post(path, body)
        if self._wish is not None:
            self._wish(body)
        answer = super().post(path, body)
        if self._changed is not None and isinstance(answer, dict):
            self._changed(answer)
        return answer


class After(Dialect):
    """Logprobs of what bias and temperature made of the model, as SGLang returns them."""

    def post(self, path: str, body: JSON, number: int) -> JSON:
        """Remembers what the request asked for; one request at a time."""
        self._asked = body
        return super().post(path, body, number)

    def _logprobs(self, ids: list[int], before: list[int], prompt: int, k: int) -> list[JSON]:
        honest, delta = self.model, self._bias(self._asked.get("logit_bias"))

        class Tilted:
            """The model with the bias of one request."""

            @staticmethod
            def logprobs(prefix: Sequence[int], prompt: int) -> Any:
                return log_softmax(
                    (honest.logprobs(prefix, prompt) + delta) / (self._asked["temperature"] or 1e-6)
                )

        self.model = Tilted  # type: ignore[assignment]
        try:
            return super()._logprobs(ids, before, prompt, k)
        finally:
            self.model = honest


class Presence(Dialect):
    """A penalty in nats on tokens that the completion holds, whatever was asked for."""

    penalty, most = 1.0, 1.0

    def _generate(
        self, body: JSON, prompt: str, before: list[int], number: int
    ) -> tuple[list[int], str]:
        honest, self.model = self.model, copy(self.model)

        def weary(prefix: Sequence[int] = (), prompt: int = 0) -> Any:
            times = np.bincount(np.array(prefix, dtype=int), minlength=honest.vocab_size)
            return honest.logprobs(prefix, prompt) - self.penalty * np.minimum(times, self.most)

        self.model.logprobs = weary  # type: ignore[method-assign]
        try:
            return super()._generate(body, prompt, before, number)
        finally:
            self.model = honest


class HalfPresence(Presence):
    """Half of it."""

    penalty = 0.5


class Frequency(Presence):
    """A penalty for each time."""

    penalty, most = 0.5, math.inf


class Scaled(Dialect):
    """Eight alternatives a token, scaled to sum to 1, whatever lies outside them."""

    def _logprobs(self, ids: list[int], before: list[int], prompt: int, k: int) -> list[JSON]:
        entries = super()._logprobs(ids, before, prompt, min(k, 8))
        for entry in entries:
            whole = np.logaddexp.reduce([each["logprob"] for each in entry["top_logprobs"]])
            for each in (entry, *entry["top_logprobs"]):
                each["logprob"] = min(each["logprob"] - float(whole), 0.0)
        return entries


def in_steps(step: float, dialect: type[Dialect] = Dialect) -> type[Dialect]:
    """A dialect whose logprobs are multiples of ``step`` nats; they sum to more or less than 1."""

    class Rounded(dialect):  # type: ignore[valid-type, misc]
        def _entry(self, token: int, logprob: float) -> Any:
            return super()._entry(token, min(round(logprob / step) * step, 0.0))

    return Rounded


def silent(at: int, text: str = "") -> type[Dialect]:
    """A dialect whose answer number ``at`` has no list: llama.cpp gives one where its only token is
    a part of a character. ``text``: what it says in the place of its own.
    """

    class Silent(Dialect):
        def post(self, path: str, body: JSON, number: int) -> JSON:
            answer = super().post(path, body, number)
            if path == COMPLETION and number == at:
                (choice,) = answer["choices"]
                choice["logprobs"] = None
                if text:
                    choice["message"]["content"], choice["finish_reason"] = text, "length"
            return answer

    return Silent


def model(seed: int, size: int = 26) -> ExactModel:
    """A model of its own for each seed, with an end token."""
    return ExactModel(size, 20, seed=seed, end=True, prompts=16, sharpness=0.9)


def large(seed: int) -> ExactModel:
    """One of more tokens."""
    return model(seed, 120)


def talkative(seed: int) -> ExactModel:
    """One whose completions are as long as a real model's."""
    seldom = np.where(np.arange(26) == 25, -3.0, 0.0)
    return ExactModel(26, 64, seed=seed, end=True, prompts=16, sharpness=0.9, unigram=seldom)


def self_test(
    server: ExactServer, profile: Profile = SERVER, titles: Sequence[str] | None = None
) -> Report:
    """One self-test, of all checks or those called ``titles``, one request at a time, so that it
    repeats exactly.
    """
    wanted = {"tokenizer", "lists of alternatives", *(titles or ())}
    checks = tuple(check for check in CHECKS if titles is None or check.title in wanted)

    async def run() -> Report:
        async with Session(profile, base_url=server.base_url, attempts=1) as session:
            return await examine(session, checks=checks, concurrency=1)

    with server:
        return asyncio.run(run())


def finding(report: Report, row: str) -> RowFinding:
    """What was found of one row."""
    (found,) = [each for each in report.findings if each.row == row]
    return found


def altered(table: str, **rows: object) -> Profile:
    """The server's profile with some rows changed."""
    return SERVER.model_copy(update={table: getattr(SERVER, table).model_copy(update=rows)})


@pytest.mark.parametrize("seed", [0, 1])
def test_nothing_is_contradicted_of_an_honest_server(seed: int) -> None:
    """All rows are confirmed, not checked or measured, in fewer than 120 requests, all of which the
    report counts.
    """
    server = Liar(model(seed), seed)
    report = self_test(server)
    assert not report.contradicted, report.contradicted
    for row in ("neutral", "bias", "logprobs.meaning", "bias.high"):
        assert finding(report, row).status == "CONFIRMED"
    assert "+100" in finding(report, "bias.high").evidence
    # The list of models is asked for twice, with GET.
    assert len(server.requests) + 2 == report.requests < 120


@pytest.mark.slow
def test_no_honest_server_of_two_hundred_is_accused() -> None:
    """Whole self-tests, each of another model."""
    accused: list[RowFinding] = []
    for seed in range(200):
        accused += self_test(Liar(talkative(seed), seed)).contradicted
    assert accused == []


# --- What a server does to requests


def ignored(body: JSON) -> None:
    """Drops the bias."""
    body.pop("logit_bias", None)


def each_bias(change: Callable[[float], float]) -> Change:
    """Changes every value of a bias."""

    def wish(body: JSON) -> None:
        body["logit_bias"] = [[token, change(value)] for token, value in body.get("logit_bias", [])]

    return wish


def clipped(nats: float) -> Change:
    """Makes no more of a bias than so many nats, either way, and says nothing."""
    return each_bias(lambda value: max(min(value, nats), -nats))


def refusing(when: Callable[[JSON], bool], reason: str, status: int = 400) -> Change:
    """Refuses some requests."""

    def wish(body: JSON) -> None:
        if when(body):
            raise RefusedRequest(status, reason)

    return wish


def more_entries_than(most: int) -> Callable[[JSON], bool]:
    """Whether a bias has more entries."""
    return lambda body: len(body.get("logit_bias", [])) > most


def cut(body: JSON) -> None:
    """No more than 64 entries, and not a word about it."""
    body["logit_bias"] = body.get("logit_bias", [])[:64]


def top_p(body: JSON) -> None:
    """Truncates, whatever was asked for."""
    body["top_p"] = 0.9


def tempered(factor: float, every: int = 1) -> Change:
    """Another temperature than the one asked for, at each request of so many."""
    requests = [0]

    def wish(body: JSON) -> None:
        requests[0] += 1
        if requests[0] % every == 0:
            body["temperature"] *= factor

    return wish


# --- What it does to answers


def entries_of(answer: JSON) -> list[JSON]:
    """Every entry of a logprob list, alternatives included."""
    content = answer["choices"][0]["logprobs"]["content"]
    return [*content, *(other for entry in content for other in entry["top_logprobs"])]


def shifted(answer: JSON) -> None:
    """Neighbouring ids change places."""
    for entry in entries_of(answer):
        entry["id"] ^= 1


def without_bytes(answer: JSON) -> None:
    """Tokens are named by their ids alone."""
    for entry in entries_of(answer):
        del entry["bytes"]


def in_bits(answer: JSON) -> None:
    """Logarithms to base 2."""
    for entry in entries_of(answer):
        entry["logprob"] /= math.log(2)


def endless(answer: JSON) -> None:
    """The end token is neither listed nor counted."""
    choice = answer["choices"][0]
    if choice["finish_reason"] == "stop":
        choice["logprobs"]["content"].pop()
        answer["usage"]["completion_tokens"] -= 1


def short(answer: JSON) -> None:
    """Three alternatives, however many were asked for."""
    for entry in answer["choices"][0]["logprobs"]["content"]:
        del entry["top_logprobs"][3:]


def longer(answer: JSON) -> None:
    """A text with more than the bytes of its tokens."""
    answer["choices"][0]["message"]["content"] += " and so on"


def sampled_first(answer: JSON) -> None:
    """The sampled token stands first and the list is cut to as many as were asked for, as on
    vLLM.
    """
    for entry in answer["choices"][0].get("logprobs", {}).get("content", ()):
        listed = entry["top_logprobs"]
        own = {name: entry[name] for name in ("id", "token", "bytes", "logprob")}
        if all(other["id"] != entry["id"] for other in listed):
            entry["top_logprobs"] = [own, *listed[:-1]]


def lists_sampled(claim: str) -> Profile:
    """The profile with this claim of where a sampled token is listed."""
    chat = SERVER.endpoints["chat"].model_copy(update={"sampled_in_list": claim})
    return SERVER.model_copy(update={"endpoints": {**SERVER.endpoints, "chat": chat}})


NAMELESS = SERVER.model_copy(
    update={
        "tokenizer": SERVER.tokenizer.model_copy(update={"source": "model name"}),
        "bias": SERVER.bias.model_copy(update={"entries": 20}),
        "logprobs": SERVER.logprobs.model_copy(update={"limit": 20}),
    }
)
"""A profile by which nobody tells what an id prints as."""
SAMPLED = "endpoints.chat.sampled_in_list"
MEANING = (*EFFECT, "meaning of logprobs")
ENTRIES = (*EFFECT, "entries of a bias")
SAMPLING = ("end token", "neutral sampling")
OUTSIDE = (*EFFECT, "tokens outside the list")


@dataclass(frozen=True)
class Case:
    """A server, the profile that it is held against, and what the checks called ``titles``, or
    all, must find.

    Attributes:
        contradicted: each row that must be, with its true value; no other may be.
        seen: row -> status of further rows, or status and found value.
        says: words in the evidence of the first row of ``contradicted`` or ``seen``.
        server: ``wish``, ``answer`` and ``dialect`` of a ``Liar``.
    """

    contradicted: Mapping[str, object]
    seen: Mapping[str, str | tuple[str, object]] = field(default_factory=dict)
    says: str = ""
    server: Mapping[str, Any] = field(default_factory=dict)
    model: Callable[[int], ExactModel] = model
    seed: int = 0
    profile: Profile = SERVER
    titles: Sequence[str] | None = None


def case(contradicted: Mapping[str, object], **fields: Any) -> Case:
    """A case whose server's changes stand among its fields."""
    server: dict[str, Any] = {}
    for change in ("wish", "answer", "dialect"):
        if change in fields:
            server[change] = fields.pop(change)
    return Case(contradicted, server=server, **fields)


def lie(row: str, found: object = None, **fields: Any) -> Case:
    """One row is contradicted."""
    return case({row: found}, **fields)


def honest(seen: Mapping[str, str | tuple[str, object]], **fields: Any) -> Case:
    """Nothing is contradicted."""
    return case({}, seen=seen, **fields)


CASES = {
    "top-p .9": lie("neutral", wish=top_p, seed=1),
    "temperature .9": lie("neutral", wish=tempered(0.9), model=talkative, titles=SAMPLING),
    "presence": lie(
        "neutral", says="presence or frequency penalty", dialect=Presence, model=talkative
    ),
    "lists scaled to 1": lie(
        "neutral",
        says="scaled to 1",
        dialect=Scaled,
        profile=altered("logprobs", limit=8),
        titles=SAMPLING,
    ),
    "short lists": lie("logprobs.limit", 3, answer=short, seed=1),
    "7 alternatives": lie(
        "logprobs.limit",
        7,
        wish=refusing(lambda body: body["top_logprobs"] > 7, "top_logprobs is out of range"),
        profile=altered("logprobs", limit=20),
        seen={"logprobs.meaning": "CONFIRMED"},
    ),
    "end token": lie("logprobs.end_token_listed", False, answer=endless, seed=1),
    "end token, as claimed": honest(
        {"neutral": "CONFIRMED"},
        answer=endless,
        profile=altered("logprobs", end_token_listed=False),
        titles=SAMPLING,
    ),
    "wrong ids": lie("tokens.id", answer=shifted, seed=1),
    "wrong ids, without a tokenizer": lie(
        "tokens.id",
        answer=shifted,
        model=large,
        profile=NAMELESS,
        titles=EFFECT,
        seen={"bias": "NOT CHECKED"},
    ),
    "longer text": lie("tokens.bytes_exact", False, answer=longer, seed=1),
    "ids without bytes": honest(
        {"tokens.bytes_exact": "NOT CHECKED", "sampling.n": "NOT CHECKED", "bias": "CONFIRMED"},
        answer=without_bytes,
    ),
    "after the bias": lie("logprobs.meaning", "after bias", dialect=After, seed=3, titles=MEANING),
    "after the bias, not known": honest(
        {"logprobs.meaning": ("MEASURED", "after bias")},
        dialect=After,
        seed=3,
        profile=altered("logprobs", meaning="unknown"),
        titles=MEANING,
    ),
    "no answer to check it by": honest(
        {"logprobs.meaning": "NOT CHECKED"},
        says="out of memory",
        wish=refusing(lambda body: body["temperature"] == 0.5, "out of memory", 500),
        titles=MEANING,
    ),
    "ignored bias": lie("bias", wish=ignored, seed=1),
    "one-sided": lie("bias.low", wish=each_bias(lambda value: max(value, 0)), seed=1),
    "half as strong": lie(
        "bias",
        wish=each_bias(lambda value: value / 2),
        model=talkative,
        seen={"bias.strength": "MEASURED"},
    ),
    "no bias taken": lie(
        "bias",
        wish=refusing(more_entries_than(0), "Unsupported parameter: 'logit_bias'"),
        model=talkative,
        seen={"neutral": "CONFIRMED"},
    ),
    "integers": lie(
        "bias.fractions", False, wish=each_bias(lambda value: float(round(value))), seed=1
    ),
    "fractions where none are claimed": honest(
        {"bias.fractions": ("MEASURED", True)},
        profile=altered("bias", fractions=False),
        titles=(*EFFECT, "fractions"),
    ),
    "64 entries": lie(
        "bias.entries",
        64,
        wish=refusing(more_entries_than(64), "logit_bias is too large"),
        model=large,
        profile=altered("bias", entries=100),
        titles=ENTRIES,
    ),
    "64 entries, silently": lie("bias.entries", wish=cut, model=large, titles=ENTRIES),
    "20 entries, as claimed": honest(
        {"bias.entries": "CONFIRMED", "bias.strength": "MEASURED"},
        model=lambda seed: model(seed, 400),
        profile=altered("bias", entries=20),
    ),
    "5 entries, as claimed": honest(
        {"bias.entries": "CONFIRMED", "logprobs.meaning": "CONFIRMED", "bias": "CONFIRMED"},
        wish=refusing(more_entries_than(5), "logit_bias is too large"),
        model=lambda seed: model(seed, 400),
        profile=altered("bias", entries=5),
    ),
    "10 of 399 entries": lie(
        "bias.entries",
        10,
        wish=refusing(more_entries_than(10), "too many"),
        model=lambda seed: model(seed, 400),
        profile=altered("bias", entries=399),
    ),
    "ids to 90": lie(
        "bias.highest_id",
        90,
        wish=refusing(
            lambda body: any(token > 90 for token, _ in body.get("logit_bias", [])),
            "logit_bias takes ids up to 90",
        ),
        model=large,
        titles=("highest id",),
    ),
    "no seed": lie(
        "sampling.seed",
        wish=refusing(lambda body: "seed" in body, "seed is not supported"),
        titles=("seed",),
    ),
    "a seed that some engines do not survive": lie(
        "sampling.seed",
        False,
        wish=refusing(lambda body: "seed" in body, "no seed here", 500),
        titles=("seed",),
    ),
    "sampled token listed, otherwise claimed": lie(
        SAMPLED,
        "replaces the last",
        answer=sampled_first,
        profile=lists_sampled("no"),
        titles=OUTSIDE,
    ),
    "steps of 0.1": honest(
        {"logprobs.step": "MEASURED", "logprobs.meaning": "CONFIRMED", "neutral": "CONFIRMED"},
        says="a multiple of 1/10 nat",
        dialect=in_steps(0.1),
        model=talkative,
    ),
    "steps of 0.5": honest(
        {"neutral": "NOT CHECKED", "logprobs.meaning": "CONFIRMED"},
        says="rounded to steps",
        dialect=in_steps(0.5),
        model=talkative,
    ),
    "steps of 0.5 and top-p": lie(
        "neutral",
        says="top_p truncates",
        wish=top_p,
        dialect=in_steps(0.5),
        model=talkative,
        titles=SAMPLING,
    ),
    "one answer without a list": honest({"bias.entries": "CONFIRMED"}, dialect=silent(30)),
    "a first answer without a list": honest(
        {"bias.entries": "CONFIRMED"}, dialect=silent(0, "\ufffd")
    ),
}
"""Every lie is contradicted by its own row, and every other habit by none."""


@pytest.mark.parametrize("name", CASES)
def test_what_is_found(name: str) -> None:
    """The row that a lie is about, with its true value, and no other; no more entries of a bias
    are sent than are claimed, and no more requests than planned.
    """
    case = CASES[name]
    server = Liar(case.model(case.seed), case.seed, **case.server)
    report = self_test(server, case.profile, case.titles)
    contradicted = {each.row: each.found for each in report.contradicted}
    assert contradicted == case.contradicted, report.contradicted
    for row, expected in case.seen.items():
        seen = finding(report, row)
        assert expected in (seen.status, (seen.status, seen.found)), seen
    first = next(iter({**case.contradicted, **case.seen}))
    assert case.says in finding(report, first).evidence
    if case.profile.bias.entries is not None:
        sent = [len(body.get("logit_bias", [])) for _, body in server.calls]
        assert max(sent) <= case.profile.bias.entries
    assert report.requests < 120


IN_MOST: dict[str, dict[str, Any]] = {
    "top-k": {"wish": lambda body: body.update(top_k=5)},
    "min-p": {"wish": lambda body: body.update(min_p=0.1)},
    "top-p": {"wish": top_p},
    "presence": {"dialect": Presence},
    "half presence": {"dialect": HalfPresence},
    "frequency": {"dialect": Frequency},
    "scaled": {"dialect": Scaled},
    "after the bias": {"dialect": After},
    "ignored": {"wish": ignored},
    "integers": {"wish": each_bias(lambda value: float(round(value)))},
    "clipped": {"wish": clipped(1.0)},
    "one-sided": {"wish": each_bias(lambda value: max(value, 0))},
    "halved": {"wish": each_bias(lambda value: value / 2)},
    "stronger": {"wish": each_bias(lambda value: value * 1.2)},
    "1.1": {"wish": tempered(1.1)},
    "1.15": {"wish": tempered(1.15)},
    "0.9": {"wish": tempered(0.9)},
    "two models": {"wish": tempered(0.6, every=3)},
    "bits": {"answer": in_bits},
    "swapped ids": {"answer": shifted},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", IN_MOST)
def test_a_lie_is_found_in_nineteen_of_twenty_self_tests(name: str) -> None:
    """Whole self-tests, each of another model, in at most 119 requests."""
    profile = altered("logprobs", limit=8) if name == "scaled" else SERVER
    servers = [Liar(talkative(seed), seed, **IN_MOST[name]) for seed in range(20)]
    reports = [self_test(server, profile) for server in servers]
    assert sum(bool(report.contradicted) for report in reports) >= 19
    assert max(report.requests for report in reports) < 120


def test_the_budget_cannot_be_overdrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it does not suffice for is not checked, with that reason."""
    monkeypatch.setattr("blackbox_lb.extras.doctor.run.MOST_REQUESTS", 40)
    server = Liar(model(0), 0)
    report = self_test(server)
    assert len(server.requests) < report.requests <= 40
    assert not report.contradicted, report.contradicted
    neutral = finding(report, "neutral")
    assert (neutral.status, "40 requests is spent" in neutral.evidence) == ("NOT CHECKED", True)


def test_a_clipped_bias_is_saved_with_its_range(tmp_path: Path) -> None:
    """Its own row is blamed, with the number at which it is clipped, and no other row is; below 0,
    where a clip is not seen, the same number is right in any case. The saved range is what the
    server acts on, and a second self-test is clean.
    """
    report = self_test(Liar(model(1, 100), 1, clipped(5.0)))
    assert [(each.row, each.found) for each in report.contradicted] == [("bias.high", 5.0)]
    low = finding(report, "bias.low")
    assert (low.status, low.found) == ("MEASURED", -5.0)
    assert finding(report, "bias").status == "CONFIRMED"
    save_profile(report, tmp_path / "mine.toml", "llamacpp")
    mine = load_profile(str(tmp_path / "mine.toml"))
    assert (mine.bias.low, mine.bias.high, mine.bias.fractions) == (-5.0, 5.0, True)
    again = self_test(Liar(model(1, 100), 1, clipped(5.0)), mine)
    assert not again.contradicted, again.contradicted


VLLM_REFUSAL = (
    "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
)


def test_a_server_that_decodes_speculatively_is_named() -> None:
    """The bias is contradicted, with the set-up and the remedy; what needs none is checked all the
    same, and nothing else is contradicted. A version that ignores the bias gets the same hint.
    """
    rules = load_profile("vllm").bias.refused
    profile = altered("bias", refused=rules)
    speculative = refusing(more_entries_than(0), VLLM_REFUSAL)
    report = self_test(Liar(talkative(0), 0, speculative), profile)
    assert [each.row for each in report.contradicted] == ["bias"], report.contradicted
    assert VLLM_REFUSAL.rstrip(".") in finding(report, "bias").evidence
    assert rules[0].remedy in finding(report, "bias").evidence
    for row in ("bias.refused", "neutral", "logprobs.limit"):
        assert finding(report, row).status == "CONFIRMED"
    for judged, is_named in ((profile, True), (SERVER, False)):
        older = self_test(Liar(talkative(0), 0, ignored), judged, EFFECT)
        assert (rules[0].remedy in finding(older, "bias").evidence) is is_named


@pytest.mark.parametrize(
    ("status", "message", "error"),
    [
        (401, "no such key", AuthenticationFailed),
        (400, "no such thing", RequestRejected),
        (429, "You exceeded your current quota (insufficient_quota)", QuotaExhausted),
    ],
)
def test_what_ends_the_run(status: int, message: str, error: type[Exception]) -> None:
    """Where not even a plain request is answered there is nothing to report."""
    with raises_naming(error, message):
        self_test(Liar(model(0), 0, refusing(lambda body: True, message, status)))


@pytest.mark.parametrize(
    ("filtered", "row"),
    [
        ("bias", "bias"),
        ("temperature", "logprobs.meaning"),
        ("story", "neutral"),
        ("emoji", None),
        ("half", None),
        ("everything", None),
    ],
)
def test_a_content_filter_contradicts_nothing(
    filtered: str, row: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it keeps back is not checked, with that reason; what it lets pass is. One that keeps
    everything back ends the run.
    """
    answered, count = Session.answer, [0]

    async def answer(self: Session, prompt: Prompt, draw: Draw, *rest: Any) -> Any:
        count[0] += 1
        meets = {
            "bias": bool(draw.bias),
            "temperature": draw.sampling.temperature == 0.5,
            "story": "beginning of a story" in prompt.text,
            "emoji": "five emoji" in prompt.text,
            "half": count[0] % 2 == 0,
            "everything": True,
        }
        if meets[filtered]:
            raise ContentFiltered("The response was filtered")
        return await answered(self, prompt, draw, *rest)

    monkeypatch.setattr(Session, "answer", answer)
    server = Liar(model(0), 0)
    if filtered == "everything":
        with raises_naming(ContentFiltered, "nothing", "The response was filtered"):
            self_test(server)
        return
    report = self_test(server)
    assert not report.contradicted, report.contradicted
    if row is not None:
        assert finding(report, row).status == "NOT CHECKED"
        assert "content filter" in finding(report, row).evidence
    if filtered == "emoji":
        assert finding(report, "tokens.id").status == "CONFIRMED"


@given(st.floats(0, 20))
def test_a_duel_looks_the_same_in_whole_numbers(gap: float) -> None:
    """Both sides of a duel are the same two numbers under every rounding, and lie either side of
    the tie.
    """
    below, above = (Pair(1, 2, gap).duel(side) for side in (-1, 1))
    for way in (math.floor, math.ceil, round, math.trunc):
        assert {token: way(value) for token, value in below.items()} == {
            token: way(value) for token, value in above.items()
        }
    assert below[2] - below[1] + 0.19 < gap < above[2] - above[1] - 0.19


def test_the_first_list_of_a_completion_that_lacks_tokens_is_no_opening() -> None:
    """llama.cpp lists no half of a character: where that came first, the first list is of the
    second position, and is read only where a provider never tells.
    """

    def drawn(top: list[int], whole: bool) -> Completion:
        ids, values = np.array(top, np.int32), np.log(np.array([0.6, 0.4], np.float32))
        return Completion("", "length", ids[:1], values[:1], ids[None], values[None], whole=whole)

    whole, headless = drawn([3, 5], True), drawn([8, 9], False)
    assert [set(row) for row in opening_lists([whole, headless])] == [{3, 5}]
    assert [set(row) for row in opening_lists([headless])] == [{8, 9}]


# --- What is saved


def report_of(*findings: RowFinding, provider: str = "fireworks") -> Report:
    """A report with these findings, each with what the profile claims."""
    profile = load_profile(provider)
    findings = tuple(replace(each, claim=claim_of(profile, each.row)) for each in findings)
    address = "http://127.0.0.1:1/v1"
    return Report(profile, "a/model", "chat", address, findings, 9, 90, 900, 1.0)


def test_a_saved_profile_says_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contradicted rows hold their true values, confirmed ones their evidence, and what was proven
    is no guess any more. One's own profile is extended wherever the new one lies.
    """
    path = tmp_path / "mine.toml"
    report = report_of(
        RowFinding("bias.entries", "CONTRADICTED", "refused above 64", 64),
        RowFinding("logprobs.meaning", "CONTRADICTED", "the exact tilt", "after bias"),
        RowFinding("endpoints.chat.sampled_in_list", "MEASURED", "not listed", "no"),
        RowFinding("neutral", "CONFIRMED", "p = .4"),
        RowFinding("logprobs.noise", "MEASURED", "at most 0.1 nat"),
    )
    save_profile(report, path, "fireworks", "http://127.0.0.1:9/inference/v1")
    mine = load_profile(str(path))
    assert (mine.name, mine.bias.entries, mine.logprobs.meaning) == ("mine", 64, "after bias")
    assert mine.endpoints["chat"].sampled_in_list == "no"
    assert mine.connection.base_url == "http://127.0.0.1:9/inference/v1"
    assert (mine.evidence["neutral"].grade, mine.evidence["neutral"].seen) == ("L", "p = .4")
    assert mine.unknown == []
    assert "logprobs.noise" not in tomllib.loads(path.read_text())["evidence"]
    monkeypatch.chdir(tmp_path)
    Path("own.toml").write_text('extends = "vllm"\nname = "own"\n')
    Path("below").mkdir()
    save_profile(report_of(provider="vllm"), Path("below") / "mine.toml", "own.toml")
    monkeypatch.chdir(tmp_path / "below")
    assert load_profile("mine.toml").bias.entries == 1024


def test_what_stays_open_stays_a_guess(tmp_path: Path) -> None:
    """Of a guessed table that was proven, the rows are still guesses that were not checked, have no
    evidence of their own, and no value that is right in any case; nothing makes up for a bias that
    nobody saw act.
    """
    path = tmp_path / "mine.toml"

    def saved(report: Report, guesses: Sequence[str], evidence: Any = None) -> Profile:
        rows = {"unknown": [*guesses], "evidence": evidence or {}}
        profile = SERVER.model_copy(update=rows)
        careful.append(save_profile(replace(report, profile=profile), path, "llamacpp"))
        return load_profile(str(path))

    careful: list[Mapping[str, object]] = []
    guesses = ["bias", "neutral", "tokens.id"]
    report = report_of(
        RowFinding("bias", "CONFIRMED", "seen"),
        RowFinding("bias.entries", "NOT CHECKED", "no time"),
        RowFinding("neutral", "NOT CHECKED", "too little variety"),
    )
    left = ["bias.entries", "bias.highest_id", "bias.low", "neutral", "tokens.id"]
    assert saved(report, guesses).unknown == left
    accepted = replace(report, entries=3, named=17)
    mine = saved(accepted, guesses)
    assert (mine.unknown, mine.bias.entries, mine.bias.highest_id) == (left[2:], 3, 17)
    documented = saved(accepted, guesses, SERVER.evidence)
    assert documented.unknown == ["neutral", "tokens.id"]
    integers = {"bias.fractions": False}
    assert careful == [
        integers,
        {**integers, "bias.entries": 3, "bias.highest_id": 17},
        {**integers, "bias.highest_id": 17},
    ]
    unseen = replace(report_of(RowFinding("bias.entries", "CONFIRMED", "accepted")), entries=9)
    assert saved(replace(unseen, findings=()), ["bias", "tokens"]).unknown[0] == "bias"
    mine = saved(unseen, ["bias", "tokens"])
    assert not mine.is_known("bias")
    assert mine.bias.fractions


# --- A server whose chat has no logprobs


class Studio(Liar):
    """Logprobs only through /v1/responses, a bias only through chat, as LM Studio has it."""

    def post(self, path: str, body: JSON) -> Answer:
        """Chat without logprobs; a response from the chat completion behind it."""
        if path == COMPLETION:
            answer = super().post(path, body)
            if isinstance(answer, dict):
                answer["choices"][0].pop("logprobs", None)
            return answer
        chat = {
            "messages": body["input"],
            "max_tokens": body["max_output_tokens"],
            "logprobs": True,
        }
        answer = super().post(COMPLETION, {**body, **chat})
        return response_of(answer) if isinstance(answer, dict) else answer


def response_of(answer: JSON) -> JSON:
    """A chat completion as an answer of /v1/responses."""
    choice, used = answer["choices"][0], answer["usage"]
    part = {
        "type": "output_text",
        "text": choice["message"]["content"],
        "logprobs": choice["logprobs"]["content"],
    }
    return {
        "status": "completed" if choice["finish_reason"] == "stop" else "incomplete",
        "output": [{"type": "message", "content": [part]}],
        "usage": {
            "input_tokens": used["prompt_tokens"],
            "output_tokens": used["completion_tokens"],
        },
    }


def test_a_fit_after_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider of guesses is refused before the doctor, and taken with what it saved unless a row
    that is needed stayed open. An ignored bias is found by the text, although no token is named.
    """
    server, path, data = Studio(model(0), 0), tmp_path / "mine.toml", tmp_path / "data.jsonl"
    words = {token: text.encode() for token, text in enumerate(server.texts) if text}
    vocabulary = Vocabulary("exact", words, {"<|end|>": 25}, 26, server.tokenize)
    monkeypatch.setattr("blackbox_lb.api.session._vocabulary", lambda *_: vocabulary)
    write_rows(data, questions(8, 2, 2, answer="a"))
    fit = f"--data {data} --reward contains --max-tokens 8 --quiet --out {tmp_path / 'run'}"
    fit += " --samples-per-prompt 4 --entries 5"

    def run(command: str, provider: object, rest: str) -> Result:
        where = f"--provider {provider} --base-url {server.base_url} --concurrency 1"
        return blb(*f"{command} {where} {rest}".split())

    with server:
        assert "tokens.id, neutral, bias" in refusal(run("fit", "lmstudio", fit))
        report = run("doctor", "lmstudio", f"--quiet --save {path}")
        assert report.exit_code == 0, report.output
        assert names(report.stdout, "bias.fractions", "saved as false")
        mine = load_profile(str(path))
        assert (mine.unknown, mine.bias.fractions, mine.bias.low) == ([], False, -100)
        saved = path.read_text()
        for row in ("neutral", "bias.low"):
            path.write_text(saved.replace("unknown = []", f'unknown = ["{row}"]'))
            assert f"{row} of mine" in refusal(run("fit", path, fit))
        path.write_text(saved)
        fitted = run("fit", path, fit)
        assert fitted.exit_code == 0, fitted.output
        server._wish = ignored
        ended = run("doctor", "lmstudio", "--quiet --json")
    found = json.loads(ended.stdout)["findings"]
    assert [row["row"] for row in found if row["status"] == "CONTRADICTED"] == ["bias"]
