"""``blb fit``: the main job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from blackbox_lb.cli.grouped import (
    AMOUNT,
    COUNT,
    HelpGroup,
    LateChoice,
    command,
    literal,
    option,
    options,
)
from blackbox_lb.cli.options import (
    FIT_PLAN,
    SWEEP,
    TaskOptions,
    TrialOptions,
    VerboseOptions,
    decide,
    labels,
    limit,
)

if TYPE_CHECKING:
    from blackbox_lb.estimate.inputs.recipe import L2, AlphaScale, Unobserved
    from blackbox_lb.estimate.inputs.rollouts import Scale
    from blackbox_lb.jobs.fitting.plan import LearnFrom, SearchExtent


PARSE_GOAL = "blackbox_lb.jobs.runs.plan:parse_goal"


def _estimator_names() -> tuple[str, ...]:
    from blackbox_lb.estimate.choice.table import ROWS

    return tuple(ROWS)


class _Strength(click.ParamType["float | str"]):
    """A positive number, or "cv"."""

    name = "number or cv"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float | str:
        """A number, or "cv"."""
        if value == "cv":
            return "cv"
        return float(AMOUNT.convert(value, param, ctx))


@options
class FitOptions(TaskOptions, TrialOptions, VerboseOptions):
    """Options of ``blb fit``: those of :class:`FitPlan` and :class:`Sweep`, and those of the
    run.
    """

    samples_per_prompt: int = option(
        HelpGroup.FIRST,
        "Training completions a prompt.",
        type=COUNT,
        sets=FIT_PLAN,
        parameter="samples",
    )
    rollouts: tuple[str, ...] = option(
        HelpGroup.TASK,
        "Rollouts collected elsewhere, read and not asked for again: a store or a run's folder; *"
        " stands for several. Repeatable.",
        metavar="SOURCE",
    )
    limit: int | None = limit(sets=FIT_PLAN)
    only_stored: bool = option(
        HelpGroup.SAMPLING,
        "Learn from the training completions that are stored, of --rollouts too, and ask for no"
        " more of them.",
        sets=FIT_PLAN,
    )
    labels: str | None = labels()
    decide: str | None = decide()
    learn_from: LearnFrom | None = option(
        HelpGroup.LEARNING,
        "samples: completions that are drawn and rewarded; answers: those of the data, one token a"
        " prompt; unlabelled: the model's mean answer over prompts without one, of a decision whose"
        " --labels are named. [default: answers, where the reward is correctness and the"
        " answers are few labels; else samples]",
        type=literal("blackbox_lb.jobs.fitting.plan:LearnFrom"),
    )
    depends_on: tuple[str, ...] = option(
        HelpGroup.LEARNING,
        "Let the bias depend on the prompt where that is better than a fixed one: words of the last"
        " user message, embedding:MODEL of it (a folder, a hub name or MODEL@URL of an embeddings"
        " API), groups:COLUMN of the data, system-prompt, or route:NAME=REGEX,... Repeatable."
        " [default: nothing]",
        metavar="FEATURES",
    )
    phases: tuple[str, ...] = option(
        HelpGroup.LEARNING,
        "Let the bias change within a completion, where that earns more than one vector for all:"
        " first (token), opening:K, until:TEXT, after:TEXT or inside:OPEN..CLOSE. Repeatable; with"
        " --depends-on, both together are tried, too. only-first or only-opening:K confine what is"
        " learned from answers to the first tokens. Needs a server that continues token ids.",
        metavar="PHASE,...",
    )
    estimator: tuple[str, ...] = option(
        HelpGroup.LEARNING,
        "projection, or the paper's ips. Repeatable.",
        type=LateChoice(_estimator_names),
        sets=SWEEP,
        parameter="estimators",
    )
    tau: tuple[float, ...] = option(
        HelpGroup.LEARNING,
        "A completion weighs exp(reward / tau). Repeatable.",
        type=AMOUNT,
        sets=SWEEP,
    )
    l2: tuple[L2, ...] = option(
        HelpGroup.LEARNING,
        "Shrinkage of projection; of several, --objective chooses on the validation prompts. cv:"
        " one or two by cross-validation, which asks for nothing. Repeatable. The default ones"
        " share the validation completions of three; with --learn-from answers they are cv, 30,"
        " 10, 3, 1 and 0.3.",
        type=_Strength(),
        sets=SWEEP,
    )
    weights: Scale = option(
        HelpGroup.LEARNING,
        "projection weighs completions over all prompts, or within each.",
        sets=SWEEP,
    )
    alpha: tuple[float, ...] = option(
        HelpGroup.LEARNING,
        "Smoothing of ips. Repeatable.",
        type=AMOUNT,
        sets=SWEEP,
    )
    alpha_scale: AlphaScale = option(
        HelpGroup.LEARNING,
        "alpha is a multiple of the mean weight, or absolute as in the paper.",
        sets=SWEEP,
    )
    positions: int | None = option(
        HelpGroup.LEARNING,
        "Positions that are drawn of each completion. [default: all]",
        type=COUNT,
        sets=SWEEP,
    )
    clip: float | None = option(
        HelpGroup.LEARNING,
        "Largest inverse propensity that counts. [default: any]",
        type=click.FloatRange(1),
        sets=SWEEP,
    )
    unobserved: Unobserved = option(
        HelpGroup.LEARNING,
        "A sampled token without a logprob: bound takes the least listed one for it, drop leaves it"
        " out (not for projection).",
        sets=SWEEP,
    )
    engine: str = option(
        HelpGroup.LEARNING,
        "Who reads and sums the training rollouts: this process, or the workers of a Ray cluster"
        " (RAY_ADDRESS, else workers on this machine).",
        type=click.Choice(("here", "ray")),
        default="here",
    )
    workers: int | None = option(
        HelpGroup.LEARNING, "Workers of --engine ray. [default: one a core]", type=COUNT
    )
    dry_run: bool = option(
        HelpGroup.FIRST,
        "Print splits, smallest effect that shows, requests, tokens and dollars; ask nothing.",
    )
    go_on: bool = option(
        HelpGroup.LEARNING,
        "Collect on although the first prompts show nothing to learn.",
        sets=FIT_PLAN,
    )
    entries: str = option(
        HelpGroup.CHOOSING,
        "Most tokens in the bias, a number; or all that the provider takes; or few: the smallest"
        " number, up to 300, that earns as much as the best bias.",
        default="few",
    )
    search: SearchExtent | None = option(
        HelpGroup.CHOOSING,
        "Race only the settings that are named; or also, for the completions of 3 candidates"
        " (brief) or 10 (thorough), rules, boosts, calibrations, sums and other strengths."
        " [default: brief, where no --l2 and no --estimator is named; else named]",
        type=literal("blackbox_lb.jobs.fitting.plan:SearchExtent"),
        sets=FIT_PLAN,
    )
    integers: bool = option(HelpGroup.CHOOSING, "Whole numbers only.", sets=FIT_PLAN)
    objective: str = option(
        HelpGroup.CHOOSING,
        "Choose by reward; fewest tokens that keep the base's accuracy (pareto). Of greedy"
        " decisions between labels: accuracy; the mean recall (balanced); the least mean cost"
        " (cost:FILE, JSON as in"
        ' {"yes": {"no": 5}, "no": {"yes": 1}}, the right label first); or an operating point of'
        " --positive: recall@precision=.95, precision@recall=.9, rate=.2. What a point promises"
        " (precision and recall at least, rate at most) holds on fresh prompts with 95 %"
        " confidence, or the fit says that no point does.",
        "--objective",
        "--goal",
        metavar="GOAL",
        sets=PARSE_GOAL,
    )
    positive: str | None = option(
        HelpGroup.CHOOSING,
        "The label that an operating point decides for; with accuracy, balanced and cost:FILE its"
        " tokens are shifted to the best point, too.",
        metavar="LABEL",
        sets=PARSE_GOAL,
    )
    validation_samples: int = option(
        HelpGroup.CHOOSING,
        "Completions a validation prompt and candidate; better candidates get more of them, others"
        " less.",
        type=COUNT,
        sets=FIT_PLAN,
    )
    deploy: tuple[str, ...] = option(
        HelpGroup.CHOOSING,
        "Setting that you deploy with, greedy or as in temperature=0.5: the bias is chosen for it"
        " and judged at it; repeatable. [default: temperature=1 and greedy; greedy alone with"
        " --learn-from answers]",
    )
    test_samples: int = option(
        HelpGroup.JUDGING,
        "Completions a test prompt and setting.",
        type=COUNT,
        sets=FIT_PLAN,
    )


@command(
    "fit",
    FitOptions,
    example="blb fit --provider vllm --data train.jsonl --reward accuracy --out runs/train",
)
def fit_command(options: FitOptions) -> None:
    """Learn a bias and prove on unseen prompts whether it helps.

    Collects completions of the training prompts, scores them, estimates one bias for each setting
    of the sweep, chooses on the validation prompts by the mean over the settings that you deploy
    with, and compares base and biased completions of the test prompts at each of those. Writes
    bias.json, result.json, the rollouts, and learned.json (the whole learned vector, for blb
    compile) into --out; a second run resumes there.
    """
    from blackbox_lb.cli.actions.fit import execute

    execute(options)
