"""``depends_on``, learned from completions that were drawn: chosen by fresh ones of the
validation prompts.
"""

from dataclasses import dataclass, replace

import numpy as np

from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.choice.outcome import ByPrompt, Outcome
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.weightings import weighting
from blackbox_lb.estimate.projection.prompt_dependent import PromptPositions, fit_prompts
from blackbox_lb.jobs.fitting.choosing.scorers import outcome_of
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.jobs.fitting.shares_from_lists import SharesFromLists
from blackbox_lb.jobs.fitting.varying.depends import (
    FOLDS,
    NO_FEATURE,
    SLOPE_L2,
    STANDARD_ERRORS,
    DependentCandidate,
    learned_bias,
)
from blackbox_lb.jobs.fitting.varying.prompt_features import PromptFeatures
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import short
from blackbox_lb.rollouts.training import Training
from blackbox_lb.tasks import Task
from blackbox_lb.types import AnyBias

SCREENED = 2_000
"""Tokens, the most used first, whose pull by the features is looked at."""
MOVED = 300
"""Tokens that may depend on the prompt: those that the features pull most."""
COMPARED = 100
"""Tokens on which strengths are compared."""
LIFTS = (1.0, 2.0, 4.0)
"""Nats on all labels that are tried beside none, where shares of labels are wanted."""


async def sampled_candidate(
    features: PromptFeatures,
    trials: Trials,
    task: Task,
    training: Training,
    fixed: Candidate,
    limits: CompileLimits,
    plan: FitPlan,
) -> DependentCandidate | str:
    """The bias that depends on ``features``, or the sentence why the ``fixed`` one is kept.

    Its strength is the one under which the weighted completions of left-out training prompts are
    likeliest. It must then earn more than the fixed bias, by the goal and two standard errors, on
    fresh completions of the validation prompts; wanted shares are compared with those that their
    first lists predict.
    """
    name = features.feature.spec
    if not features.table.shape[1]:
        return f"{name}: {NO_FEATURE}"
    search = _Search(features, training, fixed, limits)
    slope_l2 = search.best(plan.sweep.seed)
    if slope_l2 is None:
        return (
            f"{name}: it makes the rewarded completions of left-out training prompts no likelier"
            " than the fixed bias does"
        )
    bias, errors = learned_bias(
        features, search.positions, search.tokens, limits, l2=search.l2, slope_l2=slope_l2
    )
    lift = 0.0
    predicted = await SharesFromLists.suiting(trials, task.validation, plan)
    if predicted is not None:
        bias, lift, earned = await _lifted_shares(predicted, trials, plan, fixed, bias)
    else:
        title = f"depends on {name}"
        earned = await paired_gain(trials, task, training, plan, fixed, title, bias)
    if not earned.proven:
        return f"{name}: {earned.declined}"
    settings = {**fixed.settings, "depends_on": name, "slope_l2": slope_l2}
    if lift:
        settings["lift"] = lift
    return DependentCandidate(
        bias, settings, features, earned.found, earned.fixed, earned.measure, errors
    )


@dataclass(frozen=True, slots=True, eq=False)
class PairedGain:
    """Worth of a bias beside the fixed one by the goal of the fit, on the validation prompts, over
    the settings to deploy with.

    gains: (p,) the gain over the fixed bias at each prompt, higher being better. found, fixed: the
    worth of both, in what ``measure`` names. outcome, fixed_outcome: what was measured. keeps:
    whether the goal's constraint holds.
    """

    gains: Vector
    found: float
    fixed: float
    measure: str
    outcome: Outcome
    fixed_outcome: Outcome
    keeps: bool = True

    @property
    def proven(self) -> bool:
        """Whether it earns more than the fixed bias by ``STANDARD_ERRORS`` standard errors."""
        return bool(
            self.keeps
            and self.gains.mean() > 0
            and self.gains.mean() >= STANDARD_ERRORS * self.gains.std() / np.sqrt(len(self.gains))
        )

    @property
    def declined(self) -> str:
        """Why the fixed bias is kept."""
        if not self.keeps:
            return f"on {len(self.gains)} validation prompts it loses accuracy to the fixed bias"
        return (
            f"on {len(self.gains)} validation prompts it earns {self.measure} {short(self.found)},"
            f" the fixed bias {short(self.fixed)}, which may be chance"
        )


async def _lifted_shares(
    scorer: SharesFromLists, trials: Trials, plan: FitPlan, fixed: Candidate, bias: RequestBias
) -> tuple[RequestBias, float, PairedGain]:
    """``bias`` with as many nats on the tokens of all labels as bring its predicted shares nearest
    to the wanted ones, these nats, and its gain over the fixed bias.

    The penalty that keeps vectors small also keeps completions without a label likely. A lift that
    all labels share makes these rare, and leaves the shares among the labels as they are. All is
    predicted from the first lists of the validation prompts; nothing is drawn.
    """
    before = await scorer.score("fixed bias", fixed.logit_bias, 0)
    labels = set(scorer.label_tokens)
    best = bias
    nats = 0.0
    after = await scorer.score("depends on the prompt", bias, 0)
    for lift in LIFTS:
        values = {
            token: value + lift if token in labels else value
            for token, value in bias.common.items()
        }
        lifted = RequestBias(values, bias.features, bias.sent)
        lifted.vectors = bias.vectors
        scored = await scorer.score("depends on the prompt, lifted", lifted, 0)
        if scored.measured.reward > after.measured.reward:
            best = lifted
            nats = lift
            after = scored
    gains = plan.goal.gain(before.outcome, after.outcome)
    earned = PairedGain(
        gains.parts,
        after.measured.reward,
        before.measured.reward,
        f"predicted without drawing, {trials.reward.label}",
        after.outcome,
        before.outcome,
    )
    return best, nats, earned


async def paired_gain(
    trials: Trials,
    task: Task,
    training: Training,
    plan: FitPlan,
    fixed: Candidate,
    title: str,
    bias: AnyBias,
    samples: int | None = None,
) -> PairedGain:
    """``bias`` beside the fixed one by the goal of ``plan``, on fresh completions of the validation
    prompts.

    samples: completions a prompt of each, None for those of ``plan``. Raises InputError: no prompt
    has completions of both.
    """
    drawn = samples or plan.validation_samples
    goal = plan.goal
    outcomes = []
    for name, policy in (("fixed bias", fixed.logit_bias), (title, bias)):
        scores = [
            await trials.scores(
                f"validation at {setting.name}, {name}",
                task.validation,
                setting,
                1 if setting.deterministic else drawn,
                policy,
            )
            for setting in plan.settings
        ]
        kl = None
        if goal.objective == "reward-kl":
            nats = await trials.kl(task.validation, drawn, policy, training.next_token)
            kl = ByPrompt(np.full(len(task.validation), nats))
        outcomes.append(outcome_of(scores, kl))
    before, after = outcomes
    gain = goal.gain(before, after)
    gains = gain.parts[~np.isnan(gain.parts)]
    if not gains.size:
        raise InputError(
            "nothing to compare: no validation prompt has completions with both biases, or no KL"
        )
    measure = trials.reward.label
    fixed_worth = before.reward.value
    if goal.objective == "pareto":
        measure = "tokens saved"
        fixed_worth = 0.0
    if before.kl is not None:
        measure = f"{measure} less {goal.tau:g} x KL"
        fixed_worth -= goal.tau * before.kl.value
    keeps = goal.keeps(before, after)
    return PairedGain(gains, fixed_worth + gain.value, fixed_worth, measure, after, before, keeps)


class _Search:
    """Compares strengths by the completions of left-out prompts.

    tokens: (s,) those that may depend on the prompt: the ones of the fixed bias, and those that the
    features pull most.
    """

    def __init__(
        self, features: PromptFeatures, training: Training, fixed: Candidate, limits: CompileLimits
    ) -> None:
        self.features = features
        self.table = training.next_token
        self.rollouts = training.rollouts
        self.size = features.table.shape[0]
        self.l2 = float(fixed.settings.get("l2") or 1.0)
        made = fixed.projected
        if made is not None:
            self.rollouts = replace(self.rollouts, shares=made.shares)
        rule = weighting(float(fixed.settings.get("tau") or 1.0)) if made is None else made.rule
        self.weights = rule.weights(self.rollouts)
        ids = self.table.named().token_ids
        whole = self.positions(ids if limits.highest_id is None else ids[ids <= limits.highest_id])
        screened = self.positions(
            np.sort(whole.token_ids[np.argsort(-whole.occurrence)[:SCREENED]])
        )
        common = np.array(
            [fixed.logit_bias.get(token, 0.0) for token in screened.token_ids.tolist()]
        )
        _, _, pull = screened.loss(
            features.table, common, np.zeros((features.table.shape[1], len(common)))
        )
        strength = (pull**2).sum(axis=0) / screened.occurrence
        self.order = screened.token_ids[np.argsort(-strength)]
        largest = np.argsort(-np.abs(fixed.sparse.values))[:MOVED]
        self.tokens = np.union1d(fixed.sparse.token_ids[largest], self.order[:MOVED])

    def positions(self, tokens: Ids) -> PromptPositions:
        """The completions, weighted by their rewards."""
        return PromptPositions.of(self.table, self.rollouts, self.weights, tokens, self.size)

    def best(self, seed: int) -> float | None:
        """The strength under which left-out completions are likeliest; None where that is none of
        them.
        """
        folds = np.random.default_rng(seed).permutation(self.size) % FOLDS
        positions = self.positions(np.sort(self.order[:COMPARED]))
        strengths = (1e9, *SLOPE_L2)
        held = np.zeros(1 + len(SLOPE_L2))
        for fold in range(FOLDS):
            left_out = folds == fold
            train = positions.only(~left_out)
            start = None
            if not train.weights.any():
                continue
            for row, slope_l2 in enumerate(strengths):
                start = fit_prompts(
                    train, self.features.table, l2=self.l2, slope_l2=slope_l2, start=start
                )
                held[row] += positions.log_likelihood(start.bias(self.features.table))[
                    left_out
                ].sum()
        best = int(np.argmax(held))
        return strengths[best] if best else None
