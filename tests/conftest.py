"""What all tests share: tiers, workers, bytecode, Ctrl-C, and OpenAI's rank files, from a package
instead of the internet.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.support.exact import ExactServer

# Before numpy is imported: threads of BLAS wait for each other on cores that are busy, and small
# matrices gain nothing by them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Workers share cores: an OpenMP thread that waits, in scikit-learn or an engine, leaves its core to
# another worker instead of spinning.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Where no bytecode shall lie beside the sources it lies here: hundreds of commands would compile
# all that they import.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode = False
    sys.pycache_prefix = str(Path(__file__).parents[1] / ".pytest_cache" / "bytecode")
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

RANK_FILES = {
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
"""The SHA-256 that tiktoken expects of each rank file."""
ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"

COMPANY = re.compile(
    r"ExactServer|DecidingServer|GivenServer|RulesGateway|LocalEngine|Chaos|\bsubprocess\b|\bPopen\b"
    r"|\bray\b|\bsocket|http\.server"
    r"|recording_server|proxy_upstream|\bListener\b"
)
"""The words of a test that starts a server, an engine or another process."""
LONGER = frozenset({"goldens", "known_truth", "live", "test_candidates"})
"""Folders and modules whose tests compute for seconds, or need an engine or a browser."""

SAID = "said"
"""The property of a test's report that holds what it said: workers send their reports to the
terminal's process.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--slow``."""
    parser.addoption(
        "--slow",
        action="store_true",
        help="run the tests that take minutes: coverage over 400 replications",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Commands that tests start take Ctrl-C, although a shell that runs pytest in the background
    has it ignored by all of them; tables are as wide as in a file, although workers are given the
    width of their terminal."""
    gc.disable()  # until all files are imported: nothing of them is garbage
    _leave_time_to_hypothesis()
    os.environ.pop("COLUMNS", None)
    os.unsetenv("COLUMNS")  # of this process alone, which readline may have set
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave_time_to_hypothesis() -> None:
    """A worker that waits for a core has neither a slow example nor a slow strategy. Imported when
    bytecode has its place: pytest compiles all of Hypothesis for itself.
    """
    from hypothesis import HealthCheck, settings

    too_slow = [HealthCheck.too_slow]
    settings.register_profile("shared cores", deadline=None, suppress_health_check=too_slow)
    settings.load_profile("shared cores")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """One worker more than there are cores, at most 8, for folders: now and then each waits for a
    server, a disk or another process. Single files and tests, and output that ``-s`` lets through,
    need none.
    """
    folders = any(Path(argument).is_dir() for argument in config.args)
    cores = os.cpu_count() or 1
    if not folders or cores == 1 or config.getoption("capture") == "no":
        return 0
    return min(cores + 1, 8)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With ``-m quick`` only modules that have quick tests are imported: the others' imports take
    longer than the tests.
    """
    if config.getoption("markexpr") != "quick" or not collection_path.match("test_*.py"):
        return None
    return (
        None
        if _alone(collection_path) or "mark.quick" in collection_path.read_text(encoding="utf-8")
        else True
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what is quick, and cut it off from the network; leave the slow tests out unless they
    were asked for; begin with those that need an engine, of which one takes as long as a hundred
    others: begun last, a single worker would still be at it when all others are done.
    """
    items.sort(key=lambda item: "live" not in item.keywords)
    for item in items:
        if _alone(item.path) and not {"live", "slow"} & set(item.keywords):
            item.add_marker(pytest.mark.quick)
        if item.get_closest_marker("quick"):
            item.add_marker(pytest.mark.block_network)
    if config.getoption("--slow"):
        return
    slow = [item for item in items if "slow" in item.keywords]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if "slow" not in item.keywords]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect garbage again, but never look through the imported modules and the list of tests for
    it.
    """
    gc.freeze()
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Import what a test needs when it starts: imported with its file, every worker would spend
    seconds on it.
    """
    for mark in item.iter_markers("needs"):
        pytest.importorskip(*mark.args, **mark.kwargs)


@cache
def _alone(module: Path) -> bool:
    """Whether a module of tests names no server, engine or other process, and stands in no folder
    of longer ones.
    """
    return not LONGER & {module.parent.name, module.stem} and not COMPANY.search(
        module.read_text(encoding="utf-8")
    )


def rank_file(encoding: str) -> bytes:
    """The rank file of an encoding, as tiktoken would download it."""
    spec = importlib.util.find_spec("bpe_openai")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(
            "the rank files come from bpe-openai, of the development dependencies: install those"
        )
    data = gzip.decompress(
        Path(spec.submodule_search_locations[0], "data", f"{encoding}.tiktoken.gz").read_bytes()
    )
    found = hashlib.sha256(data).hexdigest()
    if found != RANK_FILES[encoding]:
        raise ValueError(
            f"bpe-openai carries another {encoding} than tiktoken expects: SHA-256 {found}"
        )
    return data


@pytest.fixture(scope="session")
def tiktoken_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that TIKTOKEN_CACHE_DIR names from now on, with the rank files of ``cl100k_base``
    and ``o200k_base``.
    """
    folder = tmp_path_factory.mktemp("tiktoken")
    for encoding in RANK_FILES:
        name = hashlib.sha1(ADDRESS.format(encoding).encode()).hexdigest()
        Path(folder, name).write_bytes(rank_file(encoding))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[ExactServer]:
    """The module's ``MODEL`` behind a llama.cpp server; a module with another server has its own
    fixture of this name.
    """
    from tests.support.exact import ExactServer

    with ExactServer(request.module.MODEL) as running:
        yield running


@pytest.fixture(autouse=True)
def _same_draws(request: pytest.FixtureRequest) -> None:
    """A server that tests share draws for each of them as if it were the first."""
    if "server" in request.fixturenames:
        forget = getattr(request.getfixturevalue("server"), "forget", None)
        if forget is not None:
            forget()


@pytest.fixture
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are tried again at once."""
    monkeypatch.setattr("blackbox_lb.safety.http.retries.retry_pause", lambda state: 0.01)


@pytest.fixture
def say(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """``say(line)`` puts a line under the results of the run."""
    return lambda line: record_property(SAID, line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What tests said, after the results."""
    for reports in terminalreporter.stats.values():
        for report in reports:
            for name, line in getattr(report, "user_properties", ()):
                if name == SAID and report.when == "teardown":
                    terminalreporter.write_line(line)
