"""The gallery: every command is one that ``blb`` takes, a page is made from its beginning to its
end, the pages in docs/ are what their results say, and rewards count what they say.
"""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from bench.commands import Place
from bench.gallery import __main__ as program
from bench.gallery.index import index
from bench.gallery.page import page
from bench.gallery.results import (
    Difference,
    Evaluation,
    PageResults,
    Policy,
)
from bench.gallery.rewards import LIST, one_script, record, stripped_record
from bench.gallery.use import USES, Use
from bench.measuring import read_rows
from blackbox_lb import Example, Prompt, parse_reward
from blackbox_lb.cli import main
from tests.support.deciding import DecidingServer
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows
from tests.support.stored import text_completion
from tests.support.tickets import NAMES, rows_of, says

PAGES = Path(__file__).parents[3] / "docs" / "gallery"
LINES = {"train": 40, "validation": 5, "test": 6}
OBJECT = '{"name": "Anna", "age": 30, "city": "Oslo"}'


def place(folder: Path, *, small: bool = False) -> Place:
    """Where the embedded engine is asked, with tasks of a few rows."""
    data = folder / "data"
    data.mkdir(parents=True)
    rows = [
        {"prompt": f"{split} {number}", "answer": "a", "split": split}
        for split in LINES
        for number in range(LINES[split])
    ]
    files = {name for use in USES.values() for name in use.table.get("files", ())}
    for name in ("rte.jsonl", "sst2.jsonl", *sorted(files)):
        (data / name).parent.mkdir(exist_ok=True)
        write_rows(data / name, rows)
    (data / "calls.jsonl").touch()
    (data / "slop.json").write_text('[["testament to", 0.03], ["tapestry", 0.5]]')
    for name in ("train", "test"):
        problems = [
            {"question": "How many?", "answer": f"It is{steps} #### 1,001"}
            for steps in ("", " <<1000+1=1001>>" * 3, " <<1000+1=1001>>")
        ]
        write_rows(data / "gsm8k" / f"{name}.jsonl", problems)
    (data / "math500").mkdir(exist_ok=True)
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
        },
        {"file": "list.txt", "by": "lines", "words": ["a", "b"]},
    ],
    "steps": [
        {
            "name": "fit",
            "run": "fit @task --learn-from samples --samples-per-prompt 16 --tau 0.5 --out OUT/fit",
        },
        {
            "name": "hits",
            "run": "score OUT/store.db --data OUT/letters.jsonl --max-tokens 4"
            " --reward bench.gallery.rewards:hits",
            "variables": {LIST: "OUT/list.txt"},
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
            " --samples-per-prompt $second --tau 0.5 --l2 5 --entries 300",
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
        f"$ {LIST}=OUT/list.txt blb score OUT/store.db",
        "$ uv run python -m bench.gallery.writing bias=OUT/fit/bias.json",
        "# and 2 commands like these",
    ):
        assert part in text, part
    assert str(tmp_path / "out") not in text
    assert (tmp_path / "pages" / "decisions.svg").stat().st_size > 1000
    assert "[Letters](decisions.md)" in (tmp_path / "pages" / "index.md").read_text()
    stored = (tmp_path / "pages" / "decisions.json").read_text()
    judged = PageResults.model_validate_json(stored).evaluations[0]
    assert {policy.kind for policy in judged.policies if policy.differences} == {
        "base",
        "rival",
        "rival and bias",
    }
    for policy in judged.policies:
        for name, found in policy.differences.items():
            (other,) = (other for other in judged.policies if other.name == name)
            less = mean_of(other) - mean_of(policy)
            if policy.kind == "rival and bias":
                less = -less
            assert found.difference == pytest.approx(less, abs=2e-4)


def mean_of(policy: Policy) -> float:
    """Its reward, which it has."""
    assert policy.mean is not None
    return policy.mean


@pytest.mark.parametrize(
    ("verdict", "low", "high", "base", "prompts", "judgement"),
    [
        ("level", -0.04, 0.05, 0.5, 100, "equal"),
        ("level", -0.04, 0.06, 0.5, 100, "open"),
        ("level", 0.0, 0.0, 0.5, 59, "open"),
        ("level", -0.2, 0.2, -2.0, 100, "equal"),
        ("level", -0.2, 0.21, -2.0, 100, "open"),
        ("wins", 0.01, 0.02, 0.5, 100, "wins"),
    ],
)
def test_level_is_equal_where_the_interval_rules_out_a_difference(
    verdict: str, low: float, high: float, base: float, prompts: int, judgement: str
) -> None:
    """5 points of a share, or a tenth of what the base earns; else these prompts do not tell."""
    kinds = ("base", "bias", "rival")
    made = [Policy(setting="greedy", kind=kind, name=kind, mean=base) for kind in kinds]
    found = Difference(difference=(low + high) / 2, low=low, high=high)
    told = {"verdicts": {"bias": verdict}, "differences": {"bias": found}}
    rival = made[2].model_copy(update=told)
    judged = Evaluation(
        title="T", model="m", reward="r", prompts=prompts, policies=(*made[:2], rival)
    )
    assert judged.judgement(rival, "bias") == judgement
    without = rival.model_copy(update={"differences": {}})
    unknown = {"equal": "open"}.get(judgement, judgement)
    assert judged.judgement(without, "bias") == unknown
    assert judged.judgement(rival, "another") == ""


def test_a_page_of_mended_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table of an evaluation has log losses, a fit tells how it read and mended, and a promise
    is certified and tested.
    """
    pytest.importorskip("matplotlib")
    pytest.importorskip("sklearn")
    monkeypatch.setenv("OLLAMA_API_KEY", "made-up")
    table = {
        name: USES["endpoints"].table[name]
        for name in ("title", "intro", "parts", "steps", "small")
    }
    values = {
        "tasks": ["tickets"],
        "question": {"tickets": "Which team?"},
        "labels": {"tickets": ",".join(NAMES)},
        "title": {"tickets": "Tickets"},
    }
    use = Use({**table, "values": values, "small": {}})
    monkeypatch.setattr(program, "USES", {"endpoints": use})
    out = tmp_path / "out" / "endpoints"
    out.mkdir(parents=True)
    splits = ["train"] * 100 + ["validation"] * 100 + ["test"] * 100
    rows = [{**row, "split": split} for row, split in zip(rows_of(300), splits, strict=True)]
    write_rows(out / "tickets.jsonl", rows)
    with DecidingServer(says) as server:
        words = ["endpoints", "--small", "--provider", "ollama", "--model", "decider-1"]
        words += ["--base-url", server.base_url, "--out", str(tmp_path / "out")]
        ended = CliRunner().invoke(program.main, [*words, "--pages", str(tmp_path / "pages")])
    assert ended.exit_code == 0, ended.output
    text = (tmp_path / "pages" / "endpoints.md").read_text()
    for part in (
        "| greedy, 100 test prompts | accuracy | mended against it (smallest difference that shows:",
        ") | log loss | mended against it |",
        "The mended reading (0.73) beats the base (0.47).",
        "| **mended** |",
        "| temperature |",
        "## Read and mended",
        "| 200 rows, cross-validated | billing ...: systemone |",
        "Other with the options in reverse: billing ...: 0 of 30.",
        "right in at least 75 % of what it answers (85 % of rows), with 95 % confidence",
        "`blb check`: NOT SHOWN, 19 of 84 decisions are wrong, 16 abstain; promised: at most 25%",
    ):
        assert part in text, part
    assert text.count("## Read and mended") == 1


def test_a_command_that_fails_is_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it said."""
    steps = [{"name": "fit", "run": "fit @model --task nowhere"}]
    monkeypatch.setattr(program, "USES", {"decisions": Use({**SMALLEST, "steps": steps})})
    folders = ("--out", str(tmp_path / "out"), "--pages", str(tmp_path / "pages"))
    ended = CliRunner().invoke(program.main, ["decisions", *folders])
    assert ended.exit_code == 1
    text = (tmp_path / "pages" / "decisions.md").read_text()
    assert re.search(r"`fit` \(\d+ s\): exit code 2: ", text)


FENCED = f"```json\n{OBJECT}\n```"


@pytest.mark.parametrize(
    ("text", "strict", "stripped", "places"),
    [
        (OBJECT, 1, 1, [(len(OBJECT), 1)]),
        (FENCED, 0, 1, [(0, -1), (len(FENCED), 1)]),
        (f"\n{FENCED}", 0, 1, [(1, -1), (len(FENCED) + 1, 1)]),
        ("```json\n{}\n```", 0, 0, []),
        (f"Here it is: {OBJECT}", 0, 0, []),
        ("", 0, 0, []),
    ],
)
def test_a_record_is_parsed_as_a_client_would(
    text: str, strict: float, stripped: float, places: list[tuple[int, float]]
) -> None:
    """Strictly, with the place of a fence that costs the 1, and by one that takes fences off."""
    example = Example("1", Prompt.user("p"), (OBJECT,))
    score = record(example, text_completion(text, 0))
    assert (score.value, stripped_record(example, text_completion(text, 0))) == (strict, stripped)
    assert [(span.start, span.amount) for span in score.spans or ()] == places


KOREAN = "봄은 따뜻하고 꽃이 피어요"


@pytest.mark.parametrize(
    ("text", "value", "places"),
    [
        (f"{KOREAN}.", 1, [(12, 1)]),
        (f"{KOREAN} 春 그리고 天地", 0, [(12, 1), (15, -1 / 3), (21, -1 / 3), (22, -1 / 3)]),
        ("봄 春", 0, []),
        ("", 0, []),
    ],
)
def test_chinese_characters_lose_what_korean_syllables_earn(
    text: str, value: float, places: list[tuple[int, float]]
) -> None:
    """At the tenth syllable, and at each character; their tokens cost by themselves."""
    score = one_script(Example("1", Prompt.user("p")), text_completion(text, 0))
    assert score.value == value
    assert [(span.start, span.amount) for span in score.spans or ()] == places
    assert one_script.rule.token_costs([" 春", "봄", "spring 天地"], [text]) == [-1, 0, -1]
    parsed = parse_reward("bench.gallery.rewards:one_script", max_tokens=60)
    assert parsed.has_token_costs


@pytest.mark.parametrize(
    ("name", "file", "size"),
    [
        ("openers", "records", 120),
        ("script", "korean", 180),
        ("script", "quotes", 100),
        ("shorter", "problems", 100),
        ("slop", "stories", 100),
        ("phrases", "texts", 100),
        ("margins", "profiles", 120),
        ("margins", "digits", 104),
        ("limits", "numbers", 500),
    ],
)
def test_there_are_enough_test_prompts(name: str, file: str, size: int, tmp_path: Path) -> None:
    """Each once, and none of them is learned from."""
    USES[name].steps(place(tmp_path))
    rows = read_rows(tmp_path / "out" / f"{file}.jsonl")
    prompts = [row["prompt"] for row in rows]
    assert len(set(prompts)) == len(prompts)
    assert sum(row["split"] == "test" for row in rows) == size
