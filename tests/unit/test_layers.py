"""The directions of imports, as README draws them."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import blackbox_lb

ROOT = Path(blackbox_lb.__file__).parent
LAYERS = (
    {"errors", "hosts", "types", "redaction", "reading"},
    {"drift", "prices", "rules", "tokens", "bias", "injection", "policy", "packing", "scratch", "tasks"},
    {"profiles", "vocabulary", "rate_limits", "faults", "embedding"},
    {"wire", "estimate", "compile", "credentials", "tying"},
    {"bounded", "budget", "pace", "retrying", "store", "_engine", "hub"},
    {"channel", "workers", "interrupts"},
    {"session"},
    {"local"},
    {
        "collect",
        "progress",
        "connection",
        "remote_rewards",
        "scoring",
        "training",
        "cluster",
        "trials",
        "testing",
        "serve",
    }
    | {"manifest", "addresses", "batch", "batches", "shards", "client", "export", "openai", "wrapping"}
    | {"evaluate", "intervals", "provenance"},
    {"analysis", "evaluation", "plots", "prefixes", "reference"},
    {"fitting"},
    {"doctor", "forecast", "reproduce"},
    {"report"},
    {"cli"},
)
"""From the nouns outwards: a module imports from its own layer and from those before it."""
FORBIDDEN = {
    "estimate": {"wire", "session", "channel", "store", "collect", "tasks", "profiles"},
    "wire": {"estimate", "session", "channel", "store", "bias"},
    "batch": {"estimate", "wire", "session", "store", "types"},
    "client": {"estimate", "wire", "session", "store", "types"},
    "bias": {"estimate", "types"},
    "injection": {"estimate", "types"},
    "openai": {"estimate", "wire", "session", "store", "types"},
    "policy": {"estimate", "types"},
    "serve": {"estimate", "wire", "session", "store"},
}
"""What must stay apart although the layers would allow it."""


def modules() -> list[Path]:
    """Every source file of the package but the public door."""
    return [
        path
        for path in sorted(ROOT.rglob("*.py"))
        if path.name not in ("__main__.py",) and path != ROOT / "__init__.py"
    ]


def part(path: Path) -> str:
    """The top-level part that a file belongs to."""
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """The top-level parts that a file imports anywhere, type-checking imports left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    names = [
        node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in typing_only
    ]
    return {name.split(".")[1] for name in names if name.startswith("blackbox_lb.")}


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_inwards(path: Path) -> None:
    """A module imports only from its own layer and from those before it."""
    layer_of = {name: number for number, names in enumerate(LAYERS) for name in names}
    own = layer_of[part(path)]
    outward = {name for name in imported(path) if layer_of[name] > own}
    assert not outward


@pytest.mark.parametrize("name", FORBIDDEN)
def test_these_parts_stay_apart(name: str) -> None:
    """The estimators know no network, the wire knows no estimator, and applying a bias needs neither."""
    for path in modules():
        if part(path) == name:
            assert not imported(path) & FORBIDDEN[name], path


@pytest.mark.parametrize("door", ["blackbox_lb", "blackbox_lb.cli"])
def test_importing_the_door_is_light(door: str) -> None:
    """Importing the package or its command loads no numpy, scipy or openai."""
    script = f"import sys, {door}; print([m for m in ('numpy', 'scipy', 'openai') if m in sys.modules])"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
