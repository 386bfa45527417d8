"""The reference with weights: what it scores is what a server would have returned, by this
package's own code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from bench.paper.configuration import load_configuration
from bench.paper.lora_grpo import Run
from bench.paper.lora_scoring import cut, outcome_of, prompt_text, reward_function
from bench.paper.scaling import scaled
from blackbox_lb.estimate.choice.goal import Goal
from blackbox_lb.rollouts.judging.verdict import PolicyScores
from blackbox_lb.tasks import Task, parse_reward
from blackbox_lb.types import Example, Prompt

END = 0
ENDS = frozenset({END})
WORDS = ("", " four", " five", "\n", "\nQuestion:", " Question:", "Ques", "tion:")


class Tokenizer:
    """A token is one of WORDS."""

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Their texts joined; the end token has none."""
        assert skip_special_tokens
        return "".join(WORDS[each] for each in ids)


@pytest.mark.parametrize(
    ("ids", "text", "tokens", "finish"),
    [
        ([1, 2, END], " four five", 3, "stop"),
        ([1, 2], " four five", 2, "length"),
        ([1, 3, 4, 2, 2], " four\n", 3, "stop"),
        ([1, 6, 7, 2], " four", 3, "stop"),
        ([6, 1], "Ques four", 2, "length"),
        ([END], "", 1, "stop"),
    ],
)
def test_a_completion_ends_where_a_server_ends_it(
    ids: list[int], text: str, tokens: int, finish: str
) -> None:
    """At the end token, at the limit, or before the first stop text, counted with the token that
    completes it.
    """
    found = cut(Tokenizer(), ids, ["\nQuestion:", "Question:"], ENDS)
    assert (found.text.removesuffix("\n"), found.n_tokens) == (text.removesuffix("\n"), tokens)
    assert found.finish_reason == finish
    assert found.readable


def test_rewards_of_a_batch_are_the_papers() -> None:
    """1{correct} for accuracy and 1{correct} T/length for compression, of the example that each
    completion belongs to.
    """
    examples = [
        Example("a", Prompt.user("2 + 2"), ("four",)),
        Example("b", Prompt.user("2 + 3"), ("five",)),
    ]
    batch = {
        "completion_ids": [[1, END], [1, END], [2, 2, 2, END]],
        "number": [0, 1, 1],
        "prompts": ["", "", ""],
    }
    wanted = {"log-accuracy": [1.0, 0.0, 1.0], "correct-and-short": [8.0, 0.0, 4.0]}
    for spec, values in wanted.items():
        reward = parse_reward(spec, max_tokens=16)
        assert reward_function(examples, reward, Tokenizer(), [], ENDS)(**batch) == pytest.approx(
            values
        )


def test_checkpoints_are_chosen_by_the_goal_of_the_table() -> None:
    """Accuracy takes the most accurate, compression the shortest that keeps the base's accuracy."""

    def outcome(right: list[float], tokens: float) -> object:
        rows = tuple(np.array([each]) for each in right)
        return outcome_of(PolicyScores(rows, rows, tuple(np.array([tokens]) for _ in right)))

    base = outcome([1, 0, 1, 0] * 10, 100)
    tried = [
        outcome([1, 1, 1, 0] * 10, 90),
        outcome([1, 0, 1, 0] * 10, 50),
        outcome([0, 0, 0, 0] * 10, 5),
    ]
    assert Goal(load_configuration("accuracy").objective).ranking(base, tried)[0] == 0  # type: ignore[arg-type]
    assert Goal(load_configuration("compression").objective).ranking(base, tried)[0] == 1  # type: ignore[arg-type]


def test_a_run_has_the_papers_steps_unless_told_fewer() -> None:
    """One epoch of GSM8K: every problem's eight completions once, 16 to a step; a cap only lowers
    the paper's.
    """
    configuration = load_configuration("accuracy")
    settings = configuration.benchmarks["gsm8k"]
    examples = tuple(Example(f"e{n}", Prompt.user(str(n)), ("1",)) for n in range(60))
    task = Task("t", examples[:20], examples[20:40], examples[40:])
    run = Run(configuration, scaled("gsm8k", settings, task, 1.0, 0.1))
    assert (run.per_step, run.steps) == (16, 20 * 8 // 16)
    assert Run(configuration, run.part, max_steps=3).steps == 3
    assert Run(configuration, run.part, max_steps=math.inf).steps == run.steps  # type: ignore[arg-type]
    assert (run.within(512), Run(configuration, run.part, cap=24).within(512)) == (512, 24)


def test_a_prompt_goes_without_a_template() -> None:
    """What the harness wrote is what the model reads."""
    assert (
        prompt_text(Example("a", Prompt.user("Question: 2 + 2\nAnswer:")))
        == "Question: 2 + 2\nAnswer:"
    )
