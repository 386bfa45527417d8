"""``python -m bench.studies.prompt_dependent_scale``: time and memory of learning a bias that
depends on the prompt.

By default 100,000 prompts with 40 of 4,096 features each, one position a prompt with 20 listed
tokens of 300 that may be biased. The dense product of prompts and tokens would take 240 MB of it,
that of prompts and features 3.3 GB; neither is made.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click
import numpy as np
from scipy import sparse

from bench.measuring import OUT, apart, row, write
from blackbox_lb.estimate.projection.prompt_dependent import PromptPositions, fit_prompts

__all__ = ["fitted", "problem"]

LISTED = 20


def problem(
    prompts: int, features: int, tokens: int, of_each: int
) -> tuple[PromptPositions, sparse.csr_array]:
    """Prompts whose answer depends on their first feature: the positions, and the table of
    features.
    """
    rng = np.random.default_rng(0)
    columns = rng.integers(0, features, (prompts, of_each))
    rows = np.repeat(np.arange(prompts), of_each)
    table = sparse.csr_array(
        (np.full(columns.size, of_each**-0.5), (rows, columns.ravel())), shape=(prompts, features)
    )
    listed = np.argsort(rng.random((prompts, tokens)).astype(np.float32), axis=1)[:, :LISTED]
    answer = columns[:, 0] % tokens
    listed[:, 0] = np.where((listed == answer[:, None]).any(axis=1), listed[:, 0], answer)
    mass = rng.dirichlet(np.ones(LISTED + 1), prompts)[:, :LISTED]
    at = (np.repeat(np.arange(prompts), LISTED), listed.ravel())
    masses = sparse.csr_array((mass.ravel(), at), shape=(prompts, tokens))
    counts = sparse.csr_array(
        (np.ones(prompts), (np.arange(prompts), answer)), shape=(prompts, tokens)
    )
    tails = np.maximum(1 - np.asarray(masses.sum(axis=1)), 0) / 2
    unigram = np.full(tokens, 0.5 / tokens)
    ids = np.arange(tokens)
    return (
        PromptPositions(ids, masses, tails, unigram, np.arange(prompts), np.ones(prompts), counts),
        table,
    )


def fitted(
    prompts: int, features: int, tokens: int, of_each: int, iterations: int
) -> tuple[float, int]:
    """Gain in nats a position, and iterations."""
    positions, table = problem(prompts, features, tokens, of_each)
    fit = fit_prompts(positions, table, l2=1.0, slope_l2=1.0, max_iterations=iterations)
    return fit.gain, fit.iterations


@click.command()
@click.option("--prompts", default=100_000, show_default=True)
@click.option("--features", default=4_096, show_default=True)
@click.option("--tokens", default=300, show_default=True)
@click.option("--of-each", default=40, show_default=True, help="Features of a prompt.")
@click.option("--iterations", default=100, show_default=True, help="Most of them.")
@OUT
def main(
    prompts: int, features: int, tokens: int, of_each: int, iterations: int, out: Path | None
) -> None:
    """One fit in a process of its own."""
    found = apart(partial(fitted, prompts, features, tokens, of_each, iterations))
    gain, used = found.value
    click.echo(
        f"{prompts:,} prompts x {features:,} features x {tokens} tokens: {found.seconds:.0f} s"
        f" ({found.cpu:.0f} s of processor), {used} iterations, peak memory {found.peak / 1e6:,.0f}"
        f" MB, gain {gain:.3f} nats a position"
    )
    rows = [
        row("fit", found.seconds, "s"),
        row("processor", found.cpu, "s"),
        row("peak memory", found.peak, "bytes"),
    ]
    write(out, rows, {})


if __name__ == "__main__":
    main()
