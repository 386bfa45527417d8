"""What the site has and the folder has not: the changelog as a page, and links out of the folder as
plain text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")
"""A link that works on GitHub and leads out of the site."""


def on_files(files: Files, config: Any) -> Files:
    """Add the changelog."""
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "changelog.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Leave the words of such a link."""
    return OUTSIDE.sub(r"\1", markdown)
