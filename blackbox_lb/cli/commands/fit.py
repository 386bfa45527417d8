"""``blb fit``: the main job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, get_args

import click

from blackbox_lb.cli.options import (
    POSITIONS,
    count_option,
    limit_options,
    model_options,
    output_options,
    rollouts_option,
    sampling_options,
    task_options,
)
from blackbox_lb.estimate.choice.goal import Objective
from blackbox_lb.estimate.choice.table import ROWS
from blackbox_lb.estimate.inputs.recipe import Scale, Unobserved
from blackbox_lb.estimate.inputs.sweep import AlphaScale, Sweep
from blackbox_lb.jobs.fitting.plan import FitPlan

__all__ = ["command"]

F = TypeVar("F", bound=Callable[..., Any])

SWEEP, PLAN = Sweep(), FitPlan()


class _Strength(click.ParamType[Any]):
    """A number above 0, or cv."""

    name = "number or cv"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """The number, or "cv"."""
        if value == "cv":
            return "cv"
        return float(click.FloatRange(0, min_open=True).convert(value, param, ctx))


def _sweep(
    name: str, default: tuple[Any, ...], text: str, kind: click.ParamType[Any] | None = None
) -> Callable[[F], F]:
    kind = click.FloatRange(0, min_open=True) if kind is None else kind
    return click.option(name, type=kind, multiple=True, default=default, show_default=True, help=f"{text} Repeatable.")


@click.command("fit")
@model_options()
@task_options()
@count_option("--samples-per-prompt", PLAN.samples, "Training completions a prompt.")
@click.option("--limit", type=click.IntRange(1), help="Use only the first N training prompts.")
@sampling_options()
@_sweep(
    "--estimator",
    SWEEP.estimators,
    "projection; the paper's ips and its baseline clusters; snips; ratio, which needs no logprobs.",
    click.Choice(tuple(ROWS)),
)
@_sweep("--tau", SWEEP.tau, "A completion weighs exp(reward / tau).")
@_sweep("--l2", SWEEP.l2, "Shrinkage of projection; cv chooses it by cross-validation.", _Strength())
@click.option(
    "--weights",
    type=click.Choice(get_args(Scale)),
    default=SWEEP.weights,
    show_default=True,
    help="projection weighs completions over all prompts, or within each.",
)
@_sweep("--alpha", SWEEP.alpha, "Smoothing of ips and clusters.")
@click.option(
    "--alpha-scale",
    type=click.Choice(get_args(AlphaScale)),
    default=SWEEP.alpha_scale,
    show_default=True,
    help="alpha is a multiple of the mean weight, or absolute as in the paper.",
)
@_sweep("--kappa", SWEEP.kappa, "Shrinkage of snips and ratio, in rollouts and in tokens.")
@click.option("--positions", type=click.IntRange(1), help="Positions that are drawn of each completion. [default: all]")
@click.option(
    "--clip", type=click.FloatRange(1), help="Largest inverse propensity that counts. [default: any; 100 in snips]"
)
@click.option(
    "--unobserved",
    type=click.Choice(get_args(Unobserved)),
    default=SWEEP.unobserved,
    show_default=True,
    help="A sampled token without a logprob: bound takes the least listed one for it, drop leaves it out (not for projection).",
)
@click.option(
    "--clusters", type=click.IntRange(1), default=PLAN.clusters, show_default=True, help="Clusters of tokens."
)
@click.option(
    "--embedding",
    default=PLAN.embedding,
    show_default=True,
    help="Sentence embedding of clusters: a hub name or a folder.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=PLAN.rounds,
    show_default=True,
    help="Sample in so many rounds, each under the bias of those before; projection only.",
)
@click.option(
    "--trust",
    type=click.FloatRange(0, min_open=True),
    default=PLAN.trust,
    show_default=True,
    help="Most nats a completion (KL) between the policies of two rounds.",
)
@click.option(
    "--entries",
    default="300",
    show_default=True,
    help="Most tokens in the bias, a number; or all that the provider takes.",
)
@click.option("--integers", is_flag=True, help="Whole numbers only.")
@click.option(
    "--objective",
    type=click.Choice(get_args(Objective)),
    default=PLAN.goal.objective,
    show_default=True,
    help="Choose by reward, reward less --kl-price x KL, or fewest tokens that keep the base's accuracy (pareto).",
)
@click.option(
    "--kl-price",
    type=click.FloatRange(0, min_open=True),
    default=PLAN.goal.tau,
    show_default=True,
    help="Reward that a nat of KL a completion costs in reward-kl.",
)
@count_option("--validation-samples", PLAN.validation_samples, "Completions a validation prompt and candidate.")
@count_option("--test-samples", PLAN.test_samples, "Completions a test prompt and setting.")
@click.option(
    "--deploy",
    multiple=True,
    help="Setting that you deploy with, greedy or as in temperature=0.5: the bias is chosen for it and judged at it; repeatable. "
    "[default: temperature=1 and greedy]",
)
@click.option(
    "--full-vocab",
    type=click.IntRange(2),
    is_flag=False,
    flag_value=POSITIONS,
    metavar="[POSITIONS]",
    help=f"Check lists and compiles against all logprobs at so many training positions, {POSITIONS} unless told. "
    "A position is 2 to 5 MB of JSON and about a second on a CPU. vllm, llamacpp and local only.",
)
@click.option(
    "--engine",
    type=click.Choice(("here", "ray")),
    default="here",
    show_default=True,
    help="Who reads and sums the training rollouts: this process, or the workers of a Ray cluster (RAY_ADDRESS, else workers on "
    "this machine).",
)
@click.option("--workers", type=click.IntRange(1), help="Workers of --engine ray. [default: one a core]")
@click.option("--go-on", is_flag=True, help="Collect on although the first prompts show nothing to learn.")
@rollouts_option()
@limit_options()
@output_options()
def command(**options: Any) -> None:
    """Learn a bias and prove on unseen prompts whether it helps.

    Collects completions of the training prompts, scores them, estimates one bias for each setting of the sweep, chooses on the
    validation prompts by the mean over the settings that you deploy with, and compares base and biased completions of the test
    prompts at each of those. Writes bias.json, result.json, the rollouts, and learned.json (the whole learned vector, for blb
    compile) into --out; a second run resumes there.
    """
    from blackbox_lb.cli.actions.fit import execute

    execute(**options)
