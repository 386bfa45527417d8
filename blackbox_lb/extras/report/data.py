"""A run folder as one value: the bias file and all other documents beside it, each checked as it is
read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import InputError
from blackbox_lb.extras.analysis.document import Analysis
from blackbox_lb.extras.report.examples import ExampleCard, evaluated, judged
from blackbox_lb.jobs.decisions.document import DecidedQuestion
from blackbox_lb.jobs.evaluation.document import Evaluation
from blackbox_lb.jobs.fitting.document import FitResult
from blackbox_lb.jobs.runs.names import ANALYSIS, EVALUATION, RESULT
from blackbox_lb.records import SharesOfGroup
from blackbox_lb.safety.documents import read_document


@dataclass(frozen=True, slots=True)
class RunDocuments:
    """The documents of a run folder. None where one is missing.

    ``examples_from``: the source of ``examples``, or why there are none.
    """

    folder: Path
    bias: Bias
    result: FitResult | None = None
    evaluation: Evaluation | None = None
    analysis: Analysis | None = None
    examples: tuple[ExampleCard, ...] = ()
    examples_from: str = ""

    @property
    def decided(self) -> tuple[DecidedQuestion, ...]:
        """The questions whose probabilities are mended, as they were judged."""
        return () if self.result is None else self.result.decided

    @property
    def tokens_shown(self) -> bool:
        """Whether an example shows a token that the bias moves."""
        return any(side.answer.moved for example in self.examples for side in example.sides)

    @property
    def places_shown(self) -> bool:
        """Whether an example shows a place where its reward is earned."""
        return any(
            passage.amount is not None
            for example in self.examples
            for side in example.sides
            for passage in side.passages
        )

    @property
    def shares(self) -> dict[str, dict[str, tuple[SharesOfGroup, ...]]]:
        """Setting -> policy -> the labels that it draws beside the wanted shares: those of all
        policies of an evaluation, else of the fit; nothing where no shares are wanted.
        """
        by_setting: dict[str, dict[str, tuple[SharesOfGroup, ...]]] = {}
        if self.evaluation is not None:
            for policy in self.evaluation.policies:
                if policy.shares:
                    by_setting.setdefault(policy.setting, {})[policy.name] = policy.shares
        if not by_setting and self.result is not None:
            for setting, pair in self.result.shares.items():
                by_setting[setting] = {"base": pair.base, "biased": pair.biased}
        return by_setting

    @property
    def outdated(self) -> tuple[str, ...]:
        """Sentences about documents older than the bias."""
        return (
            *_older(self.bias, self.evaluation, EVALUATION, "blb eval"),
            *_older(self.bias, self.analysis, ANALYSIS, "blb analyze"),
        )

    @property
    def provenances(self) -> dict[str, dict[str, Any]]:
        """File name -> its origin, for the documents that record it."""
        documents = {
            RESULT: self.result,
            EVALUATION: self.evaluation,
            ANALYSIS: self.analysis,
        }
        return {
            name: document.provenance
            for name, document in documents.items()
            if document is not None and document.provenance
        }


def _older(
    bias: Bias, document: Evaluation | Analysis | None, name: str, command: str
) -> Iterator[str]:
    date = None if document is None else document.provenance.get("date")
    try:
        older = date is not None and datetime.fromisoformat(date) < bias.created
    except (TypeError, ValueError):
        older = False
    if older:
        yield f"{name} is older than this bias and may be of another one: run {command} again."


def read_run(folder: Path) -> RunDocuments:
    """Read the run folder of ``blb fit``, with the documents of ``blb eval`` and ``blb analyze``.

    Raises InputError: no such folder, or a document that is damaged. BiasError: no bias file in it,
    or a damaged one.
    """
    if not folder.is_dir():
        raise InputError(
            f"{folder} is no run folder; give the folder with bias.json that `blb fit` wrote"
        )
    bias = Bias.load(folder)
    result = read_document(folder / RESULT, FitResult, "write it again with blb fit, or remove it")
    evaluation = read_document(
        folder / EVALUATION, Evaluation, "write it again with blb eval, or remove it"
    )
    analysis = read_document(
        folder / ANALYSIS, Analysis, "write it again with blb analyze, or remove it"
    )
    outdated = any(_older(bias, evaluation, EVALUATION, "blb eval"))
    answers = None if result is None else result.answers
    examples: tuple[ExampleCard, ...] = ()
    origin = "neither result.json nor evaluation.json holds answers"
    if answers is not None and (evaluation is None or outdated):
        examples, origin = judged(answers)
    elif evaluation is not None and evaluation.examples:
        examples, origin = evaluated(evaluation)
    return RunDocuments(
        folder=folder,
        bias=bias,
        result=result,
        evaluation=evaluation,
        analysis=analysis,
        examples=examples,
        examples_from=origin,
    )
