"""How long the pages of the gallery take on one H100: an estimate without a server.

What a page asks for is what the committed page asked for. Rates are bounds by the size of the
model, in numbers of NVIDIA's data sheet of the H100 SXM. A step of decoding reads all weights once
and gives a token to each request in flight, and a token takes two operations a parameter
("Transformer Inference Arithmetic", kipp.ly, 2022). A mixture of experts counts as a dense model of
all its parameters.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.gallery.results import PageResults
from bench.measuring import markdown

__all__ = ["PAGES", "Estimate", "estimated", "read_pages"]

PAGES = Path("docs", "gallery")
"""The committed pages."""
BYTES = 2
"""Of a parameter, in bfloat16."""
BANDWIDTH = 3.35e12
"""Bytes of the GPU's memory that are read a second."""
OPERATIONS = 0.4 * 990e12
"""Operations a second: two fifths of the GPU's in bfloat16."""
FASTEST = 12_500
"""Tokens a second that vLLM 0.32 generated of the smallest model with logprobs."""
IN_FLIGHT = 64
"""Requests of one page, where ``blb`` begins with vLLM."""
MOST_IN_FLIGHT = 512
"""Of all pages (``--max-num-seqs``)."""
COMMAND = 10.0
"""Seconds of a command beside the server's: ``python -m bench.decision`` has 4 to 9."""
START = 115.0
"""Seconds until vLLM answers, without the reading of the weights."""
READ = 1e9
"""Bytes of weights that are read a second."""
ASSUMED = (
    "Requests and tokens are those that the committed page took with its small model, whose answers"
    " may be shorter. Measured on one GPU (H100, H200) with vLLM 0.32: 100 to 130 s to start, and"
    " at most 12,500 tokens/s with 5 logprobs. Assumed of one H100 for a dense model of P"
    " parameters in bfloat16: a step of decoding takes the longer of 2 P bytes / 3.35 TB/s and 2 P"
    " x requests in flight / (.4 x 990 TFLOP/s), with 64 requests of a page and 512 of all pages in"
    " flight; prompts take 2 P x tokens / (.4 x 990 TFLOP/s); weights are read at 1 GB/s; a fit or"
    " an evaluation takes 10 s beside that. Not counted: the cache of attention, lists of 1,000"
    " logprobs, the wait for the longest answer, programs of a page; and, which makes it faster,"
    " prompts that the server has in its cache. None of it was measured for such a model."
)


def read_pages(names: Iterable[str]) -> Iterator[PageResults]:
    """The committed results of these pages, without those that are not there."""
    for name in names:
        file = PAGES / f"{name}.json"
        if file.exists():
            yield PageResults.model_validate_json(file.read_bytes())


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds on one GPU, by what was assumed.

    Attributes:
        billions: of parameters of the model.
        workers: pages at a time.
    """

    billions: float
    workers: int

    @property
    def start(self) -> float:
        """Seconds until the server answers."""
        return START + BYTES * self.billions * 1e9 / READ

    def of_server(self, pages: Iterable[PageResults], in_flight: int) -> float:
        """Seconds of the server for pages with so many requests in flight."""
        parameters = self.billions * 1e9
        runs = [page.run for page in pages]
        reading = BYTES * parameters / BANDWIDTH
        computing = 2 * parameters * in_flight / OPERATIONS
        rate = min(in_flight / max(reading, computing), FASTEST)
        prefill = 2 * parameters * sum(run.prompt_tokens for run in runs) / OPERATIONS
        return prefill + sum(run.completion_tokens for run in runs) / rate

    def of_page(self, page: PageResults) -> float:
        """Seconds of a page that is alone."""
        commands = len(page.fits) + len(page.evaluations)
        return COMMAND * commands + self.of_server([page], IN_FLIGHT)

    def of_pages(self, pages: list[PageResults]) -> float:
        """Seconds of all pages: of the longest of them, of a worker's share, or of the server."""
        alone = [self.of_page(page) for page in pages]
        return max(
            max(alone, default=0.0),
            sum(alone) / self.workers,
            self.of_server(pages, MOST_IN_FLIGHT),
        )


def estimated(names: Iterable[str], estimate: Estimate, rest: float, size: float) -> str:
    """A table of pages with their minutes, the minutes of all beside those that there are, and what
    was assumed.

    Args:
        names: of the pages.
        estimate: of the model.
        rest: minutes of what follows the pages.
        size: minutes that there are.
    """
    names = list(names)
    pages = [page for page in read_pages(names) if page.run.requests]
    rows = [
        (
            page.use,
            f"{page.run.requests:,}",
            f"{page.run.prompt_tokens:,}",
            f"{page.run.completion_tokens:,}",
            f"{estimate.of_page(page) / 60:.1f}",
        )
        for page in pages
    ]
    head = ["page", "requests", "prompt tokens", "generated tokens", "minutes, alone"]
    lines = [markdown(head, rows)]
    unknown = [name for name in names if name not in {page.use for page in pages}]
    if unknown:
        lines.append(f"Without recorded requests, and not counted: {', '.join(unknown)}.")
    start = estimate.start / 60
    all_pages = estimate.of_pages(pages) / 60
    total = start + all_pages + rest
    verdict = "fits" if total <= size else "does not fit: the last pages are for the next call"
    lines.append(
        f"{estimate.billions:g} billion parameters: {total:.1f} minutes ({start:.1f} until vLLM"
        f" answers, {all_pages:.1f} for the pages, {estimate.workers} at a time, {rest:.1f} for"
        f" what follows). --size {size:g} {verdict}."
    )
    return "\n\n".join([*lines, ASSUMED])
