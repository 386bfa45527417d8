"""What goes out is what the profile claims, in both directions: setting by setting, for every
provider and endpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.wire import build_request
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import InputError, ProfileError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.types import Message, Prompt, Sampling
from tests.support.errors import raises_naming
from tests.wire.conftest import ProfileWith

HELLO = Prompt.user("hello")
SAMPLING = Sampling(max_tokens=7, top_logprobs=5)
MESSAGES = [{"role": "user", "content": "hello"}]

OPENAI: dict[str, Any] = {
    "model": "m",
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
FIREWORKS: dict[str, Any] = {
    **OPENAI,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "context_length_exceeded_behavior": "error",
    "max_tokens": 7,
    "logprobs": True,
    "top_logprobs": 5,
}
OPEN: dict[str, Any] = {
    **OPENAI,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "max_tokens": 7,
}
"""Where 0 switches top_k off."""
VLLM: dict[str, Any] = {**OPEN, "return_token_ids": True, "return_tokens_as_token_ids": True}
SGLANG: dict[str, Any] = {**OPEN, "top_k": -1, "return_token_ids": True, "return_meta_info": True}
LMSTUDIO: dict[str, Any] = {**OPENAI, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}
LLAMACPP: dict[str, Any] = {
    **LMSTUDIO,
    "typical_p": 1.0,
    "xtc_probability": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "dynatemp_range": 0.0,
    "top_n_sigma": -1.0,
    "max_tokens": 7,
}
ROUTED: dict[str, Any] = {**OPENAI, "max_tokens": 7, "provider": {"require_parameters": True}}
TOGETHER: dict[str, Any] = {
    **OPEN,
    "top_k": -1,
    "logprobs": 5,
    "context_length_exceeded_behavior": "error",
}
BYTEPLUS: dict[str, Any] = {
    **OPENAI,
    "top_k": 0,
    "repetition_penalty": 1.0,
    "max_tokens": 7,
    "thinking": {"type": "disabled"},
}
NOVITA: dict[str, Any] = {**OPEN, "top_k": -1}
MLX: dict[str, Any] = {
    **OPEN,
    "repetition_penalty": 0.0,
    "xtc_probability": 0.0,
    "logprobs": True,
    "top_logprobs": 5,
}
CHAT: dict[str, Any] = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 5}
TEXT: dict[str, Any] = {"prompt": "hello", "logprobs": 5}
INCLUDE = ["message.output_text.logprobs"]

EXPECTED: dict[tuple[str, Endpoint], dict[str, Any]] = {
    ("openai", "chat"): {**OPENAI, **CHAT, "max_completion_tokens": 7},
    ("openai", "completions"): {**OPENAI, **TEXT, "max_tokens": 7},
    ("azure", "chat"): {**OPENAI, **CHAT, "max_completion_tokens": 7},
    ("azure", "completions"): {**OPENAI, **TEXT, "max_tokens": 7},
    ("azure-classic", "chat"): {**OPENAI, **CHAT, "max_tokens": 7},
    ("azure-classic", "completions"): {**OPENAI, **TEXT, "max_tokens": 7},
    ("fireworks", "chat"): {**FIREWORKS, "messages": MESSAGES},
    ("fireworks", "completions"): {**FIREWORKS, "prompt": "hello"},
    ("vllm", "chat"): {**VLLM, **CHAT},
    ("vllm", "completions"): {**VLLM, **TEXT},
    ("sglang", "chat"): {**SGLANG, **CHAT},
    ("sglang", "completions"): {**SGLANG, **TEXT},
    ("llamacpp", "chat"): {**LLAMACPP, **CHAT},
    ("llamacpp", "completions"): {**LLAMACPP, **TEXT},
    ("local", "chat"): {**LLAMACPP, **CHAT},
    ("local", "completions"): {**LLAMACPP, **TEXT},
    ("openrouter", "chat"): {**ROUTED, **CHAT},
    ("together", "chat"): {**TOGETHER, "messages": MESSAGES},
    ("together", "completions"): {**TOGETHER, "prompt": "hello"},
    ("novita", "chat"): {**NOVITA, **CHAT},
    ("novita", "completions"): {**NOVITA, **TEXT},
    ("deepinfra", "chat"): {**OPEN, **CHAT},
    ("mlx", "chat"): {**MLX, "messages": MESSAGES},
    ("mlx", "completions"): {**MLX, "prompt": "hello"},
    ("nim", "chat"): {**OPEN, **CHAT},
    ("nim", "completions"): {**OPEN, **TEXT},
    ("tabbyapi", "chat"): {**OPEN, "messages": MESSAGES, "logprobs": 5, "dry_multiplier": 0.0},
    ("cerebras", "chat"): {**OPENAI, **CHAT, "max_completion_tokens": 7},
    ("cerebras", "completions"): {**OPENAI, **TEXT, "max_tokens": 7},
    ("byteplus", "chat"): {**BYTEPLUS, **CHAT},
    ("lmstudio", "chat"): {**LMSTUDIO, "messages": MESSAGES, "max_tokens": 7},
    ("lmstudio", "responses"): {
        **LMSTUDIO,
        "input": MESSAGES,
        "max_output_tokens": 7,
        "include": INCLUDE,
        "top_logprobs": 5,
    },
}
"""The whole body of one request, for every endpoint of every profile."""


@dataclass(frozen=True)
class Takes:
    """What an endpoint takes: most alternatives (None: any number, or none at all), most
    completions a request, a seed, how the bias {5: 2 nats, 9: -100 nats} is written (None: it takes
    no bias), and most stop texts (None: any number)."""

    alternatives: int | None
    n: int
    seed: bool
    bias: Any
    stops: int | None


WHOLE = {"5": 2, "9": -100}
FLOATS = {"5": 2.0, "9": -100.0}
PAIRS = [[5, 2.0], [9, -100.0]]
TAKES: dict[tuple[str, Endpoint], Takes] = {
    ("openai", "chat"): Takes(20, 128, True, WHOLE, 4),
    ("openai", "completions"): Takes(5, 128, True, WHOLE, 4),
    ("azure", "chat"): Takes(20, 128, True, WHOLE, 4),
    ("azure", "completions"): Takes(5, 128, True, WHOLE, 4),
    ("azure-classic", "chat"): Takes(20, 128, True, WHOLE, 4),
    ("azure-classic", "completions"): Takes(5, 128, True, WHOLE, 4),
    ("fireworks", "chat"): Takes(5, 128, True, FLOATS, 4),
    ("fireworks", "completions"): Takes(5, 128, True, FLOATS, 4),
    ("vllm", "chat"): Takes(20, 64, True, FLOATS, None),
    ("vllm", "completions"): Takes(20, 64, True, FLOATS, None),
    ("sglang", "chat"): Takes(None, 1, True, FLOATS, None),
    ("sglang", "completions"): Takes(None, 1, True, FLOATS, None),
    ("llamacpp", "chat"): Takes(None, 1, True, PAIRS, None),
    ("llamacpp", "completions"): Takes(None, 1, True, PAIRS, None),
    ("local", "chat"): Takes(None, 1, True, PAIRS, None),
    ("local", "completions"): Takes(None, 1, True, PAIRS, None),
    ("openrouter", "chat"): Takes(20, 1, True, WHOLE, 4),
    ("together", "chat"): Takes(20, 128, True, FLOATS, None),
    ("together", "completions"): Takes(20, 128, True, FLOATS, None),
    ("novita", "chat"): Takes(20, 1, True, FLOATS, 4),
    ("novita", "completions"): Takes(20, 1, True, FLOATS, 4),
    ("deepinfra", "chat"): Takes(20, 1, True, FLOATS, 16),
    ("mlx", "chat"): Takes(10, 1, True, FLOATS, None),
    ("mlx", "completions"): Takes(10, 1, True, FLOATS, None),
    ("nim", "chat"): Takes(20, 1, True, FLOATS, None),
    ("nim", "completions"): Takes(20, 1, True, FLOATS, None),
    ("tabbyapi", "chat"): Takes(None, 1, False, FLOATS, None),
    ("cerebras", "chat"): Takes(20, 1, True, FLOATS, 4),
    ("cerebras", "completions"): Takes(20, 1, True, FLOATS, 4),
    ("byteplus", "chat"): Takes(20, 1, True, WHOLE, 4),
    ("lmstudio", "chat"): Takes(None, 1, False, FLOATS, None),
    ("lmstudio", "responses"): Takes(None, 1, False, None, 0),
}
ENDPOINTS = pytest.mark.parametrize(("name", "endpoint"), list(EXPECTED))
ASKED: dict[str, str | None] = {
    "flag": "top_logprobs",
    "count": "logprobs",
    "include": "top_logprobs",
    "no": None,
}


def body(profile: Profile, endpoint: Endpoint = "chat", **changes: Any) -> dict[str, Any]:
    """A request of the usual prompt."""
    sampling, bias = changes.pop("sampling", SAMPLING), changes.pop("bias", None)
    return build_request(
        profile,
        Draw(sampling, to_request_bias(bias), endpoint),
        **{"model": "m", "prompt": HELLO, **changes},
    )


def shown(fields: dict[str, Any]) -> dict[str, str]:
    """Values as they are written, in which 1 is not 1.0."""
    return {name: repr(value) for name, value in fields.items()}


def test_every_endpoint_of_every_profile_is_in_the_tables() -> None:
    """A new profile, or a new endpoint, comes with what goes out on it."""
    known = [
        (name, endpoint) for name in profile_names() for endpoint in load_profile(name).endpoints
    ]
    assert sorted(EXPECTED) == sorted(known)
    assert sorted(TAKES) == sorted(known)


@ENDPOINTS
def test_what_goes_out_is_the_table(name: str, endpoint: Endpoint) -> None:
    """Each setting is sent under its name and with its value, and none that the table does not
    list. The other direction: every neutral setting, every fixed field and the name of the token
    limit are in what is expected.
    """
    profile, expected = load_profile(name), shown(EXPECTED[name, endpoint])
    assert shown(body(profile, endpoint)) == expected
    claimed = {**profile.neutral, **profile.request, profile.endpoint(endpoint).max_tokens: 7}
    assert shown(claimed).items() <= expected.items()


@ENDPOINTS
def test_as_many_alternatives_as_are_listed_and_no_more(name: str, endpoint: Endpoint) -> None:
    """The limit itself goes out; one more is refused with the limit and the wish; without a limit
    any number goes out.
    """
    profile, most = load_profile(name), TAKES[name, endpoint].alternatives
    field = ASKED[profile.endpoint(endpoint).ask_logprobs]
    asked = 1000 if most is None or profile.logprobs.limit_is_setting else most
    sent = body(profile, endpoint, sampling=Sampling(top_logprobs=asked))
    assert field is None or sent[field] == asked
    if asked == most:
        with raises_naming(ProfileError, most, most + 1, "``top_logprobs``"):
            body(profile, endpoint, sampling=Sampling(top_logprobs=most + 1))


@ENDPOINTS
def test_no_alternatives_is_no_word_of_logprobs(name: str, endpoint: Endpoint) -> None:
    """0 alternatives: the body for 5 less what asks for logprobs, for one completion, as no list
    tells how long several are.
    """
    profile = load_profile(name)
    silent, asking = (body(profile, endpoint, sampling=Sampling(top_logprobs=k)) for k in (0, 5))
    gone = {key for key in asking if key not in silent}
    assert gone <= {"logprobs", "top_logprobs", "include"}
    assert bool(gone) == (profile.endpoint(endpoint).ask_logprobs != "no")
    assert silent == {key: value for key, value in asking.items() if key not in gone}
    with raises_naming(ProfileError, "1", "2"):
        body(profile, endpoint, sampling=Sampling(top_logprobs=0), n=2)


@ENDPOINTS
def test_as_many_completions_as_are_given_and_no_more(name: str, endpoint: Endpoint) -> None:
    """One is not mentioned; several are ``n``; one more than the limit is refused, and so is
    none.
    """
    profile, most = load_profile(name), TAKES[name, endpoint].n
    assert "n" not in body(profile, endpoint, n=1)
    for n in {2, most} if most > 1 else set():
        assert body(profile, endpoint, n=n)["n"] == n
    for n in (most + 1, 0):
        with raises_naming(ProfileError, most, n):
            body(profile, endpoint, n=n)


@ENDPOINTS
def test_a_seed_goes_out_where_one_is_taken(name: str, endpoint: Endpoint) -> None:
    """A seed of 0 is one; where none is taken it is refused instead of dropped."""
    profile, wish = load_profile(name), Sampling(seed=0, top_logprobs=5)
    if TAKES[name, endpoint].seed:
        assert body(profile, endpoint, sampling=wish)["seed"] == 0
    else:
        with raises_naming(ProfileError, "0", "``seed``"):
            body(profile, endpoint, sampling=wish)


@ENDPOINTS
def test_the_bias_goes_out_in_the_providers_form(name: str, endpoint: Endpoint) -> None:
    """An object with string keys or a list of pairs, whole values as integers where no others are
    taken; none is not sent. A fraction that does not fit was the compiler's to round, and goes out
    as it is, for the provider to refuse.
    """
    profile, form = load_profile(name), TAKES[name, endpoint].bias
    assert "logit_bias" not in body(profile, endpoint, bias={})
    if form is None:
        with raises_naming(ProfileError, endpoint, "``endpoint=chat``"):
            body(profile, endpoint, bias={5: 2.0})
    else:
        sent = body(profile, endpoint, bias={5: 2.0, 9: -100.0})["logit_bias"]
        assert repr(sent) == repr(form)
        assert "2.5" in repr(body(profile, endpoint, bias={5: 2.5})["logit_bias"])


@ENDPOINTS
def test_as_many_stop_texts_as_are_taken_and_no_more(name: str, endpoint: Endpoint) -> None:
    """They are a list in the order given, nothing where there are none; one more than the limit is
    refused with both numbers.
    """
    profile, most = load_profile(name), TAKES[name, endpoint].stops
    texts = [f"stop {i}" for i in range(9 if most is None else most)]
    sent = body(profile, endpoint, sampling=replace(SAMPLING, stop=tuple(texts)))
    assert sent.get("stop", []) == texts
    assert "stop" not in body(profile, endpoint)
    if most is not None:
        with raises_naming(ProfileError, most or "no stop texts", most + 1, "'one more'"):
            body(profile, endpoint, sampling=replace(SAMPLING, stop=(*texts, "one more")))


def test_what_no_provider_takes(profile_with: ProfileWith) -> None:
    """An empty stop text, with which every text begins; an endpoint that is not there; a dialogue
    where one text is sent; several completions where no list tells how long each of them is.
    """
    vllm = load_profile("vllm")
    with raises_naming(InputError, "['a', '']"):
        body(vllm, sampling=Sampling(top_logprobs=5, stop=("a", "")))
    with raises_naming(ProfileError, "responses", "chat, completions"):
        body(vllm, "responses")
    dialogue = Prompt((Message("system", "be brief"), Message("user", "hello")))
    assert len(body(vllm, prompt=dialogue)["messages"]) == 2
    with raises_naming(InputError, "2", "``endpoint=chat``"):
        body(vllm, "completions", prompt=dialogue)
    silent = profile_with(endpoints={"chat": {"ask_logprobs": "no"}})
    with raises_naming(ProfileError, "acme", "1", "2"):
        body(silent, "chat", n=2)
    assert body(silent, "completions", n=2)["n"] == 2


def test_temperature_is_the_callers() -> None:
    """Temperature 0 is sent like any other value."""
    assert body(load_profile("vllm"), sampling=Sampling(temperature=0.0))["temperature"] == 0.0


def test_the_remedy_is_the_profiles(profile_with: ProfileWith) -> None:
    """Whoever asks for too many alternatives is told what to change, in this provider's terms."""
    profile = profile_with(logprobs={"limit_remedy": "start it with --max-logprobs"})
    with raises_naming(ProfileError, "21", "--max-logprobs"):
        body(profile, sampling=Sampling(top_logprobs=21))
