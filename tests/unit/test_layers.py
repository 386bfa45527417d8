"""The rooms of the package, ground first, and what must not reach what."""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
from pathlib import Path

import pytest

import blackbox_lb

ROOT = Path(blackbox_lb.__file__).parent
ROOMS = (
    *(
        "_version",
        "errors",
        "literals",
        "binomial",
        "types",
        "records",
        "safety",
        "providers",
        "vocabulary",
        "questions",
        "bias",
        "store",
        "estimate",
        "tasks",
        "api",
    ),
    *("rollouts", "deploy", "serve", "openai", "jobs", "extras", "cli", "__init__", "__main__"),
)
"""A room imports only from itself and from rooms that stand before it; ``__init__`` loads its names
when they are used.
"""

OUTSIDE_THE_CORE = ("extras", "cli", "__main__")
"""Rooms that may know the extras."""

ESTIMATE = (
    ("inputs",),
    ("next_token",),
    ("problem",),
    ("label_fit", "promising", "rechecking", "right_decisions"),
    ("mending",),
    ("counting", "decisions", "reweighting"),
    ("projection",),
    ("sparse",),
    ("choice",),
    ("diagnosis",),
)
"""The floors of ``estimate``, ground first; rooms on one floor do not import from each other."""

HOUSE = "blackbox_lb"
SENTENCES = (
    ("deploy reaches no estimator", "blackbox_lb.deploy", "blackbox_lb.estimate", ()),
    ("wire reaches no session", "blackbox_lb.api.wire", "blackbox_lb.api.session", ()),
    (
        "estimate reaches only errors, bounds, types and records",
        "blackbox_lb.estimate",
        HOUSE,
        ("estimate", "errors", "literals", "binomial", "types", "records"),
    ),
    ("bias reaches no estimator", "blackbox_lb.bias", "blackbox_lb.estimate", ()),
)
"""Sentence; who; what it must not reach, directly or through what it imports; rooms that it may
reach all the same.
"""


@functools.cache
def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name."""
    paths = {
        ".".join(path.relative_to(ROOT.parent).with_suffix("").parts): path
        for path in sorted(ROOT.rglob("*.py"))
    }
    return {name.removesuffix(".__init__"): path for name, path in paths.items()}


def room(module: str) -> str:
    """The room that a module is in."""
    return [*module.split("."), "__init__"][1]


@functools.cache
def imported(module: str) -> frozenset[str]:
    """The modules of the package that a module imports anywhere; imports for type checkers alone,
    and the lazy door, left out.
    """
    known = modules()
    tree = ast.parse(known[module].read_text(encoding="utf-8"))
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for node in ast.walk(block)
    }
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and id(node) not in typing_only:
            found |= {
                f"{node.module}.{alias.name}"
                for alias in node.names
                if f"{node.module}.{alias.name}" in known
            }
            found |= {node.module} & known.keys()
        elif isinstance(node, ast.Import) and id(node) not in typing_only:
            found |= {alias.name for alias in node.names} & known.keys()
    return frozenset(found)


def reached(module: str) -> set[str]:
    """All modules that a module reaches, through any number of imports."""
    found: set[str] = set()
    ahead = [module]
    while ahead:
        new = imported(ahead.pop()) - found
        found |= new
        ahead += new
    return found


def inside(module: str, package: str) -> bool:
    """Whether a module is a package, or in it."""
    return module == package or module.startswith(f"{package}.")


def test_imports_run_one_way() -> None:
    """A module imports only from its own room and from rooms before it."""
    upwards = [
        (module, name)
        for module in modules()
        for name in imported(module)
        if ROOMS.index(room(name)) > ROOMS.index(room(module))
    ]
    assert not upwards


def test_the_core_imports_no_extra() -> None:
    """What learns, judges and sends a bias does without the doctor, reports, analyses, batches,
    lm-evaluation-harness, Ray and the rivals.
    """
    extras = [
        (module, name)
        for module in modules()
        for name in imported(module)
        if room(name) == "extras" and room(module) not in OUTSIDE_THE_CORE
    ]
    assert not extras


def test_the_command_line_alone_knows_click() -> None:
    """Rooms below it get what they record of a command from their callers."""
    users = {
        room(name)
        for name, path in modules().items()
        if re.search(r"^\s*(?:import|from) click\b", path.read_text(encoding="utf-8"), re.M)
    }
    assert users == {"cli"}


def test_the_estimators_stand_on_their_floors() -> None:
    """Inside ``estimate`` a module imports only from its own room and from rooms on lower
    floors.
    """
    floors = {room: number for number, rooms in enumerate(ESTIMATE) for room in rooms}
    for module in modules():
        if module.startswith("blackbox_lb.estimate."):
            own = module.split(".")[2]
            others = {
                name.split(".")[2]
                for name in imported(module)
                if name.startswith("blackbox_lb.estimate.")
            } - {own}
            assert all(floors[each] < floors[own] for each in others), module


@pytest.mark.parametrize(
    ("who", "what", "but"), [row[1:] for row in SENTENCES], ids=[row[0] for row in SENTENCES]
)
def test_these_stay_apart(who: str, what: str, but: tuple[str, ...]) -> None:
    """The four sentences, directly and through others."""
    allowed = [f"{HOUSE}.{name}" for name in but]
    for module in modules():
        if inside(module, who) and (what == HOUSE or not inside(module, what)):
            touched = {name for name in reached(module) if inside(name, what)}
            assert not [
                name for name in touched if not any(inside(name, each) for each in allowed)
            ], module


def test_applying_a_fixed_bias_is_light() -> None:
    """A client that sends one loads no numpy, which takes a tenth of a second, and no regex, which
    lists of phrases need.
    """
    script = """
import sys, openai
from blackbox_lb import Bias, apply
from blackbox_lb.bias.records import Entry
fields = dict(provider="p", model="m", tokenizer="t", reward="r", estimator="e")
bias = Bias(entries=(Entry(id=1, bias=1.0),), **fields)
apply(openai.OpenAI(api_key="k"), bias)
print("numpy" in sys.modules, "regex" in sys.modules)
"""
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("door", ["blackbox_lb", "blackbox_lb.cli"])
def test_importing_the_door_is_light(door: str) -> None:
    """Importing the package or its command loads no numpy, scipy or openai."""
    script = (
        f"import sys, {door}; print([m for m in ('numpy', 'scipy', 'openai') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"
