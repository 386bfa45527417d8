"""The math matcher: equal values in any notation are correct, what is unparsable or takes forever
is not, from any thread.
"""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path

import pytest

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks.rewards import _math_process as math_worker
from blackbox_lb.tasks.rewards import math_equality
from blackbox_lb.tasks.rewards.matching import parse_matcher
from blackbox_lb.types import Example, Prompt

pytestmark = pytest.mark.needs("math_verify")
QUESTION = Prompt.user("?")


@pytest.mark.parametrize(
    ("answer", "text", "correct"),
    [
        ("1/2", "so it is $0.5$", True),
        (r"\frac{1}{2}", r"hence \boxed{\frac{2}{4}}", True),
        ("x^2+2x+1", "$(x+1)^2$", True),
        ("1,234", "The answer is 1234.", True),
        ("72", "#### 72", True),
        ("72", "#### 73", False),
        ("3", "I do not know", False),
        ("3", "", False),
        (r"\sqrt{8}", r"$2\sqrt{2}$", True),
    ],
)
def test_equal_values(answer: str, text: str, correct: bool) -> None:
    """What is equal is correct in whatever notation; what is no mathematics is incorrect."""
    assert parse_matcher("math")(Example("x", QUESTION, (answer,)), text) is correct


@pytest.mark.parametrize(
    ("answer", "text", "correct"),
    [
        ("2k", "$2k$", True),
        ("2k", "$2$", False),
        ("2", "2k", False),
        ("5x^2", "$5$", False),
        (r"2\pi", "$2$", False),
        (r"2\sqrt{3}", "$2$", False),
        ("51", r"\sqrt{51}", False),
        ("3+4i", "$3$", False),
        ("7 + 2i", "$7+2i$", True),
        ("12 cm", "$12$", True),
        (r"6\%", "$6$", True),
        (r"\$18.90", r"$\$18.90$", True),
        (r"\$32,\!348", "$32348$", True),
        (r"\frac43", r"\frac{4}{3}", True),
        (r"\sqrt{51}", r"\sqrt{51}", True),
        ("(3,4]", "(3,4]", True),
        ("(1,2)", "$(2,1)$", False),
        ("5", "$x=5$", True),
        ("4/3", "It is 4/3 of it", True),
    ],
)
def test_an_accepted_answer_counts_whole(answer: str, text: str, correct: bool) -> None:
    """As data sets spell answers, bare: no number is cut out of an accepted answer, nor out of a
    completion that is one expression.
    """
    assert parse_matcher("math")(Example("x", QUESTION, (answer,)), text) is correct


@pytest.mark.parametrize(
    ("answer", "text", "correct"),
    [
        ("A", "A", True),
        ("A", "(A).", True),
        ("A", "A good answer is B", False),
        ("B", "A good answer is B", True),
        ("A", "I am sure. The answer is (A).", True),
        ("A", r"\boxed{\text{(A)}}", True),
        (r"\text{even}", "The answer is even.", True),
        (r"\text{even}", "odd", False),
        ("even", r"\boxed{\text{odd}}, not even", False),
        ("Paris", "It is Paris.", True),
        ("Paris", "Pairs", False),
    ],
)
def test_words_and_letters_compare_as_text(answer: str, text: str, correct: bool) -> None:
    """An answer of words is found as whole words, in the box where there is one; a letter is never
    the article.
    """
    assert parse_matcher("math")(Example("x", QUESTION, (answer,)), text) is correct


def _rows(name: str) -> list[dict[str, str]]:
    folder = os.environ.get("BLB_TEST_DATASETS")
    path = Path(folder or "") / name / "test.jsonl"
    if folder is None or not path.is_file():
        pytest.skip(f"{name}/test.jsonl is looked for in the folder that BLB_TEST_DATASETS names")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.slow
def test_each_solution_of_math500_is_right_for_its_own_answer() -> None:
    """500 of 500; a number cut out of the answer counts only where it means the same, as with
    degrees, units and bases.
    """
    matcher = parse_matcher("math")
    rows = _rows("math500")
    examples = [Example(row["unique_id"], QUESTION, (row["answer"],)) for row in rows]
    pairs = list(zip(rows, examples, strict=True))
    assert [row["answer"] for row, own in pairs if not matcher(own, row["solution"])] == []
    for row, own in pairs:
        first = re.match(r"-?\d+", row["answer"])
        if first is not None and first[0] != row["answer"] and matcher(own, f"${first[0]}$"):
            rest = row["answer"][len(first[0]) :]
            assert re.search(r"circ|%|_|text|mbox|degree|inches|,|\\!|\.0*$", rest), row["answer"]


@pytest.mark.slow
def test_each_solution_of_gsm8k_is_right_for_its_own_answer_alone() -> None:
    """1,319 of 1,319, and none for its neighbour's where that is another number."""
    matcher = parse_matcher("math")
    rows = _rows("gsm8k")
    answers = [row["answer"].rpartition("####")[2].strip() for row in rows]
    for row, own, other in zip(rows, answers, [*answers[1:], answers[0]], strict=True):
        assert matcher(Example("x", QUESTION, (own,)), row["answer"]), own
        same = own.replace(",", "") == other.replace(",", "")
        assert same or not matcher(Example("x", QUESTION, (other,)), row["answer"]), (own, other)


def test_any_thread() -> None:
    """A verdict outside the main thread, where no signal arrives, is the same; one of several
    answers suffices.
    """
    found: list[bool] = []
    example = Example("x", QUESTION, ("5", "1/4"))
    thread = threading.Thread(target=lambda: found.append(parse_matcher("math")(example, "$0.25$")))
    thread.start()
    thread.join()
    assert found == [True]


def test_answers_must_be_mathematics() -> None:
    """An accepted answer that cannot be parsed is an error of the data and not a wrong
    completion.
    """
    with pytest.raises(DataError, match=r"'\?\?' is no mathematical expression"):
        parse_matcher("math")(Example("x", QUESTION, ("??",)), "72")


@pytest.mark.slow
def test_forever() -> None:
    """A tower of powers is given up after 10 s of processor time, counted as incorrect with a
    warning; the next one is answered.
    """
    matcher = parse_matcher("math")
    with pytest.warns(UserWarning, match="did not compare .* counts as incorrect"):
        assert matcher(Example("x", QUESTION, ("10",)), "$10^{10^{10^{10}}}$") is False
    assert matcher(Example("x", QUESTION, ("10",)), "$9+1$") is True


def test_a_broken_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the worker cannot start, the error says how to see why; where the extra is missing, its
    name.
    """
    monkeypatch.setattr(math_equality, "_WORKER", math_equality._WORKER.with_name("nowhere.py"))
    with pytest.raises(InputError, match="math-verify ended with exit code 2"):
        math_equality._Process().ask(("1",), "1")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with pytest.raises(InputError, match=r"needs math-verify: pip install 'blackbox-lb\[tasks\]'"):
        parse_matcher("math")


def test_the_worker_bounds_processor_time() -> None:
    """The limit is 10 seconds, of processor time."""
    assert math_worker.SECONDS == 10
