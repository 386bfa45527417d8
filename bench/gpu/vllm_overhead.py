"""What a learned bias costs vLLM: without it, with ``LearnedBias``, and the same bias sent as
``logit_bias``.

``server`` measures tokens a second of a running server, ``steps`` the processor time of single
steps in one process, which other programs on the machine disturb far less. Both want
``BLB_BIAS_DIR`` set to a folder that holds the bias; the arms take turns. A bias that
depends on the prompt is sent as the numbers of each prompt or as a map of its own; ``make`` writes
such a bias.
"""

from __future__ import annotations

import json
import os
import statistics
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click

from bench.biases import by_words, fixed
from blackbox_lb import Bias, logit_bias, vllm_xargs

__all__ = [
    *("Arm", "arms_of", "bias_by_words", "main", "markdown", "measure", "prompts_of", "rate"),
    *("report", "steps"),
]

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
    """One way to ask. fields: what is added to the request of a prompt."""

    name: str
    fields: Callable[[str], Mapping[str, Any]]


def prompts_of(path: Path | None, concurrent: int) -> list[str]:
    """The prompts of the requests that are sent at once: those of a JSONL file, again from its
    beginning where it has fewer.
    """
    if path is None:
        return [f"Number {number}. Once upon a time" for number in range(concurrent)]
    lines = path.read_text(encoding="utf-8").splitlines()
    return list(islice(cycle(str(json.loads(line)["prompt"]) for line in lines), concurrent))


def rate(base_url: str, model: str, arm: Arm, prompts: Sequence[str], tokens: int) -> float:
    """Generated tokens a second of one request a prompt sent at once, from the first one sent to
    the last one answered.
    """
    bodies = [
        json.dumps(
            {
                "model": model,
                "prompt": prompt,
                "max_tokens": tokens,
                **NEUTRAL,
                **arm.fields(prompt),
            }
        ).encode()
        for prompt in prompts
    ]
    with ThreadPoolExecutor(len(prompts)) as pool:
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
    base_url: str,
    model: str,
    arms: Sequence[Arm],
    prompts: Sequence[str],
    tokens: int,
    repeats: int,
) -> dict[str, list[float]]:
    """Tokens a second of each arm in each repeat. The arms take turns, in an order that rotates,
    after one unmeasured turn.
    """
    rates: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for arm in arms:
        rate(base_url, model, arm, prompts, min(tokens, 8))
    for repeat in range(repeats):
        for arm in (*arms[repeat % len(arms) :], *arms[: repeat % len(arms)]):
            rates[arm.name].append(rate(base_url, model, arm, prompts, tokens))
            click.echo(
                f"  {len(prompts)} concurrent, {arm.name}: {rates[arm.name][-1]:.1f} tokens/s",
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


def steps(engine: Any, params: Sequence[Any], prompts: Sequence[str]) -> list[float]:
    """Processor seconds of each step of one request a prompt, from their arrival to the last
    token; ``params`` are the sampling parameters of each.
    """
    seconds = []
    started = time.process_time()
    for number, (prompt, chosen) in enumerate(zip(prompts, params, strict=True)):
        engine.add_request(f"{time.monotonic_ns()}-{number}", prompt, chosen)
    while engine.has_unfinished_requests():
        engine.step()
        ended = time.process_time()
        seconds.append(ended - started)
        started = ended
    return seconds


def arms_of(path: Path, sent: bool) -> list[Arm]:
    """No bias first, then the ways to apply the one in the file."""
    none = {"vllm_xargs": {"blb_bias": "none"}}
    bias = Bias.load(path)

    def by_name(prompt: str) -> Mapping[str, Any]:
        return {"vllm_xargs": vllm_xargs(bias, path.stem, messages=prompt)}

    def as_map(prompt: str) -> Mapping[str, Any]:
        values = logit_bias(bias, messages=prompt)
        return {**none, "logit_bias": {str(token): value for token, value in values.items()}}

    arms = [Arm("no bias", lambda prompt: none), Arm("LearnedBias", by_name)]
    if sent:  # one with phases cannot be
        arms.append(Arm(f"logit_bias, {len(bias.entries):,} entries", as_map))
    return arms


def bias_by_words(model: str, prompts: Sequence[str], entries: int, words: int) -> Bias:
    """A bias whose every value depends on the words of the prompt: small random nats for the
    commonest ``words``. model: a folder with ``tokenizer.json``.
    """
    from tokenizers import Tokenizer

    # A bias names the tokenizer that it was learned with.
    from blackbox_lb.vocabulary.tokenizer import PROBE_TEXT, fingerprint

    tokenizer = Tokenizer.from_file(str(Path(model, "tokenizer.json")))
    known = fingerprint(tokenizer.encode(PROBE_TEXT, add_special_tokens=False).ids)
    bias = fixed(entries, tokenizer.get_vocab_size(), model=model, tokenizer=known)
    return by_words(bias, prompts, words)


def report(rates: Mapping[str, Sequence[float]], concurrent: int) -> None:
    """Print the table, whether the goal is met, and which way to send the bias is the faster."""
    ours = statistics.median(
        a / b for a, b in zip(rates["LearnedBias"], rates["no bias"], strict=True)
    )
    click.echo(markdown(rates, concurrent))
    click.echo(
        f"\nLearnedBias at {concurrent}: {ours:.3f} of no bias, goal {GOAL}:"
        f" {'MET' if ours >= GOAL else 'NOT MET'}\n"
    )
    for name in rates:
        if name.startswith("logit_bias"):
            ratios = [
                by / as_map for by, as_map in zip(rates["LearnedBias"], rates[name], strict=True)
            ]
            click.echo(
                f"LearnedBias to {name}, in the same repeat: {statistics.median(ratios):.3f}"
                f" ({min(ratios):.3f} to {max(ratios):.3f})\n"
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


PROMPTS = click.option(
    "--prompts",
    "prompt_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSONL with `prompt`; otherwise short ones are made.",
)


@main.command("make")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", required=True, help="The folder of the model that is served.")
@click.option("--entries", default=300, show_default=True, type=click.IntRange(1))
@click.option("--words", default=200, show_default=True, type=click.IntRange(1))
@click.option(
    "--prompts",
    "prompt_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
def of_words(path: Path, model: str, entries: int, words: int, prompt_file: Path) -> None:
    """Write a bias file that depends on the words of these prompts."""
    prompts = prompts_of(prompt_file, len(prompt_file.read_text(encoding="utf-8").splitlines()))
    bias_by_words(model, prompts, entries, words).save(path)


@main.command("server")
@click.option("--base-url", required=True, help="Of the server, with /v1.")
@BIAS
@CONCURRENT
@TOKENS
@REPEATS
@SENT
@PROMPTS
def of_server(
    base_url: str,
    path: Path,
    concurrent: tuple[int, ...],
    tokens: int,
    repeats: int,
    sent: bool,
    prompt_file: Path | None,
) -> None:
    """Tokens a second of a running server, by the clock."""
    with urllib.request.urlopen(f"{base_url}/models", timeout=60) as answer:
        model = json.load(answer)["data"][0]["id"]
    arms = arms_of(path, sent)
    for number in concurrent:
        prompts = prompts_of(prompt_file, number)
        report(measure(base_url, model, arms, prompts, tokens, repeats), number)


@main.command("steps")
@click.option("--model", required=True, help="A model folder or name, as vLLM takes it.")
@BIAS
@CONCURRENT
@TOKENS
@REPEATS
@SENT
@PROMPTS
def of_steps(
    model: str,
    path: Path,
    concurrent: tuple[int, ...],
    tokens: int,
    repeats: int,
    sent: bool,
    prompt_file: Path | None,
) -> None:
    """Tokens a second of processor time, from the median step and from all steps with the arrival
    of the requests; run by the Python that has vLLM, with OMP_NUM_THREADS=1.
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
    arms = arms_of(path, sent)
    for number in concurrent:
        prompts = prompts_of(prompt_file, number)
        params: dict[str, list[Any]] = {arm.name: [] for arm in arms}
        for arm in arms:
            for prompt in prompts:
                fields = arm.fields(prompt)
                values = {int(token): nats for token, nats in fields.get("logit_bias", {}).items()}
                params[arm.name].append(
                    SamplingParams(
                        **fixed, extra_args=fields["vllm_xargs"], logit_bias=values or None
                    )
                )
        median: dict[str, list[float]] = {name: [] for name in params}
        whole: dict[str, list[float]] = {name: [] for name in params}
        for repeat in range(-1, repeats):
            for name in list(params)[:: 1 if repeat % 2 else -1]:
                seconds = steps(engine, params[name], prompts)
                if repeat >= 0:
                    median[name].append(number / statistics.median(seconds[2:-1]))
                    whole[name].append(number * tokens / sum(seconds))
        click.echo("The median step:\n")
        report(median, number)
        click.echo("All steps, with the arrival of the requests:\n")
        report(whole, number)


if __name__ == "__main__":
    main()
