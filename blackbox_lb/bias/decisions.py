"""Decisions that are mended: what a bias file holds of a question whose options an endpoint, or the
first token of an answer, gives probabilities.

An endpoint that decides between labels takes no ``logit_bias``; what was learned is applied to the
probabilities that it answers with, here, in plain Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

from pydantic import Field, model_validator

from blackbox_lb.bias.records import softmax
from blackbox_lb.questions.question import Question
from blackbox_lb.records import Count, Finite, Flag, Name, Row, Share

Reading: TypeAlias = Literal["systemone", "openai", "sglang", "letters", "words"]
"""Where the probabilities come from: an endpoint of this shape, or the first token of an answer to
the question in this layout.
"""


class PromisedError(Row):
    """A share of errors that the answered rows keep, with 95 % confidence.

    error: the largest share of wrong answers. cut: the least probability of the largest option at
    which an answer is given. answered, rows: of the rows that certified it; wrong: of these
    answers. bound: the one-sided 95 % bound of the share of errors.
    """

    error: Share
    cut: Share
    answered: Count
    wrong: Count
    rows: Count
    bound: Share

    @property
    def sentence(self) -> str:
        """The promise in words."""
        return (
            f"right in at least {100 * (1 - self.error):g} % of what it answers"
            f" ({100 * self.answered / max(self.rows, 1):.0f} % of rows), with 95 % confidence"
        )


class MendedDecision(NamedTuple):
    """The decision of a mended question.

    Attributes:
        probabilities: mended, in the order of the options.
        place: of the largest one.
        abstains: whether a promise was made that it is too small for.
    """

    probabilities: tuple[float, ...]
    place: int
    abstains: bool


class MendedQuestion(Row):
    """A question with what was learned: ``softmax(slope (log p + center) + offsets)``, in nats.

    Attributes:
        question: with its options in the order in which they are put.
        reading: see ``Reading``. path: of the endpoint. model: as the answers named it.
        decimals: of the probabilities that the endpoint prints; None for all.
        system: the system message before the prompt, of a layout; "" for none.
        both_orders: whether the mean of log p over both orders of the options is mended.
        slope, center, offsets: center and offsets have a number for each option.
        mending: the name of the candidate that was chosen.
        rows: that it was learned from. floored: the share of their probabilities that the endpoint
            printed as 0.
        promise: None where none was wished for, or none could be certified.
        mean_logprobs: per option the mean of log p over the rows, and deviations: its standard
            deviation. sample: log p of the options in some of the rows, drawn at random; what later
            answers are compared with.
    """

    question: Question
    reading: Reading
    path: str = ""
    model: Name
    decimals: Annotated[int, Field(ge=1, le=12)] | None = None
    system: str = ""
    both_orders: Flag = False
    slope: Annotated[Finite, Field(gt=0)]
    center: tuple[Finite, ...]
    offsets: tuple[Finite, ...]
    mending: Name
    rows: Count
    floored: Share = 0.0
    promise: PromisedError | None = None
    mean_logprobs: tuple[Finite, ...] = ()
    deviations: tuple[Finite, ...] = ()
    sample: tuple[tuple[Finite, ...], ...] = ()

    @model_validator(mode="after")
    def _sizes(self) -> MendedQuestion:
        size = len(self.question.options)
        for name in ("center", "offsets"):
            if len(getattr(self, name)) != size:
                raise ValueError(
                    f"{name} has {len(getattr(self, name))} numbers for {size} options"
                )
        if any(len(row) != size for row in self.sample):
            raise ValueError(f"a row of the sample has not one number for each of {size} options")
        return self

    def probabilities(self, logprobs: Sequence[float]) -> tuple[float, ...]:
        """The mended probabilities of the options, from their log-probabilities in nats."""
        return softmax(
            [
                self.slope * (logprob + center) + offset
                for logprob, center, offset in zip(logprobs, self.center, self.offsets, strict=True)
            ]
        )

    def decide(self, logprobs: Sequence[float]) -> MendedDecision:
        """The decision for these log-probabilities in nats."""
        probabilities = self.probabilities(logprobs)
        place = probabilities.index(max(probabilities))
        abstains = self.promise is not None and probabilities[place] < self.promise.cut
        return MendedDecision(probabilities, place, abstains)
