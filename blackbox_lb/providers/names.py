"""The names of the provider profiles that come with the package. Nothing heavy is loaded here: help and completion list them."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path


def profiles_folder() -> Traversable:
    """The packaged profiles; in a checkout, the folder at the root."""
    packaged = resources.files("blackbox_lb") / "providers" / "profiles"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "providers"


def profile_names() -> list[str]:
    """Names of the profiles that come with the package, sorted."""
    return sorted(entry.name.removesuffix(".toml") for entry in profiles_folder().iterdir() if entry.name.endswith(".toml"))
