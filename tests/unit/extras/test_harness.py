"""lm-evaluation-harness tasks: its prompts, its splits as the paper has them, its own verdict on
every answer; no network.
"""

from __future__ import annotations

import importlib
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.cli.resources import load
from blackbox_lb.errors import InputError
from blackbox_lb.extras.harness import HarnessMetric, HarnessOptions, load_harness
from blackbox_lb.extras.harness.documents import translated, working
from blackbox_lb.jobs.plan.shared import TaskSettings
from blackbox_lb.tasks import Task, parse_reward
from blackbox_lb.tasks.records import hub_data
from blackbox_lb.tasks.rewards.matching import Matcher
from tests.support.errors import names, raises_naming
from tests.support.questions import write_rows

pytestmark = pytest.mark.needs("lm_eval")

FRUIT = ("apples", "pears", "plums", "figs", "limes", "dates", "kiwis", "mangos")
SUBJECTS = (
    *("algebra", "counting_and_probability", "geometry", "intermediate_algebra"),
    *("number_theory", "prealgebra", "precalculus"),
)
ANSWERS = (
    "",
    "The answer is {0}.",
    "So she has {0} in all. The answer is {0}",
    "The answer is ${0}.00.",
    "The answer is {0}, I think. The answer is 1.",
    "Two steps.\n#### {0}.",
    "#### -{0}",
    "####{0}",
    "the ANSWER is {0}.",
    "The answer is 1,{0}.",
    "The answer is minus {0}.\n\nQ: and then? A: The answer is 3.",
    "３ or {0}٣",
    "$ , . -",
)
"""{0} stands for the accepted number."""


def sums(start: int, count: int) -> list[dict[str, Any]]:
    """Word problems in the columns of GSM8K."""
    return [
        {
            "question": (
                f"Ann has {number} {FRUIT[number % 8]} and buys {number + 2} more. How many has she"
                " now?"
            ),
            "answer": (
                f"She has {number} + {number + 2} ="
                f" <<{number}+{number + 2}={2 * number + 2}>>{2 * number + 2}.\n####"
                f" {2 * number + 2}"
            ),
        }
        for number in range(start, start + count)
    ]


@pytest.fixture(scope="module")
def gsm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 60 train and 12 test rows, of which one train row asks what a test row asks."""
    folder = tmp_path_factory.mktemp("gsm")
    write_rows(folder / "train.jsonl", [*sums(10, 59), sums(500, 1)[0]])
    write_rows(folder / "test.jsonl", sums(500, 12))
    return folder


@pytest.fixture(scope="module")
def shots(gsm: Path) -> Task:
    """The task gsm8k with 2 few-shot examples."""
    return load_harness("gsm8k", HarnessOptions(gsm, num_fewshot=2))


@pytest.fixture(scope="module")
def gpqa(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the one split of GPQA, as CSV, 80 rows."""
    folder = tmp_path_factory.mktemp("gpqa")
    lines = ["Question,Correct Answer,Incorrect Answer 1,Incorrect Answer 2,Incorrect Answer 3"]
    lines += [
        f"Which is {n} squared?,{n * n} units,{n * n + 1} units,{n * n + 2} units,{n * n + 3} units"
        for n in range(2, 82)
    ]
    (folder / "train.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def judge_of(task: Task) -> HarnessMetric:
    """The harness's verdict in a task."""
    assert isinstance(task.correct, Matcher)
    assert isinstance(task.correct.judge, HarnessMetric)
    return task.correct.judge


def test_the_prompts_are_the_harnesss(gsm: Path, shots: Task) -> None:
    """The test prompts are those that the harness itself builds for its requests, in its order,
    few-shot examples and all.
    """
    with working():
        task = judge_of(shots).documents["gsm8k:test:0"].task
        fresh = importlib.import_module("lm_eval.tasks").TaskManager(
            include_defaults=False,
            include_path=str(Path(task.config.metadata["config_source"]).parent),
        )
        more = {"dataset_path": "json", "dataset_name": None, "num_fewshot": 2}
        files = {split: str(gsm / f"{split}.jsonl") for split in ("train", "test")}
        member = {
            "task": "gsm8k",
            **more,
            "dataset_kwargs": {"data_files": files, "cache_dir": str(gsm / "cache")},
        }
        harness = fresh.load([{"group": "fresh", "task": [member]}])["tasks"]["gsm8k"]
        harness.set_fewshot_seed(1234)
        harness.build_all_requests()
    assert [example.prompt.text for example in shots.test] == [
        request.args[0] for request in harness.instances
    ]
    assert shots.stop == tuple(harness.instances[0].args[1]["until"])
    assert shots.test[0].prompt.text.count("Question:") == 3


def test_splits_are_the_papers(shots: Task) -> None:
    """Test is the test split, validation 20 % of train by hash, and a train document that test asks
    too is dropped and counted.
    """
    assert (len(shots.train), len(shots.validation), len(shots.test)) == (48, 11, 12)
    assert names(shots.note, "11 of 59 documents", "train")
    assert names(shots.note, "1 documents dropped")
    assert [example.id for example in shots.test] == [f"gsm8k:test:{index}" for index in range(12)]


def test_no_judged_document_is_a_few_shot_example(shots: Task) -> None:
    """None of validation and test stands before another question, nor any before itself; the one
    that train repeats is counted.
    """
    questions = {
        name: document.doc["question"] for name, document in judge_of(shots).documents.items()
    }
    for example in (*shots.train, *shots.validation, *shots.test):
        harnesss = example in shots.test
        for judged in (*shots.validation, *shots.test):
            if judged.id != "gsm8k:test:0" or not harnesss:
                assert example.prompt.text.count(questions[judged.id]) == (judged.id == example.id)
        assert harnesss or example.prompt.text.count(questions[example.id]) == 1
    repeated = (
        sum(example.prompt.text.count(questions["gsm8k:test:0"]) for example in shots.test) > 1
    )
    assert ("1 validation or test documents in test prompts" in shots.note) is repeated


def test_the_same_every_time(gsm: Path, gpqa: Path, shots: Task) -> None:
    """Loading again gives the same prompts, answers and splits, shuffled choices too, whatever the
    caller's random numbers are.
    """
    state = random.getstate()
    assert load_harness("gsm8k", HarnessOptions(gsm, num_fewshot=2)).data_hash == shots.data_hash
    first = load_harness("gpqa_main_cot_zeroshot", HarnessOptions(gpqa))
    assert random.getstate() == state
    random.seed(5)
    assert load_harness("gpqa_main_cot_zeroshot", HarnessOptions(gpqa)).data_hash == first.data_hash


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k_cot"])
def test_every_score_is_the_harnesss(gsm: Path, name: str) -> None:
    """Over a spread of answers and every filter, extracted answer and score are those of the
    harness's own ``evaluate``.
    """
    from tests.support.harness_agreement import agreement

    task = load_harness(name, HarnessOptions(gsm, num_fewshot=0 if name == "gsm8k" else None))
    answers = []
    for example in task.test[:3]:
        number = judge_of(task).documents[example.id].doc["answer"].split("#### ")[1]
        answers += [(example, text.format(number)) for text in ANSWERS]
    with working():
        counts = agreement(name, answers, HarnessOptions(gsm))
    assert set(counts) == {"strict-match", "flexible-extract"}
    for count in counts.values():
        assert (
            count["same answer"] == count["same score"] == count["completions"] == 3 * len(ANSWERS)
        )
        assert 0 < count["correct"] < 3 * len(ANSWERS)


def test_gpqa_is_divided_and_shuffled(gpqa: Path) -> None:
    """One split: about 80/10/10 by hash; the right choice stands at every place; the answer is
    judged by the chosen filter.
    """
    task = load_harness("gpqa_main_cot_zeroshot", HarnessOptions(gpqa, filter="flexible-extract"))
    sizes = [len(task.train), len(task.validation), len(task.test)]
    assert sum(sizes) == 80
    assert sizes[0] > 50
    assert min(sizes) > 0
    places = Counter(example.answers[0] for example in (*task.train, *task.validation, *task.test))
    assert set(places) == {"(A)", "(B)", "(C)", "(D)"}
    assert max(places.values()) < 40
    example = task.test[0]
    assert example.prompt.text.endswith("Let's think step by step: ")
    reward = parse_reward("log-accuracy", max_tokens=task.max_tokens, correct=task.correct)
    other = "(A)" if example.answers != ("(A)",) else "(B)"
    assert reward.matcher(example, f"We square it, so {example.answers[0]}") is True
    assert reward.matcher(example, f"We square it, so {other}") is False
    assert names(task.note, "80/10/10")


def test_gpqa_few_shot_examples_are_train_documents(gpqa: Path) -> None:
    """Where examples come from the one split that is also judged, they are drawn from train
    alone.
    """
    task = load_harness("gpqa_main_generative_n_shot", HarnessOptions(gpqa, num_fewshot=3))
    documents = judge_of(task).documents
    for example in (*task.validation, *task.test):
        for judged in (*task.validation, *task.test):
            asked = documents[judged.id].doc["Question"]
            assert example.prompt.text.count(asked) == (judged.id == example.id)


def test_a_group_is_one_task(tmp_path: Path) -> None:
    """hendrycks_math joins its seven subjects in the order of a hash; mathematics is judged by the
    harness's own equivalence.
    """
    for subject in SUBJECTS:
        (tmp_path / subject).mkdir()
        for split, start in (("train", 10), ("test", 50)):
            write_rows(
                tmp_path / subject / f"{split}.jsonl",
                [
                    {
                        "problem": f"In {subject}, what is half of {number}?",
                        "level": "Level 1",
                        "type": subject,
                        "solution": f"Half of it is $\\boxed{{\\frac{{{number}}}{{2}}}}$.",
                    }
                    for number in range(start, start + 10)
                ],
            )
    task = load_harness("hendrycks_math", HarnessOptions(tmp_path))
    assert (len(task.train), len(task.validation), len(task.test)) == (56, 14, 70)
    assert len({example.id.split(":")[0] for example in task.test[:20]}) > 3
    example = next(
        example for example in task.test if example.id == "hendrycks_math_geometry:test:3"
    )
    assert example.prompt.text == "Problem: In geometry, what is half of 53?\nAnswer:"
    assert example.answers == (r"\frac{53}{2}",)
    matcher = parse_reward("log-accuracy", max_tokens=1, correct=task.correct).matcher
    assert [
        matcher(example, text)
        for text in (r"$\frac{53}{2}$", r"$\frac53 2$", r"$\dfrac{53}{2}$", "26")
    ] == [
        True,
        False,
        True,
        False,
    ]
    assert task.stop == ("Problem:",)


def test_limits_and_sizes(gsm: Path) -> None:
    """The command line's limits take the first of each split; the validation sample has the size
    that was asked for.
    """
    options: dict[str, Any] = {
        "task": "lm-eval:gsm8k_cot",
        "reward": "log-accuracy",
        "data_dir": gsm,
        "filter": "flexible-extract",
    }
    task, reward = load(
        TaskSettings(**{**options, "validation_size": 9, "validation_limit": 4, "test_limit": 5})
    )
    assert (len(task.train), len(task.validation), len(task.test)) == (50, 4, 5)
    assert task.test[-1].id == "gsm8k_cot:test:4"
    assert reward.max_tokens == 256
    assert reward.matcher(task.test[0], "makes 1002") is True


@pytest.mark.parametrize(
    ("name", "options", "facts"),
    [
        ("gsm9k", {}, ("'gsm9k'", "gsm8k")),
        (
            "gpqa_main_n_shot",
            {},
            ("multiple_choice", "gpqa_main_generative_n_shot"),
        ),
        (
            "gsm8k",
            {"filter": "loose"},
            ("``filter``", "'loose'", "strict-match", "flexible-extract"),
        ),
        ("gsm8k", {"metric": "bleu"}, ("``metric``", "'bleu'", "exact_match")),
        ("gsm8k_cot_zeroshot", {"num_fewshot": 2}, ("0 few-shot", "``num_fewshot``")),
        ("gsm8k", {"validation_size": 59}, ("59 documents", "``validation_size``")),
        ("gsm8k", {"num_fewshot": 48}, ("48", "gsm8k")),
        ("gsm8k", {"num_fewshot": 1000}, ("1000", "gsm8k")),
        ("hendrycks_math", {}, ("``data_dir=", "hendrycks_math_algebra", "algebra")),
        ("gsm8k", {"data_dir": Path("nowhere")}, ("folder", "nowhere")),
    ],
)
def test_what_cannot_be(
    gsm: Path, name: str, options: dict[str, Any], facts: tuple[str, ...]
) -> None:
    """Whatever cannot be had is refused with the names that can."""
    with raises_naming(InputError, *facts):
        load_harness(name, HarnessOptions(**{"data_dir": gsm, **options}))


def test_missing_split(tmp_path: Path) -> None:
    """A folder without a split that the task asks for is refused, naming it."""
    write_rows(tmp_path / "train.jsonl", sums(1, 9))
    with raises_naming(InputError, "gsm8k", "'test'"):
        load_harness("gsm8k", HarnessOptions(tmp_path))


def test_files_that_do_not_suit(gsm: Path, tmp_path: Path) -> None:
    """Training rows with other columns than the test rows are refused by the column's name, where
    prompts are made of them; and so is a completion that the task's own code fails on.
    """
    (tmp_path / "test.jsonl").write_bytes((gsm / "test.jsonl").read_bytes())
    write_rows(
        tmp_path / "train.jsonl", [{"q": str(number), "a": "#### 1"} for number in range(20)]
    )
    with raises_naming(InputError, "gsm8k", str(tmp_path), "'question'"):
        load_harness("gsm8k", HarnessOptions(tmp_path, num_fewshot=2))
    task = load_harness("gsm8k", HarnessOptions(gsm, num_fewshot=2))
    judge = judge_of(task)
    judge.documents = {
        name: replace(document, doc={}) for name, document in judge.documents.items()
    }
    with raises_naming(InputError, "exact_match", task.test[0].id, "'answer'"):
        judge(task.test[0], "#### 3")


def test_a_package_that_a_task_needs() -> None:
    """It is named, and files of one's own are not asked for in its place."""
    for error in (
        ModuleNotFoundError("No module named 'langdetect'"),
        AssertionError("langdetect"),
    ):
        error.__context__ = ImportError()
        with (
            raises_naming(InputError, "ifeval", "langdetect") as refused,
            translated("ifeval", None),
        ):
            raise error
        assert "data_dir" not in str(refused.value)


def test_without_the_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the hub does not answer, one sentence says so and how to do without, and settings are
    as before.
    """
    monkeypatch.setattr(hub_data, "_answers", lambda _endpoint: False)
    config = importlib.import_module("datasets").config
    monkeypatch.setattr(config, "HF_DATASETS_CACHE", str(tmp_path))
    with raises_naming(InputError, "``data_dir``"):
        load_harness("gsm8k")
    assert config.HF_HUB_OFFLINE is False
