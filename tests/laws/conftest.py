"""Laws are checked on the same examples everywhere, however busy the machine is."""

from __future__ import annotations

import os

import pytest


@pytest.hookimpl(trylast=True)  # behind that of tests/, also where this folder alone is run
def pytest_configure() -> None:
    """Examples are drawn alike in every run; HYPOTHESIS_PROFILE=search draws more and others."""
    from hypothesis import settings

    shared = settings.get_profile("shared cores")
    settings.register_profile("same", shared, derandomize=True)
    settings.register_profile("search", shared, max_examples=2_000)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
