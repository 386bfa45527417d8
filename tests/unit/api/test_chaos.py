"""Every way in which a provider breaks its promises: the same numbers, or a named error, and never
others.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.errors import BlbError, CorruptResponse
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.positions import training_set
from blackbox_lb.safety.http import clients as bounded
from blackbox_lb.safety.http import retries
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import Completion, Example, Prompt, Sampling
from tests.support.chaos import MODES, ChaosServer
from tests.support.chaos.broken_answers import TOKENIZER
from tests.support.chaos.dialects import DIALECTS, KEY, Dialect, register
from tests.support.collecting import collect
from tests.support.commands import asking, blb, options
from tests.support.exact import ExactModel, ExactServer
from tests.support.fits import projection
from tests.support.hosted_keys import set_keys
from tests.support.questions import write_questions

EXAMPLES = [Example(str(n), Prompt.user(f"question {n}")) for n in range(6)]
REWARD = parse_reward(r"regex:^\W*[a-l]", max_tokens=6)
LONGEST = 300.0
"""Seconds that no run may take; a hang is a failure."""
ARRAYS = ("token_ids", "logprobs", "top_ids", "top_logprobs", "propensities", "bounded")


@dataclass(frozen=True)
class Run:
    """What came of a run: the completions that are in the store by key, and the vector learned, or
    the error.
    """

    stored: dict[str, Completion]
    delta: Any
    error: BlbError | None


@pytest.fixture(scope="module", autouse=True)
def _machine() -> Iterator[None]:
    """Keys, the vocabulary, short waits."""
    with pytest.MonkeyPatch.context() as patch:
        register(patch)
        set_keys(patch, ("OPENAI_API_KEY", "AZURE_OPENAI_API_KEY", "FIREWORKS_API_KEY"), KEY)
        patch.setattr(retries, "retry_pause", lambda state: 0.03)
        yield


def run(
    dialect: Dialect, address: str, path: Path, *, samples: int = 2, seed: int | None = 7
) -> Run:
    """One collection and one projection; an error that is not of our tree, or a hang, fails the
    test.
    """
    sampling = Sampling(1.0, 6, 5, seed)
    profile = load_profile(dialect.provider)

    async def go() -> Any:
        session = Session(
            profile,
            model=dialect.model,
            base_url=address,
            tokenizer=dialect.tokenizer,
        )
        async with session:
            with RolloutStore(path) as store:
                prompts = [example.prompt for example in EXAMPLES]
                tokenizer = await session.tokenizer()
                done = await collect(
                    session, store, tokenizer, prompts, Draw(sampling), samples=samples
                )
                training = training_set(store, EXAMPLES, done.keys, REWARD, session.end_tokens)
                return projection(training.rollouts, tau=0.5, next_token=training.next_token).delta

    delta, error = None, None
    try:
        delta = asyncio.run(asyncio.wait_for(go(), LONGEST))
    except BlbError as caught:
        error = caught
    stored: dict[str, Completion] = {}
    if path.exists():
        with RolloutStore(path) as store:
            keys = [key for request in store.requests() for key in store.keys(request)]
            stored = dict(zip(keys, store.completions(keys), strict=True))
    return Run(stored, delta, error)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run of each dialect against its honest server, made once."""
    known: dict[str, Run] = {}

    def of(name: str) -> Run:
        if name not in known:
            path = tmp_path_factory.mktemp("honest") / "s.db"
            with DIALECTS[name].serve() as server:
                known[name] = run(DIALECTS[name], server.base_url, path)
            assert known[name].error is None, known[name].error
            assert np.abs(known[name].delta).max() > 0.1
        return known[name]

    return of


def same(one: Completion, other: Completion) -> bool:
    """Bit for bit."""
    pairs = [(getattr(one, name), getattr(other, name)) for name in ARRAYS]
    arrays = all(
        (a is None) == (b is None) and (a is None or np.array_equal(a, b)) for a, b in pairs
    )
    return arrays and (one.text, one.finish_reason, one.whole) == (
        other.text,
        other.finish_reason,
        other.whole,
    )


def weaker(one: Completion, true: Completion) -> bool:
    """Whether ``one`` says less than ``true`` and nothing else: not whole, or bounds that hold."""
    if not one.whole:
        return True
    if one.text != true.text or not np.array_equal(one.token_ids, true.token_ids):
        return False
    bounded = np.zeros(len(one.token_ids), bool) if one.bounded is None else one.bounded
    listed = [
        set(zip(ids.tolist(), logprobs.tolist(), strict=True))
        <= {(-1, -np.inf), *zip(true_ids.tolist(), true_logprobs.tolist(), strict=True)}
        for ids, logprobs, true_ids, true_logprobs in zip(
            one.top_ids, one.top_logprobs, true.top_ids, true.top_logprobs, strict=True
        )
    ]
    return bool(
        np.array_equal(one.logprobs[~bounded], true.logprobs[~bounded])
        and (one.logprobs[bounded] >= true.logprobs[bounded]).all()
        and all(listed)
    )


def outcome(disturbed: Run, honest: Run) -> str:
    """equal; less: some completions are marked as incomplete or bounded in the store; apart: they
    are stored as another model's; or the name of the error. An AssertionError for any number that
    is wrong."""
    ours = {key: each for key, each in disturbed.stored.items() if key in honest.stored}
    wrong = [
        key
        for key, each in ours.items()
        if not same(each, honest.stored[key]) and not weaker(each, honest.stored[key])
    ]
    assert not wrong, [(disturbed.stored[key], honest.stored[key]) for key in wrong[:1]]
    if disturbed.error is not None:
        said = str(disturbed.error)
        assert len(said) > 40, said
        assert "\n" not in said
        assert "Traceback" not in said
        return type(disturbed.error).__name__
    if all(same(each, honest.stored[key]) for key, each in ours.items()):
        if ours:
            assert ours.keys() == honest.stored.keys()
            assert np.array_equal(disturbed.delta, honest.delta)
            return "equal"
        return "apart"
    return "less"


def disturb(
    name: str, mode: str, rate: float, honest: Run, folder: Path
) -> tuple[str, ChaosServer]:
    """What becomes of a run of dialect ``name`` under ``mode``."""
    with (
        DIALECTS[name].serve() as server,
        ChaosServer(server, mode, rate=rate, seed=1, pause=0.05) as chaos,
        pytest.MonkeyPatch.context() as patch,
    ):
        if mode == "slow loris":
            patch.setattr(bounded, "DEADLINE", 1.5)
        found = run(DIALECTS[name], chaos.base_url, folder / "s.db")
        assert chaos.failures == []
        return outcome(found, honest), chaos


HARMLESS = {"delay", "other model", "reset after body", "unsorted alternatives"}
"""What changes no number even where it meets every answer."""
MARKED = {"-9999 logprobs", "lists shorter than tokens"}
"""What providers do themselves now and then, so that it is read, marked in the store, and left out
or bounded by what learns.
"""
MINUTES = {"content-length too long", "slow loris"}
"""What takes minutes where it meets every answer."""


def cases(*slow: str) -> list[Any]:
    """(dialect, mode): by default each mode meets one dialect, with --slow all."""
    names = list(DIALECTS)
    return [
        pytest.param(
            name,
            mode,
            id=f"{name} - {mode}",
            marks=[pytest.mark.slow] if mode in slow or names[i % len(names)] != name else [],
        )
        for name in names
        for i, mode in enumerate(MODES)
    ]


@pytest.mark.parametrize(("name", "mode"), cases())
def test_a_fifth_of_the_answers_is_disturbed(
    name: str, mode: str, undisturbed: Any, tmp_path: Path
) -> None:
    """The rollouts and the learned vector are those of an undisturbed run, bit for bit, or an error
    is raised by name.
    """
    found, _ = disturb(name, mode, 0.2, undisturbed(name), tmp_path)
    assert found != "less" or mode in MARKED
    assert found != "apart" or mode == TOKENIZER


@pytest.mark.parametrize(("name", "mode"), cases(*MINUTES))
def test_every_answer_is_disturbed(name: str, mode: str, undisturbed: Any, tmp_path: Path) -> None:
    """A server that never keeps its promises is named, soon, unless what it does changes no
    number; another tokenizer is another model, where the server is asked for it.
    """
    found, chaos = disturb(name, mode, 1.0, undisturbed(name), tmp_path)
    if mode == TOKENIZER:
        assert found == ("equal" if DIALECTS[name].tokenizer else "apart")
        assert bool(chaos.hits) == (found == "apart")
        return
    assert chaos.hits[mode] > 0
    assert chaos.answers < 400
    if mode in HARMLESS:
        assert found == "equal"
    elif mode in MARKED:
        assert found in ("less", "equal", "NoLogprobs", "CorruptResponse")
    else:
        assert found not in ("equal", "less", "apart")


def test_one_completion_in_the_place_of_several_is_not_taken_for_them(tmp_path: Path) -> None:
    """Of a request for several completions the same one comes back again and again: refused, and
    nothing is stored.
    """
    dialect = DIALECTS["OpenAI"]
    with dialect.serve() as server:
        for rate in (1.0, 0.2):
            with ChaosServer(server, "choices out of step", rate=rate, seed=2) as chaos:
                found = run(dialect, chaos.base_url, tmp_path / f"{rate}.db", samples=4, seed=None)
                assert all(each.whole for each in found.stored.values())
                assert (len(found.stored), type(found.error)) == (
                    (0, CorruptResponse) if rate == 1 else (24, type(None))
                )


def test_a_command_says_what_the_host_broke_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of answers that were asked for again, with the host's words; all that is stored
    is whole. A host that breaks off every answer ends the command after a few, with its word.
    """
    monkeypatch.setattr(retries, "retry_pause", lambda state: 0.001)
    mode = "broken off by the host"
    data = write_questions(tmp_path / "data.jsonl", 30)
    with ExactServer(ExactModel(12, 6, end=True)) as server:
        for rate in (0.1, 1.0):
            out = tmp_path / str(rate)
            with ChaosServer(server.base_url, mode, rate=rate, seed=3) as chaos:
                where = asking(chaos, out=out, data=data, reward="length", max_tokens=6)
                said = blb("collect", *where, *options(top_logprobs=5, samples_per_prompt=2))
            store = sqlite3.connect(out / "rollouts.db")
            reasons = {
                reason for (reason,) in store.execute("SELECT finish_reason FROM completions")
            }
            store.close()
            words = " ".join(said.stderr.split())
            assert "finish_reason" in words
            if rate == 1:
                assert said.exit_code == 2
                assert reasons == set()
                assert chaos.hits[mode] <= 20
            else:
                assert said.exit_code == 0, said.output
                assert reasons <= {"stop", "length"}
                assert f"{chaos.hits[mode]} answers could not be read" in words
