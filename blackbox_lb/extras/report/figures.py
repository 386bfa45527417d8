"""The pictures of the page: each drawn once with matplotlib, with its text alternative and its
numbers.
"""

from collections.abc import Sequence
from typing import Any

from blackbox_lb.bias.operating import OperatingCurve
from blackbox_lb.extras.report.data import RunDocuments
from blackbox_lb.extras.report.decided import SIDES as MENDED_SIDES
from blackbox_lb.extras.report.decided import question_decisions, question_plots
from blackbox_lb.extras.report.drawing import (
    COLOURS,
    TEXT,
    Plot,
    add_legend,
    empty_figure,
    figure_with_axis,
    name_axes,
)
from blackbox_lb.extras.report.page_table import numbers_table, operating_table, per_cent
from blackbox_lb.extras.report.page_text import drawn
from blackbox_lb.extras.report.rivals import rivals_plot
from blackbox_lb.extras.report.tables import BIASED_SIDES, tried_table
from blackbox_lb.extras.report.verdict_text import amount, axis_of
from blackbox_lb.jobs.fitting.document import BothDecisions, FitResult, Measured, TriedCandidate
from blackbox_lb.safety.printable import printable

FAINTEST = 0.04
STRONGEST = 0.85
"""Opacity of a cell of a confusion matrix with none, or with all, of its row."""
MOST_LABELS = 30
"""Labels beyond which a confusion matrix is too wide for a page, and takes minutes to draw."""
LONGEST_TICK = 18
"""Characters of a label beside a matrix: as many as a phone has room for."""


def plots(run: RunDocuments, label: str) -> dict[str, Plot]:
    """Name -> every picture with numbers in the run folder; ``label``: the displayed name of the
    reward.

    Raises InputError: matplotlib is missing, or a variable keeps it from being loaded.
    """
    result = run.result
    candidates: list[Plot | None] = []
    if result is not None:
        candidates += [_pareto(result, label), *_confusions(run)]
    candidates += question_plots(run)
    if run.evaluation is not None:
        candidates.append(rivals_plot(run.evaluation))
    if run.bias.operating is not None:
        candidates.append(_operating(run.bias.operating))
    return {plot.name: plot for plot in candidates if plot is not None}


def _confusions(run: RunDocuments) -> list[Plot]:
    """Those of the first setting with judged decisions, or of every question that is mended; of no
    decision between more than ``MOST_LABELS``.
    """
    if run.result is None or not run.result.decisions:
        return []
    if run.decided:
        note = "Test rows: a row for each right option, a column for each that was decided for."
        place = "on the test rows"
        sides = MENDED_SIDES
        decisions = list(question_decisions(run))
    else:
        setting, pair = next(iter(run.result.decisions.items()))
        note = (
            f"Completions of the test prompts at {setting}: a row for each right label, a column"
            " for each that was said."
        )
        place = f"at {setting}"
        sides = BIASED_SIDES
        decisions = [("confusion", pair)]
    return [
        _confusion(name, place, note, pair, sides)
        for name, pair in decisions
        if len(pair.base.labels) <= MOST_LABELS
    ]


def _confusion(
    name: str, place: str, note: str, pair: BothDecisions, sides: tuple[str, str]
) -> Plot:
    """Both confusion matrices, one below the other. place: where, for the text alternative."""
    names = [row.label for row in pair.base.labels]
    answers = names
    if sides == BIASED_SIDES:  # a completion may name no label
        answers = [*names, "no label"]
    alternative = (
        f"Confusion matrices {place}: {per_cent(pair.base.accuracy)} right and"
        f" {per_cent(pair.base.no_label)} without a label before,"
        f" {per_cent(pair.biased.accuracy)} and {per_cent(pair.biased.no_label)} after."
    )
    rows: list[list[str | float]] = [
        [side, right, label, number]
        for side, decisions in zip(sides, (pair.base, pair.biased), strict=True)
        for right, cells in zip(names, decisions.confusion, strict=True)
        for label, number in zip(answers, cells[: len(answers)], strict=True)
    ]
    columns = ("side", "right label", "said", "number")
    table = numbers_table(
        f"{name}-numbers", "How often each label was said for each", columns, rows
    )
    return Plot(
        name,
        "Which label was said for which",
        note,
        alternative,
        table,
        _matrices(pair, answers, names, sides),
    )


def _matrices(
    pair: BothDecisions, answers: Sequence[str], names: Sequence[str], sides: tuple[str, str]
) -> Any:
    """The figure of both matrices, the second one below the first."""
    figure = empty_figure()
    figure.set_size_inches(max(4.5, 1.3 + 0.5 * len(answers)), 2.6 + 0.84 * len(names))
    axes = figure.subplots(2, 1)
    for axis, decisions, title in zip(axes, (pair.base, pair.biased), sides, strict=True):
        _matrix(axis, decisions.confusion, _ticks(answers), _ticks(names))
        axis.set_title(
            f"{title}: {per_cent(decisions.accuracy)} right", fontsize=TEXT, color=COLOURS["ink"]
        )
    return figure


def _operating(curve: OperatingCurve) -> Plot:
    """Precision against recall over the points of a decision, with 95 % intervals, the chosen one
    marked.
    """
    shares = [curve.measured(point) for point in curve.points if point.validation.decided]
    figure, axis = figure_with_axis()
    recalls = [100 * (recall.value or 0.0) for _, recall, _ in shares]
    precisions = [100 * (precision.value or 0.0) for precision, _, _ in shares]
    lows = [100 * precision.low for precision, _, _ in shares]
    highs = [100 * precision.high for precision, _, _ in shares]
    axis.fill_between(recalls, lows, highs, color=COLOURS["first"], alpha=0.15, linewidth=0)
    axis.plot(recalls, precisions, color=COLOURS["first"], linewidth=1.6, label="points")
    precision, recall, rate = curve.measured(curve.chosen)
    if precision.value is not None and recall.value is not None:
        axis.plot(
            [100 * recall.value],
            [100 * precision.value],
            marker="o",
            markersize=8,
            color=COLOURS["second"],
            linestyle="none",
            label=f"chosen: {curve.goal}",
        )
    name_axes(axis, f"recall of {printable(curve.positive)} (%)", "precision (%)")
    axis.set_ylim(0, 104)
    add_legend(axis)
    alternative = (
        f"Precision against recall of {printable(curve.positive)} over {len(curve.points)} shifts"
        f" on {curve.validation.prompts} validation prompts. The chosen shift of"
        f" {curve.shift:+.2f} nats has precision {precision.text}, recall {recall.text} and decides"
        f" {rate.text} of the prompts for it."
    )
    note = (
        "Every point is this bias with another number on the tokens of one label; the band is the"
        " 95 % interval of the precision."
    )
    if curve.check is not None:
        note += f" {curve.check.word}: {curve.check.sentence}."
    table = operating_table(curve, curve.points)
    return Plot("operating", "Operating points", note, alternative, table, figure)


def _matrix(
    axis: Any,
    cells: Sequence[Sequence[int]],
    decided: Sequence[str],
    right: Sequence[str],
) -> None:
    for y, row in enumerate(cells):
        total = sum(row) or 1
        for x, value in enumerate(row[: len(decided)]):
            colour = COLOURS["first"]
            if x != y:
                colour = COLOURS["second"]
            shade = FAINTEST + (STRONGEST - FAINTEST) * value / total
            axis.barh(y, 0.94, left=x - 0.47, height=0.9, color=colour, alpha=shade, linewidth=0)
            axis.text(
                x, y, f"{value:,}", ha="center", va="center", fontsize=TEXT, color=COLOURS["ink"]
            )
    axis.set_xlim(-0.5, len(decided) - 0.5)
    axis.set_ylim(len(right) - 0.5, -0.5)
    axis.set_xticks(
        range(len(decided)),
        decided,
        rotation=30,
        ha="right",
        fontsize=TEXT,
    )
    axis.set_yticks(range(len(right)), right, fontsize=TEXT)
    axis.tick_params(colors=COLOURS["muted"], length=0)
    axis.set_facecolor("none")
    for spine in axis.spines.values():
        spine.set_visible(False)


def _ticks(labels: Sequence[str]) -> list[str]:
    """The beginnings of the labels beside a matrix: the table of the numbers has the whole."""
    texts = [drawn(label) for label in labels]
    return [text if len(text) <= LONGEST_TICK else f"{text[: LONGEST_TICK - 1]}…" for text in texts]


def _taus(axis: Any, rows: Sequence[tuple[TriedCandidate, float, float]]) -> None:
    """Write tau beside the candidates, but not over one another."""
    wide, high = (
        max(spread) - min(spread) or 1.0
        for spread in zip(*((x, y) for _, x, y in rows), strict=True)
    )
    labelled: list[tuple[float, float]] = []
    for candidate, x, y in sorted(rows, key=lambda row: row[0].status != "chosen"):
        tau = candidate.settings.get("tau")
        apart = all(
            abs(x - label_x) > 0.16 * wide or abs(y - label_y) > 0.1 * high
            for label_x, label_y in labelled
        )
        if isinstance(tau, int | float) and apart:
            style = {"textcoords": "offset points", "fontsize": 8.5, "color": COLOURS["muted"]}
            axis.annotate(f"τ {tau:g}", (x, y), xytext=(6, 6), **style)
            labelled.append((x, y))


def _candidates(axis: Any, rows: Sequence[tuple[TriedCandidate, float, float]]) -> None:
    """The candidates by estimator, joined in the order of tau, with the chosen one ringed."""
    estimators = list(dict.fromkeys(candidate.estimator for candidate, _, _ in rows))
    marks = "os^Dv"
    colours = (COLOURS["first"], COLOURS["second"])
    for number, name in enumerate(estimators):
        line = [(x, y) for candidate, x, y in rows if candidate.estimator == name]
        mark = marks[number % len(marks)]
        colour = colours[number % 2]
        axis.plot(
            *zip(*line, strict=True),
            mark,
            color=colour,
            markersize=6,
            linestyle="none",
            label=drawn(name),
        )
    for candidate, x, y in rows:
        if candidate.status == "chosen":
            axis.plot(
                [x],
                [y],
                "o",
                markersize=13,
                mfc="none",
                mec=COLOURS["ink"],
                mew=1.5,
                label="chosen",
                linestyle="none",
            )
    _taus(axis, rows)


def _base_lines(axis: Any, base: Measured, x: float | None, y: float | None) -> None:
    style = {"color": COLOURS["base"], "linestyle": (0, (4, 3)), "linewidth": 1.1}
    if y is not None:
        axis.axhline(y, **style, label="base model")
    if x is not None:
        axis.axvline(x, **style, label="base model" if y is None else None)
    if x is not None and y is not None:
        axis.plot([x], [y], "X", color=COLOURS["base"], markersize=8, linestyle="none")


def _pareto(result: FitResult, label: str) -> Plot | None:
    """Validation accuracy against tokens over the candidates, as the paper draws it; the reward
    where no accuracy is known.
    """
    tried = result.validation.tried
    base = result.validation.base
    judged = all(
        candidate.accuracy is not None for candidate in tried if candidate.tokens is not None
    )
    metric = "accuracy"
    if not (judged and any(candidate.accuracy is not None for candidate in tried)):
        metric = label
    scale, axis_name = axis_of(metric)

    def of(point: Measured) -> float | None:
        value = point.reward
        if metric == "accuracy":
            value = point.accuracy
        if value is None:
            return None
        return scale * value

    rows = [
        (candidate, candidate.tokens, y)
        for candidate in tried
        if candidate.tokens is not None and (y := of(candidate)) is not None
    ]
    if not rows:
        return None
    figure, axis = figure_with_axis()
    _candidates(axis, rows)
    _base_lines(axis, base, base.tokens, of(base))
    name_axes(axis, "mean tokens of a completion", axis_name)
    axis.margins(0.16)
    add_legend(axis)
    chosen = next(((x, y) for candidate, x, y in rows if candidate.status == "chosen"), None)
    alternative = f"{len(rows)} candidates on the validation prompts: {metric} against mean tokens."
    if chosen is not None:
        alternative += (
            f" The chosen one has {metric} {amount(metric, chosen[1] / scale)} with {chosen[0]:.1f}"
            " tokens"
        )
        if (at := of(base)) is not None:
            alternative += f", the base {amount(metric, at / scale)}"
            if base.tokens is not None:
                alternative += f" with {base.tokens:.1f}"
        alternative += "."
    note = "Up and to the left is better."
    if base.tokens is not None:
        note += " Dashed lines: the base model."
    return Plot(
        "pareto",
        f"{metric.capitalize()} against length",
        note,
        alternative,
        tried_table(tried),
        figure,
    )
