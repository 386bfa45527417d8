"""From stored completions to what estimators read: examples, their completions and a reward become ``Rollouts``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.bias import Censored
from blackbox_lb.errors import NoLogprobs
from blackbox_lb.estimate.diagnostics import Censoring
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.estimate.statistics import Unobserved
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward
from blackbox_lb.types import NO_TOKEN, UNNAMED, BoolArray, Completion, EndTokens, Example, FloatArray

__all__ = ["Training", "censored", "columns", "training_set"]

LISTED = EndTokens()


@dataclass(frozen=True, slots=True)
class Training:
    """Scored rollouts, and how many completions were left out.

    ``incomplete``: the provider listed fewer tokens than it generated, or one without an id; ``filtered``: its content filter kept
    text back.
    """

    rollouts: Rollouts
    incomplete: int
    filtered: int

    @property
    def left_out(self) -> list[str]:
        """A sentence for each reason why completions were left out."""
        reasons = (
            (
                self.incomplete,
                "the provider did not list all of their tokens, or not with ids (as of characters split over several)",
            ),
            (self.filtered, "the provider's content filter stopped them"),
        )
        return [f"{count} completions are left out: {why}" for count, why in reasons if count]


def training_set(
    store: RolloutStore,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
    reward: Reward,
    end_tokens: EndTokens = LISTED,
) -> Training:
    """Score the completions ``keys[p]`` of ``examples[p]``. A completion that two equal prompts share counts once.

    Raises:
        NoLogprobs: no completion has a complete list of tokens with alternatives.
    """
    owner = {key: p for p, row in enumerate(keys) for key in row}
    drawn = dict(zip(owner, store.completions(owner), strict=True))
    filtered = sum(completion.filtered for completion in drawn.values())
    kept = {key: completion for key, completion in drawn.items() if completion.whole and not completion.filtered}
    if not any(len(completion.token_ids) for completion in kept.values()):
        raise NoLogprobs(
            f"none of {len(owner)} completions has a complete list of token logprobs ({filtered} were stopped by a content "
            "filter); choose a model or server that gives them, or other prompts"
        )
    prompts = [owner[key] for key in kept]
    rewards = [reward.score(examples[p], completion) for p, completion in zip(prompts, kept.values(), strict=True)]
    return Training(columns(kept, prompts, rewards, end_tokens), len(owner) - len(kept) - filtered, filtered)


def columns(
    completions: dict[str, Completion],
    prompts: Sequence[int],
    rewards: Sequence[float],
    end_tokens: EndTokens = LISTED,
) -> Rollouts:
    """Completions by key, with the number of the prompt and the reward in nats of each, laid end to end.

    The logprob of a sampled token is the one of the policy that sampled it, where the provider tells it apart. End tokens that
    stand among the alternatives and never among the sampled tokens lose their ids: nothing can be learned of them, and a fit that
    saw them predicted and never drawn would take them for forbidden.
    """
    each = list(completions.values())
    width = max((completion.top_ids.shape[1] for completion in each), default=0)
    return Rollouts(
        keys=tuple(completions),
        prompts=np.array(prompts, dtype=np.int64),
        rewards=np.array(rewards, dtype=np.float64),
        lengths=np.array([len(completion.token_ids) for completion in each], dtype=np.int64),
        token_ids=np.concatenate([completion.token_ids for completion in each]),
        logprobs=np.concatenate([_propensities(completion) for completion in each]),
        top_ids=_without(
            np.concatenate([_padded(completion.top_ids, width, NO_TOKEN) for completion in each]),
            _hidden(each, end_tokens),
        ),
        top_logprobs=np.concatenate([_padded(completion.top_logprobs, width, -np.inf) for completion in each]),
        bounded=np.concatenate([_bounded(completion) for completion in each]),
    )


def censored(rollouts: Rollouts, next_token: NextToken, unobserved: Unobserved | None = None) -> Censored:
    """What the provider kept back of these rollouts, as the bias file records it; ``unobserved`` is the rule of ``ips``."""
    return Censored(**asdict(Censoring.of(rollouts, next_token)), unobserved=unobserved)


def _propensities(completion: Completion) -> FloatArray:
    return completion.logprobs if completion.propensities is None else completion.propensities


def _bounded(completion: Completion) -> BoolArray:
    return np.zeros(len(completion.token_ids), dtype=np.bool_) if completion.bounded is None else completion.bounded


def _hidden(completions: Sequence[Completion], end_tokens: EndTokens) -> frozenset[int]:
    """The ids that a completion may end with and never lists."""
    listed = end_tokens.listed
    if listed is None:
        listed = any(not end_tokens.ids.isdisjoint(completion.token_ids.tolist()) for completion in completions)
    return frozenset() if listed else end_tokens.ids


def _without(ids: npt.NDArray[np.int32], hidden: frozenset[int]) -> npt.NDArray[np.int32]:
    return np.where(np.isin(ids, list(hidden)), UNNAMED, ids).astype(np.int32) if hidden else ids


def _padded(table: npt.NDArray[Any], width: int, fill: float) -> npt.NDArray[Any]:
    return np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=fill)
