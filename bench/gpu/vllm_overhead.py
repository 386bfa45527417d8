"""What a learned bias costs vLLM: without it, with ``LearnedBias``, and the same bias sent as
``logit_bias``.

``steps`` measures the processor time of single steps in one process, which other programs on the
machine disturb far less than the clock. It wants ``BLB_BIAS_DIR`` set to a folder that holds the
bias; the arms take turns. A bias that depends on the prompt is sent as the numbers of each prompt
or as a map of its own; ``make`` writes such a bias.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import click

from bench.biases import by_words, fixed
from bench.measuring import alternately, markdown, read_rows
from blackbox_lb import Bias, logit_bias, vllm_xargs

__all__ = ["arms_of", "main", "prompts_of", "report", "steps"]

NONE, OURS = "no bias", "LearnedBias"

Fields = Callable[[str], Mapping[str, Any]]
"""Prompt -> what is added to its request."""


def prompts_of(path: Path | None, concurrent: int) -> list[str]:
    """The prompts of the requests that are sent at once: those of a JSONL file, again from its
    beginning where it has fewer.
    """
    if path is None:
        return [f"Number {number}. Once upon a time" for number in range(concurrent)]
    return list(islice(cycle(str(row["prompt"]) for row in read_rows(path)), concurrent))


def arms_of(path: Path, sent: bool) -> dict[str, Fields]:
    """No bias first, then the ways to apply the one in the file."""
    none = {"vllm_xargs": {"blb_bias": "none"}}
    bias = Bias.load(path)
    arms: dict[str, Fields] = {
        NONE: lambda prompt: none,
        OURS: lambda prompt: {"vllm_xargs": vllm_xargs(bias, path.stem, messages=prompt)},
    }
    if sent:  # one with phases cannot be
        name = f"logit_bias, {len(bias.entries):,} entries"

        def as_map(prompt: str) -> Mapping[str, Any]:
            values = logit_bias(bias, messages=prompt)
            return {**none, "logit_bias": {int(token): nats for token, nats in values.items()}}

        arms[name] = as_map
    return arms


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


def _quotient(rates: Sequence[float], reference: Sequence[float]) -> str:
    """The median ratio in the same repeat, with its range."""
    ratios = [rate / base for rate, base in zip(rates, reference, strict=True)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"


def report(title: str, rates: Mapping[str, Sequence[float]], concurrent: int) -> None:
    """Print tokens a second of each arm, their ratios, and which way to send the bias is the
    faster.
    """
    rows = [
        [name, f"{statistics.median(arm):.1f}", _quotient(arm, rates[NONE])]
        for name, arm in rates.items()
    ]
    head = [f"{title}, {concurrent} concurrent", "tokens/s, median", "ratio, median (range)"]
    click.echo(f"{markdown(head, rows)}\n")
    for name, arm in rates.items():
        if name.startswith("logit_bias"):
            click.echo(f"{OURS} to {name}, in the same repeat: {_quotient(rates[OURS], arm)}\n")


@click.group(help=__doc__)
def main() -> None:
    """To measure, and to make a bias for it."""


PROMPTS = click.option(
    "--prompts",
    "prompt_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSONL with `prompt`; for steps short ones are made otherwise.",
)


@main.command("make")
@click.argument("path", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--model", required=True, help="The folder of the model that is served.")
@click.option("--entries", default=300, show_default=True, type=click.IntRange(1))
@click.option("--words", default=200, show_default=True, type=click.IntRange(1))
@PROMPTS
def of_words(path: Path, model: str, entries: int, words: int, prompt_file: Path | None) -> None:
    """Write a bias file whose every value depends on the commonest words of these prompts."""
    from tokenizers import Tokenizer

    # A bias names the tokenizer that it was learned with.
    from blackbox_lb.vocabulary.tokenizer import PROBE_TEXT, fingerprint

    if prompt_file is None:
        raise click.UsageError("make reads its words from --prompts FILE")
    tokenizer = Tokenizer.from_file(str(Path(model, "tokenizer.json")))
    known = fingerprint(tokenizer.encode(PROBE_TEXT, add_special_tokens=False).ids)
    bias = fixed(entries, tokenizer.get_vocab_size(), model=model, tokenizer=known)
    texts = [str(row["prompt"]) for row in read_rows(prompt_file)]
    by_words(bias, texts, words).save(path)


@main.command("steps")
@click.option("--model", required=True, help="A model folder or name, as vLLM takes it.")
@click.option(
    "--bias",
    "path",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="In BLB_BIAS_DIR.",
)
@click.option(
    "--concurrent", multiple=True, default=(1, 64), show_default=True, type=click.IntRange(1)
)
@click.option(
    "--tokens", default=64, show_default=True, type=click.IntRange(4), help="Of each completion."
)
@click.option("--repeats", default=5, show_default=True, type=click.IntRange(1))
@click.option(
    "--sent/--no-sent",
    default=True,
    show_default=True,
    help="Whether to send it as logit_bias as well.",
)
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
    settings = {"temperature": 1.0, "max_tokens": tokens, "ignore_eos": True}
    arms = arms_of(path, sent)
    for number in concurrent:
        prompts = prompts_of(prompt_file, number)
        params: dict[str, list[Any]] = {}
        for name, fields in arms.items():
            added = [fields(prompt) for prompt in prompts]
            params[name] = [
                SamplingParams(
                    **settings,
                    extra_args=request["vllm_xargs"],
                    logit_bias=request.get("logit_bias"),
                )
                for request in added
            ]
        turns = {name: partial(steps, engine, chosen, prompts) for name, chosen in params.items()}
        taken = alternately(turns, repeats, warm_up=1)
        median = {
            name: [number / statistics.median(seconds[2:-1]) for seconds in runs]
            for name, runs in taken.items()
        }
        all_steps = {
            name: [number * tokens / sum(seconds) for seconds in runs]
            for name, runs in taken.items()
        }
        report("the median step", median, number)
        report("all steps, with the arrival of the requests", all_steps, number)


if __name__ == "__main__":
    main()
