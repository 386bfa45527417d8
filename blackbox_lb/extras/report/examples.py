"""Completions of one prompt side by side, before and after the bias, with their differences
marked.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.prompt_bias import store_key, to_request_bias
from blackbox_lb.jobs.evaluation.document import Evaluation
from blackbox_lb.store import RolloutStore, canonical
from blackbox_lb.types import Prompt

BASE, BIASED = "without the bias", "with the bias"
MOST_EXAMPLES = 24
"""Most prompts that are shown."""
MOST_WORDS = 1_500
"""Longest completion with marked differences, in words: the time to find them grows with the
square.
"""
WORDS = re.compile(r"\s+|\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of a completion; ``differs`` where the other side does not have it."""

    text: str
    differs: bool


@dataclass(frozen=True, slots=True)
class Side:
    """One completion. ``correct`` and ``reward`` are None where not known; ``stop_changed``: it
    ended for another reason than the first side did. ``marked``: whether the pieces show the
    differences.
    """

    policy: str
    text: str
    tokens: int
    finish_reason: str
    correct: bool | None = None
    reward: float | None = None
    stop_changed: bool = False
    marked: bool = False
    pieces: tuple[Piece, ...] = ()

    @property
    def stopped(self) -> str:
        known = {
            "stop": "ended by itself",
            "length": "cut off at the token limit",
            "content_filter": "content filter",
        }
        return known.get(self.finish_reason, self.finish_reason or "end not told")


@dataclass(frozen=True, slots=True)
class ExampleCard:
    """One prompt; the first of ``sides`` is compared with the others."""

    id: str
    prompt: str
    answers: tuple[str, ...]
    sides: tuple[Side, ...]

    @property
    def unchanged(self) -> bool:
        return len({side.text for side in self.sides}) == 1


def compared(sides: Sequence[Side]) -> tuple[Side, ...]:
    """The sides with their differences to the first; the first with its differences to the
    second.
    """
    if len(sides) < 2:
        return tuple(replace(side, pieces=(Piece(side.text, False),)) for side in sides)
    first, *others = sides
    done = [_against(first, others[0])]
    done += [
        replace(_against(side, first), stop_changed=side.finish_reason != first.finish_reason)
        for side in others
    ]
    return tuple(done)


def _against(side: Side, other: Side) -> Side:
    own, theirs = WORDS.findall(side.text), WORDS.findall(other.text)
    if max(len(own), len(theirs)) > MOST_WORDS:
        return replace(side, pieces=(Piece(side.text, False),))
    pieces: list[Piece] = []
    for kind, start, end, _, _ in SequenceMatcher(None, own, theirs, autojunk=False).get_opcodes():
        if start < end:
            pieces.append(Piece("".join(own[start:end]), kind != "equal"))
    return replace(side, pieces=tuple(pieces), marked=True)


def evaluated(evaluation: Evaluation) -> tuple[tuple[ExampleCard, ...], str]:
    """The examples of an evaluation and their source."""
    rows = tuple(
        ExampleCard(
            shown.id,
            shown.prompt,
            shown.answers,
            compared([Side(**dict(each)) for each in shown.completions]),
        )
        for shown in evaluation.examples[:MOST_EXAMPLES]
    )
    where = "the evaluation shows, those with different answers first"
    return rows, _caption(len(rows), len(evaluation.examples), where)


def _caption(shown: int, there: int, where: str) -> str:
    return (
        f"{shown} of the {there:,} prompts that {where}"
        if shown < there
        else f"the {there:,} prompts that {where}"
    )


def stored(path: Path, bias: Bias) -> tuple[tuple[ExampleCard, ...], str]:
    """Prompts in the store at ``path`` with a completion under ``bias`` and, by the same request,
    one without a bias.

    Greedy completions where there are any, else those of the setting with the most prompts. Returns
    the examples and, in words, their source or why there are none.

    Raises StoreError: the file is no store, or one of a newer version.
    """
    if not path.exists():
        return (), "there is no rollouts.db to take examples from"
    with RolloutStore(path, read_only=True) as store:
        pairs = _pairs(store, bias)
        if not pairs:
            return (
                (),
                (
                    "rollouts.db holds no completions of the same prompts with this bias and"
                    " without it"
                ),
            )
        temperature, keys = min(pairs, key=lambda pair: (pair[0] != 0, -len(pair[1])))
        examples = tuple(
            _example(store, number, *pair)
            for number, pair in enumerate(keys[:MOST_EXAMPLES], start=1)
        )
    setting = "greedily" if temperature == 0 else f"at temperature {temperature:g}"
    return examples, _caption(
        len(examples), len(keys), f"rollouts.db holds {setting} with and without the bias"
    )


Pair = tuple[Prompt, str, str]
"""A prompt with the keys of its first completion without and with the bias."""


def _pairs(store: RolloutStore, bias: Bias) -> list[tuple[float, list[Pair]]]:
    """Temperature and pairs of every setting that was sampled on both sides."""
    requests = store.requests()
    wanted = store_key(to_request_bias(bias))
    base = {_without_bias(each): name for name, each in requests.items() if not each["bias"]}
    found = []
    for name, each in requests.items():
        first = base.get(_without_bias(each))
        if wanted and each["bias"] == wanted and first is not None:
            before, after = _first_of_each(store, first), _first_of_each(store, name)
            pairs = [
                (prompt, before[prompt], key) for prompt, key in after.items() if prompt in before
            ]
            if pairs:
                found.append((float(each["sampling"]["temperature"]), pairs))
    return found


def _without_bias(settings: Mapping[str, Any]) -> str:
    return canonical({key: value for key, value in settings.items() if key != "bias"})


def _first_of_each(store: RolloutStore, request: str) -> dict[Prompt, str]:
    first: dict[Prompt, str] = {}
    for key, prompt in store.prompts(request).items():
        first.setdefault(prompt, key)
    return first


def _example(
    store: RolloutStore, number: int, prompt: Prompt, before: str, after: str
) -> ExampleCard:
    sides = [
        Side(name, each.text, each.n_tokens, each.finish_reason)
        for name, each in zip((BASE, BIASED), store.completions((before, after)), strict=True)
    ]
    return ExampleCard(str(number), prompt.text, (), compared(sides))
