"""Ray as the engine of a fit: two local workers learn what one process learns, and a killed one
changes nothing.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.extras.ray.engine import Cluster
from blackbox_lb.rollouts import positions as reading_module
from blackbox_lb.rollouts.positions import spread_training, training_set
from blackbox_lb.rollouts.reading import Reading
from blackbox_lb.store import RolloutStore
from tests.support.commands import asking, blb, options, refused
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.fits import projection
from tests.support.questions import questions, write_rows
from tests.support.ray_fits import Losing, keys_of, stored
from tests.support.statistics import close, statistics_of

pytestmark = pytest.mark.needs("ray")
# Before Ray is imported: below `uv run` it would install each worker's packages anew.
os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
PROMPTS, SAMPLES = 8, 20


@pytest.fixture(scope="module")
def started() -> Iterator[None]:
    """A cluster of two cores on this machine, for all tests here: to start one takes seconds."""
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(
        "local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
    )
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def server() -> Iterator[ExactServer]:
    """An exact model with an end token."""
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as running:
        yield running


@pytest.fixture(scope="module")
def fit(server: ExactServer, tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    """A fit of small size, without its --out; what it asks for is in the store that it names."""
    folder = tmp_path_factory.mktemp("fit")
    data = folder / "data.jsonl"
    rows = questions(PROMPTS, PROMPTS, PROMPTS, answers=["a"])
    where = asking(server, data=write_rows(data, rows), reward="length", seed=1)
    task = options(max_tokens=8, top_logprobs=5, samples_per_prompt=SAMPLES)
    drawn = options(validation_samples=4, test_samples=4, store=folder / "rollouts.db")
    return ("fit", *where, *task, *drawn, "--quiet")


def entries(folder: Path) -> list[dict[str, Any]]:
    """Those of the bias that was written there."""
    found: list[dict[str, Any]] = json.loads((folder / "bias.json").read_text())["entries"]
    return found


@pytest.mark.usefixtures("started")
@pytest.mark.parametrize(
    "estimator",
    [
        ("projection", "--l2", 5),
        pytest.param(("ips", "--alpha", 0.3), marks=pytest.mark.slow),
    ],
)
def test_two_workers_learn_the_same_bias(
    fit: tuple[object, ...], estimator: tuple[object, ...], tmp_path: Path
) -> None:
    """To 1e-9, with the same tokens and counts, from the completions that are stored."""
    for engine in ("here", "ray"):
        workers = ("--workers", 2) if engine == "ray" else ()
        done = blb(
            *fit,
            "--estimator",
            *estimator,
            *options(out=tmp_path / engine, engine=engine),
            *workers,
        )
        assert done.exit_code == 0, done.output
    here, there = (entries(tmp_path / engine) for engine in ("here", "ray"))
    assert [(e["id"], e["seen"]) for e in here] == [(e["id"], e["seen"]) for e in there]
    np.testing.assert_allclose([e["bias"] for e in there], [e["bias"] for e in here], atol=1e-9)
    assert max(abs(e["bias"]) for e in here) > 0.1
    documents = [
        json.loads((tmp_path / engine / "bias.json").read_text()) for engine in ("here", "ray")
    ]
    for name in ("rollouts", "tokens", "settings"):
        assert documents[0][name] == documents[1][name]


@pytest.mark.usefixtures("started")
def test_a_sample_explains_what_all_learned(
    fit: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the lists of all rollouts are too many for this process, the learned vector is still
    that of all.
    """
    assert blb(*fit, "--l2", 5, "--out", tmp_path / "all").exit_code == 0
    monkeypatch.setattr(reading_module, "SAMPLE", 200)
    done = blb(*fit, "--l2", 5, "--out", tmp_path / "part", "--engine", "ray", "--workers", 2)
    assert done.exit_code == 0, done.output
    one, other = (
        json.loads((tmp_path / name / "learned.json").read_text()) for name in ("all", "part")
    )
    assert one["rollouts"] == other["rollouts"] == PROMPTS * SAMPLES
    np.testing.assert_allclose(
        [e["bias"] for e in one["entries"]], [e["bias"] for e in other["entries"]], atol=1e-9
    )
    notices = json.loads((tmp_path / "part" / "result.json").read_text())["provenance"]["remarks"]
    assert any("compiled and explained with" in notice for notice in notices)
    errors = [
        {e["id"]: e["error"] for e in entries(tmp_path / name) if e["error"]}
        for name in ("all", "part")
    ]
    assert np.median([errors[1][token] / errors[0][token] for token in errors[1]]) > 1.1


@pytest.fixture
def reading(tmp_path: Path) -> Iterator[tuple[RolloutStore, Reading]]:
    """Stored completions, and what reads them."""
    store, what = stored(tmp_path)
    with store:
        yield store, what


def kill_second(engine: Cluster) -> None:
    """The process of the second worker."""
    import ray

    os.kill(ray.get(engine.actors[1].__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


@pytest.mark.usefixtures("started")
def test_a_killed_worker_changes_nothing(reading: tuple[RolloutStore, Reading]) -> None:
    """Its successor reads the share again; the fit is the same to the last bit, and to 1e-9 that of
    one process.
    """
    store, what = reading
    here = training_set(store, [what.examples[n] for n in range(4)], keys_of(what), what.reward)
    one = projection(here.rollouts, tau=0.5, l2=1.0, next_token=here.next_token)
    deltas = []
    for lose in (0, 4):
        with Losing(2, lose, kill_second) as engine:
            whole, count = engine.whole(what)
            assert count["listed"] == 120
            fitted = projection(whole.rollouts, tau=0.5, l2=1.0, next_token=whole)
            assert engine.calls > 5
            deltas.append(fitted.delta)
    np.testing.assert_array_equal(deltas[0], deltas[1])
    np.testing.assert_allclose(deltas[0], one.delta, atol=1e-9)


@pytest.mark.usefixtures("started")
def test_a_share_without_lists_adds_nothing(tmp_path: Path) -> None:
    """Where a worker's completions all came without their tokens, the fit is that of the others,
    and the count is whole.
    """
    store, what = stored(tmp_path, (0, 1))
    first, *others = (set(part.owner.values()) for part in what.parts(3))
    assert first <= {0, 1}
    assert all(each - {0, 1} for each in others)
    with store, Cluster(3) as engine:
        here = training_set(store, [what.examples[n] for n in range(4)], keys_of(what), what.reward)
        found = spread_training(engine, store, what, 10_000)
        assert found.tally["incomplete"] == here.tally["incomplete"] > 40
        assert found.everywhere is not None
        assert found.everywhere.rollouts.keys == here.rollouts.keys
        one = projection(here.rollouts, tau=0.5, l2=1.0, next_token=here.next_token)
        many = projection(found.everywhere.rollouts, tau=0.5, l2=1.0, next_token=found.everywhere)
        np.testing.assert_allclose(many.delta, one.delta, atol=1e-9)
        statistics = statistics_of(here.rollouts, 0.5)
        assert statistics.recipe is not None
        assert close(found.everywhere.statistics(statistics.recipe), statistics)


@pytest.mark.usefixtures("started")
def test_shares_without_any_list_are_one_error(tmp_path: Path) -> None:
    """It is raised once and counts the completions of all shares: the words of one process."""
    store, what = stored(tmp_path, range(4))
    with store, Cluster(2) as engine:
        with raises_naming(NoLogprobs, "120") as here:
            training_set(store, [what.examples[n] for n in range(4)], keys_of(what), what.reward)
        with pytest.raises(NoLogprobs) as there:
            spread_training(engine, store, what, 10_000)
    assert str(there.value) == str(here.value)


@pytest.mark.usefixtures("started")
def test_a_workers_error_is_ours(reading: tuple[RolloutStore, Reading]) -> None:
    """What goes wrong in a worker is raised here as it was there, with its sentence and no trace of
    Ray.
    """
    store, what = reading
    store.close()
    store.path.unlink()
    with Cluster(2) as engine, raises_naming(Exception, "rollouts.db") as caught:
        engine.whole(what)
    assert type(caught.value).__name__ == "StoreError"
    assert "ray::" not in str(caught.value)


def test_workers_need_ray(fit: tuple[object, ...], tmp_path: Path) -> None:
    """Before anything is asked for, with exit code 2."""
    assert "--engine ray" in refused(*fit, "--out", tmp_path, "--workers", 2)


def test_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray one sentence says how to get it."""
    monkeypatch.setitem(sys.modules, "ray", None)
    with raises_naming(InputError, "'.[ray]'"):
        Cluster()


@pytest.mark.parametrize(("address", "installs"), [(None, "0"), ("ray://other:10001", None)])
def test_workers_of_this_machine_have_its_packages(
    monkeypatch: pytest.MonkeyPatch, address: str | None, installs: str | None
) -> None:
    """Below `uv run` Ray installs nothing for them; for those of another machine it does as it is
    configured.
    """
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.delenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if address is not None:
        monkeypatch.setenv("RAY_ADDRESS", address)
    Cluster(2)
    assert os.environ.get("RAY_ENABLE_UV_RUN_RUNTIME_ENV") == installs
