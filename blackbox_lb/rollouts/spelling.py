"""The bytes of tokens that no answer shows, stored where a reward has places to be located."""

from __future__ import annotations

from collections.abc import Sequence

from blackbox_lb.rollouts.columns import sampled_ids
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward
from blackbox_lb.types import Example

REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


async def spell_tokens(
    trials: Trials, examples: Sequence[Example], keys: Sequence[Sequence[str]]
) -> None:
    """Store the bytes of every token of the completions ``keys[p]`` of ``examples[p]``, so that
    places in their texts can be mapped to tokens.

    Nothing is done for a reward without places in the text. Answers show the bytes of what they
    list, where a provider's bytes are exact; the others are those of the vocabulary, else what the
    server prints. A part of a character, which it cannot print, stays unknown.
    """
    session = trials.session
    if not _gives_spans(trials.reward, trials.store, examples, keys):
        return
    fingerprint = trials.tokenizer.fingerprint
    flat = [key for row in keys for key in row]
    sampled = sampled_ids(zip(flat, trials.store.completions(flat), strict=True))
    stored = trials.store.token_bytes(fingerprint)
    missing = sorted(token for token in sampled if token >= 0 and token not in stored)
    spelled = zip(missing, await session.bytes_of(missing), strict=True)
    are_exact = session.vocabulary is not None
    trials.store.add_token_bytes(
        fingerprint,
        {token: raw for token, raw in spelled if raw and (are_exact or REPLACEMENT not in raw)},
    )


def _gives_spans(
    reward: Reward,
    store: RolloutStore,
    examples: Sequence[Example],
    keys: Sequence[Sequence[str]],
) -> bool:
    """Whether the reward has places to be looked up; a function of the user's own is asked about
    one completion, where it has not answered yet, as before a fit from stored completions.
    """
    if reward.credit == "open":
        for example, row in zip(examples, keys, strict=True):
            for completion in store.completions(row):
                if completion.readable:
                    return reward.score(example, completion).spans is not None
    return reward.credit == "places"
