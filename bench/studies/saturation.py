"""``python -m bench.studies.saturation --base-url URL``: the share of a real engine's tokens a
second that the collector gets.

Bare httpx2 loops with several fixed numbers of requests in flight tell what the engine can do at
most. The collector, with all that it stores, starts from its profile's number and has to find a
good one itself, which it does before the clock runs (``--warm-up``). They take turns; all prompts
differ.
"""

from __future__ import annotations

import asyncio
import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click
import httpx2

from bench.measuring import OUT, REPEATS, alternately, markdown, ratio, row, write
from blackbox_lb import Prompt, RolloutStore, Sampling, connect
from blackbox_lb.api.limits.concurrency import Pace
from blackbox_lb.rollouts.collect import collect
from blackbox_lb.types import Completion, Draw

__all__ = ["main", "rate_of"]

TOP = 20
SKIPPED = 5
"""The first and the last fifth of the completions do not count: there the engine is not full."""
numbers = itertools.count(int(time.time()) * 1000)
"""No prompt is asked twice, not even by a second run: prefix caches would answer."""


def rate_of(ended: Sequence[tuple[float, int]]) -> float:
    """Tokens a second between the first fifth and the last of (seconds, tokens) of completions, by
    when they ended.
    """
    skipped = len(ended) // SKIPPED
    middle = sorted(ended)[skipped : len(ended) - skipped]
    return sum(tokens for _, tokens in middle[1:]) / (middle[-1][0] - middle[0][0])


def prompts(count: int) -> list[str]:
    """So many new ones."""
    return [f"Write on the number {next(numbers)}." for _ in range(count)]


async def bare(base_url: str, model: str, tokens: int, requests: int, in_flight: int) -> float:
    """Tokens a second of a loop that keeps nothing."""
    ended: list[tuple[float, int]] = []
    waiting = iter(prompts(requests))
    async with httpx2.AsyncClient(base_url=base_url, timeout=600, trust_env=False) as client:

        async def work() -> None:
            for prompt in waiting:
                body = {
                    "model": model,
                    "messages": [{"role": "user", "content": prompt}],
                    "max_tokens": tokens,
                }
                answer = await client.post(
                    "/v1/chat/completions",
                    json={**body, "temperature": 1.0, "logprobs": True, "top_logprobs": TOP},
                )
                answer.raise_for_status()
                ended.append((time.monotonic(), answer.json()["usage"]["completion_tokens"]))

        await asyncio.gather(*(work() for _ in range(in_flight)))
    return rate_of(ended)


async def ours(
    provider: str, base_url: str, pace: Pace, tokens: int, requests: int
) -> tuple[float, int]:
    """Tokens a second of this package's collector, and how many requests it had in flight in the
    end; ``pace`` goes on.
    """
    ended: list[tuple[float, int]] = []

    def watch(completion: Completion) -> None:
        ended.append((time.monotonic(), len(completion.token_ids)))

    with (
        tempfile.TemporaryDirectory() as folder,
        RolloutStore(Path(folder, "rollouts.db")) as store,
    ):
        async with connect(provider, base_url=f"{base_url}/v1", endpoint="chat") as session:
            asked = [Prompt.user(each) for each in prompts(requests)]
            sampling = Sampling(max_tokens=tokens, top_logprobs=TOP)
            tokenizer = await session.tokenizer()
            await collect(
                session, store, tokenizer, asked, Draw(sampling), samples=1, watch=watch, pace=pace
            )
            return rate_of(ended), pace.level


@click.command(help=__doc__)
@click.option("--provider", default="vllm", show_default=True)
@click.option(
    "--base-url",
    default="http://127.0.0.1:8000",
    show_default=True,
    help="Of the server, without /v1.",
)
@click.option(
    "--tokens",
    default=64,
    show_default=True,
    type=click.IntRange(1),
    help="Of a completion, at most.",
)
@click.option(
    "--requests", default=512, show_default=True, type=click.IntRange(10), help="In each turn."
)
@click.option(
    "--in-flight",
    multiple=True,
    type=int,
    default=(8, 32, 64, 128),
    show_default=True,
    help="Of bare loops.",
)
@click.option(
    "--warm-up",
    default=512,
    show_default=True,
    type=click.IntRange(10),
    help="Requests before all turns.",
)
@REPEATS
@OUT
def main(
    provider: str,
    base_url: str,
    tokens: int,
    requests: int,
    in_flight: tuple[int, ...],
    warm_up: int,
    repeats: int,
    out: Path | None,
) -> None:
    """See the module."""
    model = httpx2.get(f"{base_url}/v1/models", trust_env=False).json()["data"][0]["id"]

    def loop(number: int) -> tuple[float, int]:
        return asyncio.run(bare(base_url, model, tokens, requests, number)), number

    turns: dict[str, Callable[[], tuple[float, int]]] = {
        f"bare httpx2, {number} in flight": partial(loop, number) for number in in_flight
    }
    pace = Pace()
    turns["blb"] = lambda: asyncio.run(ours(provider, base_url, pace, tokens, requests))
    asyncio.run(ours(provider, base_url, pace, tokens, warm_up))
    found = alternately(turns, repeats)
    rates = {name: statistics.median(rate for rate, _ in each) for name, each in found.items()}
    saturated = max(rate for name, rate in rates.items() if name != "blb")
    lines = [
        [
            name,
            f"{rate:.0f}",
            f"{rate / saturated:.3f}",
            ", ".join(str(level) for _, level in found[name]),
        ]
        for name, rate in rates.items()
    ]
    click.echo(
        markdown(["client", "tokens/s", "of the saturated rate", "in flight at the end"], lines)
    )
    rows = [
        row(name, rate, "tokens/s", requests=requests, tokens=tokens)
        for name, rate in rates.items()
    ]
    write(out, rows, {"saturation/blb over the best bare loop": ratio(rates["blb"], saturated)})


if __name__ == "__main__":
    main()
