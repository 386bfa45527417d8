"""``python -m bench.gpu OUT --model NAME=FOLDER``: the pages of the gallery with a model on one
GPU, in the minutes that there are.

vLLM is started, several pages at a time ask it, most important first, and OUT.tar.gz has what came.
A page that ended well is not made again, and one that was cut off goes on at the next call.
``--plan`` says beforehand how long it takes.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import click

from bench.commands import Place
from bench.gallery.__main__ import model_options, why_not
from bench.gallery.data import FOLDER
from bench.gallery.use import USES
from bench.gpu import plan, servers, summary

__all__ = ["main"]

GALLERY = "bench.gallery"
PAGES = (
    *("labels", "public", "slop", "phrases", "records", "openers", "school", "news", "margins"),
    *("script", "endpoints", "tools", "limits", "decisions", "shorter", "gsm8k"),
)
"""Most important first."""
CHOICES = (*PAGES, "public_coder")
"""Those that may be named; ``public_coder`` is ``public`` under another title."""
ALONE = {"live": 10.0, "overhead": 4.0}
"""Jobs that have the GPU for themselves after the server has been stopped, with their minutes. They
are run where they are named.
"""
NEEDED = ("matplotlib", "sklearn")
"""Modules without which pages have no picture and no classifier."""
TOOLS = "--enable-auto-tool-choice --tool-call-parser NAME"
"""What the page tools needs of a server; the parser depends on the model."""
PORT = 8100
PACKING = 60.0
"""Seconds at the end for the summary and the archive."""
LARGEST = 2_000_000
"""Bytes of the largest store that is packed."""
SHORTEST = 5.0
"""Seconds below which no job begins."""
SETTLE = 15.0
"""Seconds that a job has to keep what it paid for after SIGINT."""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"), "1"
)


@dataclass(frozen=True, slots=True)
class Job:
    """A module that Python runs with its words.

    Attributes:
        name: of its log, and of the file that holds its words once it has ended well.
        words: the module, and what it is given.
        variables: of its environment.
    """

    name: str
    words: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)

    def has_ended(self, out: Path) -> bool:
        """Whether it ended well with these words."""
        done = out / f"{self.name}.done"
        return done.exists() and done.read_text() == shlex.join(self.words)


def page_job(page: str, place: Place) -> Job:
    """A page of the gallery at a place, whose ``out`` has a folder for each page."""
    words = [GALLERY, page, *place.model, "--data", str(place.data)]
    words += ["--out", str(place.out), "--pages", str(place.out / "pages")]
    if place.small:
        words.append("--small")
    return Job(page, words)


def jobs_alone(names: Sequence[str], model: Path, out: Path) -> list[Job]:
    """The tests of ``LearnedBias`` in a vLLM of their own under both model runners; and what the
    bias of a decision costs the engine, by the clock of single steps.
    """
    jobs = []
    if "live" in names:
        words = ["pytest", "-q", "-n", "0", "tests/live/test_vllm.py", "-m", "live"]
        asked = {"BLB_TEST_VLLM": sys.executable, "BLB_TEST_VLLM_MODEL": str(model)}
        jobs.append(Job("live_v1", words, asked | {"VLLM_USE_V2_MODEL_RUNNER": "0"}))
        jobs.append(Job("live_v2", words, asked | {"VLLM_USE_V2_MODEL_RUNNER": "1"}))
    if "overhead" in names:
        folder = out / "labels" / "sst2_300"
        words = ["bench.gpu.vllm_overhead", "steps", "--model", str(model)]
        words += ["--bias", str(folder / "bias.json")]
        words += ["--concurrent", "1", "--concurrent", "64", "--concurrent", "256"]
        jobs.append(Job("overhead", words, {"BLB_BIAS_DIR": str(folder)}))
    return jobs


def run(job: Job, out: Path, until: float) -> int | None:
    """Run a job; its exit code, None where time was up.

    until: in seconds of the monotonic clock.
    """
    started = time.monotonic()
    if until - started < SHORTEST:
        return None
    with (out / f"{job.name}.log").open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *job.words],
            env={**os.environ, **ONE_THREAD, **job.variables},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            code = process.wait(until - started)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(SETTLE)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
            return None
        file.write(f"\n[exit {code} after {time.monotonic() - started:.0f} s]\n".encode())
    if code == 0:
        (out / f"{job.name}.done").write_text(shlex.join(job.words))
    return code


def run_all(jobs: Sequence[Job], out: Path, until: float, workers: int) -> None:
    """Run jobs, so many at a time, and say which did not end well."""
    if not jobs:
        return
    with ThreadPoolExecutor(workers) as pool:
        codes = list(pool.map(partial(run, out=out, until=until), jobs))
    for job, code in zip(jobs, codes, strict=True):
        if code is None:
            click.echo(f"{job.name}: not finished; the same command goes on")
        elif code:
            click.echo(f"{job.name}: exit {code}, see {out / f'{job.name}.log'}")
    click.echo(f"{codes.count(0)} of {len(jobs)} jobs ended well")


def pack(out: Path) -> Path:
    """OUT.tar.gz: everything but large stores and the rows of data."""
    packed = out.with_name(f"{out.name}.tar.gz")
    with tarfile.open(packed, "w:gz", compresslevel=6) as archive:
        for path in sorted(out.rglob("*")):
            is_large_store = ".db" in path.name and path.stat().st_size > LARGEST
            if path.is_file() and path.suffix != ".jsonl" and not is_large_store:
                archive.add(path, Path(out.name, path.relative_to(out)))
    return packed


@click.command(help=__doc__)
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--model",
    metavar="NAME=FOLDER",
    default="model",
    help="Its name on the pages, and its folder as vLLM takes it.",
)
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=FOLDER,
    show_default=True,
    help="Folder that python -m bench.gallery.data wrote.",
)
@click.option(
    "--size",
    default=30.0,
    show_default=True,
    help="Minutes of the whole command, start and packing included; 0 writes the summary alone.",
)
@click.option(
    "--job",
    "names",
    multiple=True,
    type=click.Choice([*CHOICES, *ALONE]),
    help=f"Repeatable. [default: {', '.join(PAGES)}]",
)
@click.option("--small", is_flag=True, help="The pages in their small sizes.")
@click.option("--workers", default=6, show_default=True, help="Pages at a time.")
@click.option(
    "--gpu-memory",
    default=0.85,
    show_default=True,
    help="Share of the GPU's memory for vLLM; .92 for 30 billion parameters in bfloat16 on 80 GB.",
)
@click.option(
    "--serve",
    default="",
    metavar="WORDS",
    help=f"More options of vllm serve, as in '--quantization fp8'; '{TOOLS}' for the page tools; or"
    ' "--default-chat-template-kwargs \'{\\"enable_thinking\\": false}\'" for a model that thinks.',
)
@click.option("--provider", default="vllm", show_default=True)
@click.option("--base-url", help="A server that answers already, in the place of vLLM.")
@click.option("--plan", "is_plan", is_flag=True, help="Print the estimate, and start nothing.")
@click.option(
    "--billions", default=8.0, show_default=True, help="Parameters of the model, for --plan."
)
def main(
    out: Path,
    model: str,
    data: Path,
    size: float,
    names: tuple[str, ...],
    small: bool,
    workers: int,
    gpu_memory: float,
    serve: str,
    provider: str,
    base_url: str | None,
    is_plan: bool,
    billions: float,
) -> None:
    """Make the pages that are not there yet, write OUT/summary.md, and pack OUT.tar.gz."""
    until = time.monotonic() + 60 * size - PACKING
    out = out.resolve()
    name, _, folder = model.partition("=")
    alone = [job for job in ALONE if job in names]
    if alone and base_url:
        raise click.UsageError(f"{' and '.join(alone)} start a vLLM of their own: no --base-url")
    if not (folder or base_url or is_plan):
        raise click.UsageError("give --model NAME=FOLDER, or --base-url of a server that answers")
    address = base_url or f"http://127.0.0.1:{PORT}/v1"
    place = Place(model_options(provider, name, address), out, data.resolve(), small)
    takes_tools = bool(base_url) or "--tool-call-parser" in serve
    pages = list(_pages(names, place, takes_tools=takes_tools))
    minutes_alone = sum(ALONE[job] for job in alone)
    if is_plan:
        estimate = plan.Estimate(billions, workers)
        demands = _demands(pages, place)
        click.echo(plan.table(demands, estimate))
        click.echo(plan.conclusion(demands, estimate, minutes_alone + PACKING / 60, size))
        return
    lacking = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if lacking:
        raise click.UsageError(f"install {' and '.join(lacking)} first: the pages need them")
    out.mkdir(parents=True, exist_ok=True)
    jobs = [page_job(page, place) for page in pages]
    jobs = [job for job in jobs if not job.has_ended(out)]
    later = [job for job in jobs_alone(alone, Path(folder), out) if not job.has_ended(out)]
    try:
        with ExitStack() as stack:
            pages_until = until - 60 * minutes_alone
            if jobs and size and not base_url:
                words = ["--gpu-memory-utilization", str(gpu_memory), *shlex.split(serve)]
                server = servers.start(name, Path(folder), PORT, out, words)
                stack.callback(servers.stop, server)
                servers.wait(PORT, server, pages_until)
            run_all(jobs, out, pages_until, workers)
        run_all(later, out, until, workers=1)
    finally:  # also where it is interrupted: the machine may be gone before the next call
        summary.write(out)
        click.echo(f"{pack(out)}")


def _pages(names: Sequence[str], place: Place, *, takes_tools: bool) -> Iterator[str]:
    """The pages of these names, ``PAGES`` of none; says why one is left out."""
    for page in [name for name in names if name in CHOICES] if names else PAGES:
        reason = why_not(page, USES[page], place, has_model=True)
        if page == "tools" and not takes_tools:
            reason = f"tools is left out: vLLM takes tools with --serve '{TOOLS}' alone"
        if reason:
            click.echo(reason)
        else:
            yield page


def _demands(pages: Sequence[str], place: Place) -> list[plan.Demand]:
    """What the pages ask for; their data are written into a folder that goes."""
    demands = []
    with tempfile.TemporaryDirectory() as folder:
        for page in pages:
            at_page = replace(place, out=Path(folder, page))
            at_page.out.mkdir()
            demands.append(plan.demand(page, USES[page], at_page))
    return demands


if __name__ == "__main__":
    main()
