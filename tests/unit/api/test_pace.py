"""How many requests in flight a server gets, against simulated servers whose best number is
known.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from blackbox_lb.api.limits.concurrency import MOST_IN_FLIGHT, AdaptiveConcurrency

ENOUGH = 10**6


@dataclass
class Server:
    """Works on ``slots`` requests at a time, on each at ``speed(n)`` where n are there; the others
    queue.

    ``noise``: relative spread of the work of a request, one second on average. ``latency``: seconds
    on the way. What would be more than ``room`` requests at once is refused, and tried again a
    second later.
    """

    slots: int = ENOUGH
    speed: Callable[[int], float] = lambda n: 1.0
    noise: float = 0.9
    latency: float = 0.1
    room: int = ENOUGH


@dataclass
class Course:
    """What happened: (seconds, tokens) of each request that ended, the level after it, refusals."""

    ended: list[tuple[float, float]] = field(default_factory=list)
    levels: list[int] = field(default_factory=list)
    refusals: int = 0

    @property
    def rate(self) -> float:
        """Work done a second, without the beginning and the end."""
        first, last = len(self.ended) * 3 // 10, len(self.ended) * 9 // 10
        return sum(work for _, work in self.ended[first:last]) / (
            self.ended[last][0] - self.ended[first][0]
        )


def run(
    server: Server,
    pace: AdaptiveConcurrency | None = None,
    requests: int = 6000,
    seed: int = 0,
    course: Course | None = None,
    least: int = 8,
    most: int = MOST_IN_FLIGHT,
) -> Course:
    """Let ``pace`` decide how many of these requests are in flight, from ``least`` on."""
    rng, course, pace = random.Random(seed), course or Course(), pace or AdaptiveConcurrency()
    now = (
        course.ended[-1][0] + 60.0 if course.ended else 0.0
    )  # whoever collects does something else for a minute
    on_the_way: list[float] = []
    queue: deque[float] = deque()
    active: list[
        tuple[float, float]
    ] = []  # when each ends, on a clock of the work that each gets, and its work
    worked, left, in_flight = 0.0, requests, 0
    pace.begin(requests, least, most)
    while left or in_flight:
        while left and in_flight < pace.level:
            left, in_flight = left - 1, in_flight + 1
            heapq.heappush(on_the_way, now + server.latency)
        speed = server.speed(len(active))
        arrives = on_the_way[0] if on_the_way else float("inf")
        done = now + (active[0][0] - worked) / speed if active else float("inf")
        worked, now = worked + (min(arrives, done) - now) * speed, min(arrives, done)
        if arrives <= done:
            heapq.heappop(on_the_way)
            if len(active) + len(queue) >= server.room:
                course.refusals += 1
                heapq.heappush(on_the_way, now + 1.0)
            else:
                queue.append(rng.uniform(1 - server.noise, 1 + server.noise))
        else:
            work = heapq.heappop(active)[1]
            in_flight -= 1
            course.ended.append((now, work))
            pace.ended(round(100 * work), course.refusals, now)
            course.levels.append(pace.level)
        while queue and len(active) < server.slots:
            work = queue.popleft()
            heapq.heappush(active, (worked + work, work))
    return course


@pytest.mark.parametrize("slots", [4, 16, 48, 200])
def test_the_slots_of_a_server_are_kept_busy(slots: int) -> None:
    """From 8 on, whatever the number of slots: .98 of a request a second and slot, with a queue
    that stays short.
    """
    found = run(Server(slots))
    assert found.rate >= 0.98 * slots
    assert slots <= found.levels[-1000] <= 8 * slots


@pytest.mark.parametrize("half", [16, 64, 256])
def test_a_server_that_shares_its_speed_is_saturated(half: int) -> None:
    """As a GPU does: each more request brings less, and ``half`` requests a second are the most.
    From 8 on, .96 of what as many in flight as are ever tried bring.
    """
    found = run(Server(speed=lambda n: 1 / (1 + n / half)))
    assert found.rate >= 0.96 * half / (1 + half / MOST_IN_FLIGHT)


def test_more_than_a_server_can_take_is_taken_back() -> None:
    """Beyond 40 at once this one gets slower, as where caches no longer fit."""
    found = run(Server(speed=lambda n: min(1.0, (40 / n) ** 2) if n else 1.0))
    assert sorted(found.levels)[len(found.levels) // 2] == 32
    assert found.rate >= 0.85 * 40 * 0.8, "32 in flight, each a tenth of its time on the way"


def test_refusals_ease_the_pace() -> None:
    """A server that refuses what is more than 40 at once has little to refuse, and is kept busy."""
    server = Server(room=40)
    found = run(server)
    assert found.refusals < 0.05 * 6000
    assert max(found.levels[1000:]) <= 64
    assert found.rate >= 0.7 * 40 / (1 + server.latency)


def test_where_it_began_is_the_least() -> None:
    """A server that refuses everything for a while does not stop the work."""
    pace = AdaptiveConcurrency()
    pace.begin(ENOUGH, 8)
    for each in range(500):
        pace.ended(1, 10 * each, float(each))
    assert pace.level == 8


def test_the_most_is_never_passed() -> None:
    """Not by a server without limits; and not the largest number of all, unless more were asked
    for.
    """
    assert max(run(Server(), most=50).levels) == 50
    assert max(run(Server(), requests=12_000).levels) == MOST_IN_FLIGHT
    assert set(run(Server(), least=2 * MOST_IN_FLIGHT).levels) == {2 * MOST_IN_FLIGHT}


def test_no_more_are_tried_where_each_takes_minutes() -> None:
    """In a longer queue they would be given up before they are answered."""
    server = Server(4, speed=lambda n: 0.01)
    assert max(run(server, requests=400).levels) == 8


def test_stages_go_on_where_the_last_one_was() -> None:
    """Neither the end of a stage, when few are left, nor the pause before the next one is taken for
    a slow server.
    """
    course, pace = Course(), AdaptiveConcurrency()
    for seed in range(40):
        run(Server(48), pace, 300, seed, course)
    assert 48 <= pace.level <= 256
    assert min(course.levels[-3000:]) >= 48


def test_what_changes_is_noticed() -> None:
    """Four times the slots after a while: more requests are tried again by then."""
    course, pace = Course(), AdaptiveConcurrency()
    run(Server(16), pace, 3000, 0, course)
    assert pace.level <= 64
    run(Server(256), pace, 8000, 1, course)
    assert pace.level >= 256
