"""Commands with a reward that has places: fit, eval, score and check, on an exact model."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from tests.support.commands import blb, refusal
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well
from tests.support.questions import questions, write_rows

SIZES = ("--samples-per-prompt", 10, "--validation-samples", 3, "--test-samples", 4)
Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Run a command in a folder with data, a list of words and a function, against an exact model
    whose tokens are single letters.
    """
    monkeypatch.chdir(tmp_path)
    write_rows(Path("data.jsonl"), questions(10, 4, 6))
    Path("list.txt").write_text("a\nh 2\n")
    Path("own_places.py").write_text(
        "def f(example, completion):\n"
        "    spans = [(n, n + 1, -1.0) for n, letter in enumerate(completion.text) if letter == 'a']\n"
        "    return -float(len(spans)), spans\n"
        "\n"
        "class Rule:\n"
        "    def token_costs(self, texts, typical):\n"
        "        return [-1.0 * (text.strip() in tuple('abcd')) for text in texts]\n"
        "\n"
        "def ruled(example, completion):\n"
        "    return f(example, completion)\n"
        "\n"
        "ruled.rule = Rule()\n"
    )
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as server:

        def invoke(command: str, reward: str, *more: object, code: int = 0) -> Result:
            options = ["--data", "data.jsonl", "--max-tokens", 8, "--reward", reward, *more]
            if command != "score":
                options += ["--provider", "llamacpp", "--base-url", server.base_url]
                options += ["--top-logprobs", 5, "--out", "run", "--seed", 1]
            result = blb(command, *options)
            assert result.exit_code == code, result.output
            return result

        yield invoke


@pytest.mark.parametrize(("entries", "banned"), [("all", 4), ("few", 2)])
def test_a_rule_of_an_own_function_is_moved_and_banned(
    run: Run, monkeypatch: pytest.MonkeyPatch, entries: str, banned: int
) -> None:
    """The tokens that it names are candidates of the search: those that are used most are moved,
    and where a bias may have any number of entries, all of them are banned.
    """
    monkeypatch.setattr("blackbox_lb.jobs.fitting.choosing.proposing.MOST_RULED", 2)
    run("fit", "own_places:ruled", *SIZES, "--entries", entries)
    result = json.loads(Path("run/result.json").read_text())
    origins = [row["origin"] for row in result["validation"]["tried"]]
    assert "the 2 tokens of own_places:ruled by 2 nats" in origins
    assert f"a ban of the {banned} tokens of own_places:ruled" in origins


def test_an_evaluation_and_its_report_show_places(run: Run) -> None:
    """``eval`` keeps the places of the shown completions, ``score`` writes them, and the report
    marks them.
    """
    run("fit", "avoid:list.txt", *SIZES, "--l2", 1)
    run("eval", "avoid:list.txt", "run/bias.json", "--test-samples", 3, "--go-on")
    evaluation = json.loads(Path("run/evaluation.json").read_text())
    shown = [row for example in evaluation["examples"] for row in example["completions"]]
    assert any(row["spans"] for row in shown)
    for row in shown:
        assert sum(span["amount"] for span in row["spans"]) == pytest.approx(row["reward"])
        passages = {row["text"][span["start"] : span["end"]] for span in row["spans"]}
        assert passages <= {"a", "h"}
    ended_well(blb("report", "run"))
    assert 'class="place"' in Path("run/report.html").read_text()
    run("score", "own_places:f", "run", "--per-completion", "lines.jsonl")
    lines = [json.loads(line) for line in Path("lines.jsonl").read_text().splitlines()]
    assert all(sum(span["amount"] for span in line["spans"]) == line["nats"] for line in lines)


@pytest.mark.parametrize(
    ("command", "reward", "fact"),
    [
        ("fit", "avoid:nowhere.txt", "nowhere.txt"),
        ("score", "avoid:nowhere.txt", "nowhere.txt"),
        ("fit", "script:Latim", "Did you mean Latin?"),
        ("fit", "avoid:broken.txt", "line 1"),
        ("fit", "avoid:heavy.txt", "'much'"),
        ("score", "marks:nowhere.jsonl", "nowhere.jsonl"),
        ("fit", "marks:marked.jsonl", "marks:marked.jsonl"),
    ],
)
def test_what_cannot_work_ends_with_2_before_anything_is_asked(
    run: Run, command: str, reward: str, fact: str
) -> None:
    """A missing file, an unknown script, a bad pattern, a weight that is no number, and marks:
    nobody has read what a fit would draw.
    """
    Path("marked.jsonl").write_text(json.dumps({"completion": "a", "marks": []}))
    Path("broken.txt").write_text("/(/\n")
    Path("heavy.txt").write_text("/a/ much\n")
    more: list[Any] = ["run"] if command == "score" else []
    Path("run").mkdir()
    Path("run/rollouts.db").touch()
    assert fact in refusal(run(command, reward, *more, code=2))
