"""Rows that a reward cannot score, and rewards that no policy can be judged by, are found before
the completions are paid for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import blackbox_lb
from blackbox_lb.errors import DataError
from tests.support.commands import asking, options, refused
from tests.support.errors import names, raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.proxy_upstream import bias

MODEL = ExactModel(8, 3, seed=1, end=True, prompts=32)
UNREADABLE = "\\frac{1}{"
PADDED = {"type": "object", "properties": {"city": {"type": "string"}, "station": 5}}
SPLITS = ("train", "train", "validation", "test")


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    """A file of these rows, of which every fourth is a test row."""
    lines = [
        json.dumps({"prompt": f"q {number}", "split": SPLITS[number % 4], **row})
        for number, row in enumerate(rows)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def with_a_bad_answer(path: Path, *lines: int) -> Path:
    """40 rows; the answer in ``lines``, from 1, is no mathematics."""
    return written(
        path,
        [{"answer": UNREADABLE if line in lines else str(line)} for line in range(1, 41)],
    )


@pytest.mark.needs("math_verify")
@pytest.mark.parametrize(
    ("command", "line"),
    [("fit", 1), ("fit", 3), ("fit", 4), ("collect", 3), ("eval", 4), ("check", 1), ("score", 4)],
)
def test_an_answer_that_math_cannot_read_is_found_first(
    server: ExactServer, tmp_path: Path, command: str, line: int
) -> None:
    """In whichever split it is, each command that scores names its line, and draws nothing."""
    data = with_a_bad_answer(tmp_path / "d.jsonl", line)
    arguments: list[object] = [command]
    if command == "score":
        (tmp_path / "rollouts.db").touch()
        arguments.append(tmp_path / "rollouts.db")
    else:
        arguments += asking(server)
    if command == "eval":
        bias().save(tmp_path / "bias.json")
        arguments += [tmp_path / "bias.json"]
    arguments += options(data=data, reward="accuracy", correct="math", max_tokens=3)
    before = len(server.completions)
    assert names(refused(*arguments), f"line {line}", "--correct")
    assert len(server.completions) == before


def small_fit(
    server: ExactServer, data: Path | blackbox_lb.Task, out: Path, **settings: Any
) -> None:
    """A fit from Python."""
    where: dict[str, Any] = {"provider": "llamacpp", "base_url": server.base_url, "out": out}
    blackbox_lb.fit(data, **where, max_tokens=3, quiet=True, **settings)


@pytest.mark.needs("math_verify")
def test_all_rows_are_counted_and_the_first_are_named(server: ExactServer, tmp_path: Path) -> None:
    """Python refuses them, too, also where they come as a task; likewise rows without an answer."""
    data = with_a_bad_answer(tmp_path / "d.jsonl", 1, 2, 3, 4, 9)
    before = len(server.completions)
    for source in (data, blackbox_lb.load_task(data=data)):
        with raises_naming(DataError, 5, "line 1", "``correct``"):
            small_fit(server, source, tmp_path, reward="accuracy", correct="math")
    bare = written(tmp_path / "bare.jsonl", [{} for _ in range(40)])
    task = blackbox_lb.load_task(data=bare, require_answers=False)
    with raises_naming(DataError, 40, "contains", "line 1"):
        small_fit(server, task, tmp_path, reward="contains")
    assert len(server.completions) == before


@pytest.mark.needs("jsonschema")
@pytest.mark.parametrize("parameters", [PADDED, {"type": "object", "$schema": 5}, {"type": "at"}])
def test_tools_that_are_no_schemas_are_found_first(
    server: ExactServer, tmp_path: Path, parameters: dict[str, Any]
) -> None:
    """The function and the row are named."""
    tool = {"type": "function", "function": {"name": "trains", "parameters": parameters}}
    rows: list[dict[str, Any]] = [{} for _ in range(40)]
    rows[7] = {"tools": [tool]}
    where = asking(server, data=written(tmp_path / "d.jsonl", rows), out=tmp_path / "run")
    before = len(server.completions)
    message = refused("collect", *where, *options(reward="arguments-valid", max_tokens=3))
    assert names(message, "'trains'", "line 8")
    assert len(server.completions) == before


@pytest.mark.parametrize(
    ("reward", "facts"),
    [
        ("float('-inf')", ("minus infinity", "--tau")),
        ("float('-inf') if completion.n_tokens > 1 else 1.0", ()),
        ("1e200", ("1e+200",)),
        ("1 / 0", ()),
        ("'a text'", ()),
    ],
    ids=["infinite", "some infinite", "huge", "raises", "text"],
)
def test_a_reward_that_fails_is_seen_at_the_first_prompts(
    server: ExactServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reward: str,
    facts: tuple[str, ...],
) -> None:
    """A user's function is tried on three prompts before the completions of the others are drawn;
    what came is kept. A reward that must never be imitated is a finite one, far below the others.
    """
    module = f"own_{tmp_path.name}"
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{module}.py"
    file.write_text(f"def own(example, completion):\n    return {reward}\n")
    data = written(tmp_path / "d.jsonl", [{} for _ in range(60)])
    where = asking(server, data=data, out=tmp_path / "run", reward=f"{module}:own")
    size = options(max_tokens=3, samples_per_prompt=2, concurrency=1)
    before = len(server.completions)
    assert names(refused("fit", *where, *size, "--quiet"), *facts)
    drawn = len(server.completions) - before
    assert 0 < drawn <= 2 * 3
    sys.modules.pop(module)
    with blackbox_lb.RolloutStore(tmp_path / "run" / "rollouts.db", read_only=True) as store:
        assert store.size().completions >= drawn
