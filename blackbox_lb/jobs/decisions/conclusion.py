"""The end of a fit of decisions, in words."""

from __future__ import annotations

from collections.abc import Sequence

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Verdict
from blackbox_lb.jobs.decisions.document import DecidedQuestion, TriedMending
from blackbox_lb.jobs.decisions.judge import RAW
from blackbox_lb.safety.printable import printable

LEAVE = "LEAVE IT AS IT IS"
"""The word where nothing was found to be better than the answers as they come."""
MOST_WAYS = 4
"""Ways to read whose accuracy a line names."""


def verdict_word(bias: Bias, decided: Sequence[DecidedQuestion]) -> str:
    """The word for all questions."""
    if all(row.mending == RAW and row.way == row.tried[0].way for row in decided):
        return LEAVE
    return bias.headline[0]


def before_and_after(decided: Sequence[DecidedQuestion]) -> str:
    """What the test rows compare: the same answers, or those of another way to read."""
    first = decided[0].tried[0].way
    if all(row.way == row.tried[0].way for row in decided):
        return "the same answers before and after"
    return f"before: {first}, {RAW}"


def question_lines(question: DecidedQuestion, *, is_alone: bool) -> list[str]:
    """What was chosen for a question, and what else there is to say of it."""
    name = "" if is_alone else f"{printable(question.question)}: "
    best: dict[str, TriedMending] = {}
    for row in question.tried:
        if row.way not in best or row.accuracy > best[row.way].accuracy:
            best[row.way] = row
    lines = [f"{name}read by {question.way}, {_mended(question)}"]
    if len(best) > 1:
        listed = ", ".join(_accuracy(row) for row in list(best.values())[:MOST_WAYS])
        lines.append(f"{name}accuracy by cross-fitting, best mending of each way: {listed}")
    if question.flipped is not None and question.flip_rows:
        lines.append(
            f"{name}{question.flipped} of {question.flip_rows} decisions change where the options"
            " are listed in reverse"
        )
    if question.refused:
        lines.append(f"{name}{question.refused:,} rows came back as refusals or without an option")
    if question.floored:
        text = f"{name}{100 * question.floored:.0f} % of the probabilities are below what is shown"
        if question.changed_by_floors:
            text += f", and {question.changed_by_floors} decisions rest on them"
        lines.append(text)
    if question.promise:
        lines.append(f"{name}{question.promise}")
    return lines


def _accuracy(row: TriedMending) -> str:
    """A way to read with its accuracy, and on how many rows."""
    text = f"{row.way} {100 * row.accuracy:.0f} %"
    if row.read < 1:
        text += f" of the {100 * row.read:.0f} % that it reads"
    return text


def _mended(question: DecidedQuestion) -> str:
    """How the question is mended."""
    if question.mending == RAW:
        return f"left {RAW}"
    parts = [
        row for row in question.tried if row.way == question.way and row.mending != question.mending
    ]
    largest = max(parts, key=lambda row: row.weight)
    return (
        f"mended by the average of {len(parts)} ways, most of it {largest.mending!r}"
        f" ({100 * largest.weight:.0f} %)"
    )


def shown_rows(rows: Sequence[Verdict]) -> list[Verdict]:
    """The rows of the verdict, accuracy first."""
    return sorted(rows, key=lambda row: not row.metric.startswith("accuracy"))
