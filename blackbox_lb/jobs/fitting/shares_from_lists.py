"""Scores of biases by the label shares that first lists predict: nothing is drawn, so no noise of
few samples decides between candidates.

A completion is taken to name the label that it begins with. What is predicted is judged afterwards
on fresh completions, by the first label named anywhere in them. Of labels of several tokens the
first one does not tell whether the rest follows, most of all under a bias, which acts on the rest,
too; so candidates for these are compared by completions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.goal import ByPrompt, Outcome
from blackbox_lb.estimate.inputs.checks import Bools
from blackbox_lb.jobs.fitting.choosing.scorers import Measured, Scored
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.rollouts.answers.given_answers import AnswerStarts, first_tokens
from blackbox_lb.rollouts.judging.distribution import WantedByPrompt
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import Setting
from blackbox_lb.types import AnyBias, Example

Array = npt.NDArray[np.float64]


class SharesFromLists:
    """Minus the total variation between the predicted and the wanted shares of the labels.

    Attributes:
        first: the first position of each prompt.
        wanted: the shares of each prompt, and the groups within which they are compared.
        settings: to deploy with.
    """

    exact = True
    where = ""

    def __init__(
        self, first: AnswerStarts, wanted: WantedByPrompt, settings: Sequence[Setting]
    ) -> None:
        if first.wanted is None:
            raise InputError("these first lists are of answers without wanted shares")
        self.first = first
        self.wanted = wanted
        self.settings = tuple(settings)
        self._tokens = first.wanted.tokens
        self._labels = first.wanted.labels
        self._logprobs = first.logprobs.astype(np.float64)
        listed = np.exp(np.where(first.ids >= 0, self._logprobs, -np.inf)).sum(axis=1)
        self._unlisted = np.log(np.clip(1.0 - listed, 1e-12, 1.0))

    @classmethod
    async def suiting(
        cls, trials: Trials, examples: Sequence[Example], plan: FitPlan
    ) -> SharesFromLists | None:
        """Collect the lists of ``examples``, unless they are in the store; None where completions
        must be drawn: the reward compares with no shares, the goal needs a KL, or a label is longer
        than one token.

        Raises NoLogprobs, ProviderError: see ``first_tokens``.
        """
        column = trials.reward.grouped_by
        if column is None or plan.goal.objective == "reward-kl":
            return None
        first = await first_tokens(trials, examples, "validation", plan.listed)
        if first.longer:
            return None
        return cls(first, WantedByPrompt.of(first.examples, column), plan.settings)

    @property
    def label_tokens(self) -> tuple[int, ...]:
        """The tokens that begin a label."""
        return tuple(self._tokens.tolist())

    @property
    def prompts(self) -> int:
        """See ``Scorer``."""
        return len(self.first.examples)

    def cost(self, samples: int) -> int:
        """See ``Scorer``: nothing."""
        del samples
        return 0

    async def score(
        self, label: str, bias: AnyBias | None, samples: int, among: Bools | None = None
    ) -> Scored:
        """See ``Scorer``; the mean over the settings to deploy with."""
        del label, samples, among
        parts = [
            self.wanted.reward_parts(self.shares(bias, setting.temperature))
            for setting in self.settings
        ]
        by_setting = tuple(
            Measured(float(part.mean()), setting=setting.name)
            for setting, part in zip(self.settings, parts, strict=True)
        )
        unknown = ByPrompt(np.full(self.prompts, np.nan))
        outcome = Outcome(ByPrompt(np.mean(parts, axis=0)), unknown, None, None)
        return Scored(outcome, by_setting)

    def described(self, bias: AnyBias, scored: Scored, base: Scored) -> str:
        """What is predicted of the chosen bias, in words."""
        del bias
        return (
            f"; predicted from the first lists of {self.prompts} validation prompts, without"
            f" drawing: total variation {-scored.measured.reward:.3f} (base"
            f" {-base.measured.reward:.3f})"
        )

    async def kl(self, bias: AnyBias, samples: int) -> None:
        """See ``Scorer``: nothing is drawn, so nothing is known of it."""
        del bias, samples

    async def foresight(self, samples: int) -> None:
        """See ``Scorer``: the scores are exact as they are."""
        del samples

    def shares(self, bias: AnyBias | None, temperature: float) -> Array:
        """(x, l + 1) the probability that a completion begins with each label, the last for none.

        Tokens outside a list keep its rest at temperature 1; at another temperature their part is
        not known, and left out.
        """
        tilted = (self._logprobs + self._nats(bias)) / temperature
        tilted = np.where(self.first.ids >= 0, tilted, -np.inf)
        rest = np.full(self.prompts, -np.inf)
        if temperature == 1:
            rest = self._unlisted
        probabilities = softmax(np.column_stack([tilted, rest]), axis=1)
        size = int(self._labels.max()) + 1
        shares = np.zeros((self.prompts, size + 1))
        for token, label in zip(self._tokens.tolist(), self._labels.tolist(), strict=True):
            shares[:, label] += (probabilities[:, :-1] * (self.first.ids == token)).sum(axis=1)
        shares[:, size] = 1.0 - shares[:, :size].sum(axis=1)
        return shares

    def _nats(self, bias: AnyBias | None) -> Array:
        """(x, k) the bias of each listed token."""
        nats = np.zeros(self.first.ids.shape)
        if bias is None:
            return nats
        if not isinstance(bias, Mapping):
            bias.prepare([example.prompt for example in self.first.examples])
        for row, example in enumerate(self.first.examples):
            sent = bias if isinstance(bias, Mapping) else bias.at(example.prompt)
            nats[row] = [sent.get(token, 0.0) for token in self.first.ids[row].tolist()]
        return nats
