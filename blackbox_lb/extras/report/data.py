"""A run folder as one value: the bias file and all other documents beside it, each checked as it is
read.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from blackbox_lb.bias.document import MAX_BYTES, Bias
from blackbox_lb.errors import InputError
from blackbox_lb.extras.analysis.document import Analysis
from blackbox_lb.extras.report.examples import ExampleCard, evaluated, judged
from blackbox_lb.jobs.decisions.document import DecidedQuestion
from blackbox_lb.jobs.evaluation.document import (
    Evaluation,
)
from blackbox_lb.jobs.fitting.document import FitResult
from blackbox_lb.records import SharesOfGroup
from blackbox_lb.safety.printable import printable
from blackbox_lb.safety.untrusted import read_bounded, strict_json

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class RunDocuments:
    """The documents of a run folder. None where one is missing.

    ``examples_from``: the source of ``examples``, or why there are none.
    """

    folder: Path
    bias: Bias
    result: FitResult | None
    evaluation: Evaluation | None
    analysis: Analysis | None
    examples: tuple[ExampleCard, ...]
    examples_from: str

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
            *_older(self.bias, self.evaluation, "evaluation.json", "blb eval"),
            *_older(self.bias, self.analysis, "analysis.json", "blb analyze"),
        )

    @property
    def provenances(self) -> dict[str, dict[str, Any]]:
        """File name -> its origin, for the documents that record it."""
        documents = {
            "result.json": self.result,
            "evaluation.json": self.evaluation,
            "analysis.json": self.analysis,
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
    bias = Bias.load(folder / "bias.json")
    result = _read(folder / "result.json", FitResult)
    evaluation = _read(folder / "evaluation.json", Evaluation)
    outdated = any(_older(bias, evaluation, "evaluation.json", "blb eval"))
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
        analysis=_read(folder / "analysis.json", Analysis),
        examples=examples,
        examples_from=origin,
    )


def _read(path: Path, model: type[Model]) -> Model | None:
    try:
        content = read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); mend or remove it") from None
    except ValueError:
        raise InputError(
            f"{path}: larger than the limit of {MAX_BYTES:,} bytes for a document; remove it"
        ) from None
    try:
        return model.model_validate(strict_json(content))
    except ValidationError as error:
        errors = error.errors(include_url=False)
        where = ".".join(str(part) for part in errors[0]["loc"])
        more = ""
        if len(errors) > 1:
            more = f" (and {len(errors) - 1} more)"
        raise InputError(
            f"{path}: field {printable(where)}: {printable(errors[0]['msg'])}{more}; {_again(path)}"
        ) from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON in UTF-8 ({error}); {_again(path)}") from None


def _again(path: Path) -> str:
    command = {"evaluation.json": "blb eval", "analysis.json": "blb analyze"}.get(
        path.name, "blb fit"
    )
    return f"write it again with {command}, or remove it"
