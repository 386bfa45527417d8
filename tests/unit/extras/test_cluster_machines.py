"""Ray on several machines, here as many raylets: shares are spread over them, and one that is lost
takes no number with it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.extras.ray.engine import Cluster
from blackbox_lb.rollouts.positions import training_set
from tests.support.fits import projection
from tests.support.ray_fits import Losing, keys_of, stored

pytestmark = pytest.mark.needs("ray")
MACHINES = 3


@pytest.fixture
def machines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A cluster of three machines with one core each, as RAY_ADDRESS names it."""
    from ray.cluster_utils import Cluster as Machines

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    started: Any = Machines(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        for _ in range(MACHINES - 1):
            started.add_node(num_cpus=1)
        started.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", started.address)
        yield started
    finally:
        started.shutdown()


def homes(engine: Cluster) -> set[str]:
    """The machines of its workers."""
    import ray

    machine = lambda _: ray.get_runtime_context().get_node_id()  # noqa: E731
    return set(ray.get([actor.__ray_call__.remote(machine) for actor in engine.actors]))


@pytest.mark.slow
def test_a_lost_machine_changes_nothing(machines: Any, tmp_path: Path) -> None:
    """Four workers, more than cores, run on all three machines; those of a lost one go on
    elsewhere, to the same bias.

    ``test_cluster.test_a_killed_worker_changes_nothing`` states the same of a lost worker, in a
    tenth of the time.
    """
    store, what = stored(tmp_path)
    assert os.environ["RAY_ADDRESS"] == machines.address

    def remove_last(engine: Cluster) -> None:
        last = machines.list_all_nodes()[-1]
        assert last.node_id in homes(engine)
        machines.remove_node(last, allow_graceful=False)

    with store, Losing(4, 4, remove_last) as engine:
        here = training_set(store, [what.examples[n] for n in range(4)], keys_of(what), what.reward)
        one = projection(here.rollouts, tau=0.5, l2=1.0, next_token=here.next_token)
        whole, count = engine.whole(what)
        assert count["listed"] == 120
        assert len(homes(engine)) == MACHINES
        fitted = projection(whole.rollouts, tau=0.5, l2=1.0, next_token=whole)
        assert engine.calls > 5
        assert len(homes(engine)) == MACHINES - 1
    np.testing.assert_allclose(fitted.delta, one.delta, atol=1e-9)
