"""``python -m bench.studies.frontier exact | local``: reward against KL to the base for every
estimator, as a table and a plot.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from pathlib import Path

import click

from bench.curves import Point
from bench.estimators import ESTIMATORS
from bench.exact import PEER, PEERS, SUBJECT, Plan, compare, curve, measure, table
from bench.problems import PROBLEMS, Problem
from bench.studies import local as on_engine
from bench.studies.plot import Panel, draw

ROOT = Path(__file__).resolve().parents[2]
RUNS = ROOT / "runs" / "frontier"
QUICK = Plan(rollouts=(100, 500), draws=2, completions=800, estimators=(SUBJECT, PEER))
LEAST_FIFTHS, MOST_KL = 1.0, 0.25


@click.group()
def main() -> None:
    """Reward against KL to the base for every estimator at equal rollouts."""


@main.command()
@click.option("--quick", is_flag=True, help="Two draws, two numbers of rollouts: a minute.")
@click.option(
    "--problem",
    "problems",
    multiple=True,
    type=click.Choice(list(PROBLEMS)),
    help="Only these; repeatable.",
)
@click.option("--model", default=1, show_default=True, help="Number of the exact model.")
@click.option("--processes", default=2, show_default=True, type=click.IntRange(1))
@click.option("--out", default=ROOT / "docs", show_default="docs", type=click.Path(path_type=Path))
@click.option("--no-plot", is_flag=True, help="Tables only; needs no matplotlib.")
def exact(
    quick: bool, problems: tuple[str, ...], model: int, processes: int, out: Path, no_plot: bool
) -> None:
    """On exact models. Writes frontier.md and frontier.png into --out, and every point into
    runs/frontier/exact.json.
    """
    names = problems or tuple(PROBLEMS)
    plan = Plan(**{**asdict(QUICK if quick else Plan()), "model": model})
    found = measure(names, plan, processes)
    out.mkdir(parents=True, exist_ok=True)
    document = {
        name: {"base": base, "points": [asdict(point) for point in points]}
        for name, (base, points) in found.items()
    }
    RUNS.mkdir(parents=True, exist_ok=True)
    (RUNS / "exact.json").write_text(json.dumps(document) + "\n", encoding="utf-8")
    text = "\n\n".join(_section(PROBLEMS[name], *found[name]) for name in names)
    click.echo(text)
    (out / "frontier.md").write_text(
        f"# Reward against KL on exact models\n\n{_method(plan)}\n\n{text}\n", encoding="utf-8"
    )
    if not no_plot:
        few, many = _shown(plan)
        panels = [_panel(PROBLEMS[name], *found[name], few, many) for name in names]
        draw(panels, (f"N = {many} rollouts", f"N = {few}"), out / "frontier.png")


@main.command()
@click.option(
    "--samples",
    default=10,
    show_default=True,
    help="Completions a training prompt, a multiple of 5.",
)
@click.option(
    "--test-samples", default=4, show_default=True, help="Completions a test prompt and bias."
)
@click.option("--limit", type=click.IntRange(1), help="Only this many prompts of each split.")
@click.option(
    "--entries",
    type=click.IntRange(1),
    help="Cut every bias to this many tokens. [default: as learned]",
)
@click.option("--out", default=RUNS, show_default="runs/frontier", type=click.Path(path_type=Path))
@click.option(
    "--plot", default=ROOT / "docs" / "frontier-local.png", type=click.Path(path_type=Path)
)
@click.option("--no-plot", is_flag=True, help="Table only; needs no matplotlib.")
def local(
    samples: int,
    test_samples: int,
    limit: int | None,
    entries: int | None,
    out: Path,
    plot: Path,
    no_plot: bool,
) -> None:
    """On a real model, embedded: about 20 minutes on two cores. Writes local.md, local.json and the
    rollouts into --out.
    """
    if samples < 5 or samples % 5:
        raise click.BadParameter(
            f"{samples} is not a multiple of 5, and a fifth of it is needed", param_hint="--samples"
        )
    asyncio.run(
        _local(
            on_engine.Plan(samples, test_samples, limit, entries), out, None if no_plot else plot
        )
    )


async def _local(plan: on_engine.Plan, out: Path, plot: Path | None) -> None:
    out.mkdir(parents=True, exist_ok=True)
    async with on_engine.engine(plan, out) as (trials, task):
        base, found = await on_engine.measure(trials, task, plan)
    label = trials.reward.label
    text = f"{on_engine.table(base, found, label)}\n\n{on_engine.comparison(base, found)}"
    click.echo(text)
    (out / "local.md").write_text(
        f"# Reward against KL on a real model\n\n{text}\n", encoding="utf-8"
    )
    rows = [asdict(each) for each in (base, *found)]
    (out / "local.json").write_text(
        json.dumps({"plan": asdict(plan), "rows": rows}, indent=2) + "\n", encoding="utf-8"
    )
    if plot is not None:
        most = max(each.point.rollouts for each in found)
        draw([on_engine.panel(base, found, label)], (f"{most} rollouts", "a fifth of them"), plot)


def _shown(plan: Plan) -> tuple[int, int]:
    """The two numbers of rollouts in the plot, one five times the other."""
    pairs = [(n, 5 * n) for n in plan.rollouts if 5 * n in plan.rollouts]
    return pairs[len(pairs) // 2]


def _method(plan: Plan) -> str:
    return (
        f"Means of {plan.draws} draws, {plan.completions} fresh completions a bias and draw, exact"
        f" model number {plan.model}.\nWritten by `uv run --group bench python -m"
        " bench.studies.frontier exact`."
    )


def _section(problem: Problem, base: float, points: list[Point]) -> str:
    there = {point.estimator for point in points}
    found = "\n".join(_criteria(problem, base, points, peer) for peer in PEERS if peer in there)
    return f"## {problem.name}: {problem.title}\n\n{table(problem, base, points)}\n\n{found}"


def _criteria(problem: Problem, base: float, points: list[Point], peer: str) -> str:
    found = compare(problem, base, points, peer)
    fifths = ", ".join(
        f"tau {tau:g}, {n} against {5 * n}: {ours:.3f} / {theirs:.3f}"
        for tau, n, ours, theirs in found.rollouts
    )
    ratios = ", ".join(f"{ratio:.2f} (N = {n}, {level:.0%})" for n, level, ratio in found.kl)
    return (
        f"- {_met(found.fifth_suffices >= LEAST_FIFTHS)}: {SUBJECT} on a fifth of the rollouts of"
        f' "{peer}" has at least its E[r] - tau KL in {found.fifth_suffices:.0%} of the comparisons'
        f" ({fifths})\n- {_met(found.kl_ratio <= MOST_KL)}: for equal reward it needs"
        f' {found.kl_ratio:.2f} of the KL of "{peer}" (geometric mean; {ratios})'
    )


def _met(met: bool) -> str:
    return "MET" if met else "NOT MET"


def _panel(problem: Problem, base: float, points: list[Point], few: int, many: int) -> Panel:
    names = [name for name in ESTIMATORS if any(point.estimator == name for point in points)]
    solid, dashed = (
        {name: curve(points, base, name, n) for name in some}
        for n, some in ((many, names), (few, [name for name in names if name in (SUBJECT, PEER)]))
    )
    return Panel(problem.title, "mean reward (nats)", solid, dashed)


if __name__ == "__main__":
    main()
