"""Laws are checked on the same examples everywhere, however busy the machine is."""

from __future__ import annotations

import os

from hypothesis import settings

SHARED = settings.get_profile("shared cores")
settings.register_profile("same", SHARED, derandomize=True)
settings.register_profile("search", SHARED, max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "same"))
