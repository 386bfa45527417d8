"""Checks: which rules a request breaks, in the order in which the real service reports them.

Order recorded 2026-08 for OpenAI: a missing model, missing messages, unknown fields, then the
fields by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tests.support.gateway.errors.openai import JSON, OpenAIWords, Refusal
from tests.support.gateway.requests.fields import SERVED, STOPS, Endpoint, Field, Fields

__all__ = ["ModelLimits", "faults"]

TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "integer": ((int,), "an integer"),
    "number": ((int, float), "a decimal"),
    "boolean": ((bool,), "a boolean"),
    "string": ((str,), "a string"),
    "array": ((list,), "an array of objects"),
    "object": ((dict,), "an object"),
}
REFUSED_WHILE_REASONING = ("logit_bias", "max_tokens", "stop")
NEUTRAL_WHILE_REASONING: Mapping[str, float] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "top_p": 1,
}


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """What holds for one model. ``entries`` and ``properties`` of a bias: None for no limit;
    ``largest`` token id.
    """

    largest: int
    entries: int | None
    properties: int | None
    reasoning: bool = False


def faults(
    words: OpenAIWords, endpoint: Endpoint, fields: Fields, limits: ModelLimits, body: JSON
) -> Iterator[Refusal]:
    """Every rule of ``fields`` and ``limits`` that ``body`` breaks."""
    prompt = "messages" if endpoint == "chat" else "prompt"
    if body.get(prompt) is None:
        yield words.missing(prompt)
    for name in sorted(set(body) - set(fields)):
        yield words.unknown(name, body[name], reasoning=limits.reasoning)
    yield from _messages(words, body.get("messages") if endpoint == "chat" else None)
    if endpoint == "completions":
        yield from _prompt(words, body.get("prompt"), limits)
    for name in sorted(set(body) & set(fields)):
        if body[name] is not None:
            yield from _field(words, name, fields[name], limits, body)
    if body.get("max_tokens") is not None and body.get("max_completion_tokens") is not None:
        yield words.two_limits()
    yield from _unserved(words, body)


def _field(
    words: OpenAIWords, name: str, field: Field, limits: ModelLimits, body: JSON
) -> Iterator[Refusal]:
    value = body[name]
    if limits.reasoning:
        refused = _reasoning(words, name, value)
        if refused is not None:
            yield refused
            return
    if name == "logit_bias":
        yield from _bias(words, value, limits)
    elif name == "stop":
        yield from _stop(words, value)
    elif name == "logprobs" and field.kind == "other":
        yield from _logprobs_of_two_kinds(words, value)
    elif field.kind != "other":
        yield from _value(words, name, value, field)
    if name == "top_logprobs" and body.get("logprobs") in (None, False):
        yield words.needs_logprobs(value)


def _reasoning(words: OpenAIWords, name: str, value: object) -> Refusal | None:
    """What a model that reasons refuses although the field is well formed."""
    if name == "logprobs" and value is True:
        return words.unsupported(name)
    if name in REFUSED_WHILE_REASONING:
        return words.unsupported(name)
    if name in NEUTRAL_WHILE_REASONING and value != NEUTRAL_WHILE_REASONING[name]:
        return words.unsupported(name)
    if name == "temperature" and value != 1:
        return words.only_default(name, value)
    return None


def _value(words: OpenAIWords, name: str, value: object, field: Field) -> Iterator[Refusal]:
    types, expected = TYPES[field.kind]
    if not isinstance(value, types) or (isinstance(value, bool) and field.kind != "boolean"):
        yield words.wrong_type("type", name, expected, value)
    elif isinstance(value, int | float) and field.kind != "boolean":
        yield from _range(words, name, value, field)


def _range(words: OpenAIWords, name: str, value: float, field: Field) -> Iterator[Refusal]:
    integer = field.kind == "integer"
    if field.high is not None and (value > field.high or math.isnan(value)):
        yield words.outside(field.rule, name, field.high, value, integer=integer, above=True)
    elif field.low is not None and value < field.low:
        yield words.outside(field.rule, name, field.low, value, integer=integer, above=False)


def _logprobs_of_two_kinds(words: OpenAIWords, value: object) -> Iterator[Refusal]:
    """Fireworks: true or false, or a number as in the legacy API."""
    if isinstance(value, bool):
        return
    yield from _value(words, "logprobs", value, Field("integer", 0, 5, "legacy logprobs"))


def _stop(words: OpenAIWords, value: object) -> Iterator[Refusal]:
    if isinstance(value, list) and len(value) > STOPS:
        yield words.too_long("stop", "stop", len(value), STOPS)
    elif not isinstance(value, str | list) or (
        isinstance(value, list) and not all(isinstance(s, str) for s in value)
    ):
        yield words.wrong_type("type", "stop", "one of a string or array of strings", value)


def _bias(words: OpenAIWords, value: object, limits: ModelLimits) -> Iterator[Refusal]:
    """The first rule that the bias breaks, not one refusal for every entry."""
    if not isinstance(value, dict):
        yield words.wrong_type("bias object", "logit_bias", "an object", value)
        return
    if limits.properties is not None and len(value) > limits.properties:
        yield words.bias_properties(len(value), limits.properties)
        return
    refused = next(_entries(words, value, limits), None)
    if refused is not None:
        yield refused
    elif limits.entries is not None and len(value) > limits.entries:
        yield words.bias_entries(len(value), limits.entries)


def _entries(words: OpenAIWords, bias: JSON, limits: ModelLimits) -> Iterator[Refusal]:
    for key, value in bias.items():
        name = f"logit_bias.{key}"
        if not (key.isascii() and key.isdigit()):
            yield words.bias_key(key)
        elif int(key) > limits.largest:
            yield words.bias_id(int(key), limits.largest)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            yield words.wrong_type("bias values", name, "a decimal", value)
        else:
            yield from _range(words, name, value, Field("number", -100, 100, "bias values"))


def _messages(words: OpenAIWords, messages: object) -> Iterator[Refusal]:
    if messages == []:
        yield words.empty("messages")
    for i, message in enumerate(messages if isinstance(messages, list) else ()):
        if not isinstance(message, dict):
            yield words.wrong_type("type", f"messages[{i}]", "an object", message)
        elif message.get("role") is None:
            yield words.missing(f"messages[{i}].role")
        else:
            yield from _content(words, f"messages[{i}].content", message.get("content"))


def _content(words: OpenAIWords, name: str, content: object) -> Iterator[Refusal]:
    if content is not None and not isinstance(content, str | list):
        yield words.wrong_type("type", name, "one of a string or array of objects", content)
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, dict) or part.get("type") != "text":
            yield words.not_served(f"a part of {name} that is no text")


def _prompt(words: OpenAIWords, prompt: object, limits: ModelLimits) -> Iterator[Refusal]:
    """One text, or one list of token ids; several prompts at once are not served."""
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        bad = [token for token in prompt if not 0 <= token <= limits.largest]
        if bad:
            yield words.prompt_token(bad[0], limits.largest)
    elif isinstance(prompt, list) and (len(prompt) != 1 or not isinstance(prompt[0], str)):
        yield words.not_served("several prompts in one request")
    elif prompt is not None and not isinstance(prompt, str | list):
        yield words.wrong_type(
            "type", "prompt", "a string, array of strings, or array of token ids", prompt
        )


def _unserved(words: OpenAIWords, body: JSON) -> Iterator[Refusal]:
    for name in sorted(set(SERVED) & set(body)):
        if body[name] is not None and body[name] not in SERVED[name]:
            yield words.not_served(f"{name} = {str(body[name])[:60]}")
    if body.get("max_tokens") == 0 or body.get("max_completion_tokens") == 0:
        yield words.not_served("a limit of 0 tokens")
