"""Every table of the page as rows of cells: text, sort key, and a bar around 0 where there is an
interval.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Comparison, Verdict
from blackbox_lb.bias.request_bias import strongest
from blackbox_lb.extras.analysis.document import Analysis
from blackbox_lb.extras.report.page_table import (
    Bar,
    Cell,
    PageTable,
    count,
    number,
    signed,
    table,
    token,
    word,
)
from blackbox_lb.extras.report.verdict_text import amount, change, interval
from blackbox_lb.jobs.evaluation.conclusion import TEXT_COLUMNS, text_cell
from blackbox_lb.jobs.evaluation.document import (
    Evaluation,
    Mean,
    PolicyResult,
)
from blackbox_lb.jobs.fitting.document import BothDecisions, TriedCandidate
from blackbox_lb.records import Decisions, LabelScores
from blackbox_lb.safety.printable import counted


def bar_of(row: Verdict, widest: float | None = None) -> Bar:
    """The bar of a row; ``widest``: the largest end of an interval of the same metric, by default
    the row's own.
    """
    if widest is None:
        widest = farthest(row)
    low, point, high = (
        value / widest if widest else 0.0 for value in (row.low, row.difference, row.high)
    )
    label = f"{change(row.metric, row.difference)}, interval {interval(row)}"
    ends = (change(row.metric, row.low), change(row.metric, row.high))
    return Bar(low, point, high, label, ends)


def farthest(row: Verdict) -> float:
    """The end of the interval that is farthest from 0."""
    return max(abs(row.low), abs(row.high), abs(row.difference))


def _bars(rows: Sequence[Verdict]) -> list[Cell]:
    widest: dict[str, float] = {}
    for row in rows:
        widest[row.metric] = max(widest.get(row.metric, 0.0), farthest(row))
    return [
        Cell(interval(row), row.low, "bar", row.verdict, bar_of(row, widest[row.metric]))
        for row in rows
    ]


def _p(value: float | None) -> Cell:
    if value is None:
        return number(None)
    if value >= 0.0005:
        return number(value, f"{value:.3f}")
    return number(value, "<0.001")


def _metric(row: Verdict, before: str = "") -> Cell:
    """The metric, with its direction; ``before``: the text before that."""
    direction = "lower is better"
    if row.better == "higher":
        direction = "higher is better"
    return Cell(row.metric, note=f"{before}{direction}")


def _means(row: Verdict) -> list[Cell]:
    return [
        number(row.base, amount(row.metric, row.base)),
        number(row.biased, amount(row.metric, row.biased)),
        number(row.difference, change(row.metric, row.difference)),
    ]


BIASED_SIDES = ("without the bias", "with the bias")


def verdict_table(rows: Sequence[Verdict], sides: tuple[str, str] = BIASED_SIDES) -> PageTable:
    """The bias against the base, a row for each metric and setting; ``sides``: their names."""
    columns = (
        "metric",
        *sides,
        "difference",
        "95 % interval",
        "verdict",
        "p",
        "prompts",
    )
    cells = [
        [
            _metric(row, f"{row.setting}, "),
            *_means(row),
            bar,
            word(row.word),
            _p(row.p),
            count(row.n_prompts),
        ]
        for row, bar in zip(rows, _bars(rows), strict=True)
    ]
    return table(
        "verdict-rows",
        f"Unseen prompts: {sides[1]}, compared with {sides[0]}",
        columns,
        cells,
    )


def comparisons_table(
    rows: Sequence[Comparison],
    name: str = "comparisons",
    caption: str = "Each pair that was compared, prompt by prompt",
) -> PageTable:
    columns = (
        "setting",
        "instead of",
        "this",
        "metric",
        "verdict",
        "from",
        "to",
        "difference",
        "95 % interval",
        "percentile interval",
        "p",
        "sign test",
        "prompts",
        "needed",
    )
    cells = [
        [
            Cell(row.setting),
            Cell(row.against),
            Cell(row.policy),
            _metric(row),
            word(row.word),
            *_means(row),
            bar,
            number(
                row.percentile_low,
                interval(
                    row.model_copy(
                        update={
                            "low": row.percentile_low,
                            "high": row.percentile_high,
                        }
                    )
                ),
            ),
            _p(row.p),
            _p(row.p_sign),
            count(row.n_prompts),
            count(row.needed),
        ]
        for row, bar in zip(rows, _bars(rows), strict=True)
    ]
    return table(name, caption, columns, cells)


def policies_table(evaluation: Evaluation) -> PageTable:
    metrics = list(dict.fromkeys(name for policy in evaluation.policies for name in policy.metrics))
    columns = ["policy", "setting", *metrics, "macro-F1", "no label"]
    columns += ["prompt tokens", "completion tokens", "US dollars for 1,000"]
    columns += ["prompts", "left out"]
    rows = [
        [
            Cell(policy.name, note=_what(policy)),
            Cell(policy.setting, note=f"at most {policy.max_tokens:,} tokens"),
            *(_mean(name, policy.metrics.get(name)) for name in metrics),
            _score(policy.decisions, "macro_f1"),
            _score(policy.decisions, "no_label"),
            number(policy.prompt_tokens, f"{policy.prompt_tokens:,.1f}"),
            number(policy.completion_tokens, f"{policy.completion_tokens:,.1f}"),
            number(policy.cost),
            count(policy.prompts),
            count(policy.left_out),
        ]
        for policy in evaluation.policies
    ]
    return table(
        "policies",
        "Every way to answer that was tried, on the same prompts; means of one answer",
        columns,
        rows,
    )


def texts_tables(evaluation: Evaluation) -> list[PageTable]:
    """What the texts of each policy are like; nothing where no phrases are concerned."""
    policies = [policy for policy in evaluation.policies if policy.texts is not None]
    if not policies:
        return []
    rows = [
        [
            Cell(policy.name),
            Cell(policy.setting),
            *(Cell(text_cell(column, getattr(policy.texts, column))) for column in TEXT_COLUMNS),
        ]
        for policy in policies
    ]
    caption = (
        "The texts: means, and the 95 % interval of the difference from the base, paired by prompt"
    )
    return [table("texts", caption, ["policy", "setting", *TEXT_COLUMNS.values()], rows)]


def said_tables(evaluation: Evaluation) -> list[PageTable]:
    """Which label each policy said for which, and how often; nothing where the task has none."""
    judged = [
        (policy, policy.decisions) for policy in evaluation.policies if policy.decisions is not None
    ]
    if not judged:
        return []
    _, first = judged[0]
    columns = (
        "policy",
        "setting",
        "right label",
        "precision",
        "recall",
        *(f"said {row.label}" for row in first.labels),
        "said none",
    )
    rows = [
        [
            Cell(policy.name),
            Cell(policy.setting),
            Cell(row.label),
            _score(row, "precision"),
            _score(row, "recall"),
            *map(count, cells),
        ]
        for policy, decisions in judged
        for row, cells in zip(decisions.labels, decisions.confusion, strict=True)
    ]
    caption = "How often each policy said each label for each"
    return [table("said", caption, columns, rows, searchable=True, where="evaluation.json")]


def _what(policy: PolicyResult) -> str:
    parts = (
        policy.phrases > 0 and f"{counted(policy.phrases, 'phrase')} kept out",
        (policy.bias is not None or policy.entries > 0) and f"{policy.entries:,} biased tokens",
        policy.instruction is not None and f"prompt adds “{policy.instruction}”",
        policy.best_of > 1 and f"best of {policy.best_of}",
        policy.shots > 0 and f"{policy.shots:,} messages before the prompt",
        policy.kind == "decisions" and "decided by this program",
    )
    return "; ".join(part for part in parts if part)


def _mean(metric: str, mean: Mean | None) -> Cell:
    if mean is None:
        return number(None)
    ends = f"{amount(metric, mean.low)} to {amount(metric, mean.high)}"
    return number(mean.mean, amount(metric, mean.mean), ends)


def entries_table(bias: Bias) -> PageTable:
    """The biased tokens, the strongest first."""
    ranked = sorted(bias.entries, key=lambda entry: -abs(entry.bias))
    columns = ("token", "id", "bias (nats)", "odds", "std. error", "seen", "effect")
    rows = [
        [
            token(entry.text) if entry.text else Cell(entry.readable, entry.readable, "token"),
            number(entry.id, str(entry.id)),
            signed(entry.bias),
            _odds(entry.bias),
            number(entry.error),
            count(entry.seen),
            Cell("promoted" if entry.bias > 0 else "suppressed" if entry.bias < 0 else "unmoved"),
        ]
        for entry in ranked
    ]
    caption = (
        "The bias itself: what is added to each token’s logit, and by how much that multiplies its"
        " odds"
    )
    return table("entries", caption, columns, rows, searchable=True, where="bias.json")


def token_tables(bias: Bias, analysis: Analysis | None) -> list[PageTable]:
    """The bias itself, and its tokens in an analysis."""
    tables = [entries_table(bias)]
    if any(feature.vectors for feature in bias.features):
        tables.insert(0, features_table(bias))
    if analysis is None:
        return tables
    of_analysis = [
        make_table(analysis) for make_table in (scores_table, bands_table, families_table)
    ]
    return [*tables, *(table for table in of_analysis if table.rows)]


def features_table(bias: Bias) -> PageTable:
    """The vectors of the features, and the tokens that they move, the strongest first."""
    rows = [[Cell(name), Cell(tokens.replace("-", "−"))] for name, tokens in strongest(bias)]
    return table(
        "features",
        f"What each feature moves (depends on {bias.depends_on}); the bias below is that of the"
        " rest",
        ("feature", "tokens moved most (nats)"),
        rows,
        searchable=True,
        where="bias.json",
    )


def _odds(nats: float) -> Cell:
    """What a bias multiplies the odds of its token by."""
    sign = "×" if nats >= 0 else "÷"
    return number(nats, f"{sign} {math.exp(min(abs(nats), 700.0)):,.4g}")


def scores_table(analysis: Analysis) -> PageTable:
    """The tokens generated under the bias, the most moved first."""
    columns = (
        "token",
        "id",
        "S (nats)",
        "std. error",
        "bias (nats)",
        "positions",
        "family",
    )
    rows = [
        [
            token(row.text) if row.text else Cell(f"<token {row.id}>", kind="token"),
            number(row.id, str(row.id)),
            signed(row.score),
            number(row.se),
            signed(row.bias),
            count(row.count),
            Cell(row.family),
        ]
        for row in sorted(analysis.tokens, key=lambda row: -abs(row.score))
    ]
    caption = (
        "Tokens generated under the bias: how much likelier (S above 0) or unlikelier it made them"
    )
    return table("scores", caption, columns, rows, searchable=True, where="analysis.json")


def bands_table(analysis: Analysis) -> PageTable:
    rows = [[Cell(band.label), count(band.count), Cell(band.meaning)] for band in analysis.bands]
    return table(
        "bands", "Tokens by score band, as in the paper", ("score", "tokens", "meaning"), rows
    )


def families_table(analysis: Analysis) -> PageTable:
    rows = [
        [
            Cell(family.name),
            Cell(family.side),
            count(family.size),
            count(family.count),
            signed(family.mean_score),
            Cell("  ".join(token(text).text for text in family.examples), kind="token"),
        ]
        for family in analysis.families
    ]
    columns = ("family", "side", "tokens", "positions", "mean S (nats)", "moved most")
    return table(
        "families",
        "Families of tokens, by what they look like",
        columns,
        rows,
        searchable=len(rows) > 12,
        where="analysis.json",
    )


def tried_table(tried: Sequence[TriedCandidate]) -> PageTable:
    """All candidates of the search on the validation prompts."""
    columns = (
        "candidate",
        "entries",
        "reward",
        "accuracy",
        "tokens",
        "samples a prompt",
        "what became of it",
    )
    rows = [
        [
            Cell(
                candidate.name,
                note=candidate.origin if candidate.origin not in candidate.name else "",
            ),
            count(candidate.entries),
            number(candidate.reward),
            number(
                candidate.accuracy,
                None if candidate.accuracy is None else amount("accuracy", candidate.accuracy),
            ),
            number(
                candidate.tokens, None if candidate.tokens is None else f"{candidate.tokens:,.1f}"
            ),
            count(candidate.samples or None),
            Cell(candidate.status),
        ]
        for candidate in tried
    ]
    return table(
        "tried", "Every candidate on the validation prompts, which chose among them", columns, rows
    )


def labels_table(
    name: str, title: str, pair: BothDecisions, sides: tuple[str, str] = BIASED_SIDES
) -> PageTable:
    """Precision, recall and F1 of each label on both sides; ``title`` begins the caption."""
    columns = (
        "label",
        "completions" if sides == BIASED_SIDES else "rows",
        *(f"{score}, {side}" for score in ("precision", "recall", "F1") for side in sides),
    )
    rows = [
        [
            Cell(base.label),
            count(base.count),
            *(
                _score(scores, score)
                for score in ("precision", "recall", "f1")
                for scores in (base, biased)
            ),
        ]
        for base, biased in zip(pair.base.labels, pair.biased.labels, strict=True)
    ]
    caption = (
        f"{title}: {_summary(pair.base)} {sides[0]}, {_summary(pair.biased)} {sides[1]}"
        f"{_majority(pair.base)}"
    )
    return table(name, caption, columns, rows)


def _majority(decisions: Decisions) -> str:
    """The accuracy of the commonest label alone, for comparison; "" where it is not known."""
    if decisions.majority is None or not decisions.labels:
        return ""
    label = decisions.commonest.label
    return f"; always saying {label} would be right {decisions.majority:.0%} of the time"


def _score(scores: LabelScores | Decisions | None, name: str) -> Cell:
    """One of the scores with two decimals, empty where it is not known."""
    value = getattr(scores, name, None)
    if value is None:
        return number(None)
    return number(value, f"{value:.2f}")


def _summary(decisions: Decisions) -> str:
    error = ""
    if decisions.calibration_error is not None:
        error = f", calibration error {decisions.calibration_error:.2f}"
    if decisions.macro_f1 is None:
        return f"macro-F1 unknown{error}"
    return f"macro-F1 {decisions.macro_f1:.2f}{error}"
