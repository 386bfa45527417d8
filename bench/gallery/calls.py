"""``python -m bench.gallery.calls``: a decision to call a function on unseen prompts, from first
lists, beside what one would do instead; and whether the calls themselves stay as they were.

The first list of a prompt has the probability of every way to begin, so that the decisions of
greedy decoding, and their chances at another temperature, are known under any bias without a draw.
An instruction and examples change the prompt and need lists of their own. Whole completions are
drawn for a few prompts, to compare the calls. It prints its tables as JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from bench.gallery.asking import first_lists, model_options, opened
from bench.gallery.results import model_name
from blackbox_lb import (
    Bias,
    Completion,
    Example,
    Message,
    Task,
    Trials,
    load_task,
    parse_reward,
)

# First lists and their decisions are read once more, beside prompts that ``blb eval`` does not ask.
from blackbox_lb.bias.operating import OperatingCurve, OperatingPoint
from blackbox_lb.binomial import lower_bound, upper_bound
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.decisions.prediction import roc_area
from blackbox_lb.extras.rivals.table import CALL_OR_ANSWER
from blackbox_lb.jobs.evaluation.policies import Instructed, Policy, Shots
from blackbox_lb.rollouts.judging.verdict import GREEDY, SAMPLED
from blackbox_lb.tasks.sets.labels import CALLS_TOOL, OpenLabels
from blackbox_lb.types import ToolCall, with_calls

__all__ = ["at_false_calls", "chances", "main"]

Bools: TypeAlias = npt.NDArray[np.bool_]
Ids: TypeAlias = npt.NDArray[np.int64]
Vector: TypeAlias = npt.NDArray[np.float64]

LISTED = 1000
"""Alternatives of a first list."""
COOLER = 0.6
RISK = 0.025
"""Of each end of an interval."""
FALSE_CALLS = 0.2
"""Share of needless calls for which a point of the curve is chosen."""
CHOSEN = 6
"""Prompts that are asked with ``tool_choice`` required and none."""
LONGEST = 64
"""Tokens of a whole completion."""
ROOM = 1000
"""Characters of the instruction or the examples."""
HEAD = (
    "policy",
    "needed calls made",
    "needless calls",
    "right",
    "needed, T = .6",
    "needless, T = .6",
    "AUC",
)


def chances(
    lists: FirstLists, bias: Mapping[int, float], tokens: Ids, temperature: float
) -> Vector:
    """(p,) the probability that a call begins on each prompt of these lists.

    bias: token id -> nats. tokens: those that begin a call. temperature: 0 is greedy.
    """
    is_opening: Bools = np.isin(lists.ids, tokens)
    tilted = lists.tilted(bias)
    if temperature == 0:
        likeliest = tilted.argmax(axis=1)
        greedy: Vector = is_opening[np.arange(len(tilted)), likeliest].astype(np.float64)
        return greedy
    calls: Vector = (softmax(tilted / temperature, axis=1) * is_opening).sum(axis=1)
    return calls


def at_false_calls(curve: OperatingCurve, most: float) -> OperatingPoint:
    """The point with the most calls whose share of needless ones is at most ``most`` on the
    training and validation prompts together.
    """
    negatives = sum(part.prompts - part.positives for part in (curve.training, curve.validation))

    def needless(point: OperatingPoint) -> int:
        return sum(part.decided - part.right for part in (point.training, point.validation))

    kept = [point for point in curve.points if needless(point) <= most * negatives]
    return max(kept or curve.points[:1], key=lambda point: point.shift)


def shots(task: Task) -> tuple[Message, ...]:
    """Two examples: a training question with its call, whose arguments are left to the function's
    own names, and one that is answered in words.
    """
    wanted = next(example for example in task.train if example.answers == ("call",))
    unanswered = next(example for example in task.train if example.answers == ("answer",))
    function = json.loads(wanted.prompt.tools)[0]["function"]
    names = function.get("parameters", {}).get("required", [])
    call = ToolCall(function["name"], json.dumps(dict.fromkeys(names, "...")))
    return (
        *wanted.prompt.messages,
        Message("assistant", with_calls("", [call])),
        *unanswered.prompt.messages,
        Message("assistant", "None of the functions answers this, so I answer in words."),
    )


@click.command(help=__doc__)
@model_options
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--bias", type=click.Path(exists=True, path_type=Path), required=True)
@click.option(
    "--fewer",
    multiple=True,
    metavar="NUMBER=PATH",
    help="Repeatable: a bias that was learned from so many labels, for a row of its own.",
)
@click.option("--store", type=click.Path(path_type=Path), required=True)
@click.option("--prompts", type=int, required=True, help="Test prompts of which a list is read.")
@click.option("--rivals", type=int, required=True, help="Those of which rivals have a list, too.")
@click.option("--whole", type=int, required=True, help="Prompts that are answered to the end.")
def main(**settings: Any) -> None:
    """Read the lists, draw the completions, and print the tables."""
    tables = asyncio.run(_tables(**settings))
    click.echo(json.dumps({"tables": tables}, ensure_ascii=False))


async def _tables(
    data: Path,
    bias: Path,
    fewer: Sequence[str],
    store: Path,
    prompts: int,
    rivals: int,
    whole: int,
    **settings: Any,
) -> list[dict[str, Any]]:
    task = load_task(data=data, decide=CALLS_TOOL)
    learned = Bias.load(bias)
    pairs = [part.partition("=")[::2] for part in fewer]
    from_fewer = {number: Bias.load(path) for number, path in pairs}
    examples = task.test[:prompts]
    reward = parse_reward("arguments-valid", max_tokens=LONGEST)
    async with opened(settings, store, reward, task.longest_prompt + ROOM, LISTED) as trials:
        tables = [
            await _decisions(trials, task, examples, learned, from_fewer, rivals),
            await _calls(trials, examples, learned, whole),
        ]
        return [{**table, "model": model_name(trials.session.model)} for table in tables]


async def _decisions(
    trials: Trials,
    task: Task,
    examples: Sequence[Example],
    bias: Bias,
    fewer: Mapping[str, Bias],
    few: int,
) -> dict[str, Any]:
    """The table of decisions; rivals that change the prompt on the first ``few`` examples."""
    curve = bias.operating
    if curve is None:
        raise click.UsageError("the bias has no operating curve; fit it with --decide")
    tokens = np.array(curve.token_ids, np.int64)
    is_wanted = np.array([example.answers == ("call",) for example in examples])
    moved = dict(bias.logit_bias)
    shift = at_false_calls(curve, FALSE_CALLS).shift - curve.shift
    for token in curve.token_ids:
        moved[token] = moved.get(token, 0.0) + shift
    sent = {
        "base": dict[int, float](),
        f"bias, {curve.goal}": dict(bias.logit_bias),
        f"bias, at most {FALSE_CALLS:.0%} needless calls where it was learned": moved,
    }
    for number, smaller in fewer.items():
        sent[f"bias, {curve.goal}, {number} labels"] = dict(smaller.logit_bias)
    plain = await _lists(trials, examples, Policy(), tokens)
    rows = [_row(name, plain, nats, tokens, is_wanted) for name, nats in sent.items()]
    first = plain.only(np.arange(few))
    for name, nats in list(sent.items())[:2]:
        rows.append(_row(f"{name}, first {few} prompts", first, nats, tokens, is_wanted[:few]))
    rivals = (
        Instructed(rival="instruction", instruction=CALL_OR_ANSWER),
        Shots(rival="2 examples", shots=shots(task)),
    )
    for rival in rivals:
        lists = await _lists(trials, examples[:few], rival, tokens)
        name = f"{rival.name}, first {few} prompts"
        rows.append(_row(name, lists, {}, tokens, is_wanted[:few]))
    notes = [
        f"{len(examples)} test prompts, {int(is_wanted.sum())} with a fitting function; of the"
        f" first {few}, {int(is_wanted[:few].sum())}. Greedy decisions and chances at temperature"
        f" .6 are exact, from first lists of {LISTED:,} tokens; a call begins with one of"
        f" {len(tokens)} tokens. In brackets: exact 95 % intervals.",
        f'The instruction, at the end of the prompt: "{CALL_OR_ANSWER}"',
        "A threshold in the client reads the same first list and so draws the same line; what comes"
        " of it with its second request, which forces the call or has no tools, is judged on"
        " completions of its own.",
        await _tool_choice(trials, examples[:CHOSEN]),
    ]
    return {"title": "To call or to answer", "head": list(HEAD), "rows": rows, "notes": notes}


async def _lists(
    trials: Trials, examples: Sequence[Example], rival: Policy, tokens: Ids
) -> FirstLists:
    """The first lists of the examples as ``rival`` asks them, with the tokens that begin a call."""
    lists = await first_lists(trials, examples, rival.name, rival, LISTED)
    return lists.only(lists.has_list).with_tokens(tokens)


def _row(
    name: str, lists: FirstLists, sent: Mapping[int, float], tokens: Ids, is_wanted: Bools
) -> list[str]:
    """A policy at both settings, with the AUC of its lists and exact 95 % intervals."""
    calls = chances(lists, sent, tokens, 0.0)
    cooler = chances(lists, sent, tokens, COOLER)
    cells = [name]
    for part in (is_wanted, ~is_wanted):
        hits = int(calls[part].sum())
        count = int(part.sum())
        low, high = lower_bound(hits, count, RISK), upper_bound(hits, count, RISK)
        cells.append(f"{hits / count:.2f} ({low:.2f} to {high:.2f})")
    area = roc_area(lists.margins(tokens), is_wanted)
    return [
        *cells,
        f"{(calls == is_wanted).mean():.2f}",
        f"{cooler[is_wanted].mean():.2f}",
        f"{cooler[~is_wanted].mean():.2f}",
        f"{area.value:.2f} ({area.low:.2f} to {area.high:.2f})",
    ]


async def _tool_choice(trials: Trials, examples: Sequence[Example]) -> str:
    """A sentence on ``tool_choice`` required and none."""
    labels = OpenLabels.parse(CALLS_TOOL)
    is_wanted = np.array([example.answers == ("call",) for example in examples])
    began = {}
    for choice in ("required", "none"):
        draw = replace(trials.draw(GREEDY, max_tokens=1), fields={"tool_choice": choice})
        keys = await trials.collect(f"tool_choice {choice}", examples, draw, 1, scored=False)
        texts = [completion.text for row in keys for completion in trials.store.completions(row)]
        began[choice] = np.array([labels.opens(text) for text in texts])
    needed = int(began["required"][is_wanted].sum())
    needless = int(began["required"][~is_wanted].sum())
    return (
        "`tool_choice` required asks for a call on every prompt, and none for no call on any, so"
        f" neither decides. With required {needed} of {int(is_wanted.sum())} needed calls began,"
        f" and {needless} needless ones on {int((~is_wanted).sum())} prompts; with none, which"
        " leaves the tools in the prompt,"
        f" {int(began['none'].sum())} of {len(examples)} completions began a call as text."
    )


async def _calls(
    trials: Trials, examples: Sequence[Example], bias: Bias, count: int
) -> dict[str, Any]:
    """The table of whole calls, greedy and at temperature .6, with and without the bias."""
    asked = [example for example in examples if example.answers == ("call",)][:count]
    drawing = replace(trials, top_logprobs=1)
    rows = []
    for setting in (GREEDY, replace(SAMPLED, name="temperature 0.6", temperature=COOLER)):
        written = []
        cells = []
        for name, sent in (("base", None), ("bias", dict(bias.logit_bias))):
            draw = drawing.draw(setting, sent, max_tokens=LONGEST)
            keys = await trials.collect("whole calls", asked, draw, 1, scored=False)
            completions = [next(iter(trials.store.completions(row))) for row in keys]
            written.append([_written(completion) for completion in completions])
            valid = sum(
                trials.reward.score(example, completion).value == 1.0
                for example, completion in zip(asked, completions, strict=True)
            )
            calling = sum(bool(completion.tool_calls) for completion in completions)
            cells.append([f"{name}, {setting.name}", f"{calling} of {len(asked)}", f"{valid}"])
        both = [pair for pair in zip(*written, strict=True) if all(pair)]
        same = f"{sum(base == biased for base, biased in both)} of {len(both)}"
        rows += [[*row, same] for row in cells]
    head = ["policy", "completions that call", "with valid arguments", "same call as the other"]
    note = (
        f"{len(asked)} test prompts with a fitting function, one completion each of at most"
        f" {LONGEST} tokens. Same: both call, with equal name and arguments; at temperature .6 two"
        " draws of one model differ, too."
    )
    return {"title": "The calls themselves", "head": head, "rows": rows, "notes": [note]}


def _written(completion: Completion) -> list[tuple[str, Any]]:
    """Names and values of the arguments of the calls."""
    return [(call.name, call.parsed_arguments) for call in completion.tool_calls]


if __name__ == "__main__":
    main()
