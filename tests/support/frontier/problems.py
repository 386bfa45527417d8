"""The exact problems: a frontier-scale model with known truth, and rewards that one bias can serve
well, badly or only in part.

The model has 400 tokens whose next-token distributions are as peaked as a language model's (the
five likeliest hold about .74 of the probability, the twenty likeliest .91), eight prompts, an end
token, and completions of about five tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from tests.support.exact import ExactModel
from tests.support.exact.model import RewardOf

__all__ = ["PROBLEMS", "Problem", "base_model"]

VOCAB, HORIZON, PROMPTS = 400, 12, 8
SHARPNESS, STEADY = 1.3, 0.3
RARE, ANSWERS = 157, 3


@dataclass(frozen=True, slots=True)
class Problem:
    """A reward on a model, the strengths ``fit_tau`` that fits sweep and those at which ``E[r] -
    tau KL`` is compared, in nats.
    """

    name: str
    title: str
    reward: RewardOf
    fit_tau: tuple[float, ...]
    tau: tuple[float, ...]
    end_sharpness: float = STEADY

    def model(self, seed: int = 1) -> ExactModel:
        """The model with this number; seeds beside 1 are other models with the same properties."""
        return base_model(seed, self.end_sharpness)


def base_model(seed: int = 1, end_sharpness: float = STEADY) -> ExactModel:
    """A rank-frequency law, strong dependence on prompt, position and the last two tokens, and an
    end token.

    ``end_sharpness`` nats is how much each part of the context moves the end token: little, so that
    stopping sooner costs little KL, or as much as any other token, so that it has its place and
    moving it is costly.
    """
    unigram = -1.35 * np.log(np.arange(1.0, VOCAB + 1))
    unigram[RARE] += 3.4
    unigram[-1] = 1.65 if end_sharpness < 1 else 0.9
    return ExactModel(
        VOCAB,
        HORIZON,
        seed=seed,
        end=True,
        prompts=PROMPTS,
        sharpness=SHARPNESS,
        unigram=unigram,
        end_sharpness=end_sharpness,
    )


def _answers(model: ExactModel) -> tuple[frozenset[int], ...]:
    """For each prompt the tokens beside the commonest that it makes likelier than the other prompts
    do.
    """
    first = np.array([model.logprobs((), prompt) for prompt in range(PROMPTS)])
    preference = (first - first.mean(axis=0))[:, 10:100]
    return tuple(frozenset((10 + np.argsort(-row)[:ANSWERS]).tolist()) for row in preference)


def _contains_rare(tokens: tuple[int, ...], prompt: int) -> float:
    return float(RARE in tokens)


def _compression(tokens: tuple[int, ...], prompt: int) -> float:
    return math.log(HORIZON / len(tokens))


_ANSWERS = _answers(base_model())


def _correct_and_short(tokens: tuple[int, ...], prompt: int) -> float:
    return float(not _ANSWERS[prompt].isdisjoint(tokens)) - len(tokens) / HORIZON


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem(
            "rare",
            "contains a rare good token",
            _contains_rare,
            (0.18, 0.25, 0.35, 0.5, 0.7, 1.0),
            (0.1, 0.3),
        ),
        Problem(
            "length",
            "ln(T / length), T = 12",
            _compression,
            (0.15, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0),
            (0.5, 1.0),
        ),
        Problem(
            "answer",
            "1{correct} - length / T",
            _correct_and_short,
            (0.1, 0.15, 0.25, 0.4, 0.7, 1.0),
            (0.1, 0.3),
        ),
        Problem(
            "placed-end",
            "ln(T / length), end token as context-dependent as any",
            _compression,
            (0.15, 0.2, 0.3, 0.5, 0.8, 1.2, 2.0),
            (0.5, 1.0),
            SHARPNESS,
        ),
    )
}
