"""Passes: visit the parts of a table on all cores, with results in order and reused buffers.

numpy and scipy.sparse release the interpreter lock while they work on an array, so threads are
enough.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from blackbox_lb.estimate.inputs.checks import Vector

T = TypeVar("T")
R = TypeVar("R")

AHEAD = 2
"""Results that may wait for an earlier one, for each core: one is as large as the support."""

STRETCH = 1 << 18
"""Positions per temporary array, where there may be many millions."""

_spare: list[bytearray] = []
_most: int | None = None


def use(threads: int) -> None:
    """Limit this process to so many threads at a time."""
    global _most
    _most = threads


def cores() -> int:
    """The number of processor cores available to this process."""
    return _cores() if _most is None else min(_most, _cores())


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # neither on Windows nor on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_order(
    work: Callable[[T], R], items: Iterable[T], *, ahead: int = AHEAD, threads: int | None = None
) -> Iterator[R]:
    """Yield ``work`` of each item, in the order of the items: their sum does not depend on the
    number of threads.

    The items are made in the calling thread, which also does the work where it is the only one.
    ahead: results and items that may wait, for each thread; ``threads`` None is one a core.
    """
    threads = threads or cores()
    rest = iter(items)
    first = list(islice(rest, 2)) if threads > 1 else []
    single = len(first) < 2
    items = chain(first, rest)
    del first  # items may be large
    if single:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > ahead * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def stretches(size: int) -> Iterator[slice]:
    """All of ``size`` positions in order, so many at a time."""
    return (slice(start, start + STRETCH) for start in range(0, size, STRETCH))


def tally(
    out: npt.NDArray[Any], index: npt.NDArray[np.integer], weights: Vector | None = None
) -> None:
    """Add ``weights`` (m,), or 1, to ``out`` at ``index`` (m,), in order: the same bits as
    ``np.bincount``, which would copy an index that is not of its own type."""
    for at in stretches(len(index)):
        np.add.at(out, index[at].astype(np.intp, copy=False), 1 if weights is None else weights[at])


@contextmanager
def borrowed(size: int) -> Iterator[Vector]:
    """Lend an array (size,) of any content for as long as the context lasts; the next caller gets
    the same memory.

    The operating system takes longer to supply fresh memory than the calculation takes.
    """
    try:
        memory = _spare.pop()
    except IndexError:
        memory = bytearray()
    if len(memory) < 8 * size:
        memory = bytearray(8 * size)
    try:
        yield np.frombuffer(memory, np.float64, size)[
            :
        ]  # an array on bytes: scipy copies the smaller part of an array
    finally:
        _spare.append(memory)


def dot(a: Vector, b: Vector) -> float:
    """The inner product, the same to the last bit for any number of threads in the linear algebra
    library.
    """
    return float(np.einsum("i,i->", a, b))
