"""``python -m bench.studies.compiling local | exact``: the share of a learned bias's gain that is
left under a provider's limit.

Three ways to send K entries: compiled from the full vector, refitted under the limit, the K largest
|delta| after mean-centring.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import click

from bench.studies import local as on_engine
from bench.studies.compiled import Learning, Row, rows
from bench.studies.compiling_exact import Plan, measure
from bench.studies.compiling_report import (
    GOALS,
    Measured,
    Series,
    draw_panels,
    exact_series,
    exact_text,
    local_series,
    local_text,
    save,
)
from bench.studies.coupled import Drawn, draw, gain_kept
from bench.studies.pooling import Pooled, pooled
from blackbox_lb import Task, Trials
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.training import scored

__all__ = ["Samples", "measure_local"]

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs"


@dataclass(frozen=True, slots=True)
class Samples:
    """Completions a test prompt: of base and full vector, of the limits that the goals are about,
    and of the others.
    """

    others: int
    goals: int
    base: int

    def of(self, row: Row) -> int:
        """How many of this row there should be."""
        if row.entries is None:
            return self.base
        return self.goals if row.entries in {entries for entries, _, _ in GOALS} else self.others


@click.group()
def main() -> None:
    """The share of a learned bias's gain that is left under a provider's limit."""


@main.command()
@click.option("--quick", is_flag=True, help="One model of 1,000 tokens: a minute.")
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1))
@click.option("--plot", default=ROOT / "docs" / "compiling.png", type=click.Path(path_type=Path))
@click.option("--no-plot", is_flag=True, help="Tables only; needs no matplotlib.")
def exact(quick: bool, processes: int, plot: Path, no_plot: bool) -> None:
    """Exact rewards on models of up to 2,000 tokens. Writes runs/compiling/exact.json and the
    plot.
    """
    cases = measure(Plan(vocabularies=(1000,), seeds=(1,)) if quick else Plan(), processes)
    click.echo(exact_text(cases))
    _finish(
        "exact",
        "exact models, unseen prompts (mean, range)",
        exact_series(cases),
        None if no_plot else plot,
    )


@main.command()
@click.option(
    "--samples",
    default=1,
    show_default=True,
    type=click.IntRange(1),
    help="Completions a prompt and bias.",
)
@click.option(
    "--goal-samples",
    default=4,
    show_default=True,
    type=click.IntRange(1),
    help="The same at 30 and 300 entries.",
)
@click.option(
    "--base-samples",
    default=8,
    show_default=True,
    type=click.IntRange(1),
    help="Of base and full vector.",
)
@click.option(
    "--no-draw", is_flag=True, help="Judge by what the store holds, and ask the model for nothing."
)
@click.option("--limit", type=click.IntRange(1), help="Only this many prompts of each split.")
@click.option("--tau", default=0.5, show_default=True, help="Strength of the learned bias.")
@click.option("--l2", default=5.0, show_default=True, help="Its penalty.")
@click.option(
    "--out",
    default=RUNS / "frontier",
    show_default="runs/frontier",
    type=click.Path(path_type=Path),
)
@click.option("--plot", default=ROOT / "docs" / "compiling.png", type=click.Path(path_type=Path))
@click.option("--no-plot", is_flag=True, help="Table only; needs no matplotlib.")
def local(
    samples: int,
    goal_samples: int,
    base_samples: int,
    no_draw: bool,
    limit: int | None,
    tau: float,
    l2: float,
    out: Path,
    plot: Path,
    no_plot: bool,
) -> None:
    """On SmolLM2-135M-Instruct, embedded. Completions are added to those in --out;
    runs/compiling/local.json holds the result.
    """
    plan, learning = on_engine.Plan(limit=limit), Learning(tau, l2)
    found, pool, label = asyncio.run(
        _local(
            plan, learning, None if no_draw else Samples(samples, goal_samples, base_samples), out
        )
    )
    click.echo(local_text(found, pool, label))
    title = "capitals, SmolLM2-135M-Instruct (95 % intervals)"
    _finish("local", title, local_series(found), None if no_plot else plot)


async def _local(
    plan: on_engine.Plan, learning: Learning, samples: Samples | None, out: Path
) -> tuple[list[Measured], Pooled, str]:
    async with on_engine.engine(plan, out) as (trials, task):
        found, pool = await measure_local(trials, task, plan, learning, samples)
        return found, pool, trials.reward.label


async def measure_local(
    trials: Trials, task: Task, plan: on_engine.Plan, learning: Learning, samples: Samples | None
) -> tuple[list[Measured], Pooled]:
    """Learn on the training prompts, then judge every row on the test prompts. Asks the model only
    for what is not in the store.
    """
    examples, test = task.train[: plan.limit], task.test[: plan.limit]
    keys = await trials.collect("training", examples, trials.draw(SAMPLED), plan.samples)
    rollouts, _ = scored(trials.store, examples, keys, trials.reward, trials.session.end_tokens)
    tail = NextToken.of(rollouts)
    size = trials.tokenizer.vocabulary_size or int(tail.token_ids.max()) + 1
    planned = rows(rollouts, tail, size, learning)
    judged: dict[int, Drawn] = {}
    for number in sorted(
        range(len(planned)), key=lambda number: -samples.of(planned[number]) if samples else 0
    ):
        wanted = samples.of(planned[number]) if samples else None
        judged[number] = await draw(trials, planned[number], test, wanted, tail)
    drawn = [judged[number] for number in range(len(planned))]
    pool = pooled(trials, planned, test, tail)
    direct = [gain_kept(each, drawn[1], drawn[0]) for each in drawn]
    found = [Measured(*each) for each in zip(planned, drawn, direct, pool.shares, strict=True)]
    return found, pool


def _finish(name: str, title: str, series: Series, plot: Path | None) -> None:
    """Keep the series beside that of the other command, and draw all there are."""
    save(title, series, RUNS / "compiling" / f"{name}.json")
    if plot is not None:
        paths = [RUNS / "compiling" / f"{each}.json" for each in ("local", "exact")]
        draw_panels([path for path in paths if path.exists()], plot)


if __name__ == "__main__":
    main()
