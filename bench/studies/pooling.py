"""One pool of completions, read under every policy: what stored completions say of biases that drew
few of them, or none.

Each completion carries the base model's logprobs, so it counts for every policy, with the weight
that the balance heuristic gives it (Veach and Guibas, "Optimally combining sampling techniques for
Monte Carlo rendering", 1995).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from bench.studies.compiled import Row
from bench.studies.coupled import Kept, kept, scores_of, stored_keys
from blackbox_lb import Trials
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting.divergence import log_policy_ratios
from blackbox_lb.estimate.reweighting.weight_diagnostics import effective_sample_size
from blackbox_lb.rollouts.collect import settings_of
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.types import Draw, Example, Sampling

__all__ = ["Policy", "Pooled", "pooled", "stored_policies"]

Vector = npt.NDArray[np.float64]
WILD = 5.0
"""Nats. A larger bias on rare tokens tilts the tail beyond what its model is good for: with such
policies in the pool the mean weights, 1 in truth, are 1.06 to 1.18 on SmolLM2-135M-Instruct and
capitals, without them 0.99 to 1.02."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A bias, token id -> nats, and the keys of its completions in the store, equally many for each
    prompt.
    """

    bias: dict[int, float]
    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Pooled:
    """Every row from all completions: reward, correct, tokens (j, p); (j,) effective sample sizes
    and mean weights (1 in truth).

    completions: in the pool, of ``policies`` biases; left_out: not in it, because the engine did
    not list all of their tokens with ids; wild: biases left out because they hold more than
    ``WILD`` nats.
    """

    reward: Vector
    correct: Vector
    tokens: Vector
    effective_sample_size: Vector
    mean_weight: Vector
    completions: int
    left_out: int
    policies: int
    wild: int

    @property
    def shares(self) -> list[Kept]:
        """The share of the gain of row 1 over row 0 that each row keeps."""
        return [kept(one - self.reward[1], self.reward[1] - self.reward[0]) for one in self.reward]


def stored_policies(trials: Trials, examples: Sequence[Example]) -> list[Policy]:
    """Every bias of which the store has completions of all ``examples`` at temperature 1, drawn
    from this model as in ``draw``.
    """
    session = trials.session
    sampling = Sampling(1.0, trials.reward.max_tokens, trials.top_logprobs)
    like = settings_of(session, trials.tokenizer, Draw(sampling, endpoint=session.biased_endpoint))
    return [
        Policy({int(token): value for token, value in settings["bias"]}, keys)
        for request, settings in trials.store.requests().items()
        if _comparable(settings) == _comparable(like)
        for keys in [stored_keys(request, trials.store.keys(request), examples)]
        if keys[0]
    ]


def _comparable(settings: Mapping[str, object]) -> dict[str, object]:
    """What two requests must share for their completions to be of one model at the same
    sampling.
    """
    sampling = settings["sampling"]
    assert isinstance(sampling, Mapping)
    kept_back = {
        name: value for name, value in settings.items() if name not in ("bias", "seeds", "sampling")
    }
    return kept_back | {
        "sampling": {name: value for name, value in sampling.items() if name != "seed"}
    }


def pooled(
    trials: Trials, rows: Sequence[Row], examples: Sequence[Example], tail: NextToken
) -> Pooled:
    """What all completions of ``examples`` in the store say of every row; row 0 is the base, row 1
    the full vector.

    With ``w_j = p_j / sum_i (n_i / n) p_i`` over the policies i of the store, the mean of row j on
    a prompt is ``sum w_j f / sum w_j`` over all completions of that prompt.
    """
    every = stored_policies(trials, examples)
    policies = [each for each in every if max(map(abs, each.bias.values()), default=0.0) <= WILD]
    owner = {key: p for each in policies for p, names in enumerate(each.keys) for key in names}
    drawn = dict(zip(owner, trials.store.completions(owner), strict=True))
    whole = {
        key: each
        for key, each in drawn.items()
        if each.whole and each.readable and len(each.token_ids)
    }
    prompts = np.array([owner[key] for key in whole])
    rollouts = columns(whole, prompts.tolist(), [0.0] * len(whole), trials.session.end_tokens)
    biases = [*(each.bias for each in policies), *(row.bias for row in rows)]
    table = NextToken.of(rollouts, tail=tail).with_tokens(
        [token for bias in biases for token in bias]
    )
    ratios = np.array(
        [
            log_policy_ratios(rollouts, table, table.align(list(bias), list(bias.values())))
            for bias in biases
        ]
    )
    counts = np.array([len(each.keys[0]) for each in policies], dtype=np.float64)
    mixture = logsumexp(ratios[: len(policies)] + np.log(counts / counts.sum())[:, None], axis=0)
    weights = np.exp(ratios[len(policies) :] - mixture)
    scores = np.array(
        [
            scores_of(trials, examples[p], each)
            for p, each in zip(prompts, whole.values(), strict=True)
        ]
    )
    reward, correct, tokens = (
        _by_prompt(weights, scores[:, i], prompts, len(examples)) for i in range(3)
    )
    return Pooled(
        reward,
        correct,
        tokens,
        effective_sample_size=np.array([effective_sample_size(w) for w in weights]),
        mean_weight=weights.mean(axis=1),
        completions=len(whole),
        left_out=len(drawn) - len(whole),
        policies=len(policies),
        wild=len(every) - len(policies),
    )


def _by_prompt(
    weights: Vector, values: Vector, prompts: npt.NDArray[np.int64], count: int
) -> Vector:
    """(j, p) weighted means of ``values`` (n,) under ``weights`` (j, n)."""
    above = np.array([np.bincount(prompts, weights=w * values, minlength=count) for w in weights])
    below = np.array([np.bincount(prompts, weights=w, minlength=count) for w in weights])
    return np.asarray(above / below, dtype=np.float64)
