"""To call a function or to answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.gallery.use import Place, Step, Use, data_file, options

__all__ = ["TOOLS"]

CALLS = ("uv", "run", "python", "-m", "bench.gallery.calls")
FEWER = (10, 40)
"""Training rows, and as many validation rows, of the fits from fewer labels."""


@dataclass(frozen=True, slots=True)
class Prompts:
    """How many prompts the page takes.

    learned: training rows, and as many validation rows, that the bias learns from.
    judged: test prompts whose decisions are judged by their first lists.
    rivals: those of them on which rivals that change the prompt are judged, and which each policy
        answers.
    whole: those that are answered to the end of a call.
    """

    learned: int
    judged: int
    rivals: int
    whole: int


WHOLE = Prompts(learned=80, judged=96, rivals=32, whole=12)
SMALL = Prompts(learned=60, judged=64, rivals=20, whole=6)


def _tools(place: Place) -> list[Step]:
    """A fit of the decision, then the decisions of all policies on unseen prompts from one token
    each, and some whole calls; at last completions beside an instruction.
    """
    prompts = SMALL if place.small else WHOLE
    learned = prompts.learned
    out = place.out / "call"
    store = place.out / "lists.db"
    data = data_file(place, "calls.jsonl")
    task = options(data=data, decide="calls-tool", reward="accuracy", store=store)
    whole = options(
        max_tokens=1, limit=learned, validation_limit=learned, test_limit=prompts.judged, out=out
    )
    judged = options(*place.model, data=data, bias=out / "bias.json", store=store)
    steps = []
    for rows in FEWER:
        folder = place.out / f"few-{2 * rows}"
        fit = options("fit", *place.model, *task, max_tokens=1, limit=rows, validation_limit=rows)
        # Its bias is judged by the lists of all test prompts, and hardly by completions.
        steps.append(Step(folder.name, options(*fit, test_limit=8, out=folder), repeats=True))
        judged += options(fewer=f"{2 * rows}={folder / 'bias.json'}")
    judged += options(prompts=prompts.judged, rivals=prompts.rivals, whole=prompts.whole)
    return [
        Step("call", options("fit", *place.model, *task, *whole)),
        *steps,
        Step("calls", judged, program=CALLS),
        Step("judged", _carried_out(place, data, store, prompts), "The decision carried out"),
    ]


def _carried_out(place: Place, data: Path | None, store: Path, prompts: Prompts) -> tuple[str, ...]:
    """The bias beside an instruction, in completions."""
    return options(
        "eval",
        place.bias("call"),
        *place.model,
        data=data,
        decide="calls-tool",
        reward="accuracy",
        max_tokens=24,
        store=store,
        rivals=True,
        deploy=("greedy", "temperature=0.6"),
        test_samples=1,
        test_limit=prompts.rivals,
        out=place.out / "judged",
    )


TOOLS = Use(
    "To call a function or to answer",
    "A chat prompt with one function, which answers it or does not (Berkeley Function Calling"
    " Leaderboard). A bias shifts the tokens that begin a call, so that the same generation goes on"
    " as a call or as an answer, with no second request and no token of prompt; it chooses a point"
    " on the curve, and the AUC stays the model's own. Rivals: an instruction, two examples and"
    " `tool_choice`. 80 prompts to learn from, 80 to choose on, 96 to judge on, 32 of these by"
    " answers (small: 60, 60, 64, 20). Two smaller fits before (24 and 40 prompts of each"
    " split) ended with NO EVIDENCE.",
    _tools,
    files=("calls.jsonl",),
    second_model=True,
)
