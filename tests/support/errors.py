"""Errors by their class and by what they name, however they word it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

import pytest

Kind = TypeVar("Kind", bound=Exception)


def names(message: str, *facts: object) -> bool:
    """Whether each fact, a value, name, limit or option, stands in a message as a whole: ``3``
    does not stand in ``30``.
    """
    return all(re.search(rf"(?<!\w){re.escape(str(fact))}(?!\w)", message) for fact in facts)


@contextmanager
def raises_naming(
    kind: type[Kind] | tuple[type[Kind], ...], *facts: object
) -> Iterator[pytest.ExceptionInfo[Kind]]:
    """``pytest.raises`` for an error of a class whose message names all facts."""
    with pytest.raises(kind) as caught:
        yield caught
    message = str(caught.value)
    assert names(message, *facts), (facts, message)
