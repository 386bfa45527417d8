"""``python -m bench.gallery.sending NAME=FILE``: what a learned bias takes where it is sent by
``apply``, what phrases that are kept out take, and what both do.

Test prompts of the data are asked one after the other through each client in turn, so that other
work on the machine touches all alike: the model itself, with the vector of each file, with the
phrases of the list, and with both. Told are seconds and tokens; it prints its table as JSON.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import openai

from bench.gallery.asking import model_options
from blackbox_lb import Bias, apply, connect, load_task

# The lines of a list as a bias file holds them.
from blackbox_lb.bias.phrases import PhraseList

__all__ = ["main"]

BASE = "base"
PHRASES = "phrases"


@dataclass(frozen=True, slots=True)
class Sent:
    """One answer: seconds until it was there; tokens delivered; tokens thrown away; requests."""

    seconds: float
    delivered: int
    discarded: int = 0
    requests: int = 1


def clients_of(
    client: openai.OpenAI, biases: Mapping[str, Bias], lines: tuple[str, ...]
) -> dict[str, openai.OpenAI]:
    """A client for each way to send."""
    clients = {BASE: client}
    for name, bias in biases.items():
        alone = bias.replacing(entries=(), phrases=lines, verdict=())
        both = bias.replacing(phrases=lines, verdict=())
        clients[name] = apply(client, bias.replacing(phrases=()))
        clients[PHRASES] = apply(client, alone)
        clients[f"{PHRASES} and {name}"] = apply(client, both)
    return clients


def asked(client: openai.OpenAI, body: Mapping[str, Any]) -> Sent:
    """Ask once."""
    begin = time.perf_counter()
    answer = client.chat.completions.create(**body)
    seconds = time.perf_counter() - begin
    assert answer.usage is not None
    spent = getattr(answer.usage, "x_phrases", None) or {}
    return Sent(
        seconds,
        answer.usage.completion_tokens,
        spent.get("discarded_tokens", 0),
        spent.get("requests", 1),
    )


def table(answers: Mapping[str, list[Sent]]) -> dict[str, Any]:
    """The table of all ways to send."""
    base = sum(sent.seconds for sent in answers[BASE]) / sum(
        sent.delivered for sent in answers[BASE]
    )
    rows = []
    for name, sents in answers.items():
        delivered = sum(sent.delivered for sent in sents)
        drawn = delivered + sum(sent.discarded for sent in sents)
        seconds = sum(sent.seconds for sent in sents) / delivered
        requests = np.mean([sent.requests for sent in sents])
        rows.append([name, f"{drawn / delivered:.3f}", f"{requests:.1f}", f"{seconds / base:.2f}"])
    count = len(answers[BASE])
    return {
        "title": f"What sending takes, {count} answers of each through `apply`, one at a time",
        "head": [
            "sent",
            "tokens drawn, a token delivered",
            "requests, an answer",
            "seconds a token, base 1",
        ],
        "rows": rows,
        "notes": [
            "All take turns at each prompt. A token is counted as drawn once it has been received."
        ],
    }


@click.command(help=__doc__)
@click.argument("biases", nargs=-1, required=True, metavar="NAME=FILE...")
@model_options
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--phrases", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--max-tokens", type=int, required=True)
@click.option("--temperature", type=float, default=0.7, show_default=True)
@click.option("--prompts", type=int, default=20, show_default=True)
def main(biases: tuple[str, ...], phrases: Path, **settings: Any) -> None:
    """Print the table as JSON."""
    files = {name: Bias.load(path) for name, _, path in (spec.partition("=") for spec in biases)}
    lines = PhraseList.load(str(phrases)).entries
    click.echo(json.dumps({"tables": [asyncio.run(_measured(files, lines, settings))]}))


async def _measured(
    biases: Mapping[str, Bias], lines: tuple[str, ...], settings: Mapping[str, Any]
) -> dict[str, Any]:
    task = load_task(data=settings["data"], require_answers=False)
    answers: dict[str, list[Sent]] = defaultdict(list)
    async with connect(
        settings["provider"],
        model=settings["model"],
        base_url=settings["base_url"],
        max_tokens=settings["max_tokens"],
        longest_prompt=task.longest_prompt,
        concurrency=1,
    ) as session:
        client = openai.OpenAI(base_url=session.base_url, api_key="none", timeout=600)
        named = {name: bias.replacing(model=session.model) for name, bias in biases.items()}
        clients = clients_of(client, named, lines)
        for number, example in enumerate(task.test[: settings["prompts"]]):
            messages = [
                {"role": message.role, "content": message.content}
                for message in example.prompt.messages
            ]
            body = {
                "model": session.model,
                "messages": messages,
                "max_tokens": settings["max_tokens"],
                "temperature": settings["temperature"],
                "seed": number,
            }
            for name, sender in clients.items():
                answers[name].append(await asyncio.to_thread(asked, sender, body))
    return table(answers)


if __name__ == "__main__":
    main()
