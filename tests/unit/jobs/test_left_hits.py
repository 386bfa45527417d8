"""The end of a fit with words to avoid says when phrases would help more than the vector."""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox_lb.jobs.fitting.left_hits import phrases_left
from blackbox_lb.tasks import parse_reward
from blackbox_lb.tasks.rewards.forms.avoid import AvoidList
from tests.support.commands import asking, blb, options
from tests.support.errors import names
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well
from tests.support.questions import questions, write_rows
from tests.support.stored import token_completion

MODEL = ExactModel(7, 6, end=True, prompts=4, sharpness=0.7)
"""Six words, each one token."""
SPELLED = {0: b" lamp", 1: b" lan", 2: b"tern", 3: b" a", 4: b" lone", 5: b".", 6: b""}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ((0, 5, 6), (1, 0)),
        ((1, 2, 5), (1, 1)),
        ((3, 4, 0, 5), (1, 1)),
        ((3, 4, 0, 0), (2, 1)),
        ((3, 5), (0, 0)),
    ],
)
def test_what_stands_within_one_token_is_a_vectors(
    tokens: tuple[int, ...], expected: tuple[int, int]
) -> None:
    """A word of two tokens and a phrase are not; of both in one place the phrase is the hit. Where
    the bytes of tokens are not known, words count.
    """
    reward = parse_reward("avoid:lamp,lantern,a lone lamp", max_tokens=9)
    assert isinstance(reward, AvoidList)
    completion = token_completion(b"".join(SPELLED[token] for token in tokens).decode(), tokens)
    assert phrases_left(reward, [completion], SPELLED) == expected
    by_words = phrases_left(reward, [completion], {})
    assert by_words == (expected[0], expected[1] - (1 in tokens))


@pytest.mark.parametrize(
    ("listed", "more", "is_said"),
    [
        ("a b,b c,c d,d a", {}, True),
        ("a,b", {}, False),
        ("a b,b c,c d,d a", {"phrases": "x y"}, False),
    ],
    ids=["phrases are left", "words are left", "phrases are kept out"],
)
def test_a_fit_says_it_at_its_end(
    server: ExactServer, tmp_path: Path, listed: str, more: dict[str, str], is_said: bool
) -> None:
    """Of phrases alone, all that is left are phrases; words of one token are left to the vector."""
    write_rows(tmp_path / "data.jsonl", questions(8, 4, 8))
    where = asking(server, out=tmp_path / "run", data=tmp_path / "data.jsonl", seed=1)
    sampling = options(max_tokens=6, top_logprobs=7, l2=2, samples_per_prompt=20)
    judged = options(validation_samples=4, test_samples=8, reward=f"avoid:{listed}", **more)
    result = ended_well(blb("fit", *where, *sampling, *judged))
    text = " ".join(result.stderr.split())
    assert names(text, "100 %", f"--phrases '{listed}'", "docs/phrases.md") == is_said
    assert ("docs/phrases.md" in text) == is_said
