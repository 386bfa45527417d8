"""The public door: names, errors and types that users rely on."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import blackbox_lb
from blackbox_lb import errors
from tests.support.errors import raises_naming

ENGINES = {"torch", "vllm"}


def test_every_public_name_exists_and_the_list_is_sorted() -> None:
    """``__all__`` is sorted, capitals first, and each of its names can be had, lazily or not."""
    names = blackbox_lb.__all__
    assert list(names) == sorted(names, key=lambda name: (not name.isupper(), name))
    for name in blackbox_lb.__all__:
        assert getattr(blackbox_lb, name) is not None
        assert name in dir(blackbox_lb)


def test_no_public_name_is_a_module() -> None:
    """A submodule of the same name would hide the object as soon as anything imported it."""
    modules = {info.name for info in pkgutil.iter_modules(blackbox_lb.__path__)}
    assert not modules & set(blackbox_lb.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy door says no like any module."""
    with raises_naming(AttributeError, "'nonsense'"):
        _ = blackbox_lb.nonsense


def test_every_module_can_be_imported_and_has_what_it_lists() -> None:
    """A door (a module with ``__all__``) has each of its names; what runs inside an engine can only
    be imported beside it.
    """
    for info in pkgutil.walk_packages(blackbox_lb.__path__, "blackbox_lb."):
        if info.name.rpartition(".")[2].startswith("_"):
            continue
        try:
            module = importlib.import_module(info.name)
        except ModuleNotFoundError as error:
            if error.name not in ENGINES:
                raise
            continue
        assert all(hasattr(module, name) for name in getattr(module, "__all__", ())), info.name


def test_a_name_with_an_underscore_stays_in_its_module() -> None:
    """Inside the package a leading underscore says what is private to a module: no other module
    imports it from there.
    """
    root = Path(blackbox_lb.__file__).parent
    taken = [
        f"{path.relative_to(root)}: {node.module}.{alias.name}"
        for path in root.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("blackbox_lb.")
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.startswith("__")
    ]
    assert not taken


def test_the_docstring_of_errors_draws_the_tree_that_is_there() -> None:
    """Every class of the tree stands in the drawing under its own parent, and the drawing has no
    other.
    """
    assert errors.__doc__ is not None
    drawn = [line for line in errors.__doc__.splitlines() if "──" in line]
    parents = {0: "BlbError"}
    found = {}
    for line in drawn:
        depth = line.index("──") // 4 + 1
        name = line.split("──")[1].split()[0]
        found[name] = parents[depth - 1]
        parents[depth] = name
    actual = {
        name: getattr(errors, name).__bases__[0].__name__
        for name in errors.__all__
        if name != "BlbError"
    }
    assert found == actual


def test_the_package_is_typed() -> None:
    """py.typed stands beside the code."""
    assert (Path(blackbox_lb.__file__).parent / "py.typed").is_file()
