"""Problems that are reasoned about before "Answer:" and a number, and the hand list that would
shorten the reasoning.
"""

from __future__ import annotations

import random

__all__ = ["ASKED", "CLOSING", "RIGHT", "WORDS", "problems"]

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas")
THINGS = (
    "apples",
    "books",
    "coins",
    "pencils",
    "stamps",
    "marbles",
    "cards",
    "shells",
    "stickers",
    "eggs",
)
ASKED = "{} Reason step by step in a few sentences, then write 'Answer:' and the number."
CLOSING = "Answer:"
WORDS = (
    "Let",
    "So",
    "First",
    "Next",
    "Then",
    "Now",
    "Therefore",
    "Wait",
    "However",
    "Since",
    "We",
    "To",
    "By",
    "After",
)
"""The hand list: words that begin steps of reasoning."""
RIGHT = r"regex:(?s)Answer:[^\d\n]{0,40}{answer}(?!\d|\.\d)"
"""The first number after "Answer:", in its line: the model likes to write "Answer: Anna has 7 coins
now".
"""


def problems(number: int, seed: int = 0) -> list[tuple[str, int]]:
    """Different word problems of one or two steps, with their answers."""
    rng, found = random.Random(seed), dict[str, int]()
    while len(found) < number:
        name, thing = rng.choice(NAMES), rng.choice(THINGS)
        total = rng.randint(3, 12)
        text = f"{name} has {total} {thing}."
        for _ in range(rng.choice((1, 2))):
            kind, size = rng.choice(("buys", "finds", "loses")), rng.randint(2, 6)
            if kind == "loses" and total <= size:
                kind = "finds"
            total += -size if kind == "loses" else size
            text += f" Then {name} {kind} {size} {'of them' if kind == 'loses' else 'more'}."
        found[f"{text} How many {thing} does {name} have now?"] = total
    return list(found.items())
