"""A question with few options, and its forms in JSON: System One's and OpenAI's.

A choice has named options, a noul is a yes-or-no question, a score has levels in order
(https://docs.typesafe.ai, https://platform.openai.com/docs/api-reference/decisions).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

from pydantic import JsonValue, model_validator

from blackbox_lb.errors import InputError
from blackbox_lb.questions.fields import (
    Loc,
    RequestFault,
    field,
    fields_of,
    kind_of,
    list_field,
    needed_prose,
    prose,
    text_field,
    unknown_type,
)
from blackbox_lb.records import Flag, Name, Row
from blackbox_lb.safety.printable import did_you_mean, shorten
from blackbox_lb.safety.untrusted import read_settings, strict_json

Kind: TypeAlias = Literal["choice", "noul", "score"]
Json: TypeAlias = JsonValue

MOST_OPTIONS = 255
"""Options of a choice in System One and at OpenAI."""
MOST_LEVELS = 10
"""Levels of a score in System One and at OpenAI."""
ONLY_ID = "answer"
"""The id of a question that stands alone and has none."""
_LISTED = 12
"""Options that an error lists."""
_YES = ("true", "yes", "1")
_NO = ("false", "no", "0")


class AnswerOption(Row):
    """One option of a question.

    name: of a choice its label; of a noul "true" or "false"; of a score the place of the level, "0"
    to "9". description: what it means, for the model; of a score the level's text. is_boolean: the
    value is JSON's true or false rather than a text, which OpenAI's choices allow.
    """

    name: Name
    description: Json = None
    is_boolean: Flag = False

    @property
    def level_text(self) -> str:
        """The text of a score's level, its label where it has a description of its own; the number
        where it has no text.
        """
        text = self.description
        if isinstance(text, dict):
            text = text.get("label")
        return text if isinstance(text, str) else self.name


class Question(Row):
    """A question with its options in order.

    id: its name in requests and answers, which the model does not see. instructions: what is asked;
    None where the options say it all.
    """

    id: Name
    kind: Kind
    instructions: Json = None
    options: tuple[AnswerOption, ...]

    @model_validator(mode="after")
    def _options_of_kind(self) -> Question:
        names = self.names
        expected: tuple[str, ...] = names
        if self.kind == "noul":
            expected = ("true", "false")
        elif self.kind == "score":
            expected = tuple(map(str, range(min(len(names), MOST_LEVELS))))
        if names != expected:
            raise ValueError(
                f"the options of the {self.kind} {shorten(self.id)} are named"
                f" {', '.join(expected)}, in this order"
            )
        if not 1 <= len(names) <= MOST_OPTIONS:
            raise ValueError(
                f"the question {shorten(self.id)} has {len(names)} options; a choice has 1 to"
                f" {MOST_OPTIONS}"
            )
        if len(set(names)) < len(names):
            raise ValueError(f"two options of the question {shorten(self.id)} have one name")
        self._canonical()
        return self

    def _canonical(self) -> str:
        options = [
            [option.name, option.description, *([True] if option.is_boolean else [])]
            for option in self.options
        ]
        parts = [self.kind, self.instructions, options]
        return json.dumps(parts, separators=(",", ":"), allow_nan=False)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the options, in order."""
        return tuple(option.name for option in self.options)

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hexadecimal, of all that the model reads of the question: its kind, its
        instructions and its options in order, not its id.
        """
        return hashlib.sha256(self._canonical().encode()).hexdigest()

    def reversed(self) -> Question:
        """A choice with its options from the last to the first; other kinds have one order."""
        if self.kind != "choice":
            return self
        return self.replacing(options=self.options[::-1])

    def as_json(self) -> dict[str, Any]:
        """System One's question object; what is not there is left out."""
        fields: dict[str, Any] = {"type": self.kind}
        if self.instructions is not None:
            fields["instructions"] = self.instructions
        if self.kind == "score":
            fields["criteria"] = [option.description for option in self.options]
        elif self.kind == "choice":
            fields["criteria"] = {option.name: option.description for option in self.options}
        else:
            described = {
                option.name: option.description
                for option in self.options
                if option.description is not None
            }
            if described:
                fields["criteria"] = described
        return fields

    def place_of(self, answer: str) -> int:
        """The place of the option that an answer of the data names, from 0.

        A noul is answered by true or false, yes or no, 1 or 0; a score by a level's text or, where
        no level's text is a number, by the number of the level. Case and blanks around the answer
        do not count where they tell no options apart.

        Raises:
            InputError: it names no option.
        """
        spellings = self._spellings()
        if answer in spellings:
            return spellings[answer]
        plain = Counter(_plain(spelling) for spelling in spellings)
        for spelling, place in spellings.items():
            if _plain(spelling) == _plain(answer) and plain[_plain(spelling)] == 1:
                return place
        listed = ", ".join(shorten(spelling) for spelling in list(spellings)[:_LISTED])
        if len(spellings) > _LISTED:
            listed += f" and {len(spellings) - _LISTED} more"
        hint = did_you_mean(answer, spellings)
        raise InputError(
            f"{shorten(answer)} is no option of the question {shorten(self.id)},"
            f" which has {listed}{hint}"
        )

    def _spellings(self) -> dict[str, int]:
        """What answers of the data may say -> place."""
        if self.kind == "noul":
            return dict.fromkeys(_YES, 0) | dict.fromkeys(_NO, 1)
        if self.kind == "choice":
            return {name: place for place, name in enumerate(self.names)}
        texts = {option.level_text: place for place, option in enumerate(self.options)}
        is_numeric = any(
            text.strip().isdecimal() and text != self.names[place] for text, place in texts.items()
        )
        if is_numeric:
            return texts
        return {name: place for place, name in enumerate(self.names)} | texts


def question_of_labels(labels: Sequence[str], instructions: str | None) -> Question:
    """A choice between labels without descriptions, with the id ``ONLY_ID``.

    Raises:
        InputError: fewer than two labels, too many, or two alike.
    """
    criteria: dict[str, Json] = dict.fromkeys(labels)
    if len(criteria) < len(labels):
        twice = next(label for label, number in Counter(labels).items() if number > 1)
        raise InputError(f"the label {shorten(twice)} is listed twice in ``labels``; list once")
    raw: dict[str, Json] = {"type": "choice", "instructions": instructions, "criteria": criteria}
    try:
        return _distinct(question_of_system_one(raw, ONLY_ID, ()), ())
    except RequestFault as fault:
        raise InputError(f"``labels``: {fault.msg}") from fault


def read_questions(path: Path) -> tuple[Question, ...]:
    """The questions of a JSON file; see ``parse_questions``.

    Raises:
        InputError: the file cannot be read, or holds no questions.
    """
    raw = read_settings(
        path,
        "the questions",
        "give a JSON file of questions, as System One has them",
        parse=strict_json,
    )
    return parse_questions(raw, str(path))


def parse_questions(raw: object, source: str) -> tuple[Question, ...]:
    """Questions from JSON.

    Args:
        raw: a map from id to question, or one question, as System One has them; a list, as OpenAI
            has it; or an object that holds either under "questions", as a request does.
        source: the name of the file in errors.

    Raises:
        InputError: no question, one that cannot be read or that has fewer than two options, options
            that differ in case or blanks alone, or one id twice.
    """
    loc: Loc = ()
    if isinstance(raw, dict) and _holds_questions(raw):
        unknown = raw.keys() - {"questions", "model", "state", "input"}
        if unknown:
            raise InputError(f"{source}: unknown field {shorten(min(unknown))}; remove it")
        raw = raw["questions"]
        loc = ("questions",)
    try:
        if isinstance(raw, list):
            questions = questions_of_openai(raw, loc)
            if len(questions) == 1 and "name" not in raw[0]:
                questions = (questions[0].replacing(id=ONLY_ID),)
        elif isinstance(raw, dict) and isinstance(raw.get("type"), str):
            questions = (question_of_system_one(raw, ONLY_ID, loc),)
        else:
            questions = questions_of_system_one(raw, loc)
        return tuple(_distinct(question, (*loc, question.id)) for question in questions)
    except RequestFault as fault:
        raise InputError(f"{source}: {fault}") from fault


def _holds_questions(raw: Mapping[str, Any]) -> bool:
    inner = raw.get("questions")
    if isinstance(inner, list):
        return True
    return isinstance(inner, dict) and not isinstance(inner.get("type"), str)


def _distinct(question: Question, loc: Loc) -> Question:
    """The question, where answers of data can tell its options apart.

    Raises:
        RequestFault: fewer than two options, or two that differ in case or blanks alone.
    """
    if len(question.options) < 2:
        raise RequestFault(loc, "it has 1 option; give at least two", "too_short")
    texts = list(question.names)
    if question.kind == "score":
        texts = [option.level_text for option in question.options]
    by_plain: dict[str, str] = {}
    for text in texts:
        if _plain(text) in by_plain:
            raise RequestFault(
                loc,
                f"the options {shorten(by_plain[_plain(text)])} and"
                f" {shorten(text)} are spelled alike; keep one, or rename it",
            )
        by_plain[_plain(text)] = text
    return question


def _plain(text: str) -> str:
    return text.strip().casefold()


def checked_question(
    id: str, kind: Kind, instructions: Json, options: Sequence[AnswerOption], loc: Loc
) -> Question:
    """A question whose number of options is within the limits of its kind.

    Raises:
        RequestFault: no option, too many, or two of one name.
    """
    most = MOST_LEVELS if kind == "score" else MOST_OPTIONS
    if not options:
        raise RequestFault(loc, "it has no options; give at least two", "too_short")
    if len(options) > most:
        raise RequestFault(
            loc, f"it has {len(options)} options; a {kind} has at most {most}", "too_long"
        )
    names = Counter(option.name for option in options)
    name, number = names.most_common(1)[0]
    if number > 1:
        raise RequestFault(loc, f"{number} options are named {shorten(name)}; keep one")
    return Question(id=id, kind=kind, instructions=instructions, options=tuple(options))


# System One's form ----------------------------------------------------------------------------

_OF_SYSTEM_ONE = ("type", "instructions", "criteria")


def questions_of_system_one(raw: object, loc: Loc) -> tuple[Question, ...]:
    """The questions of a map from id to question.

    Raises:
        RequestFault: another thing, no question, or one that cannot be read.
    """
    by_id = fields_of(raw, loc)
    if not by_id:
        raise RequestFault(loc, "there is no question; give at least one", "too_short")
    return tuple(question_of_system_one(fields, id, (*loc, id)) for id, fields in by_id.items())


def question_of_system_one(raw: object, id: str, loc: Loc) -> Question:
    """A question in the form of System One.

    Raises:
        RequestFault: it cannot be read; an image's ``box`` is not for this package.
    """
    kind = field(fields_of(raw, loc), "type", loc)
    if kind not in ("choice", "noul", "score"):
        raise unknown_type(kind, ("choice", "noul", "score"), loc)
    fields = fields_of(raw, loc, _OF_SYSTEM_ONE)
    if not id:
        raise RequestFault(loc, "its id is empty; give it a name")
    instructions = prose(fields.get("instructions"), (*loc, "instructions"))
    place = (*loc, "criteria")
    if kind == "noul":
        options = _sides(fields.get("criteria"), place)
    elif kind == "choice":
        described = fields_of(field(fields, "criteria", loc), place)
        if "" in described:
            raise RequestFault(place, "the name of an option is empty; give it one")
        options = [
            AnswerOption(name=name, description=prose(description, (*place, name)))
            for name, description in described.items()
        ]
    else:
        options = [
            AnswerOption(name=str(level), description=needed_prose(description, (*place, level)))
            for level, description in enumerate(list_field(fields, "criteria", loc))
        ]
    return checked_question(id, cast("Kind", kind), instructions, options, place)


def _sides(raw: Json, loc: Loc) -> list[AnswerOption]:
    """The options of a noul, true first, from its optional criteria."""
    described: dict[str, Json] = {}
    if raw is not None:
        described = fields_of(raw, loc, ("true", "false"))
    return [
        AnswerOption(name=name, description=prose(described.get(name), (*loc, name)))
        for name in ("true", "false")
    ]


# OpenAI's form --------------------------------------------------------------------------------

_OF_OPENAI = {
    "predicate": ("type", "name", "instructions"),
    "choice": ("type", "name", "instructions", "choices"),
    "score": ("type", "name", "instructions", "levels"),
}


def questions_of_openai(raw: object, loc: Loc) -> tuple[Question, ...]:
    """The questions of a list; one without a name gets "question 1" for its place.

    Raises:
        RequestFault: another thing, no question, one that cannot be read, or one name twice.
    """
    if not isinstance(raw, list):
        raise RequestFault(loc, f"it is {kind_of(raw)}; give a list", "list_type")
    if not raw:
        raise RequestFault(loc, "there is no question; give at least one", "too_short")
    questions = [
        _question_of_openai(fields, place, (*loc, place)) for place, fields in enumerate(raw)
    ]
    return distinct_ids(questions, loc)


def distinct_ids(questions: Sequence[Question], loc: Loc) -> tuple[Question, ...]:
    """The questions, each with an id of its own.

    Raises:
        RequestFault: two have one.
    """
    ids: set[str] = set()
    for place, question in enumerate(questions):
        if question.id in ids:
            raise RequestFault(
                (*loc, place),
                f"a question before it is named {shorten(question.id)}, too; rename one",
            )
        ids.add(question.id)
    return tuple(questions)


def _question_of_openai(raw: object, place: int, loc: Loc) -> Question:
    kind = field(fields_of(raw, loc), "type", loc)
    if not isinstance(kind, str) or kind not in _OF_OPENAI:
        raise unknown_type(kind, tuple(_OF_OPENAI), loc)
    fields = fields_of(raw, loc, _OF_OPENAI[kind])
    id = f"question {place + 1}"
    if fields.get("name") is not None:
        id = text_field(fields, "name", loc)
    instructions = field(fields, "instructions", loc)
    if not isinstance(instructions, str | list) or not instructions:
        raise RequestFault(
            (*loc, "instructions"),
            f"it is {kind_of(instructions)}; give a text or a list of parts",
            "string_type",
        )
    if kind == "predicate":
        return checked_question(id, "noul", instructions, _sides(None, loc), loc)
    if kind == "choice":
        where = (*loc, "choices")
        options = [
            _choice(choice, (*where, number))
            for number, choice in enumerate(list_field(fields, "choices", loc))
        ]
        return checked_question(id, "choice", instructions, options, where)
    where = (*loc, "levels")
    options = [
        _level(level, number, (*where, number))
        for number, level in enumerate(list_field(fields, "levels", loc))
    ]
    return checked_question(id, "score", instructions, options, where)


def _choice(raw: Json, loc: Loc) -> AnswerOption:
    fields = fields_of(raw, loc, ("value", "description"))
    description = prose(fields.get("description"), (*loc, "description"))
    value = field(fields, "value", loc)
    if isinstance(value, bool):
        return AnswerOption(name=json.dumps(value), description=description, is_boolean=True)
    return AnswerOption(name=text_field(fields, "value", loc), description=description)


def _level(raw: Json, number: int, loc: Loc) -> AnswerOption:
    """A level; its description is part of the text, as both are read by the model."""
    fields = fields_of(raw, loc, ("label", "description"))
    label = text_field(fields, "label", loc)
    description = prose(fields.get("description"), (*loc, "description"))
    if description is None:
        return AnswerOption(name=str(number), description=label)
    return AnswerOption(name=str(number), description={"label": label, "description": description})
