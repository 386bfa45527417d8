"""Two of this package's collectors at a time, as ``blb collect --shard 1/2`` and ``2/2`` are: a
process and a store each.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from bench.peers.timed import Job, arguments, options

SHARDS = 2


def started(job: Job, number: int) -> subprocess.Popen[str]:
    """One of them, with its part of the requests in flight."""
    folder = Path(job.folder, str(number))
    folder.mkdir()
    part = replace(job, folder=str(folder), concurrency=max(1, job.concurrency // SHARDS))
    command = [sys.executable, "-m", "bench.peers.blb", *options(part)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def main(job: Job) -> None:
    """Print what they did together in a second, and the memory of both."""
    running = [started(job, number) for number in range(SHARDS)]
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("one of the two failed")
    found = [json.loads(each.strip().splitlines()[-1]) for each in said]
    together = {
        name: sum(each[name] / each["seconds"] for each in found) for name in ("completions", "cpu")
    }
    together |= {"seconds": 1.0, "peak": sum(each["peak"] for each in found)}
    print(
        json.dumps({**asdict(job), **together, "keeps": f"the same, in {SHARDS} stores"}),
        flush=True,
    )


if __name__ == "__main__":
    main(arguments())
