"""Refusals: what OpenAI answers to a request that it does not take, in its own words and shape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tests.support.gateway.rules.rate_buckets import Over, duration

__all__ = ["JSON", "OpenAIWords", "Refusal"]

JSON: TypeAlias = dict[str, Any]

NO_KEY = (
    "You didn't provide an API key. You need to provide your API key in an Authorization header"
    " using Bearer auth (i.e. Authorization: Bearer YOUR_KEY), or as the password field (with blank"
    " username) if you're accessing the API from your browser and are prompted for a username and"
    " password. You can obtain an API key from https://platform.openai.com/account/api-keys."
)
BAD_JSON = (
    "We could not parse the JSON body of your request. (HINT: This likely means you aren't using"
    " your HTTP library correctly. The OpenAI API expects a JSON payload, but what was sent was not"
    " valid JSON. If you have trouble figuring out how to fix this, please contact us through our"
    " help center at help.openai.com.)"
)
NO_QUOTA = (
    "You exceeded your current quota, please check your plan and billing details. For more"
    " information on this error, read the docs:"
    " https://platform.openai.com/docs/guides/error-codes/api-errors."
)


class Refusal(Exception):
    """This request is answered with ``status`` and ``body``; ``rule`` is its key in the table of
    sources.
    """

    def __init__(
        self, rule: str, status: int, body: JSON, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{status} {body}")
        self.rule, self.status, self.body, self.headers = rule, status, body, dict(headers or {})

    @property
    def message(self) -> str:
        """The sentence in the body."""
        return str(self.body.get("error", self.body)["message"])


def _named(value: object) -> str:
    """What OpenAI calls the type of a JSON value."""
    kinds = {
        bool: "a boolean",
        int: "an integer",
        float: "a decimal number",
        str: "a string",
        list: "an array",
        dict: "an object",
    }
    return kinds.get(type(value), "null")


class OpenAIWords:
    """OpenAI: ``{"error": {message, type, param, code}}``."""

    def error(
        self,
        rule: str,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        headers: Mapping[str, str] | None = None,
    ) -> Refusal:
        """A refusal in the shape of every error of the provider."""
        return Refusal(rule, status, {"error": self.body(message, kind, param, code)}, headers)

    def body(self, message: str, kind: str, param: str | None, code: str | None) -> JSON:
        """What stands under ``error``."""
        return {"message": message, "type": kind, "param": param, "code": code}

    def key(self, given: str, *, token: bool) -> Refusal:
        """No key, or not the right one."""
        if not given:
            return self.error("key", NO_KEY, status=401)
        shown = (
            given[:8] + "*" * (len(given) - 12) + given[-4:]
            if len(given) > 12
            else "*" * len(given)
        )
        message = (
            f"Incorrect API key provided: {shown}. You can find your API key at"
            " https://platform.openai.com/account/api-keys."
        )
        return self.error("key", message, status=401, code="invalid_api_key")

    def url(self, method: str, path: str) -> Refusal:
        """No such path."""
        return self.error("url", f"Invalid URL ({method} {path})", status=404)

    def model(self, name: str) -> Refusal:
        """No such model."""
        message = f"The model `{name}` does not exist or you do not have access to it."
        return self.error("model", message, status=404, code="model_not_found")

    def model_of_endpoint(self, *, chat: bool) -> Refusal:
        """A model that has only the other endpoint; ``chat`` is the endpoint asked."""
        legacy = (
            "This is a chat model and not supported in the v1/completions endpoint. Did you mean to"
            " use v1/chat/completions?"
        )
        modern = (
            "This is not a chat model and thus not supported in the v1/chat/completions endpoint."
            " Did you mean to use v1/completions?"
        )
        return self.error(
            "model of the endpoint", modern if chat else legacy, status=404, param="model"
        )

    def not_json(self) -> Refusal:
        """A body that is no JSON object."""
        return self.error("JSON", BAD_JSON)

    def no_model(self) -> Refusal:
        """No model in the body."""
        return self.error("required", "you must provide a model parameter")

    def missing(self, name: str) -> Refusal:
        """A required field is absent."""
        return self.error(
            "required",
            f"Missing required parameter: '{name}'.",
            param=name,
            code="missing_required_parameter",
        )

    def unknown(self, name: str, value: object, *, reasoning: bool) -> Refusal:
        """A field outside the schema; models that reason say it in other words."""
        if reasoning:
            return self.error(
                "unknown field",
                f"Unknown parameter: '{name}'.",
                param=name,
                code="unknown_parameter",
            )
        return self.error("unknown field", f"Unrecognized request argument supplied: {name}")

    def wrong_type(self, rule: str, name: str, expected: str, value: object) -> Refusal:
        """A value of the wrong JSON type."""
        message = (
            f"Invalid type for '{name}': expected {expected}, but got {_named(value)} instead."
        )
        return self.error(rule, message, param=name, code="invalid_type")

    def outside(
        self, rule: str, name: str, limit: float, value: float, *, integer: bool, above: bool
    ) -> Refusal:
        """A number beyond its range."""
        if rule == "top_logprobs" and above:
            message = f"Invalid value for 'top_logprobs': must be less than or equal to {limit:g}."
            return self.error(rule, message, param="top_logprobs")
        number, side = (
            "integer" if integer else "decimal",
            "above maximum" if above else "below minimum",
        )
        bound = f"{'<=' if above else '>='} {limit:g}"
        message = (
            f"Invalid '{name}': {number} {side} value. Expected a value {bound}, but got {value}"
            " instead."
        )
        return self.error(
            rule,
            message,
            param=name,
            code=f"{number}_{'above_max' if above else 'below_min'}_value",
        )

    def too_long(self, rule: str, name: str, length: int, most: int) -> Refusal:
        """An array with too many members."""
        message = (
            f"Invalid '{name}': array too long. Expected an array with maximum length {most}, but"
            f" got an array with length {length} instead."
        )
        return self.error(rule, message, param=name, code="array_above_max_length")

    def empty(self, name: str) -> Refusal:
        """An array without a member."""
        message = (
            f"Invalid '{name}': empty array. Expected an array with minimum length 1, but got an"
            " empty array instead."
        )
        return self.error("required", message, param=name, code="empty_array")

    def needs_logprobs(self, value: object) -> Refusal:
        """top_logprobs without logprobs."""
        message = "The 'top_logprobs' parameter is only allowed when 'logprobs' is enabled."
        return self.error("top_logprobs without logprobs", message, param="top_logprobs")

    def two_limits(self) -> Refusal:
        """max_tokens and max_completion_tokens at once."""
        message = (
            "Setting 'max_tokens' and 'max_completion_tokens' at the same time is not supported."
        )
        return self.error("two token limits", message, code="invalid_parameter_combination")

    def bias_properties(self, entries: int, most: int) -> Refusal:
        """More entries than the schema of the service takes."""
        message = (
            f"Invalid 'logit_bias': too many properties. Expected an object with at most {most}"
            f" properties, but got an object with {entries} properties instead."
        )
        return self.error(
            "bias properties", message, param="logit_bias", code="object_above_max_properties"
        )

    def bias_entries(self, entries: int, most: int) -> Refusal:
        """More entries than the model takes."""
        message = f"You provided {entries} logit biases, but can provide at most {most}"
        return self.error("bias entries", message, param="logit_bias")

    def bias_key(self, key: str) -> Refusal:
        """A key that is no token id."""
        message = (
            f"Invalid key in 'logit_bias': {key}. You should only be submitting non-negative"
            " integers."
        )
        return self.error("bias keys", message, param="logit_bias")

    def bias_id(self, token: int, largest: int) -> Refusal:
        """An id past the base vocabulary."""
        message = f"Invalid key in 'logit_bias': {token}. Maximum value is {largest}."
        return self.error("bias largest id", message, param="logit_bias")

    def prompt_token(self, token: int, largest: int) -> Refusal:
        """A token id in the prompt that the model does not have."""
        message = (
            f"Invalid token in prompt: {token}. Minimum value is 0, maximum value is {largest}"
            " (inclusive)."
        )
        return self.error("prompt token", message)

    def unsupported(self, name: str) -> Refusal:
        """A parameter that a model which reasons does not take."""
        instead = " Use 'max_completion_tokens' instead." if name == "max_tokens" else ""
        message = f"Unsupported parameter: '{name}' is not supported with this model.{instead}"
        return self.error(
            "reasoning: parameters", message, param=name, code="unsupported_parameter"
        )

    def only_default(self, name: str, value: object) -> Refusal:
        """A value that a model which reasons does not take."""
        message = (
            f"Unsupported value: '{name}' does not support {value} with this model. Only the"
            " default (1) value is supported."
        )
        return self.error("reasoning: values", message, param=name, code="unsupported_value")

    def rate(self, over: Over, model: str, version: str) -> Refusal:
        """Over the budget of a minute."""
        short = {"requests": "RPM", "tokens": "TPM"}[over.kind]
        message = (
            f"Rate limit reached for {model} in organization org-gateway on {over.kind} per min"
            f" ({short}): Limit {over.limit}, Used {over.used}, Requested {over.asked}. Please try"
            f" again in {duration(over.wait)}. Visit"
            " https://platform.openai.com/account/rate-limits to learn more."
        )
        return self.error(
            f"{over.kind} per minute",
            message,
            status=429,
            kind=over.kind,
            code="rate_limit_exceeded",
            headers=self.retry_after(over.wait),
        )

    def too_large(self, over: Over, model: str, version: str) -> Refusal:
        """More tokens than a whole minute holds."""
        message = (
            f"Request too large for {model} in organization org-gateway on tokens per min (TPM):"
            f" Limit {over.limit}, Requested {over.asked}. The input or output tokens must be"
            " reduced in order to run successfully. Visit"
            " https://platform.openai.com/account/rate-limits to learn more."
        )
        return self.error(
            "too large", message, status=429, kind="tokens", code="rate_limit_exceeded"
        )

    def retry_after(self, wait: float) -> dict[str, str]:
        """The headers that name the wait of ``wait`` seconds."""
        return {"retry-after": str(math.ceil(wait)), "retry-after-ms": str(math.ceil(wait * 1000))}

    def quota(self) -> Refusal:
        """The account has no money left."""
        return self.error(
            "quota", NO_QUOTA, status=429, kind="insufficient_quota", code="insufficient_quota"
        )

    def server(self, message: str, status: int) -> Refusal:
        """The service failed."""
        return self.error("server error", message, status=status, kind="server_error")

    def not_served(self, what: str) -> Refusal:
        """Something that the gateway cannot do truly."""
        return self.error(
            "not served", f"The rules gateway does not serve {what}.", code="gateway_not_served"
        )

    def several(self, refusals: Sequence[Refusal]) -> Refusal:
        """What is answered when several rules are broken: the first."""
        return refusals[0]
