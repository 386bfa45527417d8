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

from bench.commands import Place
from bench.gallery import __main__ as program
from bench.gallery.calls import at_false_calls, chances
from bench.gallery.data import FOLDER, MODEL
from bench.gallery.index import index
from bench.gallery.page import beforehand, page
from bench.gallery.results import (
    Difference,
    Evaluation,
    Outcome,
    PageResults,
    Policy,
    Run,
    fit_of,
)
from bench.gallery.rewards import LIST, hits, one_script, record, stripped_record
from bench.gallery.rows import learned_from
from bench.gallery.use import USES, Use
from bench.measuring import read_rows
from bench.steps import Step
from blackbox_lb import Example, Prompt, load_task, parse_reward
from blackbox_lb.bias.operating import (
    DecisionCounts,
    OperatingCurve,
    OperatingPoint,
    PromptCounts,
)
from blackbox_lb.cli import main
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.jobs.evaluation.policies import with_instruction
from blackbox_lb.jobs.runs.conclusion import understood
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


def decided(*policies: tuple[str, str, float], prompts: int = 100, **fields: Any) -> Evaluation:
    """An evaluation at greedy decoding of policies by kind, name and reward, without verdicts."""
    made = [
        Policy.model_validate({"setting": "greedy", "kind": kind, "name": name, "mean": mean})
        for kind, name, mean in policies
    ]
    return Evaluation(
        title="T", model="m", reward="r", prompts=prompts, policies=tuple(made), **fields
    )


def against(verdict: str, difference: float, low: float, high: float) -> dict[str, Any]:
    """The verdict of "bias" against a policy, and the difference."""
    found = Difference(difference=difference, low=low, high=high)
    return {"verdicts": {"bias": verdict}, "differences": {"bias": found}}


def with_rivals(*fields: dict[str, Any], base: float = 0.5, prompts: int = 100) -> Evaluation:
    """A base, a bias, and a rival with each of these verdicts."""
    kinds: list[tuple[str, str, float]] = [("base", "base", base), ("bias", "bias", base)]
    kinds += [("rival", f"rival {number}", base) for number in range(len(fields))]
    plain = decided(*kinds, prompts=prompts)
    rivals = [
        rival.model_copy(update=field)
        for rival, field in zip(plain.policies[2:], fields, strict=True)
    ]
    return plain.model_copy(update={"policies": (*plain.policies[:2], *rivals)})


def results_of(*evaluations: Evaluation) -> PageResults:
    """A page of these evaluations."""
    run = Run(date="2026-11-25", cores=2, minutes=1, small=False)
    return PageResults(use="decisions", title="T", run=run, evaluations=evaluations)


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
    judged = with_rivals(against(verdict, (low + high) / 2, low, high), base=base, prompts=prompts)
    rival = judged.policies[2]
    assert judged.judgement(rival, "bias") == judgement
    without = rival.model_copy(update={"differences": {}})
    unknown = {"equal": "open"}.get(judgement, judgement)
    assert judged.judgement(without, "bias") == unknown
    assert judged.judgement(rival, "another") == ""


def test_a_page_says_beforehand_what_a_fit_says() -> None:
    """Of so many test prompts, for shares and for other rewards."""
    task = load_task("continents")
    prompts = len(task.test)
    for reward, mean in (("accuracy", 0.5), ("length", -3.0)):
        said = understood(task, parse_reward(reward, max_tokens=4), None)
        effect = re.search(r"shows effects above about ([^)]+)\)", said)
        assert effect is not None
        shown = beforehand(results_of(decided(("base", "base", mean), prompts=prompts)))
        assert f"{prompts} test prompts show differences above about {effect[1]}" in shown


def test_a_program_gives_evaluations(tmp_path: Path) -> None:
    """They stand beside those of ``blb eval``, with their spread over draws; one that lacks the
    model without a bias is refused.
    """
    judged = with_rivals(against("level", 0.02, -0.01, 0.04))
    drawn = [policy.model_copy(update={"spread": 0.02}) for policy in judged.policies]
    judged = judged.model_copy(update={"policies": tuple(drawn), "labels": 30, "draws": 5})
    document = {"tables": [], "evaluations": [judged.model_dump()]}
    steps = [
        (Step("draws", (), "a.program"), Outcome(words=(), code=0, seconds=1, document=document))
    ]
    at = Place((), tmp_path, tmp_path)
    results = program.collect_results("decisions", Use(SMALLEST), at, steps)
    assert results.evaluations == (judged,)
    text = page(results, "", "", [])
    assert "mean of 5 draws" in text
    assert "| 30 | 0.50 ± .02 | **bias** 0.50 ± .02 |" in text
    assert "equal +.02 (-.01 to .04)" in text
    document["evaluations"][0]["policies"] = judged.model_dump()["policies"][1:]
    with pytest.raises(ValueError, match="base"):
        program.collect_results("decisions", Use(SMALLEST), at, steps)


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
        "## Read and mended: billing, repair, other",
        "| 200 rows, cross-validated | systemone |",
        "decisions change where the options are listed in reverse",
        "errors of at most 0.1 are not certifiable",
        "`blb check`: no promise to test",
    ):
        assert part in text, part
    assert text.count("## Read and mended") == 1


def test_a_promise_that_was_tested_is_told() -> None:
    """With the decisions that it was tested on."""
    errors = {"is_promised": True, "limit": 0.1, "rows": 400, "decided": 240, "wrong": 9}
    document = {"verdict": "HOLDS", "questions": [{"verdict": "HOLDS", "errors": errors}]}
    outcome = Outcome(words=("check",), code=0, seconds=1.0, document=document)
    fit = fit_of(Step("sst2_check", ("check",)), outcome)
    assert fit is not None
    assert fit.end == (
        "`blb check`: HOLDS, 9 of 240 decisions are wrong, 160 abstain; promised: at most 10%"
    )


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
    _, _, *reasons = ended.stdout.splitlines()
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


def test_a_bare_number_of_hits_is_that_of_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And has no places."""
    file = tmp_path / "list.json"
    file.write_text('[["testament to", 0.5], ["tapestry", 0.25]]')
    monkeypatch.setenv(LIST, str(file))
    example = Example("1", Prompt.user("p"))
    text = text_completion("A tapestry of light, a testament to nothing.", 0)
    listed = parse_reward(f"avoid:{file}", max_tokens=9).score(example, text)
    bare = parse_reward("bench.gallery.rewards:hits", max_tokens=9).score(example, text)
    assert bare.value == hits(example, text) == listed.value == pytest.approx(-100 * 1.25 / 8)
    assert bare.spans is None


def test_labels_are_counted_in_all() -> None:
    """Two thirds are learned from and a third chooses; the test prompts are the same. Prompts
    without an answer are none of these.
    """
    source = [{"prompt": f"{number}", "answer": "a", "split": "train"} for number in range(40)]
    source += [{"prompt": "new", "answer": "a", "split": "test"}]
    rows = learned_from(source, 30, 8)
    splits = [(row["split"], "answer" in row) for row in rows]
    assert splits == [
        *[("train", True)] * 20,
        *[("train", False)] * 8,
        *[("validation", True)] * 10,
        ("test", True),
    ]
    assert len({row["prompt"] for row in rows}) == len(rows)


def test_school_problems_are_right_with_a_comma_or_without(tmp_path: Path) -> None:
    """In their number; they are asked as the generated ones are, those of few steps alone."""
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
        text: right.score(example, text_completion(text, 0)).value > -math.inf for text in texts
    } == texts
    assert rows[0]["prompt"].endswith("then write 'Answer:' and the number.")


@pytest.mark.parametrize("name", ["shorter", "school"])
def test_the_second_table_asks_as_the_instruction_does(name: str, tmp_path: Path) -> None:
    """Its base is the rival of the first, to the byte, so that no answer is drawn twice."""
    USES[name].steps(place(tmp_path))
    plain, brief = (
        [Example("1", Prompt.user(row["prompt"])) for row in read_rows(tmp_path / "out" / file)]
        for file in ("problems.jsonl", "brief.jsonl")
    )
    assert plain
    assert [with_instruction(example, "Be brief.") for example in plain] == brief


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
    ],
)
def test_there_are_enough_test_prompts(name: str, file: str, size: int, tmp_path: Path) -> None:
    """Each once, and none of them is learned from."""
    USES[name].steps(place(tmp_path))
    rows = read_rows(tmp_path / "out" / f"{file}.jsonl")
    prompts = [row["prompt"] for row in rows]
    assert len(set(prompts)) == len(prompts)
    assert sum(row["split"] == "test" for row in rows) == size


def test_all_products_are_asked_once(tmp_path: Path) -> None:
    """A fifth of them is learned from and chosen on."""
    USES["limits"].steps(place(tmp_path))
    rows = read_rows(tmp_path / "out" / "numbers.jsonl")
    assert len({row["prompt"] for row in rows}) == len(rows) == 25 * 25
    assert sum(row["split"] == "test" for row in rows) == 500
    last = re.findall(r"\d+", rows[-1]["prompt"])
    assert rows[-1]["answer"] == str(int(last[0]) * int(last[1]) % 4)


def test_a_question_is_asked_about_the_text_alone(tmp_path: Path) -> None:
    """What stands behind the question of a row, the first rows of each split."""
    at = place(tmp_path, small=True)
    rows = [
        {"prompt": f"Which? Answer with one word.\n\nReview: Review: {n}", "split": split}
        for split, size in {"train": 70, "validation": 5, "test": 2}.items()
        for n in range(size)
    ]
    write_rows(at.data / "sst2.jsonl", [{**row, "answer": "positive"} for row in rows])
    USES["endpoints"].steps(at)
    made = read_rows(at.out / "sst2.jsonl")
    assert [row["prompt"] for row in made[:2]] == ["Review: 0", "Review: 1"]
    assert [row["split"] for row in made] == ["train"] * 60 + ["validation"] * 5 + ["test"] * 2


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
