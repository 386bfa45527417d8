"""What all tests share: ``--slow``, Ctrl-C, and OpenAI's rank files without internet, from a package that carries them."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

RANK_FILES = {
    "cl100k_base": "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
    "o200k_base": "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d",
}
"""The SHA-256 that tiktoken expects of each rank file."""
ADDRESS = "https://openaipublic.blob.core.windows.net/encodings/{}.tiktoken"


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--slow``."""
    parser.addoption(
        "--slow", action="store_true", help="run the tests that take minutes: coverage over 400 replications"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Commands that tests start take Ctrl-C, although a shell that runs pytest in the background has it ignored by all of them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the slow tests out unless they were asked for."""
    if config.getoption("--slow"):
        return
    slow = [item for item in items if "slow" in item.keywords]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if "slow" not in item.keywords]


def rank_file(encoding: str) -> bytes:
    """The rank file of an encoding, as tiktoken would download it."""
    spec = importlib.util.find_spec("bpe_openai")
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError("the rank files come from bpe-openai, of the development dependencies: install those")
    data = gzip.decompress(Path(spec.submodule_search_locations[0], "data", f"{encoding}.tiktoken.gz").read_bytes())
    found = hashlib.sha256(data).hexdigest()
    if found != RANK_FILES[encoding]:
        raise ValueError(f"bpe-openai carries another {encoding} than tiktoken expects: SHA-256 {found}")
    return data


@pytest.fixture(scope="session")
def tiktoken_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that TIKTOKEN_CACHE_DIR names from now on, with the rank files of ``cl100k_base`` and ``o200k_base``."""
    folder = tmp_path_factory.mktemp("tiktoken")
    for encoding in RANK_FILES:
        name = hashlib.sha1(ADDRESS.format(encoding).encode()).hexdigest()
        Path(folder, name).write_bytes(rank_file(encoding))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(folder))
        yield folder
