"""The names of the packaged provider profiles. Nothing heavy is loaded here: help and completion
list them.
"""

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path


def profiles_folder() -> Traversable:
    """The packaged profiles; in a checkout, the folder at the root."""
    packaged = resources.files("blackbox_lb") / "providers" / "profiles"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "providers"


def profile_names() -> list[str]:
    """The sorted names of the packaged profiles."""
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in profiles_folder().iterdir()
        if entry.name.endswith(".toml")
    )


def is_profile_file(name: str) -> bool:
    """Whether the name of a provider is the path of a profile of the user's own."""
    return name.endswith(".toml")
