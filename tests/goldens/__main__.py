"""``python -m tests.goldens [--write] [NAME ...]``: play scenes, and print what is not as it was.

Without ``--write`` the exit code is 1 where a fact differs; with it the values are written anew.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.goldens.play import play
from tests.goldens.scenes import SCENES
from tests.goldens.values import changes, store, stored, stored_names


def main(words: Sequence[str] | None = None) -> int:
    """The exit code of the command with these words, those of the process if None."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the values anew")
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenes; all without one")
    options = parser.parse_args(words)
    unknown = set(options.names) - SCENES.keys()
    if unknown:
        parser.error(
            f"no scene is named {', '.join(sorted(unknown))}; there are: {' '.join(SCENES)}"
        )
    moved = 0
    for name in options.names or SCENES:
        with tempfile.TemporaryDirectory(prefix="goldens-") as folder:
            facts = play(SCENES[name], Path(folder))
        differing = changes(stored(name), facts)
        moved += bool(differing)
        print(f"{name}: {len(differing)} of {sum(map(len, facts.values()))} facts differ")
        for change in differing if stored(name) else []:
            print(f"  {change}")
        if options.write and differing:
            store(name, facts)
    for name in stored_names() - SCENES.keys():
        print(f"{name}: there is no such scene; delete its file of values")
    return int(moved > 0 and not options.write)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="goldens-state-") as state:
        os.environ["XDG_STATE_HOME"] = state
        sys.exit(main())
