"""Budgets: a command stops within one request of its limit, keeps what it received, and a larger
limit pays only for the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb.api.limits.budget import SpendingLimits, SpendLimit, Spent, prompt_bound
from blackbox_lb.errors import BudgetExhausted, ConnectionFailed, RateLimited
from blackbox_lb.store import RolloutStore
from tests.support.commands import asking, blb, options, refusal
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well
from tests.support.questions import write_questions

pytestmark = pytest.mark.usefixtures("quick_retries")
MODEL = ExactModel(12, 8, end=True, prompts=4)
QUESTIONS = 30


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model behind HTTP."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Thirty questions."""
    return write_questions(tmp_path / "data.jsonl", QUESTIONS)


@pytest.fixture
def small_run(server: ExactServer, data: Path, tmp_path: Path) -> Callable[..., Result]:
    """A command against the server."""

    def run(command: str, *more: object, **how: str) -> Result:
        where = asking(server, out=tmp_path / "run", data=data)
        task = options(reward="length", max_tokens=8, concurrency=4)
        return blb(command, *where, *task, *more, **how)

    return run


@pytest.fixture
def judged(server: ExactServer, tmp_path: Path) -> str:
    """A reward that asks the same server."""
    path = tmp_path / "judge.toml"
    path.write_text(
        f'base_url = "{server.base_url}"\nmodel = "exact"\nprompt = "{{completion}}"\n'
        'pattern = "x"\notherwise = 0\n'
    )
    return f"judge:{path}"


def stored(tmp_path: Path) -> tuple[int, int]:
    """Completions in the run's store, and all of their tokens."""
    with RolloutStore(tmp_path / "run" / "rollouts.db") as store:
        keys = [key for request in store.requests() for key in store.keys(request)]
        count, prompt, completion = store.spent(keys)
        return count, prompt + completion


def test_requests_stop_at_the_limit_and_a_larger_one_pays_only_for_the_rest(
    small_run: Callable[..., Result], server: ExactServer, tmp_path: Path
) -> None:
    """Exactly so many are sent and stored, and the sentence tells what is kept and how to go on;
    all runs together send one request a completion.
    """
    for limit, allowed in ((1, 1), (25, 26)):
        said = refusal(small_run("collect", "--samples-per-prompt", 3, "--max-requests", limit))
        assert len(server.completions) == stored(tmp_path)[0] == allowed
        assert f"stopped at --max-requests {limit}: sent were {limit} requests," in said
        assert f"{allowed} completions are kept in {tmp_path / 'run' / 'rollouts.db'}" in said
        assert "raise the limit in the same command" in said
    done = ended_well(small_run("collect", "--samples-per-prompt", 3, "--json"))
    assert len(server.completions) == stored(tmp_path)[0] == json.loads(done.stdout)["completions"]


def test_tokens_stop_within_one_request_of_the_limit(
    small_run: Callable[..., Result], tmp_path: Path
) -> None:
    """The limit is never passed, and what is left is less than the largest request could have
    taken.
    """
    limit = 1100
    said = refusal(small_run("collect", "--max-tokens-total", limit))
    assert f"--max-tokens-total {limit:,}" in said
    largest = prompt_bound(["question 29"]) + 8
    assert limit - largest < stored(tmp_path)[1] <= limit


def test_a_cost_needs_a_price(
    small_run: Callable[..., Result], server: ExactServer, tmp_path: Path
) -> None:
    """Nothing is sent while it is not known; a price of 0 and a table of one's own are prices."""
    said = refusal(small_run("collect", "--max-cost", 1))
    assert "--max-cost needs the price of exact on llamacpp, which is not known" in said
    assert len(server.completions) == 0
    table = tmp_path / "prices.toml"
    table.write_text(
        '[[price]]\nprovider = "llama*"\nmodels = ["exact"]\nprompt = 0\ncompletion = 1e6\n'
    )
    assert small_run("collect", "--max-cost", 60, "--prices", table).exit_code == 2
    ended_well(small_run("collect", "--samples-per-prompt", 1, "--max-cost", 1, "--price", "0,0"))


def test_a_fit_stops_in_any_stage(
    small_run: Callable[..., Result], server: ExactServer, tmp_path: Path
) -> None:
    """Whatever the limit, so many requests are sent and as many completions stored; without one the
    fit goes on to its end.
    """
    small = ("--samples-per-prompt", 4, "--validation-samples", 1, "--test-samples", 1)
    for limit in (10, 60, 10):
        before = len(server.completions)
        assert refusal(small_run("fit", *small, "--max-requests", limit))
        assert len(server.completions) - before == limit
    assert stored(tmp_path)[0] == 80
    assert small_run("fit", *small).exit_code == 0
    record = json.loads((tmp_path / "run" / "run.json").read_text())
    assert record["runs"]["fit"]["finished"] is True


@pytest.mark.parametrize(
    ("terminal", "hosted", "more", "asks"),
    [
        (True, True, (), True),
        (False, True, (), False),
        (True, False, (), False),
        (True, True, ("--yes",), False),
    ],
    ids=["asked", "no terminal", "not hosted", "--yes"],
)
def test_who_is_asked(
    small_run: Callable[..., Result],
    server: ExactServer,
    monkeypatch: pytest.MonkeyPatch,
    terminal: bool,
    hosted: bool,
    more: tuple[str, ...],
    asks: bool,
) -> None:
    """Only a person at a terminal, only of a hosted provider, only without --yes; a no ends with 1
    before anything is sent.
    """
    monkeypatch.setattr("blackbox_lb.jobs.forecast.is_hosted", lambda session: hosted)
    monkeypatch.setattr("blackbox_lb.cli.resources.is_terminal", lambda: terminal)
    result = small_run("collect", "--samples-per-prompt", 1, *more, input="n\n")
    assert ("Go on?" in result.output) is asks
    assert result.exit_code == (1 if asks else 0), result.output
    assert (len(server.completions) == 0) is asks


def test_the_judge_counts(
    server: ExactServer, judged: str, small_run: Callable[..., Result], tmp_path: Path
) -> None:
    """A judge's requests come out of the same budget, and its price must be known, too."""
    arguments = ("collect", "--samples-per-prompt", 1, "--reward", judged)
    said = refusal(small_run(*arguments, "--max-cost", 1, "--price", "0,0"))
    assert "the price of exact on 127.0.0.1" in said
    assert "--max-requests 20" in refusal(small_run(*arguments, "--max-requests", 20))
    assert len(server.completions) == 20
    assert stored(tmp_path)[0] < 20


def test_a_judge_of_stored_completions_keeps_to_the_limit(
    server: ExactServer, data: Path, judged: str, small_run: Callable[..., Result], tmp_path: Path
) -> None:
    """blb score stops at its limit too, and the same command with more asks only for what is
    missing.
    """
    assert small_run("collect", "--samples-per-prompt", 1).exit_code == 0
    collected = len(server.completions)
    command = ("score", tmp_path / "run", "--data", data, "--reward", judged)
    said = refusal(blb(*command, "--max-cost", 1))
    assert "the price of exact on 127.0.0.1, which is not known: give --prices FILE" in said
    assert len(server.completions) == collected
    assert refusal(blb(*command, "--max-requests", 5))
    assert len(server.completions) == collected + 5
    ended_well(blb(*command))
    assert len(server.completions) - collected <= QUESTIONS


@given(
    limit=st.integers(1, 500),
    requests=st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 60), st.floats(0, 1)), max_size=30
    ),
    concurrency=st.integers(1, 5),
)
def test_no_order_of_answers_passes_the_limit(
    limit: int, requests: list[tuple[int, int, float]], concurrency: int
) -> None:
    """Answers of any honest size in any order: the limit holds, and what is refused would not have
    fitted.
    """
    budget, queue = SpendLimit(SpendingLimits(tokens=limit)), iter(requests)

    async def worker() -> None:
        for prompt, completion, share in queue:

            async def once(prompt: int = prompt, made: int = int(completion * share)) -> Any:
                for _ in range(made % 3):
                    await asyncio.sleep(0)
                return {"usage": {"prompt_tokens": prompt, "completion_tokens": made}}

            try:
                await budget.metered(once, prompt, completion)
            except BudgetExhausted:
                assert budget.spent.tokens + prompt + completion > limit
                return

    async def go() -> None:
        await asyncio.gather(*(worker() for _ in range(concurrency)))

    asyncio.run(go())
    assert budget.spent.tokens <= limit
    assert budget.in_flight == 0


@pytest.mark.parametrize(
    ("outcome", "spent"),
    [
        ({"usage": {"input_tokens": 3, "output_tokens": 5}}, Spent(1, 3, 5)),
        ({"choices": []}, Spent(1, 20, 40, guessed=1)),
        (RateLimited("later"), Spent(1)),
        (ConnectionFailed("cut off"), Spent(1, 20, 40, guessed=1)),
    ],
)
def test_what_a_try_costs(outcome: Any, spent: Spent) -> None:
    """What an answer says; the most it can be where it does not say, or was lost; a refusal costs
    the request.
    """
    budget = SpendLimit()

    async def once() -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    is_error = isinstance(outcome, Exception)
    with pytest.raises(type(outcome)) if is_error else contextlib.nullcontext():
        asyncio.run(budget.metered(once, 20, 40))
    assert budget.spent == spent
