"""From the user's choice to a Task: a built-in one, files of their own, or a data set of the hub or
a folder, whose own splits are taken where it has them.

The built-in tasks all ask about countries and need no network. Their table has a row for each
country: its name, the article that English wants before it, the accepted
answers (between them a |), and its split. The splits are not hand-picked: in the order of SHA-256
of "TASK:COUNTRY", the first 80 countries are train, the next 24 validation and the rest test. The
file records the result.
"""

from __future__ import annotations

import csv
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.literals import Split
from blackbox_lb.safety.files import is_folder
from blackbox_lb.safety.printable import counted, did_you_mean, printable, shorten
from blackbox_lb.tasks.records.files import (
    ANSWER,
    SPLIT_NAMES,
    WANT,
    ColumnNames,
    ExampleRow,
    GivenRows,
    Rows,
    Source,
    join_repeats,
    keep_apart,
    places_of,
    read_rows,
    remarks_on,
    row_of,
    source_of,
    words_of,
)
from blackbox_lb.tasks.records.hub_data import HUB, NAMES, dataset_records
from blackbox_lb.tasks.records.records import Record
from blackbox_lb.tasks.records.shares import check_alike
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.tasks.sets.offers import LEAST_OF_LABEL, near_label
from blackbox_lb.tasks.sets.task import (
    DEFAULT_FRACTIONS,
    SPLITS,
    HarnessOptions,
    Task,
    chosen_on,
    rest,
)
from blackbox_lb.types import Example, Prompt


def country_task(name: str, column: str, question: str, *, correct: str, max_tokens: int) -> Task:
    """Load the task of the table NAME.csv with answers in ``column``; ``question`` has {country} in
    the country's place.
    """
    splits: dict[Split, list[ExampleRow]] = {split: [] for split in SPLIT_NAMES.values()}
    text = files("blackbox_lb.tasks.sets").joinpath(f"{name}.csv").read_text("utf-8")
    for record in csv.DictReader(text.splitlines()):
        prompt = Prompt.user(
            question.format(country=f"{record['article']} {record['country']}".lstrip())
        )
        example = Example(f"{name}:{record['country']}", prompt, tuple(record[column].split("|")))
        splits[SPLIT_NAMES[record["split"]]].append(ExampleRow(example))
    return Task.from_splits(name, splits, correct=correct, max_tokens=max_tokens)


def capitals() -> Task:
    """What is the capital of a country? 80 countries to train, 24 to validate and 73 to test; a
    prompt has one right answer.

    The states are the members and observers of the United Nations in 2026, less those for which the
    question is no question:

    - an accepted answer, normalised, occurs in the prompt, or the country in an accepted answer
    (Singapore, Mexico City, Tunis);
    - the capital is in dispute between states (Israel, Palestine), or there is no official one
    (Nauru);
    - another place of that name has a capital of its own (Georgia).

    Accepted are the capital in English, in other common spellings, in the country's language where
    a model may answer in it, and under a former name of the same city (Nur-Sultan). More than one
    city is accepted where the constitution or the government calls more than one a capital, or
    where it lies in one city and the government in another: Benin, Bolivia, Eswatini, Ivory Coast,
    South Africa, Sri Lanka; and Equatorial Guinea, which declared Ciudad de la Paz (Djibloho,
    Oyala) its capital in January 2026 and gave its institutions a year to move from Malabo. Small
    chat models answer the question in 10 to 40 tokens.
    """
    return country_task(
        "capitals",
        "capitals",
        "What is the capital of {country}?",
        correct="contains",
        max_tokens=48,
    )


def continents() -> Task:
    """Which of five continents is a country in? A decision between fixed labels; 80 countries to
    train, 24 to validate, 79 to test.

    A small chat model knows more than it says: it begins a sentence, or names its favourite
    continent whatever the country, by margins that countries share. A logit bias on the labels'
    first tokens takes those margins away. A completion is right where it begins with the label: one
    that lists all five names the first. It has room for a label of several tokens (Ocean-ia).

    The states are the members and observers of the United Nations in 2026, less those for which the
    question is no question:

    - the state lies in two continents, or sources disagree on its continent (Armenia, Azerbaijan,
    Cyprus, East Timor, Egypt,
      Georgia, Indonesia, Kazakhstan, Russia, Turkey); territories apart from the rest of one do not
      count (Ceuta, Hawaii, Socotra);
    - its name contains the answer (Central African Republic, South Africa).

    America is one label, north and south: sources disagree on the border between them, and every
    label is now one word.
    """
    question = (
        "Africa, America, Asia, Europe or Oceania: which continent is {country} in? Answer with one"
        " word."
    )
    return country_task(
        "continents", "continent", question, correct=r"regex:(?i)^\W*{answer}\b", max_tokens=4
    )


HARNESS = "lm-eval:"
"""The prefix of a task of lm-evaluation-harness."""
LOADERS = {HARNESS: "blackbox_lb.extras.harness:load_harness"}
"""Prefix of a task's name -> module and function that loads the task of the rest of the name; it is
imported when such a task is asked for.
"""

MOST_NAMED = 3
"""Labels with few rows that are named."""
BUILT_IN: dict[str, Callable[[], Task]] = {"capitals": capitals, "continents": continents}
"""The built-in tasks, by name."""


def load_task(
    spec: str | None = None,
    data: Rows | None = None,
    validation: Rows | None = None,
    test: Rows | None = None,
    *,
    seed: int = 0,
    fractions: Sequence[float] = DEFAULT_FRACTIONS,
    prompt_column: str = "prompt",
    answer_column: str = "answer",
    messages_column: str = "messages",
    prompt_template: str | None = None,
    field: str | None = None,
    prefill: bool = False,
    require_answers: bool = True,
    harness: HarnessOptions | None = None,
    decide: str | None = None,
    learns: bool = True,
    validation_size: int | None = None,
    state: bool = False,
) -> Task:
    """A task by its name in ``spec``, or the task in ``data``, named after it.

    ``spec``: a built-in one, or lm-eval:NAME of lm-evaluation-harness, read as ``harness`` says
    (:func:`load_harness`). ``data``: a file, a list of rows, a DataFrame, a folder that the library
    ``datasets`` reads, or hf:NAME[/CONFIG][@SPLIT] of the hub. It keeps the splits that it has, and
    is otherwise split three ways, drawn with ``seed``. ``validation`` and ``test`` are files or
    rows used whole for their split; the rest of ``fractions`` then divides ``data``. Columns may be
    paths (question.stem). ``field``: the path to the rows in files that are one JSON object.
    ``prefill``: messages may end with the beginning of the completion. Rows of one prompt are one
    example, in the split among theirs that is judged by; the task's note counts them. Rows of
    ``data`` without an answer are the task's ``unlabelled`` ones where others have one. ``decide``:
    the decision with open labels, whose answers may stand in the column want. ``learns``: whether
    something is learned from the task; where it is False, all rows may be test rows, of ``test``
    alone or by their split column, and the other splits are empty. Each split gets its share of
    every label, where the answers are few labels. ``validation_size``: rows of ``data`` to choose
    on, beside those to judge by; None for a share, or, where labels have few rows, for all of them
    by cross-fitting. ``state``: rows may have the column state, a text or JSON, in place of a
    prompt. InputError: an unknown name, both a name and files, or neither.
    DataError: see :func:`load_examples`, and one id in two splits.
    """
    if spec is not None and not isinstance(spec, str):
        raise InputError(
            f"``spec`` is a {type(spec).__name__}; give the name of a task, or rows with ``data``"
        )
    texts = {
        "prompt_column": prompt_column,
        "answer_column": answer_column,
        "messages_column": messages_column,
        "prompt_template": prompt_template,
        "field": field,
        "decide": decide,
    }
    _check_types(texts, fractions, validation_size)
    columns = ColumnNames(
        prompt_column,
        answer_column,
        messages_column,
        prompt_template,
        field,
        prefill,
        state=state,
    )
    data = source_of(data)
    validation = source_of(validation)
    test = source_of(test)
    if spec is not None:
        sources = (data, validation, test)
        if any(source is not None for source in sources) or columns != ColumnNames():
            raise InputError(
                f"a task by name ({shorten(spec)}) and data or its columns were both given; give"
                " one of them"
            )
        for prefix, loader in LOADERS.items():
            if spec.startswith(prefix):
                task: Task = pkgutil.resolve_name(loader)(spec.removeprefix(prefix), harness)
                return task
    if harness is not None:
        raise InputError(
            "``data_dir``, ``num_fewshot``, ``filter`` and ``metric`` are for ``task``"
            " lm-eval:NAME; leave them out"
        )
    if spec is not None and validation_size is not None:
        raise InputError(
            f"``validation_size={validation_size}`` draws rows to choose on, and the task {spec}"
            " has these; leave it out"
        )
    if spec is not None:
        return _built_in(spec)
    if data is None and (learns or test is None):
        use = "learn from" if learns else "judge on"
        raise InputError(
            f"no task: name a built-in one ({', '.join(BUILT_IN)}) or give a data file of prompts"
            f" to {use}"
        )
    if decide is not None and answer_column == ANSWER:
        columns = replace(columns, otherwise=WANT)
    paths: dict[Split, Source | None] = {"validation": validation, "test": test}
    file_splits = {
        split: _whole(path, split, columns, require_answers)
        for split, path in paths.items()
        if path is not None
    }
    if data is None:
        return _task_of_rows(Path(str(test)).stem, str(test), file_splits)
    if validation_size is not None and validation is not None:
        raise InputError(
            "``validation_size`` and ``validation_data`` both say what to choose on; give one of"
            " them"
        )
    if str(data).startswith(HUB) or (not isinstance(data, GivenRows) and is_folder(data)):
        read = read_dataset(str(data), file_splits, columns, require_answers=require_answers)
    else:
        rows, unlabelled = _by_answer(data, columns, require_answers)
        read = RowsOfTask(Path(str(data)).stem, rows, file_splits, unlabelled)
    rows = _with_labels(read.rows)
    if not learns and not read.splits and all(row.split == "test" for row in rows):
        return _task_of_rows(read.name, str(data), {"test": rows})
    splits = rest(str(data), rows, seed, fractions, set(read.splits)) | read.splits
    divided = "validation" not in read.splits and not any(row.split for row in rows)
    if validation_size is not None and not divided:
        raise InputError(
            f"``validation_size={validation_size}`` draws the rows to choose on, and the rows of"
            f" {data} have a split of their own; leave it out, or that column"
        )
    if validation_size is not None:
        splits = chosen_on(str(data), splits, validation_size, seed)
        divided = False
    return _task_of_rows(
        read.name,
        read.source or str(data),
        splits,
        read.unlabelled,
        divided=divided,
        answer_column=columns.answer,
        is_source_noted=bool(read.source),
    )


def _check_types(
    texts: Mapping[str, object], fractions: object, validation_size: int | None
) -> None:
    """Raise InputError: an argument of ``load_task`` is of another type, or a size below 1.

    texts: the arguments by name that are texts; all but those of columns may be None.
    """
    for name, value in texts.items():
        if not isinstance(value, str) and (value is not None or name.endswith("_column")):
            raise InputError(
                f"``{name}={shorten(value)}`` is a {type(value).__name__}; give a text"
            )
    shares: list[object] = []
    if isinstance(fractions, list | tuple):
        shares = list(fractions)
    if not shares or not all(isinstance(share, int | float) for share in shares):
        raise InputError(f"fractions are {shorten(fractions)}; give positive shares that sum to 1")
    size: object = validation_size
    if size is not None and (not isinstance(size, int) or size < 1):
        raise InputError(f"``validation_size={size!r}``: give a whole number from 1")


class RowsOfTask(NamedTuple):
    """Data as they were read.

    name: of their task. rows: to learn from, to be divided unless they name their splits. splits:
    whole ones. unlabelled: see ``Task``. source: of a data set, what was taken of it and what not.
    """

    name: str
    rows: list[ExampleRow]
    splits: dict[Split, list[ExampleRow]]
    unlabelled: list[ExampleRow]
    source: str = ""


def _task_of_rows(
    name: str,
    source: str,
    splits: Mapping[Split, Sequence[ExampleRow]],
    unlabelled: Sequence[ExampleRow] = (),
    *,
    divided: bool = False,
    answer_column: str = ANSWER,
    is_source_noted: bool = False,
) -> Task:
    """The task of these rows, with empty splits where there are none; of the unlabelled ones
    without those whose prompt has an answer in another row.

    Raises DataError: a split has no prompt of its own, or rows have shares of different labels.
    """
    check_alike(row.example for rows in splits.values() for row in rows)
    distinct, left_out = keep_apart(splits)
    for split, rows in distinct.items():
        if not rows:
            raise DataError(
                f"every prompt of {split} stands in another split too, so there is none left for"
                f" it; give other data for {split}"
            )
    rows_kept = [row for rows in distinct.values() for row in rows]
    if unlabelled:
        prompts = {words_of(row) for row in rows_kept}
        unlabelled = [row for row in unlabelled if words_of(row) not in prompts]
    notices = remarks_on(rows_kept, left_out, unlabelled, answer_column)
    notices += _small_labels(rows_kept)
    note = source if is_source_noted else ""
    if notices:
        note = f"{source}: {'; '.join(notices)}"
    every_split = {split: distinct.get(split, []) for split in SPLITS}
    return Task.from_splits(name, every_split, note=note, unlabelled=unlabelled, divided=divided)


def _by_answer(
    data: Source, columns: ColumnNames, require_answers: bool
) -> tuple[list[ExampleRow], list[ExampleRow]]:
    """The rows with an answer, and those without one that a decision between labels can still use;
    where no answer is required, all rows, and none.

    Raises DataError: an answer is required, and no row has one, or one that is judged by has none.
    """
    rows = read_rows(data, columns, require_answers=False)
    if not require_answers:
        return rows, []
    labelled = [row for row in rows if row.example.answers]
    unlabelled = [row for row in rows if not row.example.answers]
    judged = any(row.split not in (None, "train") for row in unlabelled)
    if judged or len(labelled) < len(SPLITS):
        read_rows(data, columns)  # names the first row without an answer
    return labelled, unlabelled


def _with_labels(rows: list[ExampleRow]) -> list[ExampleRow]:
    """The rows, each with its label where the answers of those that have one are few labels."""
    labels = Labels.found_in([row.example for row in rows if row.example.answers])
    if labels is None:
        return rows
    names = {}
    for answers in {row.example.answers for row in rows}:
        number = labels.of(Example("", rows[0].example.prompt, answers))
        names[answers] = "" if number is None else labels.names[number]
    return [replace(row, label=names[row.example.answers]) for row in rows]


def _built_in(spec: str) -> Task:
    if spec not in BUILT_IN:
        raise InputError(
            f"unknown task {shorten(spec)}{did_you_mean(spec, BUILT_IN)}; the built-in tasks are:"
            f" {', '.join(BUILT_IN)}; or name one of lm-evaluation-harness (lm-eval:gsm8k), or give"
            " a data file"
        )
    return BUILT_IN[spec]()


def _whole(
    path: Source, split: Split, columns: ColumnNames, require_answers: bool
) -> list[ExampleRow]:
    rows = read_rows(path, columns, require_answers=require_answers)
    for row in rows:
        if row.split not in (None, split):
            raise DataError(
                f"{row.example.place} says split {row.split}, but the file was given as {split}"
                " data; remove the column or the row"
            )
    return rows


def read_dataset(
    spec: str,
    whole: dict[Split, list[ExampleRow]],
    columns: ColumnNames,
    *,
    require_answers: bool,
) -> RowsOfTask:
    """The rows in ``spec``, hf:NAME[/CONFIG][@SPLIT] or a folder; ``whole`` are splits that have
    files of their own.

    Splits called train, validation (valid, val, dev) and test are used as they are, others are left
    out; a missing one is divided off train, and a single split is divided three ways. Unlike in a
    user's own file, id and split columns are ignored. Rows without an answer are left out of
    validation and test, so that a test split whose answers are kept secret counts as missing.
    DataError: no train split beside others, or answers are required and no row has one.
    """
    if columns.field is not None:
        raise InputError(
            f"``field={columns.field}`` names an array in one JSON file, and {spec} is a data set;"
            " leave it out, or give the file with ``data``"
        )
    records = dataset_records(spec)
    rows_by_split: dict[Split, list[ExampleRow]] = {}
    unlabelled: list[ExampleRow] = []
    unanswered: Counter[str] = Counter()
    first_unlabelled: Record | None = None
    single = len(records) == 1
    for name, rows in records.items():
        split: Split | None = NAMES.get(name)
        if single:
            split = "train"
        if split is not None and split not in whole:
            for row in rows:
                values = {
                    key: value for key, value in row.values.items() if key not in ("id", "split")
                }
                record = replace(row, values=values)
                example = row_of(record, columns, require_answers=False)
                if example.example.answers or not require_answers:
                    rows_by_split.setdefault(split, []).append(example)
                elif split == "train":
                    first_unlabelled = first_unlabelled or record
                    unlabelled.append(example)
                else:
                    unanswered[split] += 1
    if first_unlabelled is not None and not rows_by_split.get("train"):
        row_of(first_unlabelled, columns, require_answers)  # names what no row has
    unlabelled = join_repeats(unlabelled)
    if not rows_by_split.get("train"):
        raise DataError(
            f"{spec} has the splits {', '.join(records)} and none called train; choose one to"
            " divide with @SPLIT"
        )
    unused = [name for name in records if not single and name not in NAMES]
    own_splits = {split: join_repeats(rows) for split, rows in rows_by_split.items()} | whole
    train = own_splits.pop("train")
    source = f"{spec}: splits {', '.join(records)}"
    if unused:
        source += f"; not used: {', '.join(unused)}"
    for judged_split, count in unanswered.items():
        source += f"; {counted(count, 'row')} of {judged_split} without an answer, left out"
    name_of_task = Path(spec).name
    if spec.startswith(HUB):
        name_of_task = spec.removeprefix(HUB).replace("/", "-").replace("@", "-")
    return RowsOfTask(name_of_task, train, own_splits, unlabelled, source)


def _small_labels(rows: Sequence[ExampleRow]) -> list[str]:
    """A sentence for each label with too few rows to learn it and to judge it, with their lines;
    where a label with more rows is nearly called so, whether that is meant.
    """
    by_label: dict[str, list[ExampleRow]] = {}
    for row in rows:
        if row.label:
            by_label.setdefault(row.label, []).append(row)
    notices = []
    for label, members in sorted(by_label.items(), key=lambda item: len(item[1])):
        if len(members) >= LEAST_OF_LABEL:
            continue
        count = counted(len(members), "row")
        larger = [name for name, rows in by_label.items() if len(rows) > len(members)]
        near = near_label(label, larger)
        if near:
            notices.append(
                f"{printable(label)} ({count}, {places_of(members)}): {printable(near)}?"
            )
        else:
            notices.append(
                f"{printable(label)} has only {count} ({places_of(members)}): merge it with another"
                " label, or add rows"
            )
    return notices[:MOST_NAMED]
