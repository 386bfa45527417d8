"""Mended questions on other rows: read as the bias file says, refused where it does not hold."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from blackbox_lb.api.session import Session
from blackbox_lb.api.wire.decisions import decision_rules
from blackbox_lb.bias.decisions import MendedQuestion
from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.jobs.decisions.reading import LAYOUTS, ReadRows, WayToRead, read, system_of
from blackbox_lb.jobs.decisions.rows import answer_place
from blackbox_lb.literals import Endpoint
from blackbox_lb.questions.question import Question
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.safety.printable import did_you_mean, printable, shorten
from blackbox_lb.tasks import Task
from blackbox_lb.types import Example


def way_of(mended: MendedQuestion) -> WayToRead:
    """How the probabilities of a question are read."""
    return WayToRead(mended.reading, mended.both_orders)


def question_of(bias: Bias, name: str | None, parameter: str = "question") -> MendedQuestion:
    """The question of a bias file with this id; None for the only one. parameter: that gives the
    id, for messages.

    Raises InputError: no such question, or several and no name.
    """
    names = [mended.question.id for mended in bias.decisions]
    if name is None and len(names) == 1:
        return bias.decisions[0]
    listed = ", ".join(shorten(question) for question in names)
    if name is None:
        raise InputError(
            f"the bias file mends {len(names)} questions, {listed}; name one, as in"
            f" ``{parameter}={printable(names[0])}``"
        )
    if name not in names:
        raise InputError(
            f"``{parameter}={printable(name)}`` is not in the bias file, which mends {listed}"
            f"{did_you_mean(name, names)}"
        )
    return bias.decisions[names.index(name)]


def endpoint_of(bias: Bias) -> Endpoint | None:
    """The endpoint that the questions of a bias file are read at; None for the first that lists
    next tokens.
    """
    if bias.decisions[0].reading in LAYOUTS:
        return None
    return "decisions"


def check_reading(bias: Bias, session: Session) -> None:
    """Raise BiasError where the session reads the questions in another way than the fit did."""
    for mended in bias.decisions:
        learned = f"{mended.path or bias.provider} (read by {mended.reading})"
        if mended.reading in LAYOUTS:
            if session.endpoint == "decisions":
                raise BiasError(
                    f"the bias file mends what {learned} says, and {session.profile.name} decides"
                    " at an endpoint of its own; leave out ``endpoint``, or fit again there"
                )
            continue
        if session.endpoint != "decisions":
            raise BiasError(
                f"the bias file mends what {learned} says, and {session.profile.name} is asked for"
                " first tokens; ask the endpoint that it was learned at, or fit again"
            )
        rules = decision_rules(session.profile)
        if (rules.shape, rules.path, rules.decimals) != (
            mended.reading,
            mended.path,
            mended.decimals,
        ):
            raise BiasError(
                f"the bias file mends what {learned} says, and {session.profile.name} has"
                f" {rules.path} (read by {rules.shape}) or other decimals; fit again there"
            )


def missing_system(bias: Bias, examples: Sequence[Example]) -> str:
    """The system message that the questions of a bias file are put with, where these rows have
    none; "" where they have it.

    Raises BiasError: they have another one. InputError: they have different ones.
    """
    learned = bias.decisions[0].system
    system = system_of(examples)
    if system == learned:
        return ""
    if not system:
        return learned
    condition = "without one"
    if learned:
        condition = f"with {shorten(learned)}"
    raise BiasError(
        f"the rows have the system message {shorten(system)}, and the decisions in the bias file"
        f" were learned {condition}; leave it out, or fit again with it"
    )


def with_system(bias: Bias, task: Task) -> Task:
    """The task with the system message that the questions of a bias file are put with.

    Raises BiasError, InputError: see ``missing_system``.
    """
    rows = (*task.train, *task.validation, *task.test, *task.unlabelled)
    missing = missing_system(bias, rows)
    return task.with_system(missing) if missing else task


def right_places(bias: Bias, mended: MendedQuestion, examples: Sequence[Example]) -> Ids:
    """(n,) right options of a question of the file, ``NO_ANSWER`` without one."""
    is_alone = len(bias.decisions) == 1
    places = [answer_place(mended.question, example, alone=is_alone) for example in examples]
    return np.array(places, np.int64)


def check_models(mended: MendedQuestion, read_rows: ReadRows) -> None:
    """Raise BiasError where another model answered than the one that was mended."""
    for model in read_rows.models:
        if model != mended.model:
            raise BiasError(
                f"the bias file mends the decisions of the model {shorten(mended.model)}, and"
                f" {shorten(model)} answered; ask that model, or fit again with this one"
            )


def questions_to_ask(bias: Bias, mended: MendedQuestion) -> list[Question]:
    """What a request about one question asks: an endpoint that decides gets all questions of the
    file, as in the fit, so that another question of it costs nothing more.
    """
    if mended.reading in LAYOUTS:
        return [mended.question]
    return [row.question for row in bias.decisions]


async def read_mended(
    trials: Trials, title: str, examples: Sequence[Example], bias: Bias, mended: MendedQuestion
) -> ReadRows:
    """What the session says of one question, drawn unless it is in the store.

    Raises BiasError: see ``check_reading`` and ``check_models``. ProviderError: the API failed.
    """
    check_reading(bias, trials.session)
    questions = questions_to_ask(bias, mended)
    rows = await read(trials, title, examples, questions, way_of(mended))
    read_rows = rows[mended.question.id]
    check_models(mended, read_rows)
    return read_rows
