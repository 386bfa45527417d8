"""The gallery's first page: who is ahead by class of rival, and each use in a row."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.gallery.results import JUDGEMENTS, Difference, PageResults, Policy, rival_name
from bench.measuring import markdown

__all__ = ["COLUMNS", "by_examples", "difference", "index", "number", "rows", "signed"]

HEAD = Path(__file__).with_name("pages") / "index.md"
EXAMPLES = """
## How many examples?

The reward of a bias that was learned from so many examples; labels: of the best one.

"""
USES = """
## Each use

The best bias and the best rival by reward; labels: with most of them. In bold: a rival with a
higher reward than the bias.

"""
BY_EXAMPLES = ("use", "setting", "examples", "base", "reward")
COLUMNS = (
    *("use", "setting", "base", "bias", "best rival", "bias against it", "difference"),
    *("smallest difference that shows", "minutes"),
)


def number(value: float | None) -> str:
    """A mean for a table."""
    return "" if value is None else f"{value:.2f}"


def signed(value: float, sign: str = "-") -> str:
    """A difference for a table, without a 0 before its point; ``sign``: "+" shows that of a
    positive one, too.
    """
    rounded = round(value, 2) + 0.0  # -0.0 becomes 0.0
    return re.sub(r"(?<!\d)0\.", ".", f"{rounded:{sign}.2f}")


def difference(found: Difference | None) -> str:
    """A difference with its interval for a table, "" for none."""
    if found is None:
        return ""
    return f"{signed(found.difference, '+')} ({signed(found.low)} to {signed(found.high)})"


def rows(results: PageResults, *, is_marked: bool = False) -> list[tuple[str, ...]]:
    """The rows of a use: ``COLUMNS`` for each title at its first setting, where a bias was judged.

    is_marked: a rival with a higher reward than the bias is in bold.
    """
    lines: list[tuple[str, ...]] = []
    for evaluation in results.last:
        setting = evaluation.settings[0]
        if not evaluation.at(setting, "bias"):
            continue
        bias, rival, verdict = evaluation.ahead(setting)
        cells = [evaluation.title, setting, number(evaluation.base(setting).mean)]
        cells.append(number(bias.mean) if bias.name == "bias" else _named(bias))
        found = ""
        named = ""
        if rival is not None:
            found = difference(rival.differences.get(bias.name))
            named = _named(rival)
            if is_marked and _is_higher(rival, bias):
                named = f"**{named}**"
        smallest = evaluation.smallest_difference(setting)
        shows = "" if smallest is None else signed(smallest)
        lines.append((*cells, named, verdict, found, shows, f"{results.run.minutes:.0f}"))
    return lines


def _is_higher(rival: Policy, bias: Policy) -> bool:
    """Whether the reward of a rival is higher than that of a bias, in the digits that are shown."""
    if rival.mean is None or bias.mean is None:
        return False
    return rival.mean > bias.mean and number(rival.mean) != number(bias.mean)


def _named(policy: Policy) -> str:
    """A policy's name in short and its mean."""
    return f"{rival_name(policy.name)} {number(policy.mean)}"


def counts(results: PageResults, *, hand_made: bool) -> Counter[str]:
    """How often each of ``JUDGEMENTS`` is that of a bias against a rival of a class."""
    return Counter(
        evaluation.judgement(policy, name)
        for evaluation in results.evaluations
        for policy in evaluation.policies
        if policy.kind == "rival" and policy.hand_made == hand_made
        for name in policy.verdicts
    )


def index(pages: Path) -> str:
    """The first page, from the results of all pages in the folder."""
    uses = [
        PageResults.model_validate_json(path.read_text(encoding="utf-8"))
        for path in sorted(pages.glob("*.json"))
    ]
    text = HEAD.read_text(encoding="utf-8")
    total = [Counter[str](), Counter[str]()]
    for results in uses:
        by_class = [counts(results, hand_made=True), counts(results, hand_made=False)]
        if not any(by_class):
            continue
        text += _counted(f"[{results.title}]({results.use}.md)", by_class)
        total = [total[0] + by_class[0], total[1] + by_class[1]]
    text += _counted("**all**", total)
    of_uses = [
        (", ".join(results.models), f"[{title}]({results.use}.md)", *cells)
        for results in uses
        for title, *cells in rows(results, is_marked=True)
    ]
    of_examples = [
        (f"[{title}]({results.use}.md)", *cells)
        for results in uses
        for title, *cells in by_examples(results)
    ]
    text += f"{USES}{markdown(('model', *COLUMNS), of_uses)}\n"
    return f"{text}{EXAMPLES}{markdown(BY_EXAMPLES, of_examples)}\n"


def by_examples(results: PageResults) -> list[tuple[str, str, str, str, str]]:
    """A row for each curve of a use: title, setting, what is counted, the model's own reward, and
    the reward by the number.
    """
    lines = []
    for title, evaluations in results.labelled.items():
        setting = evaluations[0].settings[0]
        best = {
            evaluation.labels or 0: evaluation.best(setting, "bias") for evaluation in evaluations
        }
        base = evaluations[0].base(setting).mean
        lines.append((title, setting, "labels", number(base), _points(best)))
    for curve in results.evaluations:
        if curve.learned_from:
            setting = curve.settings[0]
            base = curve.base(setting).mean
            points = _points(results.by_examples(curve, setting))
            lines.append((curve.title, setting, curve.examples, number(base), points))
    return lines


def _points(points: Mapping[int, Policy | None]) -> str:
    """Rewards by the number of examples, in words."""
    return ", ".join(
        f"{count}: {number(policy.mean)}" for count, policy in points.items() if policy is not None
    )


def _counted(name: str, by_class: Sequence[Counter[str]]) -> str:
    cells = [str(count[verdict]) for count in by_class for verdict in JUDGEMENTS]
    return f"| {' | '.join((name, *cells))} |\n"
