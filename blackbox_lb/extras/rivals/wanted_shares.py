"""The rivals of a bias that matches wanted shares: the shares in words, and the label drawn in code
and named in the prompt.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass

import numpy as np

from blackbox_lb.jobs.evaluation.arms import Alternative
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example


def shares_in_words(labels: Labels, seed: int) -> Alternative:
    """Each prompt asks for its own shares, in per cent."""
    del seed
    return Alternative(
        "shares asked in words",
        instructions=AskedShares(labels),
        cost="a completion a test prompt and sample, with the shares of all labels in the prompt",
    )


def label_drawn_in_code(labels: Labels, seed: int) -> Alternative:
    """A label is drawn for each completion by the shares of its prompt, and asked for."""
    return Alternative(
        "label drawn in code",
        instructions=DrawnLabels(labels, seed),
        cost="a completion a test prompt and sample, with one label in the prompt",
    )


@dataclass(frozen=True, slots=True)
class AskedShares:
    """One instruction for all completions of a prompt."""

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
    """An instruction for each label that was drawn; the same draws for the same ``seed``."""

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
