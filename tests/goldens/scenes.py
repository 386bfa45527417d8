"""The scenes: small fits, checks and evaluations by the command line, each with the model that it
asks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from openai import OpenAI

import blackbox_lb
from tests.goldens.facts import Facts, of_bias, of_evaluation, of_output, of_requests, of_result
from tests.support.commands import blb
from tests.support.exact import ExactModel, ExactServer

Rows: TypeAlias = list[dict[str, Any]]

SAID = np.isin(np.arange(14), (1, 2))
"""Tokens 1 and 2, " b" and " c", are the labels."""
TALKER = ExactModel(12, 6, end=True, prompts=4, sharpness=0.7)
DECIDER = ExactModel(14, 2, seed=3, prompts=12, unigram=np.where(SAID, -3.0, 0.0), end=True)
DRAWER = ExactModel(14, 3, seed=3, prompts=12, unigram=np.where(SAID, 1.0, 0.0), end=True)
RANKER = ExactModel(
    14, 1, seed=3, prompts=2000, sharpness=1.5, unigram=np.where(SAID, -1.0, 0.0), end=True
)
COLOURS = ("red", "blue", "green", "yellow", "black")
TOOL = {
    "type": "function",
    "function": {"name": "find", "parameters": {"type": "object", "properties": {}}},
}
SPLITS = (("train", 24), ("validation", 12), ("test", 16))
MANY = (("train", 60), ("validation", 60), ("test", 60))
MOST = (("train", 100), ("validation", 100), ("test", 60))


def plain(row: Callable[[int, str], dict[str, Any]], splits: Sequence[tuple[str, int]]) -> Rows:
    """Rows of all splits. No prompt may be the beginning of another: the model's server knows a
    prompt of token ids by its longest beginning that it was asked to tokenize.
    """
    return [
        {**row(number, split), "split": split} for split, count in splits for number in range(count)
    ]


def talk(number: int, split: str) -> dict[str, Any]:
    """A question with a free answer."""
    return {"prompt": f"{split} question {number:02d}", "answer": "b"}


def coloured(number: int, split: str) -> dict[str, Any]:
    """What is red or green is b, all else c; the prompt says it."""
    colour = COLOURS[number % 5]
    label = "c"
    if colour in ("red", "green"):
        label = "b"
    return {
        "prompt": f"{split} thing {number:02d}: it is {colour}",
        "colour": colour,
        "answer": label,
    }


def ranked(number: int, split: str) -> dict[str, Any]:
    """A label that follows the model's own margin, and a coin."""
    prompt = f"{split} {number:02d}"
    logprobs = RANKER.logprobs([], RANKER.prompt_of(prompt))
    coin = np.random.default_rng([number, len(split)]).normal()
    answer = "c"
    if logprobs[1] - logprobs[2] + coin > 0:
        answer = "b"
    return {"prompt": prompt, "answer": answer}


def opening(number: int, split: str) -> dict[str, Any]:
    """A prompt that wants the completion to begin with b, or not."""
    row = ranked(number, split)
    want = "other"
    if row["answer"] == "b":
        want = "begins"
    return {"prompt": row["prompt"], "want": want}


def calling(number: int, split: str) -> dict[str, Any]:
    """A prompt with a tool, that wants a call or an answer."""
    row = opening(number, split)
    want = "answer"
    if row["want"] == "begins":
        want = "call"
    return {"prompt": row["prompt"], "want": want, "tools": [TOOL]}


def sharing(number: int, split: str) -> dict[str, Any]:
    """A question with the shares that its city wants."""
    shares = {"b": 0.2, "c": 0.8}
    city = "north"
    if number % 2:
        shares = {"b": 9, "c": 1}
        city = "south"
    return {"prompt": f"{city} {split} {number:02d}", "answer": shares, "city": city}


def record(number: int, split: str) -> dict[str, Any]:
    """A label behind the beginning of a record."""
    row = coloured(number, split)
    messages = [
        {"role": "user", "content": row["prompt"]},
        {"role": "assistant", "content": " a"},
    ]
    return {"messages": messages, "answer": row["answer"]}


@dataclass(frozen=True)
class Scene:
    """Commands in one folder, asking one model.

    rows: of data.jsonl. commands: words of each, without the server's address. files: further
    files. call_token: begins a call of a tool.
    """

    model: ExactModel
    rows: Rows
    commands: tuple[tuple[str, ...], ...]
    files: dict[str, str] = field(default_factory=dict)
    call_token: int | None = None
    fails_after: int | None = None


def words(text: str) -> tuple[str, ...]:
    """The words of a command."""
    return tuple(text.split())


TALK = "--reward length --max-tokens 6 --top-logprobs 4 --samples-per-prompt 4"
JUDGED = "--validation-samples 2 --test-samples 2"
LABEL = "--reward accuracy --max-tokens 1"
ONE = f"{LABEL} --deploy greedy"
RIVALS_OF_LABELS = (
    "--labels-only --threshold --calibrate batch --calibrate contextual --few-shot 2"
    " --classifier tfidf --baseline-prompt Choose."
)


def fit(model: ExactModel, rows: Rows, options: str, **more: Any) -> Scene:
    """A scene of one fit."""
    return Scene(model, rows, (words(f"fit {options}"),), **more)


def fit_and(model: ExactModel, rows: Rows, options: str, *then: str, **more: Any) -> Scene:
    """A scene of a fit and the commands after it."""
    commands = (f"fit {options}", *then)
    return Scene(model, rows, tuple(words(command) for command in commands), **more)


SCENES: dict[str, Scene] = {
    "samples": fit(TALKER, plain(talk, SPLITS), f"{TALK} {JUDGED} --tau 0.5 --tau 2 --l2 1"),
    "samples-search": fit(TALKER, plain(talk, SPLITS), f"{TALK} {JUDGED} --deploy greedy"),
    "samples-by-prompt": fit(
        TALKER,
        plain(talk, SPLITS),
        f"{TALK} {JUDGED} --weights prompt --l2 5 --deploy temperature=.5",
    ),
    "samples-correct": fit(
        TALKER,
        plain(talk, SPLITS),
        f"--reward correct-and-short --correct contains --max-tokens 6 --top-logprobs 4"
        f" --samples-per-prompt 6 {JUDGED} --l2 cv",
    ),
    "ips": fit(TALKER, plain(talk, SPLITS), f"{TALK} {JUDGED} --estimator ips --alpha 0.3"),
    "few-entries": fit(
        TALKER, plain(talk, SPLITS), f"{TALK} {JUDGED} --l2 1 --entries 3 --integers"
    ),
    "phases": fit(TALKER, plain(talk, SPLITS), f"{TALK} {JUDGED} --l2 1 --phases first"),
    "spans": fit(
        TALKER,
        plain(talk, SPLITS),
        f"--reward avoid:list.txt --max-tokens 6 --top-logprobs 4 --samples-per-prompt 6 {JUDGED}"
        " --l2 1",
        files={"list.txt": "b\nd 2\n"},
    ),
    "answers": fit(DECIDER, plain(coloured, SPLITS), ONE),
    "answers-two-tokens": fit(
        DECIDER, plain(coloured, SPLITS), "--reward accuracy --max-tokens 2 --l2 1"
    ),
    "records": fit(DECIDER, plain(record, SPLITS), f"{ONE} --prefill"),
    "groups": fit(DECIDER, plain(coloured, MANY), f"{ONE} --depends-on groups:colour"),
    "words": fit(DECIDER, plain(coloured, MANY), f"{ONE} --depends-on words"),
    "unlabelled": fit(
        DECIDER,
        [
            {
                name: value
                for name, value in row.items()
                if name != "answer" or row["split"] == "test"
            }
            for row in plain(coloured, SPLITS)
        ],
        f"{ONE} --learn-from unlabelled --labels b,c",
    ),
    "point": fit_and(
        RANKER,
        plain(ranked, MOST),
        f"{ONE} --goal recall@precision=.5 --positive b",
        f"check runs/data/bias.json {LABEL} --json",
    ),
    "macro-f1": fit(RANKER, plain(ranked, MANY), f"{ONE} --goal macro-f1"),
    "opening": fit(RANKER, plain(opening, MANY), f"{ONE} --decide begins-with:b"),
    "calls": fit(RANKER, plain(calling, MANY), f"{ONE} --decide calls-tool", call_token=1),
    "shares": fit(
        DRAWER, plain(sharing, SPLITS), "--reward distribution --max-tokens 2 --test-samples 2"
    ),
    "first-tokens-only": fit(
        DRAWER,
        plain(sharing, SPLITS),
        "--reward distribution --max-tokens 2 --test-samples 2 --phases only-first",
    ),
    "resume": fit(
        TALKER, plain(talk, SPLITS), f"{TALK} {JUDGED} --l2 1 --deploy greedy", fails_after=25
    ),
    "stored": Scene(
        TALKER,
        plain(talk, SPLITS),
        (
            words(f"collect {TALK} --out pool"),
            words(f"fit {TALK} {JUDGED} --l2 1 --deploy greedy --rollouts pool --only-stored"),
            words("score pool --reward tokens --max-tokens 6 --json"),
        ),
    ),
    "check": Scene(DECIDER, plain(coloured, MANY), (words(f"check {LABEL} --json"),)),
    "check-opening": Scene(
        RANKER, plain(opening, MANY), (words(f"check {LABEL} --decide begins-with:b --json"),)
    ),
    "compile": fit_and(
        TALKER,
        plain(talk, SPLITS),
        f"{TALK} {JUDGED} --l2 1 --entries all --deploy greedy",
        "compile runs/data/learned.json --entries 2 --integers --out compiled.json --json",
    ),
    "rivals-of-samples": fit_and(
        TALKER,
        plain(talk, SPLITS),
        f"{TALK} {JUDGED} --l2 1",
        "eval runs/data/bias.json --reward length --max-tokens 6 --top-logprobs 4 --test-samples 2"
        " --baseline-prompt Short. --best-of 2 --baseline-temperature .5 --baseline-max-tokens 4"
        " --out judged",
    ),
    "rivals-of-labels": fit_and(
        DECIDER,
        plain(coloured, SPLITS),
        ONE,
        f"eval runs/data/bias.json {ONE} {RIVALS_OF_LABELS} --out judged",
    ),
    "rivals-of-shares": fit_and(
        DRAWER,
        plain(sharing, SPLITS),
        "--reward distribution --max-tokens 2 --test-samples 2",
        "eval runs/data/bias.json --reward distribution --max-tokens 2 --test-samples 2"
        " --asked-shares --drawn-label --out judged",
    ),
}
"""Name -> scene."""


def facts_of(name: str, folder: Path) -> Facts:
    """Play a scene in an empty folder, which is the working directory, and gather its facts."""
    scene = SCENES[name]
    data = folder / "data.jsonl"
    data.write_text("".join(f"{json.dumps(row)}\n" for row in scene.rows))
    for file, text in scene.files.items():
        (folder / file).write_text(text)
    facts: Facts = {}
    with ExactServer(scene.model, seed=1, call_token=scene.call_token) as server:
        if scene.fails_after is not None:
            facts |= _cut_off(scene, server)
        for command in scene.commands:
            printed = _run(command, server)
            if "--json" in command:
                title = command[0]
                facts |= {f"{title} {key}": value for key, value in of_output(printed).items()}
        facts |= of_requests(server.calls, repeats=scene.fails_after is None)
        if (folder / "runs/data/bias.json").exists():
            facts |= {
                f"client {key}": value
                for key, value in _requests_of_client(server, folder, scene).items()
            }
    readers = {
        "runs/data/bias.json": of_bias,
        "runs/data/result.json": of_result,
        "judged/evaluation.json": of_evaluation,
        "compiled.json": of_bias,
    }
    for file, read in readers.items():
        if (folder / file).exists():
            facts |= {
                f"{Path(file).stem} {key}": value for key, value in read(folder / file).items()
            }
    return facts


def _run(command: Iterable[str], server: ExactServer) -> str:
    words = list(command)
    if words[0] not in ("compile", "score"):
        words += ["--provider", "llamacpp", "--base-url", server.base_url]
    if words[0] != "compile":
        words += ["--data", "data.jsonl", "--quiet"]
    if words[0] not in ("compile", "score", "check"):
        words += ["--seed", "1"]
    result = blb(*words)
    if result.exit_code:
        raise AssertionError(f"blb {' '.join(words)}: {result.output[-2000:]}")
    return result.stdout


def _cut_off(scene: Scene, server: ExactServer) -> Facts:
    """The scene's first command against a server that stops answering; what it asked for counts
    once, because the same requests come again.
    """
    assert scene.fails_after is not None
    limit = scene.fails_after

    def stop(number: int, answer: Any) -> Any:
        if number >= limit:
            return (401, {"error": {"message": "the key is no longer valid"}})
        return answer

    server.faults = stop
    words = ["--provider", "llamacpp", "--base-url", server.base_url, "--data", "data.jsonl"]
    result = blb(*scene.commands[0], *words, "--quiet", "--seed", "1")
    server.faults = None
    return {"cut off with exit code": result.exit_code}


def _requests_of_client(server: ExactServer, folder: Path, scene: Scene) -> Facts:
    """What a client with the fitted bias sends for two questions."""
    before = len(server.calls)
    client = blackbox_lb.apply(
        OpenAI(base_url=server.base_url, api_key="none"), folder / "runs/data/bias.json"
    )
    for row in scene.rows[:2]:
        messages = row.get("messages") or [{"role": "user", "content": row["prompt"]}]
        client.chat.completions.create(model="exact", messages=messages, max_tokens=2, seed=1)
    return of_requests(server.calls[before:], repeats=True)
