"""``blackbox_lb.fit``: one call from a file to a judged bias, and the run that it returns."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
from openai import OpenAI

import blackbox_lb as blb
from blackbox_lb.cli import main
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.diagnosis.diagnose import Effect, Facts, diagnose
from blackbox_lb.estimate.diagnosis.headroom import Rarity
from blackbox_lb.jobs.evaluation.document import Answer
from blackbox_lb.jobs.runs.answers import AnswerPair, telling
from blackbox_lb.jobs.runs.conclusion import reason
from tests.support.commands import asking, options
from tests.support.commands import blb as command
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well
from tests.support.questions import write_questions

MODEL = ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)
COMMAND_LINE_ONLY = {"engine", "workers", "as_json", "yes", "verbose", "dry_run", "help_all"}
"""Options that have no parameter: those of Ray, of the printed form and of questions."""
Fit = Callable[..., blb.Run]


def brevity(example: blb.Example, completion: blb.Completion) -> float:
    """Less for each token."""
    return -0.3 * completion.n_tokens


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 rows of prompts."""
    return write_questions(tmp_path_factory.mktemp("data") / "rows.jsonl", 60)


def small(server: ExactServer, folder: Path) -> dict[str, Any]:
    """Arguments of a small fit against the exact model."""
    return {
        "reward": brevity,
        "provider": "llamacpp",
        "base_url": server.base_url,
        "max_tokens": 8,
        "seed": 1,
        "samples_per_prompt": 8,
        "validation_samples": 2,
        "test_samples": 2,
        "out": folder,
        "quiet": True,
    }


@pytest.fixture
def fit(server: ExactServer, data: Path, tmp_path: Path) -> Fit:
    """A small fit in a folder of its own."""

    def run(source: Any = data, **more: Any) -> blb.Run:
        return blb.fit(source, **{**small(server, tmp_path / "run"), **more})

    return run


@pytest.fixture(scope="module")
def fitted(server: ExactServer, data: Path, tmp_path_factory: pytest.TempPathFactory) -> blb.Run:
    """A small fit that several tests look at."""
    return blb.fit(data, **small(server, tmp_path_factory.mktemp("fitted") / "run"))


def test_one_call_learns_from_a_function(fitted: blb.Run, server: ExactServer) -> None:
    """The run has a verdict, its files, pairs of answers with rewards, and a short text."""
    run = fitted
    assert run.status == "HELPS"
    assert run.folder.name == "run"
    assert blb.Bias.load(run.folder / "bias.json") == run.bias
    assert run.bias.reward.endswith(":brevity")
    assert len(run.pairs) == len(run.task.test) * (2 + 1)
    for pair in run.pairs:
        assert pair.base.reward == pytest.approx(-0.3 * max(pair.base.tokens, 0))
    result = json.loads((run.folder / "result.json").read_text())
    assert result["status"] == run.bias.status
    assert isinstance(run.apply(OpenAI(api_key="k", base_url=server.base_url)), OpenAI)


def frame_of(rows: list[dict[str, Any]]) -> Any:
    """A DataFrame, with a column of no value."""
    return pytest.importorskip("pandas").DataFrame(rows).assign(note=float("nan"))


@pytest.mark.parametrize("form", [iter, frame_of])
def test_rows_of_a_program_are_rows_of_a_file(
    fit: Fit, fitted: blb.Run, data: Path, form: Callable[[Any], Any]
) -> None:
    """An iterator of dicts and a DataFrame teach what the same rows of a file do."""
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    run = fit(form(rows), samples_per_prompt=2)
    assert run.task.name == "data"
    assert {example.id for example in run.task.test} == {row.id for row in fitted.task.test}


WRONG: list[tuple[list[Any], dict[str, Any], tuple[str, ...]]] = [
    (["x"], {}, ("fit()", "``reward``")),
    (["x", "accuracy"], {}, ("fit()", 'fit(rows, reward="accuracy")')),
    (["x"], {"data": "y", "reward": "length"}, ("fit()", "``data`` twice")),
    ([], {"sample_per_prompt": 4}, ("fit()", "``sample_per_prompt``", "samples_per_prompt?")),
    ([3], {"reward": "length"}, ("``data`` is a int", "list of rows")),
    ([["a"]], {"reward": "length"}, ("data, row 1", "a str", "dict")),
    ([[{"promt": "a"}]], {"reward": "length"}, ("data, row 1", "promt")),
    ([[]], {"reward": "length"}, ("data has no rows",)),
    ([], {"reward": "length", "max_tokens": "16"}, ("``max_tokens='16'``", "whole number")),
    ([], {"reward": "length", "quiet": "no"}, ("``quiet='no'``", "True or False")),
    ([], {"reward": "length", "tau": "1"}, ("``tau='1'``", "a list")),
    ([], {"reward": "length", "out": 3}, ("``out=3``", "a path")),
    ([[{"prompt": "a"}]], {"reward": "corect-and-short"}, ("correct-and-short",)),
    ([[{"prompt": "a"}]], {"reward": 3}, ("reward",)),
    ([[{"prompt": "a"}]], {"reward": lambda example: 1.0}, ("two arguments",)),
]
"""Arguments, those with a name, and what the error names."""


@pytest.mark.parametrize(("arguments", "named", "facts"), WRONG)
def test_a_wrong_call_is_refused_in_the_words_of_fit(
    arguments: list[Any], named: dict[str, Any], facts: tuple[str, ...]
) -> None:
    """What is wrong is named with its parameter, before anything is read or asked for."""
    with raises_naming(blb.InputError, *facts):
        blb.fit(*arguments, **named)


def without_validation(*answers: str) -> blb.Task:
    """A task of one's own with nothing to choose on."""
    examples = tuple(
        blb.Example(str(row), blb.Prompt.user(f"question {row}"), (answers[row % len(answers)],))
        for row in range(40)
    )
    return blb.Task("mine", examples[:20], (), examples[20:])


RIGHT = {"reward": "accuracy", "source": without_validation("a", "b")}
BEGUN = {"reward": "accuracy", "source": without_validation("begins", "other")}


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"source": without_validation("")}, "validation"),
        (RIGHT | {"deploy": ["temperature=1"], "learn_from": "answers"}, "validation"),
        (RIGHT | {"depends_on": ["words"]}, "validation"),
        (BEGUN | {"decide": "begins-with:a"}, "validation"),
        ({"learn_from": "answers", "reward": "length"}, "learn_from"),
        ({"deploy": ["warm"]}, "warm"),
        ({"max_cost": 1.0}, "price"),
        ({"price": "dear"}, "dear"),
    ],
)
def test_wrong_values_are_refused_before_a_completion(
    fit: Fit, server: ExactServer, wrong: dict[str, Any], named: str
) -> None:
    """Each names what is wrong."""
    asked = len(server.completions)
    with pytest.raises(blb.InputError, match=named):
        fit(**wrong)
    assert len(server.completions) == asked


def test_a_value_of_another_type_is_an_input_error() -> None:
    """No TypeError of the inside reaches a program."""
    calls: list[Callable[[], object]] = [
        lambda: blb.Bias.load(3),  # type: ignore[arg-type]
        lambda: blb.load_profile(3),  # type: ignore[arg-type]
        lambda: blb.load_task([{"prompt": "a"}]),  # type: ignore[arg-type]
        lambda: blb.parse_reward("length", max_tokens="3"),  # type: ignore[arg-type]
    ]
    for call in calls:
        with raises_naming(blb.InputError, "give"):
            call()


def test_each_parameter_has_its_help(fitted: blb.Run) -> None:
    """``help(fit)`` has a paragraph for each field of the plan, without options' names and without
    pydantic's notes, the data and what most people need first.
    """
    names = list(inspect.signature(blb.fit).parameters)
    assert set(names) == set(blb.Plan.model_fields)
    assert names[0] == "data"
    assert names.index("reward") < names.index("max_cost") < names.index("correct")
    for function in (blb.fit, blb.fit_async):
        assert function.__doc__ is not None
        described = [line.strip() for line in function.__doc__.splitlines()]
        assert [name for name in names if not any(f"{name}: " in line for line in described)] == []
        assert "--" not in function.__doc__.replace("--help-all", "")
    assert "Annotated" not in str(inspect.signature(blb.fit))


def test_values_print_in_a_line(fitted: blb.Run) -> None:
    """A cell of a notebook shows a line of each, and the dot offers our names alone."""
    for value in (fitted, fitted.bias, fitted.task, fitted.result):
        assert len(repr(value)) < 200
    assert {"entries", "save", "verdict"} <= set(dir(fitted.bias))
    assert not [name for name in dir(fitted.bias) if name.startswith(("_", "model_"))]


def test_a_store_elsewhere_holds_completions_alone(
    fit: Fit, server: ExactServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the run stands beside its results, whose folder has the data's name. A
    collection into a store makes no folder, and has its record beside the store.
    """
    monkeypatch.chdir(tmp_path)
    stores = tmp_path / "stores"
    stores.mkdir()
    where = asking(server, data=data, store=stores / "only.db")
    ended_well(
        command("collect", *where, *options(reward="tokens", max_tokens=4, samples_per_prompt=1))
    )
    assert not (tmp_path / "runs").exists()
    (stores / "run.json").unlink()
    run = fit(out=None, store=stores / "shared.db")
    files = {path.name for path in run.folder.iterdir()}
    assert {"bias.json", "result.json", "run.json"} <= files
    assert "rollouts.db" not in files
    assert not (stores / "run.json").exists()


def test_the_same_call_asks_for_nothing(fitted: blb.Run, server: ExactServer, data: Path) -> None:
    """A second call reads the store: inside a running loop, as in a notebook, whose loop is busy
    with the cell, and asynchronously.
    """
    asked = len(server.completions)
    arguments = small(server, fitted.folder)

    async def cell() -> blb.Run:
        return blb.fit(data, **arguments)

    for again in (asyncio.run(cell()), asyncio.run(blb.fit_async(data, **arguments))):
        assert again.bias.logit_bias == fitted.bias.logit_bias
        assert again.pairs == fitted.pairs
    assert len(server.completions) == asked


def test_a_named_reward_and_a_loaded_task(fit: Fit, data: Path) -> None:
    """``data`` may be a Task, and the reward one of the list. The progress of a stage begins at 0
    and ends at its total where nothing was stored.
    """
    steps: list[blb.Progress] = []
    run = fit(blb.load_task(data=data), reward="length", on_progress=steps.append)
    assert run.reward.label == "T/len"
    assert run.status == "HELPS"
    training = [step for step in steps if step.stage.startswith("training")]
    assert training[0].done == 0
    assert max(step.done for step in training) == max(step.total for step in training)


def test_the_frame_has_a_row_for_each_pair(
    fitted: blb.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rewards and texts stand beside the prompt; without pandas the error names it."""
    frame = fitted.to_frame()
    assert len(frame) == len(fitted.pairs)
    assert frame["biased_reward"].mean() > frame["base_reward"].mean()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with raises_naming(InputError, "Run.to_frame()", "pandas"):
        fitted.to_frame()


def test_the_summary_is_short_and_whole(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 12 lines of 80 columns, but for paths; a notebook shows it, escaped, with answers. The
    bias ends answers that the limit cuts, and the summary says so.
    """
    monkeypatch.chdir(tmp_path)
    run = fit(out="short")
    lines = str(run).splitlines()
    assert len(lines) <= 12
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith("HELPS")
    names = [line.split()[0] for line in lines if not line.startswith(" ") and line]
    assert names[1:] == ["but", "spent", "saved", "next"]
    page = run._repr_html_()
    assert page.count("<tr>") == 1 + len(run.examples())
    assert "&gt;" in page


def test_a_reward_that_is_hardly_ever_earned_is_the_reason() -> None:
    """One hit in 45 completions, of what is to be removed or to be earned: the counts come first of
    all, but not beside a proven gain. Six hits, or a tenth of few completions, are no reason.
    """
    for hit, side in ((-1.0, "remove"), (1.0, "earns")):
        rarity = Rarity.of([0.0] * 44 + [hit])
        facts = Facts("projection", effective_sample=45.0, completions=45, rarity=rarity)
        why = reason(diagnose(facts))
        assert "1 of 45 completions" in why
        assert side in why
        gain = Effect(0.5, 0.1, 0.9, prompts=40, completions=40)
        helped = diagnose(replace(facts, effect=gain))
        assert not [row for row in helped if row.code == "reward" and row.word == "FAIL"]
    assert Rarity.of([0.0] * 94 + [1.0] * 6) is Rarity.of([0.0] * 8 + [1.0] * 2) is None


def pair(number: int, base: float, biased: float, text: str = "x") -> AnswerPair:
    """A greedy pair with these rewards."""
    facts: dict[str, Any] = {"policy": "base", "tokens": 1, "finish_reason": "stop"}
    answers = [
        Answer(text=said, reward=reward, correct=None, **facts)
        for said, reward in (("x", base), (text, biased))
    ]
    example = blb.Example(str(number), blb.Prompt.user(f"prompt {number}"))
    return AnswerPair("greedy", example, *answers)


def test_the_examples_show_what_the_bias_did() -> None:
    """Mended and broken prompts go before changed ones, and those before prompts that stayed."""
    same, changed, broken = pair(0, 0, 0), pair(1, 0, 0, "y"), pair(2, 1, 0, "y")
    mended, mended_too = pair(3, 0, 1, "y"), pair(4, 0, 1, "y")
    shown = telling([same, changed, broken, mended, mended_too], 5)
    assert [shown_pair.example.id for shown_pair in shown] == ["3", "4", "2", "1", "0"]
    best = telling([same, broken, mended], 2)
    assert [shown_pair.status for shown_pair in best] == ["mended", "broken"]


def test_the_defaults_are_those_of_the_command() -> None:
    """Every option of ``blb fit`` is a parameter of the same name and default, and the other way
    round.
    """
    command = main.get_command(click.Context(main), "fit")
    assert command is not None
    parameters = inspect.signature(blb.fit).parameters
    context = click.Context(command)
    options = {param.name: param for param in command.params if isinstance(param, click.Option)}
    missing = options.keys() - parameters.keys() - COMMAND_LINE_ONLY - {"help"}
    assert not missing
    assert parameters.keys() - options.keys() == {"on_progress"}
    for name in options.keys() & parameters.keys() - {"reward", "quiet"}:
        default = options[name].get_default(context)
        ours = parameters[name].default
        if default is None or str(default).startswith("Sentinel"):
            assert ours in (None, (), False), name
        else:
            assert ours == default, name


@pytest.mark.slow
def test_a_users_file_has_types(tmp_path: Path) -> None:
    """``mypy --strict`` without any plugin knows the parameters and the results of a fit: each
    error that the file expects is one, and there is no other.
    """
    settings = tmp_path / "mypy.ini"
    settings.write_text("[mypy]\nstrict = True\n")
    user_file = Path(__file__).with_name("typing_run.py")
    words = ("--config-file", settings, "--cache-dir", tmp_path, user_file)
    line = [sys.executable, "-m", "mypy", *map(str, words)]
    checked = subprocess.run(line, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
