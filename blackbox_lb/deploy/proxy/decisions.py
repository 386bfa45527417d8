"""The questions whose answers are mended, and the answers that requests get; no network."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blackbox_lb.bias.decisions import MendedQuestion
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import softmax
from blackbox_lb.deploy.proxy.limits import PREFIX
from blackbox_lb.errors import InputError
from blackbox_lb.questions.answers import DecisionAnswer, OptionScores, read_answer
from blackbox_lb.questions.question import Question
from blackbox_lb.questions.requests import Shape
from blackbox_lb.questions.serving import DecisionRequest, QuestionAnswer, answer_fields
from blackbox_lb.safety.printable import shorten

if TYPE_CHECKING:
    from blackbox_lb.questions.layouts import Layout

PATHS = frozenset((f"{PREFIX}/systemone", "/systemone", f"{PREFIX}/decisions", "/decisions"))
"""The paths of decision endpoints that are answered."""
OTHER_PROMPT = frozenset(
    (
        "instructions",
        "temperature",
        "chat_template_kwargs",
        "joint",
        "assets",
        "images",
        "audio",
        "videos",
    )
)
"""Fields of requests by which some server reads something else, or otherwise, than what was learned
from; nothing is mended then."""
_PATHS = {"systemone": "/systemone", "openai": "/decisions", "sglang": "/decisions"}

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class UpstreamScores:
    """What the upstream answered to some questions.

    model: as it names it. scores: question id -> what was read; None where no option was listed.
    input_tokens: that it read.
    """

    model: str
    scores: Mapping[str, OptionScores | None]
    input_tokens: int


@dataclass(frozen=True, slots=True)
class UpstreamWay:
    """How the upstream is asked: at an endpoint of decisions, or by chat prompts.

    shape: the endpoint's; None for chat prompts. path: of the endpoint under the base URL.
    decimals: of its probabilities, None for all. layout: of the chat prompts.
    """

    shape: Shape | None = None
    path: str = ""
    decimals: int | None = None
    layout: Layout = "letters"

    @classmethod
    def of(cls, mended: MendedQuestion) -> UpstreamWay:
        """The one that a question was learned by."""
        if mended.reading == "letters" or mended.reading == "words":
            return cls(layout=mended.reading)
        path = mended.path or _PATHS[mended.reading]
        return cls(mended.reading, path, mended.decimals)

    @property
    def target(self) -> str:
        """The endpoint's request target."""
        return f"{PREFIX}/{self.path.lstrip('/')}"

    def read(
        self, answer: Any, asked: Sequence[Question], wanted: Sequence[Question]
    ) -> DecisionAnswer:
        """What the endpoint answered to ``wanted`` questions of those ``asked``; the answers to the
        others may be anything.

        Raises:
            CorruptResponse: it did not answer these.
        """
        if isinstance(answer, dict) and isinstance(answer.get("answers"), list):
            answers = answer["answers"]
            ids = {question.id for question in wanted}
            places = [place for place, question in enumerate(asked) if question.id in ids]
            wanted = [asked[place] for place in places]
            kept = [answers[place] for place in places if place < len(answers)]
            answer = {**answer, "answers": kept}
        return read_answer(answer, wanted, self.decimals)


class ServedQuestions:
    """The mended questions by all that the model reads of them, and the models' names.

    default: how a question without a file is asked: at the endpoint of a file that has one, else by
    letters.

    Raises InputError: there is none, or two are of one question and one model, or are asked in
    different ways.
    """

    def __init__(self, mended: Iterable[MendedQuestion]) -> None:
        self._by_fingerprint: dict[str, dict[str, MendedQuestion]] = {}
        self._reported: set[tuple[str, str]] = set()
        for row in mended:
            self._add(row)
        ways = [UpstreamWay.of(row) for row in self]
        if not ways:
            raise InputError("``decide`` names no file with a question; give one, or leave it out")
        endpoints = [way for way in ways if way.shape is not None]
        self.default = next(iter(endpoints), UpstreamWay())
        self._prompted_models = {row.model for row in self if UpstreamWay.of(row).shape is None}

    def _add(self, row: MendedQuestion) -> None:
        by_model = self._by_fingerprint.setdefault(row.question.fingerprint, {})
        if row.model in by_model:
            raise InputError(
                f"two files of ``decide`` mend the same question {shorten(row.question.id)} of"
                f" {shorten(row.model)}; give one of them"
            )
        if any(UpstreamWay.of(present) != UpstreamWay.of(row) for present in by_model.values()):
            raise InputError(
                f"two files of ``decide`` ask the question {shorten(row.question.id)} in different"
                " ways; give one of them, or start a proxy for each"
            )
        by_model[row.model] = row

    def __iter__(self) -> Iterator[MendedQuestion]:
        for by_model in self._by_fingerprint.values():
            yield from by_model.values()

    def way_of(self, question: Question) -> UpstreamWay:
        """How the upstream is asked a question."""
        for row in self._by_fingerprint.get(question.fingerprint, {}).values():
            return UpstreamWay.of(row)
        return self.default

    def has(self, question: Question) -> bool:
        """Whether something was learned of a question."""
        return question.fingerprint in self._by_fingerprint

    def system_of(self, question: Question) -> str:
        """The system message that a question was learned with; "" for none."""
        rows = self._by_fingerprint.get(question.fingerprint, {}).values()
        return next((row.system for row in rows), "")

    def has_both_orders(self, question: Question) -> bool:
        """Whether the question is asked a second time, with its options reversed."""
        rows = self._by_fingerprint.get(question.fingerprint, {}).values()
        return any(row.both_orders for row in rows)

    def model_of(self, name: str) -> str:
        """The model that chat prompts of a request for ``name`` are sent to: TypeSafe's alias, by
        which its clients ask whatever server, is the only model that is known here.
        """
        if name == "jev-latest" and len(self._prompted_models) == 1:
            return next(iter(self._prompted_models))
        return name

    def learned(
        self, questions: Iterable[Question], model: str
    ) -> list[tuple[Question, MendedQuestion]]:
        """Those of the questions of which something was learned from this model, each with it."""
        found = [(question, self.mended(question, model)) for question in questions]
        return [(question, mended) for question, mended in found if mended is not None]

    def mended(self, question: Question, model: str) -> MendedQuestion | None:
        """What was learned of a question from this model; None where nothing was."""
        by_model = self._by_fingerprint.get(question.fingerprint, {})
        if model not in by_model and by_model and (question.id, model) not in self._reported:
            self._reported.add((question.id, model))
            log.warning(
                "the question %s is answered by %s, and was learned from %s: its answers are not"
                " mended; fit again",
                shorten(question.id),
                shorten(model),
                ", ".join(map(shorten, by_model)),
            )
        return by_model.get(model)


def load_questions(paths: Iterable[Path]) -> ServedQuestions:
    """The questions of bias files, or of the folders of runs.

    Raises:
        InputError: see ``ServedQuestions``; a file without a question. BiasError: it cannot be
            read.
    """
    rows: list[MendedQuestion] = []
    for path in paths:
        decisions = Bias.load(path).decisions
        if not decisions:
            raise InputError(
                f"``decide``: {path} mends no question; give the file of a fit with ``question``"
            )
        rows += decisions
    return ServedQuestions(rows)


def as_read(scores: OptionScores) -> tuple[float, ...]:
    """The probabilities as an endpoint printed them, with sum 1."""
    values = [
        0.0 if is_zero else math.exp(logprob)
        for logprob, is_zero in zip(scores.logprobs, scores.floored, strict=True)
    ]
    total = math.fsum(values)
    return tuple(value / total for value in values)


def decided(
    question: Question, scores: OptionScores | None, mended: MendedQuestion | None, way: UpstreamWay
) -> QuestionAnswer:
    """The answer to a question.

    Args:
        question: with its options in order.
        scores: read of the model; None where its list of tokens holds no option.
        mended: what was learned, None for nothing.
        way: how it was read.
    """
    equal = tuple(1 / len(question.options) for _ in question.options)
    if scores is None:
        return QuestionAnswer(equal, abstains=True, label_mass=0.0)
    if scores.refused:
        return QuestionAnswer(equal, abstains=True, refused=True)
    raw = softmax(scores.logprobs) if way.shape is None else as_read(scores)
    if mended is None:
        return QuestionAnswer(raw, label_mass=scores.label_mass)
    decision = mended.decide(scores.logprobs)
    return QuestionAnswer(
        decision.probabilities,
        raw=raw,
        mended=True,
        abstains=decision.abstains,
        label_mass=scores.label_mass,
    )


def mean_scores(
    scores: OptionScores | None, second: OptionScores | None, *, is_turned: bool = False
) -> OptionScores | None:
    """The mean log-probabilities over both orders of the options.

    is_turned: whether ``second`` has the options from the last to the first.
    """
    if scores is None or second is None:
        return None
    if scores.refused or second.refused:
        return OptionScores((), (), refused=True)
    step = -1 if is_turned else 1
    masses = [mass for mass in (scores.label_mass, second.label_mass) if mass is not None]
    pairs = zip(scores.logprobs, second.logprobs[::step], strict=True)
    floored = zip(scores.floored, second.floored[::step], strict=True)
    return OptionScores(
        tuple((forward + backward) / 2 for forward, backward in pairs),
        tuple(forward or backward for forward, backward in floored),
        sum(masses) / len(masses) if masses else None,
    )


def patched(
    answer: Mapping[str, Any], request: DecisionRequest, decisions: Mapping[str, QuestionAnswer]
) -> dict[str, Any]:
    """The upstream's answer in the request's own shape, with the mended answers in their places;
    all else stays as it came.
    """
    answers = answer.get("answers")
    names = dict(zip((question.id for question in request.questions), request.names, strict=True))
    questions = {question.id: question for question in request.questions}

    def mended(id: str, fields: Any) -> Any:
        if not isinstance(fields, dict):
            return fields
        decision = decisions.get(id)
        if decision is None or decision.refused:
            return {**fields, "x_mended": False}
        theirs = {name: value for name, value in fields.items() if name.startswith("x_")}
        return theirs | answer_fields(request.shape, questions[id], names[id], decision)

    if isinstance(answers, list):
        ids = [question.id for question in request.questions]
        new: Any = [mended(id, fields) for id, fields in zip(ids, answers, strict=False)]
    elif isinstance(answers, dict):
        new = {id: mended(id, fields) for id, fields in answers.items()}
    else:
        new = answers
    return {**answer, "answers": new}
