"""What a learned vector costs vLLM: without it, with ``LearnedBias``, and the same vector sent as
``logit_bias``.

``server`` measures tokens a second of a running server, ``steps`` the processor time of single
steps in one process, which other programs on the machine disturb far less. Both want
``BLB_BIAS_DIR`` set to a folder that holds the bias; the arms take turns.
"""

from __future__ import annotations

import json
import os
import statistics
import time
import urllib.request
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from blackbox_lb.bias.document import Bias

__all__ = ["Arm", "arms_of", "main", "markdown", "measure", "rate", "report", "steps"]

GOAL = 0.97
NEUTRAL = {
    "temperature": 1,
    "top_p": 1,
    "top_k": 0,
    "min_p": 0,
    "repetition_penalty": 1,
    "ignore_eos": True,
}


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to ask: what is added to each request."""

    name: str
    fields: Mapping[str, Any]


def rate(base_url: str, model: str, arm: Arm, concurrent: int, tokens: int) -> float:
    """Generated tokens a second of ``concurrent`` requests sent at once, from the first one sent to
    the last one answered.
    """
    bodies = [
        json.dumps(
            {
                "model": model,
                "prompt": f"Number {i}. Once upon a time",
                "max_tokens": tokens,
                **NEUTRAL,
                **arm.fields,
            }
        ).encode()
        for i in range(concurrent)
    ]
    with ThreadPoolExecutor(concurrent) as pool:
        started = time.perf_counter()
        made = sum(pool.map(partial(_complete, base_url), bodies))
        return made / (time.perf_counter() - started)


def _complete(base_url: str, body: bytes) -> int:
    request = urllib.request.Request(
        f"{base_url}/completions", body, {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return int(json.load(answer)["usage"]["completion_tokens"])


def measure(
    base_url: str, model: str, arms: Sequence[Arm], concurrent: int, tokens: int, repeats: int
) -> dict[str, list[float]]:
    """Tokens a second of each arm in each repeat. The arms take turns, in an order that rotates,
    after one unmeasured turn.
    """
    rates: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for arm in arms:
        rate(base_url, model, arm, concurrent, min(tokens, 8))
    for repeat in range(repeats):
        for arm in (*arms[repeat % len(arms) :], *arms[: repeat % len(arms)]):
            rates[arm.name].append(rate(base_url, model, arm, concurrent, tokens))
            click.echo(
                f"  {concurrent} concurrent, {arm.name}: {rates[arm.name][-1]:.1f} tokens/s",
                err=True,
            )
    return rates


def markdown(rates: Mapping[str, Sequence[float]], concurrent: int) -> str:
    """One row an arm: median tokens a second, and the median and range of its ratio to the first
    arm in the same repeat.
    """
    base = next(iter(rates.values()))
    rows = [
        f"| {concurrent} concurrent | tokens/s, median | ratio, median | range |",
        "| --- | --- | --- | --- |",
    ]
    for name, each in rates.items():
        ratios = [ours / plain for ours, plain in zip(each, base, strict=True)]
        row = (
            f"{statistics.median(each):.1f} | {statistics.median(ratios):.3f} | {min(ratios):.3f}"
            f" to {max(ratios):.3f}"
        )
        rows.append(f"| {name} | {row} |")
    return "\n".join(rows)


def steps(engine: Any, params: Any, concurrent: int) -> list[float]:
    """Processor seconds of each decoding step of a full batch: not the first, which reads the
    prompts, nor the last.
    """
    for i in range(concurrent):
        engine.add_request(f"{time.monotonic_ns()}-{i}", f"Number {i}. Once upon a time", params)
    taken = []
    while engine.has_unfinished_requests():
        started = time.process_time()
        engine.step()
        taken.append(time.process_time() - started)
    return taken[2:-1]


def arms_of(path: Path, sent: bool) -> list[Arm]:
    """No bias first, then the ways to apply the one in the file."""
    none = {"vllm_xargs": {"blb_bias": "none"}}
    arms = [Arm("no bias", none), Arm("LearnedBias", {"vllm_xargs": {"blb_bias": path.stem}})]
    if not sent:  # one with phases cannot be
        return arms
    field = {str(token): value for token, value in Bias.load(path).logit_bias.items()}
    return [*arms, Arm(f"logit_bias, {len(field):,} entries", {**none, "logit_bias": field})]


def report(rates: Mapping[str, Sequence[float]], concurrent: int) -> None:
    """Print the table and whether the goal is met."""
    ours = statistics.median(
        a / b for a, b in zip(rates["LearnedBias"], rates["no bias"], strict=True)
    )
    click.echo(markdown(rates, concurrent))
    click.echo(
        f"\nLearnedBias at {concurrent}: {ours:.3f} of no bias, goal {GOAL}:"
        f" {'MET' if ours >= GOAL else 'NOT MET'}\n"
    )


@click.group(help=__doc__)
def main() -> None:
    """The two ways to measure."""


BIAS = click.option(
    "--bias",
    "path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="In BLB_BIAS_DIR.",
)
CONCURRENT = click.option(
    "--concurrent", multiple=True, default=(1, 64), show_default=True, type=click.IntRange(1)
)
TOKENS = click.option(
    "--tokens", default=64, show_default=True, type=click.IntRange(4), help="Of each completion."
)
REPEATS = click.option("--repeats", default=5, show_default=True, type=click.IntRange(1))
SENT = click.option(
    "--sent/--no-sent",
    default=True,
    show_default=True,
    help="Whether to send it as logit_bias as well.",
)


@main.command("server")
@click.option("--base-url", required=True, help="Of the server, with /v1.")
@BIAS
@CONCURRENT
@TOKENS
@REPEATS
@SENT
def of_server(
    base_url: str, path: Path, concurrent: tuple[int, ...], tokens: int, repeats: int, sent: bool
) -> None:
    """Tokens a second of a running server, by the clock."""
    with urllib.request.urlopen(f"{base_url}/models", timeout=60) as answer:
        model = json.load(answer)["data"][0]["id"]
    for each in concurrent:
        report(measure(base_url, model, arms_of(path, sent), each, tokens, repeats), each)


@main.command("steps")
@click.option("--model", required=True, help="A model folder or name, as vLLM takes it.")
@BIAS
@CONCURRENT
@TOKENS
@REPEATS
@SENT
def of_steps(
    model: str, path: Path, concurrent: tuple[int, ...], tokens: int, repeats: int, sent: bool
) -> None:
    """Tokens a second of processor time, from the median step; run by the Python that has vLLM,
    with OMP_NUM_THREADS=1.
    """
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams

    engine = LLM(
        model,
        max_model_len=1024,
        max_num_seqs=max(concurrent),
        enforce_eager=True,
        distributed_executor_backend="uni",
    ).llm_engine
    fixed = {"temperature": 1.0, "max_tokens": tokens, "ignore_eos": True}
    params = {}
    for arm in arms_of(path, sent):
        field = {int(token): value for token, value in arm.fields.get("logit_bias", {}).items()}
        params[arm.name] = SamplingParams(
            **fixed, extra_args=arm.fields["vllm_xargs"], logit_bias=field or None
        )
    for each in concurrent:
        rates: dict[str, list[float]] = {name: [] for name in params}
        for repeat in range(-1, repeats):
            for name in list(params)[:: 1 if repeat % 2 else -1]:
                rate = each / statistics.median(steps(engine, params[name], each))
                if repeat >= 0:
                    rates[name].append(rate)
        report(rates, each)


if __name__ == "__main__":
    main()
