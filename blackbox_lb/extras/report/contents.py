"""What the page says in tables and facts, section by section; the terminal prints the same."""

from __future__ import annotations

from collections.abc import Iterator

from blackbox_lb.extras.report import notes
from blackbox_lb.extras.report.data import RunDocuments
from blackbox_lb.extras.report.decided import SIDES as MENDED_SIDES
from blackbox_lb.extras.report.decided import question_tables
from blackbox_lb.extras.report.page_table import PageTable, shares_table
from blackbox_lb.extras.report.tables import (
    BIASED_SIDES,
    comparisons_table,
    labels_table,
    policies_table,
    said_tables,
    texts_tables,
    tried_table,
    verdict_table,
)
from blackbox_lb.extras.report.verdict_text import rows_of
from blackbox_lb.jobs.evaluation.document import Evaluation


def tables_of(run: RunDocuments) -> dict[str, list[PageTable]]:
    """Section of the page -> its tables; a section without one has an empty list."""
    tables: dict[str, list[PageTable]] = {"numbers": [], "decisions": [], "strength": []}
    rows = rows_of(run)
    if rows:
        sides = MENDED_SIDES if run.bias.decisions else BIASED_SIDES
        tables["numbers"] = [verdict_table(rows, sides)]
    for place in range(len(run.decided)):
        tables["decisions"] += question_tables(run, place)
    result = run.result
    if result is not None:
        if not run.decided:
            tables["decisions"] += [
                labels_table(f"labels-{setting.replace(' ', '-')}", f"Decisions at {setting}", pair)
                for setting, pair in result.decisions.items()
            ]
        if result.beside:
            section = "decisions" if run.decided else "numbers"
            tables[section].append(comparisons_table(result.beside, "beside", _beside_caption(run)))
        if result.validation.tried:
            tables["strength"] = [tried_table(result.validation.tried)]
    tables["shares"] = [shares_table(setting, drawn) for setting, drawn in run.shares.items()]
    if run.evaluation is not None:
        tables |= tables_of_evaluation(run.evaluation)
    return tables


def _beside_caption(run: RunDocuments) -> str:
    if run.decided:
        return "The chosen mending against temperature alone and the batch prior, row by row"
    depends_on = run.bias.depends_on or "nothing"
    return f"This bias (depends on {depends_on}) against what else decides, same test prompts"


def tables_of_evaluation(evaluation: Evaluation) -> dict[str, list[PageTable]]:
    """The tables of what one could do instead: all policies, their texts, and each comparison."""
    return {
        "policies": [policies_table(evaluation)],
        "texts": texts_tables(evaluation),
        "comparisons": [comparisons_table(evaluation.comparisons), *said_tables(evaluation)],
    }


def facts_of(run: RunDocuments) -> Iterator[tuple[str, str]]:
    """Name and fact: origin, costs and counts."""
    yield from notes.origin(run)
    yield from notes.costs(run)
    yield from notes.counts(run)
