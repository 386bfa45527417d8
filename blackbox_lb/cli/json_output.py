"""Output for programs: one JSON document on stdout."""

from __future__ import annotations

import json
import sys
from typing import Any

import click


def print_json(value: Any) -> None:
    """Print one JSON document on stdout, with escapes where the terminal cannot print every
    character.
    """
    readable = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, indent=2, ensure_ascii=not readable, default=str)
    # Characters outside ASCII only stand in strings, where \\u is the same character.
    click.echo(
        "".join(
            character
            if character == "\n" or character.isprintable()
            else json.dumps(character)[1:-1]
            for character in text
        )
    )
