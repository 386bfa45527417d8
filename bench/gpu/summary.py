"""What the pages in a folder found: the index of those that were made, every fit, and the
evaluations of pages that were cut off.
"""

from __future__ import annotations

import json
from pathlib import Path

from bench.gallery.index import index
from bench.gallery.page import policies_table
from bench.gallery.results import Outcome, PageResults, evaluation_of
from bench.measuring import markdown

__all__ = ["write"]


def write(out: Path) -> None:
    """Write OUT/pages/index.md and OUT/summary.md."""
    pages = out / "pages"
    pages.mkdir(parents=True, exist_ok=True)
    text = index(pages)
    (pages / "index.md").write_text(text, encoding="utf-8")
    parts = [text, "## What the pages took\n", _spent(pages), "\n## Fits\n", _fits(out), ""]
    for path in sorted(out.glob("*/*.step.json")):
        page = path.parent.name
        step = path.name.removesuffix(".step.json")
        outcome = Outcome.model_validate_json(path.read_text(encoding="utf-8"))
        is_evaluation = "comparisons" in (outcome.document or {})
        if is_evaluation and not (pages / f"{page}.json").exists():
            title = f"{page} is not finished: {step}"
            parts.append(policies_table(evaluation_of(outcome.document or {}, title)))
    (out / "summary.md").write_text("\n".join(parts), encoding="utf-8")


def _spent(pages: Path) -> str:
    rows = []
    for path in sorted(pages.glob("*.json")):
        run = PageResults.model_validate_json(path.read_text(encoding="utf-8")).run
        counts = (run.requests, run.prompt_tokens, run.completion_tokens)
        rows.append([path.stem, f"{run.minutes:.1f}", *(f"{count:,}" for count in counts)])
    head = ["page", "minutes", "requests", "prompt tokens", "generated tokens"]
    return markdown(head, rows)


def _fits(out: Path) -> str:
    """Of each fit the first row of its verdict that is not of the length, at greedy where that was
    judged; and what else was compared with the bias.
    """
    rows = []
    for path in sorted(out.glob("*/*/result.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        verdict = [row for row in result["verdict"] if row["metric"] != "tokens"]
        if not verdict:
            continue
        row = next((row for row in verdict if row["setting"] == "greedy"), verdict[0])
        pairs = [f"{pair['against']} {pair['base']:.3f}" for pair in result["beside"] or []]
        difference = f"{row['low']:+.3f} to {row['high']:+.3f} {row['verdict']}"
        numbers = [f"{row['base']:.3f}", f"{row['biased']:.3f}", difference]
        name = f"{path.parent.parent.name}/{path.parent.name}"
        rows.append([name, *numbers, "; ".join(pairs), str(result["usage"]["completions"])])
    return markdown(["fit", "base", "biased", "difference", "beside", "completions"], rows)
