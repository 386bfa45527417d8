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
        raise InputError(f"{path}: {_first_problem(error)}; {remedy}") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON in UTF-8 ({error}); {remedy}") from None


def _first_problem(error: ValidationError) -> str:
    """The first wrong field, and how many more there are."""
    problems = error.errors(include_url=False)
    first = problems[0]
    field = "the whole"
    if first["loc"]:
        field = f"field {'.'.join(str(part) for part in first['loc'])}"
    sentence = f"{printable(field)}: {printable(first['msg'])}"
    if len(problems) > 1:
        sentence += f" (and {len(problems) - 1} more)"
    return sentence
