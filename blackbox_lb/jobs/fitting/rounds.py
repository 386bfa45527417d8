"""Rounds: part of the training completions are drawn under the bias learned so far, and all are pooled as if the base drew them.

A rare reward is seen more often where a first fit already leads; the later completions are reweighted by the known ratio of the
base to the policies that drew them. Lists of all rounds are held in memory, 8 bytes a listed token and three copies of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from blackbox_lb.api.session import Session
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import CompileLimits
from blackbox_lb.estimate.inputs.checks import positive
from blackbox_lb.estimate.projection.projection import projection
from blackbox_lb.estimate.reweighting.pooling import Pool, Round, pool
from blackbox_lb.estimate.reweighting.trust_region import policy_kl, step_within
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.reading import CompletionSource
from blackbox_lb.rollouts.training import Training, scored
from blackbox_lb.types import Example

DECIMALS = 3
"""Of the biases sent while exploring: last bits that depend on the number of threads must not make another request of it."""
SLACK = 1.05
"""A compiled bias may pass the trust region by this factor; a step that goes further is shortened and compiled again."""
TRIES = 6
"""Steps that are tried before the next round stays where the last one was, as where only whole numbers can be sent."""


@dataclass(frozen=True, slots=True)
class Rounds:
    """How the ``samples`` completions of each prompt are drawn: in ``rounds`` equal parts, the first without a bias.

    trust: most nats a completion of KL from one round's policy to the next. tau, l2: of the projection that leads from round
    to round. On exact models with a reward of which the base earns 2 to 5 %, a trust of 0.3 with l2 20 never did worse than one
    round at equal completions; 1 nat with l2 5 did where completions were long and tau small, because its steps followed noise.
    """

    rounds: int = 1
    samples: int = 10
    trust: float = 0.3
    tau: float = 0.5
    l2: float = 20.0

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise InputError(f"rounds is {self.rounds}; at least 1 is needed, which samples the base model only")
        if self.samples < self.rounds:
            raise InputError(
                f"{self.samples} completions a prompt cannot be split over {self.rounds} rounds; draw more, or take fewer rounds"
            )
        for name in ("trust", "tau", "l2"):
            positive(name, getattr(self, name))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Completions a prompt in each round; the first rounds take what does not divide."""
        return tuple(self.samples // self.rounds + (k < self.samples % self.rounds) for k in range(self.rounds))


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """One round: rollouts kept, entries of its bias, KL from the policy before it in nats a completion, and the step's share."""

    rollouts: int
    entries: int
    kl: float
    share: float


@dataclass(frozen=True, slots=True, eq=False)
class Explored:
    """training: of all rounds, with ``log_ratios`` where any had a bias. drawn: the rounds. base: (n,) what the base drew.

    effective_sample_size: how many completions of the base the pool is worth for an average that the biases do not favour.
    mean_weight: of its weights, 1 where the base model's probabilities outside the lists are right.
    """

    training: Training
    drawn: tuple[RoundRecord, ...]
    base: np.ndarray[tuple[int], np.dtype[np.bool_]]
    effective_sample_size: float
    mean_weight: float


@dataclass(frozen=True, slots=True)
class _Step:
    bias: dict[int, float]
    kl: float
    share: float


def check_rounds(session: Session, top_logprobs: int) -> None:
    """Raise InputError where completions drawn with a bias say nothing of the base model, which more than one round needs."""
    name, meaning = session.profile.name, session.profile.logprobs.meaning
    if session.biased_endpoint != session.endpoint:
        raise InputError(
            f"{name} takes a bias at its {session.biased_endpoint} endpoint and returns logprobs at {session.endpoint}, so "
            "completions drawn with a bias cannot be reweighted; use --rounds 1"
        )
    if session.profile.endpoint(session.endpoint).ask_logprobs == "no" or top_logprobs < 1:
        raise InputError(
            f"completions of {name} come without listed logprobs here, so those drawn with a bias cannot be reweighted; "
            "use --rounds 1"
        )
    if meaning not in ("before bias", "after bias"):
        raise InputError(
            f"it is not known whether {name} returns logprobs of the base or of the biased policy (logprobs.meaning is {meaning}); "
            "use --rounds 1, or let blb doctor find out"
        )


async def explore(
    trials: Trials, examples: Sequence[Example], plan: Rounds, limits: CompileLimits, source: CompletionSource | None = None
) -> Explored:
    """Draw ``plan.samples`` completions of every example in ``plan.rounds`` rounds and pool them.

    source: where they are read, None for the store of ``trials``.

    Each later round's bias is compiled to ``limits`` and is part of its keys in the store, so the same call resumes. A round before
    which no reward was seen samples as the one before it did.

    Raises:
        ProviderError: the API failed, or a round has no completion with a complete list of tokens; what was received is kept.
        InputError: this provider allows one round only (see ``check_rounds``).
    """
    if plan.rounds > 1:
        check_rounds(trials.session, trials.top_logprobs)
    after = trials.session.profile.logprobs.meaning == "after bias"
    rounds: list[Round] = []
    steps = [_Step({}, 0.0, 0.0)]
    used: Counter[tuple[tuple[int, float], ...]] = Counter()
    ends, left = trials.session.end_tokens, Counter[str]()
    for k, size in enumerate(plan.sizes):
        bias = steps[-1].bias
        title = "training" if plan.rounds == 1 else f"training, round {k + 1} of {plan.rounds}"
        seen = used[name := tuple(bias.items())]
        keys = await trials.collect(title, examples, trials.draw(SAMPLED, bias or None), seen + size)
        used[name] += size
        ends = replace(trials.end_tokens, listed=ends.listed)
        rollouts, count = scored(source or trials.store, examples, [row[seen:] for row in keys], trials.reward, ends)
        left.update(count)
        if ends.listed is None:
            ends = replace(ends, listed=not ends.ids.isdisjoint(rollouts.token_ids.tolist()))
        rounds.append(Round(rollouts, bias, after))
        pooled = pool(rounds)
        _remark(trials, title, pooled, steps[-1])
        if k + 1 < plan.rounds:
            steps.append(_step(pooled, bias, plan, limits))
    return _explored(pooled, rounds, steps, left)


def _step(pooled: Pool, sent: Mapping[int, float], plan: Rounds, limits: CompileLimits) -> _Step:
    """The bias of the next round: as far towards the fit to all rounds as the last round's completions can follow."""
    rollouts, table = pooled.rollouts, pooled.next_token
    rewards, stay = rollouts.rewards[rollouts.lengths > 0], _Step(dict(sent), 0.0, 0.0)
    if not (rewards > -np.inf).any() or np.all(rewards == rewards[0]):
        return stay
    last = len(pooled.counts) - 1
    old = table.align(list(sent), list(sent.values()))
    wanted = projection(rollouts, tau=plan.tau, l2=plan.l2, next_token=table).delta
    count, weights = pooled.counts[last], pooled.positions_of(last)
    room = plan.trust
    for _ in range(TRIES):
        step = step_within(table, old, wanted, trust=room, completions=count, position_weights=weights)
        bias = _compiled(pooled, step.delta, limits)
        new = table.align(list(bias), list(bias.values()))
        kl = policy_kl(table, old, new, completions=count, position_weights=weights)
        if kl <= plan.trust * SLACK:
            return _Step(bias, kl, step.share)
        room *= min(plan.trust / kl, 0.5)
    return stay


def _compiled(pooled: Pool, delta: np.ndarray[tuple[int], np.dtype[np.float64]], limits: CompileLimits) -> dict[int, float]:
    """What is sent, token by token in order of the ids."""
    sparse = limits.compiled(pooled.next_token, delta)
    values = np.round(sparse.values, DECIMALS)
    return {token: value for token, value in zip(sparse.token_ids.tolist(), values.tolist(), strict=True) if value}


def _remark(trials: Trials, title: str, pooled: Pool, step: _Step) -> None:
    if len(pooled.counts) < 2:
        return
    trials.report.remark(
        f"{title}: {pooled.counts[-1]} rollouts drawn with {len(step.bias)} entries, KL {step.kl:.2f} nats a completion from the "
        f"round before ({step.share:.0%} of the way to the fit); all {sum(pooled.counts)} are worth "
        f"{pooled.effective_sample_size:.0f} of the base's, mean weight {pooled.mean_weight:.2f} (1 if the tails are right)"
    )


def _explored(pooled: Pool, rounds: Sequence[Round], steps: Sequence[_Step], left: Counter[str]) -> Explored:
    rows = zip(pooled.counts, steps, strict=True)
    none = np.zeros((len(pooled.rollouts.token_ids), 0))
    rollouts = replace(
        pooled.rollouts,
        top_ids=none.astype(np.int32),
        top_logprobs=none.astype(np.float32),
        log_ratios=pooled.rollouts.log_ratios if any(each.bias for each in rounds) else None,
    )
    base = np.repeat([not each.bias for each in rounds], pooled.counts)
    return Explored(
        training=Training(rollouts, pooled.next_token, left["incomplete"], left["filtered"], base=base),
        drawn=tuple(RoundRecord(count, len(step.bias), step.kl, step.share) for count, step in rows),
        base=base,
        effective_sample_size=pooled.effective_sample_size,
        mean_weight=pooled.mean_weight,
    )
