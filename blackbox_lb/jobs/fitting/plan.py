"""FitPlan: all settings of a fit."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from blackbox_lb.bias.features import PromptFeature
from blackbox_lb.bias.phases import Phases
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.estimate.inputs.recipe import Sweep
from blackbox_lb.rollouts.judging.verdict import GREEDY, SAMPLED, Setting
from blackbox_lb.tasks.sets.labels import Labels

LearnFrom: TypeAlias = Literal["samples", "answers", "unlabelled"]
SearchExtent: TypeAlias = Literal["named", "brief", "thorough"]

BUDGETS: dict[SearchExtent, int] = {"brief": 3, "thorough": 10}
"""Candidates whose samples a search may draw in all."""
MOST_ENTRIES = 300
"""Entries of a bias at most by default, what OpenAI takes."""


@dataclass(frozen=True, slots=True)
class FitPlan:
    """The settings of a fit. Counts are of completions a prompt; ``entries`` None means as many as
    the provider takes.

    samples, validation_samples, test_samples: of the prompts of each split. limit: training prompts
    that count, None for all. settings: those to deploy with, for which the bias is chosen and at
    which it is judged. go_on: collect on although the first prompts show nothing to learn.
    only_stored: draw no training completion. learn_from: the completions that are drawn, the
    answers that the training rows have, or the model's mean answer over prompts without one
    ("unlabelled"); listed: alternatives at the place of an answer, None for as
    many as help. labels: of a decision, None where there are none to score. depends_on: features of
    the prompt that a bias may depend on, each tried beside the fixed one. phases: of completions,
    each of which may get a vector of its own, or the first tokens that confine the bias; None for
    one vector. search: "named" races the
    settings of the sweep alone, "brief" and "thorough" everything else that may be the bias beside
    them; None for brief where the sweep names no strength, else named. few: the bias is cut to as
    few entries as earn as much. notices: sentences on how the plan came about.
    """

    samples: int = 10
    limit: int | None = None
    validation_samples: int = 6
    test_samples: int = 6
    sweep: Sweep = field(default_factory=Sweep)
    goal: Goal = field(default_factory=Goal)
    entries: int | None = MOST_ENTRIES
    few: bool = True
    search: SearchExtent | None = None
    integers: bool = False
    settings: tuple[Setting, ...] = (SAMPLED, GREEDY)
    go_on: bool = False
    only_stored: bool = False
    learn_from: LearnFrom = "samples"
    listed: int | None = None
    labels: Labels | None = None
    depends_on: tuple[PromptFeature, ...] = ()
    phases: Phases | None = None
    notices: tuple[str, ...] = ()

    @property
    def searches(self) -> SearchExtent:
        """The extent of the search. Whoever names strengths or another estimator wants them judged,
        and nothing else.
        """
        if self.search is not None:
            return self.search
        is_named = not self.sweep.l2_is_default or self.sweep.estimators != Sweep().estimators
        if is_named:
            return "named"
        return "brief"

    @property
    def confined_to(self) -> Phases | None:
        """The first tokens that alone are to be biased; None where all may be."""
        if self.phases is not None and self.phases.confined:
            return self.phases
        return None

    @property
    def selects_offline(self) -> bool:
        """Whether lists alone give the effects on validation prompts: greedy decisions."""
        return self.learn_from == "answers" and all(
            setting.deterministic for setting in self.settings
        )
