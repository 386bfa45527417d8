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
from bench.profile import PARTS, folded, parts

RAW = """\
run (runners.py:1);Handle._run (events.py:78);worker (workers.py:3);Session.answer (session.py:202) 4
run (runners.py:1);Handle._run (events.py:78);AnswerReader._cut (scanner.py:114);spans_of (spans.py:81) 5
Handle._run (events.py:78);Channel.post (channel.py:174);HttpService.send (service.py:259);AiohttpTransport.handle_async_request (a.py:3) 2
Thread.run (threading.py:9);Writer._run (writer.py:47);RolloutStore.add_rows (rollouts.py:1);Database.transaction (database.py:92) 7
Thread.run (threading.py:9);Writer._run (writer.py:47) 100
<module> (x.py:1);_find_and_load (importlib:1);AnswerReader._cut (scanner.py:114) 100
main (x.py:1) 1
"""


def test_a_sample_goes_to_the_innermost_known_part() -> None:
    """Waiting threads and imports are left out; the rest adds up to the samples of ``folded``."""
    found = parts(RAW)
    known = {
        "budgets, rate limits, retries": 4,
        "finding the numbers in JSON": 5,
        "HTTP": 2,
        "waiting for the disk": 7,
        "other": 1,
    }
    assert found == known
    assert found.total() == folded(RAW)[0].total()


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
