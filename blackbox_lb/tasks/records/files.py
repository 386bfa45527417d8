"""Examples from the user's own files: JSONL with one object a line, JSON with an array of objects,
CSV/TSV with a header, Parquet, or a text with one prompt a line.

======== =========================================================================================
column   meaning
======== =========================================================================================
prompt   a string: one user message
messages instead of a prompt: a list of {"role", "content"}; in CSV as JSON text. A turn of the
         assistant may have ``tool_calls``, each answered by a message of the role ``tool`` with its
         ``tool_call_id``, as OpenAI's chat format has them. Where a row has no answer, a last turn
         of the assistant is its answer. ShareGPT's ``conversations`` are read like messages
answer   a string, a number, true or false, or a list of accepted strings; a CSV cell that is a
         JSON list is a list, any other a string. SQuAD's object is the list of its texts. An object
         of label -> share or count (in CSV as JSON text) is a wanted distribution: every row then
         has one, of the same labels
id       optional string or integer, unique in the file; otherwise a hash of prompt and answers,
         the same everywhere
want     instead of answer, for a decision for or against a way to begin the completion (``decide``)
split    optional: train, validation or test
tools    optional: a list of functions that the model may call, as OpenAI's field has them (in CSV
         as JSON text); sent with each request of the prompt
======== =========================================================================================

The first three can be renamed, also to a path such as question.stem, and the prompt can be put
together from columns by a template. Other columns of short texts and whole numbers stay with the
prompt (``Prompt.columns``), where they can name its group. An empty CSV cell and a JSON null count
as absent. Rows of one prompt are one example (:mod:`~blackbox_lb.tasks.records.files`).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.literals import Split
from blackbox_lb.safety.printable import counted, did_you_mean, shorten
from blackbox_lb.tasks.records.chats import CONVERSATIONS, raw_messages, read_chat
from blackbox_lb.tasks.records.hub_data import records_of
from blackbox_lb.tasks.records.records import JSON_LINES, Record, arrays_in, given_records
from blackbox_lb.tasks.records.shares import (
    ANSWER_FIELDS,
    ANSWER_NAMES,
    answer_field,
    check_alike,
    shares_of,
)
from blackbox_lb.tasks.records.tools import tools_text
from blackbox_lb.tasks.rewards.matching import parse_matcher
from blackbox_lb.types import STATE, Example, Message, Prompt

Words: TypeAlias = tuple[tuple[str, ...], ...]
MOST_PADDING = 1_000
"""Characters that a format of the prompt template may pad one value to."""
NAMED_ROWS = 5
"""Rows of one kind whose places are named."""
JUDGED_FIRST: tuple[Split, ...] = ("test", "validation", "train")
"""Of a prompt in several splits, the rows of the first of these stay."""


@dataclass(frozen=True, slots=True)
class ExampleRow:
    """An example with what its row says of it.

    split: the split that the row names, if any.
    remarks: how the row was read, where that is to be said, each to be put behind the number of
        such rows; those of its copies, too.
    copies: further rows of the same prompt that are in the example.
    split_id: the id whose hash decides the split; "" for the example's own.
    label: of a decision between few labels, the one that the row has; "" elsewhere.
    """

    example: Example
    split: Split | None = None
    remarks: tuple[str, ...] = ()
    copies: int = 0
    split_id: str = ""
    label: str = ""


def words_of(row: ExampleRow) -> tuple[Words, str]:
    """The prompt's words without regard to white space, and its tools, for comparing prompts."""
    words = tuple(
        tuple(" ".join(text.split()) for text in message.fields.values())
        for message in row.example.prompt.messages
    )
    return words, row.example.prompt.tools


def join_repeats(rows: Iterable[ExampleRow]) -> list[ExampleRow]:
    """Rows of equal prompts and tools in one split as one, in the place of the first.

    It has the id of the first row and the answers of all, the commonest first, as equally accepted
    answers. Prompts that differ in white space alone stay apart, and share their ``split_id``.

    Raises DataError: rows of one prompt want different distributions.
    """
    groups: dict[object, list[ExampleRow]] = {}
    for row in rows:
        key = (row.example.prompt, row.split)
        groups.setdefault(key, []).append(row)
    first_ids: dict[object, str] = {}
    joined = []
    for group in groups.values():
        row = _joined(group)
        split_id = first_ids.setdefault(words_of(row), row.example.id)
        joined.append(replace(row, split_id=split_id))
    return joined


def _joined(rows: Sequence[ExampleRow]) -> ExampleRow:
    first = rows[0]
    if len(rows) == 1:
        return first
    first = replace(first, remarks=tuple(text for row in rows for text in row.remarks))
    if first.example.weights:
        _refuse_other_shares(rows)
        return replace(first, copies=len(rows) - 1)
    counts = Counter(row.example.answers for row in rows if row.example.answers)
    variants = tuple(answers for answers, _ in counts.most_common())
    answers = tuple(dict.fromkeys(answer for variant in variants for answer in variant))
    if len(variants) < 2:
        variants = ()
    return replace(
        first,
        example=replace(first.example, answers=answers, variants=variants),
        copies=len(rows) - 1,
    )


def _refuse_other_shares(rows: Sequence[ExampleRow]) -> None:
    first = rows[0].example
    target = dict(zip(first.answers, first.weights, strict=True))
    for row in rows[1:]:
        example = row.example
        if dict(zip(example.answers, example.weights, strict=True)) != target:
            raise DataError(
                f"{row.example.place} has the prompt of {first.place} and other shares; the model"
                " is shown the same text, so join them into one row with the shares of both, or say"
                " in the prompt what tells them apart"
            )


def keep_apart(
    splits: Mapping[Split, Sequence[ExampleRow]],
) -> tuple[dict[Split, list[ExampleRow]], Counter[tuple[Split, Split]]]:
    """Leave rows out of a split whose prompt stands in another one that is judged by.

    Returns:
        The splits, and the number of rows left out by (their split, the split that keeps the
        prompt).
    """
    owners: dict[object, Split] = {}
    distinct: dict[Split, list[ExampleRow]] = {split: [] for split in splits}
    left_out: Counter[tuple[Split, Split]] = Counter()
    for split in JUDGED_FIRST:
        for row in splits.get(split, ()):
            owner = owners.setdefault(words_of(row), split)
            if owner == split:
                distinct[split].append(row)
            else:
                left_out[split, owner] += 1 + row.copies
    return distinct, left_out


def remarks_on(
    rows: Sequence[ExampleRow],
    left_out: Mapping[tuple[Split, Split], int],
    unlabelled: Sequence[ExampleRow],
    answer_column: str,
) -> list[str]:
    """What was done to the rows of a task that its user would not see otherwise, in sentences."""
    several = [row for row in rows if row.example.variants]
    differing = sum(len(row.example.variants) - 1 for row in several)
    equal = sum(row.copies for row in rows) - differing
    notices = []
    if equal:
        notices.append(f"{counted(equal, 'row')} equal to another, which counts once")
    if several:
        notices.append(
            f"{counted(len(several), 'prompt')} with different answers in several rows, all of"
            " which are accepted"
        )
    for (split, owner), count in sorted(left_out.items()):
        notices.append(
            f"{counted(count, 'row')} left out of {split}, whose prompts are in {owner} too"
        )
    if unlabelled:
        count = sum(1 + row.copies for row in unlabelled)
        verb = "has" if count == 1 else "have"
        notices.append(
            f"{counted(count, 'row')} {verb} no {answer_column} ({places_of(unlabelled)}): used as"
            " unlabelled prompts"
        )
    counts = Counter(text for row in (*rows, *unlabelled) for text in row.remarks)
    notices += [f"{counted(count, 'row')} {text}" for text, count in counts.items()]
    return notices


def places_of(rows: Sequence[ExampleRow]) -> str:
    """The places of rows in their file, as "lines 5, 9"; those of the first ``NAMED_ROWS``."""
    places = sorted(
        (row.example.place.rpartition(", ")[2] for row in rows),
        key=lambda place: int(re.findall(r"\d+", place)[0]),
    )
    unit = places[0].partition(" ")[0]
    numbers = [place.removeprefix(f"{unit} ") for place in places[:NAMED_ROWS]]
    if len(places) > NAMED_ROWS:
        numbers.append("...")
    plural = "s" if len(places) > 1 else ""
    return f"{unit}{plural} {', '.join(numbers)}"


SPLIT_NAMES: dict[str, Split] = {"train": "train", "validation": "validation", "test": "test"}
"""The splits by name, in order."""
LONGEST_COLUMN = 200
"""Characters of another column that are kept with its prompt, as the name of a group."""
PROMPT = "prompt"
"""The column of the prompt, by default."""
MESSAGES = "messages"
"""The column of the chat messages, by default."""
ANSWER = "answer"
"""The column of the accepted answers, by default."""
TOOLS = "tools"
WANT = "want"
"""The column of the answers of a decision for or against a way to begin, by default."""


class GivenRows(tuple[Any, ...]):
    """Rows that a program gives, in place of a file."""

    __slots__ = ()

    def __str__(self) -> str:
        return "data"  # the name of their task, and of their source in messages


Source: TypeAlias = str | Path | GivenRows


@runtime_checkable
class Table(Protocol):
    """A DataFrame of pandas or polars."""

    @property
    def columns(self) -> Any:
        """The names of its columns."""


TO_ROWS = {"to_dicts": (), "to_dict": ("records",)}
"""Methods of DataFrames that give their rows as dicts, with the arguments: of polars, of pandas."""


Rows: TypeAlias = "str | Path | Iterable[Mapping[str, Any]] | Table"
"""A file of rows, or the rows themselves."""


def load_examples(
    path: str | Path,
    *,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    messages_column: str = "messages",
    require_answers: bool = True,
) -> list[Example]:
    """The examples of one file in its order; the suffix (.jsonl, .json, .csv, .tsv, .parquet) sets
    the format. Rows of one prompt are one example, with the answers of all of them.

    ``require_answers=False`` admits rows without an answer, for a reward that needs none. DataError
    names file, line, value and remedy: unreadable or empty file, broken row, no prompt or two, no
    answer, one id for two prompts.
    """
    columns = ColumnNames(prompt_column, answer_column, messages_column)
    return [row.example for row in read_rows(path, columns, require_answers=require_answers)]


@dataclass(frozen=True, slots=True)
class ColumnNames:
    """Where a row has its prompt and its answer: names of columns, or paths as question.stem.

    prompt, answer, messages: the columns of the prompt, the answer and the chat messages.
    template: makes the prompt instead; ``str.format`` on all columns, as in "Question:
        {question}\\nAnswer:".
    field: the path to the array of rows in a file that is one JSON object; None: the file itself.
    prefill: messages may end with the beginning of the completion, which is sent.
    otherwise: the column of the answer in rows that lack ``answer``; "" for none.
    state: whether a row may have a ``state`` in place of its prompt, a text or JSON.
    """

    prompt: str = PROMPT
    answer: str = ANSWER
    messages: str = MESSAGES
    template: str | None = None
    field: str | None = None
    prefill: bool = False
    otherwise: str = ""
    state: bool = False


def read_rows(
    source: Source, columns: ColumnNames, *, require_answers: bool = True
) -> list[ExampleRow]:
    """Like :func:`load_examples`, with the source and the split of every row."""
    suffix = ""
    if not isinstance(source, GivenRows):
        suffix = Path(source).suffix.lower()
    if columns.field is not None and suffix not in JSON_LINES:
        raise DataError(
            f"{source} is no JSON file, and ``field={columns.field}`` names an array in one; leave"
            " it out"
        )
    if isinstance(source, GivenRows):
        records = given_records(source)
    else:
        records = records_of(Path(source), columns.field)
    rows = [row_of(record, columns, require_answers) for record in records]
    if not rows:
        raise DataError(
            f"{source} has no rows; give it one {columns.prompt!r} and {columns.answer!r} a row"
        )
    check_alike(row.example for row in rows)
    rows = join_repeats(rows)
    _refuse_repeated_ids(rows)
    return rows


def source_of(rows: Rows | None) -> Source | None:
    """The file of rows, or the rows that a program gives; None for none.

    Raises InputError: it is neither.
    """
    if isinstance(rows, str) and not rows:
        raise InputError("``data`` is empty; give the path of a file of rows")
    if rows is None or isinstance(rows, str | Path):
        return rows
    if isinstance(rows, Table):
        counts = Counter(rows.columns)
        repeated = [name for name, count in counts.items() if count > 1]
        if repeated:
            raise DataError(f"``data`` has the column {repeated[0]!r} twice; rename or drop one")
        for method, arguments in TO_ROWS.items():
            if hasattr(rows, method):
                return GivenRows(getattr(rows, method)(*arguments))
    given: object = rows
    if isinstance(given, Iterable) and not isinstance(given, Mapping | bytes):
        return GivenRows(given)
    raise InputError(
        f"``data`` is a {type(rows).__name__}; give the path of a file of rows, a list of rows"
        ' such as {"prompt": ..., "answer": ...}, a DataFrame of pandas, or a Task'
    )


def content_hash(
    prompt: Prompt, answers: tuple[str, ...], tools: str, shares: tuple[float, ...]
) -> str:
    """16 hex digits of a prompt with its answers, their wanted shares and its tools: the id of a
    row without one of its own.
    """
    messages = [list(message.fields.values()) for message in prompt.messages]
    content: list[Any] = [messages, answers]
    if tools:
        content.append(tools)
    if shares:
        content.append(shares)
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def row_of(record: Record, columns: ColumnNames, require_answers: bool) -> ExampleRow:
    """The example in one record. DataError names file, line, value and remedy."""
    columns = _with_column_of_chat(record, columns)
    prompt = _prompt(record, columns)
    if columns.otherwise and not record.has(columns.answer):
        columns = replace(columns, answer=columns.otherwise)
    value = _answer_value(record, columns.answer)
    shares: tuple[float, ...] = ()
    if isinstance(value, Mapping):
        answers, shares = shares_of(record, columns.answer, value)
    else:
        answers = _answers(record, columns.answer, value)
    prompt, answers = _read_last_turn(record, columns, prompt, answers)
    if require_answers and not answers:
        remedy = "add one, or choose a reward that needs none"
        if not record.has(columns.answer):
            remedy = f"name it with ``answer_column``, {remedy}"
        problem = _absent(record, columns.answer)
        if NOT_TO_LEARN in record.remarks:
            problem = "the last turn has the weight 0, so it is no answer"
        raise record.error(f"{problem}; {remedy}")
    identity = record.values.get("id")
    if identity is not None and (isinstance(identity, bool) or not isinstance(identity, str | int)):
        raise record.error(f"id is {shorten(identity)}; it must be a string or an integer")
    tools = _tools(record)
    name = str(identity)
    if identity is None:
        name = content_hash(prompt, answers, tools, shares)
    unread = {
        key: str(value) for key, value in record.values.items() if isinstance(value, str | int)
    }
    settings = {
        key: value
        for key, value in unread.items()
        if key != columns.prompt and len(value) <= LONGEST_COLUMN
    }
    return ExampleRow(
        Example(
            name,
            replace(prompt, columns=settings, tools=tools),
            answers,
            source=record.source,
            weights=shares,
        ),
        _split(record),
        tuple(record.remarks),
    )


def prompt_of_row(values: Mapping[str, Any], number: int, *, state: bool = False) -> Prompt:
    """The prompt in a row that is given in Python, with its tools.

    values: ``prompt`` or ``messages``, and ``tools``, as a data file has them. number: of the row,
    for messages. state: whether it may have a ``state`` in place of a prompt. Raises DataError: see
    ``row_of``.
    """
    present = {key: value for key, value in values.items() if value is not None}
    record = Record(Path("prompts"), number, tuple(values), present, textual=False, unit="row")
    columns = _with_column_of_chat(record, ColumnNames(state=state))
    return replace(_prompt(record, columns), tools=_tools(record))


def _with_column_of_chat(record: Record, columns: ColumnNames) -> ColumnNames:
    """The columns, with the one of the prompt in the place of ``messages`` where it holds a chat,
    and ShareGPT's where a row has that one alone.
    """
    if record.get(columns.messages) is not None:
        return columns
    prompt = record.get(columns.prompt)
    if isinstance(prompt, list) and all(isinstance(message, dict) for message in prompt):
        return replace(columns, messages=columns.prompt)
    is_default = (columns.prompt, columns.messages) == (PROMPT, MESSAGES)
    if is_default and prompt is None and isinstance(record.get(CONVERSATIONS), list | str):
        return replace(columns, messages=CONVERSATIONS)
    return columns


NOT_TO_LEARN = "with a last turn of the weight 0, which is no answer and is not sent"


def _read_last_turn(
    record: Record, columns: ColumnNames, prompt: Prompt, answers: tuple[str, ...]
) -> tuple[Prompt, tuple[str, ...]]:
    """Decide what a last turn of the assistant is: the answer of a row that has none, or the
    beginning of the completion.

    Raises DataError: it holds an accepted answer, which the model would be shown.
    """
    *before, last = prompt.messages
    if last.role != "assistant":
        return prompt, answers
    is_unlabelled = columns.answer == ANSWER and not record.has(ANSWER)
    if last.tool_calls and (columns.prefill or not is_unlabelled):
        raise record.error(
            f"the last turn of {columns.messages} calls a function, and no completion goes on after"
            " a call; add the message of the role tool with its result, or leave out that turn"
        )
    if columns.prefill or not last.text.strip():
        return prompt, answers
    if is_unlabelled and not before:
        raise record.error(
            f"{columns.messages} has an answer and no question before it; add the question, or give"
            " ``prefill`` if the completion is to begin with it"
        )
    if is_unlabelled:
        prompt = replace(prompt, messages=tuple(before))
        if raw_messages(record, columns.messages)[-1].get("weight") == 0:
            record.remark(NOT_TO_LEARN)
            return prompt, ()
        record.remark(
            "without an answer column, where the last turn of the assistant is the answer and is"
            " not sent (``prefill`` sends it)"
        )
        return prompt, (last.text,)
    leaked = [answer for answer in answers if _CONTAINS.test((answer,), last.content)]
    if leaked:
        raise record.error(
            f"the last turn of {columns.messages} holds the answer {shorten(leaked[0])}, so the"
            f" model would be shown it; leave out that turn, or the column {columns.answer} (the"
            " turn then is the answer), or give ``prefill`` if the completion is to begin with it"
        )
    record.remark(
        "with a last turn of the assistant, which is sent as the beginning of the completion"
        " (``prefill`` says that this is meant)"
    )
    return prompt, answers


_CONTAINS = parse_matcher("contains")


def _tools(record: Record) -> str:
    """The row's tools as JSON in one spelling; "" for none."""
    value = record.get(TOOLS)
    if isinstance(value, str):
        value = record.parsed_json(TOOLS)
    try:
        return tools_text(value)
    except ValueError as error:
        raise record.error(f"{TOOLS}: {error}") from error


OTHER_NAMES = {
    PROMPT: (
        "question",
        "input",
        "instruction",
        "text",
        "sentence",
        "query",
        "content",
        "document",
    ),
    ANSWER: ANSWER_NAMES,
}
"""Default column -> what other data sets call it, the likeliest first."""


def _likely_column(column: str, names: Iterable[str]) -> str:
    """A question for the option that names the column which is called otherwise in these data; ""
    where none of the usual names is there.
    """
    present = {name.lower(): name for name in names}
    for candidate in OTHER_NAMES.get(column, ()):
        if candidate in present:
            return f" (did you mean ``{column}_column={present[candidate]}``?)"
    return ""


def longest_column(records: Sequence[Record]) -> str:
    """The column with the longest texts in sum, which is likely the prompt; COLUMN without one."""
    lengths: Counter[str] = Counter()
    for record in records:
        for column, value in record.values.items():
            if isinstance(value, str):
                lengths[column] += len(value)
    if not lengths:
        return "COLUMN"
    return max(lengths, key=lambda column: lengths[column])


def _absent(record: Record, *columns: str) -> str:
    empty = [column for column in columns if record.has(column)]
    if empty:
        return f"{' and '.join(empty)} is empty"
    listed = ", ".join(record.columns) or "none"
    suggestions = [_likely_column(column, record.names) for column in columns]
    if PROMPT in columns and {"instruction", "input"} <= set(record.columns):
        suggestions.insert(0, _ALPACA)
    suggestions += [did_you_mean(column, record.names) for column in columns]
    sentence = (
        f"has no column {' or '.join(map(repr, columns))}{next(filter(None, suggestions), '')};"
        f" its columns: {listed}"
    )
    arrays = arrays_in(record.values)
    if record.whole and arrays:
        sentence += f"; ``field={arrays[0]}`` reads the rows in it"
    return sentence


_ALPACA = (
    " (did you mean ``prompt_template='{instruction} {input}'`` and ``answer_column=output``, as"
    " for Alpaca?)"
)


class _ColumnsOfTemplate(string.Formatter):
    """``str.format`` by columns, and by paths into them: {question.stem}."""

    def __init__(self, record: Record) -> None:
        self._record = record

    def get_field(
        self, field_name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[Any, str]:
        value = self._record.get(field_name)
        if value is not None:
            return value, field_name
        if "[" not in field_name:
            raise KeyError(field_name)
        value, key = super().get_field(field_name, args, kwargs)
        return value, key

    def format_field(self, value: Any, format_spec: str) -> str:
        """The value in its format. Raises ValueError: the format is wrong, or pads the value to
        more than ``MOST_PADDING`` characters, which would be memory rather than text.
        """
        if any(int(number) > MOST_PADDING for number in re.findall(r"\d+", format_spec)):
            raise ValueError(
                f"{shorten(format_spec)} pads a value beyond {MOST_PADDING:,} characters"
            )
        return str(super().format_field(value, format_spec))


def _filled(record: Record, template: str) -> Prompt:
    try:
        text = _ColumnsOfTemplate(record).vformat(template, (), record.values)
    except KeyError as error:
        raise record.error(
            f"{_absent(record, str(error.args[0]))}; correct ``prompt_template``"
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


def prompt_of_template(template: str, text: str) -> Prompt:
    """The prompt of a template with one column, which the text fills. Raises InputError: it has
    another number of columns.
    """
    names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    columns = tuple(dict.fromkeys(re.split(r"[.\[]", name)[0] for name in names))
    if len(columns) != 1:
        raise InputError(
            f"the template of the fit has {len(columns)} columns ({', '.join(columns) or 'none'}),"
            " and a prompt fills one; give whole prompts, with ``raw``"
        )
    record = Record(Path("prompts"), 1, columns, {columns[0]: text}, textual=False, unit="row")
    return _filled(record, template)


def _prompt(record: Record, columns: ColumnNames) -> Prompt:
    if columns.template is not None:
        return _filled(record, columns.template)
    text = None
    messages = record.get(columns.messages)
    if columns.prompt != columns.messages:
        text = record.get(columns.prompt)
    if text is None and messages is None and columns.state and record.get(STATE) is not None:
        return _state(record)
    if text is not None and messages is not None:
        raise record.error(
            f"has both {columns.prompt!r} and {columns.messages!r}; keep one of them"
        )
    if text is None and messages is None:
        problem = _absent(record, columns.prompt, columns.messages)
        if record.has(columns.prompt) or record.has(columns.messages):
            remedy = "write a prompt or delete the row"
        elif "did you mean" in problem:
            remedy = "correct ``prompt_column``"
        else:
            remedy = f"name it with ``prompt_column={longest_column([record])}``"
        if record.textual and len(record.columns) == 1:
            remedy = f"separate the cells by a comma, a semicolon, a tab or |, or {remedy}"
        raise record.error(f"{problem}; {remedy}")
    if messages is not None:
        return read_chat(record, columns.messages)
    if not isinstance(text, str):
        problem = f"{columns.prompt} is {shorten(text)}; it must be a string or chat messages"
        if record.whole and isinstance(text, dict | list):
            problem += ", in a row for each prompt (of pandas, to_json(FILE, orient='records'))"
        raise record.error(problem)
    if not text.strip():
        raise record.error(f"{columns.prompt} is empty; write one or delete the row")
    return Prompt.user(text)


def _state(record: Record) -> Prompt:
    """The state that a question is about: a text, or JSON, which stays JSON."""
    state = record.get(STATE)
    if isinstance(state, str) and state.strip():
        return Prompt.user(state)
    if not isinstance(state, dict | list):
        raise record.error(f"{STATE} is {shorten(state)}; it must be a text, an object or a list")
    try:
        text = json.dumps(state, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError) as error:  # a date of Parquet, say
        raise record.error(f"{STATE} is no JSON: {error}; write it as a text") from error
    return Prompt((Message(STATE, text),))


def _answer_value(record: Record, column: str) -> Any:
    """What the answer column holds; of a CSV cell that is JSON, the list or object in it, and of
    SQuAD's objects the texts.
    """
    value = record.get(column)
    if isinstance(value, str) and record.textual and value.lstrip().startswith(("[", "{")):
        value = record.parsed_json(column, otherwise=value)
    answers = value
    if not isinstance(value, list):
        answers = [value]
    if answers and all(
        isinstance(answer, dict) and set(answer) == _SQUAD_FIELDS for answer in answers
    ):
        record.remark("with answers as SQuAD has them, of which each text is accepted")
        texts = [answer["text"] for answer in answers]
        if isinstance(value, dict):
            return texts[0]
        return texts
    return value


_SQUAD_FIELDS = {"text", "answer_start"}


def _answers(record: Record, column: str, value: Any) -> tuple[str, ...]:
    if value is None or value == []:
        return ()
    if not isinstance(value, list):
        return (_answer(record, column, value),)
    return tuple(_answer(record, column, item) for item in value)


def _answer(record: Record, column: str, value: object) -> str:
    if isinstance(value, bool):
        record.remark(
            "with a true or false that is no text as the answer, which is read as that word; write"
            " texts such as yes and no if the prompts ask for these"
        )
        return str(value).lower()
    if isinstance(value, Mapping):
        field = answer_field(value) or next(iter(value), ANSWER_FIELDS[0])
        raise record.error(
            f"{column} holds {shorten(value)} in a list; name the field with the answer,"
            f" ``answer_column={column}.0.{field}``"
        )
    if not isinstance(value, str | int | float) or value in (math.inf, -math.inf) or value != value:
        raise record.error(
            f"{column} is {shorten(value)}; it must be a string, a number, true, false, a list of"
            " accepted strings or an object of label and share"
        )
    if isinstance(value, float) and value.is_integer():
        record.remark(
            "with a whole number that is written as 1.0 as the answer, which is compared as it is"
            " written; write 1 if completions do"
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


def _refuse_repeated_ids(rows: list[ExampleRow]) -> None:
    """Refuse one id for two prompts. Rows of one prompt in two splits are left to the task."""
    first_rows: dict[str, ExampleRow] = {}
    for row in rows:
        first = first_rows.setdefault(row.example.id, row)
        if first is not row and words_of(first) != words_of(row):
            raise DataError(
                f"{row.example.place} has the id {shorten(row.example.id)} of"
                f" {first.example.place}; ids must be unique: rename the column id if it names"
                " something else"
            )
