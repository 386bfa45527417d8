"""The questions of ``blb init``: one that asks until an answer passes, and those on the data."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blackbox_lb.cli.echo import echo, for_screen
from blackbox_lb.errors import BlbError, DataError, InputError
from blackbox_lb.safety.printable import did_you_mean, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blackbox_lb.cli.commands.init import InitOptions
    from blackbox_lb.tasks.records.records import Record
    from blackbox_lb.types import Example

REWARD = "correct-and-short"
REWARD_OF_LABELS = "accuracy"
REWARD_OF_TEXTS = "length"
"""The rewards that are offered: for answers, for answers that are labels, for rows without any."""


def checked(
    options: InitOptions, question: str, value: str | None, default: str | None, check: Any
) -> str:
    """``value``, or an answer to ``question``, asked until it passes; ``check`` raises BlbError for
    a bad one. With ``--yes`` the default is the answer, and a bad one is an error.
    """
    if value is not None or options.yes:
        if value is None and default is None:
            option = question.partition(",")[0].lower().replace(" ", "-")
            raise InputError(f"{question}: there is no default for this; give --{option}")
        answer = value if value is not None else default or ""
        check(answer)
        return answer
    while True:
        usual = ""
        if default:
            usual = f" [{default}]"
        text = for_screen(question + usual, err=True)
        answer = click.prompt(text, default=default, show_default=False, err=True)
        try:
            check(answer)
        except BlbError as error:
            echo(f"  {error}", err=True)
            continue
        return str(answer)


def data_answers(options: InitOptions, embedded: bool) -> dict[str, Any]:
    """A task by name, or a data file with its columns; the reward, and what else the answers of the
    data suggest.

    embedded: whether the provider can learn a built-in task at once, which is offered where the
    folder has no data file.
    """
    from blackbox_lb.tasks import load_task
    from blackbox_lb.tasks.load import BUILT_IN, HARNESS

    if options.task is not None and options.data is not None:
        raise InputError("--task and --data were both given; give one of them")
    if options.task is not None:
        if not options.task.startswith(HARNESS):
            load_task(options.task)
        return _task_answers(options.task, options)
    files = data_files(Path())
    default = next(iter(BUILT_IN)) if embedded else None
    if files:
        default = files[0] if len(files) == 1 else None
    if len(files) > 1 and options.data is None:
        echo(f"Data files here: {', '.join(files)}", err=True)
    question = f"Data, a table, JSON or text, or a task ({', '.join(BUILT_IN)})"
    data = None if options.data is None else str(options.data)
    while True:
        answer = checked(options, question, data, default, _records)
        if _is_task(answer):
            return _task_answers(answer, options)
        try:
            return {"data": answer, **_rows(answer, options)}
        except DataError as error:
            if options.yes or data is not None:
                raise
            echo(f"  {error}", err=True)


def _task_answers(task: str, options: InitOptions) -> dict[str, Any]:
    """The task, its reward and the token limit. Raises InputError: an option is about columns."""
    for name in ("prompt_column", "answer_column", "prompt_template"):
        if getattr(options, name) is not None:
            raise InputError(
                f"``{name}`` is about the columns of a file, and {task} is a task that has its"
                " prompts; leave it out"
            )
    reward = _reward(options, REWARD)
    return {"task": task, "reward": reward, "max_tokens": options.max_tokens}


def _rows(data: str, options: InitOptions) -> dict[str, Any]:
    """The columns, the reward, the template and the token limit for the rows of a file.

    Raises DataError: the rows cannot be used.
    """
    from blackbox_lb.tasks import load_task
    from blackbox_lb.tasks.records.files import PROMPT
    from blackbox_lb.tasks.records.hub_data import HUB
    from blackbox_lb.tasks.rewards.registry import judges_answers
    from blackbox_lb.tasks.sets.labels import labels_of_task
    from blackbox_lb.tasks.sets.offers import labels_to_offer

    answers = _columns(_records(data), options)
    columns = {key: value for key, value in answers.items() if value}
    answers |= {"prompt_template": options.prompt_template, "max_tokens": options.max_tokens}
    if data.startswith(HUB):
        return answers | {"reward": _reward(options, REWARD)}
    has_answers = "answer_column" in answers
    task = load_task(data=Path(data), require_answers=has_answers, **columns)
    examples = (*task.train, *task.validation, *task.test)
    labels = labels_of_task(None, None, task)
    summary = f"{len(examples):,} prompts"
    usual = REWARD if has_answers else REWARD_OF_TEXTS
    if labels is not None:
        names = labels_to_offer(labels.counts(examples))
        summary += f"; {len(names)} labels ({', '.join(names)}): a decision"
        usual = REWARD_OF_LABELS
    for line in filter(None, [summary, task.note]):
        echo(f"  {line}", err=True)
    answers["reward"] = _reward(options, usual)
    if labels is None or not judges_answers(answers["reward"]):
        return answers
    text = f"{{{columns.get('prompt_column', PROMPT)}}}"
    if options.prompt_template is None:
        check = partial(load_task, data=Path(data), **columns)
        answers["prompt_template"] = _template(options, text, names, examples, check)
    answers["max_tokens"] = _limit(options, names)
    return answers


def _columns(records: Sequence[Record], options: InitOptions) -> dict[str, Any]:
    """The columns that have other names than the usual ones; "" for the usual one of answers, and
    no entry for rows without an answer.
    """
    from blackbox_lb.tasks.records.files import ANSWER, MESSAGES, PROMPT
    from blackbox_lb.tasks.sets.offers import likely_columns

    answers: dict[str, Any] = {"prompt_column": options.prompt_column}
    if not records:
        if options.answer_column is not None:
            answers["answer_column"] = options.answer_column
        return answers
    prompt, answer = likely_columns(records)
    check = partial(_check_column, records)
    if options.prompt_column is not None or prompt not in (PROMPT, MESSAGES):
        question = "Column with the text"
        answers["prompt_column"] = checked(options, question, options.prompt_column, prompt, check)
    if answer == ANSWER and options.answer_column is None:
        answers["answer_column"] = ""
    elif answer or options.answer_column is not None:
        question = "Column with the answer"
        answers["answer_column"] = checked(options, question, options.answer_column, answer, check)
    return answers


def _template(
    options: InitOptions,
    text: str,
    names: Sequence[str],
    examples: Sequence[Example],
    check: Any,
) -> str | None:
    """A template that names the labels where no prompt does; None for the text as it is."""
    from blackbox_lb.tasks.sets.offers import are_named, template_with_labels

    is_plain = all(len(example.prompt.messages) == 1 for example in examples)
    if not is_plain or are_named(names, examples):
        return None
    template = checked(
        options,
        f"Prompt, {text} for the text alone",
        None,
        template_with_labels(text, names),
        lambda template: check(prompt_template=template),
    )
    if template == text:
        return None
    return template


def _reward(options: InitOptions, usual: str) -> str:
    from blackbox_lb.tasks import parse_reward

    check = partial(parse_reward, max_tokens=1)
    return checked(options, "Reward, blb rewards lists them", options.reward, usual, check)


def _limit(options: InitOptions, names: Sequence[str]) -> int:
    """The most tokens of an answer, by default enough for the longest label."""
    from blackbox_lb.tasks.sets.offers import tokens_of_longest

    option = None if options.max_tokens is None else str(options.max_tokens)
    enough = str(tokens_of_longest(names))
    return int(checked(options, "Tokens of an answer at most", option, enough, _check_count))


def data_files(folder: Path) -> list[str]:
    """The names of the files in a folder that may hold rows, in order."""
    from blackbox_lb.tasks.records.records import SUFFIXES, TEXT_SUFFIX

    suffixes = {*SUFFIXES, TEXT_SUFFIX, ".parquet"}
    files = [path for path in folder.iterdir() if path.suffix.lower() in suffixes]
    return sorted(path.name for path in files if path.is_file() and path.name[0] != ".")


def _is_task(answer: str) -> bool:
    from blackbox_lb.tasks.load import BUILT_IN, HARNESS

    return answer in BUILT_IN or answer.startswith(HARNESS)


def _records(answer: str) -> list[Record]:
    """The rows of a file as they are; none of a task, a folder or a data set of the hub, which are
    read when they are needed. Raises DataError: no such file, or it cannot be read.
    """
    from blackbox_lb.safety.files import is_folder
    from blackbox_lb.tasks.records.hub_data import HUB, records_of

    if _is_task(answer) or answer.startswith(HUB) or is_folder(answer):
        return []
    return list(records_of(Path(answer)))


def _check_column(records: Sequence[Record], column: str) -> None:
    """Raise InputError: no row has the column."""
    if not any(record.has(column) for record in records):
        names = list(dict.fromkeys(name for record in records for name in record.names))
        raise InputError(
            f"there is no column {shorten(column)}{did_you_mean(column, names)}; name one of"
            f" {', '.join(names)}"
        )


def _check_count(answer: str) -> None:
    """Raise InputError: the answer is no whole number from 1."""
    if not answer.isdecimal() or int(answer) < 1:
        raise InputError(f"{shorten(answer)} is no number of tokens; give a whole number from 1")
