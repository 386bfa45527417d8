"""Everything that takes part in the search: what the estimators learn, and what rules, labels and
calibration know without learning.

Rules, boosts and calibrations are vectors that somebody would write by hand. As candidates beside
the learned ones, none of them can beat the choice on the prompts that made it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from blackbox_lb.bias.records import Calibration, LabelTokens, label_scores
from blackbox_lb.estimate.choice.candidates import (
    BOOSTS,
    Candidate,
    CompileLimits,
    boosts,
    candidates,
    compiled,
    rules,
)
from blackbox_lb.estimate.choice.estimator import Proposal
from blackbox_lb.estimate.decisions.feasibility import pulled_shifts
from blackbox_lb.estimate.decisions.first_lists import FirstLists, among
from blackbox_lb.estimate.decisions.prediction import expected_calibration_error
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.estimate.label_fit import FREE_SLOPE, label_fit
from blackbox_lb.estimate.next_token.next_token import NextToken, aligned
from blackbox_lb.estimate.projection.projection import DEFAULT_STRENGTHS, Prior
from blackbox_lb.jobs.fitting.choosing.operating import LabelledLists
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import AnswersToLearn
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.sets.labels import Labels

FEWEST = 2
"""Labels that the training prompts must have at least."""


def calibration_of(
    names: Sequence[str],
    tokens: Sequence[Ids],
    training: LabelledLists,
    held_out: Sequence[tuple[LabelledLists, LabelledLists]],
) -> Calibration | None:
    """The calibration of a decision; None where the training prompts have fewer than two labels.

    Args:
        names: (l,) of the labels.
        tokens: (l,) those that begin each label and no other; none for everything else.
        training: the first positions that it is learned from.
        held_out: those that tell its error, behind those that it is learned from for them: other
            prompts behind ``training``, or each fold behind all other folds.
    """
    calibration = _calibration(names, tokens, training)
    if calibration is None:
        return None
    parts = [
        (calibration if learned is training else _calibration(names, tokens, learned), judged)
        for learned, judged in held_out
    ]
    return calibration.replacing(error=_error(parts))


def _calibration(
    names: Sequence[str], tokens: Sequence[Ids], training: LabelledLists
) -> Calibration | None:
    """The calibration without its error; None where the prompts have fewer than two labels."""
    token_ids = [tuple(ids.tolist()) for ids in tokens]
    scores = []
    numbers = []
    for number, listed in zip(training.labels.tolist(), training.lists.mappings(), strict=True):
        score = label_scores(listed, token_ids)
        if score is not None:
            scores.append(score)
            numbers.append(number)
    if len(set(numbers)) < FEWEST:
        return None
    weight, offsets = label_fit(
        np.array(scores, np.float64), np.array(numbers, np.int64), slope=FREE_SLOPE
    )
    rows = [
        LabelTokens(label=name, token_ids=ids, offset=offset)
        for name, ids, offset in zip(names, token_ids, offsets.tolist(), strict=True)
    ]
    return Calibration(labels=tuple(rows), weight=weight, prompts=len(numbers))


def _error(parts: Iterable[tuple[Calibration | None, LabelledLists]]) -> float | None:
    """The expected calibration error on the prompts behind each calibration; None without one."""
    confidence = []
    is_right = []
    for calibration, judged in parts:
        if calibration is None:
            continue
        for number, listed in zip(judged.labels.tolist(), judged.lists.mappings(), strict=True):
            probabilities = calibration.probabilities(listed)
            if probabilities is None:
                continue
            decided = max(probabilities, key=lambda label: probabilities[label])
            confidence.append(probabilities[decided])
            is_right.append(decided == calibration.labels[number].label)
    if confidence:
        return expected_calibration_error(confidence, is_right)
    return None


BATCH = "batch calibration"
ANSWERED = "calibration by the answers"
LABELS_ONLY = "labels only"
LIFTS = (0.0, 2.0, 5.0, 10.0)
"""Nats of a shift that all labels share, over everything else that the model may say."""
PULLS = (30.0, 10.0, 3.0)
"""Strengths of the pull to the calibration, in weighted tokens."""
STANDING_PULL = 10.0
"""Of the one that teaches the lift of all labels, and what follows them, to the candidate that
stands."""


def batch_calibration(lists: Sequence[FirstLists], tokens: Sequence[Ids]) -> Prior | None:
    """The mean answer of the model over prompts, divided out (Zhou et al. 2023, "Batch
    Calibration"): every label's tokens are shifted by minus the label's mean logprob. It reads no
    answer. A label's probability is that of its likeliest token: greedy decoding decides between
    tokens, and a label of many spellings loses what they share out.

    The paper takes the log of the mean probability, which the few prompts decide that are sure of a
    rare label; the mean of logprobs (as the code of Bhatt and Ivanova 2026, "RBCorr") decides up to
    3 points more right, and nowhere less (docs/estimators.md).

    Args:
        lists: those at the place of the answer, of prompts with and without a known answer.
        tokens: (l,) those that begin each label.

    Returns:
        The prior with a shift of mean 0 over the labels, and a lift that all of them share and that
        costs no penalty. None where no list holds every label's probability.
    """
    parts = [_shares_of_likeliest(part, tokens) for part in lists]
    shares = np.concatenate(parts).astype(np.float64)
    shares = shares[~np.isnan(shares).any(axis=1)]
    if not len(shares):
        return None
    shifts = -np.log(np.maximum(shares, LEAST_SHARE)).mean(axis=0)
    shifts -= shifts.mean()
    return _of_labels(BATCH, shifts, tokens)


def _shares_of_likeliest(lists: FirstLists, tokens: Sequence[Ids]) -> Vector:
    """(p, l) the probability of the likeliest token of each label, among those of all labels; NaN
    without a list. A label that a list leaves out is not impossible.
    """
    wide = lists.with_tokens(np.concatenate(tokens))
    # In the precision of the lists: a bias that differs in its last digits is another request.
    return among(np.exp(wide.best(tokens).astype(np.float32)))


LEAST_SHARE = 1e-6
"""Probability of a label among the labels, at least."""
ANSWERS_PULL = 30.0
"""Labelled prompts that batch calibration counts for where answers move it: with few it stays, and
with hundreds the answers decide."""


def answered_calibration(
    prior: Prior,
    answered: FirstLists,
    numbers: Ids,
    tokens: Sequence[Ids],
    weights: Vector | None = None,
) -> Prior:
    """Batch calibration, moved to where it decides the answered prompts right.

    Args:
        prior: the batch calibration.
        answered: lists at the place of the answer.
        numbers: (p,) the right label of each list, -1 where it has none.
        tokens: (l,) those that begin each label.
        weights: (p,) what each prompt counts, all alike if None.
    """
    shares = _shares_of_likeliest(answered, tokens)
    is_usable = ~np.isnan(shares).any(axis=1) & (numbers >= 0)
    means = dict(zip(prior.token_ids.tolist(), prior.means.tolist(), strict=True))
    of_label = np.array([means.get(int(ids[0]), 0.0) for ids in tokens])
    scores = np.log(np.maximum(shares[is_usable], LEAST_SHARE)) + of_label
    counts = None
    if weights is not None:
        counts = weights[is_usable]
    shifts = of_label + pulled_shifts(scores, numbers[is_usable], ANSWERS_PULL, counts)
    return _of_labels(ANSWERED, shifts, tokens)


def _of_labels(name: str, shifts: Vector, tokens: Sequence[Ids]) -> Prior:
    """The prior whose tokens of each label have its shift (l,), and all of them a free lift."""
    means = {
        token: shift
        for ids, shift in zip(tokens, shifts.tolist(), strict=True)
        for token in ids.tolist()
    }
    return Prior.of(name, means, np.concatenate(list(tokens)), PULLS, STANDING_PULL)


def label_priors(
    answers: AnswersToLearn, labels: Labels, without_answers: Sequence[FirstLists]
) -> tuple[Prior, ...]:
    """The calibration by the answers, and batch calibration; none where two labels begin alike or
    no list holds every label.

    without_answers: lists of more prompts, of which no answer is read.
    """
    tokens = answers.taught
    if tokens is None:
        return ()
    answered = answers.first.whole
    batch = batch_calibration([answered, *without_answers], tokens)
    if batch is None:
        return ()
    numbers = answers.first.labels_of(labels)
    return (answered_calibration(batch, answered, numbers, tokens, answers.weights), batch)


def with_labels_of(
    prior: Prior, candidate: Candidate, next_token: NextToken, limits: CompileLimits
) -> Candidate:
    """A learned candidate whose labels differ from each other as in a calibration by the answers;
    their common lift, and what follows them, stays as learned. It stands.

    The likelihood of the answers would move the labels once more, and without a scale.
    """
    support = candidate.token_ids
    values = candidate.values.copy()
    is_label = np.isin(support, prior.lifted)
    means = aligned(support, prior.token_ids, prior.means)[is_label]
    values[is_label] = means + (values[is_label] - means).mean()
    proposal = Proposal(
        {**candidate.settings, "calibration": ANSWERED},
        support,
        values,
        estimator="calibration",
        origin=f"{ANSWERED}, all else learned",
    )
    calibrated = compiled(proposal, next_token, limits)
    return replace(calibrated, stands=True, learned_from=candidate)


def calibrations(priors: Sequence[Prior]) -> Iterator[Proposal]:
    """Each calibration itself, and the labels without any, with each of ``LIFTS`` on all labels."""
    token_ids = np.unique(np.concatenate([prior.every_id for prior in priors]))
    is_label = np.isin(token_ids, np.concatenate([prior.lifted for prior in priors]))
    by_name = {prior.name: aligned(token_ids, prior.token_ids, prior.means) for prior in priors}
    by_name[LABELS_ONLY] = np.zeros(len(token_ids))
    for name, means in by_name.items():
        for lift in LIFTS:
            values = means + lift * is_label
            if not values.any():
                continue
            yield Proposal(
                {"calibration": name, "lift": lift},
                token_ids,
                values,
                estimator="calibration",
                origin=f"{name} with a lift of {lift:g} nats" if lift else name,
            )


MOST_RULED = 2_000
"""Tokens of a rule that are learned about and moved, the most used first: a script has tens of
thousands. Where a bias may have any number of entries, the ban has them all."""
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
        costs: what each token earns by its own text, where the reward is a rule about the text: of
            the tokens that are used most.
        banned: the same of every token that a ban may hold.
        labels: calibrations, where the model decides between labels; projections are pulled to the
            first one.
        boosted: what is ended -> the tokens that end it, where the reward is about length.
    """

    costs: Prior | None = None
    banned: Prior | None = None
    labels: tuple[Prior, ...] = ()
    boosted: Mapping[str, Ids] = field(default_factory=dict)

    @property
    def priors(self) -> tuple[Prior, ...]:
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
    training: Positions,
    limits: CompileLimits,
    labels: tuple[Prior, ...],
) -> Knowledge:
    """Gather what is known of tokens.

    Args:
        trials: the model and the reward.
        training: the completions that are learned from.
        limits: the provider's, on a bias.
        labels: calibrations, where the model decides between labels.
    """
    boosted = await boosted_tokens(trials, training)
    every = token_costs(trials, training, limits)
    if every is None:
        return Knowledge(labels=labels, boosted=boosted)
    costs = most_used(every, training.next_token)
    return Knowledge(costs, every if limits.entries is None else costs, labels, boosted)


def most_beside(reward: Reward) -> int:
    """The most proposals of a search beside the sweep's own, for a reward that has not scored
    anything yet.
    """
    count = 0
    if reward.has_token_costs:
        count += len(DEFAULT_STRENGTHS) + RULED
    if reward.by_length:
        count += len(BOOSTS)
    if reward.thinking is not None:
        count += len(BOOSTS)
    return count


def token_costs(trials: Trials, training: Positions, limits: CompileLimits) -> Prior | None:
    """What each token of the vocabulary earns by its own text; None where the reward is no rule
    about the text.
    """
    if not trials.reward.has_token_costs:
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
    earned = trials.reward.token_costs(decoded, typical).astype(np.float64)
    counted = np.flatnonzero(earned)
    if not counted.size:
        return None
    return Prior(trials.reward.name, ids[counted], earned[counted], by_tau=True)


def most_used(costs: Prior, next_token: NextToken) -> Prior:
    """``costs`` of the ``MOST_RULED`` tokens that the model uses most."""
    wide = next_token.with_tokens(costs.token_ids)
    usage = wide.expected(np.zeros(len(wide.token_ids)))
    usage_of = usage[np.searchsorted(wide.token_ids, costs.token_ids)]
    kept = np.sort(np.argsort(-usage_of, kind="stable")[:MOST_RULED])
    return replace(costs, token_ids=costs.token_ids[kept], means=costs.means[kept])


def _decoded(raw: bytes) -> str:
    """The text of a token; empty where it is a part of a character."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return ""


async def boosted_tokens(trials: Trials, training: Positions) -> dict[str, Ids]:
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
    training: Positions, sweep: Sweep, limits: CompileLimits, knowledge: Knowledge
) -> Iterator[Candidate]:
    """All candidates of the first race, the learned ones first.

    Args:
        training: with every token of ``knowledge`` on its support.
        sweep: the estimators and their settings.
        limits: the provider's.
        knowledge: what is known of tokens, nothing where only the sweep is to be tried.

    Raises:
        InputError: no completion earned a reward, or a setting is out of range.
    """
    table = training.next_token
    for candidate in candidates(
        training, sweep, limits, everywhere=training.everywhere, priors=knowledge.priors
    ):
        prior = next(iter(knowledge.labels), None)
        if prior is None or not candidate.stands:  # a calibration alone has one that stands
            yield candidate
            continue
        yield replace(candidate, stands=False)
        yield with_labels_of(prior, candidate, table, limits)
    by_hand = [*boosts(knowledge.boosted)]
    if knowledge.costs is not None:
        by_hand = [*rules(knowledge.costs, limits.low, knowledge.banned), *by_hand]
    if knowledge.labels:
        by_hand += calibrations(knowledge.labels)
    for proposal in by_hand:
        yield compiled(proposal, table, limits)


def with_knowledge(training: Positions, knowledge: Knowledge) -> Positions:
    """``training`` with every token that something is known of on its support."""
    ids = knowledge.token_ids
    if training.everywhere is not None or not ids.size:
        return training
    return training.with_tokens(ids)
