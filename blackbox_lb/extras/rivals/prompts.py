"""Rivals that change the prompt: examples before it, or wanted shares of labels in words."""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.jobs.evaluation.arms import Alternative
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example, Message


def few_shot(case: Case, value: object) -> Alternative:
    """``few_shot``: ``value`` training examples before the prompt, as messages.

    The labels take turns, and the examples of each label come in an order that the seed fixes.

    Raises:
        InputError: there are fewer training rows with a label.
    """
    number = int(str(value))
    candidates = []
    for example in case.task.train:
        label = case.labels.of(example)
        if label is not None:
            text = f"{case.seed}\0{example.id}\0{example.prompt.text}"
            digest = hashlib.sha256(text.encode()).hexdigest()
            candidates.append((digest, label, example))
    if number > len(candidates):
        raise InputError(
            f"``few_shot={number}`` is more than the {len(candidates)} training rows with a label;"
            " give fewer, or more rows"
        )
    candidates.sort(key=lambda candidate: candidate[0])
    # The first example of each label has turn 1, the second has turn 2 and so on.
    turns = Counter[int]()
    in_turn = []
    for digest, label, example in candidates:
        turns[label] += 1
        in_turn.append((turns[label], digest, label, example))
    in_turn.sort(key=lambda row: row[:2])
    chosen = sorted(in_turn[:number], key=lambda row: row[1])
    shots = []
    for _, _, label, example in chosen:
        shots += [message for message in example.prompt.messages if message.role != "system"]
        shots.append(Message("assistant", case.labels.names[label]))
    characters = sum(len(message.content) for message in shots)
    return Alternative(
        f"{number} examples",
        shots=tuple(shots),
        cost=(
            f"a completion a test prompt and sample, each with {characters:,} characters of"
            " examples before the prompt"
        ),
    )


def shares_in_words(labels: Labels, seed: int) -> Alternative:
    """``asked_shares``: each prompt asks for its shares, in per cent."""
    del seed
    return Alternative(
        "shares asked in words",
        instructions=AskedShares(labels),
        cost="a completion a test prompt and sample, with the shares of all labels in the prompt",
    )


def label_drawn_in_code(labels: Labels, seed: int) -> Alternative:
    """``drawn_label``: a label is drawn for each completion by the shares, and asked for."""
    return Alternative(
        "label drawn in code",
        instructions=DrawnLabels(labels, seed),
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
