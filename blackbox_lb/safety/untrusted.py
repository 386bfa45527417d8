"""Reading untrusted files and texts within limits on size and depth, without repeated keys.

JSON and TOML hold data and nothing else. No format that can hold code (pickle, YAML tags) is read
anywhere in this package.
"""

import codecs
import errno
import json
import math
import os
import re
import stat
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from blackbox_lb.errors import InputError

MAX_DEPTH = 200
"""Most lists and objects inside each other; jiter, the parser of pydantic, vLLM and OpenAI's SDK,
stops at the same depth.
"""
MAX_SETTINGS = 2**20
"""Bytes of the largest file of settings (a profile, blb.toml, a judge), a hundred times the largest
packaged one.
"""


MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
"""First bytes of a file -> its encoding, as iconv names it; UTF-32's mark begins with UTF-16's."""
_CONTAINERS = (dict, list)
_DEEP = f"it is nested deeper than {MAX_DEPTH} levels, the limit"


def read_bounded(path: Path, limit: int) -> bytes:
    """The file's bytes; never more than ``limit`` + 1 of them are read.

    A pipe that a program writes to (/dev/stdin, ``<(command)``) is read to its end.

    Raises:
        OSError: it cannot be read, or is a device, or a pipe that no program writes to.
        ValueError: it is larger than ``limit`` bytes, or the path is invalid.
    """
    too_large = f"it is larger than {limit:,} bytes, the limit"
    with _opened(path) as file:
        status = os.fstat(file.fileno())
        if status.st_size > limit:
            raise ValueError(too_large)
        first = b""
        if stat.S_ISFIFO(status.st_mode):
            first = _first_byte_of_pipe(path, file.fileno())
        content = first + file.read(limit + 1 - len(first))  # a pipe reports no size
    if len(content) > limit:
        raise ValueError(too_large)
    return content


def open_regular(path: Path) -> BinaryIO:
    """Open a file that is read from several places, or more than once.

    Raises OSError: it cannot be opened, or is a pipe or a device.
    """
    file = _opened(path)
    if stat.S_ISFIFO(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _no_file(path, "a pipe")
    return file


def _opened(path: Path) -> BinaryIO:
    # Without O_NONBLOCK, opening a pipe waits until a program opens its other end.
    file = open(  # noqa: SIM115  (the caller closes it)
        path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))
    )
    status = os.fstat(file.fileno())
    is_device = stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)
    if is_device and status.st_rdev != Path(os.devnull).stat().st_rdev:
        file.close()
        raise _no_file(path, "a terminal or another device")
    return file


def _first_byte_of_pipe(path: Path, descriptor: int) -> bytes:
    """The first byte of a pipe, or none where its writer has sent nothing yet; from here on the
    pipe is waited for.
    """
    try:
        first = os.read(descriptor, 1)
    except BlockingIOError:
        first = b""
    else:
        if not first:
            raise _no_file(path, "a pipe that no program writes to")
    os.set_blocking(descriptor, True)
    return first


def _no_file(path: Path, kind: str) -> OSError:
    reason = f"it is no file but {kind}; save its content in a file and name that"
    return OSError(errno.EINVAL, reason, str(path))


def text_of_file(content: bytes) -> str:
    """The text of a file in UTF-8, with or without a byte order mark.

    Raises:
        ValueError: another encoding. The message has the line and the ``iconv`` command that helps,
            by the file's mark or by a guess.
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
        problem = f"byte 0x{content[error.start]:02x} in line {line} is not UTF-8"
        if windows_text(content) is None:
            # The form of the remedy is that of the other cases: a command that ends in the file.
            raise ValueError(
                f"{problem}, and the file is not Windows-1252 either; correct that line, or leave"
                " such bytes out with iconv -c -f UTF-8 -t UTF-8"
            ) from error
        raise ValueError(
            f"{problem}, perhaps Windows-1252; make it UTF-8 with iconv -f WINDOWS-1252 -t UTF-8"
        ) from error


def windows_text(content: bytes) -> str | None:
    """The text of bytes that are not UTF-8, as Windows-1252; None where they are likely not that.

    What is not valid UTF-8 is not UTF-8. Letters of Windows-1252 stand in a valid sequence of UTF-8
    by chance alone, so where such sequences outnumber the stray bytes, the file is damaged UTF-8.
    Nothing tells Windows-1252 from other sets of 256 letters but its five unused bytes.
    """
    if any(content.startswith(mark) for mark, _ in MARKS):
        return None
    replaced = content.decode("utf-8", "replace")
    stray = replaced.count("\ufffd")
    if len(re.findall(r"[^\x00-\x7f]", replaced)) - stray > stray:
        return None
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError:
        return None
    if re.search(r"[\x00-\x08\x0e-\x1f]", text):
        return None
    return text


def strict_json(content: bytes | str) -> Any:
    """``parse_json`` of JSON that every reader reads alike: without NaN and Infinity, which JSON
    does not have, and without numbers beyond a double, such as 1e400.

    Raises ValueError.
    """
    return parse_json(content, parse_constant=_no_constant, parse_float=_finite_float)


def parse_json(content: bytes | str, **numbers: Any) -> Any:
    """Parse JSON in UTF-8, with or without a byte order mark; ``numbers``: the readers of numbers
    of ``json.loads``, where others are wanted than its own.

    Raises:
        ValueError: no JSON, nested deeper than ``MAX_DEPTH``, or an object with a repeated key,
            which readers resolve differently.
    """
    if isinstance(content, bytes):
        content = text_of_file(content)
    try:
        value = json.loads(content, object_pairs_hook=_unique, **numbers)
    except RecursionError:
        raise ValueError(_DEEP) from None
    except ValueError as error:
        _explain_digits(error)
        raise
    # A text of few brackets is shallow, and needs no walk through its values.
    if content.count("[") + content.count("{") > MAX_DEPTH:
        check_depth(value)
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:60]} is beyond the range of a double")
    return number


def _explain_digits(error: ValueError) -> None:
    """Raise ValueError in a user's words where ``error`` is Python's about a number of too many
    digits.
    """
    if "integer string conversion" in str(error):
        raise ValueError(
            f"it holds a number of more than {sys.get_int_max_str_digits():,} digits, the limit;"
            " write it as a text, in quotes"
        ) from error


def parse_toml(content: bytes) -> dict[str, Any]:
    """Parse a TOML table in UTF-8, with or without a byte order mark.

    Raises:
        ValueError: no TOML in UTF-8, or nested deeper than ``MAX_DEPTH``.
    """
    try:
        value = tomllib.loads(text_of_file(content))
    except RecursionError:
        raise ValueError(_DEEP) from None
    except ValueError as error:
        _explain_digits(error)
        raise
    check_depth(value)
    return value


def read_settings(
    path: Path, title: str, remedy: str, *, parse: Callable[[bytes], Any] = parse_toml
) -> Any:
    """Read a small file that a user wrote.

    Args:
        path: the file.
        title: its name in errors, as "the price table".
        remedy: the remedy where it cannot be read.
        parse: turns its bytes into the result.

    Raises:
        InputError: no such file, or it cannot be parsed.
    """
    try:
        content = read_bounded(path, MAX_SETTINGS)
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot read {title} {path}: {getattr(error, 'strerror', None) or error}; {remedy}"
        ) from error
    try:
        return parse(content)
    except ValueError as error:
        form = "JSON"
        if parse is parse_toml:
            form = "TOML"
        elif parse is text_of_file:
            form = "a text in UTF-8"
        raise InputError(f"{title} {path} is not {form}: {error}; correct the file") from error


def check_depth(value: object) -> None:
    """Raise ValueError where lists and tables are nested deeper than ``MAX_DEPTH``."""
    containers = [value] if isinstance(value, _CONTAINERS) else []
    for _ in range(MAX_DEPTH):
        if not containers:
            return
        containers = [
            child
            for container in containers
            for child in (container.values() if isinstance(container, dict) else container)
            if isinstance(child, _CONTAINERS)
        ]
    if containers:
        raise ValueError(_DEEP)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names: set[str] = set()
        for name, _ in pairs:
            if name in names:
                raise ValueError(f"the key {name[:60]!r} stands twice in one object; keep one")
            names.add(name)
    return table
