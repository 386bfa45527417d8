"""Examples from the user's own files: JSONL with one object a line, CSV/TSV with a header, or
Parquet.

======== =========================================================================================
column   meaning
======== =========================================================================================
prompt   a string: one user message
messages instead of a prompt: a list of {"role", "content"}; in CSV as JSON text
answer   a string, a number or a list of accepted strings; a CSV cell that is a JSON list is a
         list, any other a string
id       optional string or integer, unique in the file; otherwise a hash of prompt and answers,
         the same everywhere
split    optional: train, validation or test
======== =========================================================================================

The first three can be renamed, and the prompt can be put together from columns by a template. Other
columns of short texts and whole numbers stay with the prompt (``Prompt.columns``), where they can
name its group. An empty CSV cell and a JSON null count as absent.
"""

import hashlib
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.records.hub_data import table_records
from blackbox_lb.tasks.records.records import Record, read_records
from blackbox_lb.types import Example, Message, Prompt, Split

SPLIT_NAMES: dict[str, Split] = {"train": "train", "validation": "validation", "test": "test"}
"""The splits by name, in order."""
LONGEST_COLUMN = 200
"""Characters of another column that are kept with its prompt, as the name of a group."""
ROLES = ("assistant", "developer", "system", "user")


@dataclass(frozen=True, slots=True)
class SourcedExample:
    """An example and its origin: ``source`` for messages ("train.jsonl, line 3"), ``split`` where
    the row names one.
    """

    example: Example
    source: str
    split: Split | None = None


def load_examples(
    path: str | Path,
    *,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    messages_column: str = "messages",
    require_answers: bool = True,
) -> list[Example]:
    """The examples of one file in its order; the suffix (.jsonl, .csv, .tsv, .parquet) sets the
    format.

    ``require_answers=False`` admits rows without an answer, for a reward that needs none. DataError
    names file, line, value and remedy: unreadable or empty file, broken row, no prompt or two, no
    answer, repeated id.
    """
    columns = ColumnNames(prompt_column, answer_column, messages_column)
    return [row.example for row in read_rows(path, columns, require_answers=require_answers)]


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """The names of the columns that hold the prompt, the answer and the chat messages.

    ``template``, where given, makes the prompt instead: ``str.format`` on all columns, as in
    "Question: {question}\\nAnswer:".
    """

    prompt: str = "prompt"
    answer: str = "answer"
    messages: str = "messages"
    template: str | None = None


def read_rows(
    path: str | Path, columns: ColumnNames | None = None, *, require_answers: bool = True
) -> list[SourcedExample]:
    """Like :func:`load_examples`, with the source and the split of every row."""
    columns = columns or ColumnNames()
    path = Path(path)
    records = table_records(path) if path.suffix.lower() == ".parquet" else read_records(path)
    rows = [row_of(record, columns, require_answers) for record in records]
    if not rows:
        raise DataError(
            f"{path} has no rows; give it one {columns.prompt!r} and {columns.answer!r} a row"
        )
    _refuse_repeated_ids(rows)
    return rows


def content_hash(prompt: Prompt, answers: tuple[str, ...]) -> str:
    """16 hex digits of a prompt with its answers: the id of a row without one of its own."""
    content = [[message.role, message.content] for message in prompt.messages], answers
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def row_of(record: Record, columns: ColumnNames, require_answers: bool) -> SourcedExample:
    """The example in one record. DataError names file, line, value and remedy."""
    prompt = _prompt(record, columns)
    answers = _answers(record, columns.answer)
    if require_answers and not answers:
        raise record.error(
            f"{_absent(record, columns.answer)}; add one, or choose a reward that needs none"
        )
    identity = record.values.get("id")
    if identity is not None and (isinstance(identity, bool) or not isinstance(identity, str | int)):
        raise record.error(f"id is {shorten(identity)}; it must be a string or an integer")
    name = content_hash(prompt, answers) if identity is None else str(identity)
    others = {
        key: str(value) for key, value in record.values.items() if isinstance(value, str | int)
    }
    kept = {
        key: value
        for key, value in others.items()
        if key != columns.prompt and len(value) <= LONGEST_COLUMN
    }
    return SourcedExample(
        Example(name, replace(prompt, columns=kept), answers), record.source, _split(record)
    )


def _absent(record: Record, *columns: str) -> str:
    empty = [column for column in columns if column in record.columns]
    if empty:
        return f"{' and '.join(empty)} is empty"
    found = ", ".join(record.columns) or "none"
    return (
        f"has no column {' or '.join(map(repr, columns))} (its columns: {found}; the names can be"
        " set)"
    )


def _filled(record: Record, template: str) -> Prompt:
    try:
        text = template.format_map(record.values)
    except KeyError as error:
        raise record.error(
            f"{_absent(record, str(error.args[0]))}; correct --prompt-template"
        ) from error
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise InputError(
            f"the prompt template {shorten(template)} cannot be filled: {error}; write {{column}},"
            " and {{ for a brace"
        ) from error
    if not text.strip():
        raise record.error(
            "the prompt template gives an empty prompt; name a column that has a text"
        )
    return Prompt.user(text)


def _prompt(record: Record, columns: ColumnNames) -> Prompt:
    if columns.template is not None:
        return _filled(record, columns.template)
    text, messages = record.values.get(columns.prompt), record.values.get(columns.messages)
    if text is not None and messages is not None:
        raise record.error(
            f"has both {columns.prompt!r} and {columns.messages!r}; keep one of them"
        )
    if text is None and messages is None:
        raise record.error(
            f"{_absent(record, columns.prompt, columns.messages)}; write a prompt or delete the row"
        )
    if messages is not None:
        return _chat(record, columns.messages, messages)
    if not isinstance(text, str):
        raise record.error(f"{columns.prompt} is {shorten(text)}; it must be a string")
    if not text.strip():
        raise record.error(f"{columns.prompt} is empty; write one or delete the row")
    return Prompt.user(text)


def _chat(record: Record, column: str, value: object) -> Prompt:
    messages = record.parsed_json(column) if isinstance(value, str) else value
    if not isinstance(messages, list) or not messages:
        raise record.error(
            f'{column} is {shorten(value)}; it must be a list such as [{{"role": "user", "content":'
            ' "Hi"}]'
        )
    prompt = Prompt(tuple(_message(record, column, message) for message in messages))
    if not any(message.content.strip() for message in prompt.messages):
        raise record.error(f"{column} has only empty contents; write a prompt or delete the row")
    return prompt


def _message(record: Record, column: str, message: object) -> Message:
    if not isinstance(message, dict) or set(message) != {"role", "content"}:
        raise record.error(
            f"{column} holds {shorten(message)}; each message has exactly a role and a content"
        )
    role, content = message["role"], message["content"]
    if role not in ROLES:
        raise record.error(
            f"{column} has the unknown role {shorten(role)}; the roles are {', '.join(ROLES)}"
        )
    if not isinstance(content, str):
        raise record.error(f"{column} has the content {shorten(content)}; it must be a string")
    return Message(role, content)


def _answers(record: Record, column: str) -> tuple[str, ...]:
    value = record.values.get(column)
    if isinstance(value, str) and record.textual and value.lstrip().startswith("["):
        value = record.parsed_json(column, otherwise=value)
    if value is None or value == []:
        return ()
    return tuple(
        _answer(record, column, item) for item in (value if isinstance(value, list) else [value])
    )


def _answer(record: Record, column: str, value: object) -> str:
    if (
        isinstance(value, bool)
        or not isinstance(value, str | int | float)
        or value in (math.inf, -math.inf)
        or value != value
    ):
        raise record.error(
            f"{column} is {shorten(value)}; it must be a string, a number or a list of accepted"
            " strings"
        )
    text = str(value)
    if not text.strip():
        raise record.error(f"{column} is empty; write one or leave the column out of the row")
    return text


def _split(record: Record) -> Split | None:
    value = record.values.get("split")
    if value is None:
        return None
    if not isinstance(value, str) or value not in SPLIT_NAMES:
        raise record.error(f"split is {shorten(value)}; it must be one of {', '.join(SPLIT_NAMES)}")
    return SPLIT_NAMES[value]


def _refuse_repeated_ids(rows: list[SourcedExample]) -> None:
    seen: dict[str, SourcedExample] = {}
    for row in rows:
        first = seen.setdefault(row.example.id, row)
        if first is not row:
            same = first.example == row.example
            what = "is the same row as" if same else f"has the id {shorten(row.example.id)} of"
            raise DataError(
                f"{row.source} {what} {first.source};"
                f" {'delete one' if same else 'ids must be unique'}"
            )
