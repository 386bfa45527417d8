"""Writing the result of a fit into its run's folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from blackbox_lb.errors import BiasError
from blackbox_lb.jobs.fitting.result import FitResult
from blackbox_lb.jobs.runs.answers import AnswerPair, shown_answers
from blackbox_lb.jobs.runs.names import BIAS, LEARNED, RESULT
from blackbox_lb.safety.files import write_whole


def result_document(
    result: FitResult,
    pairs: Sequence[AnswerPair],
    folder: Path,
    provenance: dict[str, Any],
) -> dict[str, Any]:
    """The content of result.json."""
    answers = shown_answers(pairs)
    return {
        **result.as_json(),
        "answers": None if answers is None else answers.model_dump(mode="json"),
        "bias": str(folder / BIAS),
        "uncompiled": str(folder / LEARNED),
        "provenance": provenance,
    }


def write_result(result: FitResult, document: dict[str, Any], folder: Path) -> dict[str, str]:
    """Write the three files, the most wanted first; return name -> reason for each failure."""
    unwritten = {}
    try:
        write_whole(folder / RESULT, (json.dumps(document, indent=2) + "\n").encode())
    except OSError as error:
        unwritten[RESULT] = f"{folder / RESULT}: cannot be written ({error.strerror or error})"
    for name, bias in ((BIAS, result.bias), (LEARNED, result.uncompiled)):
        try:
            bias.save(folder / name)
        except BiasError as error:
            unwritten[name] = str(error)
    return unwritten


def check_written(unwritten: dict[str, str]) -> None:
    """Raise BiasError where a file could not be written."""
    if unwritten:
        raise BiasError(
            f"{'; '.join(unwritten.values())}; run the same command again: what was drawn is in the"
            " store"
        )
