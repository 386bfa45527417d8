"""Compiling for a provider: what fits is left as it is, the rest refitted and its loss told;
nothing is cut silently.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import check_limits, vocabulary_of
from blackbox_lb.bias.records import Entry
from blackbox_lb.errors import BiasError, TokenizerMismatch
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.compiling.compile import compile_bias
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.records import Finding
from blackbox_lb.vocabulary import load_vocabulary
from tests.support.biases import bias_of
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel
from tests.support.fits import projection

ROLLOUTS = ExactModel(30, 6, end=True, seed=1).rollouts(
    400, lambda tokens, prompt: -float(len(tokens)), seed=2, top=8
)
TABLE = NextToken.of(ROLLOUTS)


@pytest.fixture
def learned() -> Bias:
    """A bias for short completions, on every token seen."""
    fit = projection(ROLLOUTS, l2=1.0, next_token=TABLE)
    pairs = zip(fit.token_ids.tolist(), fit.delta.tolist(), strict=True)
    entries = tuple(
        Entry(id=token, text=f" {token}", bias=value, seen=3) for token, value in pairs if value
    )
    return bias_of(*entries, reward="length")


@pytest.fixture
def small(tmp_path: Path) -> Profile:
    """A provider that takes five whole numbers from -2 to 2."""
    path = tmp_path / "small.toml"
    limits = "entries = 5\nfractions = false\nlow = -2.0\nhigh = 2.0"
    path.write_text(f'extends = "vllm"\nname = "small"\n[bias]\n{limits}\n')
    return load_profile(str(path))


@pytest.mark.parametrize(
    ("bias", "facts"),
    [
        (dict.fromkeys(range(6), 1.0), ("6 entries", "5")),
        ({7: 2.5}, ("token 7", "2.5", "-2 to 2")),
        ({7: 0.5}, ("token 7", "0.5", "whole numbers")),
        ({7: 1.0, 100_257: 1.0, 100_265: -1.0, 100_300: 2.0}, ("100300", "100257", "2", "4")),
    ],
)
def test_a_bias_that_the_provider_does_not_take_is_refused(
    small: Profile, bias: dict[int, float], facts: tuple[str, ...]
) -> None:
    """The token, its value, the limit and the remedy are named; the highest of ids that are refused
    and how many there are. At the limit nothing is refused.
    """
    with raises_naming(BiasError, "``provider=small``", *facts):
        check_limits(bias, small, 100_257)
    check_limits({7: 1.0, 100_257: 1.0}, small, 100_257)


def test_what_was_found_of_the_other_policy_is_not_said_of_this_one(learned: Bias) -> None:
    """The finding of the test goes with the verdict, and a value that changed has no standard
    error; other findings stay.
    """
    findings = tuple(
        Finding(code=code, word="PASS", sentence="so it was") for code in ("test", "headroom")
    )
    entries = tuple(entry.model_copy(update={"error": 0.1}) for entry in learned.entries)
    judged = learned.replacing(findings=findings, entries=entries)
    few = compile_bias(judged, load_profile("vllm"), TABLE, entries=3)
    assert [each.code for each in few.findings] == ["headroom"]
    assert all(
        entry.error is None for entry in few.entries if entry.bias != learned.logit_bias[entry.id]
    )
    assert any(entry.bias != learned.logit_bias[entry.id] for entry in few.entries)
    assert compile_bias(judged, load_profile("vllm"), TABLE).entries == entries


@pytest.mark.usefixtures("tiktoken_cache")
def test_a_vocabulary_that_is_not_the_bias_s_is_refused(learned: Bias) -> None:
    """It is named by the option, whatever the model is called."""
    openai = load_profile("openai")
    vocabulary = load_vocabulary("o200k_base")
    prod = learned.replacing(model="prod", tokenizer=vocabulary.fingerprint)
    assert vocabulary_of(prod, [openai], "o200k_base") is vocabulary
    with raises_naming(TokenizerMismatch, "prod", "cl100k_base"):
        vocabulary_of(prod, [openai], "cl100k_base")
