"""``blb fit``: the main job."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from blackbox_lb.cli.grouped import HelpGroup, LateChoice, command, option
from blackbox_lb.cli.option_classes import TaskOptions, TrialOptions
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

if TYPE_CHECKING:
    from blackbox_lb.estimate.choice.goal import Objective
    from blackbox_lb.estimate.inputs.recipe import Scale, Unobserved
    from blackbox_lb.estimate.inputs.sweep import L2, AlphaScale
    from blackbox_lb.jobs.fitting.plan import FitPlan

F = TypeVar("F", bound=Callable[..., Any])


@functools.cache
def _plan() -> FitPlan:
    """The defaults, loaded when they are shown or used."""
    from blackbox_lb.jobs.fitting.plan import FitPlan

    return FitPlan()


def _choice(field: str) -> LateChoice:
    """The values that this field of the options may have."""

    def values() -> tuple[str, ...]:
        from blackbox_lb.estimate.choice.goal import Objective
        from blackbox_lb.estimate.choice.table import ROWS
        from blackbox_lb.estimate.inputs.recipe import Scale, Unobserved
        from blackbox_lb.estimate.inputs.sweep import AlphaScale

        aliases = {
            "weights": Scale,
            "alpha_scale": AlphaScale,
            "unobserved": Unobserved,
            "objective": Objective,
        }
        return tuple(ROWS) if field == "estimator" else get_args(aliases[field])

    return LateChoice(values)


class _Strength(click.ParamType[Any]):
    """A number above 0, or cv."""

    name = "number or cv"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float | str:
        """The number, or "cv"."""
        if value == "cv":
            return "cv"
        return float(click.FloatRange(0, min_open=True).convert(value, param, ctx))


def _sweep(
    name: str, default: Callable[[], tuple[Any, ...]], text: str, kind: click.ParamType[Any] | None = None
) -> Callable[[F], F]:
    kind = click.FloatRange(0, min_open=True) if kind is None else kind
    return option(
        HelpGroup.LEARNING,
        name,
        type=kind,
        multiple=True,
        default=default,
        show_default=True,
        help=f"{text} Repeatable.",
    )


@dataclass(frozen=True, kw_only=True)
class FitOptions(TaskOptions, TrialOptions):
    """Options of ``blb fit``: those of :class:`FitPlan` and :class:`Sweep`, and how the plan is carried out.

    samples_per_prompt, validation_samples, test_samples: completions a prompt.
    entries: a number, or "all".
    objective, kl_price: what a candidate is chosen by.
    deploy: settings to choose and judge for; none: temperature 1 and greedy.
    engine: "here" or "ray".
    workers: of the engine "ray"; None: one a core.
    rollouts: sources of rollouts that were collected elsewhere.
    """

    samples_per_prompt: int
    limit: int | None
    estimator: tuple[str, ...]
    tau: tuple[float, ...]
    l2: tuple[L2, ...]
    weights: Scale
    alpha: tuple[float, ...]
    alpha_scale: AlphaScale
    kappa: tuple[float, ...]
    positions: int | None
    clip: float | None
    unobserved: Unobserved
    clusters: int
    embedding: str | None
    rounds: int
    trust: float
    entries: str
    integers: bool
    objective: Objective
    kl_price: float
    validation_samples: int
    test_samples: int
    deploy: tuple[str, ...]
    full_vocab: int | None
    engine: str
    workers: int | None
    go_on: bool
    rollouts: tuple[str, ...]


@command("fit", FitOptions)
@model_options()
@task_options()
@count_option("--samples-per-prompt", lambda: _plan().samples, "Training completions a prompt.", HelpGroup.FIRST)
@option(HelpGroup.SAMPLING, "--limit", type=click.IntRange(1), help="Use only the first N training prompts.")
@sampling_options()
@_sweep(
    "--estimator",
    lambda: _plan().sweep.estimators,
    "projection; the paper's ips and its baseline clusters; snips; ratio, which needs no logprobs.",
    _choice("estimator"),
)
@_sweep("--tau", lambda: _plan().sweep.tau, "A completion weighs exp(reward / tau).")
@_sweep("--l2", lambda: _plan().sweep.l2, "Shrinkage of projection; cv chooses it by cross-validation.", _Strength())
@option(
    HelpGroup.LEARNING,
    "--weights",
    type=_choice("weights"),
    default=lambda: _plan().sweep.weights,
    show_default=True,
    help="projection weighs completions over all prompts, or within each.",
)
@_sweep("--alpha", lambda: _plan().sweep.alpha, "Smoothing of ips and clusters.")
@option(
    HelpGroup.LEARNING,
    "--alpha-scale",
    type=_choice("alpha_scale"),
    default=lambda: _plan().sweep.alpha_scale,
    show_default=True,
    help="alpha is a multiple of the mean weight, or absolute as in the paper.",
)
@_sweep("--kappa", lambda: _plan().sweep.kappa, "Shrinkage of snips and ratio, in rollouts and in tokens.")
@option(
    HelpGroup.LEARNING,
    "--positions",
    type=click.IntRange(1),
    help="Positions that are drawn of each completion. [default: all]",
)
@option(
    HelpGroup.LEARNING,
    "--clip",
    type=click.FloatRange(1),
    help="Largest inverse propensity that counts. [default: any; 100 in snips]",
)
@option(
    HelpGroup.LEARNING,
    "--unobserved",
    type=_choice("unobserved"),
    default=lambda: _plan().sweep.unobserved,
    show_default=True,
    help="A sampled token without a logprob: bound takes the least listed one for it, drop leaves it out (not for projection).",
)
@option(
    HelpGroup.LEARNING,
    "--clusters",
    type=click.IntRange(1),
    default=lambda: _plan().clusters,
    show_default=True,
    help="Clusters of tokens.",
)
@option(
    HelpGroup.LEARNING,
    "--embedding",
    default=lambda: _plan().embedding,
    show_default=True,
    help="Sentence embedding of clusters: a hub name or a folder.",
)
@option(
    HelpGroup.LEARNING,
    "--rounds",
    type=click.IntRange(1),
    default=lambda: _plan().rounds,
    show_default=True,
    help="Sample in so many rounds, each under the bias of those before; projection only.",
)
@option(
    HelpGroup.LEARNING,
    "--trust",
    type=click.FloatRange(0, min_open=True),
    default=lambda: _plan().trust,
    show_default=True,
    help="Most nats a completion (KL) between the policies of two rounds.",
)
@option(
    HelpGroup.CHOOSING,
    "--entries",
    default="300",
    show_default=True,
    help="Most tokens in the bias, a number; or all that the provider takes.",
)
@option(HelpGroup.CHOOSING, "--integers", is_flag=True, help="Whole numbers only.")
@option(
    HelpGroup.CHOOSING,
    "--objective",
    type=_choice("objective"),
    default=lambda: _plan().goal.objective,
    show_default=True,
    help="Choose by reward, reward less --kl-price x KL, or fewest tokens that keep the base's accuracy (pareto).",
)
@option(
    HelpGroup.CHOOSING,
    "--kl-price",
    type=click.FloatRange(0, min_open=True),
    default=lambda: _plan().goal.tau,
    show_default=True,
    help="Reward that a nat of KL a completion costs in reward-kl.",
)
@count_option(
    "--validation-samples",
    lambda: _plan().validation_samples,
    "Completions a validation prompt and candidate.",
    HelpGroup.CHOOSING,
)
@count_option(
    "--test-samples", lambda: _plan().test_samples, "Completions a test prompt and setting.", HelpGroup.JUDGING
)
@option(
    HelpGroup.CHOOSING,
    "--deploy",
    multiple=True,
    help="Setting that you deploy with, greedy or as in temperature=0.5: the bias is chosen for it and judged at it; repeatable. "
    "[default: temperature=1 and greedy]",
)
@option(
    HelpGroup.JUDGING,
    "--full-vocab",
    type=click.IntRange(2),
    is_flag=False,
    flag_value=POSITIONS,
    metavar="[POSITIONS]",
    help=f"Check lists and compiles against all logprobs at so many training positions, {POSITIONS} unless told. "
    "A position is 2 to 5 MB of JSON and about a second on a CPU. vllm, llamacpp and local only.",
)
@option(
    HelpGroup.LEARNING,
    "--engine",
    type=click.Choice(("here", "ray")),
    default="here",
    show_default=True,
    help="Who reads and sums the training rollouts: this process, or the workers of a Ray cluster (RAY_ADDRESS, else workers on "
    "this machine).",
)
@option(HelpGroup.LEARNING, "--workers", type=click.IntRange(1), help="Workers of --engine ray. [default: one a core]")
@option(
    HelpGroup.LEARNING,
    "--go-on",
    is_flag=True,
    help="Collect on although the first prompts show nothing to learn.",
)
@rollouts_option()
@limit_options()
@output_options()
def fit_command(options: FitOptions) -> None:
    """Learn a bias and prove on unseen prompts whether it helps.

    Collects completions of the training prompts, scores them, estimates one bias for each setting of the sweep, chooses on the
    validation prompts by the mean over the settings that you deploy with, and compares base and biased completions of the test
    prompts at each of those. Writes bias.json, result.json, the rollouts, and learned.json (the whole learned vector, for blb
    compile) into --out; a second run resumes there.
    """
    from blackbox_lb.cli.actions.fit import execute

    execute(options)
