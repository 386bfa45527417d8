"""``python -m bench.apply_overhead``: what ``apply`` adds to a request's round trip, as the ratio
to the plain client's.

A server in a process of its own reads each request whole and answers at once, so next to nothing
but the client is measured, on a real connection. The clients take turns, so all meet the same
machine. A turn is some requests, of which the last counts: right after another client's, a request
finds the processor's caches full of that one's memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import openai
from numpy.typing import NDArray

from bench.biases import by_words, fixed, text_of
from bench.measuring import OUT, alternately, markdown, write
from bench.server import serving
from blackbox_lb import apply

__all__ = ["compare", "quotient"]

WARM_UP = 10
"""Rounds that are not counted."""
TURN = 5
"""Requests of a client in a row, the last of which is counted."""


def compare(url: str, entries: int, prompt: int, rounds: int) -> dict[str, NDArray[np.float64]]:
    """Seconds of each counted round trip with a prompt of ``prompt`` bytes, by arm.

    plain; applied; by words (a bias that depends on the prompt); by hand (the plain client with
    ``logit_bias=`` in every call, which is what ``apply`` spares the caller).
    """
    bias = fixed(entries)
    text = text_of(prompt)
    by_hand: Any = {str(token): value for token, value in bias.logit_bias.items()}
    with openai.OpenAI(api_key="k", base_url=url) as client:
        biased = apply(client, bias)
        depending = apply(client, by_words(bias, [text]))
        request: Any = {
            "model": "m",
            "messages": [{"role": "user", "content": text}],
            "temperature": 1,
        }
        arms: dict[str, Callable[[], object]] = {
            "plain": lambda: client.chat.completions.create(**request),
            "applied": lambda: biased.chat.completions.create(**request),
            "by words": lambda: depending.chat.completions.create(**request),
            "by hand": lambda: client.chat.completions.create(**request, logit_bias=by_hand),
        }
        turns = {name: partial(_last_of_a_turn, send) for name, send in arms.items()}
        taken = alternately(turns, rounds, WARM_UP)
    return {name: np.array(seconds) for name, seconds in taken.items()}


def _last_of_a_turn(send: Callable[[], object]) -> float:
    """Seconds of the last request of a turn."""
    for _ in range(TURN - 1):
        send()
    start = time.perf_counter()
    send()
    return time.perf_counter() - start


def quotient(
    arm: NDArray[np.float64], plain: NDArray[np.float64], draws: int = 1000
) -> tuple[float, float, float]:
    """Ratio of medians, and the 2.5 and 97.5 % quantiles of it when rounds are drawn anew with
    replacement.
    """
    rng = np.random.default_rng(2)
    rows = rng.integers(0, len(plain), (draws, len(plain)))
    resampled = np.median(arm[rows], axis=1) / np.median(plain[rows], axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return float(np.median(arm) / np.median(plain)), float(low), float(high)


@click.command()
@click.option("--entries", default=300, show_default=True, help="Entries of the bias.")
@click.option(
    "--rounds", default=500, show_default=True, help="Counted requests of each arm and size."
)
@click.option(
    "--prompt",
    "prompts",
    multiple=True,
    default=(100, 10_000, 100_000),
    show_default=True,
    help="Bytes.",
)
@OUT
def main(entries: int, rounds: int, prompts: tuple[int, ...], out: Path | None) -> None:
    """Ratios of round trips at ENTRIES entries, per size of the prompt."""
    table = []
    ratios = {}
    with serving(1, 1) as server:
        url = f"{server}/v1"
        for prompt in prompts:
            taken = compare(url, entries, prompt, rounds)
            plain = taken["plain"]
            applied = round(quotient(taken["applied"], plain)[0], 4)
            ratios[f"apply/round trip over plain, {prompt:,} bytes"] = applied
            cells = [f"{prompt:,}", f"{np.median(plain) * 1e3:.3f}"]
            for name in ("applied", "by words", "by hand"):
                point, low, high = quotient(taken[name], plain)
                cells.append(f"{point:.3f} ({low:.3f} to {high:.3f})")
            more = np.median(taken["by words"]) - np.median(taken["applied"])
            table.append([*cells, f"{more * 1e6:.0f}"])
    click.echo(
        f"openai {openai.__version__}, {entries} entries, {rounds:,} counted requests an arm; ratio"
        " of medians (95 %)\n"
    )
    head = ["prompt, bytes", "plain, ms", "applied / plain", "by words / plain", "by hand / plain"]
    click.echo(markdown([*head, "by words - applied, us"], table))
    write(out, ratios)


if __name__ == "__main__":
    main()
