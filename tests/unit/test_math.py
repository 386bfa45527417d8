"""The math matcher: equal values in any notation are correct, what is unparsable or takes forever
is not, from any thread.
"""

from __future__ import annotations

import threading

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
