"""The gallery: every command is one that ``blb`` takes, a page is made from its beginning to its
end, the pages in docs/ are what their results say, and rewards count what they say.
"""

from __future__ import annotations

import importlib
import math
import re
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.commands import Place
from bench.gallery import __main__ as program
from bench.gallery.calls import at_false_calls, chances
from bench.gallery.data import FOLDER, MODEL
from bench.gallery.index import index
from bench.gallery.page import page
from bench.gallery.results import PageResults
from bench.gallery.rewards import (
    DASHES,
    FAMILIES,
    PHRASES,
    record,
    slop,
    stripped_record,
    words_of,
)
from bench.gallery.use import USES, Use
from bench.measuring import read_rows
from blackbox_lb import Completion, Example, Prompt, load_task, parse_reward
from blackbox_lb.bias.operating import (
    DecisionCounts,
    OperatingCurve,
    OperatingPoint,
    PromptCounts,
)
from blackbox_lb.cli import main
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.tasks.rewards.forms.avoid import count_words
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows

PAGES = Path(__file__).parents[3] / "docs" / "gallery"
LINES = {"train": 40, "validation": 5, "test": 6}
OBJECT = '{"name": "Anna", "age": 30, "city": "Oslo"}'


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
    rows = [
        {"prompt": f"{split} {number}", "answer": "a", "split": split}
        for split in LINES
        for number in range(LINES[split])
    ]
    for name in ("agnews", "rte", "sst2", "trec"):
        write_rows(data / f"{name}.jsonl", rows)
    (data / "calls.jsonl").touch()
    (data / "slop.json").write_text('[["testament to", 0.03], ["tapestry", 0.5]]')
    (data / "gsm8k").mkdir()
    for name in ("train", "test"):
        problem = {"question": "How many?", "answer": "It is #### 1,001"}
        write_rows(data / "gsm8k" / f"{name}.jsonl", [problem])
    (data / "math500").mkdir()
    halves = ({"problem": f"What is {n}/2?", "answer": f"\\frac{{{n}}}{{2}}"} for n in (3, 5))
    write_rows(data / "math500" / "test.jsonl", halves)
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
        for word in step.words:
            path = Path(word.partition("=")[2] or word)
            if path.suffix == ".db" or path.name == "bias.json":
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text("{}")
        if step.module:
            module = importlib.import_module(step.module)
            module.main.make_context(step.name, list(step.words))
            continue
        command = main.get_command(above, step.words[0])
        assert command is not None
        command.make_context(step.words[0], list(step.words[1:]), parent=above)
    assert len({step.name for step in steps}) == len(steps)
    assert any(step.title or step.module for step in steps)


@pytest.mark.parametrize("path", sorted(PAGES.glob("*.json")), ids=lambda path: path.stem)
def test_a_page_is_what_its_results_say(path: Path) -> None:
    """Tables and sentences in docs/ are written from the numbers beside them."""
    results = PageResults.model_validate_json(path.read_text(encoding="utf-8"))
    text = page(results, USES[results.use].intro, f"{results.use}.svg", [])
    published = path.with_suffix(".md").read_text(encoding="utf-8")

    def measured(text: str) -> str:
        """Without the words about the run and its commands."""
        return text.partition("\n![")[2].partition("## Commands")[0]

    assert measured(text) == measured(published) != ""


def test_the_index_is_what_the_results_say() -> None:
    """Of all pages."""
    assert index(PAGES) == (PAGES / "index.md").read_text(encoding="utf-8")


SMALLEST: dict[str, Any] = {
    "title": "Letters",
    "intro": "Letters of $what.",
    "values": {"what": "an exact model"},
    "parts": {
        "task": "@model --data OUT/letters.jsonl --reward contains --max-tokens 4"
        " --store OUT/store.db --deploy temperature=1",
        "judged": "bias=OUT/fit/bias.json @task --test-samples 2 --rival 'prompt:Be brief.'",
    },
    "rows": [
        {
            "file": "letters.jsonl",
            "by": "crossed",
            "cross": ["frame", "number", "letter"],
            "answer": "letter",
            "blocks": [
                {
                    "frame": [f"Letter of {split} {{number}}? It is near {{letter}}."],
                    "number": [str(number) for number in range(size)],
                    "letter": ["a", "b"],
                    "splits": {split: 2 * size},
                }
                for split, size in {"train": 5, "validation": 2, "test": 3}.items()
            ],
        }
    ],
    "steps": [
        {
            "name": "fit",
            "run": "fit @task --learn-from samples --samples-per-prompt 16 --tau 0.5 --out OUT/fit",
        },
        {"name": "eval", "title": "Letters", "run": "eval @judged --go-on --out OUT/eval"},
        {"name": "writing", "module": "bench.gallery.writing", "run": "@judged"},
        {"name": "pasting", "module": "bench.gallery.pasting", "run": "@judged", "shown": False},
        {
            "curve": [[5, 16], [10, 16]],
            "examples": "completions",
            "title": "Letters",
            "bias": "bias",
            "run": "fit @task --learn-from samples --only-stored --limit $first"
            " --samples-per-prompt $second --tau 0.5 --l2 cv --entries 300",
            "judged": "@task --go-on",
        },
    ],
}


def run_pages(server: ExactServer, folder: Path, *words: str) -> str:
    """What ``bench.gallery`` prints, of one page."""
    profile = folder / "own.toml"
    profile.write_text('extends = "llamacpp"\nname = "own"\n')
    asked = ("--provider", str(profile), "--base-url", server.base_url, *words)
    folders = ("--out", str(folder / "out"), "--pages", str(folder / "pages"))
    ended = CliRunner().invoke(program.main, [*asked, *folders])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def test_a_page_from_its_beginning_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fits, evaluations, a program and a curve; made again without a request from another folder,
    with commands that do not name this machine's.
    """
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    monkeypatch.setattr(program, "USES", {"decisions": Use(SMALLEST)})
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as server:
        table = run_pages(server, tmp_path, "decisions")
        asked = len(server.requests)
        (tmp_path / "out").rename(tmp_path / "moved")
        (tmp_path / "moved").rename(tmp_path / "out")
        assert run_pages(server, tmp_path, "--all").splitlines()[0] == table.splitlines()[0]
        assert len(server.requests) == asked > 0
    stored = (tmp_path / "pages" / "decisions.json").read_text()
    run = PageResults.model_validate_json(stored).run
    assert asked > run.requests > 0  # the tokenizer is asked for, too
    assert 4 * run.requests >= run.completion_tokens > 0
    assert run.prompt_tokens > 0
    text = (tmp_path / "pages" / "decisions.md").read_text()
    for part in (
        "Letters of an exact model.",
        "| **bias** |",
        'instruction "Be brief." and bias',
        "## How many completions?",
        "## The texts, 12 of each policy on 6 test prompts",
        "## A classifier's label pasted into the record, 6 test prompts",
        "$ uv run python -m bench.gallery.writing bias=OUT/fit/bias.json",
        "# and 2 commands like these",
    ):
        assert part in text, part
    assert str(tmp_path / "out") not in text
    assert (tmp_path / "pages" / "decisions.svg").stat().st_size > 1000
    assert "[Letters](decisions.md)" in (tmp_path / "pages" / "index.md").read_text()


def test_a_command_that_fails_is_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it said, one of ``blb`` as one of a program; the others go on."""
    rows = [{"prompt": "Which?", "answer": "a", "split": "test"}]
    data = write_rows(tmp_path / "rows.jsonl", rows)
    store = tmp_path / "store.db"
    store.touch()
    words = f"bias={tmp_path}/none.json --provider llamacpp --data {data} --reward length"
    words += f" --max-tokens 4 --store {store} --deploy greedy"
    steps = [
        {"name": "fit", "run": "fit @model --task nowhere"},
        {"name": "writing", "module": "bench.gallery.writing", "run": words},
    ]
    monkeypatch.setattr(program, "USES", {"decisions": Use({**SMALLEST, "steps": steps})})
    folders = ("--out", str(tmp_path / "out"), "--pages", str(tmp_path / "pages"))
    ended = CliRunner().invoke(program.main, ["decisions", *folders])
    assert ended.exit_code == 1
    text = (tmp_path / "pages" / "decisions.md").read_text()
    assert re.search(r"`fit` \(\d+ s\): exit code 2: ", text)
    assert re.search(r"`writing` \(\d+ s\): exit code 1: ", text)


def test_pages_that_lack_something_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each with a sentence; one that is named is refused; what ``bench.gallery.data`` writes is
    found without an option.
    """
    nothing = {**SMALLEST, "steps": [], "rows": []}
    uses = {
        "records": Use({**nothing, "second_model": True}),
        "limits": Use({**nothing, "files": ["agnews.jsonl"]}),
    }
    monkeypatch.setattr(program, "USES", uses)
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(program.main, ["--all"])
    assert ended.exit_code == 0, ended.output
    _, *reasons = ended.stdout.splitlines()
    assert [reason.split()[0] for reason in reasons] == ["records", "limits"]
    assert "--second-model" in reasons[0]
    assert "agnews.jsonl" in reasons[1]
    alone = CliRunner().invoke(program.main, ["records"])
    assert alone.exit_code == 2
    assert "bench.gallery.data --model" in alone.output
    FOLDER.mkdir(parents=True)
    for file in ("agnews.jsonl", MODEL):
        (FOLDER / file).touch()
    assert "left out" not in CliRunner().invoke(program.main, ["--all"]).stdout


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


def test_labels_are_counted_in_all(tmp_path: Path) -> None:
    """Two thirds are learned from and a third chooses; rivals have them all; the test prompts are
    the same. Prompts without an answer are none of these.
    """
    at = place(tmp_path)
    steps = {step.name: step for step in USES["labels"].steps(at)}
    for number, learned in ((10, 7), (30, 20)):
        rows = read_rows(at.out / f"trec_{number}.jsonl")
        whole = read_rows(at.out / f"trec_{number}_all.jsonl")
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
    rows = read_rows(tmp_path / "out" / "problems.jsonl")
    assert [(row["answer"], row["split"]) for row in rows] == [
        (["1001", "1,001"], split) for split in ("train", "test")
    ]
    right = parse_reward(
        "correct-and-short", max_tokens=9, correct=USES["school"].table["values"]["correct"]
    )
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


def test_problems_of_math_are_asked_for_a_boxed_answer(tmp_path: Path) -> None:
    """All of them to judge on."""
    USES["gsm8k"].steps(place(tmp_path))
    task = load_task(data=tmp_path / "out" / "math.jsonl", learns=False)
    assert [example.answers for example in task.test] == [("\\frac{3}{2}",), ("\\frac{5}{2}",)]
    assert task.test[0].prompt.text.endswith("within \\boxed{}.")


LISTS = FirstLists(
    np.array([[5, 9], [5, 9], [5, 9], [5, 9]]),
    np.log([[0.9, 0.1], [0.4, 0.6], [0.6, 0.4], [0.2, 0.8]]),
)
"""Four prompts; token 5 begins a call."""


def test_decisions_of_first_lists_are_those_of_their_probabilities() -> None:
    """Greedy takes the likelier token, temperature .5 squares the odds, and a bias shifts both."""
    tokens = np.array([5])
    assert chances(LISTS, {}, tokens, 0.0).tolist() == [1, 0, 1, 0]
    assert chances(LISTS, {5: -0.6}, tokens, 0.0).tolist() == [1, 0, 0, 0]
    cooler = [0.81 / 0.82, 0.16 / 0.52, 0.36 / 0.52, 0.04 / 0.68]
    np.testing.assert_allclose(chances(LISTS, {}, tokens, 0.5), cooler)


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
