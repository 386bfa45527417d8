"""A setting: a field of a pydantic model with its default, its bounds and its help, from which the
command line makes an option.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from blackbox_lb.errors import BlbError, InputError
from blackbox_lb.safety.printable import did_you_mean, shorten


class HelpGroup(StrEnum):
    """Headings of the options in a command's help, in the order in which they are printed."""

    FIRST = "Most used"
    TASK = "Data and task"
    MODEL = "Model and API"
    SAMPLING = "Sampling"
    BATCHES = "Batches"
    STORED = "Stored completions"
    LEARNING = "Learning"
    CHOOSING = "Choosing"
    JUDGING = "Judging"
    LIMITS = "Limits"
    OUTPUT = "Output"


@dataclass(frozen=True, slots=True)
class Option:
    """How the command line offers a setting.

    Attributes:
        group: the heading in the help; None for a command without headings.
        names: the option's names, ``--like-the-field`` by default.
        kind: what its words are read as, where Python takes more than that.
        choices: "module:name" of what its words are chosen from, imported when it is needed.
        recorded: whether the record of a run says the value.
        more: for click.
    """

    group: HelpGroup | None
    names: tuple[str, ...] = ()
    kind: type | None = None
    choices: str = ""
    recorded: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)


def setting(
    default: Any,
    group: HelpGroup | None,
    help: str,
    *names: str,
    kind: type | None = None,
    choices: str = "",
    recorded: bool = False,
    ge: float | None = None,
    gt: float | None = None,
    **more: Any,
) -> Any:
    """A field of :class:`Settings`; see :class:`Option`. Its annotation sets the kind of option: a
    bool is a flag, a tuple can be given several times, a Path is one.

    Args:
        default: the value where nobody gives one; ... where somebody has to.
        help: the text in the help, without the default.
        ge: the least value.
        gt: what the value must be above.
    """
    described = Field(default, description=help, ge=ge, gt=gt)
    described.metadata.append(Option(group, names, kind, choices, recorded=recorded, more=more))
    return described


def place_in_help(described: FieldInfo) -> int:
    """The place of a setting's heading in the help, from 0; the last where it has none."""
    headings = list(HelpGroup)
    for part in described.metadata:
        if isinstance(part, Option) and part.group is not None:
            return headings.index(part.group)
    return len(headings)


def _listed(value: object) -> object:
    """A single text as a sequence of one: the characters of a text are never meant."""
    if isinstance(value, str):
        return (value,)
    return value


def _split(value: object) -> object:
    """A text at its commas."""
    if isinstance(value, str):
        return tuple(value.split(","))
    return value


Texts: TypeAlias = Annotated[Sequence[str], BeforeValidator(_listed)]
CommaTexts: TypeAlias = Annotated[Sequence[str], BeforeValidator(_split)]


class Settings(BaseModel):
    """Base of all settings: frozen, without unknown fields, and with errors in our words. A text is
    no number.
    """

    python_only: ClassVar[frozenset[str]] = frozenset()
    """Fields that the command line does not offer."""

    model_config = ConfigDict(
        frozen=True,
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        arbitrary_types_allowed=True,
    )

    def __init__(self, **fields: Any) -> None:
        """Raise InputError: a value is missing, unknown or out of range."""
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise _explained(error, type(self)) from None

    def replacing(self, **fields: object) -> Self:
        """The same with these values in place of its own, checked as at its making."""
        own = {name: getattr(self, name) for name in type(self).model_fields}
        return type(self)(**{**own, **fields})

    def recorded(self) -> dict[str, Any]:
        """The values that the record of a run says, by field."""
        return {
            name: getattr(self, name)
            for name, described in type(self).model_fields.items()
            if any(isinstance(part, Option) and part.recorded for part in described.metadata)
        }


def _explained(error: ValidationError, kind: type[Settings]) -> BlbError:
    """The first of the errors as ours."""
    details = error.errors(include_url=False)[0]
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, BlbError):
        return cause
    name = str(details["loc"][0]) if details["loc"] else ""
    if details["type"] == "missing":
        return InputError(f"``{name}`` is missing; give it")
    if details["type"] == "extra_forbidden":
        hint = did_you_mean(name, kind.model_fields)
        return InputError(f"there is no ``{name}``{hint or ', see the help for what there is'}")
    return InputError(f"``{name}={shorten(details['input'])}``: {_limit(details)}")


KINDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "bool_type": "True or False",
    "string_type": "a text",
    "path_type": "a path",
    "sequence_type": "a list",
    "sequence_str": "a list",
    "is_instance_of": "a list",
}
"""What a value must be, by pydantic's name for the error that it is none."""


def _limit(details: ErrorDetails) -> str:
    """What the value must be."""
    context = details.get("ctx", {})
    match details["type"]:
        case "greater_than_equal":
            return f"give a number from {context['ge']:g}"
        case "greater_than":
            return f"give a number above {context['gt']:g}"
        case "finite_number":
            return "give a finite number"
        case "literal_error":
            return f"choose {context['expected']}"
        case kind if kind in KINDS:
            return f"give {KINDS[kind]}, not {type(details['input']).__name__}"
        case _:
            message = details["msg"]
            return f"{message[:1].lower()}{message[1:]}"
