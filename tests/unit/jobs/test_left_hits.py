"""The end of a fit with words to avoid says when phrases would help more than the vector."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blackbox_lb.jobs.fitting.left_hits import FEWEST, advice, phrases_left
from blackbox_lb.jobs.fitting.scored_policies import BIASED
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.tasks import parse_reward
from blackbox_lb.tasks.rewards.forms.avoid import AvoidList
from blackbox_lb.types import Completion
from tests.support.commands import asking, blb, options
from tests.support.errors import names
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import questions, write_rows

MODEL = ExactModel(7, 6, end=True, prompts=4, sharpness=0.7)
"""Six words, each one token."""
SPELLED = {0: b" lamp", 1: b" lan", 2: b"tern", 3: b" a", 4: b" lone", 5: b".", 6: b""}


def completion(*tokens: int, text: str | None = None) -> Completion:
    """One of these tokens."""
    written = b"".join(SPELLED[token] for token in tokens).decode()
    ids = np.array(tokens, np.int32)
    zeros = np.zeros(len(tokens), np.float32)
    return Completion(
        written if text is None else text, "stop", ids, zeros, ids[:, None], zeros[:, None]
    )


def avoid(words: str) -> AvoidList:
    """The reward."""
    reward = parse_reward(f"avoid:{words}", max_tokens=9)
    assert isinstance(reward, AvoidList)
    return reward


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
    """A word of two tokens and a phrase are not; of both in one place the phrase is the hit."""
    reward = avoid("lamp,lantern,a lone lamp")
    assert phrases_left(reward, [completion(*tokens)], SPELLED) == expected


def test_where_tokens_do_not_make_up_the_text_words_count() -> None:
    """As where a server lists no bytes."""
    reward = avoid("lamp,a lone lamp")
    unlisted = completion(3, 4, 0, text=" a lone lamp, a lamp")
    assert phrases_left(reward, [unlisted], {}) == (2, 1)


def told(phrases: int, words: int, provider: str = "llamacpp", **plan: Any) -> str:
    """The advice where so many phrases and words are left."""
    rows = [(completion(1, 2),)] * phrases + [(completion(0),)] * words
    test: Any = SimpleNamespace(
        tests=[SimpleNamespace(policies={BIASED: SimpleNamespace(completions=tuple(rows))})]
    )
    profile = load_profile(provider)
    job: Any = SimpleNamespace(
        plan=SimpleNamespace(**{"parsed_phrases": None, **plan}),
        trials=SimpleNamespace(
            reward=avoid("lamp,lantern"),
            store=SimpleNamespace(token_bytes=lambda fingerprint: SPELLED),
            tokenizer=SimpleNamespace(fingerprint="f"),
            session=SimpleNamespace(profile=profile, biased_endpoint="chat"),
        ),
    )
    return advice(job, test)


def test_above_a_half_the_remedy_is_named() -> None:
    """With the share and the number of hits; at a half, and of few hits, nothing is said."""
    assert names(told(11, 7), "61 %", "18", "``phrases=lamp,lantern``", "docs/phrases.md")
    assert told(9, 9) == ""
    assert told(FEWEST - 1, 0) == ""
    assert told(FEWEST, 0) != ""


def test_a_server_that_cannot_step_back_is_told_those_that_can() -> None:
    """By name."""
    assert names(told(18, 0, "openai"), "100 %", "openai", "vllm", "llamacpp")


def test_a_bias_that_keeps_phrases_out_needs_no_advice() -> None:
    """Nor does another reward."""
    assert told(18, 0, parsed_phrases=object()) == ""


@pytest.mark.parametrize(("listed", "is_said"), [("a b,b c,c d,d a", True), ("a,b", False)])
def test_a_fit_says_it_at_its_end(
    server: ExactServer, tmp_path: Path, listed: str, is_said: bool
) -> None:
    """Of phrases alone, all that is left are phrases; words of one token are left to the vector."""
    write_rows(tmp_path / "data.jsonl", questions(8, 4, 8))
    where = asking(server, out=tmp_path / "run", data=tmp_path / "data.jsonl", seed=1)
    sampling = options(
        max_tokens=6,
        top_logprobs=7,
        l2=2,
        samples_per_prompt=20,
        validation_samples=4,
        test_samples=8,
    )
    result = blb("fit", *where, *sampling, "--reward", f"avoid:{listed}")
    assert result.exit_code == 0, result.output
    text = " ".join(result.stderr.split())
    assert names(text, "100 %", f"--phrases '{listed}'", "docs/phrases.md") == is_said
