"""Prices of tokens: two a model, from the user, the user's table or the packaged one; else
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
from blackbox_lb.safety.untrusted import read_settings

MILLION = 1e6

Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, slots=True)
class Prices:
    """US dollars for a million tokens. source: their origin. batch: the share of them that a batch
    costs, None if not known.
    """

    prompt: float
    completion: float
    source: str = ""
    batch: float | None = None

    def dollars(self, prompt_tokens: float, completion_tokens: float) -> float:
        return (prompt_tokens * self.prompt + completion_tokens * self.completion) / MILLION

    def in_batch(self, share: float) -> Prices:
        """The prices in a batch API: these times their own row's share, else times ``share``."""
        own = share if self.batch is None else self.batch
        source = ", ".join(
            part for part in (self.source, f"in a batch {own:g} of the price") if part
        )
        return Prices(self.prompt * own, self.completion * own, source)

    def __str__(self) -> str:
        source = f", {self.source}" if self.source else ""
        return (
            f"${self.prompt:g} and ${self.completion:g} a million prompt and completion"
            f" tokens{source}"
        )


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
        return fnmatchcase(provider, self.provider) and any(
            fnmatchcase(model, each) for each in self.models
        )

    @property
    def prices(self) -> Prices:
        """The row's numbers, with their origin."""
        seen = f"{self.date:%Y-%m-%d}" if self.date else ""
        return Prices(
            self.prompt,
            self.completion,
            ", ".join(part for part in (self.source, seen) if part),
            self.batch,
        )


class _Table(BaseModel, extra="forbid", frozen=True):
    """A file of rows under ``[[price]]``."""

    price: list[_Row]


def parse_prices(text: str) -> Prices:
    """Parse the prices of ``price``, as in "0.15,0.60". Raises InputError: not two finite numbers
    from 0.
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


def find_prices(provider: str, model: str, own: Path | None = None) -> Prices | None:
    """Return a model's prices: the first row that fits in the table ``own``, else in the packaged
    one; None where none fits.

    Raises InputError: ``own`` cannot be read, or is no table of prices.
    """
    return next((row.prices for row in _rows(own) if row.fits(provider, model)), None)


def _rows(own: Path | None) -> Iterator[_Row]:
    if own is not None:
        yield from _table(own)
    with resources.as_file(resources.files("blackbox_lb.providers") / "prices.toml") as path:
        yield from _table(path)


def _table(path: Path) -> list[_Row]:
    try:
        return _Table.model_validate(
            read_settings(path, "the price table", "give another with ``prices``")
        ).price
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise InputError(
            f"the price table {path}: {where}: {first['msg']}; a row [[price]] has"
            f" {', '.join(_Row.model_fields)}"
        ) from error
