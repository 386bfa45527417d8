"""``uv run --with gepa==0.1.4 python -m bench.gallery.optimiser``: an instruction found by the
prompt optimiser GEPA, as a rival.

It evolves the instruction that ``--baseline-prompt`` of ``blb eval`` adds to each prompt: a second
model reads failures and writes a new one, and the best on the validation prompts is kept
(https://github.com/gepa-ai/gepa, arXiv 2507.19457). It gets as many completions of the adapted
model as the fit beside it had; those of the second model are not counted.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import httpx2

from blackbox_lb import connect
from blackbox_lb.api.local.engine import LocalEngine
from blackbox_lb.api.session import Session
from blackbox_lb.jobs.evaluation.arms import Alternative
from blackbox_lb.tasks import load_task, parse_reward
from blackbox_lb.tasks.rewards.reward import Reward
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Completion, Draw, Example, Sampling

__all__ = ["Asker", "main"]

COMPONENT = "instruction"
CONTEXT, LONGEST = 6144, 400
"""Tokens of a request to the second model, and of its answer."""


class Asker:
    """Greedy answers to prompts with an instruction added, each asked for once; ``calls`` counts
    them.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, session: Session, reward: Reward) -> None:
        self._loop, self._session, self._reward = loop, session, reward
        self._known: dict[tuple[str, str], Completion] = {}
        self.calls = 0

    def answers(self, instruction: str, examples: Sequence[Example]) -> list[Completion]:
        """A completion of each example."""
        added = Alternative("", instruction=instruction.strip() or None)
        keys = [(instruction, repr(each.prompt)) for each in examples]
        new = {
            key: each for key, each in zip(keys, examples, strict=True) if key not in self._known
        }
        draw = Draw(Sampling(0.0, self._reward.max_tokens, 0))

        async def ask() -> list[Completion]:
            wanted = (
                self._session.complete_many(added.asked(each).prompt, draw) for each in new.values()
            )
            return [found[0] for found in await asyncio.gather(*wanted)]

        self._known.update(zip(new, self._loop.run_until_complete(ask()), strict=True))
        self.calls += len(new)
        return [self._known[key] for key in keys]

    def score(self, example: Example, completion: Completion) -> float:
        """The displayed value of the reward."""
        return self._reward.value(self._reward.score(example, completion))


def adapter(asker: Asker) -> Any:
    """GEPA's own adapter, with this program's way to ask and to score."""
    module = importlib.import_module("gepa.adapters.default_adapter.default_adapter")
    batches = importlib.import_module("gepa.core.adapter")

    def evaluate(
        self: Any,
        batch: Sequence[Example],
        candidate: Mapping[str, str],
        capture_traces: bool = False,
    ) -> Any:
        """The outputs, scores and traces of a batch."""
        found = asker.answers(candidate[COMPONENT], batch)
        scores = [
            asker.score(example, answer) for example, answer in zip(batch, found, strict=True)
        ]
        outputs = [{"full_assistant_response": each.text} for each in found]
        traces = None
        if capture_traces:
            traces = [
                {
                    "data": {"input": example.prompt.messages[-1].content},
                    "full_assistant_response": answer.text,
                }
                | {
                    "feedback": (
                        f"Its score is {score:.3g}, more is better. The right answer is"
                        f" {' or '.join(example.answers)!r}."
                    )
                }
                for example, answer, score in zip(batch, found, scores, strict=True)
            ]
        return batches.EvaluationBatch(outputs=outputs, scores=scores, trajectories=traces)

    return type("Adapter", (module.DefaultAdapter,), {"evaluate": evaluate})(
        model=lambda messages: ""
    )


def reflector(base_url: str) -> Any:
    """The second model as GEPA calls it: the text of a prompt, or messages, to the text of an
    answer.
    """

    def ask(prompt: str | Sequence[Mapping[str, str]]) -> str:
        messages = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        )
        body = {"messages": messages, "max_tokens": LONGEST, "temperature": 0.7, "seed": 1}
        answer = httpx2.post(f"{base_url}/chat/completions", json=body, timeout=600)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])

    return ask


@click.command(help=__doc__)
@click.option("--provider", default="local", show_default=True)
@click.option("--model", help="The model that is adapted.")
@click.option(
    "--reflector",
    "second",
    required=True,
    help="A GGUF file: the model that rewrites the instruction.",
)
@click.option("--task", "name", help="A built-in task.")
@click.option("--data", type=click.Path(exists=True, path_type=Path))
@click.option("--reward", "spec", required=True)
@click.option("--correct")
@click.option("--thinking")
@click.option("--count", default="all", show_default=True)
@click.option("--max-tokens", type=int)
@click.option("--seed-prompt", required=True, help="The instruction to begin with.")
@click.option("--calls", type=int, required=True, help="Completions of the adapted model.")
@click.option(
    "--out", type=click.Path(path_type=Path), required=True, help="The file for the instruction."
)
def main(
    provider: str,
    model: str | None,
    second: str,
    out: Path,
    calls: int,
    seed_prompt: str,
    **task: Any,
) -> None:
    """Find an instruction, write it into OUT, and print what was done as JSON."""
    data = load_task(task["name"], task["data"])
    limit, matcher = task["max_tokens"] or data.max_tokens, task["correct"] or data.correct
    reward = parse_reward(
        task["spec"],
        max_tokens=limit,
        correct=matcher,
        thinking=task["thinking"],
        count=task["count"],
        labels=Labels.found_in(data.train),
    )
    started, loop = time.monotonic(), asyncio.new_event_loop()
    opened = connect(provider, model=model, max_tokens=limit, longest_prompt=2000)
    session = loop.run_until_complete(opened.__aenter__())
    try:
        asker = Asker(loop, session, reward)
        with LocalEngine(second, parallel=1, context=CONTEXT) as engine:
            found = importlib.import_module("gepa").optimize(
                seed_candidate={COMPONENT: seed_prompt},
                trainset=list(data.train),
                valset=list(data.validation),
                adapter=adapter(asker),
                reflection_lm=reflector(engine.base_url),
                max_metric_calls=calls,
                perfect_score=float(limit) if reward.scale == "log" else 1.0,
                raise_on_exception=False,
                seed=0,
            )
    finally:
        loop.run_until_complete(opened.__aexit__(None, None, None))
        loop.close()
    instruction = str(found.best_candidate[COMPONENT]).strip()
    out.write_text(instruction + "\n", encoding="utf-8")
    told: dict[str, Any] = {
        "instruction": instruction,
        "candidates": [each[COMPONENT] for each in found.candidates],
    }
    told |= {
        "validation": list(found.val_aggregate_scores),
        "calls": asker.calls,
        "metric_calls": found.total_metric_calls,
    }
    click.echo(
        json.dumps(told | {"seconds": round(time.monotonic() - started)}, ensure_ascii=False)
    )


if __name__ == "__main__":
    main()
