"""Ray as the engine of a fit: shares of the training rollouts on many cores or machines, read there
and summed there.

``RAY_ADDRESS`` names a running cluster; without it, workers are started on this machine. Extra
``ray`` (https://docs.ray.io/en/latest/ray-core/actors.html). A lost worker is started again, reads
its share again, and gives the same numbers.
"""

import os
import tempfile
from collections import Counter, OrderedDict
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.counting.distributed import ShardedDataset, Share
from blackbox_lb.estimate.next_token import parallel as passes
from blackbox_lb.rollouts.reading import Reading
from blackbox_lb.rollouts.scratch import Scratch
from blackbox_lb.rollouts.training import LISTS_IN_MEMORY

REMEMBERED = 64
"""Arguments that stay in Ray's object store while they may be sent again: the tail and the weights
of each share.
"""


class _Worker:
    """One share, read on the first request, and again after this process was lost."""

    def __init__(self, reading: Reading) -> None:
        passes.use(1)  # one of several on this machine
        self._reading, self._count = reading, Counter[str]()
        self._share: Share | None = None

    def told(self) -> tuple[Any, Any, Counter[str]]:
        """The rollouts without their lists, the unlisted mass, and the tally of the completions."""
        share = self._read()
        return share.rollouts, share.unlisted, self._count

    def call(self, method: str, *arguments: Any) -> Any:
        """The result of ``method`` of the share."""
        return getattr(self._read(), method)(*arguments)

    def where(self) -> tuple[str, int]:
        """The machine, as Ray names it, and the id of this process."""
        import ray

        return ray.get_runtime_context().get_node_id(), os.getpid()

    def _read(self) -> Share:
        if self._share is None:
            scratch = Scratch(Path(tempfile.gettempdir()), LISTS_IN_MEMORY)
            with self._reading.open() as store:
                blocks = self._reading.blocks(store, self._count)
                self._share = Share(blocks, self._reading.vocab_size, scratch)
        return self._share


class Cluster:
    """A context manager. ``workers``: number of shares of the rollouts, None for one a core of the
    cluster.

    Raises InputError: Ray is not installed, or no cluster answers at RAY_ADDRESS.
    """

    def __init__(self, workers: int | None = None) -> None:
        try:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
            import ray
        except ImportError as error:
            raise InputError(
                "``engine=ray`` needs Ray; install it with: pip install '.[ray]' in the checkout"
            ) from error
        self._ray: Any = ray
        self._wanted = workers
        self._started = False
        self.actors: list[Any] = []
        self._sent: OrderedDict[int, tuple[Any, Any]] = OrderedDict()

    def __enter__(self) -> Self:
        if not self._ray.is_initialized():
            address = os.environ.get("RAY_ADDRESS")
            here = (
                {}
                if address
                else {"num_cpus": self._wanted or passes.cores(), "include_dashboard": False}
            )
            try:
                self._ray.init(
                    address=address or "local", log_to_driver=False, logging_level="ERROR", **here
                )
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
        return self._wanted or max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def whole(self, reading: Reading) -> tuple[ShardedDataset, Counter[str]]:
        """All rollouts of ``reading``, each share in a worker; and the tally of the completions.

        Raises InputError, StoreError: a worker cannot read its share. NoLogprobs: nothing can be
        learned from any of them.
        """
        parts = reading.parts(self.workers)
        kind = self._ray.remote(
            num_cpus=self._cores_each(len(parts)),
            scheduling_strategy="SPREAD",  # a share takes memory, and each machine has its own
            max_restarts=-1,
            max_task_retries=-1,
        )(_Worker)
        self.actors = [kind.remote(part) for part in parts]
        told = self._get([actor.told.remote() for actor in self.actors])
        rollouts, unlisted, counts = zip(*told, strict=True)
        count = sum(counts, Counter[str]())
        if all(each is None for each in unlisted):
            raise reading.nothing(count)
        return ShardedDataset.of(self, rollouts, unlisted), count

    def _cores_each(self, workers: int) -> float:
        """The part of a core for each of them, so that every machine has room for its share: none
        waits for ever.
        """
        machines = [
            node["Resources"].get("CPU", 0.0) for node in self._ray.nodes() if node["Alive"]
        ]
        part = 1.0
        while any(machines) and sum(int(cores / part) for cores in machines) < workers:
            part /= 2
        return part

    def call(self, method: str, common: Sequence[Any], own: Sequence[Sequence[Any]]) -> list[Any]:
        """See ``shares.Workers``."""
        shared = [self._reference(each) for each in common]
        return self._get(
            [
                actor.call.remote(method, *shared, *map(self._reference, row))
                for actor, row in zip(self.actors, own, strict=True)
            ]
        )

    def _get(self, references: list[Any]) -> list[Any]:
        try:
            found: list[Any] = self._ray.get(references)
        except self._ray.exceptions.RayTaskError as error:
            raise error.cause from None
        return found

    def _reference(self, value: Any) -> Any:
        """``value`` in Ray's object store; another machine fetches it once."""
        known = self._sent.pop(id(value), None)
        if known is None:
            known = value, self._ray.put(value)  # the value is kept, so that its id stays its own
        self._sent[id(value)] = known
        while len(self._sent) > REMEMBERED + 2 * len(self.actors):
            self._sent.popitem(last=False)
        return known[1]
