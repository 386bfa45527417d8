"""Runs of ``blb fit`` that SIGKILL ends at random instants and that are started again until one is
left to finish.

What must hold of every life of such a run, with c workers, S the samples stored before it and A
those after it:

- S is part of A: what is stored stays stored.
- Nothing in S is asked for: what is stored is not paid for again.
- At most c samples are asked for and not in A: one answer a worker may be on its way, or read and
  not yet committed.
- The store is whole, and the last life, which nobody kills, ends with the bias of the undisturbed
  run.
"""

from __future__ import annotations

import random
import time
import urllib.request
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import click

from bench.reliability.job import (
    LONGEST,
    Job,
    Row,
    State,
    ended,
    found_in_files,
    found_in_processes,
    new_key,
    result_of,
    state_of,
)
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.listener import Reply, Request
from tests.support.exact.llamacpp_answers import COMPLETIONS

__all__ = ["judged", "kill"]

WORKERS = (1, 2, 4, 8)
"""Taken in turn. With one worker nothing but the last answer may be missing, which is the sharpest
test.
"""
CLOSE = 0.03
"""Seconds: an aimed kill comes at most so long after a request arrived, where its answer is sent,
read and committed.
"""
TICK = 0.002
"""Seconds between two looks at the server."""
PATIENCE = 30.0
"""Seconds after which a connection that stays open is an error of the bench."""
TELL = 10
"""Runs after which the row so far is printed."""
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


class LoggedServer(ExactServer):
    """An exact model that tells which samples were asked for, by the seeds of the requests.

    strangers: requests for a completion without ``key``, or without a seed.
    """

    def __init__(self, model: ExactModel, key: str) -> None:
        super().__init__(model)
        self.strangers = 0
        self._key = key
        self._told = 0

    def __enter__(self) -> LoggedServer:
        super().__enter__()
        return self

    def _reply(self, request: Request) -> Reply | Literal["drop"]:
        if request.path in COMPLETIONS:
            self.strangers += request.headers.get("authorization") != f"Bearer {self._key}"
        return super()._reply(request)

    @property
    def asked(self) -> list[int]:
        """The seed of each request since the last ``settled``, -1 for none."""
        calls = self.calls[self._told :]
        return [int(body.get("seed", -1)) for path, body in calls if path in COMPLETIONS]

    def wait_for(self, requests: int) -> None:
        """Until so many requests came since the last ``settled``."""
        latest = time.monotonic() + LONGEST
        while len(self.asked) < requests and time.monotonic() < latest:
            time.sleep(TICK)

    def settled(self) -> list[int]:
        """What was asked for since the last call, once every connection of the client has ended.
        The client must be gone.

        Connections are accepted in the order of their arrival: when this one has its answer, those
        of the client are known.
        """
        with urllib.request.urlopen(f"{self.url}/health", timeout=PATIENCE) as answer:
            answer.read()
        latest = time.monotonic() + PATIENCE
        while self._http is not None and self._http.connections:
            if time.monotonic() > latest:
                raise RuntimeError(
                    f"a connection is open after {PATIENCE:g} s; is the client alive?"
                )
            time.sleep(TICK)
        asked = self.asked
        self._told = len(self.calls)
        self.strangers += asked.count(-1)
        return asked


class Undisturbed(NamedTuple):
    """What every run must come to, and how long a life is, in seconds."""

    result: dict[str, Any]
    state: State
    seconds: float


def judged(
    asked: Sequence[int], before: State, after: State, workers: int, killed: bool
) -> Counter[str]:
    """One life against the laws above. A life that ended by itself may leave nothing unstored.

    asked: the seeds of its requests. Counts, beside those of ``PROMISES``: kills; asked, the
    samples; in_flight, those asked for and not stored.
    """
    missing = [seed for seed in asked if seed not in after.seeds]
    paid_again = sum(seed in before.seeds for seed in asked)
    counts = {
        "kills": int(killed),
        "asked": len(asked),
        "in_flight": len(missing),
        "lost": max(0, len(missing) - (workers if killed else 0)),
        "repaid": paid_again + len(asked) - len(set(asked)),
        "vanished": len(before.seeds - after.seeds),
        "corrupt": int(bool(after.broken)),
    }
    return Counter({name: count for name, count in counts.items() if count})


def kill(folder: Path, runs: int = 200, *, most_kills: int = 3, seed: int = 0) -> Row:
    """The row, from runs below ``folder``, each killed one to ``most_kills`` times."""
    began = time.monotonic()
    key = new_key()
    truth = _undisturbed(folder, key)
    samples = len(truth.state.seeds)
    counts = Counter[str]()
    for number in range(runs):
        rng = random.Random(f"{seed}/{number}")
        kills = rng.randint(1, most_kills)
        counts += _run(number, kills, rng, Job(folder / f"{number:04d}", key), truth)
        if (number + 1) % TELL == 0 and number + 1 < runs:
            so_far = _row(number + 1, seed, counts, samples, time.monotonic() - began)
            click.echo(so_far.line, err=True)
    return _row(runs, seed, counts, samples, time.monotonic() - began)


def _undisturbed(folder: Path, key: str) -> Undisturbed:
    """With different numbers of workers. It must be known what is right."""
    results = []
    for workers in (8, 4):
        job = Job(folder / f"undisturbed-{workers}", key).prepared()
        with LoggedServer(job.model(), key) as server:
            started = time.monotonic()
            code = ended(job.fit(server.base_url, workers))
            seconds = time.monotonic() - started
            asked = server.settled()
        state, result = state_of(job.store), result_of(job)
        is_whole = code == 0 and sorted(asked) == sorted(state.seeds)
        if not is_whole or not result or state.broken or server.strangers:
            raise RuntimeError(
                f"the undisturbed run in {job.folder} ended with {code}, {len(asked)} requests,"
                f" {len(state.seeds)} stored samples, {server.strangers} requests without the key:"
                f" {state.broken}; see {job.log}"
            )
        results.append((result, state))
    if any(result != results[0] for result in results):
        raise RuntimeError(
            f"two undisturbed runs in {folder} differ; answers must depend on the request alone"
        )
    return Undisturbed(*results[0], seconds)


def _run(number: int, kills: int, rng: random.Random, job: Job, truth: Undisturbed) -> Counter[str]:
    """One run to its end."""
    job.prepared()
    workers = WORKERS[number % len(WORKERS)]
    counts = Counter[str]()
    with LoggedServer(job.model(), job.key) as server:
        for life in range(kills + 1):
            before = state_of(job.store)
            process = job.fit(server.base_url, workers)
            if life < kills:
                _wait(rng, server, len(truth.state.seeds - before.seeds), truth.seconds)
            counts["key_found"] += len(found_in_processes(job.key))
            if life < kills:
                process.kill()
            code = ended(process)
            after = state_of(job.store)
            counts += judged(server.settled(), before, after, workers, code < 0)
            counts["unfinished"] += code > 0
            if code >= 0:
                counts["finished_first"] += life < kills
                break
        counts["unfinished"] += code < 0
        counts["repaid"] += server.strangers
    if number == 0:
        counts["unfinished"] += ended(job.report()) != 0
    counts["other_bias"] += result_of(job) != truth.result
    counts["other_store"] += after != truth.state
    counts["key_found"] += len(found_in_files(job.key, job.folder))
    return counts


def _wait(rng: random.Random, server: LoggedServer, left: int, seconds: float) -> None:
    """Half of the kills come at any instant of a life, half right after a request arrived."""
    if left and rng.random() < 0.5:
        server.wait_for(rng.randint(1, left))
        time.sleep(rng.uniform(0, CLOSE))
    else:
        time.sleep(rng.uniform(0, seconds))


def _row(runs: int, seed: int, counts: Counter[str], samples: int, seconds: float) -> Row:
    return Row(
        "`blb fit` killed with SIGKILL at random instants, then resumed",
        f"{runs} runs of {samples} completions, {counts['kills']} kills",
        f"{counts['lost']} received responses lost, {counts['repaid']} paid twice beyond those in"
        f" flight ({counts['in_flight']} at the kills, at most one a worker), {counts['corrupt']}"
        f" corrupt stores, {runs - counts['other_bias']} of {runs} final biases equal bit for bit;"
        f" key found in {counts['key_found']} places",
        seconds,
        {"runs": runs, "samples": samples, "seed": seed, **counts},
        tuple(f"{counts[name]} {words}" for name, words in PROMISES.items() if counts[name]),
    )
