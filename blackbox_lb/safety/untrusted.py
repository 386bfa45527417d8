"""Bounded reading of untrusted files and texts: limits on size and depth, each key once, nothing
run.

JSON and TOML hold data and nothing else; no format that can hold code (pickle, YAML tags) is read
anywhere in this package.
"""

import codecs
import json
import math
import os
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from blackbox_lb.errors import InputError

MAX_DEPTH = 200
"""Depth of lists and objects. The parser of pydantic, and so of vLLM and of OpenAI's SDK, stops at
the same depth (jiter).
"""
MAX_SETTINGS = 2**20
"""Largest file of settings (a profile, blb.toml, a judge) in bytes: a hundred times the largest
packaged one.
"""


def read_bounded(path: Path, limit: int) -> bytes:
    """The file's bytes; at most ``limit`` + 1 of them are ever held, whatever its size claims.

    Raises OSError: it cannot be read. ValueError: it is larger than ``limit`` bytes, or the path is
    invalid.
    """
    with path.open("rb") as file:
        # A known size spares the reading; a pipe or a device has none.
        content = None if os.fstat(file.fileno()).st_size > limit else file.read(limit + 1)
    if content is None or len(content) > limit:
        raise ValueError(f"it is larger than {limit:,} bytes, the limit")
    return content


def text_of_file(content: bytes) -> str:
    """The text of a file in UTF-8, with or without a mark. Raises ValueError: another encoding; the
    message has the line, and the ``iconv`` command that helps, by the file's mark or by a guess.
    """
    for mark, encoding in MARKS:
        if content.startswith(mark):
            raise ValueError(
                f"its first bytes say {encoding}; make it UTF-8 with iconv -f {encoding} -t UTF-8"
            )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"byte 0x{content[error.start]:02x} in line {line} is not UTF-8, perhaps Windows-1252;"
            " make it UTF-8 with iconv -f WINDOWS-1252 -t UTF-8"
        ) from error


MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
"""First bytes of a file -> its encoding, as iconv names it; UTF-32's mark begins with UTF-16's."""


def parse_json(
    content: bytes | str,
    *,
    constant: Callable[[str], Any] | None = None,
    parse_float: Callable[[str], Any] | None = None,
) -> Any:
    """Parse JSON in UTF-8, with or without a mark.

    Args:
        content: the text.
        constant: called with the text of NaN and Infinity, which JSON does not have.
        parse_float: called with the text of each number that is no integer, as in ``json.loads``.

    Raises:
        ValueError: no JSON, nested deeper than ``MAX_DEPTH``, or an object with a repeated key,
            which readers resolve differently.
    """
    text = text_of_file(content) if isinstance(content, bytes) else content
    try:
        value = json.loads(
            text, object_pairs_hook=_unique, parse_float=parse_float, parse_constant=constant
        )
    except RecursionError:
        raise ValueError(_DEEP) from None
    check_depth(value)
    return value


def no_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity: a ``constant`` for strict JSON."""
    raise ValueError(f"{name} is no JSON number")


def finite_float(digits: str) -> float:
    """Read a number, and refuse one beyond a double, such as 1e400: a ``parse_float`` for JSON that
    is written again.
    """
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:60]} is beyond the range of a double")
    return number


def parse_toml(content: bytes) -> dict[str, Any]:
    """Parse a TOML table in UTF-8, with or without a mark. Raises ValueError: no TOML in UTF-8, or
    nested deeper than ``MAX_DEPTH``.
    """
    try:
        value = tomllib.loads(text_of_file(content))
    except RecursionError:
        raise ValueError(_DEEP) from None
    check_depth(value)
    return value


def read_settings(
    path: Path, what: str, remedy: str, *, parse: Callable[[bytes], Any] = parse_toml
) -> Any:
    """Read a small file that a user wrote, called ``what`` in errors. Raises InputError: no such
    file, or it cannot be parsed.
    """
    try:
        content = read_bounded(path, MAX_SETTINGS)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {what} {path}: {getattr(error, 'strerror', None) or error}; {remedy}"
        ) from error
    try:
        return parse(content)
    except ValueError as error:
        form = "JSON"
        if parse is parse_toml:
            form = "TOML"
        elif parse is text_of_file:
            form = "a text in UTF-8"
        raise InputError(f"{what} {path} is not {form}: {error}; correct the file") from error


_DEEP = f"it is nested deeper than {MAX_DEPTH} levels, the limit"


def check_depth(value: object) -> None:
    """Raise ValueError where lists and tables are nested deeper than ``MAX_DEPTH``."""
    level = [value]
    depth = 0
    while level := [
        inner
        for each in level
        for inner in (
            each.values() if isinstance(each, dict) else each if isinstance(each, list) else ()
        )
        if isinstance(inner, dict | list)
    ]:
        depth += 1
        if depth >= MAX_DEPTH:
            raise ValueError(_DEEP)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name[:60]!r} stands twice in one object; keep one")
            seen.add(name)
    return table
