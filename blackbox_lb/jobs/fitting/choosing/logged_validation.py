"""Logged base completions of the validation prompts, for estimates of a bias's effect."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting.off_policy import OffPolicy, off_policy
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED, PolicyScores
from blackbox_lb.types import Completion, Example

LARGEST_UNREAD = 0.05
"""Share of base completions without a complete token list above which the rest no longer represents all."""


@dataclass(frozen=True, slots=True, eq=False)
class LoggedScores:
    """Base completions with their scores: reward and tokens (n,) in the user's unit, correct (n,) 0 or 1, None if not known."""

    rollouts: Rollouts
    next_token: NextToken
    reward: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.float64]
    correct: npt.NDArray[np.float64] | None

    @property
    def size(self) -> int:
        """The number of completions."""
        return len(self.rollouts.keys)

    def estimate(self, bias: Mapping[int, float]) -> OffPolicy:
        """Estimate the effects of ``bias`` (token id -> nats)."""
        delta = self.next_token.align(list(bias), list(bias.values()))
        return off_policy(self.rollouts, self.next_token, delta, reward=self.reward, tokens=self.tokens, correct=self.correct)


async def log_of_base(
    trials: Trials, examples: Sequence[Example], scores: PolicyScores, samples: int, tail: NextToken
) -> LoggedScores | str:
    """The first ``samples`` base completions of every example, with ``scores``; or why they allow no estimate.

    tail: of the training rollouts, for their unigram of unlisted tokens. Nothing new is sampled.
    """
    session = trials.session
    name, listed = session.profile.name, session.end_tokens.listed
    if not listed:
        known = "does not list" if listed is False else "is not known to list"
        return f"{name} {known} the token that ends a completion, so where a bias would end them is not known"
    draw = trials.draw(SAMPLED, None, session.biased_endpoint)
    keys = await trials.collect("validation, base logprobs", examples, draw, samples)
    drawn, places, unread, cut = _whole(trials, keys)
    if cut > LARGEST_UNREAD * (unread + len(drawn)):
        return (
            f"{name} does not list the tokens of the stop text that ended {cut} of {unread + len(drawn)} base completions, so "
            "where a bias would end them is not known"
        )
    if not any((completion.top_ids >= 0).any() for completion in drawn.values()):
        return f"{name} returned no complete lists of logprobs with the base completions"
    share = unread / (unread + len(drawn))
    if share > LARGEST_UNREAD:
        return f"{share:.0%} of the base completions do not list all of their tokens"
    rollouts = columns(drawn, [prompt for prompt, _ in places], [0.0] * len(drawn), trials.end_tokens)
    return LoggedScores(
        rollouts,
        NextToken.of(rollouts, tail=tail),
        reward=_picked(scores.reward, places),
        tokens=_picked(scores.tokens, places),
        correct=None if scores.correct is None else _picked(scores.correct, places),
    )


def _whole(trials: Trials, keys: Sequence[Sequence[str]]) -> tuple[dict[str, Completion], list[tuple[int, int]], int, int]:
    """Complete completions by key, the place of each among the scored ones of its prompt, the number of incomplete ones, and the
    number of those that only lack the tokens of a stop text."""
    drawn: dict[str, Completion] = {}
    places: list[tuple[int, int]] = []
    unread = cut = 0
    for prompt, row in enumerate(keys):
        pairs = zip(row, trials.store.completions(row), strict=True)
        readable = [(key, completion) for key, completion in pairs if completion.readable]
        for place, (key, completion) in enumerate(readable):
            if not completion.whole:
                unread += 1
            elif trials.may_cut_stops and completion.n_tokens > len(completion.token_ids):
                unread, cut = unread + 1, cut + 1
            elif key not in drawn:  # two equal prompts share their completions
                drawn[key] = completion
                places.append((prompt, place))
    return drawn, places, unread, cut


def _picked(rows: Sequence[npt.NDArray[np.float64]], places: Sequence[tuple[int, int]]) -> npt.NDArray[np.float64]:
    return np.array([rows[prompt][place] for prompt, place in places], dtype=np.float64)
