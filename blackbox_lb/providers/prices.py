"""Prices of tokens: one of a model's prompt tokens, one of its completion tokens.

They come from the user, from a table of the user's, or from the packaged table; else they are
unknown.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, Field, ValidationError

from blackbox_lb.errors import InputError
from blackbox_lb.providers.schema import Dollars
from blackbox_lb.safety.documents import first_problem
from blackbox_lb.safety.untrusted import read_settings

MILLION = 1e6


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of one model.

    prompt, completion: US dollars for a million tokens.
    source: the origin of the prices.
    batch: the share of these prices that a batch costs; None if not known.
    """

    prompt: float
    completion: float
    source: str = ""
    batch: float | None = None

    def dollars(self, prompt_tokens: float, completion_tokens: float) -> float:
        """The cost in US dollars."""
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / MILLION

    def in_batch(self, share: float) -> Prices:
        """The prices in a batch API: these times ``batch``, or times ``share`` if not known."""
        if self.batch is not None:
            share = self.batch
        source = _listed(self.source, f"in a batch {share:g} of the price")
        return Prices(self.prompt * share, self.completion * share, source)

    def __str__(self) -> str:
        prices = f"${self.prompt:g} and ${self.completion:g} a million prompt and completion tokens"
        return _listed(prices, self.source)


def _listed(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


class _Row(BaseModel, extra="forbid", frozen=True):
    provider: str
    models: Annotated[list[str], Field(min_length=1)]
    prompt: Dollars
    completion: Dollars
    batch: Annotated[float, Field(ge=0, le=1)] | None = None
    source: str = ""
    date: dt.date | None = None

    def fits(self, provider: str, model: str) -> bool:
        """Whether the row holds for this model."""
        if not fnmatchcase(provider, self.provider):
            return False
        return any(fnmatchcase(model, pattern) for pattern in self.models)

    @property
    def prices(self) -> Prices:
        """The row's numbers, with their origin."""
        date = ""
        if self.date is not None:
            date = f"{self.date:%Y-%m-%d}"
        return Prices(self.prompt, self.completion, _listed(self.source, date), self.batch)


class _Table(BaseModel, extra="forbid", frozen=True):
    """A file of rows under ``[[price]]``."""

    price: list[_Row]


def parse_prices(text: str) -> Prices:
    """Parse two prices, as in "0.15,0.60".

    Raises:
        InputError: they are not two finite numbers from 0.
    """
    try:
        prompt, completion = (float(part) for part in text.split(","))
    except ValueError:
        prompt = completion = -1.0
    if not (0 <= prompt < math.inf and 0 <= completion < math.inf):
        raise InputError(
            f"``price`` is {text!r}; give two prices in US dollars for a million tokens, prompt and"
            " completion, as in 0.15,0.60"
        )
    return Prices(prompt, completion, "``price``")


def find_prices(provider: str, model: str, table: Path | None = None) -> Prices | None:
    """A model's prices, from the first row that fits; None where none fits.

    Args:
        provider: name of the profile.
        model: name of the model.
        table: a table of the user's, whose rows come before those of the packaged one.

    Raises:
        InputError: ``table`` cannot be read, or is no table of prices.
    """
    for row in _rows(table):
        if row.fits(provider, model):
            return row.prices
    return None


def _rows(table: Path | None) -> Iterator[_Row]:
    if table is not None:
        yield from _table(table)
    with resources.as_file(resources.files("blackbox_lb.providers") / "prices.toml") as path:
        yield from _table(path)


def _table(path: Path) -> list[_Row]:
    try:
        return _Table.model_validate(
            read_settings(path, "the price table", "give another with ``prices``")
        ).price
    except ValidationError as error:
        raise InputError(
            f"the price table {path}: {first_problem(error)}; a row [[price]] has"
            f" {', '.join(_Row.model_fields)}"
        ) from error
