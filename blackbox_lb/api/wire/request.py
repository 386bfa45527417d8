"""One request body: the prompt, neutral sampling, the logprobs that are wanted, and the bias."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.wire.decisions import decision_body
from blackbox_lb.api.wire.dialects import DIALECTS
from blackbox_lb.errors import InputError, ProfileError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import EndpointRules
from blackbox_lb.types import Prompt, Sampling

PROMPT_FIELDS: Mapping[Endpoint, tuple[str, bool]] = {
    "chat": ("messages", True),
    "completions": ("prompt", False),
    "responses": ("input", True),
    "decisions": ("state", True),
}
"""The field of a body that holds the prompt, and whether it takes messages rather than one text or
token ids.
"""

INCLUDE = "message.output_text.logprobs"
"""The Responses API's name of token logprobs
(https://platform.openai.com/docs/api-reference/responses/create).
"""


def asks_logprobs(rules: EndpointRules, top_logprobs: int) -> bool:
    """Whether a request for this many alternatives a token asks for logprobs: not for 0, nor where
    the endpoint gives none.
    """
    return rules.ask_logprobs != "no" and top_logprobs != 0


def most_completions(profile: Profile, endpoint: Endpoint, top_logprobs: int) -> int:
    """The most completions that one request may ask for.

    A dialect may allow a single one, whatever the provider's other endpoints take. Without lists of
    tokens it is one, too: only their sum over all completions of a request is known.
    """
    rules = profile.endpoint(endpoint)
    if asks_logprobs(rules, top_logprobs) and DIALECTS[rules.dialect].several:
        return profile.sampling.n
    return 1


def build_request(
    profile: Profile, draw: Draw, *, model: str, prompt: Prompt | Sequence[int], n: int = 1
) -> dict[str, Any]:
    """Build the JSON body that draws ``n`` completions from softmax((logits + bias) / temperature),
    nothing truncated.

    A ``prompt`` of token ids is sent as it is, and so are the draw's ``fields``. Its bias must
    already fit the profile's limits (see ``compile``); without an endpoint it goes to the profile's
    first. Without alternatives (``top_logprobs`` 0) logprobs are not mentioned, so that a model
    that refuses or lacks them answers too.

    Raises ProfileError: the provider has no such endpoint; or more alternatives, completions a
    request or stop texts are wanted than it gives, or a seed or bias that it does not take.
    InputError: a prompt of several messages on the completions endpoint, one of token ids on
    another, or one with tools, their calls or results on another endpoint than chat.
    """
    endpoint = draw.endpoint or profile.first_endpoint
    if endpoint == "decisions":
        assert isinstance(prompt, Prompt)  # an endpoint of decisions takes no token ids
        return decision_body(profile, draw, model=model, prompt=prompt)
    sampling = draw.sampling
    rules = profile.endpoint(endpoint)
    _check(profile, endpoint, sampling, n)
    body: dict[str, Any] = {
        "model": model,
        **_prompt(endpoint, prompt),
        **profile.neutral,
        **profile.request,
    }
    body |= {
        "temperature": sampling.temperature,
        rules.max_tokens: sampling.max_tokens,
        **_logprobs(rules, sampling),
    }
    if n > 1:
        body["n"] = n
    if sampling.seed is not None:
        body["seed"] = sampling.seed
    if sampling.stop:
        body["stop"] = list(sampling.stop)
    if draw.bias:
        if not rules.bias:
            raise ProfileError(
                f"{profile.name} takes no bias on its {endpoint} endpoint{_others(profile, 'bias')}"
            )
        values = draw.bias.of_text(None)
        if isinstance(prompt, Prompt):
            values = draw.bias.at(prompt)
        body["logit_bias"] = logit_bias(profile, values)
    return body | dict(draw.fields)


def logit_bias(profile: Profile, bias: Mapping[int, float]) -> dict[str, float] | list[list[float]]:
    """The value of ``logit_bias`` in the provider's form; whole values as integers where it takes
    no others.
    """
    if not profile.bias.fractions:
        bias = {
            token: int(value) if value == int(value) else value for token, value in bias.items()
        }
    if profile.bias.format == "pairs":
        return [[token, value] for token, value in bias.items()]
    return {str(token): value for token, value in bias.items()}


def check_stop(profile: Profile, endpoint: Endpoint, stop: Sequence[str]) -> None:
    """Raise ProfileError where the endpoint takes no stop texts, or fewer; InputError where one is
    empty: it would stop at once.
    """
    if not stop:
        return
    if not profile.endpoint(endpoint).stop:
        raise ProfileError(
            f"{profile.name} takes no stop texts on its {endpoint} endpoint, {len(stop)} are asked"
            f" for: {list(stop)}{_others(profile, 'stop') or '; use a task without stop texts'}"
        )
    most = profile.sampling.stops
    if most is not None and len(stop) > most:
        raise ProfileError(
            f"{profile.name} takes at most {most} stop texts a request, {len(stop)} are asked for:"
            f" {list(stop)}; use a task with fewer, or a provider that takes more"
        )
    if "" in stop:
        raise InputError(
            f"one of the stop texts {list(stop)} is empty, which ends every completion at once;"
            " leave it out"
        )


def _check(profile: Profile, endpoint: Endpoint, sampling: Sampling, n: int) -> None:
    check_stop(profile, endpoint, sampling.stop)
    rules = profile.endpoint(endpoint)
    limit = None
    if not profile.logprobs.limit_is_setting:
        limit = profile.most_logprobs(endpoint)
    if (
        asks_logprobs(rules, sampling.top_logprobs)
        and limit is not None
        and sampling.top_logprobs > limit
    ):
        raise ProfileError(
            f"{profile.name} lists at most {limit} top logprobs a token, {sampling.top_logprobs}"
            f" were asked for; {profile.logprobs.limit_remedy}"
        )
    most = most_completions(profile, endpoint, sampling.top_logprobs)
    if not 1 <= n <= most:
        raise ProfileError(
            f"{profile.name} gives 1 to {most} completions a request, {n} were asked for; send"
            " several requests"
        )
    if sampling.seed is not None and not profile.sampling.seed:
        raise ProfileError(
            f"{profile.name} takes no seed, {sampling.seed} was asked for; leave ``seed`` out, its"
            " runs cannot be repeated"
        )


def _others(profile: Profile, row: str) -> str:
    """A remedy: the endpoints with a true ``row``, if there are any."""
    names = [name for name, rules in profile.endpoints.items() if getattr(rules, row)]
    if not names:
        return ""
    return f"; use ``endpoint={' or '.join(names)}``"


def takes_messages(endpoint: Endpoint) -> bool:
    """Whether prompts of this endpoint are messages, to which the server applies the model's chat
    template.
    """
    return PROMPT_FIELDS[endpoint][1]


def messages_of(prompt: Prompt) -> list[dict[str, Any]]:
    """The messages of a prompt as JSON."""
    return [message.as_json for message in prompt.messages]


def _prompt(endpoint: Endpoint, prompt: Prompt | Sequence[int]) -> dict[str, Any]:
    field = PROMPT_FIELDS[endpoint][0]
    if not isinstance(prompt, Prompt):
        if takes_messages(endpoint):
            raise InputError(
                f"the {endpoint} endpoint takes no prompt of token ids; use"
                " ``endpoint=completions``"
            )
        return {field: list(prompt)}
    if prompt.tools and endpoint != "chat":
        raise InputError(
            f"the {endpoint} endpoint takes no tools as the chat endpoint does, and these prompts"
            " have some; use ``endpoint=chat``, or leave out the tools"
        )
    if endpoint != "chat" and any(len(message.fields) > 2 for message in prompt.messages):
        raise InputError(
            f"the {endpoint} endpoint takes no calls, results of tools and names as the chat"
            " endpoint does, and the messages of these prompts have some; use ``endpoint=chat``"
        )
    if prompt.tools:
        return {field: messages_of(prompt), "tools": json.loads(prompt.tools)}
    if takes_messages(endpoint):
        return {field: messages_of(prompt)}
    if len(prompt.messages) != 1:
        raise InputError(
            f"the completions endpoint takes one text, this prompt has {len(prompt.messages)}"
            " messages; use ``endpoint=chat``"
        )
    return {field: prompt.messages[0].content}


def _logprobs(rules: EndpointRules, sampling: Sampling) -> dict[str, Any]:
    if not asks_logprobs(rules, sampling.top_logprobs):
        return {}
    k = sampling.top_logprobs
    forms: dict[str, dict[str, Any]] = {
        "count": {"logprobs": k},
        "flag": {"logprobs": True, "top_logprobs": k},
        "include": {"include": [INCLUDE], "top_logprobs": k},
    }
    return forms[rules.ask_logprobs]
