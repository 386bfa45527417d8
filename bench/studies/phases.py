"""``python -m bench.studies.phases OUT``: a vector for the first token, beside one for all
positions.

The task: answer in one sentence that does not begin with an article. One vector that keeps "A" and
"The" from the beginning keeps them from the text that follows, too. Both biases are learned from
the same completions and judged on the same test prompts. How much each changes the text after the
first token is told by the text that the model without a bias writes after the same first token: the
share of equal texts, and the edit distance between tokens as a share of the longer one.
"""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from bench.exact import markdown
from bench.measuring import machine, today
from blackbox_lb import RolloutStore, Task, Trials, connect, load_task, parse_reward
from blackbox_lb.bias.phases import PhasedBias, Phases
from blackbox_lb.bias.prompt_bias import sent_by
from blackbox_lb.cli.terminal import Terminal
from blackbox_lb.estimate.inputs.sweep import Sweep
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.jobs.fitting.run import fit
from blackbox_lb.rollouts.judging.verdict import GREEDY
from blackbox_lb.types import AnyBias, Prompt

__all__ = ["edit_distance", "measured"]

THINGS = """
anchor bakery basket bicycle blanket bottle bridge button camera candle carpet castle chimney circus clock compass
crystal curtain desert dolphin donkey drum eagle engine feather ferry flute forest fountain garden giraffe glacier goose
guitar hammer harbor helmet horse island jacket jungle kettle keyboard kitchen ladder lantern lemon leopard library
lighthouse lion lizard magnet market meadow melon mirror mountain museum needle notebook ocean onion orange orchard oven
owl panda parrot peach pencil penguin piano pillow planet potato pumpkin puzzle pyramid rabbit radio rainbow ribbon
river robot rocket saddle sailboat shark shell shovel skeleton spider spoon squirrel stadium statue storm subway
sunflower swan sword telescope temple theater tiger tomato tractor train treasure trumpet tunnel turtle umbrella valley
vase village violin volcano vulture wagon walnut waterfall whale windmill window wolf yacht zebra
"""  # noqa: E501
QUESTIONS = (
    "What is a {}? Answer in one sentence.",
    "Explain in one sentence what a {} is used for or known for.",
)
NO_ARTICLE = r"regex:^(?!(A|An|The) )"
INSTRUCTION = "Do not begin the sentence with an article (A, An or The)."
LONGEST = 40
"""Tokens of a completion."""
ENTRIES = 300
"""Most tokens of each vector, as blb fit has it."""


def edit_distance(one: list[int], other: list[int]) -> int:
    """Insertions, deletions and substitutions that lead from one row of tokens to the other
    (Levenshtein).
    """
    row = list(range(len(other) + 1))
    for place, token in enumerate(one, 1):
        before, row[0] = row[0], place
        for column, each in enumerate(other, 1):
            before, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, before + (token != each)),
            )
    return row[-1]


async def measured(trials: Trials, task: Task, plan: FitPlan) -> list[dict[str, Any]]:
    """A row for the base, the fixed bias, the one with phases, and for what a user would write
    instead.
    """
    fixed = (await fit(trials, task, replace(plan, phases=None))).bias
    phased = (await fit(trials, task, plan)).bias
    rows = []
    for name, bias in (
        ("no bias", {}),
        ("one vector", sent_by(fixed)),
        ("first token apart", sent_by(phased)),
    ):
        kept = await _completions(trials, task, bias, f"test, {name}")
        plain = await _completions(
            trials, task, _first_alone(bias), f"test, {name} on the first token alone"
        )
        own = [(one[1:], other[1:]) for one, other in zip(kept, plain, strict=True)]
        scores = await trials.scores(f"test, {name}", task.test, GREEDY, 1, bias)
        rows.append(
            {
                "bias": name,
                "reward": float(np.mean([each.mean() for each in scores.reward])),
                "tokens": float(np.mean([len(each) for each in kept])),
                "rest equal": float(np.mean([one == other for one, other in own])),
                "rest edited": float(
                    np.mean(
                        [
                            edit_distance(one, other) / max(len(one), len(other), 1)
                            for one, other in own
                        ]
                    )
                ),
            }
        )
    asked = [
        replace(each, prompt=Prompt.user(f"{each.prompt.text} {INSTRUCTION}")) for each in task.test
    ]
    told = await trials.scores("test, instruction", asked, GREEDY, 1)
    means = [float(np.mean([each.mean() for each in part])) for part in (told.reward, told.tokens)]
    return [
        *rows,
        {
            "bias": "no bias, but an instruction",
            "reward": means[0],
            "tokens": means[1],
            "rest equal": "",
            "rest edited": "",
        },
    ]


def _first_alone(bias: AnyBias) -> PhasedBias:
    """The bias on the first token, and none after it."""
    vector = bias.vectors[0] if isinstance(bias, PhasedBias) else bias
    assert isinstance(vector, dict)
    return PhasedBias(Phases.parse(["first"]), (vector, {}))


async def _completions(trials: Trials, task: Task, bias: AnyBias, title: str) -> list[list[int]]:
    """The tokens of each test prompt's greedy completion."""
    keys = await trials.collect(
        title, task.test, trials.draw(GREEDY, bias, trials.session.biased_endpoint), 1
    )
    return [each.token_ids.tolist() for each in trials.store.completions([row[0] for row in keys])]


async def _run(out: Path, model: str | None, samples: int, tau: tuple[float, ...]) -> None:
    prompts = [question.format(thing) for thing in THINGS.split() for question in QUESTIONS]
    random.Random(0).shuffle(prompts)
    (out / "data.jsonl").write_text(
        "".join(json.dumps({"prompt": each}) + "\n" for each in prompts)
    )
    task, reward = (
        load_task(data=out / "data.jsonl", require_answers=False),
        parse_reward(NO_ARTICLE, max_tokens=LONGEST),
    )
    async with connect(
        "local", model=model, max_tokens=LONGEST, longest_prompt=task.longest_prompt
    ) as session:
        with RolloutStore(out / "store.db") as store:
            trials = Trials(session, store, await session.tokenizer(), reward, Terminal(), 20)
            phases, sweep = Phases.parse(["first"]), Sweep(tau=tau)
            plan = FitPlan(
                samples=samples, settings=(GREEDY,), phases=phases, sweep=sweep, entries=ENTRIES
            )
            rows = await measured(trials, task, plan)
    (out / "rows.json").write_text(json.dumps(rows, indent=1) + "\n")
    head = list(rows[0])
    cells = [
        [f"{value:.3f}" if isinstance(value, float) else str(value) for value in row.values()]
        for row in rows
    ]
    click.echo(
        f"{markdown(head, cells)}\n\n{len(task.test)} test prompts, {machine()['processor']},"
        f" {today()}"
    )


@click.command()
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option("--model", help="A GGUF file; the embedded engine's own model if left out.")
@click.option(
    "--samples", type=int, default=6, show_default=True, help="Completions of a training prompt."
)
@click.option(
    "--tau", type=float, multiple=True, default=(0.5, 0.1), show_default=True, help="As of blb fit."
)
def main(out: Path, model: str | None, samples: int, tau: tuple[float, ...]) -> None:
    """OUT gets rows.json and the store: a run that was cut off goes on."""
    out.mkdir(parents=True, exist_ok=True)
    asyncio.run(_run(out, model, samples, tau))


if __name__ == "__main__":
    main()
