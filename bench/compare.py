"""``python -m bench.compare NEW.json...``: names every ratio that is worse than the stored one by
more than a fifth.

Only ratios are compared, because both sides of one were taken in turns on one machine. ``--store``
keeps the new ones instead, in ``bench/ratios.json``, with machine, date and the options that they
hold for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import click

from bench.measuring import markdown

__all__ = ["STORED", "Verdict", "compared", "direction", "kept", "main", "report"]

STORED = Path(__file__).resolve().parent / "ratios.json"
TOLERANCE = 0.2
"""The part of itself by which a ratio may be worse than the stored one."""
HIGHER = frozenset({"collector", "short answers"})
"""Benchmarks whose ratios are rates, the higher the better; those of all others are times, bytes or
rollouts.
"""


@dataclass(slots=True)
class Verdict:
    """Ratios by name. worse: (stored, new). lost: stored and, although its benchmark ran, not
    measured. unlike: measured with other options than the stored one. new: not stored yet. skipped:
    benchmarks of which nothing was measured. better: all others."""

    worse: dict[str, tuple[float, float]] = field(default_factory=dict)
    kept: dict[str, tuple[float, float]] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)
    unlike: list[str] = field(default_factory=list)
    new: list[str] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)

    @property
    def passes(self) -> bool:
        """Nothing worse, and nothing that could hide that it is."""
        return not (self.worse or self.lost or self.unlike)


def direction(name: str) -> Literal["higher", "lower"]:
    """Which way is better for the ratio of this name."""
    return "higher" if _benchmark(name) in HIGHER else "lower"


def _benchmark(name: str) -> str:
    return name.partition("/")[0]


def compared(stored: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> Verdict:
    """``stored``: benchmark -> ratios, options, machine and date; ``documents`` as benchmarks write
    them.
    """
    measured = {
        name: (value, each["options"])
        for each in documents
        for name, value in each["ratios"].items()
    }
    ran = {_benchmark(name) for name in measured}
    verdict = Verdict(skipped=sorted(stored.keys() - ran))
    known = {
        name: (value, each["options"])
        for each in stored.values()
        for name, value in each["ratios"].items()
    }
    verdict.new = sorted(measured.keys() - known.keys())
    for name, (before, options) in sorted(known.items()):
        if _benchmark(name) not in ran:
            continue
        if name not in measured:
            verdict.lost.append(name)
        elif measured[name][1] != options:
            verdict.unlike.append(name)
        else:
            now = measured[name][0]
            place = verdict.worse if _is_worse(name, before, now) else verdict.kept
            place[name] = before, now
    return verdict


def _is_worse(name: str, before: float, now: float) -> bool:
    if direction(name) == "higher":
        return not now >= before * (1 - TOLERANCE)  # NaN is worse
    return not now <= before * (1 + TOLERANCE)


def kept(stored: Mapping[str, Any], documents: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """``stored`` with the ratios of ``documents`` in place of those of the same benchmarks."""
    found = dict(stored)
    for each in documents:
        for benchmark in sorted({_benchmark(name) for name in each["ratios"]}):
            ratios = {
                name: value
                for name, value in each["ratios"].items()
                if _benchmark(name) == benchmark
            }
            found[benchmark] = {
                "ratios": ratios,
                **{key: each[key] for key in ("options", "machine", "date")},
            }
    return dict(sorted(found.items()))


def report(verdict: Verdict) -> str:
    """A table of what can be compared, and a line for everything that cannot."""
    rows = [
        [
            name,
            f"{before:.4g}",
            f"{now:.4g}",
            f"{now / before - 1:+.0%}",
            direction(name),
            "WORSE" if name in verdict.worse else "",
        ]
        for name, (before, now) in sorted((verdict.kept | verdict.worse).items())
    ]
    lines = [markdown(["ratio", "stored", "now", "change", "better is", ""], rows)] if rows else []
    lines += [f"worse by more than {TOLERANCE:.0%}: {name}" for name in verdict.worse]
    lines += [f"stored and no longer measured: {name}" for name in verdict.lost]
    lines += [
        f"measured with other options than stored, so not compared: {name}"
        for name in verdict.unlike
    ]
    lines += [f"new, not stored yet: {name}" for name in verdict.new]
    lines += [f"not run: {name}" for name in verdict.skipped]
    return "\n".join(lines)


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise click.ClickException(f"{path} is not JSON: {error}") from error


@click.command()
@click.argument(
    "new", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path)
)
@click.option(
    "--against",
    default=STORED,
    show_default="bench/ratios.json",
    type=click.Path(dir_okay=False, path_type=Path),
)
@click.option(
    "--store",
    is_flag=True,
    help="Keep the new ratios in place of the stored ones of the same benchmarks.",
)
def main(new: tuple[Path, ...], against: Path, store: bool) -> None:
    """Compare the ratios in the files NEW, which benchmarks wrote by --out, with the stored ones;
    exit code 1: one is worse.
    """
    documents, stored = [_read(path) for path in new], _read(against)
    for path, each in zip(new, documents, strict=True):
        if (
            not isinstance(each, dict)
            or not {"ratios", "options", "machine", "date"} <= each.keys()
        ):
            raise click.ClickException(
                f"{path} was not written by a benchmark's --out: it lacks ratios, options, machine"
                " or date"
            )
    verdict = compared(stored, documents)
    click.echo(report(verdict))
    for benchmark, each in stored.items():
        others = [
            new for new in documents if any(_benchmark(name) == benchmark for name in new["ratios"])
        ]
        if any(new["machine"] != each["machine"] for new in others):
            click.echo(f"{benchmark}: stored on another machine, {each['machine']}, {each['date']}")
    if store:
        against.write_text(json.dumps(kept(stored, documents), indent=1) + "\n", encoding="utf-8")
        click.echo(f"stored in {against}")
    elif not verdict.passes:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
