"""The tiers of the tests: what is quick is cut off from the network, so that a server cannot creep
in.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from tests.conftest import _alone
from tests.support.errors import raises_naming

TESTS = Path(__file__).parents[1]


def test_commands_are_compiled_once() -> None:
    """Whatever the environment says, a command that a test starts keeps the bytecode of what it
    imports.
    """
    assert not sys.dont_write_bytecode
    assert not os.environ.get("PYTHONDONTWRITEBYTECODE")
    assert os.environ.get("PYTHONPYCACHEPREFIX") == sys.pycache_prefix


@pytest.mark.quick
def test_a_quick_test_reaches_no_server() -> None:
    """A connection is refused before it is tried, on loopback too."""
    with socket.socket() as one, raises_naming(RuntimeError, "'127.0.0.1'"):
        one.connect(("127.0.0.1", 9))


def test_what_is_quick() -> None:
    """Modules that start nothing are; those with a server or an engine are not."""
    assert _alone(TESTS / "laws" / "test_law_statistics.py")
    others = (
        "unit/jobs/test_hosted.py",
        "unit/extras/test_cluster.py",
        "live/test_fit.py",
        "known_truth/test_truth_ips.py",
    )
    assert not any(_alone(TESTS / name) for name in others)
