"""Compare every scene with its stored facts: ``python -m tests.goldens [--write] [NAME ...]``.

``--write`` stores what is now, and says each fact that changed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

from tests.goldens.compare import differences, load, store
from tests.goldens.scenes import SCENES, facts_of


def main() -> int:
    """1 where a fact differs and is not written."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("names", nargs="*", choices=[[], *SCENES], metavar="NAME")
    options = parser.parse_args()
    changed = 0
    for name in options.names or SCENES:
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            facts = facts_of(name, Path(folder))
            os.chdir("/")
        lines = differences(load(name), facts)
        changed += len(lines)
        print(f"{name}: {len(facts)} facts, {len(lines)} changed", flush=True)
        for line in lines:
            print(f"  {line}")
        if options.write:
            store(name, facts)
    return int(changed > 0 and not options.write)


if __name__ == "__main__":
    sys.exit(main())
