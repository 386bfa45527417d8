"""Everything that takes part in the search: what the estimators learn, and what needs no learning.

Rules, boosts and calibrations are vectors that somebody would write by hand. As candidates beside
the learned ones, none of them can beat the choice on the prompts that made it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from blackbox_lb.estimate.choice.candidates import (
    BOOSTS,
    Candidate,
    CompileLimits,
    boosts,
    candidates,
    rules,
)
from blackbox_lb.estimate.choice.estimator import CREDIT_L2
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.inputs.prior import DEFAULT_STRENGTHS, Prior, TokenCosts
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.jobs.fitting.choosing.priors import calibrations
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.training import Training
from blackbox_lb.tasks import Reward

MOST_RULED = 2_000
"""Tokens that a rule may move, the most used first: a script has tens of thousands, and a request
holds them all."""
MOST_CREDITED = len(Sweep().gamma) * len(CREDIT_L2)
RULED = 2
"""Candidates of a rule: its tokens moved, and banned."""
TYPICAL = 200
"""Completions whose lengths give the scale of what one token earns."""
ENDS_OFTEN = 0.5
"""Share of the completions that end before the limit whose last token must be the same one for it
to be taken for the end token."""


@dataclass(frozen=True, slots=True, eq=False)
class Knowledge:
    """What is known of tokens beside the rewards of completions.

    Attributes:
        costs: what each token earns by its own text, where the reward is a rule about the text.
        labels: calibrations, where the model decides between labels; projections are pulled to the
            first one.
        boosted: what is ended -> the tokens that end it, where the reward is about length.
    """

    costs: TokenCosts | None = None
    labels: tuple[Prior, ...] = ()
    boosted: Mapping[str, Ids] = field(default_factory=dict)

    @property
    def priors(self) -> tuple[Prior | TokenCosts, ...]:
        """Those that a projection can be pulled to."""
        costs = () if self.costs is None else (self.costs,)
        return (*costs, *self.labels[:1])

    @property
    def token_ids(self) -> Ids:
        """Every token that something is known of, sorted."""
        parts = [prior.every_id for prior in self.priors]
        parts += list(self.boosted.values())
        return np.unique(np.concatenate([np.zeros(0, np.int64), *parts]))


async def knowledge(
    trials: Trials,
    training: Training,
    limits: CompileLimits,
    labels: tuple[Prior, ...] = (),
) -> Knowledge:
    """Gather what is known of tokens.

    Args:
        trials: the model and the reward.
        training: the completions that are learned from.
        limits: the provider's, on a bias.
        labels: calibrations, where the model decides between labels.
    """
    costs = token_costs(trials, training, limits)
    return Knowledge(costs, labels, await boosted_tokens(trials, training))


def most_beside(reward: Reward) -> int:
    """The most proposals of a search beside the sweep's own, for a reward that has not scored
    anything yet.
    """
    count = 0
    if reward.has_spans or reward.is_sum is None:
        count += MOST_CREDITED
    if reward.rule is not None:
        count += len(DEFAULT_STRENGTHS) + RULED
    if reward.by_length:
        count += len(BOOSTS)
    if reward.thinking is not None:
        count += len(BOOSTS)
    return count


def token_costs(trials: Trials, training: Training, limits: CompileLimits) -> TokenCosts | None:
    """What each token of the vocabulary earns by its own text; None where the reward is no rule
    about the text.
    """
    rule = trials.reward.rule
    if rule is None:
        return None
    texts = dict(trials.session.texts_of_vocabulary())
    if not texts:
        texts = trials.store.token_bytes(trials.tokenizer.fingerprint)
    ids = np.array(sorted(texts), np.int64)
    if limits.highest_id is not None:
        ids = ids[ids <= limits.highest_id]
    decoded = [_decoded(texts[token]) for token in ids.tolist()]
    typical = [
        completion.text for completion in trials.store.completions(training.rollouts.keys[:TYPICAL])
    ]
    earned = np.asarray(rule.token_costs(decoded, typical), np.float64)
    counted = np.flatnonzero(earned)
    if not counted.size:
        return None
    costs = TokenCosts(trials.reward.spec, ids[counted], earned[counted])
    used = training.next_token.with_tokens(costs.token_ids)
    usage = used.expected(np.zeros(len(used.token_ids)))
    usage_of = usage[np.searchsorted(used.token_ids, costs.token_ids)]
    return costs.only(costs.token_ids[np.argsort(-usage_of, kind="stable")[:MOST_RULED]])


def _decoded(raw: bytes) -> str:
    """The text of a token; empty where it is a part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


async def boosted_tokens(trials: Trials, training: Training) -> dict[str, Ids]:
    """What ends a completion, where its length is rewarded, and what ends the thinking, where that
    is measured.
    """
    reward = trials.reward
    boosted: dict[str, Ids] = {}
    if reward.by_length:
        end = end_token(training.rollouts, reward.max_tokens)
        if end is not None:
            boosted["the completion"] = np.array([end], np.int64)
    if reward.thinking is not None:
        phases = reward.thinking.phases
        closing = phases.back or phases.until
        ids = await trials.session.encode(closing)
        if ids:
            boosted["the thinking"] = np.array(ids[:1], np.int64)
    return boosted


def end_token(rollouts: Rollouts, max_tokens: int) -> int | None:
    """The token that ends most completions shorter than ``max_tokens``; None where they end in
    different ones, as where the end token is not listed.
    """
    ended = (rollouts.lengths > 0) & (rollouts.lengths < max_tokens) & ~rollouts.given
    if not ended.any():
        return None
    last = rollouts.token_ids[np.cumsum(rollouts.lengths) - 1][ended]
    tokens, counts = np.unique(last, return_counts=True)
    most = int(np.argmax(counts))
    if counts[most] >= ENDS_OFTEN * len(last):
        return int(tokens[most])
    return None


def proposals(
    training: Training, plan: FitPlan, limits: CompileLimits, beside: Knowledge
) -> Iterator[Candidate]:
    """All candidates of the first race, the learned ones first.

    Args:
        training: with every token of ``beside`` on its support.
        plan: its sweep names the estimators and their settings.
        limits: the provider's.
        beside: what is known of tokens, nothing where only the sweep is to be tried.

    Raises:
        InputError: no completion earned a reward, or a setting is out of range.
    """
    rollouts = training.rollouts
    table = training.next_token
    yield from candidates(
        rollouts, table, plan.sweep, limits, whole=training.whole, priors=beside.priors
    )
    if beside.costs is not None:
        yield from rules(table, beside.costs, limits)
    yield from boosts(table, beside.boosted, limits)
    if beside.labels:
        yield from calibrations(beside.labels, table, limits)


def with_knowledge(training: Training, beside: Knowledge) -> Training:
    """``training`` with every token that something is known of on its support."""
    ids = beside.token_ids
    if training.whole is not None or not ids.size:
        return training
    return replace(training, next_token=training.next_token.with_tokens(ids))
