"""What several of these modules share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.exact import ExactServer


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[ExactServer]:
    """The module's ``MODEL`` behind a llama.cpp server."""
    with ExactServer(request.module.MODEL) as running:
        yield running
