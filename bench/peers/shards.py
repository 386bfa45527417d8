"""Two of this package's collectors at a time, as ``blb collect --shard 1/2`` and ``2/2`` are: a process and a store each."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from bench.peers.timed import Job, arguments

SHARDS = 2


def started(job: Job, number: int) -> subprocess.Popen[str]:
    """One of them, with its part of the requests in flight."""
    folder = Path(job.folder, str(number))
    folder.mkdir()
    part = replace(job, folder=str(folder), concurrency=max(1, job.concurrency // SHARDS))
    given = (word for name, value in asdict(part).items() for word in (f"--{name.replace('_', '-')}", str(value)))
    return subprocess.Popen([sys.executable, "-m", "bench.peers.blb", *given], stdout=subprocess.PIPE, text=True)


def main(job: Job) -> None:
    """Print what they did together: their rates and their memory added up, the processor time of both."""
    running = [started(job, number) for number in range(SHARDS)]
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit("one of the two failed")
    found = [json.loads(each.strip().splitlines()[-1]) for each in said]
    seconds = max(each["seconds"] for each in found)
    rate = sum(each["completions"] / each["seconds"] for each in found)
    cpu = sum(each["cpu"] / each["completions"] for each in found) / SHARDS * rate * seconds
    together = {
        "completions": rate * seconds,
        "seconds": seconds,
        "cpu": cpu,
        "peak": sum(each["peak"] for each in found),
    }
    print(json.dumps({**asdict(job), **together, "keeps": f"the same, in {SHARDS} stores"}), flush=True)


if __name__ == "__main__":
    main(arguments())
