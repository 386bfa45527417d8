"""Compiling for a provider: what fits is left as it is, the rest refitted and its loss told; nothing is cut silently."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from blackbox_lb.bias import Bias, Entry
from blackbox_lb.compile import check_limits, compile_bias, most_entries
from blackbox_lb.errors import BiasError
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.projection import projection
from blackbox_lb.estimate.sparse import against, sparsify
from blackbox_lb.profiles import Profile, load_profile
from blackbox_lb.testing import ExactModel

ROLLOUTS = ExactModel(30, 6, end=True, seed=1).rollouts(800, lambda tokens, prompt: -float(len(tokens)), seed=2, top=8)
TABLE = NextToken.of(ROLLOUTS)


@pytest.fixture
def learned() -> Bias:
    """A bias for short completions, on every token seen."""
    fit = projection(ROLLOUTS, l2=5.0, next_token=TABLE)
    pairs = zip(fit.token_ids.tolist(), fit.delta.tolist(), strict=True)
    entries = tuple(Entry(id=token, text=f" {token}", bias=value, seen=3) for token, value in pairs if value)
    return Bias(provider="vllm", model="m", tokenizer="t", reward="length", estimator="projection", entries=entries)


@pytest.fixture
def small(tmp_path: Path) -> Profile:
    """A provider that takes five whole numbers from -2 to 2."""
    path = tmp_path / "small.toml"
    path.write_text(
        'extends = "vllm"\nname = "small"\n[bias]\nentries = 5\nfractions = false\nlow = -2.0\nhigh = 2.0\n'
    )
    return load_profile(str(path))


def test_what_fits_is_left_as_it_is(learned: Bias) -> None:
    """A provider without limits gets the learned values, and the loss is 0."""
    compiled = compile_bias(learned, load_profile("llamacpp"), TABLE)
    assert compiled.logit_bias == learned.logit_bias
    assert compiled.compiled is not None
    assert compiled.compiled.kl_lost_nats_per_token == pytest.approx(0, abs=1e-9)
    assert compiled.provider == "llamacpp"


def test_limits_are_kept_and_the_loss_is_told(learned: Bias, small: Profile) -> None:
    """Five whole numbers in range; what was dropped is counted; the verdict of the other policy is gone."""
    compiled = compile_bias(learned, small, TABLE)
    check_limits(compiled.logit_bias, small)
    assert 0 < len(compiled.entries) <= 5
    assert compiled.compiled is not None
    assert compiled.compiled.dropped == len(learned.entries) - len(compiled.entries)
    assert 0 < (compiled.compiled.kept_share or 0) < 1
    assert compiled.status == "UNVERIFIED"
    assert {entry.text for entry in compiled.entries} <= {entry.text for entry in learned.entries}


def test_more_entries_keep_more(learned: Bias) -> None:
    """The loss falls as entries are added."""
    losses = []
    for entries in (1, 3, 10, 20):
        made = compile_bias(learned, load_profile("vllm"), TABLE, entries=entries).compiled
        assert made is not None
        losses.append(made.kl_lost_nats_per_token)
    assert losses == sorted(losses, key=lambda loss: -(loss or 0))


def test_wishes_beyond_the_limit_are_refused(small: Profile) -> None:
    """Both numbers are named; without a limit any wish goes."""
    with pytest.raises(BiasError, match="6 entries are wanted, small takes at most 5"):
        most_entries(small, 6)
    assert most_entries(small, None) == 5
    assert most_entries(load_profile("llamacpp"), None) is None
    assert most_entries(load_profile("llamacpp"), 9_000) == 9_000


@pytest.mark.parametrize(
    ("bias", "sentence"),
    [
        (dict.fromkeys(range(6), 1.0), "6 entries, small takes at most 5"),
        ({7: 2.5}, "token 7 is 2.5, small takes -2 to 2"),
        ({7: 0.5}, "token 7 is 0.5, small takes whole numbers"),
    ],
)
def test_a_bias_that_the_provider_does_not_take_is_refused(
    small: Profile, bias: dict[int, float], sentence: str
) -> None:
    """The token, its value and the limit are named."""
    with pytest.raises(BiasError, match=sentence):
        check_limits(bias, small)


def test_ids_that_the_provider_refuses_are_named(small: Profile) -> None:
    """The highest of them, the limit, how many there are and the remedy; at the limit and without one nothing is refused."""
    bias = {7: 1.0, 100_257: 1.0, 100_265: -1.0, 100_300: 2.0}
    with pytest.raises(
        BiasError, match=r"token 100300, small takes ids up to 100257 \(2 of 4 are above\); fit with --provider small"
    ):
        check_limits(bias, small, 100_257)
    check_limits({7: 1.0, 100_257: 1.0}, small, 100_257)
    check_limits(bias, small)
    check_limits({}, small, 5)


def test_ids_that_the_provider_refuses_are_compiled_away(learned: Bias) -> None:
    """They are left out and counted, and the rest is closer to the learned policy than it is without them."""
    free, highest = load_profile("llamacpp"), 25
    compiled = compile_bias(learned, free, TABLE, highest_id=highest)
    assert max(compiled.logit_bias) <= highest < max(learned.logit_bias)
    check_limits(compiled.logit_bias, free, highest)
    assert compiled.compiled is not None
    assert compiled.compiled.dropped == len(learned.entries) - len(compiled.entries)
    values = TABLE.align(list(learned.logit_bias), list(learned.logit_bias.values()))
    cut = sparsify(TABLE, np.where(TABLE.token_ids <= highest, values, 0.0))
    lost = against(TABLE, values, cut).kl_lost
    assert 0 < (compiled.compiled.kl_lost_nats_per_token or 0) < lost
