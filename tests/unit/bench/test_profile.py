"""The profile by parts: each sample goes to the innermost part that is known, and no part is named
after what is not there.
"""

from __future__ import annotations

import asyncio.base_events
import asyncio.events
import asyncio.selector_events
import inspect
from pathlib import Path

import aiohttp.client
import aiohttp.client_proto

import blackbox_lb
from bench.profile import PARTS


def test_every_part_is_made_of_functions_that_exist() -> None:
    """A renamed class would put its time under "other" without a word."""
    sources = [
        path.read_text(encoding="utf-8")
        for path in Path(inspect.getfile(blackbox_lb)).parent.rglob("*.py")
    ]
    theirs = [
        asyncio.base_events,
        asyncio.events,
        asyncio.selector_events,
        aiohttp.client,
        aiohttp.client_proto,
    ]
    sources += [inspect.getsource(module) for module in theirs]
    for names in PARTS.values():
        for name in names:
            *owner, function = name.removesuffix(" (").replace("<locals>.", "").split(".")
            wanted = [f"class {owner[0]}", f"def {owner[0]}("] if owner else [""]
            texts = [each for each in sources if any(one in each for one in wanted)]
            assert any(not function or f"def {function}(" in each for each in texts), name
