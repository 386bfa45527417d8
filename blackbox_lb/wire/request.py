"""One request body: the prompt, neutral sampling, the logprobs that are wanted, and the bias."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from blackbox_lb.errors import InputError, ProfileError
from blackbox_lb.profiles import EndpointRules, Profile
from blackbox_lb.types import Endpoint, Prompt, Sampling

__all__ = ["build_request"]


def build_request(
    profile: Profile,
    endpoint: Endpoint,
    *,
    model: str,
    prompt: Prompt,
    sampling: Sampling,
    bias: Mapping[int, float] | None = None,
) -> dict[str, Any]:
    """The JSON body that draws one completion from softmax((logits + bias) / temperature), nothing truncated.

    ``bias`` maps token ids to nats; it must already fit the profile's limits (see ``compile``).

    Raises:
        ProfileError: the provider has no such endpoint or lists fewer alternatives than asked for.
        InputError: a prompt of several messages on the completions endpoint.
    """
    rules = endpoint_rules(profile, endpoint)
    limit = profile.logprobs.limit
    if limit is not None and sampling.top_logprobs > limit:
        raise ProfileError(
            f"{profile.name} lists at most {limit} top logprobs a token, {sampling.top_logprobs} were asked for; "
            f"{profile.logprobs.limit_remedy}"
        )
    body: dict[str, Any] = {"model": model, **_prompt(endpoint, prompt), **profile.neutral, **profile.request}
    body |= {"temperature": sampling.temperature, "max_tokens": sampling.max_tokens, **_logprobs(rules, sampling)}
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if bias:
        body["logit_bias"] = logit_bias(profile, bias)
    return body


def endpoint_rules(profile: Profile, endpoint: Endpoint) -> EndpointRules:
    """The profile's rules of ``endpoint``, or a ProfileError that lists the endpoints it has."""
    if endpoint not in profile.endpoints:
        raise ProfileError(
            f"{profile.name} has no {endpoint} endpoint; its profile lists {', '.join(profile.endpoints)}"
        )
    return profile.endpoints[endpoint]


def logit_bias(profile: Profile, bias: Mapping[int, float]) -> dict[str, float] | list[list[float]]:
    """The value of ``logit_bias`` in the form that the provider takes."""
    if profile.bias.format == "pairs":
        return [[token, value] for token, value in bias.items()]
    return {str(token): value for token, value in bias.items()}


def _prompt(endpoint: Endpoint, prompt: Prompt) -> dict[str, Any]:
    if endpoint == "chat":
        return {"messages": [{"role": message.role, "content": message.content} for message in prompt.messages]}
    if len(prompt.messages) != 1:
        raise InputError(
            f"the completions endpoint takes one text, this prompt has {len(prompt.messages)} messages; use --endpoint chat"
        )
    return {"prompt": prompt.messages[0].content}


def _logprobs(rules: EndpointRules, sampling: Sampling) -> dict[str, Any]:
    if rules.ask_logprobs == "count":
        return {"logprobs": sampling.top_logprobs}
    return {"logprobs": True, "top_logprobs": sampling.top_logprobs}
