"""Plan: all settings of a fit, for ``blb fit``, blb.toml and ``blackbox_lb.fit``.

What reads the settings is imported when it is used: the help of a command needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import BeforeValidator, Field, PrivateAttr, model_validator

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.sweep import AlphaScale, Scale, Sweep, Unobserved
from blackbox_lb.jobs.plan.setting import CommaTexts, HelpGroup, Texts, setting
from blackbox_lb.jobs.plan.shared import (
    AnyPath,
    CollectionSettings,
    DecisionSettings,
    JudgingSettings,
    TaskSettings,
    TrialSettings,
)

if TYPE_CHECKING:
    from blackbox_lb.bias.features import PromptFeature
    from blackbox_lb.bias.phases import Phases
    from blackbox_lb.bias.phrases import PhraseList
    from blackbox_lb.estimate.choice.goal import Goal
    from blackbox_lb.rollouts.judging.verdict import Setting
    from blackbox_lb.rollouts.progress import Progress
    from blackbox_lb.tasks.sets.labels import Labels

    ProgressCallback: TypeAlias = Callable[[Progress], object] | None
else:
    ProgressCallback = Any

LearnFrom: TypeAlias = Literal["samples", "answers", "unlabelled"]
SearchExtent: TypeAlias = Literal["named", "brief", "thorough"]

BUDGETS: dict[SearchExtent, int] = {"brief": 3, "thorough": 10}
"""Candidates whose samples a search may draw in all."""
FEW: Literal["few"] = "few"
"""In place of a number of entries: as few as earn as much as the best bias."""
ALL = "all"
"""In place of a number of entries: as many as the provider takes."""
MOST_ENTRIES = 300
"""Entries of a bias at most by default, what OpenAI takes."""

Positive: TypeAlias = Annotated[float, Field(gt=0)]
_SWEEP = Sweep()


def _entries(value: object) -> object:
    """The number of entries of a word; None for "all". Raises InputError: it is none."""
    if value == ALL:
        return None
    if value is None or value == FEW:
        return value
    is_number = not isinstance(value, bool) and str(value).isdecimal() and int(str(value)) > 0
    if not is_number:
        raise InputError(
            f"``entries``: {value!r} is neither a number from 1 nor {ALL!r} nor {FEW!r}"
        )
    return int(str(value))


class Plan(TaskSettings, DecisionSettings, CollectionSettings, JudgingSettings, TrialSettings):
    """All settings of a fit. Counts are of completions a prompt.

    What was left open is decided by the data: see ``completed``.
    """

    python_only = frozenset({"on_progress"})

    question: AnyPath | None = setting(
        None,
        HelpGroup.FIRST,
        "Decide between labels by their probabilities and learn how to mend these: a JSON file with"
        " the question in System One's form, or the question itself, whose options are --labels.",
        kind=str,
        metavar="FILE|TEXT",
    )
    layout: CommaTexts | None = setting(
        None,
        HelpGroup.LEARNING,
        "How --question is put to a model without an endpoint for it: letters (vLLM's layout),"
        " words, and both-orders for the mean over both orders of the options, too. [default:"
        " letters,words]",
        kind=str,
        metavar="NAME,...",
        multiple=False,
    )

    on_progress: ProgressCallback = None
    rollouts: Texts = setting(
        (),
        HelpGroup.TASK,
        "Rollouts collected elsewhere, read and not asked for again: a store or a run's folder; *"
        " stands for several. Repeatable.",
        metavar="SOURCE",
    )
    only_stored: bool = setting(
        False,
        HelpGroup.SAMPLING,
        "Learn from the training completions that are stored, of --rollouts too, and ask for no"
        " more of them.",
    )
    learn_from: LearnFrom | None = setting(
        None,
        HelpGroup.LEARNING,
        "samples: completions that are drawn and rewarded; answers: those of the data, one token a"
        " prompt; unlabelled: the model's mean answer over prompts without one, of a decision whose"
        " --labels are named. [default: answers, where the reward is correctness and the"
        " answers are few labels; else samples]",
    )
    depends_on: Texts = setting(
        (),
        HelpGroup.LEARNING,
        "Let the bias depend on the prompt where that is better than a fixed one: words of the last"
        " user message, embedding:MODEL of it (a folder, a hub name or MODEL@URL of an embeddings"
        " API), groups:COLUMN of the data, system-prompt, or route:NAME=REGEX,... Repeatable."
        " [default: nothing]",
        metavar="FEATURES",
    )
    phases: Texts = setting(
        (),
        HelpGroup.LEARNING,
        "Let the bias change within a completion, where that earns more than one vector for all:"
        " first (token), opening:K, until:TEXT, after:TEXT or inside:OPEN..CLOSE. Repeatable; with"
        " --depends-on, both together are tried, too. only-first or only-opening:K confine what is"
        " learned from answers to the first tokens. Needs a server that continues token ids.",
        metavar="PHASE,...",
    )
    phrases: str | None = setting(
        None,
        HelpGroup.LEARNING,
        "Words, phrases and /patterns/ that the bias file also keeps out: apply() and blb proxy"
        " step back from each. A list as in --reward avoid:FILE, or the words themselves. Needs a"
        " server that goes on from a given beginning of an answer.",
        metavar="FILE|WORDS",
    )
    estimator: Texts = setting(
        _SWEEP.estimators,
        HelpGroup.LEARNING,
        "projection, or the paper's ips. Repeatable.",
        choices="blackbox_lb.estimate.choice.table:ROWS",
    )
    tau: Sequence[Positive] = setting(
        _SWEEP.tau, HelpGroup.LEARNING, "A completion weighs exp(reward / tau). Repeatable."
    )
    l2: Sequence[Positive] = setting(
        _SWEEP.l2,
        HelpGroup.LEARNING,
        "Shrinkage of projection; of several, --objective chooses on the validation prompts."
        " Repeatable. With --learn-from answers the default ones are 30, 10, 3, 1 and 0.3.",
    )
    weights: Scale = setting(
        _SWEEP.weights,
        HelpGroup.LEARNING,
        "projection weighs completions over all prompts, or within each.",
    )
    alpha: Sequence[Positive] = setting(
        _SWEEP.alpha, HelpGroup.LEARNING, "Smoothing of ips. Repeatable."
    )
    alpha_scale: AlphaScale = setting(
        _SWEEP.alpha_scale,
        HelpGroup.LEARNING,
        "alpha is a multiple of the mean weight, or absolute as in the paper.",
    )
    positions: int | None = setting(
        None,
        HelpGroup.LEARNING,
        "Positions that are drawn of each completion. [default: all]",
        ge=1,
    )
    clip: float | None = setting(
        None,
        HelpGroup.LEARNING,
        "Largest inverse propensity that counts. [default: any]",
        ge=1,
    )
    unobserved: Unobserved = setting(
        _SWEEP.unobserved,
        HelpGroup.LEARNING,
        "A sampled token without a logprob: bound takes the least listed one for it, drop leaves it"
        " out (not for projection).",
    )
    go_on: bool = setting(
        False,
        HelpGroup.LEARNING,
        "Collect on although the first prompts show nothing to learn.",
    )
    entries: Annotated[int | Literal["few"] | None, BeforeValidator(_entries)] = setting(
        FEW,
        HelpGroup.CHOOSING,
        "Most tokens in the bias, a number; or all that the provider takes; or few: the smallest"
        " number, up to 300, that earns as much as the best bias.",
        kind=str,
    )
    search: SearchExtent | None = setting(
        None,
        HelpGroup.CHOOSING,
        "Race only the settings that are named; or also, for the completions of 3 candidates"
        " (brief) or 10 (thorough), rules, boosts, calibrations, sums and other strengths."
        " [default: brief, where no --l2 and no --estimator is named; else named]",
    )
    integers: bool = setting(False, HelpGroup.CHOOSING, "Whole numbers only.")
    objective: str = setting(
        "reward",
        HelpGroup.CHOOSING,
        "Choose by reward; fewest tokens that keep the base's accuracy (pareto). Of greedy"
        " decisions between labels: accuracy; the mean recall (balanced); the least mean cost"
        " (cost:FILE, JSON as in"
        ' {"yes": {"no": 5}, "no": {"yes": 1}}, the right label first); or an operating point of'
        " --positive: recall@precision=.95, precision@recall=.9, rate=.2. What a point promises"
        " (precision and recall at least, rate at most) holds on fresh prompts with 95 %"
        " confidence, or the fit says that no point does. Of a --question: log-loss, or"
        " error<=.05, a promise on the decisions that are not left out.",
        "--objective",
        "--goal",
        metavar="GOAL",
    )
    positive: str | None = setting(
        None,
        HelpGroup.CHOOSING,
        "The label that an operating point decides for; with accuracy, balanced and cost:FILE its"
        " tokens are shifted to the best point, too.",
        metavar="LABEL",
    )
    validation_samples: int = setting(
        6,
        HelpGroup.CHOOSING,
        "Completions a validation prompt and candidate; better candidates get more of them, others"
        " less.",
        ge=1,
    )
    deploy: Texts = setting(
        (),
        HelpGroup.CHOOSING,
        "Setting that you deploy with, greedy or as in temperature=0.5: the bias is chosen for it"
        " and judged at it; repeatable. [default: temperature=1 and greedy; greedy alone with"
        " --learn-from answers]",
    )

    _labels: Labels | None = PrivateAttr(None)
    _goal: Goal | None = PrivateAttr(None)
    _notices: tuple[str, ...] = PrivateAttr(())

    @model_validator(mode="after")
    def _check(self) -> Self:
        """Refuse what no data and no server could make possible."""
        from blackbox_lb.jobs.plan.check import check_settings

        check_settings(self)
        return self

    def for_data(self, labels: Labels | None, notices: Sequence[str], **fields: object) -> Self:
        """The plan for one task: with the ``fields`` that were left open.

        labels: of the decision, None where there is none. notices: on how the plan came about.
        """
        plan = self.replacing(**fields)
        plan._labels = labels
        plan._goal = plan._parsed_goal(labels)
        plan._notices = tuple(notices)
        return plan

    @property
    def decision_labels(self) -> Labels | None:
        """The labels of the decision: those that are named, or found in the data."""
        return self._labels

    @property
    def notices(self) -> tuple[str, ...]:
        """Sentences on how the plan came about."""
        return self._notices

    @property
    def goal(self) -> Goal:
        """What the bias is chosen by."""
        return self._goal or self._parsed_goal(None)

    def _parsed_goal(self, labels: Labels | None) -> Goal:
        from blackbox_lb.estimate.choice.goal import Goal
        from blackbox_lb.jobs.plan.goal import parse_goal

        if self.question is not None:
            return Goal()

        return parse_goal(self.objective, self.positive, labels)

    @property
    def sweep(self) -> Sweep:
        """The settings of the estimators, of which every combination is a candidate."""
        return Sweep(
            estimators=tuple(dict.fromkeys(self.estimator)),
            tau=tuple(self.tau),
            l2=tuple(self.l2),
            weights=self.weights,
            alpha=tuple(self.alpha),
            alpha_scale=self.alpha_scale,
            positions=self.positions,
            clip=self.clip,
            seed=self.seed or 0,
            unobserved=self.unobserved,
        )

    @property
    def settings(self) -> tuple[Setting, ...]:
        """The settings to deploy with, for which the bias is chosen and at which it is judged."""
        from blackbox_lb.rollouts.judging.verdict import GREEDY, SAMPLED, parse_setting

        named = tuple(dict.fromkeys(parse_setting(spec) for spec in self.deploy))
        return named or (SAMPLED, GREEDY)

    @cached_property
    def parsed_features(self) -> tuple[PromptFeature, ...]:
        """Features of the prompt that a bias may depend on, each tried beside the fixed one."""
        from blackbox_lb.bias.features import parse_feature

        features = [parse_feature(spec) for spec in dict.fromkeys(self.depends_on)]
        return tuple(feature for feature in features if feature is not None)

    @cached_property
    def parsed_phases(self) -> Phases | None:
        """Phases of completions, each of which may get a vector of its own, or the first tokens
        that confine the bias; None for one vector.
        """
        from blackbox_lb.bias.phases import Phases

        if not self.phases:
            return None
        return Phases.parse(self.phases)

    @cached_property
    def parsed_phrases(self) -> PhraseList | None:
        """Words, phrases and patterns that the sender is to keep out; None for none.

        Raises InputError: the list is wrong.
        """
        from blackbox_lb.bias.phrases import PhraseList

        if self.phrases is None:
            return None
        return PhraseList.load(self.phrases)

    @property
    def confined_to(self) -> Phases | None:
        """The first tokens that alone are to be biased; None where all may be."""
        phases = self.parsed_phases
        if phases is not None and phases.confined:
            return phases
        return None

    @property
    def few(self) -> bool:
        """Whether the bias is cut to as few entries as earn as much."""
        return self.entries == FEW

    @property
    def most_entries(self) -> int | None:
        """Entries of the bias at most; None for as many as the provider takes."""
        if self.entries == FEW:
            return MOST_ENTRIES
        return self.entries

    @property
    def searches(self) -> SearchExtent:
        """The extent of the search. Whoever names strengths or another estimator wants them judged,
        and nothing else.
        """
        if self.search is not None:
            return self.search
        sweep = self.sweep
        is_named = not sweep.l2_is_default or sweep.estimators != _SWEEP.estimators
        if is_named:
            return "named"
        return "brief"

    @property
    def selects_offline(self) -> bool:
        """Whether lists alone give the effects on validation prompts: greedy decisions."""
        return self.learn_from == "answers" and all(
            setting.deterministic for setting in self.settings
        )
