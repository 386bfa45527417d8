"""A dialect: the differences between the shapes of answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from blackbox_lb.api.wire.envelope import listed_choices
from blackbox_lb.providers.profile import Profile

if TYPE_CHECKING:
    from blackbox_lb.api.wire.dialects.position import Position, PositionReader

Choice: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class AnswerDialect:
    """The reading of answers of one shape.

    positions: every token position of a choice.
    spelled: the bytes that the listed tokens of a choice spell; None where the list does not show them.
    choices: the choices of an answer, each like one of a chat completion.
    several: whether a request may ask for several completions.
    in_order: whether alternatives stand in the order of the answer's list; a mapping has none.
    columns: whether ``AnswerReader`` can read long lists from bytes to columns.
    """

    positions: Callable[[PositionReader, Choice], list[Position]]
    spelled: Callable[[Profile, Choice], bytes | None]
    choices: Callable[[Profile, Any], list[Choice]] = listed_choices
    several: bool = True
    in_order: bool = True
    columns: bool = False
