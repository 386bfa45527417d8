"""Rivals that change the request: an instruction, examples, wanted shares of labels in words, a
lower temperature, a limit, or several completions.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.case import Case, number
from blackbox_lb.jobs.evaluation.policies import (
    AtTemperature,
    BestOf,
    Cut,
    Instructed,
    InstructedByPrompt,
    Policy,
    Shots,
)
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example, Message

HOTTEST = 2.0
"""The highest temperature that is judged."""


def instruction(_case: Case, value: str) -> Policy:
    """``prompt:TEXT``: an instruction, added to the prompt.

    Raises:
        InputError: it is empty.
    """
    text = value.strip()
    if not text:
        raise InputError(
            "``rival=prompt:`` is empty; give the instruction that you would add to the prompt"
        )
    return Instructed(rival=f'prompt + "{text}"', instruction=text)


def temperature(case: Case, value: str) -> Policy:
    """``temperature:T``: a lower one; of wanted shares any but greedy, since they can need a higher
    one.

    Raises:
        InputError: it is out of range, or changes nothing at any setting.
    """
    degrees = number(value, "temperature", float)
    hotter = case.reward.of_shares
    if hotter and not 0 < degrees <= HOTTEST:
        raise InputError(
            f"``rival=temperature:{value}`` is not from above 0 to {HOTTEST:g}; greedy decoding has"
            " no distribution, and no API takes a higher one"
        )
    if not hotter and not 0 <= degrees < case.hottest:
        raise InputError(
            f"``rival=temperature:{value}`` is not below the highest temperature that is judged,"
            f" {case.hottest:g}; give a lower one, or judge at that temperature with ``deploy``"
        )
    name = f"T = {degrees:g}" if degrees else "greedy"
    return AtTemperature(rival=name, temperature=degrees, hotter=hotter)


def max_tokens(case: Case, value: str) -> Policy:
    """``max-tokens:N``: completions cut earlier or later.

    Raises:
        InputError: it is the limit of all policies, or none.
    """
    tokens = number(value, "max-tokens", int)
    limit = case.reward.max_tokens
    if tokens < 1 or tokens == limit:
        raise InputError(
            f"``rival=max-tokens:{value}`` is no other limit than the {limit} tokens of all"
            " policies; give a lower or a higher one"
        )
    return Cut(rival=f"max_tokens {tokens}", limit=tokens)


def best_of(case: Case, value: str) -> Policy:
    """``best-of:N``: the likeliest of several completions.

    Raises:
        InputError: fewer than 2, or only greedy is judged.
    """
    size = number(value, "best-of", int)
    if size < 2 or case.hottest == 0:
        raise InputError(
            f"``rival=best-of:{value}`` would give what one completion"
            f" gives{' at greedy' if size > 1 else ''}; give 2 or more, and judge at a temperature"
            " above 0"
        )
    return BestOf(rival=f"best of {size}", size=size)


def few_shot(case: Case, value: str) -> Policy:
    """``few-shot:K``: ``value`` training examples before the prompt, as messages.

    The labels take turns, and the examples of each label come in an order that the seed fixes.

    Raises:
        InputError: there are fewer training rows with a label.
    """
    labels = case.decision("few-shot")
    case.check_training("few-shot")
    count = number(value, "few-shot", int)
    if count < 1:
        raise InputError(f"``rival=few-shot:{value}`` is no example; give 1 or more")
    candidates = []
    for example in case.task.train:
        label = labels.of(example)
        if label is not None:
            text = f"{case.seed}\0{example.id}\0{example.prompt.text}"
            digest = hashlib.sha256(text.encode()).hexdigest()
            candidates.append((digest, label, example))
    if count > len(candidates):
        raise InputError(
            f"``rival=few-shot:{count}`` is more than the {len(candidates)} training rows with a"
            " label; give fewer, or more rows"
        )
    candidates.sort(key=lambda candidate: candidate[0])
    # The first example of each label has turn 1, the second has turn 2 and so on.
    turns = Counter[int]()
    in_turn = []
    for digest, label, example in candidates:
        turns[label] += 1
        in_turn.append((turns[label], digest, label, example))
    in_turn.sort(key=lambda row: row[:2])
    chosen = sorted(in_turn[:count], key=lambda row: row[1])
    shots = []
    for _, _, label, example in chosen:
        shots += [message for message in example.prompt.messages if message.role != "system"]
        shots.append(Message("assistant", labels.names[label]))
    characters = sum(len(message.content) for message in shots)
    return Shots(
        rival=f"{count} examples",
        shots=tuple(shots),
        cost=(
            f"a completion a test prompt and sample, each with {characters:,} characters of"
            " examples before the prompt"
        ),
    )


def shares_in_words(case: Case, _value: str) -> Policy:
    """``asked-shares``: each prompt asks for its shares, in per cent."""
    labels = case.shares("asked-shares")
    return InstructedByPrompt(
        rival="shares asked in words",
        instructions=AskedShares(labels),
        cost="a completion a test prompt and sample, with the shares of all labels in the prompt",
    )


def label_drawn_in_code(case: Case, _value: str) -> Policy:
    """``drawn-label``: a label is drawn for each completion by the shares, and asked for."""
    labels = case.shares("drawn-label")
    return InstructedByPrompt(
        rival="label drawn in code",
        instructions=DrawnLabels(labels, case.seed),
        cost="a completion a test prompt and sample, with one label in the prompt",
    )


@dataclass(frozen=True, slots=True)
class AskedShares:
    """One instruction for all completions of a prompt, with the shares of ``labels``."""

    labels: Labels

    def __call__(self, example: Example, samples: int) -> dict[str, int]:
        """The shares of ``example`` in a sentence, for ``samples`` completions."""
        shares = self.labels.shares(example)
        parts = [
            f'"{name}" with probability {100 * share:.3g} %'
            for name, share in zip(self.labels.names, shares, strict=True)
            if share > 0
        ]
        return {f"Choose at random and begin your answer with {', '.join(parts)}.": samples}


@dataclass(frozen=True, slots=True)
class DrawnLabels:
    """An instruction for each label that was drawn; ``seed`` fixes the draws."""

    labels: Labels
    seed: int

    def __call__(self, example: Example, samples: int) -> dict[str, int]:
        """Instruction -> the completions for which its label was drawn, ``samples`` in all."""
        shares = np.array(self.labels.shares(example))
        digest = hashlib.sha256(f"{self.seed}\0{example.id}".encode("utf-8", "surrogatepass"))
        generator = np.random.default_rng(int.from_bytes(digest.digest()[:8]))
        numbers = generator.choice(len(shares), size=samples, p=shares / shares.sum())
        counts = Counter(self.labels.names[number] for number in numbers.tolist())
        return {f'Begin your answer with "{name}".': count for name, count in counts.items()}
