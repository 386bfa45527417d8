"""Rewards of installed packages: found by their entry point, imported when they are named, checked,
and no way to run code from a settings file that is merely found.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.tasks.rewards.registry import find, meanings_of_forms
from blackbox_lb.types import Example, Prompt, Span
from tests.support.commands import blb
from tests.support.errors import raises_naming
from tests.support.installed import MODULE, documented, put_package
from tests.support.questions import write_rows
from tests.support.stored import SETTINGS
from tests.support.stored import text_completion as completion

EXAMPLE = Example("q1", Prompt.user("Hello?"))
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package of one module on the path, as pip does, with names of rewards in it."""

    def put(code: str, package: str = "polite-rewards", **names: str) -> None:
        monkeypatch.syspath_prepend(put_package(tmp_path, code, package, names))

    yield put
    sys.modules.pop(MODULE, None)


def test_the_documented_package_scores_by_the_command_line(
    install: Install, tmp_path: Path
) -> None:
    """With its argument and without one, and its spans are those of the reward."""
    install(documented(), polite=f"{MODULE}:Polite")
    prompts = {"train": "Why?", "validation": "Who?", "test": "Hello?"}
    rows = [{"prompt": prompt, "split": split} for split, prompt in prompts.items()]
    write_rows(tmp_path / "rows.jsonl", rows)
    known = {"model": "m", "tokenizer": "t", "endpoint": "chat", "bias": []}
    with RolloutStore(tmp_path / "rollouts.db") as store:
        for sample, text in enumerate(["Please, come in, please.", "Go away, thanks."]):
            store.add(SETTINGS | known, Prompt.user("Hello?"), sample, completion(text, 4))
    assert MODULE not in sys.modules
    means = {}
    for spec in ("polite", "polite:thanks"):
        lines = tmp_path / "lines.jsonl"
        words = ("--data", tmp_path / "rows.jsonl", "--reward", spec, "--json")
        result = blb("score", tmp_path / "rollouts.db", *words, "--per-completion", lines)
        assert result.exit_code == 0, result.output
        answer = json.loads(result.stdout)
        assert answer["reward"] == spec
        means[spec] = answer["groups"][0]["reward"]["mean"]
        first = json.loads(lines.read_text().splitlines()[0])
        if spec == "polite":
            assert [span["text"] for span in first["spans"]] == ["Please", "please"]
    assert means == {"polite": 1.0, "polite:thanks": 0.5}
    assert "polite[:ARGUMENT]" in meanings_of_forms()


def test_a_package_cannot_take_a_name_of_ours(install: Install) -> None:
    """The form of this package is meant, and the other one never imported."""
    code = "raise SystemExit('imported')"
    install(code, accuracy=f"{MODULE}:f", avoid=f"{MODULE}:f", judge=f"{MODULE}:f")
    assert parse_reward("accuracy", max_tokens=4).label == "accuracy"
    for spec in ("avoid", "judge"):
        assert find(spec) is None
    assert MODULE not in sys.modules
    assert "accuracy[:ARGUMENT]" not in meanings_of_forms()


@pytest.mark.parametrize(
    ("code", "facts"),
    [
        ("raise SystemExit(1)", ("SystemExit",)),
        ("def Polite(argument): raise ValueError('no such word')", ("ValueError", "no such word")),
        ("def Polite(argument): return 3", ("3", "``needs_answer``")),
        ("class Polite:\n    def __init__(self, a): pass\n    name = 'x'", ("score(example",)),
        (
            "class Polite:\n    def __init__(self, a): pass\n    name = 'x'\n"
            "    needs_answer = 'no'\n    def score(self, e, c): return 0",
            ("``needs_answer``",),
        ),
        (
            "class Polite:\n    def __init__(self, a): pass\n    name = 'x'\n"
            "    needs_answer = False\n    def score(self): return 0",
            ("(example, completion)",),
        ),
    ],
)
def test_what_is_no_reward_is_explained(
    install: Install, code: str, facts: tuple[str, ...]
) -> None:
    """The message names the reward, its package and the fault."""
    install(code, polite=f"{MODULE}:Polite")
    with raises_naming(InputError, "polite:a", *facts):
        parse_reward("polite:a", max_tokens=4)


def test_two_packages_of_one_name_are_refused(install: Install) -> None:
    """Which of them is meant, nobody knows."""
    install("", "first-rewards", polite=f"{MODULE}:Polite")
    install("", "second-rewards", polite=f"{MODULE}:Polite")
    with raises_naming(InputError, "polite", "first-rewards", "second-rewards"):
        parse_reward("polite", max_tokens=4)


def test_its_answers_are_checked(install: Install) -> None:
    """As those of a function of the user's own are."""
    install(
        "class Polite:\n    name = 'politeness'\n    needs_answer = True\n"
        "    def __init__(self, value): self.value = float(value)\n"
        "    def score(self, example, completion): return self.value, [(0, 1, 2.0)]\n",
        polite=f"{MODULE}:Polite",
    )
    reward = parse_reward("polite:2", max_tokens=4)
    assert (reward.name, reward.label, reward.needs_answer) == ("polite:2", "politeness", True)
    assert reward.score(EXAMPLE, completion("Hi", 1)) == (2.0, (Span(0, 1, 2.0),))
    for value, fact in (("nan", "nan"), ("3", "add up")):
        with raises_naming(InputError, f"polite:{value}", "'q1'", fact):
            parse_reward(f"polite:{value}", max_tokens=4).score(EXAMPLE, completion("Hi", 1))


def test_a_found_settings_file_names_no_installed_reward(
    install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is code like a function of the user's own: refused there before it is imported, and loaded
    where the file is named.
    """
    install(documented(), polite=f"{MODULE}:Polite")
    (tmp_path / "blb.toml").write_text('[collect]\nreward = "polite"\n')
    (tmp_path / "d.jsonl").write_text("".join(f'{{"prompt": "p{n}"}}\n' for n in range(30)))
    monkeypatch.chdir(tmp_path)
    words = ("collect", "--provider", "llamacpp", "--base-url", "http://127.0.0.1:9/v1")
    refused = blb(*words, "--data", "d.jsonl", "--out", "run")
    assert refused.exit_code == 2
    assert "reward = 'polite'" in refused.stderr
    assert "blb --config" in refused.stderr
    assert MODULE not in sys.modules
    blb("--config", "blb.toml", *words, "--data", "d.jsonl", "--out", "run")
    assert MODULE in sys.modules
