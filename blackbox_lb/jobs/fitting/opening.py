"""Decisions learned from first lists alone: an opening against everything else, and labels
calibrated by the model's mean answer.

The first lists give the log odds of the opening at every prompt; a shift of all its tokens adds to
them. The likeliest shift of the given answers is a logistic regression with a single intercept, and
the goal then chooses the point on the curve.

Index letters: ``p`` prompts.

One position decides: a completion begins with one of these tokens, or with any other. So the first
lists hold the probability of the opening at every prompt, and nothing has to be drawn.

Index letters: ``p`` prompts.

Batch calibration (Zhou et al. 2023): every label is shifted by minus the log of its mean
probability. It needs one list a prompt and no answer, and one lift that all labels share: the
smallest with which greedy decoding begins nearly every prompt's answer with a label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit

from blackbox_lb.errors import InputError, NoLogprobs
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits
from blackbox_lb.estimate.choice.goal import OF_DECISIONS
from blackbox_lb.estimate.decisions.prediction import FirstLists, margins, roc_area
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.jobs.fitting.choosing.decision_goals import label_number, label_weights
from blackbox_lb.jobs.fitting.choosing.operating import LabelledLists, PointChoice
from blackbox_lb.jobs.fitting.choosing.proposing import (
    BATCH,
    batch_calibration,
    calibrations,
)
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.rollouts.answers.given_answers import first_lists, listed_tokens, lists_with
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.rollouts.judging.decisions import own_label_tokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.training import Training
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.sets.labels import CALLS_TOOL, OPENING, OTHER, OpenLabels
from blackbox_lb.types import Completion, Example

SELDOM = 1e-3
"""Probability at the first position of every prompt below which a token is no way to begin: a shift
of several nats makes it no likely one.
"""
MOST_SHOWN = 12
"""Tokens of an opening that are named."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The tokens that begin the wanted opening.

    tokens: sorted. texts: of each. cut: openings of several tokens, of which the first one counts.
    """

    tokens: Ids
    texts: tuple[str, ...]
    cut: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What begins the opening, and what its first token does not tell."""
        texts = ", ".join(map(repr, self.texts[:MOST_SHOWN]))
        if len(self.texts) > MOST_SHOWN:
            texts += f" and {len(self.texts) - MOST_SHOWN} more"
        sentence = f"the opening begins with {texts}"
        if self.cut:
            cut = ", ".join(map(repr, self.cut))
            sentence += f"; of {cut} the first token counts, which does not tell what follows"
        return sentence


async def opening_of(
    trials: Trials, labels: OpenLabels, completions: Sequence[Completion]
) -> Opening:
    """The tokens that begin an opening of ``labels``: those in the first lists of ``completions``
    whose text begins with one, and each opening that is one token.

    A text of several tokens that no listed token begins with counts by its first token, unless it
    is one of the common ways to call a tool, which the model may not have.

    Raises InputError: there is none, so that the model never begins in this way.
    """
    best: dict[int, float] = {}
    for completion in completions:
        for token, logprob in listed_tokens(completion).items():
            best[token] = max(best.get(token, -np.inf), logprob)
    likely = sorted(
        token for token, logprob in best.items() if token >= 0 and logprob >= np.log(SELDOM)
    )
    texts = await _texts(trials, likely)
    openings = {token: text for token, text in texts.items() if labels.opens(text)}
    cut = []
    for opening in labels.openings:
        ids = await trials.session.encode(opening)
        decoded = (await trials.session.decode(ids)).strip()
        if decoded not in (opening, ""):  # a special token may be printed as nothing
            continue
        is_met = any(text.lstrip().startswith(opening) for text in openings.values())
        if len(ids) == 1:
            openings.setdefault(ids[0], opening)
        elif ids and not is_met and labels.spec != CALLS_TOOL:
            openings.setdefault(ids[0], opening)
            cut.append(opening)
    if not openings:
        raise InputError(
            f"no token of {trials.session.model} begins {shorten(', '.join(labels.openings))}; give"
            " the beginning of completions as the model writes them"
        )
    tokens = np.array(sorted(openings), np.int64)
    return Opening(tokens, tuple(openings[token] for token in tokens.tolist()), tuple(cut))


async def _texts(trials: Trials, tokens: Sequence[int]) -> dict[int, str]:
    """Token id -> its text, by the vocabulary or the answers so far, else by the server."""
    token_bytes = {
        **trials.session.texts_of_vocabulary(),
        **trials.store.token_bytes(trials.tokenizer.fingerprint),
    }
    texts = {
        token: token_bytes[token].decode("utf-8", "replace")
        for token in tokens
        if token_bytes.get(token)
    }
    unknown = [token for token in tokens if token not in texts]
    for token, text in zip(unknown, await trials.session.texts_of(unknown), strict=True):
        texts[token] = text or ""
    return texts


def opening_log_odds(lists: FirstLists, tokens: Ids) -> Vector:
    """(p,) log odds in nats that a completion begins with one of ``tokens``, at temperature 1.

    What a list leaves out counts as another beginning.
    """
    logprobs = np.where(lists.ids >= 0, lists.logprobs.astype(np.float64), -np.inf)
    share = np.exp(np.where(np.isin(lists.ids, tokens), logprobs, -np.inf)).sum(axis=1)
    share = np.clip(share, 1e-12, 1 - 1e-12)
    return np.asarray(np.log(share) - np.log1p(-share))


MOSTLY = 0.95
"""Share of the prompts whose answer must begin with a label under the chosen lift."""


def check_unlabelled(trials: Trials, plan: FitPlan) -> None:
    """Raise InputError: there are no labels, or something was asked for that needs answers."""
    if plan.labels is None:
        raise InputError(
            "without answers nobody knows what the labels are; name them, as in ``labels=yes,no``"
        )
    refused = {
        "``depends_on``": bool(plan.depends_on),
        "``phases``": plan.phases is not None,
        "``engine``": trials.engine is not None,
        "``only_stored``": plan.only_stored,
    }
    for option, is_given in refused.items():
        if is_given:
            raise InputError(
                f"``learn_from=unlabelled`` shifts the labels by the model's mean answer, the same"
                f" for all prompts; leave out {option}"
            )


async def calibrated(
    trials: Trials, examples: Sequence[Example], plan: FitPlan, limits: CompileLimits
) -> tuple[Training, Candidate]:
    """The lists of ``examples`` as training data, and the calibrated bias.

    Raises:
        InputError: two labels begin with the same tokens. NoLogprobs: no list holds the labels.
    """
    labels = plan.labels
    tokens = None
    if labels is not None:
        tokens = await own_label_tokens(trials, labels)
    if tokens is None:
        raise InputError(
            "two of the labels begin with the same tokens, so that the first one does not tell them"
            " apart; rename one in the prompts and in ``labels``"
        )
    completions, width = await first_lists(trials, examples, "training", plan.listed)
    listed = {
        f"{example.id}\0{number}": completion
        for number, (example, completion) in enumerate(zip(examples, completions, strict=True))
        if len(completion.token_ids) and len(completion.top_ids)
    }
    lists = lists_with(list(listed.values()), np.concatenate(tokens))
    prior = batch_calibration([lists], tokens)
    if prior is None:
        raise NoLogprobs(
            f"none of {len(completions)} first tokens came with a list that holds a label; use a"
            " provider that returns more alternatives, or prompts that ask for the labels"
        )
    rollouts = columns(listed, range(len(listed)), [0.0] * len(listed), trials.end_tokens)
    table = NextToken.of(rollouts).with_tokens(prior.every_id)
    trials.report.notice(
        f"{len(listed):,} prompts without their answers, from lists of up to {width:,} tokens"
    )
    return Training(rollouts.without_lists(), table, 0, 0), _lifted(prior, table, limits)


def _lifted(prior: Prior, table: NextToken, limits: CompileLimits) -> Candidate:
    """The calibration with the smallest lift that makes nearly all answers begin with a label."""
    candidates = [
        candidate
        for candidate in calibrations([prior], table, limits)
        if candidate.settings["calibration"] == BATCH
    ]
    for candidate in candidates:
        if _share_of_labels(candidate, prior.lifted, table) >= MOSTLY:
            return candidate
    return candidates[-1]


def _share_of_labels(candidate: Candidate, labels: Ids, table: NextToken) -> float:
    """The mean probability that the first token is one of a label."""
    sent = table.align(candidate.sparse.token_ids, candidate.sparse.values)
    is_label = np.isin(table.token_ids, labels).astype(np.float64)
    return float(table.mean(is_label, sent).mean())


SPREAD = 5.0
"""Nats, the standard deviation of a shift beforehand: it keeps the shift of separated prompts
finite, and weighs as much as a quarter of a prompt.
"""
FARTHEST = 40.0
"""Nats beyond which no shift is looked for."""


def check_opening(trials: Trials, plan: FitPlan, labels: OpenLabels) -> None:
    """Raise InputError where the plan asks for what an open label has not."""
    refused = {
        "``depends_on``": bool(plan.depends_on),
        "``phases``": plan.phases is not None,
        "``engine``": trials.engine is not None,
        "``only_stored``": plan.only_stored,
    }
    for option, is_given in refused.items():
        if is_given:
            raise InputError(
                f"``decide={labels.spec}`` learns one shift of the opening's tokens, the same for"
                f" all prompts; leave out {option}"
            )
    if not plan.selects_offline:
        raise InputError(
            f"``decide={labels.spec}`` is learned from the answers that the data want and predicted"
            " for greedy decisions; use ``reward=accuracy`` and ``deploy=greedy``, and try other"
            " settings afterwards with blb eval"
        )
    if plan.goal.objective not in OF_DECISIONS:
        raise InputError(
            f"``objective={plan.goal.spec}`` needs completions that are drawn, and"
            f" ``decide={labels.spec}`` draws none to choose by; use accuracy, balanced, cost:FILE"
            " or an operating point"
        )
    if plan.goal.positive is not None:
        number = label_number(labels, plan.goal.positive, "positive")
        if number != OPENING:
            raise InputError(
                f"``positive={plan.goal.positive}`` is everything but the opening, and the point is"
                f" a shift of the opening's tokens; use ``positive={labels.names[OPENING]}``, or"
                " leave it out"
            )


@dataclass(frozen=True, slots=True, eq=False)
class OpeningLists:
    """Prompts with their first lists, of those that came with one.

    completions: of one token each. numbers: (p,) of the wanted label.
    """

    completions: tuple[Completion, ...]
    numbers: Ids

    @classmethod
    async def of(
        cls,
        trials: Trials,
        examples: Sequence[Example],
        title: str,
        plan: FitPlan,
        labels: OpenLabels,
    ) -> OpeningLists:
        """The lists of ``examples``, drawn unless they are in the store.

        Raises NoLogprobs: no prompt came with a list; ProviderError: the API failed.
        """
        completions, width = await first_lists(trials, examples, title, plan.listed)
        hidden = sum(bool(answer.tool_calls) and not len(answer.top_ids) for answer in completions)
        if hidden:
            raise NoLogprobs(
                f"{hidden} of {len(examples)} {title} prompts were answered by a call whose tokens"
                f" {trials.session.profile.name} does not list, so that nothing tells how likely a"
                " call was; use vllm, sglang, llamacpp or local"
            )
        rows = [
            (completion, labels.of(example))
            for example, completion in zip(examples, completions, strict=True)
            if len(completion.top_ids) and (completion.top_ids[0] >= 0).any()
        ]
        if not rows:
            raise NoLogprobs(
                f"none of {len(examples)} first tokens came with a list of alternatives; use a"
                " provider that returns logprobs"
            )
        trials.report.notice(
            f"{len(rows)} of {len(examples)} {title} prompts came with a first list of up to"
            f" {width:,} tokens"
        )
        numbers = np.array([number for _, number in rows], np.int64)
        return cls(tuple(completion for completion, _ in rows), numbers)

    @property
    def is_wanted(self) -> Bools:
        """(p,) whether the opening is wanted."""
        return np.asarray(self.numbers == OPENING)

    def lists(self, tokens: Ids) -> FirstLists:
        """The lists, with each of ``tokens``."""
        return lists_with(self.completions, tokens)

    def labelled(self, tokens: Ids) -> LabelledLists:
        """The lists with ``tokens``, as a curve is made of them."""
        return LabelledLists(self.lists(tokens), self.is_wanted, self.numbers)


def training_of(trials: Trials, lists: OpeningLists, opening: Opening) -> Training:
    """The first positions as training data, with the opening's tokens in every list."""
    rows = {str(number): completion for number, completion in enumerate(lists.completions)}
    rollouts = columns(rows, range(len(rows)), [0.0] * len(rows), trials.end_tokens)
    table = NextToken.of(rollouts).with_tokens(opening.tokens)
    return Training(rollouts.without_lists(), table, 0, 0)


def likeliest_shift(log_odds: Vector, is_wanted: Bools, weights: Vector | None) -> float:
    """The shift in nats with the likeliest answers, log-likelihood less ``shift^2 / (2 SPREAD^2)``.

    log_odds: (p,) of the opening without a bias. is_wanted: (p,). weights: (p,), None for 1 each.
    """
    prompt_weights = np.ones(len(log_odds)) if weights is None else weights

    def slope(shift: float) -> float:
        missing = is_wanted - expit(log_odds + shift)
        return float((prompt_weights * missing).sum() - shift / SPREAD**2)

    return float(brentq(slope, -FARTHEST, FARTHEST, xtol=1e-10))


def shifted_candidate(
    labels: OpenLabels,
    opening: Opening,
    lists: OpeningLists,
    table: NextToken,
    limits: CompileLimits,
    plan: FitPlan,
) -> Candidate:
    """The likeliest shift of the opening's tokens as a candidate."""
    weights = label_weights(plan.goal, labels, lists.numbers)
    log_odds = opening_log_odds(lists.lists(opening.tokens), opening.tokens)
    shift = likeliest_shift(log_odds, lists.is_wanted, weights)
    sent = np.clip(
        table.align(opening.tokens, np.full(len(opening.tokens), shift)), limits.low, limits.high
    )
    return Candidate.of_vector(
        sent,
        table,
        limits,
        estimator="opening",
        settings={"decide": labels.spec, "likeliest": round(shift, 4)},
        origin=f"the likeliest shift of the opening ({shift:+.2f} nats)",
    )


def opening_point(
    plan: FitPlan,
    labels: OpenLabels,
    opening: Opening,
    training: OpeningLists,
    validation: OpeningLists,
) -> PointChoice:
    """The decision whose point the goal chooses."""
    learned = training.labelled(opening.tokens)
    chosen_by = validation.labelled(opening.tokens)
    scores = [margins(part.lists, {}, opening.tokens) for part in (learned, chosen_by)]
    is_wanted = np.concatenate([learned.is_positive, chosen_by.is_positive])
    return PointChoice(
        goal=plan.goal,
        labels=labels,
        positive=OPENING,
        label_tokens=(opening.tokens, np.zeros(0, np.int64)),
        training=learned,
        validation=chosen_by,
        area=roc_area(np.concatenate(scores), is_wanted),
        otherwise=OTHER,
    )
