"""``python -m bench.gpu OUT --model NAME=FOLDER``: the pages of the gallery with a model on one
GPU, in the minutes that there are.

vLLM is started, several pages at a time ask it, most important first, and OUT.tar.gz has what came.
The same command goes on where this one was cut off: no command of a page that ended well is run
again. ``--plan`` says beforehand how long it takes.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import click

from bench.commands import Place
from bench.gallery.__main__ import model_options, why_not
from bench.gallery.data import FOLDER
from bench.gallery.index import index
from bench.gallery.use import USES
from bench.gpu import plan, servers

__all__ = ["main"]

GALLERY = "bench.gallery"
PAGES = (
    *("labels", "public", "slop", "phrases", "records", "openers", "school", "news", "margins"),
    *("script", "endpoints", "tools", "limits", "decisions", "shorter", "gsm8k"),
)
"""Most important first."""
CHOICES = (*PAGES, "public_coder")
"""Those that may be named; ``public_coder`` is ``public`` under another title."""
NEEDED = ("matplotlib", "sklearn")
"""Modules without which pages have no picture and no classifier."""
TOOLS = "--enable-auto-tool-choice --tool-call-parser NAME"
"""What the page tools needs of vLLM, else its requests fail; the parser depends on the model."""
PORT = 8100
PACKING = 60.0
"""Seconds at the end for the index and the archive."""
LARGEST = 2_000_000
"""Bytes of the largest store that is packed."""
SHORTEST = 5.0
"""Seconds below which no page begins."""
SETTLE = 15.0
"""Seconds that a page has to keep what it paid for after SIGINT."""
ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "TOKENIZERS_PARALLELISM"), "1"
)


def words_of(page: str, place: Place) -> list[str]:
    """The module that makes a page, and its words; ``place.out`` has a folder for each page."""
    words = [GALLERY, page, *place.model, "--data", str(place.data)]
    words += ["--out", str(place.out), "--pages", str(place.out / "pages")]
    if place.small:
        words.append("--small")
    return words


def make(page: str, place: Place, until: float) -> int | None:
    """Make a page; the exit code, None where time was up.

    until: in seconds of the monotonic clock.
    """
    remaining = until - time.monotonic()
    if remaining < SHORTEST:
        return None
    with (place.out / f"{page}.log").open("ab") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", *words_of(page, place)],
            env={**os.environ, **ONE_THREAD},
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            return process.wait(remaining)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
        try:
            process.wait(SETTLE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    return None


def make_all(pages: Sequence[str], place: Place, until: float, workers: int) -> None:
    """Make pages, so many at a time, and say which did not end well."""
    with ThreadPoolExecutor(workers) as pool:
        codes = list(pool.map(partial(make, place=place, until=until), pages))
    for page, code in zip(pages, codes, strict=True):
        if code is None:
            click.echo(f"{page}: not finished; the same command goes on")
        elif code:
            click.echo(f"{page}: exit {code}, see {place.out / f'{page}.log'}")
    click.echo(f"{codes.count(0)} of {len(pages)} pages ended well")


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
    type=click.Path(file_okay=False, path_type=Path),
    default=FOLDER,
    show_default=True,
    help="Folder that python -m bench.gallery.data wrote.",
)
@click.option(
    "--size",
    default=30.0,
    show_default=True,
    help="Minutes of the whole command, start and packing included.",
)
@click.option(
    "--job",
    "names",
    multiple=True,
    type=click.Choice(CHOICES),
    help=f"A page; repeatable. [default: {', '.join(PAGES)}]",
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
@click.option("--plan", "is_plan", is_flag=True, help="Print the estimate, and start nothing.")
@click.option(
    "--billions", default=8.0, show_default=True, help="Parameters of the model, for --plan."
)
@click.option("--provider", default="vllm", show_default=True)
@click.option("--base-url", help="A server that answers already, in the place of vLLM.")
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
    is_plan: bool,
    billions: float,
    provider: str,
    base_url: str | None,
) -> None:
    """Make the pages that are not there yet, and pack OUT.tar.gz."""
    if is_plan:
        estimate = plan.Estimate(billions, workers)
        click.echo(plan.estimated(names or PAGES, estimate, PACKING / 60, size))
        return
    until = time.monotonic() + 60 * size - PACKING
    out = out.resolve()
    name, _, folder = model.partition("=")
    if not (folder or base_url):
        raise click.UsageError("give --model NAME=FOLDER, or --base-url of a server that answers")
    lacking = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if lacking:
        raise click.UsageError(f"install {' and '.join(lacking)} first: the pages need them")
    address = base_url or f"http://127.0.0.1:{PORT}/v1"
    place = Place(model_options(provider, name, address), out, data.resolve(), small)
    pages = list(_possible(names or PAGES, place))
    (out / "pages").mkdir(parents=True, exist_ok=True)
    try:
        with ExitStack() as stack:
            if not base_url:
                words = ["--gpu-memory-utilization", str(gpu_memory), *shlex.split(serve)]
                log = out / "server.log"
                server = servers.serving(name, Path(folder), PORT, log, words, until)
                stack.enter_context(server)
            make_all(pages, place, until, workers)
    finally:  # also where it is interrupted: the machine may be gone before the next call
        (out / "pages" / "index.md").write_text(index(out / "pages"), encoding="utf-8")
        click.echo(f"{pack(out)}")


def _possible(names: Sequence[str], place: Place) -> Iterator[str]:
    """Those of these pages whose rows are there; says why one is left out."""
    for page in names:
        reason = why_not(page, USES[page], place, has_model=True)
        if reason:
            click.echo(reason)
        else:
            yield page


if __name__ == "__main__":
    main()
