"""This package's collector with typed msgspec structs in the place of its reader of columns: see
``bench.studies.typed_reader``.
"""

from __future__ import annotations

import asyncio
import os

from bench.peers.blb import main, with_ranks
from bench.peers.timed import arguments
from bench.studies.typed_reader import TextReader, TypedReader
from blackbox_lb.api import session

if __name__ == "__main__":
    os.environ.setdefault("OPENAI_API_KEY", "bench")
    with_ranks()
    job = arguments()
    vars(session)["AnswerReader"] = {"typed": TypedReader, "text": TextReader}[job.name]
    asyncio.run(main(job))
