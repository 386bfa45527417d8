"""Records: what is measured once, written to a file of a run, and read from there.

Each is made where its numbers are, and is checked when it is made and when it is read. pydantic
alone is needed.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self, TypeAlias

from pydantic import AllowInfNan, BaseModel, Field, Strict, model_validator

# Numbers are strict: a quoted "2.9" or a true in a hand-edited file is an error, not a guess.
Finite: TypeAlias = Annotated[float, Strict(), AllowInfNan(False)]
Count: TypeAlias = Annotated[int, Strict(), Field(ge=0)]
Share: TypeAlias = Annotated[float, Strict(), Field(ge=0.0, le=1.0)]
Flag: TypeAlias = Annotated[bool, Strict()]
TokenId: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=2**31 - 1)]
Name: TypeAlias = Annotated[str, Field(min_length=1)]
Scalar: TypeAlias = Flag | Annotated[int, Strict()] | Finite | str | None
Word: TypeAlias = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT CHECKED"]


class Row(BaseModel, frozen=True, extra="forbid", hide_input_in_errors=True):
    """Base of all records: frozen, without unknown fields."""

    def replacing(self, **fields: object) -> Self:
        """Return the same with these fields in place of its own, checked as at its making;
        ``model_copy`` checks nothing.

        Raises pydantic's ValidationError where one is wrong or unknown, of a whole Bias BiasError.
        """
        return type(self)(**{**dict(self), **fields})

    def __dir__(self) -> list[str]:
        """What a notebook offers after the dot: our names, without those of pydantic."""
        return sorted(
            name
            for name in super().__dir__()
            if not name.startswith("_") and not hasattr(BaseModel, name)
        )


class Finding(Row):
    """Why a bias helps or does not: the result of one check.

    code: its subject, for programs. word: FAIL is a reason why the bias may not help, PASS is none.
    sentence: the result, with the numbers. remedy: the next step; empty where there is none.
    """

    code: Name
    word: Word
    sentence: Name
    remedy: str = ""


class Censoring(Row):
    """The parts of the training completions that the provider withheld.

    positions: sampled tokens. outside: those missing from the list of the likeliest. bounded: those
    without a logprob, whose upper bound is the least listed one. mass: mean unlisted probability of
    a position, which is the chance that a sampled token is withheld. unobserved: whether the
    estimator used the bound for the bounded tokens or dropped them; None if it never reads them.
    """

    positions: Count
    outside: Count
    bounded: Count
    mass: Share
    unobserved: Literal["bound", "drop"] | None = None

    @model_validator(mode="after")
    def _of_positions(self) -> Censoring:
        if max(self.outside, self.bounded) > self.positions:
            raise ValueError(
                f"censoring counts {self.outside} tokens outside and {self.bounded} bounded of only"
                f" {self.positions} positions"
            )
        return self

    def sentence(self, listed: int | None = None) -> str:
        """The whole record in words; ``listed``: alternatives that were asked for at a position."""
        share = 0.0
        if self.positions:
            share = self.outside / self.positions
        done = {None: "", "bound": ", which is taken for it", "drop": "; they are left out"}[
            self.unobserved
        ]
        missing = f"{self.bounded:,} have no logprob, only a bound (the least listed one){done}"
        return (
            f"{share:.1%} of sampled tokens ({self.outside:,} of {self.positions:,}) were outside"
            f" the {'lists' if listed is None else f'listed {listed}'};"
            f" {missing if self.bounded else 'none is without a logprob'}; {self.mass:.1%} of the"
            " probability mass is unlisted"
        )


class Learned(Row):
    """The learned bias over the whole vocabulary, before the compile, centred to mean 0 (the paper,
    "Logit-bias statistics").

    sampled_fraction: share of the vocabulary that was sampled in training. sigma, low, high:
    standard deviation, least and largest value, in nats. selected_fraction: share of the values
    with at least five times the median size. reliability: estimated correlation with a bias from as
    many other prompts, by its standard errors; None where these are not known.
    """

    sampled_fraction: Share
    sigma: Finite
    low: Finite
    high: Finite
    selected_fraction: Share
    reliability: Finite | None = None

    @property
    def sentence(self) -> str:
        """The numbers in words."""
        reproduced = ""
        if self.reliability is not None:
            reproduced = f"; other prompts would bring back {max(self.reliability, 0):.0%} of it"
        return (
            "over the whole vocabulary, before the compile and centred:"
            f" {self.sampled_fraction:.1%} of tokens sampled, standard deviation {self.sigma:.3g}"
            f" nats, least {self.low:.3g}, largest {self.high:.3g}, {self.selected_fraction:.2%}"
            f" above 5 medians{reproduced}"
        )


class LabelScores(Row):
    """Scores of one label: the share of right ones among the decisions for it (``precision``) and
    among the prompts that have it (``recall``), and their harmonic mean. None where no decision was
    for it, or no prompt has it. ``count``: decisions on prompts that have it.
    """

    label: Name
    precision: Share | None
    recall: Share | None
    f1: Share | None
    count: Count


class Decisions(Row):
    """Decisions between labels.

    accuracy: the share of right ones. majority: that of always deciding for the commonest label.
    macro_f1: the mean F1 over the labels that occur. no_label: the share for none of the labels.
    calibration_error: mean difference between confidence and accuracy, by confidence, from 0 to 1.
    None where there is no decision, or no confidence. confusion: (l, l + 1) decisions for the
    column's label among those with the row's label; last column: no label.
    """

    accuracy: Share | None
    majority: Share | None
    macro_f1: Share | None
    no_label: Share | None
    calibration_error: Share | None
    labels: tuple[LabelScores, ...]
    confusion: tuple[tuple[Count, ...], ...]

    @model_validator(mode="after")
    def _square(self) -> Decisions:
        size = len(self.labels)
        if len(self.confusion) != size or any(len(row) != size + 1 for row in self.confusion):
            raise ValueError(
                f"a confusion matrix of {size} labels has {size} rows of {size + 1} numbers"
            )
        return self

    @property
    def commonest(self) -> LabelScores:
        """The label that most decisions should have had."""
        return max(self.labels, key=lambda row: row.count)


class SharesOfGroup(Row):
    """The labels of one group of prompts beside the wanted shares; ``group``: the text of its
    column, "" for all prompts.

    ``wanted``, ``drawn``: label -> share; ``no_label``: the share of completions that name none.
    ``total_variation``: 0 to 1; ``jensen_shannon``: nats, 0 to ln 2. ``chance_level``: the total
    variation that as many independent draws from the wanted shares have on average, by the normal
    approximation.
    """

    group: str
    prompts: Count
    completions: Count
    wanted: dict[str, Finite]
    drawn: dict[str, Finite]
    no_label: Finite
    total_variation: Finite
    jensen_shannon: Finite
    chance_level: Finite

    @model_validator(mode="after")
    def _same_labels(self) -> SharesOfGroup:
        if self.wanted.keys() != self.drawn.keys():
            raise ValueError("wanted and drawn shares are of the same labels")
        return self
