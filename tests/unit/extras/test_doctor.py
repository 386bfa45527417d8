"""The doctor: nothing is contradicted of an honest server, and every planted lie is, on whatever
model stands behind it.
"""

from __future__ import annotations

import asyncio
import math
import tomllib
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import replace
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
    InputError,
    QuotaExhausted,
    RequestRejected,
)
from blackbox_lb.extras.doctor.checks.pairs import Pair
from blackbox_lb.extras.doctor.checks.tokens import EMOJI
from blackbox_lb.extras.doctor.exam import MOST_REQUESTS, STORY, opening_lists
from blackbox_lb.extras.doctor.findings import Report, RowFinding, claim_of
from blackbox_lb.extras.doctor.run import CHECKS, Check, examine, most_tokens
from blackbox_lb.extras.doctor.save import check_target, save_profile
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.types import Completion, Prompt
from blackbox_lb.vocabulary import Vocabulary
from tests.support.commands import blb, refusal
from tests.support.errors import names, raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import JSON, Dialect, RefusedRequest
from tests.support.exact.server import Answer
from tests.support.questions import questions, write_rows

SEEDS = [*range(2), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 20))]
"""Models: two by default state each law, and all twenty with ``--slow`` how often it holds."""
SERVER = load_profile("llamacpp")
NEEDS = {
    "lists of alternatives": (),
    "neutral sampling": ("end token",),
    "end token": (),
    "seed": (),
    "highest id": (),
    "tokens outside the list": ("effect of a bias",),
    "token identity": (),
    "effect of a bias": ("token identity",),
    "fractions": ("effect of a bias",),
    "meaning of logprobs": ("effect of a bias",),
    "strength of a bias": (
        "token identity",
        "end token",
        "effect of a bias",
        "meaning of logprobs",
    ),
    "entries of a bias": ("effect of a bias",),
}
"""What a check leans on, beside the tokenizer and the lists of alternatives."""
COMPLETION = "/v1/chat/completions"


class Liar(ExactServer):
    """A server that changes requests on their way in, with ``wish``, or refuses them; ``answer``
    changes what goes out.
    """

    def __init__(
        self,
        model: ExactModel,
        seed: int,
        wish: Callable[[JSON], None] | None = None,
        answer: Callable[[JSON], None] | None = None,
    ) -> None:
        super().__init__(model, seed=seed)
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


class Penalised(Dialect):
    """A penalty in nats on tokens that the completion holds, whatever was asked for; of a frequency
    penalty ``most`` times.
    """

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


def model(seed: int, size: int = 26) -> ExactModel:
    """A model of its own for each seed, with an end token."""
    return ExactModel(size, 20, seed=seed, end=True, prompts=16, sharpness=0.9)


def talkative(seed: int) -> ExactModel:
    """One whose completions are as long as a real model's."""
    seldom = np.where(np.arange(26) == 25, -3.0, 0.0)
    return ExactModel(26, 64, seed=seed, end=True, prompts=16, sharpness=0.9, unigram=seldom)


def self_test(
    server: ExactServer, profile: Profile = SERVER, titles: Sequence[str] | None = None
) -> Report:
    """One self-test, of the checks called ``titles`` and what they need, one request at a time, so
    that it repeats exactly.
    """

    async def run() -> Report:
        async with Session(profile, base_url=server.base_url, attempts=1) as session:
            return await examine(session, checks=chosen(titles), concurrency=1)

    with server:
        return asyncio.run(run())


def chosen(titles: Sequence[str] | None) -> tuple[Check[Any], ...]:
    """All checks, or those called ``titles`` with what they need."""
    wanted = {
        "tokenizer",
        "lists of alternatives",
        *(titles or ()),
        *(need for title in titles or () for need in NEEDS[title]),
    }
    return tuple(check for check in CHECKS if titles is None or check.title in wanted)


def finding(report: Report, row: str) -> RowFinding:
    """What was found of one row."""
    (found,) = [each for each in report.findings if each.row == row]
    return found


def altered(table: str, **rows: object) -> Profile:
    """The server's profile with some rows changed."""
    return SERVER.model_copy(update={table: getattr(SERVER, table).model_copy(update=rows)})


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_is_contradicted_of_an_honest_server(seed: int) -> None:
    """All rows are confirmed, not checked or measured, in fewer than 120 requests, all of which the
    report counts.
    """
    server = Liar(model(seed), seed)
    report = self_test(server)
    assert not report.contradicted, report.contradicted
    assert finding(report, "neutral").status == "CONFIRMED"
    assert finding(report, "bias").status == "CONFIRMED"
    assert finding(report, "logprobs.meaning").status == "CONFIRMED"
    assert finding(report, "bias.high").status == "CONFIRMED"
    assert "+100" in finding(report, "bias.high").evidence
    assert (
        len(server.requests) + 2 == report.requests < 120
    )  # the list of models is asked for twice, with GET
    completions = [body for path, body in server.calls if path == COMPLETION]
    assert sum(body["max_tokens"] for body in completions) <= most_tokens()


def top_p(body: JSON) -> None:
    """Truncates, whatever was asked for."""
    body["top_p"] = 0.9


def ignored(body: JSON) -> None:
    """Drops the bias."""
    body.pop("logit_bias", None)


def rounded(body: JSON) -> None:
    """Whole numbers only."""
    body["logit_bias"] = [[token, round(value)] for token, value in body.get("logit_bias", [])]


def few(body: JSON) -> None:
    """No more than 64 entries."""
    if len(body.get("logit_bias", [])) > 64:
        raise RefusedRequest(400, "logit_bias is too large")


def cut(body: JSON) -> None:
    """No more than 64 entries, and not a word about it."""
    body["logit_bias"] = body.get("logit_bias", [])[:64]


def tempered(factor: float) -> Callable[[JSON], None]:
    """Another temperature than the one asked for."""

    def wish(body: JSON) -> None:
        body["temperature"] *= factor

    return wish


def entries_of(answer: JSON) -> list[JSON]:
    """Every entry of a logprob list, alternatives included."""
    content = answer["choices"][0]["logprobs"]["content"]
    return [*content, *(other for entry in content for other in entry["top_logprobs"])]


def shifted(answer: JSON) -> None:
    """Neighbouring ids change places."""
    for entry in entries_of(answer):
        entry["id"] ^= 1


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


def one_sided(body: JSON) -> None:
    """Only what is added."""
    body["logit_bias"] = [[token, max(value, 0)] for token, value in body.get("logit_bias", [])]


def longer(answer: JSON) -> None:
    """A text with more than the bytes of its tokens."""
    answer["choices"][0]["message"]["content"] += " and so on"


LIES: dict[str, tuple[str, str, object, dict[str, Any]]] = {
    "top-p .9": ("neutral", "neutral sampling", None, {"wish": top_p}),
    "ignored bias": ("bias", "effect of a bias", None, {"wish": ignored}),
    "integers": ("bias.fractions", "fractions", False, {"wish": rounded}),
    "wrong ids": ("tokens.id", "token identity", None, {"answer": shifted}),
    "end token": ("logprobs.end_token_listed", "neutral sampling", False, {"answer": endless}),
    "one-sided": ("bias.low", "effect of a bias", None, {"wish": one_sided}),
    "longer text": ("tokens.bytes_exact", "token identity", False, {"answer": longer}),
    "short lists": ("logprobs.limit", "lists of alternatives", 3, {"answer": short}),
}


@pytest.mark.parametrize("seeds", [range(1, 2), pytest.param(range(20), marks=pytest.mark.slow)])
@pytest.mark.parametrize("lie", LIES)
def test_every_lie_is_contradicted(lie: str, seeds: range) -> None:
    """The row that a lie is about is contradicted, with its true value where there is one, and no
    other row is: in the whole self-test of one model, and in the lie's own check for at least 18 of
    20. The others are those that mostly end at once, which shows little: there the row is not
    checked, and never confirmed.
    """
    row, title, value, changes = LIES[lie]
    titles = [title] if len(seeds) > 1 else None
    caught = 0
    for seed in seeds:
        report = self_test(Liar(model(seed), seed, **changes), titles=titles)
        if report.contradicted:
            contradicted = [(claim.row, claim.found) for claim in report.contradicted]
            assert contradicted == [(row, value)], f"seed {seed}: {contradicted}"
            caught += 1
        else:
            assert finding(report, row).status == "NOT CHECKED", f"seed {seed}"
    assert caught >= 0.9 * len(seeds)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(20), marks=pytest.mark.slow)])
def test_a_temperature_of_nine_tenths_is_found(seeds: range) -> None:
    """In at least 19 of 20 self-tests, where completions are as long as those of a real model;
    where it is 1, none is accused.
    """
    found = {True: 0, False: 0}
    for seed in seeds:
        for warm in found:
            server = Liar(talkative(seed), seed, None if warm else tempered(0.9))
            report = self_test(server, titles=["neutral sampling"])
            found[warm] += finding(report, "neutral").status == "CONTRADICTED"
    assert found[True] == 0
    assert found[False] >= 0.95 * len(seeds)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(20), marks=pytest.mark.slow)])
@pytest.mark.parametrize("scale", [1.0, 1.2, 0.5])
def test_how_strongly_a_bias_acts_is_found(scale: float, seeds: range) -> None:
    """One that acts 1.2 times as strongly as sent, or half as strongly, in at least 19 of 20
    self-tests; an exact one is never accused. The largest biases act as before: they force a token
    all the same."""

    def scaled(body: JSON) -> None:
        body["logit_bias"] = [
            [token, value * scale if abs(value) < 50 else value]
            for token, value in body.get("logit_bias", [])
        ]

    found = 0
    for seed in seeds:
        titles = ["fractions", "strength of a bias"]
        report = self_test(Liar(talkative(seed), seed, scaled), titles=titles)
        assert {each.row for each in report.contradicted} <= {"bias"}, report.contradicted
        assert "times as strongly as sent" in finding(report, "bias.strength").evidence
        found += finding(report, "bias").status == "CONTRADICTED"
    assert found >= 0.95 * len(seeds) if scale != 1 else not found


def each_bias(change: Callable[[float], float]) -> Callable[[JSON], None]:
    """A server that changes every value of a bias."""

    def wish(body: JSON) -> None:
        body["logit_bias"] = [[token, change(value)] for token, value in body.get("logit_bias", [])]

    return wish


def in_bits(answer: JSON) -> None:
    """Logarithms to base 2."""
    for entry in entries_of(answer):
        entry["logprob"] /= math.log(2)


def sometimes_colder() -> Callable[[JSON], None]:
    """Another model behind every third request."""
    requests = [0]

    def wish(body: JSON) -> None:
        requests[0] += 1
        body["temperature"] *= 0.6 if requests[0] % 3 == 0 else 1.0

    return wish


def clipped(nats: float) -> Callable[[JSON], None]:
    """A server that makes no more of a bias than so many nats, either way, and says nothing."""
    return each_bias(lambda value: max(min(value, nats), -nats))


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))]
)
@pytest.mark.parametrize("nats", [5.0, pytest.param(20.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("size", [26, 100])
def test_a_clipped_bias_is_blamed_on_its_own_row(nats: float, size: int, seed: int) -> None:
    """In a whole self-test, with the number at which it is clipped, and no other row is; below 0,
    where a clip is not seen, the same number is right in any case.
    """
    server = talkative(seed) if size == 26 else model(seed, size)
    report = self_test(Liar(server, seed, clipped(nats)))
    assert [each.row for each in report.contradicted] == ["bias.high"], report.contradicted
    high = finding(report, "bias.high").found
    assert isinstance(high, float)
    assert nats - 1 <= high <= nats + 0.5
    assert (finding(report, "bias.low").status, finding(report, "bias.low").found) == (
        "MEASURED",
        -high,
    )
    assert finding(report, "bias").status == "CONFIRMED"
    assert report.requests < 120


def test_a_clip_is_saved_and_a_second_test_is_clean(tmp_path: Path) -> None:
    """The saved range is what the server acts on."""
    report = self_test(Liar(model(1, 100), 1, clipped(5.0)))
    save_profile(report, tmp_path / "mine.toml", "llamacpp")
    mine = load_profile(str(tmp_path / "mine.toml"))
    assert (mine.bias.low, mine.bias.high, mine.bias.fractions) == (-5.0, 5.0, True)
    again = self_test(Liar(model(1, 100), 1, clipped(5.0)), mine)
    assert not again.contradicted, again.contradicted


@pytest.mark.parametrize("scale", [0.5, 1.2])
def test_a_scaled_bias_is_no_clipped_one(scale: float) -> None:
    """Also where the largest biases are scaled: it is contradicted as a whole, and neither its range
    nor its fractions are blamed.
    """
    report = self_test(Liar(talkative(0), 0, each_bias(lambda value: value * scale)))
    assert [claim.row for claim in report.contradicted] == ["bias"], report.contradicted


VLLM_REFUSAL = (
    "The min_p and logit_bias sampling parameters are not yet supported with speculative decoding."
)


def speculative(body: JSON) -> None:
    """Takes no bias, as a vLLM server that decodes speculatively."""
    if body.get("logit_bias"):
        raise RefusedRequest(400, VLLM_REFUSAL)


def test_a_server_that_decodes_speculatively_is_named() -> None:
    """The bias is contradicted, with the set-up and the remedy; what needs none is checked all the
    same, and nothing else is contradicted. A version that ignores the bias gets the same hint.
    """
    rules = load_profile("vllm").bias.refused
    profile = altered("bias", refused=rules)
    report = self_test(Liar(talkative(0), 0, speculative), profile)
    assert [each.row for each in report.contradicted] == ["bias"], report.contradicted
    assert VLLM_REFUSAL.rstrip(".") in finding(report, "bias").evidence
    assert rules[0].remedy in finding(report, "bias").evidence
    assert finding(report, "bias.refused").status == "CONFIRMED"
    assert finding(report, "neutral").status == "CONFIRMED"
    assert finding(report, "logprobs.limit").status == "CONFIRMED"
    older = self_test(Liar(talkative(0), 0, ignored), profile, titles=["effect of a bias"])
    assert rules[0].remedy in finding(older, "bias").evidence
    other = self_test(Liar(talkative(0), 0, ignored), titles=["effect of a bias"])
    assert rules[0].remedy not in finding(other, "bias").evidence


def test_any_other_refusal_of_every_bias_is_no_end_of_the_test() -> None:
    """What was paid for is reported: a model that takes no bias is one contradiction."""

    def refuses(body: JSON) -> None:
        if body.get("logit_bias"):
            raise RefusedRequest(400, "Unsupported parameter: 'logit_bias' is not supported")

    report = self_test(Liar(talkative(0), 0, refuses))
    assert [each.row for each in report.contradicted] == ["bias"], report.contradicted
    assert "bias.refused" not in [each.row for each in report.findings]
    assert finding(report, "neutral").status == "CONFIRMED"


SEEN_IN_MOST: dict[str, dict[str, Any]] = {
    "top-k": {"wish": lambda body: body.update(top_k=5)},
    "min-p": {"wish": lambda body: body.update(min_p=0.1)},
    "clipped": {"wish": clipped(1.0)},
    "one-sided": {"wish": one_sided},
    "halved": {"wish": each_bias(lambda value: value / 2)},
    "stronger": {"wish": each_bias(lambda value: value * 1.2)},
    "1.1": {"wish": tempered(1.1)},
    "1.15": {"wish": tempered(1.15)},
    "0.9": {"wish": tempered(0.9)},
    "two models": {"wish": sometimes_colder()},
    "bits": {"answer": in_bits},
    "swapped ids": {"answer": shifted},
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", SEEN_IN_MOST)
def test_a_lie_is_found_in_nineteen_of_twenty_self_tests(lie: str) -> None:
    """Whole self-tests, each of another model, in at most 119 requests."""
    reports = [self_test(Liar(talkative(seed), seed, **SEEN_IN_MOST[lie])) for seed in range(20)]
    assert sum(bool(report.contradicted) for report in reports) >= 19
    assert max(report.requests for report in reports) < 120


@pytest.mark.slow
def test_no_honest_server_of_two_hundred_is_accused() -> None:
    """Whole self-tests, each of another model."""
    accused: list[RowFinding] = []
    for seed in range(200):
        report = self_test(Liar(talkative(seed), seed))
        accused += report.contradicted
    assert accused == []


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(20), marks=pytest.mark.slow)])
def test_lists_that_are_scaled_to_one_are_found(seeds: range) -> None:
    """More tokens are drawn from outside them than they leave room for."""
    found = 0
    for seed in seeds:
        server = ExactServer(model(seed), seed=seed)
        server._dialect = Scaled(server.model, "exact", None, seed)
        found += (
            "scaled to 1"
            in finding(
                self_test(server, altered("logprobs", limit=8), ["neutral sampling"]), "neutral"
            ).evidence
        )
    assert found >= 0.95 * len(seeds)


def test_mixed_up_ids_are_found_without_a_tokenizer() -> None:
    """Where nobody tells what an id prints as, a bias that brings another id than the one it names
    shows it.
    """
    profile = SERVER.model_copy(
        update={
            "tokenizer": SERVER.tokenizer.model_copy(update={"source": "model name"}),
            "bias": SERVER.bias.model_copy(update={"entries": 20}),
            "logprobs": SERVER.logprobs.model_copy(update={"limit": 20}),
        }
    )
    for seed in range(2):
        honest = self_test(Liar(model(seed, 100), seed), profile, ["effect of a bias"])
        assert finding(honest, "tokens.id").status == "CONFIRMED"
        mixed = self_test(
            Liar(model(seed, 100), seed, answer=shifted), profile, ["effect of a bias"]
        )
        assert [each.row for each in mixed.contradicted] == ["tokens.id"]
        assert finding(mixed, "bias").status == "NOT CHECKED"


@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(20) if seed != 3)]
)
@pytest.mark.parametrize(
    ("claim", "status", "found"),
    [
        ("before bias", "CONTRADICTED", "after bias"),
        ("after bias", "CONFIRMED", None),
        ("unknown", "MEASURED", "after bias"),
    ],
)
def test_logprobs_after_the_bias_are_told_from_those_before(
    claim: str, status: str, found: str | None, seed: int
) -> None:
    """Of a server that tilts its logprobs, whatever its profile claims."""
    server = Liar(model(seed), seed)
    server._dialect = After(server.model, "exact", None, seed)
    report = self_test(server, altered("logprobs", meaning=claim), ["meaning of logprobs"])
    meaning = finding(report, "logprobs.meaning")
    assert (meaning.status, meaning.found) == (status, found)
    assert {each.row for each in report.contradicted} <= {"logprobs.meaning"}


@pytest.mark.parametrize("claim", [100, None])
@pytest.mark.parametrize(("lie", "found"), [(few, 64), (cut, None)])
def test_a_limit_of_64_entries(
    lie: Callable[[JSON], None], found: int | None, claim: int | None
) -> None:
    """A refusal is bisected to the true limit; a silent cut has none that could be saved. Where 100
    entries are claimed, no more are sent: some engines do not survive it.
    """
    sent = []

    def noted(body: JSON) -> None:
        sent.append(len(body.get("logit_bias", [])))
        lie(body)

    profile = SERVER if claim is None else altered("bias", entries=claim)
    report = self_test(Liar(model(0, 120), 0, noted), profile, ["entries of a bias"])
    assert [(each.row, each.found) for each in report.contradicted] == [("bias.entries", found)]
    assert claim is None or max(sent) == claim


def test_a_narrower_limit_of_alternatives_is_bisected() -> None:
    """Lists of 7 are found where 20 are claimed; the other checks go on with 7."""

    def at_most_7(body: JSON) -> None:
        if body["top_logprobs"] > 7:
            raise RefusedRequest(400, "top_logprobs is out of range")

    report = self_test(Liar(model(0), 0, at_most_7), altered("logprobs", limit=20))
    assert [(each.row, each.found) for each in report.contradicted] == [("logprobs.limit", 7)]
    assert finding(report, "logprobs.meaning").status == "CONFIRMED"


def test_a_looser_limit_is_measured() -> None:
    """Fractions count although the profile forbids them: a fact worth saving, and no
    contradiction.
    """
    report = self_test(Liar(model(0), 0), altered("bias", fractions=False), ["fractions"])
    found = finding(report, "bias.fractions")
    assert (found.status, found.found) == ("MEASURED", True)


def test_ids_without_bytes_are_enough() -> None:
    """A server that names its tokens only by their ids is checked as far as any other, but for the
    bytes.
    """

    def bare(answer: JSON) -> None:
        for entry in entries_of(answer):
            del entry["bytes"]

    report = self_test(Liar(model(0), 0, answer=bare))
    assert not report.contradicted, report.contradicted
    left = {each.row for each in report.findings if each.status == "NOT CHECKED"}
    assert left == {"tokens.bytes_exact", "sampling.n"}


def test_the_first_list_of_a_completion_that_lacks_tokens_is_no_opening() -> None:
    """llama.cpp lists no half of a character: where that came first, the first list is of the
    second position, and is not read.
    """

    def drawn(top: list[int], whole: bool) -> Completion:
        ids, values = np.array(top, np.int32), np.log(np.array([0.6, 0.4], np.float32))
        return Completion("", "length", ids[:1], values[:1], ids[None], values[None], whole=whole)

    whole, headless = drawn([3, 5], True), drawn([8, 9], False)
    assert [set(row) for row in opening_lists([whole, headless])] == [{3, 5}]
    assert [set(row) for row in opening_lists([headless])] == [{8, 9}], (
        "better than nothing where a provider never tells"
    )


def test_a_hidden_end_token_accuses_nobody() -> None:
    """Where the end token is not listed, the tokens before it are still draws, from what is
    left.
    """
    for seed in range(2):
        profile = altered("logprobs", end_token_listed=False)
        report = self_test(
            Liar(model(seed), seed, answer=endless),
            profile,
            titles=["end token", "neutral sampling"],
        )
        assert not report.contradicted, report.contradicted
        assert finding(report, "neutral").status == "CONFIRMED"


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
        return _response(answer) if isinstance(answer, dict) else answer


def _response(answer: JSON) -> JSON:
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


STUDIO_RUN = (
    "--data {data} --reward contains --max-tokens 8 --quiet --out {out} --samples-per-prompt 4"
    " --entries 5"
)


def test_a_fit_after_the_doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider of guesses is refused before the doctor, and taken with what it saved unless a row
    that is needed stayed open.
    """
    server, path, data = Studio(model(0), 0), tmp_path / "mine.toml", tmp_path / "data.jsonl"
    words = {token: text.encode() for token, text in enumerate(server.texts) if text}
    vocabulary = Vocabulary("exact", words, {"<|end|>": 25}, 26, server.tokenize)
    monkeypatch.setattr("blackbox_lb.api.session._vocabulary", lambda *_: vocabulary)
    write_rows(data, questions(8, 2, 2, answer="a"))
    fit = STUDIO_RUN.format(data=data, out=tmp_path / "run")

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


def test_an_ignored_bias_is_found_where_no_token_is_named() -> None:
    """On an endpoint without logprobs the text shows whether a bias acts."""
    server = Studio(model(0), 0, ignored)
    words = {token: text.encode() for token, text in enumerate(server.texts) if text}
    vocabulary = Vocabulary("exact", words, {"<|end|>": 25}, 26, server.tokenize)

    async def run() -> Report:
        async with Session(
            load_profile("lmstudio"), base_url=server.base_url, attempts=1
        ) as session:
            session.vocabulary = vocabulary
            return await examine(session, concurrency=1)

    with server:
        report = asyncio.run(run())
    assert [each.row for each in report.contradicted] == ["bias"], report.contradicted


class Rounded(Dialect):
    """Logprobs in steps, by default of half a nat, whose probabilities sum to more or less than
    1.
    """

    step = 0.5

    def _entry(self, token: int, logprob: float) -> JSON:
        return super()._entry(token, min(round(logprob / self.step) * self.step, 0.0))


class RoundedAfter(Rounded, After):
    """Logprobs after the bias, in steps."""


def rounding(
    kind: type[Rounded], step: float, seed: int, wish: Callable[[JSON], None] | None = None
) -> Liar:
    """A server whose logprobs are multiples of ``step`` nats."""
    server = Liar(talkative(seed), seed, wish)
    server._dialect = dialect = kind(server.model, "exact", None, seed)
    dialect.step = step
    return server


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(10), marks=pytest.mark.slow)])
@pytest.mark.parametrize("step", [0.1, 0.25, 0.5])
def test_honest_rounding_is_never_contradicted(step: float, seeds: range) -> None:
    """The step is recognised; from a quarter nat on, sampling is not tested, for that reason."""
    for seed in seeds:
        report = self_test(rounding(Rounded, step, seed))
        assert not report.contradicted, report.contradicted
        assert finding(report, "logprobs.step").evidence.endswith(
            f"a multiple of 1/{1 / step:g} nat"
        )
        assert finding(report, "logprobs.meaning").status == "CONFIRMED"
        neutral = finding(report, "neutral")
        assert neutral.status == ("CONFIRMED" if step < 0.25 else "NOT CHECKED")
        assert ("rounded to steps" in neutral.evidence) == (step >= 0.25)


@pytest.mark.parametrize("step", [0.1, 0.25, 0.5])
def test_lies_of_a_server_that_rounds_are_found(step: float) -> None:
    """A truncation takes tokens away altogether, and a bias moves logprobs by more than a step."""
    cut = self_test(rounding(Rounded, step, 0, top_p), titles=["neutral sampling"])
    assert "top_p truncates" in finding(cut, "neutral").evidence
    assert finding(cut, "neutral").status == "CONTRADICTED"
    after = self_test(rounding(RoundedAfter, step, 0), titles=["meaning of logprobs"])
    assert [(each.row, each.found) for each in after.contradicted] == [
        ("logprobs.meaning", "after bias")
    ]


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(20), marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("penalty", "most"),
    [(1.0, 1), (0.5, np.inf), pytest.param(0.5, 1, marks=pytest.mark.slow)],
    ids=["presence", "frequency", "half"],
)
def test_a_penalty_on_repeats_is_found(penalty: float, most: float, seeds: range) -> None:
    """In at least 19 of 20 whole self-tests, and named; nothing else is contradicted."""
    found = 0
    for seed in seeds:
        server = Liar(talkative(seed), seed)
        server._dialect = dialect = Penalised(server.model, "exact", None, seed)
        dialect.penalty, dialect.most = penalty, most
        report = self_test(server)
        found += "presence or frequency penalty" in finding(report, "neutral").evidence
        assert {each.row for each in report.contradicted} <= {"neutral"}
    assert found >= 0.95 * len(seeds)


class Scaled(Dialect):
    """Eight alternatives a token, scaled to sum to 1, whatever lies outside them."""

    def _logprobs(self, ids: list[int], before: list[int], prompt: int, k: int) -> list[JSON]:
        entries = super()._logprobs(ids, before, prompt, min(k, 8))
        for entry in entries:
            whole = np.logaddexp.reduce([each["logprob"] for each in entry["top_logprobs"]])
            for each in (entry, *entry["top_logprobs"]):
                each["logprob"] = min(each["logprob"] - float(whole), 0.0)
        return entries


class Silent(Dialect):
    """Says nothing of one completion's logprobs: llama.cpp does so where its only token is a part
    of a character.
    """

    since, text = 30, ""

    def post(self, path: str, body: JSON, number: int) -> JSON:
        """Silent once, from request ``since`` on; ``text``: what that answer says in the place of
        its own.
        """
        answer = super().post(path, body, number)
        if (
            path.endswith("/chat/completions")
            and number >= self.since
            and not hasattr(self, "_was")
        ):
            self._was = number
            choice = answer["choices"][0]
            choice["logprobs"] = None
            if self.text:
                choice["message"]["content"], choice["finish_reason"] = self.text, "length"
        return answer


@pytest.mark.parametrize(("since", "text"), [(30, ""), (0, "\ufffd")])
def test_one_answer_without_a_list_does_not_end_the_test(since: int, text: str) -> None:
    """It is asked for again, and from the first request on where its text is no whole character;
    where no answer ever had a list, nothing can be learned and the test ends."""
    server = ExactServer(model(0))
    server._dialect = dialect = Silent(server.model, "exact", None, 0)
    dialect.since, dialect.text = since, text
    report = self_test(server)
    assert hasattr(dialect, "_was")
    assert not report.contradicted
    assert finding(report, "bias.entries").status == "CONFIRMED"


def test_a_refusal_contradicts_and_a_failure_does_not() -> None:
    """A 400 to what a row claims contradicts it; a 500 leaves it unchecked, with the server's
    words, but for a seed, which some engines do not survive.
    """

    def seedless(body: JSON) -> None:
        if "seed" in body:
            raise RefusedRequest(400, "seed is not supported")

    def crashing(body: JSON) -> None:
        if "seed" in body:
            raise RefusedRequest(500, "no seed here")

    def broken(body: JSON) -> None:
        if body["temperature"] == 0.5:
            raise RefusedRequest(500, "out of memory")

    refused = self_test(Liar(model(0), 0, seedless), titles=["seed"])
    assert finding(refused, "sampling.seed").status == "CONTRADICTED"
    crashed = finding(self_test(Liar(model(0), 0, crashing), titles=["seed"]), "sampling.seed")
    assert (crashed.status, crashed.found) == ("CONTRADICTED", False)
    failed = finding(
        self_test(Liar(model(0), 0, broken), titles=["meaning of logprobs"]), "logprobs.meaning"
    )
    assert failed.status == "NOT CHECKED"
    assert "out of memory" in failed.evidence


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

    def never(body: JSON) -> None:
        raise RefusedRequest(status, message)

    with raises_naming(error, message):
        self_test(Liar(model(0), 0, never))


def test_the_budget_cannot_be_overdrawn() -> None:
    """The plan stays below 120 requests; a server that is slow to tell its limits gets no more than
    its share.
    """
    assert MOST_REQUESTS < 120

    def never(body: JSON) -> None:
        if len(body.get("logit_bias", [])) > 5:
            raise RefusedRequest(400, "too many")

    server = Liar(model(0, 400), 0, never)
    report = self_test(server, altered("bias", entries=399))
    assert report.requests < 120
    assert finding(report, "bias.entries").found == 5


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


def report_of(*findings: RowFinding, provider: str = "fireworks") -> Report:
    """A report with these findings, each with what the profile claims."""
    profile = load_profile(provider)
    findings = tuple(replace(each, claim=claim_of(profile, each.row)) for each in findings)
    return Report(
        profile,
        "a/model",
        "chat",
        "http://127.0.0.1:1/v1",
        findings,
        9,
        90,
        900,
        1.0,
    )


def test_a_saved_profile_says_what_was_found(tmp_path: Path) -> None:
    """Contradicted rows hold their true values, confirmed ones their evidence, and what was proven
    is no guess any more.
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
    assert mine.evidence["neutral"].grade == "L"
    assert mine.evidence["neutral"].seen == "p = .4"
    assert mine.unknown == []
    assert "logprobs.noise" not in tomllib.loads(path.read_text())["evidence"]


def test_what_stays_open_stays_a_guess(tmp_path: Path) -> None:
    """Of a guessed table that was proven, the rows are still guesses that were not checked, have no
    evidence of their own, and no value that is right in any case."""
    report = replace(
        report_of(
            RowFinding("bias", "CONFIRMED", "seen"),
            RowFinding("bias.entries", "NOT CHECKED", "no time"),
            RowFinding("neutral", "NOT CHECKED", "too little variety"),
        ),
        profile=SERVER.model_copy(
            update={"unknown": ["bias", "neutral", "tokens.id"], "evidence": {}}
        ),
    )
    path = tmp_path / "mine.toml"
    assert save_profile(report, path, "llamacpp") == {"bias.fractions": False}
    left = ["bias.entries", "bias.highest_id", "bias.low", "neutral", "tokens.id"]
    assert load_profile(str(path)).unknown == left
    told = replace(report, entries=3, named=17)
    assert save_profile(told, path, "llamacpp") == {
        "bias.fractions": False,
        "bias.entries": 3,
        "bias.highest_id": 17,
    }
    mine = load_profile(str(path))
    assert (mine.unknown, mine.bias.entries, mine.bias.highest_id) == (left[2:], 3, 17)
    documented = replace(
        told, profile=told.profile.model_copy(update={"evidence": SERVER.evidence})
    )
    assert save_profile(documented, path, "llamacpp") == {
        "bias.fractions": False,
        "bias.highest_id": 17,
    }
    assert load_profile(str(path)).unknown == ["neutral", "tokens.id"]


def test_a_table_of_which_nothing_was_shown_stays_a_guess(tmp_path: Path) -> None:
    """No careful value makes up for a bias that nobody saw act."""
    guesses = ["bias", "tokens"]
    finding = RowFinding("bias.entries", "CONFIRMED", "accepted")
    report = replace(
        report_of(finding), profile=SERVER.model_copy(update={"unknown": guesses}), entries=9
    )
    save_profile(replace(report, findings=()), tmp_path / "mine.toml", "llamacpp")
    assert load_profile(str(tmp_path / "mine.toml")).unknown[0] == "bias"
    save_profile(report, tmp_path / "mine.toml", "llamacpp")
    mine = load_profile(str(tmp_path / "mine.toml"))
    assert not mine.is_known("bias")
    assert mine.bias.fractions


@pytest.mark.parametrize("filtered", ["emoji", "bias", "temperature", "story", "half"])
def test_a_content_filter_contradicts_nothing(
    filtered: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it keeps back is not checked, with that reason; what it lets pass is."""
    honest, count = Session.answer, [0]

    async def answer(self: Session, prompt: Prompt, draw: Draw, *rest: Any) -> Any:
        count[0] += 1
        meets = {
            "emoji": prompt is EMOJI,
            "bias": bool(draw.bias),
            "temperature": draw.sampling.temperature == 0.5,
            "story": prompt is STORY,
            "half": count[0] % 2 == 0,
        }
        if meets[filtered]:
            raise ContentFiltered("The response was filtered")
        return await honest(self, prompt, draw, *rest)

    monkeypatch.setattr(Session, "answer", answer)
    report = self_test(Liar(model(0), 0))
    assert not report.contradicted, report.contradicted
    rows = {"bias": "bias", "temperature": "logprobs.meaning", "story": "neutral"}
    if filtered in rows:
        found = finding(report, rows[filtered])
        assert (found.status, "content filter" in found.evidence) == ("NOT CHECKED", True)
    if filtered == "emoji":
        assert finding(report, "tokens.id").status == "CONFIRMED"


def test_a_content_filter_that_keeps_everything_back_ends_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing can be checked, and that is the reason."""

    async def answer(*_: Any, **__: Any) -> Any:
        raise ContentFiltered("The response was filtered")

    monkeypatch.setattr(Session, "answer", answer)
    with raises_naming(ContentFiltered, "nothing", "The response was filtered"):
        self_test(Liar(model(0), 0))


def test_no_profile_cures_a_server_that_does_not_sample_what_it_says(tmp_path: Path) -> None:
    """Nothing is written, and the reason is told."""
    report = report_of(RowFinding("neutral", "CONTRADICTED", "tail never drawn"))
    with raises_naming(InputError, "fireworks", "neutral", "tail never drawn"):
        save_profile(report, tmp_path / "mine.toml", "fireworks")
    assert list(tmp_path.iterdir()) == []


def test_secrets_in_an_address_are_not_saved(tmp_path: Path) -> None:
    """An address with a password or a query stays out of the file."""
    for address in ("http://user:password@127.0.0.1/v1", "http://127.0.0.1/v1?key=secret"):
        save_profile(report_of(), tmp_path / "mine.toml", "fireworks", address)
        assert "127.0.0.1" not in (tmp_path / "mine.toml").read_text()


def test_where_a_profile_can_be_saved(tmp_path: Path) -> None:
    """Another ending, a missing folder and the profile under test are refused before anything is
    asked for.
    """
    own = tmp_path / "own.toml"
    own.write_text('extends = "vllm"\nname = "own"\n')
    for path, provider, *facts in (
        (tmp_path / "mine.json", "vllm", tmp_path / "mine.json", "``save=NAME.toml``"),
        (tmp_path / "none" / "mine.toml", "vllm", tmp_path / "none", "``save``"),
        (own, str(own), f"``save={own}``"),
    ):
        with raises_naming(InputError, *facts):
            check_target(path, provider)
    save_profile(report_of(provider="vllm"), tmp_path / "mine.toml", str(own))
    assert load_profile(str(tmp_path / "mine.toml")).bias.entries == 1024


def _sampled_first(answer: JSON) -> None:
    """The sampled token stands first and the list is cut to as many as were asked for, as on
    vLLM.
    """
    for entry in answer["choices"][0].get("logprobs", {}).get("content", ()):
        listed = entry["top_logprobs"]
        own = {name: entry[name] for name in ("id", "token", "bytes", "logprob")}
        if all(other["id"] != entry["id"] for other in listed):
            entry["top_logprobs"] = [own, *listed[:-1]]


@pytest.mark.parametrize("answer", [None, _sampled_first], ids=["no", "replaces the last"])
@pytest.mark.parametrize("claim", ["no", "replaces the last"])
def test_where_a_sampled_token_is_listed(answer: Callable[[JSON], None] | None, claim: str) -> None:
    """The list is judged as the server sent it, not as the usual reading cuts it. A claim that is
    wrong is contradicted where it lets a completion be misread, and measured otherwise.
    """
    chat = SERVER.endpoints["chat"].model_copy(update={"sampled_in_list": claim})
    profile = SERVER.model_copy(update={"endpoints": {**SERVER.endpoints, "chat": chat}})
    report = self_test(Liar(model(0), 0, answer=answer), profile, ["tokens outside the list"])
    seen = finding(report, "endpoints.chat.sampled_in_list")
    truth = "no" if answer is None else "replaces the last"
    if claim == truth:
        assert (seen.status, seen.claim) == ("CONFIRMED", claim), seen
    else:
        expected = "MEASURED" if answer is None else "CONTRADICTED"
        assert (seen.status, seen.found) == (expected, truth), seen


def test_a_lower_highest_id_is_found() -> None:
    """By the number in the refusal, which is tried."""

    def at_most_90(body: JSON) -> None:
        if any(token > 90 for token, _ in body.get("logit_bias", [])):
            raise RefusedRequest(400, "logit_bias takes ids up to 90")

    report = self_test(Liar(model(0, 120), 0, at_most_90), titles=["highest id"])
    assert [(each.row, each.found) for each in report.contradicted] == [("bias.highest_id", 90)]
