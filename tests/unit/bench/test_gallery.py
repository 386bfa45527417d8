"""The gallery: every command is one that ``blb`` takes, pages say who won in two screens, and its
rewards count what they say.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import math
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.gallery import __main__ as program
from bench.gallery.calls import Decided, at_false_calls, decided
from bench.gallery.data import FOLDER, MODEL
from bench.gallery.index import COLUMNS, counts, index, rows
from bench.gallery.page import page, what_came, write_page
from bench.gallery.pasting import pasted_tables
from bench.gallery.results import (
    Evaluation,
    Outcome,
    PageResults,
    Run,
    Table,
    evaluation_of,
    fit_of,
    headlines,
)
from bench.gallery.rewards import (
    DASHES,
    FAMILIES,
    PHRASES,
    record,
    slop,
    stripped_record,
    words_of,
)
from bench.gallery.texts import Evaluated, stored_texts
from bench.gallery.use import Place, Step, Use, options
from bench.gallery.uses import USES
from bench.gpu.jobs import LAST
from blackbox_lb import RolloutStore, Trials, load_task
from blackbox_lb.api.session import Session
from blackbox_lb.bias.operating import (
    DecisionCounts,
    OperatingCurve,
    OperatingPoint,
    PromptCounts,
)
from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.cli import main
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.jobs.evaluation.policies import Instructed, policies_at
from blackbox_lb.jobs.evaluation.results import answers_of, collect_answers
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.tasks import parse_reward
from blackbox_lb.tasks.rewards.forms.avoid import count_words
from blackbox_lb.types import Completion, Example, Prompt
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows

LINES = {"train": 40, "validation": 5, "test": 6}
OBJECT = '{"name": "Anna", "age": 30, "city": "Oslo"}'
SCREENS, WIDTH = 90, 120
"""Lines of a page, longer ones wrapped."""


def completion(text: str) -> Completion:
    """One with this text."""
    none = np.zeros(0)
    table = np.zeros((0, 0))
    return Completion(
        text,
        "stop",
        none.astype(np.int32),
        none.astype(np.float32),
        table.astype(np.int32),
        table.astype(np.float32),
    )


def place(folder: Path, *, small: bool = False) -> Place:
    """Where the embedded engine is asked, with tasks of a few rows."""
    data = folder / "data"
    data.mkdir(parents=True)
    for name in ("agnews", "rte", "sst2", "trec"):
        lines = (
            {"prompt": f"{split} {number}", "answer": "a", "split": split}
            for split in LINES
            for number in range(LINES[split])
        )
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (data / "calls.jsonl").touch()
    (data / "gsm8k").mkdir()
    for name in ("train", "test"):
        (data / "gsm8k" / f"{name}.jsonl").write_text(
            json.dumps({"question": "How many?", "answer": "It is #### 1,001"}) + "\n"
        )
    out = folder / "out"
    out.mkdir()
    return Place(("--provider", "local"), out, data, small)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("name", USES)
def test_every_command_is_taken(name: str, small: bool, tmp_path: Path) -> None:
    """Its options are parsed as ``blb`` parses them, its results have names of their own, and one
    of them is shown.
    """
    steps = USES[name].steps(place(tmp_path, small=small))
    # A command keeps the help option of its first context.
    above = click.Context(main, **main.context_settings)
    for step in steps:
        if step.program:
            for word in step.words:
                path = Path(word.partition("=")[2] or word)
                if path.suffix == ".db" or path.name == "bias.json":
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.touch()
            module = importlib.import_module(step.program[-1])
            module.main.make_context(step.name, list(step.words))
            continue
        command = main.get_command(above, step.words[0])
        assert command is not None
        for word in step.words:
            path = Path(word.partition("=")[2] or word)
            if path.name == "bias.json":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("{}")
        command.make_context(step.words[0], list(step.words[1:]), parent=above)
    assert len({step.name for step in steps}) == len(steps)
    assert any(step.title or step.program for step in steps)


@pytest.mark.parametrize(
    ("text", "strict", "stripped"),
    [
        (OBJECT, 1, 1),
        (f"```json\n{OBJECT}\n```", 0, 1),
        ("```json\n{}\n```", 0, 0),
        (f"Here it is: {OBJECT}", 0, 0),
        ("", 0, 0),
    ],
)
def test_a_record_is_parsed_as_a_client_would(text: str, strict: float, stripped: float) -> None:
    """Strictly, and by one that takes fences off."""
    example = Example("1", Prompt.user("p"), (OBJECT,))
    assert (record(example, completion(text)), stripped_record(example, completion(text))) == (
        strict,
        stripped,
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Whispers and a whispering shadow, nestling.", ["word"] * 4),
        ("Once upon a time there was a sense of loss.", ["phrase"] * 2),
        ("He left — she stayed -- both – no one - all --- gone", ["dash"] * 5),
        ("A well-known gentleman, lonely.\n- one\n  - two", []),
        ("golden—lush", ["word", "dash", "word"]),
    ],
)
def test_slop_is_found_in_all_its_forms(text: str, found: list[str]) -> None:
    """Forms of a word, phrases and dashes; neither hyphens nor the signs of a list."""
    assert [stock.kind for stock in slop(text)] == found


@settings(max_examples=100)
@given(
    st.lists(
        st.sampled_from([*FAMILIES, *PHRASES, "—", "--", " - ", "the", "scent of", "sun", "\n- "]),
        max_size=30,
    )
)
def test_the_list_counts_what_one_pattern_of_all_counts(words: list[str]) -> None:
    """The numbers of the page before the list, and of the page since."""
    parts = rf"\b(?:{'|'.join(FAMILIES.values())})\b|\b(?:{'|'.join(PHRASES)})\b|{DASHES}"
    text = " ".join(words)
    passages = [match.group() for match in re.finditer(parts, text, re.IGNORECASE)]
    assert [stock.text for stock in slop(text)] == passages
    assert count_words(text) == len(words_of(text))


def test_the_pasted_label_is_that_of_a_classifier(tmp_path: Path) -> None:
    """It learns from the training rows, whatever the model's records say."""
    pytest.importorskip("sklearn")
    lines = [
        {"prompt": f"a {word} {split} {number}", "answer": label, "split": split}
        for split, size in (("train", 20), ("validation", 2), ("test", 3))
        for number in range(size)
        for label, word in (("world", "treaty"), ("sports", "match"))
    ]
    data = tmp_path / "rows.jsonl"
    write_rows(data, lines)
    task = load_task(data=data)
    wrong = completion('{"label": "other", "reason": "It is so."}')

    async def tables(base_url: str) -> list[dict[str, Any]]:
        async with Session(load_profile("llamacpp"), base_url=base_url) as session:
            with RolloutStore(tmp_path / "store.db") as store:
                reward = parse_reward("length", max_tokens=4)
                trials = Trials(session, store, await session.tokenizer(), reward, Silent(), 5)
                policies = {"base": [[wrong] for _ in task.test]}
                return await pasted_tables(Evaluated(task, trials, policies, ()))

    with ExactServer(ExactModel(12, 6, end=True, prompts=3)) as server:
        (table,) = asyncio.run(tables(server.base_url))
    assert table["rows"] == [["base", "1.00", "0.00", "0.00", "1.00", "1.00", "0.00"]]


def test_completions_of_an_evaluation_are_read_back(tmp_path: Path) -> None:
    """Those that were drawn, for each policy, without a request; an evaluation that was not run is
    refused.
    """
    examples = [Example(str(number), Prompt.user(f"question {number}"), ()) for number in range(3)]
    brief = Instructed(rival="brief", instruction="Be brief.")
    policies = list(policies_at(SAMPLED, {"bias": RequestBias({1: -2.0})}, [brief]))

    async def read(base_url: str) -> int:
        async with Session(load_profile("llamacpp"), base_url=base_url) as session:
            with RolloutStore(tmp_path / "store.db") as store:
                reward = parse_reward("length", max_tokens=4)
                trials = Trials(session, store, await session.tokenizer(), reward, Silent(), 5)
                with pytest.raises(InputError):
                    await stored_texts(trials, SAMPLED, policies[0], examples, 2)
                judged = [(SAMPLED, policy) for policy in policies]
                tables = await collect_answers(trials, examples, judged, 2)
                before = len(server.requests)
                for pair, table in zip(judged, tables, strict=True):
                    first = answers_of(trials, examples, pair, table, None, NO_BIAS).first
                    texts = await stored_texts(trials, *pair, examples, 2)
                    assert [len(row) for row in texts] == [2, 2, 2]
                    assert [row[0].text for row in texts] == [
                        answer and answer.text for answer in first
                    ]
                return len(server.requests) - before

    with ExactServer(ExactModel(12, 6, end=True, prompts=3)) as server:
        assert asyncio.run(read(server.base_url)) == 0
    assert [policy.name for policy in policies] == ["base", "bias", "brief", "brief and bias"]


def policy(name: str, bias: str | None, mean: float, setting: str = "greedy") -> dict[str, Any]:
    """A policy in a document of ``blb eval``."""
    metrics = {
        "contains": {"mean": mean, "low": mean - 0.1, "high": mean + 0.1},
        "accuracy": {"mean": mean, "low": mean - 0.1, "high": mean + 0.1},
        "tokens": {"mean": 2.0, "low": 2.0, "high": 2.0},
    }
    return {"name": name, "bias": bias, "setting": setting, "prompts": 40, "metrics": metrics}


def comparison(
    base: str, verdict: str, other: str = "bias", metric: str = "contains"
) -> dict[str, Any]:
    """A comparison in a document of ``blb eval``."""
    return {
        "setting": "greedy",
        "metric": metric,
        "against": base,
        "policy": other,
        "verdict": verdict,
    }


INSTRUCTION = f'prompt + "{"Be careful " * 12}"'
DOCUMENT = {
    "model": "/models/qwen2.5-0.5b.Q4_1.gguf",
    "label": "contains",
    "policies": [
        policy("base", None, 0.2),
        policy("bias", "bias", 0.6),
        policy("labels only", None, 0.7),
        policy("words at -3", None, 0.3),
        policy("4 examples", None, 0.5),
        policy(INSTRUCTION, None, 0.4),
        policy(f"{INSTRUCTION} and bias", "bias", 0.65),
    ],
    "comparisons": [
        comparison("base", "HELPS"),
        comparison("labels only", "HURTS"),
        comparison("words at -3", "HELPS"),
        comparison("words at -3", "HURTS", metric="tokens"),
        comparison("4 examples", "NO EVIDENCE"),
        comparison(INSTRUCTION, "NO EVIDENCE"),
        comparison(INSTRUCTION, "HELPS", other=f"{INSTRUCTION} and bias"),
    ],
}
RUN = Run(date="2026-11-25", cores=2, minutes=7.4, small=True)


def results_of(*evaluations: Evaluation, use: str = "decisions", **parts: Any) -> PageResults:
    """The results of a page."""
    return PageResults(use=use, title="Decisions", run=RUN, evaluations=evaluations, **parts)


def test_a_page_says_who_won(tmp_path: Path) -> None:
    """Policies by reward, the losses first, a picture, commands without this machine's folders, and
    JSON that is read back.
    """
    pytest.importorskip("matplotlib")
    at = place(tmp_path)
    server = "http://127.0.0.1:8000/v1"
    words = options("eval", at.bias("bias"), data=at.out / "rte.jsonl", base_url=server)
    step = Step("eval", words, "Topics")
    hidden = Step("again", ("eval",), repeats=True)
    results = results_of(evaluation_of(step, DOCUMENT))
    write_page(results, USES["decisions"], [step, hidden], at, tmp_path / "pages")
    text = (tmp_path / "pages" / "decisions.md").read_text()
    rewards = re.findall(r"\| (0\.\d\d) \(", text)
    assert rewards == sorted(rewards, reverse=True)
    assert "| **bias** | 0.60 (0.50 to 0.70) | 2.0 |  |" in text
    assert "| labels only | 0.70 (0.60 to 0.80) | 2.0 | loses |" in text
    assert (
        f"$ blb eval bias=OUT/bias/bias.json --data OUT/rte.jsonl --base-url {server}\n# and 1 command"
        in text
    )
    assert str(tmp_path) not in text
    assert (tmp_path / "pages" / "decisions.svg").read_text().count("labels only")
    stored = (tmp_path / "pages" / "decisions.json").read_text()
    assert PageResults.model_validate_json(stored) == results
    (sentence,) = what_came(results)
    assert sentence.startswith("Greedy: Labels only (0.70) beats the learned bias (0.60). ")
    for part in (
        "The learned bias (0.60) beats the model without a bias (0.20)",
        "It beats words at -3 (0.30)",
        "Level with it are 4 examples (0.50) and the instruction (0.40)",
        "With the bias, the instruction (0.65) earns more than without.",
    ):
        assert part in sentence


def lines_of(text: str) -> int:
    """The lines of a text on a screen of ``WIDTH`` columns."""
    return sum(max(1, math.ceil(len(line) / WIDTH)) for line in text.splitlines())


def labelled(title: str, number: int, verdict: str = "HELPS") -> Evaluation:
    """An evaluation with labels: two biases and a rival."""
    document = {
        "model": "tiny",
        "label": "contains",
        "policies": [
            policy("base", None, 0.2),
            policy("fixed", "fixed", 0.3 + number / 1000),
            policy("words", "words", 0.5),
            policy("batch calibration", None, 0.55),
            policy("late", None, number / 1000),
        ],
        "comparisons": [
            comparison("batch calibration", verdict, other="fixed"),
            comparison("batch calibration", "NO EVIDENCE", other="words"),
            comparison("late", "HELPS", other="words"),
            comparison("base", "NO EVIDENCE", other="words"),
            comparison("base", "HELPS", other="fixed"),
        ],
    }
    return evaluation_of(Step(f"{title} {number}", (), title, labels=number), document)


def test_a_table_has_a_row_for_each_number_of_labels() -> None:
    """The best bias beside the best rival, smallest number first; the losses are told by rival."""
    results = results_of(
        labelled("TREC, kinds", 300, "HURTS"), labelled("TREC, kinds", 10), labelled("RTE", 10)
    )
    text = page(results, "Intro.", "", [])
    cells = re.findall(r"^\| (TREC, kinds|RTE) \| (.*) \|$", text, re.MULTILINE)
    assert [(title, row.split(" | ")) for title, row in cells] == [
        (
            "TREC, kinds",
            ["10", "0.20", "**words** 0.50 (0.40 to 0.60)", "batch calibration 0.55", "level"],
        ),
        (
            "TREC, kinds",
            ["300", "0.20", "**fixed** 0.60 (0.50 to 0.70)", "batch calibration 0.55", "loses"],
        ),
        (
            "RTE",
            ["10", "0.20", "**words** 0.50 (0.40 to 0.60)", "batch calibration 0.55", "level"],
        ),
    ]
    sentences = what_came(results)
    assert sentences == [
        "Ahead of the best bias, with so many labels: batch calibration, on TREC (300).",
        "In the other comparisons the best bias wins 2 times and is level 2 times.",
        "The best bias is not shown to beat the model without it, with so many labels, on TREC (10)"
        " and RTE (10).",
    ]
    assert [line.bias.name for line in headlines(results)] == ["fixed", "words"]


RIVALS = {
    "labels-only": ("labels only",),
    "calibrate": ("batch calibration", "contextual calibration"),
    "few-shot": ("4 examples",),
    "classifier": ("classifier tfidf",),
    "--rivals": ("T = 1.5", "shares in words", "label drawn in code"),
    "words": ("words at -3", "words at -100"),
    "close": ("'Answer:' at +2", "'Answer:' at +5"),
    "prompt": (INSTRUCTION,),
}


def judged(step: Step) -> Evaluation:
    """An evaluation as the command makes it, in which every rival is ahead."""
    words = list(step.words)
    deploys = [word for option, word in pairwise(words) if option == "--deploy"]
    biases = [word.partition("=")[0] for word in words if word.endswith("bias.json")]
    named = {value.partition(":")[0] for word, value in pairwise(words) if word == "--rival"}
    rivals = [name for kind, names in RIVALS.items() if kind in named | {*words} for name in names]
    policies = []
    comparisons = []
    for setting in deploys or ["temperature 1"]:
        policies += [policy(name, None, 0.5, setting) for name in ("base", *rivals)]
        for bias in biases:
            policies.append(policy(bias, bias, 0.4, setting))
            if INSTRUCTION in rivals:
                policies.append(policy(f"{INSTRUCTION} and {bias}", bias, 0.4, setting))
            comparisons += [
                comparison(name, "HURTS", other=bias) | {"setting": setting}
                for name in ("base", *rivals)
            ]
    document = {"model": "tiny", "label": "contains"}
    return evaluation_of(step, document | {"policies": policies, "comparisons": comparisons})


@pytest.mark.parametrize("name", USES)
def test_a_page_has_at_most_two_screens(name: str, tmp_path: Path) -> None:
    """With the evaluations that its commands make, and all of its rivals ahead."""
    at = place(tmp_path)
    steps = USES[name].steps(at)
    head = ("policy", "words", "dashes")
    table = Table(title="Texts", head=head, rows=(head,) * 6, notes=("A note. " * 40,))
    helps = {"status": "HELPS: contains (greedy), tokens (greedy)", "chosen": {}}
    fitted = Outcome(words=(), code=0, seconds=9, document=helps)
    fits = [fit_of(step, fitted) for step in steps if step.words[0] == "fit"]
    results = results_of(
        *(judged(step) for step in steps if step.title),
        tables=tuple(table for step in steps if step.program),
        fits=tuple(fit for fit in fits if fit is not None),
    )
    write_page(results, USES[name], steps, at, tmp_path / "pages")
    text = (tmp_path / "pages" / "decisions.md").read_text()
    assert lines_of(text) <= SCREENS


def test_the_index_counts_who_is_ahead(tmp_path: Path) -> None:
    """By class of rival, for each use and in all; a page of an older form is left out."""
    results = results_of(evaluation_of(Step("eval", (), "Topics"), DOCUMENT))
    assert counts(results, hand_made=True) == {"wins": 1, "loses": 1}
    assert counts(results, hand_made=False) == {"level": 2}
    text = results.model_dump_json(exclude_defaults=True)
    (tmp_path / "decisions.json").write_text(text)
    (tmp_path / "old.json").write_text("[]")
    written = index(tmp_path)
    assert (
        "| [Decisions](decisions.md) | 1 | 0 | 1 | 0 | 2 | 0 |\n| **all** | 1 | 0 | 1 |" in written
    )
    row = "| qwen2.5-0.5b | [Topics](decisions.md) | greedy | 0.20 | 0.60 | labels only 0.70 | loses |"
    assert row in written
    assert rows(results) == [("Topics", "greedy", "0.20", "0.60", "labels only 0.70", "loses", "7")]


def test_a_command_that_ended_well_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor after its folder was moved; another command is, and one that failed."""
    commands: list[str] = []

    def blb(step: Step) -> tuple[int, str, str]:
        commands.append(step.name)
        if step.name == "broken":
            return 2, "", "Usage\nError: no such model"
        return 0, json.dumps({"status": "HELPS"}), ""

    monkeypatch.setattr(program, "_run_blb", blb)
    first, moved = Place((), tmp_path / "first"), Place((), tmp_path / "moved")
    first.out.mkdir()
    fit = Step("fit", options("fit", out=first.out / "fit"))
    broken = Step("broken", ("fit",))
    assert program.run(fit, first).document == {"status": "HELPS"}
    assert program.run(broken, first).error == ("Error: no such model",)
    first.out.rename(moved.out)
    assert program.run(Step("fit", options("fit", out=moved.out / "fit")), moved).code == 0
    assert program.run(broken, moved).code == 2
    assert commands == ["fit", "broken", "broken"]
    program.run(Step("fit", ("fit", "--tau", "1")), moved)
    assert commands[3:] == ["fit"]


def test_all_uses_leave_out_what_they_lack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a sentence; the others end in one table, and a named use that lacks something is
    refused.
    """
    pytest.importorskip("matplotlib")

    def steps(at: Place) -> list[Step]:
        return [Step("eval", options("eval", *at.model, small=at.small or None), "Topics")]

    uses = {
        "plain": Use("Plain", "Intro.", steps),
        "records": Use("Second", "Intro.", steps, second_model=True),
        "filed": Use("Filed", "Intro.", steps, files=("agnews.jsonl",)),
    }
    asked: list[tuple[str, ...]] = []

    def blb(step: Step) -> tuple[int, str, str]:
        asked.append(step.words)
        return 0, json.dumps(DOCUMENT), ""

    monkeypatch.setattr(program, "_run_blb", blb)
    monkeypatch.setattr(program, "USES", uses)
    monkeypatch.chdir(tmp_path)
    folders = ("--out", str(tmp_path / "out"), "--pages", str(tmp_path / "pages"))
    ended = CliRunner().invoke(program.main, ["--all", "--small", *folders])
    assert ended.exit_code == 0
    head, row, *reasons = ended.stdout.splitlines()
    assert re.split("  +", head) == list(COLUMNS)
    assert row.split()[:4] == ["Topics", "greedy", "0.20", "0.60"]
    assert [reason.split()[0] for reason in reasons] == ["records", "filed"]
    assert "--second-model" in reasons[0]
    assert "agnews.jsonl" in reasons[1]
    assert len(asked) == 1
    assert PageResults.model_validate_json(
        (tmp_path / "pages" / "plain.json").read_text()
    ).run.small
    models = ("--model", "first.gguf", "--second-model", "second.gguf")
    assert CliRunner().invoke(program.main, ["--all", *models, *folders]).exit_code == 0
    named = [words[words.index("--model") + 1] for words in asked[1:]]
    assert named == ["first.gguf", "second.gguf"]
    alone = CliRunner().invoke(program.main, ["records", *folders])
    assert alone.exit_code == 2
    assert "bench.gallery.data --model" in alone.output
    named_model = ("--model", "first.gguf")
    assert CliRunner().invoke(program.main, ["records", *named_model, *folders]).exit_code == 0
    assert asked[-1][asked[-1].index("--model") + 1] == "first.gguf"
    # What bench.gallery.data writes is found without an option.
    FOLDER.mkdir(parents=True)
    for file in ("agnews.jsonl", MODEL):
        (FOLDER / file).touch()
    whole = CliRunner().invoke(program.main, ["--all", *folders])
    assert whole.exit_code == 0
    assert "left out" not in whole.stdout
    assert ("--model", str(FOLDER / MODEL)) in {pair for words in asked for pair in pairwise(words)}


def test_labels_are_counted_in_all(tmp_path: Path) -> None:
    """Two thirds are learned from and a third chooses; rivals have them all; the test prompts are
    the same. Prompts without an answer are none of these.
    """
    at = place(tmp_path)
    steps = {step.name: step for step in USES["labels"].steps(at)}
    for number, learned in ((10, 7), (30, 20)):
        rows = [
            json.loads(line) for line in (at.out / f"trec_{number}.jsonl").read_text().splitlines()
        ]
        whole = [
            json.loads(line)
            for line in (at.out / f"trec_{number}_all.jsonl").read_text().splitlines()
        ]
        asked = [row for row in rows if "answer" in row]
        unlabelled = {row["prompt"] for row in rows if "answer" not in row}
        assert unlabelled
        assert unlabelled.isdisjoint(row["prompt"] for row in asked)
        sizes = {split: sum(row["split"] == split for row in asked) for split in LINES}
        assert sizes == {"train": learned, "validation": number - learned, "test": LINES["test"]}
        assert [row["prompt"] for row in whole if row["split"] == "train"] == [
            row["prompt"] for row in asked[:number]
        ]
        assert [row for row in whole if row["split"] == "test"] == asked[number:]
        judged = steps[f"trec_{number}_eval"]
        assert (judged.labels, str(at.out / f"trec_{number}_all.jsonl") in judged.words) == (
            number,
            True,
        )


def test_school_problems_are_right_with_a_comma_or_without(tmp_path: Path) -> None:
    """In their number; they are asked as the generated ones are."""
    USES["school"].steps(place(tmp_path))
    rows = [
        json.loads(line) for line in (tmp_path / "out" / "problems.jsonl").read_text().splitlines()
    ]
    assert [(row["answer"], row["split"]) for row in rows] == [
        (["1001", "1,001"], split) for split in ("train", "test")
    ]
    right = parse_reward("correct-and-short", max_tokens=9, correct=LAST)
    example = Example("1", Prompt.user(rows[0]["prompt"]), tuple(rows[0]["answer"]))
    texts = {
        "2 of \\boxed{1,001} eggs.": True,
        "It is 1001.": True,
        "$1001.00": True,
        "1,0012": False,
        "11,001": False,
        "1001 of 2": False,
    }
    assert {
        text: right.score(example, completion(text)).value > -math.inf for text in texts
    } == texts
    assert rows[0]["prompt"].endswith("then write 'Answer:' and the number.")


# To call a function or to answer


LISTS = FirstLists(
    np.array([[5, 9], [5, 9], [5, 9], [5, 9]]),
    np.log([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]]),
)
"""Four prompts; token 5 begins a call, and a function fits the first two."""
FITS = np.array([True, True, False, False])


def test_decisions_of_first_lists_are_those_of_their_probabilities() -> None:
    """Greedy takes the likelier token, temperature .5 squares the odds, and a bias shifts both."""
    tokens = np.array([5])
    assert decided(LISTS, {}, tokens, FITS, 0.0) == Decided(0.5, 0.5, (1, 2, 1, 2))
    assert decided(LISTS, {5: -0.6}, tokens, FITS, 0.0) == Decided(0.5, 0.0, (1, 2, 0, 2))
    cooler = decided(LISTS, {}, tokens, FITS, 0.5)
    assert cooler.needed == pytest.approx((0.81 / 0.82 + 0.16 / 0.52) / 2)
    assert cooler.needless == pytest.approx((0.36 / 0.52 + 0.04 / 0.68) / 2)


def test_a_point_is_chosen_by_its_needless_calls() -> None:
    """The most calls with at most that share of needless ones, where the bias was learned."""
    counts = PromptCounts(prompts=10, positives=5)
    points = [
        OperatingPoint(
            shift=shift,
            training=DecisionCounts(decided=right + needless, right=right),
            validation=DecisionCounts(decided=right + needless, right=right),
        )
        for shift, right, needless in ((-2.0, 0, 0), (-1.0, 3, 1), (0.0, 4, 2), (1.0, 5, 5))
    ]
    curve = OperatingCurve(
        positive="call",
        token_ids=(5,),
        goal="accuracy",
        shift=0.0,
        auc=0.8,
        auc_low=0.7,
        auc_high=0.9,
        training=counts,
        validation=counts,
        points=tuple(points),
    )
    shifts = [at_false_calls(curve, most).shift for most in (0.0, 0.1, 0.2, 0.5, 1.0)]
    assert shifts == [-2.0, -2.0, -1.0, 0.0, 1.0]
