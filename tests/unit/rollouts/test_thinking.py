"""Thinking: its length, what rewards count, loops, and the alternatives that somebody writes
down.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.errors import InputError
from blackbox_lb.rollouts.judging.verdict import score
from blackbox_lb.tasks import parse_reward
from blackbox_lb.tasks.rewards.thinking import LOOP, TIMES, Thinking, loops
from blackbox_lb.types import Completion, Example, Prompt
from tests.support.commands import asking, blb, options
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import questions, write_rows

TEXTS = ("a ", "<th", "ink>", "b ", "</think>", "c")
INSIDE = "inside:<think>..</think>"


def completion(*tokens: int, reason: str = "stop", generated: int | None = None) -> Completion:
    """One of these tokens."""
    ids = np.array(tokens, np.int32)
    return Completion(
        "".join(TEXTS[token] for token in tokens),
        reason,
        ids,
        np.zeros(len(ids), np.float32),
        np.zeros((len(ids), 0), np.int32),
        np.zeros((len(ids), 0), np.float32),
        token_bytes={token: TEXTS[token].encode() for token in set(tokens)},
        generated=len(tokens) if generated is None else generated,
    )


@pytest.mark.parametrize(
    ("spec", "tokens", "lengths"),
    [
        (INSIDE, (1, 2, 3, 3, 4, 5), (3, 3, True)),
        (INSIDE, (5, 5), (0, 2, True)),
        (INSIDE, (1, 2, 3, 3), (2, 2, False)),
        ("until:</think>", (3, 3, 4, 5, 0), (3, 2, True)),
        ("until:</think>", (3, 3), (2, 0, False)),
        ("until:k>b", (1, 2, 3, 5), (3, 1, True)),
    ],
)
def test_tokens_inside_and_outside(
    spec: str, tokens: tuple[int, ...], lengths: tuple[int, int, bool]
) -> None:
    """OPEN is outside, CLOSE inside, a token that completes a text is of what it ends; without
    tokens the text is shared out.
    """
    thinking = Thinking.parse(spec)
    listed = completion(*tokens)
    assert thinking.lengths(listed) == lengths
    unlisted = replace(completion(generated=len(tokens)), text=listed.text)
    found = thinking.lengths(unlisted)
    assert (sum(found[:2]), found[2]) == (len(tokens), lengths[2])
    assert abs(found[0] - lengths[0]) <= 2


def test_bytes_come_from_the_store_when_one_is_missing() -> None:
    """It is asked once; unlisted tokens belong to the part in which the completion ended."""
    asked = list[int]()

    def known() -> dict[int, bytes]:
        asked.append(1)
        return {token: text.encode() for token, text in enumerate(TEXTS)}

    thinking = Thinking.parse(INSIDE)
    thinking.known = known
    for _ in range(3):
        one = completion(1, 2, 3, 4, 5)
        one = replace(one, token_bytes={})
        assert thinking.lengths(one) == (2, 3, True)
    assert len(asked) == 1
    ended = replace(
        completion(1, 2, 3), token_ids=np.array([1, 2, 3, 99], np.int32), generated=4
    )  # the end token has no bytes
    assert [thinking.lengths(ended) for _ in range(3)] == [(2, 2, False)] * 3
    assert len(asked) == 2
    assert thinking.lengths(completion(1, 2, 3, generated=5, reason="length")) == (3, 2, False)


def test_rewards_count_what_is_named() -> None:
    """All, thinking or answer; where thinking never ends, all of it counts. What is no thinking is
    refused with the remedy.
    """
    example = Example("x", Prompt.user("?"), ("c",))
    done, cut = completion(1, 2, 3, 3, 4, 5), completion(1, 2, 3, 3)
    for count, values in (("all", (2, 3)), ("thinking", (4, 3)), ("answer", (4, 3))):
        reward = parse_reward("length", max_tokens=12, thinking=INSIDE, count=count)
        found = [np.exp(reward.score(example, drawn).value) for drawn in (done, cut)]
        assert found == pytest.approx(values)
    short = parse_reward("correct-and-short", max_tokens=12, thinking=INSIDE, count="thinking")
    assert np.exp(short.score(example, done).value) == pytest.approx(4)
    assert short.score(Example("x", Prompt.user("?"), ("z",)), done).value == -np.inf
    assert short.label == "correct x T/len (len: thinking)"
    with raises_naming(InputError, "``thinking``"):
        parse_reward("contains", max_tokens=9, count="answer", thinking=INSIDE)
    for spec in ("first", "after:x", "inside:a", "until:", "until:x,first", "think"):
        named = f"``thinking={spec!r}``"
        with raises_naming(InputError, named, "inside:OPEN..CLOSE", "until:TEXT"):
            parse_reward("length", max_tokens=9, thinking=spec)


def test_metrics_of_thinking() -> None:
    """Tokens inside and outside, the share that ended before the limit, and that loops."""
    reward = parse_reward("contains", max_tokens=12, thinking=INSIDE)
    drawn = [completion(1, 2, 3, 4, 5), completion(1, 2, *[3, 0] * 20, reason="length")]
    found = score(reward, [Example("x", Prompt.user("?"), ("c",))], [drawn])
    metrics = {name: rows[0].tolist() for name, rows in found.metrics("contains").items()}
    assert metrics == {
        "contains": [1, 0],
        "accuracy": [1, 0],
        "tokens": [5, 42],
        "thinking tokens": [2, 40],
        "answer tokens": [3, 2],
        "finished": [1, 0],
        "loops": [0, 1],
    }


def test_a_loop_is_the_same_tokens_again_and_again() -> None:
    """Ten in a row, four times without overlap; a long run of one token is one, too."""
    row = list(range(LOOP))
    assert loops(row * TIMES)
    assert not loops(row * (TIMES - 1))
    assert not loops([7] * (LOOP * TIMES - 1))
    assert loops([7] * LOOP * TIMES)
    assert not loops([*range(200)])
    assert loops([each for number in range(TIMES) for each in (*row, 100 + number)])


MODEL = ExactModel(6, 8, seed=3, sharpness=0.6)
"""Tokens " a" to " f"."""


def test_the_arms_in_an_evaluation(tmp_path: Path) -> None:
    """A hand list and a number on the closing text stand in the table, with the metrics of
    thinking, of which less is better but for the share that ended.
    """
    data, words = tmp_path / "data.jsonl", tmp_path / "words.txt"
    write_rows(data, questions(8, 8, 8, answer="b"))
    words.write_text("a\nnowhere near\n\nc\n")
    with ExactServer(MODEL) as server:
        where = asking(server, data=data, out=tmp_path, max_tokens=8)
        task = (*where, *options(reward="correct-and-short", thinking="until: f", count="thinking"))
        arms = ("--rival", f"words:{words}:-4", "--rival", "close:5")
        told = blb("eval", *task, *arms, "--deploy", "greedy", "--seed", 1, "--json", "--go-on")
        assert told.exit_code == 0, told.output
        assert (
            "the list has 2 tokens, spellings of 2 of its 3 words; none of nowhere near"
            in told.stderr
        )
        found: dict[str, Any] = json.loads(told.stdout)
        policies = {
            row["name"]: {name: mean["mean"] for name, mean in row["metrics"].items()}
            for row in found["policies"]
        }
        assert [*policies] == ["base", "words at -4", "' f' at +5"]
        assert policies["' f' at +5"]["thinking tokens"] < policies["base"]["thinking tokens"]
        assert policies["base"]["finished"] == 0
        better = {row["metric"]: row["better"] for row in found["comparisons"]}
        lower = {"thinking tokens", "answer tokens", "loops"}
        assert {name: better[name] for name in (*lower, "finished")} == {
            **dict.fromkeys(lower, "lower"),
            "finished": "higher",
        }
        words_of = (f"words:{tmp_path / 'none.txt'}:-2", f"words:{words}:x", f"words:{words}")
        plain = (*where, "--reward", "contains")
        for arguments, sentence in (
            *(((*task, "--rival", rival), "give words:FILE:NATS") for rival in words_of),
            ((*plain, "--rival", "close:2"), "name it, as in --thinking"),
            ((*plain, "--count", "thinking"), "--count thinking needs --thinking"),
        ):
            refused = blb("eval", *arguments, "--deploy", "greedy")
            assert refused.exit_code == 2, refused.output
            assert sentence in " ".join(refused.output.split())
