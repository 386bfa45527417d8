"""Stories with fewer stock words."""

from __future__ import annotations

import random

from bench.gallery.rewards import FAMILIES
from bench.gallery.use import Place, Step, Use, by_completions, options
from bench.measuring import write_rows

__all__ = ["STORIES"]

PLACES = (
    "a harbour",
    "a library",
    "a mountain village",
    "a night market",
    "an old theatre",
    "a train station",
    "a lighthouse",
)
OTHER_PLACES = (
    *("a hospital", "a desert inn", "a bakery", "a museum", "an apartment block"),
    *("a farm", "a ferry", "a village school", "a circus"),
)
"""Where the stories of validation and test take place: none of them was looked at before the run.
"""
EVENTS = (
    "a storm begins",
    "two friends meet again",
    "someone loses a letter",
    "a stranger asks for help",
    "the lights go out",
)
WRITING = ("uv", "run", "python", "-m", "bench.gallery.writing")
VALIDATION_PROMPTS = 15
PARTS = ((10, 1), (35, 1), (35, 3), (35, 10))
"""Prompts, and completions of each, from which a bias is learned, too."""


def _stories(place: Place) -> list[Step]:
    """Openings of stories, with fewer of the words that generated prose is full of, at a
    temperature of .7.
    """
    request = "Write the opening of a short story in {}, where {}."
    rows = [
        {"prompt": request.format(scene, event), "split": "train"}
        for scene in PLACES
        for event in EVENTS
    ]
    fresh = [request.format(scene, event) for scene in OTHER_PLACES for event in EVENTS]
    random.Random(0).shuffle(fresh)
    rows += [{"prompt": prompt, "split": "validation"} for prompt in fresh[:VALIDATION_PROMPTS]]
    rows += [{"prompt": prompt, "split": "test"} for prompt in fresh[VALIDATION_PROMPTS:]]
    data = write_rows(place.out / "stories.jsonl", rows)
    words = place.out / "words.txt"
    words.write_text("\n".join((*FAMILIES, "—", "–", "--")) + "\n", encoding="utf-8")
    title = "Stock words and dashes in stories"
    samples = 10 if place.small else 20
    task = options(
        *place.model,
        data=data,
        reward="bench.gallery.rewards:little_slop",
        max_tokens=60,
        store=place.out / "store.db",
        deploy="temperature=0.7",
    )
    fit = options(
        "fit",
        *task,
        samples_per_prompt=samples,
        validation_samples=3,
        test_samples=3,
        tau=(4, 2, 1),
        out=place.out / "fit",
    )
    judged = options(
        place.bias("bias", "fit"),
        *task,
        test_samples=3,
        rival=(
            "prompt:Use plain words, no clichés and no flowery adjectives.",
            f"words:{words}:-3",
            f"words:{words}:-100",
        ),
    )
    steps = [
        Step("fit", fit),
        Step("eval", options("eval", *judged, out=place.out / "eval"), title),
        Step("writing", judged, program=WRITING),
    ]
    parts = [part for part in PARTS if part[1] < samples]
    parts.append((len(PLACES) * len(EVENTS), samples))
    return [
        *steps,
        *by_completions(place, options(*task, test_samples=3), parts, tau=2, title=title),
    ]


STORIES = Use(
    "Stock words in stories",
    "Openings of stories at temperature .7. The reward is less the number of stock words, stock"
    " phrases and dashes for each hundred words. Rivals: a hand list of the stock words and dashes,"
    " softly (-3) and as a ban (-100), and an instruction. The list has one form of each word, as a"
    ' person writes it ("whispers"); the reward also counts other forms ("whispering") and phrases,'
    " which no list of single tokens can hold.",
    _stories,
)
