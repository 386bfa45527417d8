"""The part of the page about questions whose probabilities are mended: its words, pictures and
tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from blackbox_lb.bias.records import Verdict
from blackbox_lb.extras.report.data import RunDocuments
from blackbox_lb.extras.report.drawing import (
    COLOURS,
    Plot,
    add_legend,
    figure_with_axis,
    name_axes,
)
from blackbox_lb.extras.report.page_table import (
    Cell,
    PageTable,
    number,
    numbers_table,
    per_cent,
    table,
    word,
)
from blackbox_lb.extras.report.tables import labels_table
from blackbox_lb.extras.report.verdict_text import (
    Judged,
    as_title,
    rows_of,
    unchanged,
)
from blackbox_lb.jobs.decisions.conclusion import LEAVE, question_lines, verdict_word
from blackbox_lb.jobs.decisions.document import (
    CoveragePoint,
    DecidedQuestion,
    ReliabilityBin,
)
from blackbox_lb.jobs.decisions.judge import MENDED, RAW
from blackbox_lb.jobs.fitting.document import BothDecisions
from blackbox_lb.safety.printable import counted

SIDES = (RAW, MENDED)


@dataclass(frozen=True, slots=True)
class QuestionPart:
    """What the page has of one question.

    Attributes:
        title: its id.
        lines: sentences.
        plots, tables: in the order of the page.
    """

    title: str
    lines: tuple[str, ...]
    plots: tuple[Plot, ...]
    tables: tuple[PageTable, ...]


def verdict_of(run: RunDocuments) -> str:
    """The word for all questions of a run."""
    if run.decided:
        return verdict_word(run.bias, run.decided)
    return run.bias.headline[0]


def headline(run: RunDocuments) -> str:
    """The verdict in a sentence."""
    if verdict_of(run) == LEAVE:
        return "Leave the answers as they are: no mending is better."
    return as_title(run.bias.headline[1]) or "Nobody has checked yet whether mending helps."


def judged_questions(run: RunDocuments) -> tuple[Judged, ...]:
    """The rows of the verdict, those of each question together."""
    rows = rows_of(run)
    questions = [mended.question.id for mended in run.bias.decisions]
    if len(questions) == 1:
        return (rows,) if rows else ()
    groups = [
        tuple(row for row in rows if row.metric.endswith(f" of {question}"))
        for question in questions
    ]
    return tuple(group for group in groups if group)


def plain(row: Verdict) -> str:
    """What a row was measured on."""
    if unchanged(row):
        return f"Mending changes nothing that this measures on {row.n_prompts:,} unseen rows."
    return (
        f"Measured on {row.n_prompts:,} rows that taught nothing, by the same answers before and"
        " after."
    )


def question_plots(run: RunDocuments) -> Iterator[Plot]:
    """The pictures of all questions."""
    for place, question in enumerate(run.decided):
        suffix = _suffix(place)
        if question.reliability:
            yield _reliability(question, suffix)
        if question.coverage:
            yield _coverage(question, suffix)


def question_parts(run: RunDocuments, figures: Mapping[str, Plot]) -> list[QuestionPart]:
    """What the page has of each question; ``figures``: every picture, by its name."""
    parts = []
    for place, question in enumerate(run.decided):
        suffix = _suffix(place)
        names = [f"{name}{suffix}" for name in ("confusion", "reliability", "coverage")]
        parts.append(
            QuestionPart(
                question.question,
                tuple(question_lines(question, is_alone=True)),
                tuple(figures[name] for name in names if name in figures),
                tuple(question_tables(run, place)),
            )
        )
    return parts


def question_decisions(run: RunDocuments) -> Iterator[tuple[str, BothDecisions]]:
    """The name of each question's confusion matrix, with both sides' decisions."""
    for place in range(len(run.decided)):
        pair = _decisions(run, place)
        if pair is not None:
            yield f"confusion{_suffix(place)}", pair


def _decisions(run: RunDocuments, place: int) -> BothDecisions | None:
    """Those of both sides on the test rows; None where a question has no such rows."""
    judged = [number for number, question in enumerate(run.decided) if question.test_rows]
    if run.result is None or place not in judged:
        return None
    return list(run.result.decisions.values())[judged.index(place)]


def _suffix(place: int) -> str:
    """What stands behind the names of a question's elements."""
    return "" if place == 0 else f"-{place + 1}"


def question_tables(run: RunDocuments, place: int) -> Iterator[PageTable]:
    """The tables of the question at ``place``."""
    question = run.decided[place]
    suffix = _suffix(place)
    pair = _decisions(run, place)
    if pair is not None:
        yield labels_table(f"labels{suffix}", "Options", pair, SIDES)
    yield _tried(question, suffix)
    if question.changed:
        yield _changed(question, suffix)


def _tried(question: DecidedQuestion, suffix: str) -> PageTable:
    rows = [
        [
            Cell(
                candidate.way,
                note=f"reads {per_cent(candidate.read)} of the rows" if candidate.read < 1 else "",
            ),
            Cell(candidate.mending),
            number(candidate.weight, per_cent(candidate.weight)),
            number(candidate.accuracy, per_cent(candidate.accuracy)),
            number(candidate.log_loss, f"{candidate.log_loss:.3f}"),
            word("chosen") if candidate.is_chosen else Cell(""),
        ]
        for candidate in question.tried
    ]
    return table(
        f"ways{suffix}",
        f"Every way to read and to mend, by cross-validation over {question.rows:,} rows that"
        " teach; these numbers chose, so they flatter what was chosen",
        ("read by", "mended by", "weight", "accuracy", "log loss (nats)", ""),
        rows,
    )


def _changed(question: DecidedQuestion, suffix: str) -> PageTable:
    rows = [
        [
            Cell(row.place),
            Cell(row.state),
            Cell(row.answer),
            Cell(row.before, note="right" if row.before == row.answer else ""),
            Cell(row.after, note="right" if row.after == row.answer else ""),
            number(row.probability, f"{row.probability:.2f}"),
        ]
        for row in question.changed
    ]
    caption = f"{question.changed_rows:,} of {question.test_rows:,} test rows change their decision"
    if question.changed_rows > len(question.changed):
        caption += f"; the {len(question.changed):,} surest"
    return table(
        f"changed{suffix}",
        caption,
        ("row", "state", "answer", RAW, MENDED, "probability"),
        rows,
    )


def _reliability(question: DecidedQuestion, suffix: str) -> Plot:
    """The share of right decisions against the probability of the decided option."""
    figure, axis = figure_with_axis()
    axis.plot([0, 100], [0, 100], color=COLOURS["base"], linestyle=(0, (4, 3)), linewidth=1.1)
    sides = ((RAW, question.raw_reliability, "second"), (MENDED, question.reliability, "first"))
    for name, bins, colour in sides:
        _bins(axis, name, bins, COLOURS[colour])
    name_axes(axis, "probability of the decided option (%)", "right (%)")
    axis.set_xlim(0, 104)
    axis.set_ylim(-4, 104)
    add_legend(axis)
    rows: list[list[str | float]] = [
        [name, per_cent(group.confidence), per_cent(group.accuracy), group.rows]
        for name, bins, _ in sides
        for group in bins
    ]
    gaps = [f"{name} {per_cent(_gap(bins))}" for name, bins, _ in sides]
    return Plot(
        f"reliability{suffix}",
        "Reliability",
        f"{question.test_rows:,} test rows by tenths of the decided option's probability; the size"
        " of a point is its number of rows. On the dashed line a probability means what it says.",
        f"Share of right decisions against the probability of the decided option, on"
        f" {question.test_rows:,} test rows. Mean distance from the diagonal: {', '.join(gaps)}.",
        numbers_table(
            f"reliability-numbers{suffix}",
            "Test rows by tenths of the decided option's probability",
            ("", "mean probability", "right", "rows"),
            rows,
        ),
        figure,
    )


def _bins(axis: Any, name: str, bins: Sequence[ReliabilityBin], colour: str) -> None:
    confidences = [100 * group.confidence for group in bins]
    accuracies = [100 * group.accuracy for group in bins]
    total = sum(group.rows for group in bins)
    sizes = [20 + 260 * group.rows / total for group in bins]
    axis.plot(confidences, accuracies, color=colour, linewidth=1.4, label=name)
    axis.scatter(confidences, accuracies, s=sizes, color=colour, alpha=0.55, linewidths=0)


def _gap(bins: Sequence[ReliabilityBin]) -> float:
    """The mean over rows of the distance between probability and share of right ones."""
    total = sum(group.rows for group in bins)
    gaps = [group.rows * abs(group.confidence - group.accuracy) for group in bins]
    return sum(gaps) / max(total, 1)


def _coverage(question: DecidedQuestion, suffix: str) -> Plot:
    """The share of errors against the share of rows that are answered, the surest first."""
    figure, axis = figure_with_axis()
    sides = ((RAW, question.raw_coverage, "second"), (MENDED, question.coverage, "first"))
    for name, points, colour in sides:
        axis.plot(
            [100 * point.coverage for point in points],
            [100 * point.error for point in points],
            marker="o",
            markersize=4,
            color=COLOURS[colour],
            linewidth=1.6,
            label=name,
        )
    name_axes(axis, "answered rows, the surest first (%)", "wrong among them (%)")
    axis.set_xlim(0, 104)
    axis.set_ylim(bottom=0)
    add_legend(axis)
    rows: list[list[str | float]] = [
        [name, per_cent(point.coverage), per_cent(point.error)]
        for name, points, _ in sides
        for point in points
    ]
    ends = [f"{name} {_half(points)}" for name, points, _ in sides]
    return Plot(
        f"coverage{suffix}",
        "Errors by coverage",
        "Wrong decisions where only the surest rows are answered, and the rest is left to somebody"
        " else. Lower is better.",
        f"Share of wrong decisions against the share of answered rows. {'; '.join(ends)}.",
        numbers_table(
            f"coverage-numbers{suffix}",
            "Wrong decisions among the surest rows",
            ("", "answered", "wrong"),
            rows,
        ),
        figure,
    )


def _half(points: Sequence[CoveragePoint]) -> str:
    """The errors of the surer half and of all."""
    nearest = min(points, key=lambda point: abs(point.coverage - 0.5))
    return (
        f"{per_cent(nearest.error)} wrong among the surest {per_cent(nearest.coverage)},"
        f" {per_cent(points[-1].error)} among all"
    )


def decided_counts(run: RunDocuments) -> Iterator[tuple[str, str]]:
    """What of each question could not be read, or only within a bound."""
    is_alone = len(run.decided) == 1
    for question in run.decided:
        suffix = "" if is_alone else f", {question.question}"
        yield f"refused{suffix}", f"{question.refused:,} rows without a decision"
        yield (
            f"below what is shown{suffix}",
            f"{per_cent(question.floored)} of the probabilities stand at a bound;"
            f" {question.changed_by_floors:,} decisions of rows that teach rest on them",
        )
        if question.label_mass is not None:
            yield (
                f"share of the options{suffix}",
                f"{per_cent(question.label_mass)} of the next-token distribution on average",
            )


def question_count(run: RunDocuments) -> str:
    """How many questions the file mends, in words."""
    return counted(len(run.bias.decisions), "question")
