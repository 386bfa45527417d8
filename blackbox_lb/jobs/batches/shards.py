"""A shard: one of n disjoint parts of the prompts, so that n machines together collect the whole."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from blackbox_lb.errors import InputError
from blackbox_lb.store import prompt_hash
from blackbox_lb.types import Example, Prompt

DIGITS = 16
"""Hexadecimal digits of a prompt's hash that decide: 64 bits, so that every shard is equally likely."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Shard ``index``, from 1, of ``count``.

    A prompt's own hash decides its shard, whatever stands before or behind it: appended or reordered prompts
    move none of the others, and equal prompts are never drawn twice. Sizes differ like those of random parts.
    """

    index: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Shard:
        """Parse ``text``, as in "2/4". Raises InputError: it names no shard."""
        match = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text, re.ASCII)
        index, count = (int(match[1]), int(match[2])) if match else (0, 0)
        if not 1 <= index <= count:
            raise InputError(
                f"--shard is {text!r}; give one of n parts as I/N, where I counts from 1 to N, as in 1/4, 2/4, 3/4 and 4/4"
            )
        return cls(index, count)

    def __str__(self) -> str:
        """The shard in the form for ``parse``."""
        return f"{self.index}/{self.count}"

    def holds(self, prompt: Prompt) -> bool:
        return int(prompt_hash(prompt)[:DIGITS], 16) % self.count == self.index - 1

    def of(self, examples: Iterable[Example]) -> tuple[Example, ...]:
        """The examples whose prompts belong to this shard, in their order."""
        return tuple(example for example in examples if self.holds(example.prompt))
