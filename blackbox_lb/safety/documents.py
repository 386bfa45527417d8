"""The documents of a run: JSON files that this package wrote, and that may be damaged, or of
somebody else, when they are read again.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import printable
from blackbox_lb.safety.untrusted import read_bounded, strict_json

MAX_BYTES = 64 * 2**20
"""Size of a document that is read at most."""

Model = TypeVar("Model", bound=BaseModel)


def read_document(path: Path, model: type[Model], remedy: str) -> Model | None:
    """The file as its record, None where there is no file.

    Raises InputError: it cannot be read, or is no ``model``, with the first wrong field; ``remedy``
    ends the sentence.
    """
    try:
        content = read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from None
    except ValueError:
        raise InputError(
            f"{path}: larger than the limit of {MAX_BYTES:,} bytes for a document; {remedy}"
        ) from None
    try:
        return model.model_validate(strict_json(content))
    except ValidationError as error:
        raise InputError(f"{path}: {first_problem(error)}; {remedy}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON in UTF-8 ({error}); {remedy}") from None


def first_problem(error: ValidationError) -> str:
    """One sentence on the first wrong field, with its value, and the number of further ones."""
    problems = error.errors(include_url=False)
    first = problems[0]
    field = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]
    ).lstrip(".")
    field = f"field {printable(field)}" if field else "the whole"
    if first["type"] == "missing":
        sentence = f"{field} is missing"
    elif first["type"] == "extra_forbidden":
        sentence = f"unknown {field}"
    elif first["type"] == "value_error":
        sentence = str(first["ctx"]["error"])
    else:
        sentence = f"{field} is {value_text(first['input'])}: {first['msg']}"
    if len(problems) > 1:
        sentence += f" (and {len(problems) - 1} more)"
    return sentence


def value_text(value: object) -> str:
    """A value of a document in at most 80 characters."""
    if isinstance(value, list | tuple | dict):
        return f"{type(value).__name__} of {len(value):,}"
    text = f'"{printable(value)}"' if isinstance(value, str) else printable(repr(value))
    if len(text) <= 80:
        return text
    return text[:77] + "..."
