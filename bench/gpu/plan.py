"""How long the pages of the gallery take on one H100: an estimate without a server.

``blb`` forecasts the requests and tokens of each command from its settings. A completion counts
with its limit of tokens, and one that two fits share, or a fit and an evaluation, counts for both.
Checks and the programs of a page are commands whose tokens are not counted, but for
``few_labels``.

Rates are bounds by the size of the model, in numbers of NVIDIA's data sheet of the H100 SXM. A step
of decoding reads all weights once and gives a token to each request in flight, and a token takes
two operations a parameter ("Transformer Inference Arithmetic", kipp.ly, 2022). A mixture of experts
counts as a dense model of all its parameters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import click
from click.testing import CliRunner

from bench.commands import Place
from bench.gallery import few_labels
from bench.gallery.use import Use
from bench.measuring import markdown
from bench.steps import Step

# What an evaluation asks for is known to its command alone, which reads the biases first.
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.cli import main as blb
from blackbox_lb.cli.commands.eval import EvalOptions, eval_plan
from blackbox_lb.cli.resources import load
from blackbox_lb.jobs.forecast import (
    Forecast,
    Part,
    RequestSettings,
    eval_parts,
    forecast,
    unknown_bias,
)
from blackbox_lb.jobs.runs.names import TOP_LOGPROBS
from blackbox_lb.providers.profile import load_profile

__all__ = ["Demand", "Estimate", "conclusion", "demand", "table"]

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
FIRST_BIAS = 1_000
"""Number of an unknown bias, above those of rivals."""
ASSUMED = """
Tokens are those that the commands forecast: each completion has its limit, and one that two fits share, or a fit and an evaluation, counts twice; those of checks and of programs are not counted.
Measured on one GPU (H100, H200) with vLLM 0.32: 100 to 130 s to start; Qwen2.5-Coder-0.5B 12,500 tokens/s with 5 logprobs (four collectors with 200 requests \
in flight, limited by API servers and 16 cores), SmolLM2-135M 20,000 tokens/s without logprobs.
Assumed of one H100 for a dense model of P parameters in bfloat16: a step of decoding takes the longer of 2 P bytes / 3.35 TB/s and 2 P x requests in flight / \
(.4 x 990 TFLOP/s), with 64 requests of a page and 512 of all pages in flight, and at most 12,500 tokens/s; prompts take 2 P x tokens / (.4 x 990 TFLOP/s); \
weights are read at 1 GB/s; a command takes 10 s beside that. Not counted: the cache of attention, lists of 1,000 logprobs, the wait for the longest answer of \
a stage; and, which makes it faster, prompts that the server has in its cache. None of it was measured for such a model.
"""  # noqa: E501


@dataclass(frozen=True, slots=True)
class Demand:
    """What a page asks for.

    Attributes:
        page: its name.
        commands: their number.
        requests: to the server.
        prompt_tokens: of all requests.
        completion_tokens: that are generated, at most.
    """

    page: str
    commands: int
    requests: int
    prompt_tokens: int
    completion_tokens: int


def demand(page: str, use: Use, place: Place) -> Demand:
    """Write the page's data, and forecast its commands."""
    steps = use.steps(place)
    total = _of_evaluations([step for step in steps if step.words[0] == "eval"])
    for step in steps:
        if step.module == few_labels.__name__:
            total += few_labels.demand(step.words)
        elif step.words[0] == "fit":
            total += _of_fit(step)
    return Demand(page, len(steps), total.requests, total.prompt_tokens, total.completion_tokens)


def _of_fit(step: Step) -> Forecast:
    ended = CliRunner().invoke(blb, [*step.words, "--dry-run", "--json"])
    if ended.exit_code:
        raise click.ClickException(f"{step.name}: {ended.stderr or ended.exception}")
    document = json.loads(ended.stdout)
    return Forecast(**{name: document[name] for name in asdict(Forecast())})


def _of_evaluations(steps: Sequence[Step]) -> Forecast:
    """What all ask for, once. Their biases are not there yet: each file is an unknown one."""
    above = click.Context(blb, **blb.context_settings)
    command = blb.get_command(above, "eval")
    assert command is not None
    files: dict[str, RequestBias] = {}
    parts: list[Part] = []
    for step in steps:
        words = [*step.words[1:], "--quiet"]
        options = EvalOptions(**command.make_context("eval", words, parent=above).params)
        for file in options.biases:
            files.setdefault(file.partition("=")[2], unknown_bias(FIRST_BIAS + len(files)))
        biases = {file: files[file.partition("=")[2]] for file in options.biases}
        task, reward = load(options, learns=False)
        profile = load_profile(options.provider)
        endpoint = options.endpoint or profile.first_endpoint
        listed = options.top_logprobs or TOP_LOGPROBS
        settings = RequestSettings(profile, endpoint, reward.max_tokens, listed, options.seed)
        parts += eval_parts(settings, task, biases, eval_plan(options, task, reward, ()))
    return forecast(settings, parts) if parts else Forecast()


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
    def parameters(self) -> float:
        """Of the model."""
        return self.billions * 1e9

    @property
    def start(self) -> float:
        """Seconds until the server answers."""
        return START + BYTES * self.parameters / READ

    def tokens_a_second(self, in_flight: int) -> float:
        """That are generated for so many requests in flight."""
        reading = BYTES * self.parameters / BANDWIDTH
        computing = 2 * self.parameters * in_flight / OPERATIONS
        return min(in_flight / max(reading, computing), FASTEST)

    def of_server(self, demands: Sequence[Demand], in_flight: int) -> float:
        """Seconds of the server."""
        prompts = sum(demand.prompt_tokens for demand in demands)
        generated = sum(demand.completion_tokens for demand in demands)
        prefill = 2 * self.parameters * prompts / OPERATIONS
        return prefill + generated / self.tokens_a_second(in_flight)

    def of_page(self, demand: Demand) -> float:
        """Seconds of a page that is alone."""
        return COMMAND * demand.commands + self.of_server([demand], IN_FLIGHT)

    def of_pages(self, demands: Sequence[Demand]) -> float:
        """Seconds of all pages: of the longest of them, of a worker's share, or of the server."""
        alone = [self.of_page(demand) for demand in demands]
        return max(
            max(alone, default=0.0),
            sum(alone) / self.workers,
            self.of_server(demands, MOST_IN_FLIGHT),
        )


def table(demands: Sequence[Demand], estimate: Estimate) -> str:
    """The pages with what they ask for and their minutes, and what was assumed."""
    rows = []
    for demand in demands:
        counts = list(asdict(demand).values())[1:]
        minutes = f"{estimate.of_page(demand) / 60:.1f}"
        rows.append([demand.page, *(f"{count:,}" for count in counts), minutes])
    head = ["page", "commands", "requests", "prompt tokens", "generated tokens", "minutes, alone"]
    return f"{markdown(head, rows)}\n{ASSUMED}"


def conclusion(
    demands: Sequence[Demand], estimate: Estimate, other_minutes: float, size: float
) -> str:
    """The minutes of all, beside those that there are (``size``); other_minutes: of what follows
    the pages."""
    start = estimate.start / 60
    pages = estimate.of_pages(demands) / 60
    total = start + pages + other_minutes
    verdict = "fits" if total <= size else "does not fit, and the last pages are for the next call"
    return (
        f"{estimate.billions:g} billion parameters: {total:.1f} minutes ({start:.1f} until vLLM"
        f" answers, {pages:.1f} for the pages, {estimate.workers} at a time, {other_minutes:.1f}"
        f" for what follows). --size {size:g} {verdict}."
    )
