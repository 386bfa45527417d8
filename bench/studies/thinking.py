"""``python -m bench.studies.thinking OUT --model FILE.gguf``: shorter reasoning at equal accuracy, beside hand-written rivals.

A model is asked to reason step by step and then to write "Answer:" and a number. Two biases are learned from the same
completions, for short reasoning that ends in the right number: one with a vector of its own until "Answer:", one for all positions.
Both are judged greedily on unseen problems beside a list of words, a number on the closing text, hard budgets, no reasoning at all
and an instruction. All settings stand here, before the run; OUT keeps every completion, and a run that was cut off goes on.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path

import click

from blackbox_lb.cli import main as blb

__all__ = ["main", "problems"]

NAMES = ("Anna", "Ben", "Clara", "David", "Emma", "Felix", "Greta", "Hugo", "Ida", "Jonas")
THINGS = ("apples", "books", "coins", "pencils", "stamps", "marbles", "cards", "shells", "stickers", "eggs")
ASKED = "{} Reason step by step in a few sentences, then write 'Answer:' and the number."
CLOSING = "Answer:"
WORDS = ("Let", "So", "First", "Next", "Then", "Now", "Therefore", "Wait", "However", "Since", "We", "To", "By", "After")
"""The hand list: words that begin steps of reasoning."""
LONGEST = 120
"""Tokens of a completion."""
SAMPLES, TAUS = 6, ("0.5", "0.25")
SPLITS = {"train": 40, "validation": 16, "test": 40}
"""About 40 minutes with a model of half a billion weights on two cores: a tenth of twice that size took 7."""
RIGHT = r"regex:(?s)Answer:[^\d\n]{0,40}{answer}(?!\d|\.\d)"
"""The first number after "Answer:", in its line: the model likes to write "Answer: Anna has 7 coins now"."""


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


def run(*line: object) -> None:
    """A command, as a user types it; one that fails or is interrupted ends the study."""
    words = [str(word) for word in line]
    click.echo(f"$ blb {' '.join(words)}")
    if code := blb(words, standalone_mode=False):
        raise SystemExit(code)


@click.command(help=__doc__)
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", required=True, help="A GGUF file.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Share of the problems, to try it out.")
def main(out: Path, model: str, scale: float) -> None:
    """The fits and the evaluation."""
    out.mkdir(parents=True, exist_ok=True)
    data, words = out / "problems.jsonl", out / "words.txt"
    sizes = {split: max(4, round(number * scale)) for split, number in SPLITS.items()}
    rows, drawn = list[str](), iter(problems(sum(sizes.values())))
    for split, number in sizes.items():
        taken = [next(drawn) for _ in range(number)]
        rows += [json.dumps({"prompt": ASKED.format(text), "answer": str(total), "split": split}) for text, total in taken]
    data.write_text("\n".join(rows) + "\n")
    words.write_text("\n".join(WORDS) + "\n")
    where: Sequence[object] = ("--provider", "local", "--model", model, "--data", data, "--max-tokens", LONGEST)
    task = (*where, "--reward", "correct-and-short", "--correct", RIGHT, "--thinking", f"until:{CLOSING}", "--count", "thinking")
    learn = (
        *task,
        "--store",
        out / "store.db",
        "--samples-per-prompt",
        SAMPLES,
        "--deploy",
        "greedy",
        "--seed",
        1,
        "--entries",
        300,
    )
    taus = [word for tau in TAUS for word in ("--tau", tau)]
    run("fit", *learn, *taus, "--out", out / "one")
    run("fit", *learn, *taus, "--phases", f"until:{CLOSING}", "--out", out / "phases")
    arms = ("--baseline-words", f"{words}:-2", "--baseline-close", 2, "--baseline-close", 5)
    budgets = ("--baseline-thinking-tokens", 40, "--baseline-thinking-tokens", 0, "--baseline-prompt", "Be brief.")
    biases = [f"{name}={out / name / 'bias.json'}" for name in ("one", "phases")]
    run("eval", *biases, *task, "--store", out / "store.db", "--deploy", "greedy", "--seed", 1, *arms, *budgets, "--out", out)


if __name__ == "__main__":
    main()
