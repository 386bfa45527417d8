"""A package with rewards, as pip leaves it."""

from __future__ import annotations

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "own-rewards.md"
MODULE = "polite_rewards"
"""The module of the package that the page shows."""


def documented() -> str:
    """The module that docs/own-rewards.md shows."""
    section = PAGE.read_text(encoding="utf-8").partition("## A reward of a package")[2]
    return section.partition("```python\n")[2].partition("```")[0]


def put_package(folder: Path, code: str, package: str, names: dict[str, str]) -> Path:
    """Write a package of one module with names of rewards; returns what belongs on the path."""
    site = folder / "site" / package
    site.mkdir(parents=True)
    (site / f"{MODULE}.py").write_text(code)
    facts = site / f"{package.replace('-', '_')}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    rows = [f"{name} = {target}" for name, target in names.items()]
    (facts / "entry_points.txt").write_text("\n".join(["[blackbox_lb.rewards]", *rows]))
    return site
