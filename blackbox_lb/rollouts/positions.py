"""Positions: the data of an estimator, made from rollouts or read from a store."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.training import training_set
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.types import EndTokens


@dataclass(frozen=True, slots=True, eq=False)
class Positions:
    """Scored completions, and the model's next tokens at each of their positions.

    rollouts: the completions with their rewards. next_token: of the same positions, in their order.
    """

    rollouts: Rollouts
    next_token: NextToken

    @classmethod
    def of(cls, rollouts: Rollouts, *, vocab_size: int | None = None) -> Positions:
        """From rollouts that have their lists. vocab_size: lists of that many tokens are complete.

        Raises:
            InputError: no position, or a list that is no distribution.
        """
        return cls(rollouts, NextToken.of(rollouts, vocab_size=vocab_size))

    @classmethod
    def load(
        cls,
        path: Path | str,
        task: Task,
        reward: Reward,
        *,
        end_tokens: EndTokens | None = None,
        vocab_size: int | None = None,
    ) -> Positions:
        """From a store: the base model's completions of the task's training prompts, scored.

        Args:
            path: of a store, such as ``runs/x/rollouts.db``. It is only read.
            task: its training prompts are looked for, word for word.
            reward: of a completion.
            end_tokens: how the provider lists end tokens; None where its profile says that it lists
                them.
            vocab_size: lists of that many tokens are complete.

        Raises:
            InputError: the store holds no such completion, or it is not known whether the provider
            lists end tokens. NoLogprobs: none lists its tokens with alternatives. StoreError: it
            cannot be read.
        """
        with RolloutStore(path, read_only=True) as store:
            requests = {
                name: settings
                for name, settings in store.requests().items()
                if _drawn_from_base(settings)
            }
            by_prompt: dict[Any, list[str]] = {}
            for request in requests:
                for key, prompt in store.prompts(request).items():
                    by_prompt.setdefault(prompt, []).append(key)
            keys = [by_prompt.get(example.prompt, []) for example in task.train]
            if not any(keys):
                raise InputError(
                    f"{store.path} holds no completion of the {len(task.train)} training prompts of"
                    f" {task.name} without a bias, at temperature 1 and without stop texts; give"
                    " the task that was collected"
                )
            if end_tokens is None:
                end_tokens = _listed_ends(requests)
            read = training_set(store, task.train, keys, reward, end_tokens, vocab_size=vocab_size)
        return cls(read.rollouts, read.next_token)


def _drawn_from_base(settings: Mapping[str, Any]) -> bool:
    sampling = settings.get("sampling") or {}
    return (
        not settings.get("bias")
        and "prefix" not in settings
        and sampling.get("temperature") == 1
        and not sampling.get("stop")
    )


def _listed_ends(requests: Mapping[str, Mapping[str, Any]]) -> EndTokens:
    """End tokens that are listed. InputError: a provider is not known to list them."""
    names = sorted({str(settings.get("provider")) for settings in requests.values()})
    profiles = profile_names()
    silent = [
        name
        for name in names
        if name not in profiles or load_profile(name).logprobs.end_token_listed is not True
    ]
    if silent:
        raise InputError(
            f"{', '.join(silent)} is not known to list the token that ends a completion, so its id"
            " must be known to leave it alone: give end_tokens=EndTokens(False, the ids of the"
            " special tokens), or EndTokens(True) where it is listed"
        )
    return EndTokens(True)
