"""Runs of ``blb fit`` that SIGKILL ends at random instants and that are started again until one is
left to finish.

What must hold of every life of such a run, with c workers, S the samples stored before it and A
those after it:

- S is part of A: what is stored stays stored.
- Nothing in S is asked for: what is stored is not paid for again.
- At most c samples are asked for and not in A: one answer a worker may be on its way, or read and
not yet committed. What the dead
  process had read whole beyond that would be a lost response.
- The store is whole, and the last life, which nobody kills, ends with the bias of the undisturbed
run.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

from bench.reliability.job import (
    LONGEST,
    Job,
    State,
    ended,
    forks,
    found_in_files,
    found_in_processes,
    new_key,
    result_of,
    state_of,
)
from bench.reliability.row import Row
from bench.reliability.server import Exchange, LoggedServer

__all__ = ["Plan", "Tally", "judged", "kill"]

WORKERS = (1, 2, 4, 8)
"""Taken in turn. With one worker nothing but the last answer may be missing, which is the sharpest
test.
"""
CLOSE = 0.03
"""Seconds: an aimed kill comes at most so long after an answer left, where receipt and commit are.
"""
TELL = 10
"""Runs after which the row so far is told."""


@dataclass(frozen=True, slots=True)
class Plan:
    """``runs`` runs, each killed one to ``most_kills`` times; every ``cold``-th is started from
    nothing and not forked.
    """

    runs: int = 200
    most_kills: int = 3
    cold: int = 10
    seed: int = 0


@dataclass(slots=True)
class Tally:
    """Sums over lives. ``unread``: asked for, not stored, and never read; ``in_hand``: read whole
    and not yet committed.
    """

    kills: int = 0
    finished_first: int = 0
    before_any_answer: int = 0
    asked: int = 0
    unread: int = 0
    in_hand: int = 0
    lost: int = 0
    repaid: int = 0
    vanished: int = 0
    corrupt: int = 0
    unfinished: int = 0
    other_bias: int = 0
    other_store: int = 0
    key_found: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            *(getattr(self, each.name) + getattr(other, each.name) for each in fields(self))
        )


def judged(
    exchanges: list[Exchange], before: State, after: State, workers: int, killed: bool
) -> Tally:
    """One life against the laws above. A life that ended by itself may leave nothing unstored."""
    asked = [each.seed for each in exchanges]
    missing = [each for each in exchanges if each.seed not in after.seeds]
    in_hand = sum(each.taken for each in missing)
    allowed = workers if killed else 0
    return Tally(
        kills=killed,
        before_any_answer=killed and not any(each.taken for each in exchanges),
        asked=len(asked),
        unread=len(missing) - in_hand,
        in_hand=in_hand,
        lost=max(0, len(missing) - allowed),
        repaid=sum(seed in before.seeds for seed in asked) + len(asked) - len(set(asked)),
        vanished=len(before.seeds - after.seeds),
        corrupt=bool(after.broken),
    )


@dataclass(frozen=True, slots=True)
class _Undisturbed:
    """What every run must come to, and how long a life is, forked and from nothing, in seconds."""

    result: dict[str, Any]
    state: State
    seconds: dict[bool, float]


def kill(plan: Plan, folder: Path, say: Callable[[str], None] = lambda line: None) -> Row:
    """The row, from runs below ``folder``; ``say`` is told how it stands every ``TELL`` runs."""
    began, key, context = time.monotonic(), new_key(), forks()
    truth = _undisturbed(plan, folder, key, context)
    tally = Tally()
    for number in range(plan.runs):
        tally += _run(number, plan, folder / f"{number:04d}", key, truth, context)
        if (number + 1) % TELL == 0:
            say(
                _row(
                    replace(plan, runs=number + 1),
                    tally,
                    len(truth.state.seeds),
                    time.monotonic() - began,
                ).line
            )
    return _row(plan, tally, len(truth.state.seeds), time.monotonic() - began)


def _undisturbed(plan: Plan, folder: Path, key: str, context: ForkServerContext) -> _Undisturbed:
    """With other numbers of workers, and in both ways of starting where the plan has both. It must
    be known what is right.
    """
    found, seconds = [], {}
    ways = [(False, 8), (False, 4)] + [(True, 1)] * (plan.runs >= plan.cold)
    for cold, workers in ways:
        job = Job(folder / f"undisturbed-{cold}-{workers}", key).prepared()
        with LoggedServer(job.model(), key) as server:
            started = time.monotonic()
            code = ended(_started(job, server, workers, cold, context))
            seconds[cold] = time.monotonic() - started
            asked = [each.seed for each in server.settled()]
        state, result = state_of(job.store), result_of(job)
        if (
            code != 0
            or sorted(asked) != sorted(state.seeds)
            or not result
            or state.broken
            or server.strangers
        ):
            raise RuntimeError(
                f"the undisturbed run in {job.folder} ended with {code}, {len(asked)} requests,"
                f" {len(state.seeds)} stored samples, {server.strangers} requests without the key:"
                f" {state.broken}; see {job.log}"
            )
        found.append((result, state))
    if any(each != found[0] for each in found):
        raise RuntimeError(
            f"two undisturbed runs in {folder} differ; answers must depend on the request alone"
        )
    return _Undisturbed(*found[0], seconds)


def _run(
    number: int, plan: Plan, folder: Path, key: str, truth: _Undisturbed, context: ForkServerContext
) -> Tally:
    """One run to its end."""
    rng = random.Random(f"{plan.seed}/{number}")
    workers, cold = WORKERS[number % len(WORKERS)], number % plan.cold == plan.cold - 1
    job, tally = Job(folder, key).prepared(), Tally()
    with LoggedServer(job.model(), key) as server:
        for kills in (True,) * rng.randint(1, plan.most_kills) + (False,):
            before = state_of(job.store)
            process = _started(job, server, workers, cold, context)
            if kills:
                _wait(rng, server, len(truth.state.seeds - before.seeds), truth.seconds[cold])
                shown = found_in_processes(key)
                process.kill()
            else:
                shown = found_in_processes(key)
            code = ended(process)
            after = state_of(job.store)
            tally += judged(server.settled(), before, after, workers, code < 0)
            tally += Tally(
                key_found=len(shown), finished_first=kills and code == 0, unfinished=code > 0
            )
            if code >= 0:
                break
        tally += Tally(unfinished=code < 0, repaid=server.strangers)
    if number == 0:
        tally += Tally(unfinished=ended(job.report(context)) != 0)
    tally += Tally(other_bias=result_of(job) != truth.result, other_store=after != truth.state)
    return tally + Tally(key_found=len(found_in_files(key, folder)))


def _started(
    job: Job, server: LoggedServer, workers: int, cold: bool, context: ForkServerContext
) -> Any:
    """Those from nothing also print the SDK's own debug log, where a key would show first."""
    if cold:
        return job.start(server.base_url, workers, OPENAI_LOG="debug")
    return job.fork(context, server.base_url, workers)


def _wait(rng: random.Random, server: LoggedServer, left: int, seconds: float) -> None:
    """Half of the kills come at any instant of a life, half right after an answer left the
    server.
    """
    if left and rng.random() < 0.5:
        server.wait_for(rng.randint(1, left), LONGEST)
        time.sleep(rng.uniform(0, CLOSE))
    else:
        time.sleep(rng.uniform(0, seconds))


PROMISES = {
    "lost": "received responses were lost",
    "repaid": "samples were paid twice beyond those in flight",
    "vanished": "stored samples were gone after a kill",
    "corrupt": "stores were corrupt",
    "unfinished": "runs could not be resumed",
    "other_bias": "final biases differ from the undisturbed one",
    "other_store": "final stores differ from the undisturbed one",
    "key_found": "places show the planted key",
}
"""Counts that must be 0."""


def _row(plan: Plan, tally: Tally, samples: int, seconds: float) -> Row:
    counts = asdict(tally)
    return Row(
        "`blb fit` killed with SIGKILL at random instants, then resumed",
        f"{plan.runs} runs of {samples} completions, {tally.kills} kills",
        f"{tally.lost} received responses lost, {tally.repaid} paid twice beyond those in flight"
        f" ({tally.unread} on their way and {tally.in_hand} read but not committed, at most one a"
        f" worker), {tally.corrupt} corrupt stores, {plan.runs - tally.other_bias} of {plan.runs}"
        f" final biases equal bit for bit; key found in {tally.key_found} places",
        seconds,
        {
            "runs": plan.runs,
            "samples": samples,
            "cold": plan.runs // plan.cold,
            "seed": plan.seed,
            **counts,
        },
        tuple(f"{counts[name]} {words}" for name, words in PROMISES.items() if counts[name]),
    )
