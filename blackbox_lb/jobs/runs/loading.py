"""The task and the reward that settings name."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.shared import TaskSettings
from blackbox_lb.tasks import Reward, Task, load_task, parse_reward
from blackbox_lb.tasks.load import HARNESS
from blackbox_lb.tasks.records.tools import read_tools, tools_text
from blackbox_lb.tasks.sets.labels import Labels, OpenLabels, check_answers, labels_of_task
from blackbox_lb.tasks.sets.offers import (
    are_named,
    instruction,
    labels_to_offer,
    template_with_labels,
    tokens_of_longest,
)
from blackbox_lb.tasks.sets.task import HarnessOptions


def load(
    settings: TaskSettings, *, learns: bool = True, mends: bool = False
) -> tuple[Task, Reward]:
    """The task and the reward of the settings, checked against each other.

    learns: whether something is learned from the task; see ``load_task``. mends: whether
    probabilities of options are mended, as where the settings have a ``question``: rows may have a
    state in place of a prompt, and no answer.

    Raises:
        InputError: they name none, or do not go together. DataError: the rows cannot be used.
    """
    mends = mends or getattr(settings, "question", None) is not None
    task = _task_of(settings, learns=learns, mends=mends)
    labels = labels_of(settings, task)
    reward = parse_reward(
        settings.reward,
        max_tokens=settings.max_tokens or task.max_tokens,
        correct=settings.correct or task.correct,
        thinking=settings.thinking,
        count=settings.count,
        labels=labels,
    )
    check_answers(task, labels)
    reward.check(task, needs_answers=_needs_answers(settings, mends=mends))
    return task, reward


def _task_of(settings: TaskSettings, *, learns: bool, mends: bool) -> Task:
    task = settings.data
    if isinstance(task, Task):
        if settings.task or settings.validation_data is not None or settings.test_data is not None:
            raise InputError(
                "``data`` is a Task, which has all splits; leave out ``task``,"
                " ``validation_data`` and ``test_data``"
            )
    else:
        task = _loaded(settings, learns=learns, mends=mends)
    task = task.first(validation=settings.validation_limit, test=settings.test_limit)
    if settings.system is not None:
        task = task.with_system(settings.system)
    if settings.tools is not None:
        task = task.with_tools(_tools(settings.tools))
    return task


def _loaded(settings: TaskSettings, *, learns: bool, mends: bool) -> Task:
    assert not isinstance(settings.data, Task)  # see ``_task_of``
    judged = parse_reward(settings.reward, max_tokens=1, correct=settings.correct)
    return load_task(
        settings.task,
        settings.data,
        settings.validation_data,
        settings.test_data,
        prompt_column=settings.prompt_column,
        answer_column=settings.answer_column,
        messages_column=settings.messages_column,
        prompt_template=settings.prompt_template,
        field=settings.field,
        prefill=settings.prefill,
        decide=getattr(settings, "decide", None),
        require_answers=judged.needs_answer and _needs_answers(settings, mends=mends),
        harness=_harness(settings),
        learns=learns,
        validation_size=None if _is_harness(settings) else settings.validation_size,
        state=mends,
    )


def _is_harness(settings: TaskSettings) -> bool:
    """Whether the task is one of lm-evaluation-harness."""
    return (settings.task or "").startswith(HARNESS)


def _harness(settings: TaskSettings) -> HarnessOptions | None:
    """Departures from the defaults of lm-evaluation-harness; None without one."""
    folder = settings.data_dir
    harness = HarnessOptions(
        None if folder is None else Path(folder),
        settings.num_fewshot,
        settings.filter,
        settings.metric,
        settings.validation_size if _is_harness(settings) else None,
    )
    if harness == HarnessOptions():
        return None
    return harness


def labels_of(settings: TaskSettings, task: Task) -> Labels | None:
    """The labels of ``decide`` or ``labels``, where the settings have these, or those in the task's
    answers; see ``labels_of_task``.
    """
    names = getattr(settings, "labels", None)
    return labels_of_task(getattr(settings, "decide", None), names, task)


MOST_IN_TEMPLATE = 12
"""Labels that a template to copy names."""


def naming_advice(settings: TaskSettings, task: Task, labels: Labels | None) -> list[str]:
    """A sentence with the options that put the labels into the prompts, where no prompt names two
    of them and most of them; none elsewhere, and where the data are not a file's.
    """
    is_of_file = settings.data is not None and not isinstance(settings.data, Task)
    is_question = isinstance(labels, OpenLabels) or getattr(settings, "question", None) is not None
    if labels is None or is_question or not is_of_file:
        return []
    examples = [*task.train, *task.validation, *task.test]
    names = labels_to_offer(labels.counts(examples))
    if are_named(names, examples):
        return []
    if not 2 <= len(names) <= MOST_IN_TEMPLATE:
        return ["no prompt names the labels; naming them, with ``prompt_template``, may help"]
    roles = [message.role for message in examples[0].prompt.messages]
    if roles == ["user"]:
        template = settings.prompt_template or f"{{{settings.prompt_column}}}"
        option = f"``prompt_template={shlex.quote(template_with_labels(template, names))}``"
    elif roles[0] == "user":
        option = f"``system={shlex.quote(instruction(names))}``"
    else:
        return ["no prompt names the labels; naming them in the messages may help"]
    enough = tokens_of_longest(names)
    if settings.max_tokens is None and enough < task.max_tokens:
        option += f" ``max_tokens={enough}``"
    return [f"no prompt names the labels; naming them may help: {option}"]


def _needs_answers(settings: TaskSettings, *, mends: bool) -> bool:
    """Whether rows without an answer are of no use."""
    if mends:
        return False  # of several questions each has a column of its own
    return getattr(settings, "learn_from", None) != "unlabelled"


def _tools(tools: str | Path | Sequence[Mapping[str, Any]]) -> str:
    """The tools as JSON in one spelling. Raises InputError: they are no list of functions."""
    if isinstance(tools, str | Path):
        return read_tools(Path(tools))
    try:
        return tools_text(list(tools))
    except ValueError as error:
        raise InputError(f"``tools``: {error}") from error
