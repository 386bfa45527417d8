"""Completions laid end to end as the columns of ``Rollouts``, with the end tokens and stop texts
that lose their ids.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.estimate.inputs.rollouts import Rollouts, padded
from blackbox_lb.types import NO_TOKEN, UNNAMED, Completion, EndTokens

LISTED = EndTokens()
ONE_POLICY = 0.02
"""Mean difference in nats between the logprobs of the model and of the policy that sampled, up to
which they are one policy: what servers round and repeat differently is less, and a truncated or
biased one differs by more.
"""


def columns(
    completions: dict[str, Completion],
    prompts: Sequence[int],
    rewards: Sequence[float],
    end_tokens: EndTokens = LISTED,
    costs: npt.NDArray[np.float64] | None = None,
) -> Rollouts:
    """Completions by key, with the number of the prompt and the reward in nats of each, laid end to
    end. costs: (m,) what each of their positions adds to the reward, see ``Rollouts``.

    The logprob of a sampled token is that of the policy that sampled it, where the provider gives
    it; where that policy is not the one that the lists are of, it is not the base model. End
    tokens, and tokens that begin a stop text, lose their ids if they stand among the alternatives
    and never among the sampled tokens: they teach nothing, and a fit that saw them predicted and
    never drawn would treat them as forbidden.
    """
    rows = list(completions.values())
    width = max((completion.top_ids.shape[1] for completion in rows), default=0)
    hidden = list(_hidden(completions.items(), end_tokens))
    top_ids = _stacked([completion.top_ids for completion in rows], width, NO_TOKEN)
    if hidden:
        top_ids = np.where(np.isin(top_ids, hidden), UNNAMED, top_ids).astype(np.int32)
    return Rollouts(
        keys=tuple(completions),
        prompts=np.array(prompts, dtype=np.int64),
        rewards=np.array(rewards, dtype=np.float64),
        lengths=np.array([len(completion.token_ids) for completion in rows], dtype=np.int64),
        token_ids=np.concatenate([completion.token_ids for completion in rows]),
        logprobs=np.concatenate(
            [row.logprobs if row.propensities is None else row.propensities for row in rows]
        ),
        top_ids=top_ids,
        top_logprobs=_stacked([completion.top_logprobs for completion in rows], width, -np.inf),
        bounded=np.concatenate(
            [
                np.zeros(len(row.token_ids), np.bool_) if row.bounded is None else row.bounded
                for row in rows
            ]
        ),
        drawn_by_base=_drawn_by_base(rows),
        costs=costs,
    )


def _drawn_by_base(completions: Sequence[Completion]) -> npt.NDArray[np.bool_]:
    """(n,) whether the base model drew each of ``completions``, as far as is known.

    All completions together decide, so that no choice depends on the tokens of one.
    """
    sampled = [completion for completion in completions if completion.propensities is not None]
    gaps = [
        np.abs(completion.propensities - completion.logprobs)[
            slice(None) if completion.bounded is None else ~completion.bounded
        ]
        for completion in sampled
        if completion.propensities is not None
        and completion.propensities.shape == completion.logprobs.shape
    ]
    apart = np.concatenate(gaps) if gaps else np.zeros(0)
    if not apart.size or float(apart.mean()) <= ONE_POLICY:
        return np.ones(len(completions), np.bool_)
    return np.array([completion.propensities is None for completion in completions], np.bool_)


def _stacked(tables: Sequence[npt.NDArray[Any]], width: int, fill: float) -> npt.NDArray[Any]:
    """The tables one below the other, padded with ``fill`` to ``width`` columns."""
    return np.concatenate(
        [table if table.shape[1] == width else padded(table, width, fill) for table in tables]
    )


def stop_prefix_ids(token_bytes: Mapping[int, bytes], stop: Sequence[str]) -> frozenset[int]:
    """The tokens of ``token_bytes`` (id -> bytes) in which a stop text may begin: they hold it, or
    end with its beginning.
    """
    texts = [text.encode() for text in stop]
    begun = tuple(text[:size] for text in texts for size in range(1, len(text) + 1))
    return frozenset(
        token
        for token, raw in token_bytes.items()
        if raw.endswith(begun) or any(text in raw for text in texts)
    )


def sampled_ids(completions: Iterable[tuple[str, Completion]]) -> frozenset[int]:
    ids: npt.NDArray[np.int32] = np.zeros(0, dtype=np.int32)
    for _, completion in completions:
        ids = np.union1d(ids, completion.token_ids)
    return frozenset(ids.tolist())


def resolve_end_tokens(end_tokens: EndTokens, sampled: frozenset[int]) -> EndTokens:
    """Settle, by the ``sampled`` ids, whether end tokens are listed, and which openers are never
    sampled.
    """
    listed = end_tokens.listed
    if listed is None:
        listed = not end_tokens.ids.isdisjoint(sampled)
    return replace(end_tokens, listed=listed, stop_prefix_ids=end_tokens.stop_prefix_ids - sampled)


def _hidden(completions: Iterable[tuple[str, Completion]], end_tokens: EndTokens) -> frozenset[int]:
    """The ids that may end a completion and are never listed there."""
    if end_tokens.listed and not end_tokens.stop_prefix_ids:
        return frozenset()
    end_tokens = resolve_end_tokens(end_tokens, sampled_ids(completions))
    if end_tokens.listed:
        return end_tokens.stop_prefix_ids
    return end_tokens.stop_prefix_ids | end_tokens.ids
