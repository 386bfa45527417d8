"""Ray as the engine of a fit: workers on many cores or machines read and sum training rollouts.

Each worker has a share of the rollouts. ``RAY_ADDRESS`` names a running cluster; without it,
workers are started on this machine. A lost worker is started again, reads its share again, and
gives the same numbers. Extra ``ray`` (https://docs.ray.io/en/latest/ray-core/actors.html).
"""

import os
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.distributed import Shards, Share
from blackbox_lb.estimate.next_token import sparse_table as passes
from blackbox_lb.rollouts.positions import LISTS_IN_MEMORY
from blackbox_lb.rollouts.reading import Reading
from blackbox_lb.rollouts.scratch import Scratch

REMEMBERED = 64
"""Arguments that stay in Ray's object store because they may be sent again, beside two for each
worker (the tail and the weights of its share).
"""


class _Worker:
    """One share, read on the first request, and again after this process was lost."""

    def __init__(self, reading: Reading) -> None:
        passes.limit_threads(1)  # one of several on this machine
        self._reading = reading
        self._count = Counter[str]()
        self._share: Share | None = None

    def summary(self) -> tuple[Any, Any, Counter[str]]:
        """The rollouts without their lists, the unlisted mass, and the tally of the completions."""
        share = self._read()
        return share.rollouts, share.unlisted, self._count

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of ``method`` of the share."""
        return getattr(self._read(), method)(*arguments)

    def _read(self) -> Share:
        if self._share is None:
            scratch = Scratch(Path(tempfile.gettempdir()), LISTS_IN_MEMORY)
            with self._reading.open() as store:
                blocks = self._reading.blocks(store, self._count)
                self._share = Share(blocks, self._reading.vocab_size, scratch)
        return self._share


class Cluster:
    """The workers of one fit. Use as a context manager.

    Args:
        workers: number of shares of the rollouts; None for one a core of the cluster.

    Raises:
        InputError: Ray is not installed, or no cluster answers at RAY_ADDRESS.
    """

    def __init__(self, workers: int | None = None) -> None:
        try:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            if not os.environ.get("RAY_ADDRESS"):
                # Below `uv run` Ray would install the packages of each worker anew, although the
                # workers of this machine have those of this process. Read when Ray is imported.
                os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
            import ray
        except ImportError as error:
            raise InputError(
                "``engine=ray`` needs Ray; install it with: pip install '.[ray]' in the checkout"
            ) from error
        self._ray: Any = ray
        self._requested = workers
        self._started = False
        self.actors: list[Any] = []
        self._sent: OrderedDict[int, tuple[Any, Any]] = OrderedDict()
        """Id of an argument -> the argument, which keeps its id taken, and its reference."""

    def __enter__(self) -> Self:
        if not self._ray.is_initialized():
            address = os.environ.get("RAY_ADDRESS")
            options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
            if not address:
                options["num_cpus"] = self._requested or passes.cores()
                options["include_dashboard"] = False
            try:
                self._ray.init(address=address or "local", **options)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise InputError(
                    f"no Ray cluster answers at {address or 'this machine'}: {error}; see"
                    " RAY_ADDRESS"
                ) from error
            self._started = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for actor in self.actors:
            self._ray.kill(actor)
        self.actors.clear()
        self._sent.clear()
        if self._started:
            self._ray.shutdown()

    @property
    def workers(self) -> int:
        """Number of shares of the rollouts."""
        return self._requested or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def whole(self, reading: Reading) -> tuple[Shards, Counter[str]]:
        """All rollouts of ``reading``, each share in a worker, and the tally of the completions.

        Raises:
            InputError, StoreError: a worker cannot read its share.
            NoLogprobs: nothing can be learned from any completion.
        """
        parts = reading.parts(self.workers)
        kind = self._ray.remote(
            num_cpus=self._cores_of_worker(len(parts)),
            scheduling_strategy="SPREAD",  # a share takes memory, and each machine has its own
            max_restarts=-1,
            max_task_retries=-1,
        )(_Worker)
        self.actors = [kind.remote(part) for part in parts]
        summaries = self._get([actor.summary.remote() for actor in self.actors])
        rollouts, unlisted, counts = zip(*summaries, strict=True)
        count = sum(counts, Counter[str]())
        if all(mass is None for mass in unlisted):
            raise reading.nothing(count)
        return Shards(self, rollouts, unlisted), count

    def _cores_of_worker(self, workers: int) -> float:
        """The part of a core that each of ``workers`` takes.

        It is small enough that the machines have room for all, since a worker without room would
        wait for ever.
        """
        machines = [
            node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]
        ]
        part = 1.0
        while any(machines) and sum(int(cores / part) for cores in machines) < workers:
            part /= 2
        return part

    def call(
        self, method: str, common: Sequence[Any], arguments: Sequence[Sequence[Any]]
    ) -> list[Any]:
        """See ``distributed.Workers``."""
        common_references = [self._reference(value) for value in common]
        calls = []
        for actor, values in zip(self.actors, arguments, strict=True):
            references = [self._reference(value) for value in values]
            calls.append(actor.call.remote(method, *common_references, *references))
        return self._get(calls)

    def _get(self, references: list[Any]) -> list[Any]:
        try:
            results: list[Any] = self._ray.get(references)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        return results

    def _reference(self, value: Any) -> Any:
        """The reference to ``value`` in Ray's object store; another machine fetches it once."""
        entry = self._sent.pop(id(value), None)
        if entry is None:
            entry = (value, self._ray.put(value))
        self._sent[id(value)] = entry  # the newest now
        while len(self._sent) > REMEMBERED + 2 * len(self.actors):
            self._sent.popitem(last=False)
        return entry[1]
