"""The math matcher: equal values in any notation are correct, what is unparsable or takes forever
is not, from any thread.
"""

from __future__ import annotations

import json
import os
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks.rewards import matching
from blackbox_lb.tasks.rewards.matching import parse_matcher
from blackbox_lb.types import Example, Prompt
from tests.support.errors import raises_naming

pytestmark = pytest.mark.needs("math_verify")
QUESTION = Prompt.user("?")
MATH500 = os.environ.get("BLB_TEST_MATH500", "")
GSM8K = os.environ.get("BLB_TEST_GSM8K", "")
"""Files of test rows: MATH-500's test.jsonl (``answer``, ``solution``), GSM8K's (``answer``)."""


def is_right(answer: str, text: str) -> bool:
    """The verdict of the matcher ``math``."""
    return parse_matcher("math")(Example("x", QUESTION, (answer,)), text)


EXPRESSIONS = [
    # An answer as data sets spell it; a number cut out of it is another one.
    ("1/2", "so it is $0.5$", "$1$"),
    (r"\frac{1}{2}", r"hence \boxed{\frac{2}{4}}", "I do not know"),
    ("x^2+2x+1", "$(x+1)^2$", ""),
    ("1,234", "The answer is 1234.", "$1$"),
    ("72.", "#### 72", "#### 73"),
    ("2k", "$2k$", "$2$"),
    (r"2\sqrt{3}", r"$\sqrt{12}$", "$2$"),
    ("1,-2", "$-2, 1$", "$1$"),
    (r"1 \pm \sqrt{19}", r"$1-\sqrt{19}, 1+\sqrt{19}$", "$1$"),
    (r"137 \frac{1}{2}", "$137.5$", "$137$"),
    ("1 1/2", "$1.5$", "$1$"),
    (r"11,\! 111,\! 100", "$11111100$", "$100$"),
    ("10 000", "10000", "0"),
    ("(1,2)", "$(1,2)$", "$(2,1)$"),
    ("(3,4]", "$(3,4]$", "$(3,4)$"),
    (r"x \in [-2,7]", r"$[-2,7]$", "$-2$"),
    (
        r"\begin{pmatrix} -7 \\ 16 \end{pmatrix}",
        r"$\begin{pmatrix} -14/2 \\ 16 \end{pmatrix}$",
        "$-7$",
    ),
    (r"\frac43", r"$\frac{4}{3}$", "$4$"),
    (r"\$18.90", r"$\$18.90$", "$18$"),
    ("€5", "$5$", "$6$"),
    (r"90^\circ", "$90$", "$9$"),
    ("12 cm", "$12$", "$1$"),
    (r"15\mbox{ cm}^2", "$15$", "$2$"),
    ("3 red apples", "$3$", "$4$"),
    ("$x^2$", "$x^2$", "$2$"),
    ("He sells 9 of 27.\n#### 18", "$18$", "$9$"),
]
OTHERS = [
    # A text or a letter: the last box holds just it, or it follows "answer is", or ends the text.
    ("A", "A", "a"),
    ("B", "A good answer is B", "A"),
    ("A", "The answer is (A).", "A good answer is B"),
    ("C", "The answer is option C.", "The answer is option A, not C"),
    (r"\text{(C)}", r"hence \boxed{C}", r"hence \boxed{\text{(B)}}"),
    ("k", r"\boxed{x = k}", r"\boxed{2k}"),
    (r"\text{even}", "The answer is even.", "The answer is not even."),
    (r"\text{even}", r"so it is $\text{even}$.", r"\boxed{\text{odd}}, and not even"),
    (r"\text{ellipse}", "The answer is an ellipse.", "The answer is a circle."),
    ("no solution", "There is no solution.", "$4$"),
    ("east", "**East**", "$seat$"),
    ("xy", "$yx$", "$x$"),
    ("1.5 million", "So it is 1.5 million.", "$1.5$"),
    # An answer line without marks is one expression where it holds no words; else its last number.
    ("2", "**2**", r"\sqrt{12}"),
    ("2", "2 apples", r"2\sqrt{3}"),
    ("2", "12/6", r"#### 2\sqrt{3}"),
    ("2", "2 m^2", "The answer is 3, I hope."),
    ("2", "The answer is 2, I hope.", "It is 3\nQED"),
    ("2", "She pays $3 and $4.\n#### 2", "She pays $2 and $4.\n#### 3"),
    ("2", "It is 2\nQED", "12/5"),
    # Small and large numbers, alone, in lists, intervals, equations and products.
    (r"1.6 \times 10^{-19}", r"$16 \cdot 10^{-20}$", r"$9.1 \times 10^{-31}$"),
    (r"1.6 \times 10^{-19}", "The answer is 1.6e-19", r"$1.6 \times 10^{-18}$"),
    (r"1.602177 \times 10^{-19}", r"$1.6022 \times 10^{-19}$", r"$1.602 \times 10^{-19}$"),
    ("1.6e-19", r"$1.6 \times 10^{-19}$", r"$1.6 \cdot e - 19$"),
    ("3e-07", "$0.0000003$", "$0.0000005$"),
    (r"\frac{1}{2^{99}}", "$2^{-99}$", r"$\frac{1}{2^{98}}$"),
    (
        r"\frac{2^{2005}+1}{3 \cdot 2^{2006}}",
        r"$\frac16 + \frac{1}{3 \cdot 2^{2006}}$",
        r"$\frac16$",
    ),
    (r"6.63 \times 10^{34}", r"$66.3 \times 10^{33}$", r"$6.64 \times 10^{34}$"),
    ("123456789", "$123456789.0$", "$123456790$"),
    ("1.0000001", "$1.0000001$", "$1.0000002$"),
    ("0", r"$\sin(\pi)$", "$10^{-20}$"),
    ("10^{-20}", r"$\frac{1}{10^{20}}$", "$0$"),
    (r"x = 1.6 \times 10^{-19}", r"$x = 0.16 \times 10^{-18}$", r"$x = 9.1 \times 10^{-31}$"),
    (r"1.6 \times 10^{-19} x", r"$0.16 \times 10^{-18} x$", r"$9.1 \times 10^{-31} x$"),
    (r"x - 10^{-20}", r"$-10^{-20} + x$", r"$x - 10^{-21}$"),
    ("(10^{-20}, 2)", "$(10^{-20}, 2)$", "$(10^{-21}, 2)$"),
    ("x < 10^{-20}", "$x < 10^{-20}$", "$x < 10^{-21}$"),
    # A rounded decimal: to six decimals, and below a hundredth to five digits.
    ("1/3", "$0.333333$", "$0.33333$"),
    ("1/70", "$0.014286$", "$0.01428$"),
    ("1/7000", "$0.00014286$", "$0.000143$"),
    (r"\pi", "$3.141593$", "$3.14159$"),
    ("0.3", "$0.30000000000000004$", "$0.30001$"),
    (r"6\%", "$0.06$", "$0.6$"),
    (r"12.5\%", "$12.5$", "$12.6$"),
    # Upright e and i, other scripts, full-width signs, dots, a root of brackets; no number is taken
    # out of an expression that cannot be read.
    (r"\mathrm{e}^2", "$e^2$", "$2$"),
    ("2i", r"$2\text{i}$", "$2$"),
    (r"{\rm e}^{\pi\mathrm{i}}", "$-1$", "$1$"),
    ("2i", "$(1+i)^2$", "$(1-i)^2$"),
    ("12", "\\boxed{\uff11\uff12}", "\\boxed{\uff11\uff13}"),
    ("\u0663\u066b\u0665", "$3.5$", "$3$"),
    ("\uff08\uff11\uff0c\uff12\uff09", "$(1,2)$", "$(2,1)$"),
    ("\u0967\u0968", "12", "21"),
    (r"1, 2, \ldots, n", "The answer is 1, 2, ..., n.", "$1, 2, n$"),
    (r"1, 2, \ldots, n", r"\boxed{1,2,\dots,n}", r"\boxed{1,2,\dots,m}"),
    (r"4\sqrt{2}", r"The answer is $4\sqrt(2)$", "$4$"),
    ("4", "The answer is 4", r"The answer is $4\sqrt(2)$"),
    ("4", "$4$", r"$4\unknown[2$"),
]


@pytest.mark.parametrize(("answer", "right", "wrong"), [*EXPRESSIONS, *OTHERS])
def test_equal_values_in_any_notation(answer: str, right: str, wrong: str) -> None:
    """What is equal is correct, and what is not, or is no mathematics, is incorrect. An expression
    alone, and on the last line, is right for itself.
    """
    assert is_right(answer, right)
    assert not is_right(answer, wrong)
    if (answer, right, wrong) in EXPRESSIONS:
        assert is_right(answer, answer)
        assert is_right(answer, f"So it is\n{answer}")


@pytest.mark.parametrize("answer", ["??", "", r"\frac{1}{"])
def test_what_is_neither_is_an_error(answer: str) -> None:
    """Broken LaTeX would never match, so that it is said."""
    with pytest.raises(DataError):
        is_right(answer, "3")


def test_an_interrupted_question_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """The verdict that was not waited for is not the next question's."""

    def interrupted() -> str:
        raise KeyboardInterrupt

    process = matching._process
    assert process.ask(("1",), "1") is True
    assert process.process is not None
    pipe = process.process.stdout
    assert pipe is not None
    monkeypatch.setattr(
        process.process, "stdout", SimpleNamespace(readline=interrupted, close=pipe.close)
    )
    with pytest.raises(KeyboardInterrupt):
        process.ask(("1",), "1")
    monkeypatch.undo()
    assert process.ask(("1",), "2") is False


@pytest.mark.slow
@pytest.mark.skipif(not MATH500, reason="BLB_TEST_MATH500 names MATH-500's test.jsonl")
def test_math_500() -> None:
    """Each solution of MATH-500 is correct for its own answer; of the numbers that an answer begins
    with only those that mean the same are: degrees, units, a base.
    """
    lines = Path(MATH500).read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    wrong = [row["answer"] for row in rows if not is_right(row["answer"], row["solution"])]
    assert (len(rows), wrong) == (500, [])
    same = re.compile(r"\d+(\^\\circ|_\{?\d\}?|\\?%|\s*\\(mbox|text)\{.*\}(\^2)?)")
    for row in rows:
        number = re.match(r"-?\d+", row["answer"])
        if number is not None and not re.fullmatch(r"-?\d+|" + same.pattern, row["answer"]):
            assert not is_right(row["answer"], f"${number[0]}$"), row["answer"]
            assert not is_right(number[0], row["answer"]), row["answer"]


@pytest.mark.slow
@pytest.mark.skipif(not GSM8K, reason="BLB_TEST_GSM8K names GSM8K's test.jsonl")
def test_gsm8k() -> None:
    """Each worked solution of GSM8K is correct for its own row, and for its neighbour's only where
    the answers are equal.
    """
    lines = Path(GSM8K).read_text(encoding="utf-8").splitlines()
    solutions = [json.loads(line)["answer"] for line in lines]
    answers = [solution.rpartition("#### ")[2] for solution in solutions]
    for number, answer in enumerate(answers):
        following = (number + 1) % len(answers)
        is_equal = answer.replace(",", "") == answers[following].replace(",", "")
        assert is_right(answer, solutions[number]), answer
        assert is_right(answer, solutions[following]) is is_equal, answer


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
    monkeypatch.setattr(matching, "_WORKER", matching._WORKER.with_name("nowhere.py"))
    with raises_naming(InputError, "math-verify", "2"):
        matching._Process().ask(("1",), "1")
    ended = matching._start()
    ended.wait()
    worker = matching._Process()
    worker.process = ended  # the question itself cannot be written
    with raises_naming(InputError, "math-verify", "2"):
        worker.ask(("1",), "1")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    with raises_naming(InputError, "'.[tasks]'"):
        parse_matcher("math")
