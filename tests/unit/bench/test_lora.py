"""The reference with weights: what it scores is what a server would have returned, by this
package's own code.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from bench.paper.lora_scoring import cut, reward_function
from blackbox_lb.tasks import parse_reward
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
