"""What goes out is what the profile claims, in both directions."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from blackbox_lb.errors import InputError, ProfileError
from blackbox_lb.profiles import Profile, load_profile, profile_names
from blackbox_lb.types import Endpoint, Message, Prompt, Sampling
from blackbox_lb.wire import build_request

NEUTRAL: dict[str, dict[str, Any]] = {
    "vllm": {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    },
    "llamacpp": {
        "temperature": 1.0,
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "typical_p": 1.0,
        "repeat_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "xtc_probability": 0.0,
        "dry_multiplier": 0.0,
        "mirostat": 0,
        "dynatemp_range": 0.0,
        "top_n_sigma": -1.0,
    },
}
NEUTRAL["local"] = NEUTRAL["llamacpp"]
EXTRA: dict[str, dict[str, Any]] = {
    "vllm": {"return_token_ids": True, "return_tokens_as_token_ids": True},
    "llamacpp": {},
    "local": {},
}
HELLO = Prompt.user("hello")
SAMPLING = Sampling(max_tokens=7, top_logprobs=5)


def body(profile: Profile, endpoint: Endpoint = "chat", **changes: Any) -> dict[str, Any]:
    """A request of the usual prompt."""
    return build_request(profile, endpoint, **{"model": "m", "prompt": HELLO, "sampling": SAMPLING, **changes})


@pytest.mark.parametrize("name", profile_names())
@pytest.mark.parametrize("endpoint", get_args(Endpoint))
def test_a_request_is_neutral_and_holds_nothing_else(name: str, endpoint: Endpoint) -> None:
    """Every sampling knob of the provider is sent at its neutral value, and no unlisted field is."""
    content: dict[str, dict[str, Any]] = {
        "chat": {"messages": [{"role": "user", "content": "hello"}]},
        "completions": {"prompt": "hello"},
    }
    asked: dict[str, dict[str, Any]] = {"chat": {"logprobs": True, "top_logprobs": 5}, "completions": {"logprobs": 5}}
    expected = {"model": "m", "max_tokens": 7, **content[endpoint], **asked[endpoint], **NEUTRAL[name], **EXTRA[name]}
    assert body(load_profile(name), endpoint) == expected


@pytest.mark.parametrize(("name", "form"), [("vllm", {"5": 1.5, "9": -100.0}), ("llamacpp", [[5, 1.5], [9, -100.0]])])
def test_the_bias_goes_out_in_the_providers_form(name: str, form: Any) -> None:
    """vLLM takes an object with string keys, llama.cpp a list of pairs; an empty bias is not sent at all."""
    assert body(load_profile(name), bias={5: 1.5, 9: -100.0})["logit_bias"] == form
    assert "logit_bias" not in body(load_profile(name), bias={})


def test_temperature_and_seed_are_the_callers() -> None:
    """Temperature 0 and a seed of 0 are sent like any other value; without a seed none is."""
    sent = body(load_profile("vllm"), sampling=Sampling(temperature=0.0, seed=0))
    assert (sent["temperature"], sent["seed"]) == (0.0, 0)
    assert "seed" not in body(load_profile("vllm"))


def test_more_alternatives_than_listed_are_refused() -> None:
    """The limit, the wish and the remedy are named."""
    with pytest.raises(ProfileError, match=r"at most 20 top logprobs a token, 21 were asked for; .*--max-logprobs"):
        body(load_profile("vllm"), sampling=Sampling(top_logprobs=21))


def test_a_dialogue_does_not_fit_the_completions_endpoint() -> None:
    """Several messages have no one text."""
    prompt = Prompt((Message("system", "be brief"), Message("user", "hello")))
    assert len(body(load_profile("vllm"), prompt=prompt)["messages"]) == 2
    with pytest.raises(InputError, match="2 messages; use --endpoint chat"):
        body(load_profile("vllm"), "completions", prompt=prompt)
