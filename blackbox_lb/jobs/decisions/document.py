"""What result.json holds of each question beside the numbers of every fit."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from blackbox_lb.records import Count, Finite, Flag, Name, Row, Share


class TriedMending(Row):
    """A way to read the question with a way to mend it, cross-validated over the training rows.

    weight: in the average of the ways to mend; 1 for the average itself.
    accuracy, log_loss: of what was learned without each row's fold; log_loss in nats a row.
    read: share of the rows that could be read in this way, which the two are means over.
    """

    way: Name
    mending: Name
    weight: Share
    accuracy: Share
    log_loss: Finite
    read: Share = 1.0
    is_chosen: Flag = False


class ReliabilityBin(Row):
    """Test rows whose largest probability lies in one tenth of [0, 1]: how many, the mean of that
    probability, and the share that is right.
    """

    rows: Count
    confidence: Share
    accuracy: Share


class CoveragePoint(Row):
    """Test rows from one confidence on: the share of all rows, and of these the share of errors."""

    coverage: Share
    error: Share


class ChangedRow(Row):
    """A test row whose decision mending changes; the texts are names of options."""

    place: Name
    state: str
    answer: str
    before: str
    after: str
    probability: Share


class DecidedQuestion(Row):
    """One question as it was mended and judged.

    Attributes:
        question: its id. options: their names. way: how it was read. mending: what was chosen.
        tried: every way and mending.
        rows, test_rows: rows with an answer that were read.
        refused: rows of both that came back as a refusal, or without any of the options.
        floored: share of all probabilities that stand at a bound. changed_by_floors: training rows
            whose decision mending changes only through such a value.
        label_mass: mean share of the next-token distribution that the options have; None where it
            is not told.
        flipped, flip_rows: decisions that change where the options are listed in reverse, of so
            many rows; None where nothing was reversed.
        raw_reliability, reliability: before and after. raw_coverage, coverage: the same.
        changed: some of the rows whose decision changes; changed_rows: how many there are.
        promise: a sentence on the wished share of errors, "" without a wish.
    """

    question: Name
    options: tuple[Name, ...]
    way: Name
    mending: Name
    tried: tuple[TriedMending, ...]
    rows: Count
    test_rows: Count
    refused: Count = 0
    floored: Share = 0.0
    changed_by_floors: Count = 0
    label_mass: Annotated[Finite, Field(ge=0, le=1)] | None = None
    flipped: Count | None = None
    flip_rows: Count = 0
    raw_reliability: tuple[ReliabilityBin, ...] = ()
    reliability: tuple[ReliabilityBin, ...] = ()
    raw_coverage: tuple[CoveragePoint, ...] = ()
    coverage: tuple[CoveragePoint, ...] = ()
    changed: tuple[ChangedRow, ...] = ()
    changed_rows: Count = 0
    promise: str = ""
