"""Words: the refusals of Azure and Fireworks where they differ from OpenAI's."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tests.support.gateway.errors.openai import JSON, OpenAIWords, Refusal
from tests.support.gateway.rules.rate_buckets import Over, duration

__all__ = ["AzureWords", "FireworksWords"]

AZURE_KEY = (
    "Access denied due to invalid subscription key or wrong API endpoint. Make sure to provide a"
    " valid key for an active subscription and use a correct regional API endpoint for your"
    " resource."
)
AZURE_ENTRA = (
    "Unauthorized. Access token is missing, invalid, audience is incorrect"
    " (https://cognitiveservices.azure.com), or have expired."
)
AZURE_DEPLOYMENT = (
    "The API deployment for this resource does not exist. If you created the deployment within the"
    " last 5 minutes, please wait a moment and try again."
)
AZURE_FILTER = (
    "The response was filtered due to the prompt triggering Azure Content management policy. Please"
    " modify your prompt and retry. To learn more about our content filtering policies please read"
    " our documentation: https://go.microsoft.com/fwlink/?linkid=21298766"
)


class AzureWords(OpenAIWords):
    """Azure: OpenAI's refusals from behind the gate, ``{"error": {code, message}}`` from the gate
    itself.
    """

    def gate(
        self,
        rule: str,
        status: int,
        code: str,
        message: str,
        headers: Mapping[str, str] | None = None,
    ) -> Refusal:
        """A refusal of Azure's own gate."""
        return Refusal(rule, status, {"error": {"code": code, "message": message}}, headers)

    def key(self, given: str, *, token: bool) -> Refusal:
        """A wrong key, or a wrong Entra token, whose body is flat."""
        if token:
            return Refusal("key", 401, {"statusCode": 401, "message": AZURE_ENTRA})
        return self.gate("key", 401, "401", AZURE_KEY)

    def url(self, method: str, path: str) -> Refusal:
        """No such path, or no api-version."""
        return self.gate("url", 404, "404", "Resource not found")

    def model(self, name: str) -> Refusal:
        """No such deployment."""
        return self.gate("model", 404, "DeploymentNotFound", AZURE_DEPLOYMENT)

    def rate(self, over: Over, model: str, version: str) -> Refusal:
        """Over the budget of a minute."""
        what = {"requests": "call rate limit", "tokens": "token rate limit"}[over.kind]
        message = (
            "Requests to the ChatCompletions_Create Operation under Azure OpenAI API version"
            f" {version} have exceeded {what} of your current OpenAI S0 pricing tier. Please retry"
            f" after {math.ceil(over.wait)} seconds. Please go here: https://aka.ms/oai/quotaincrease"
            " if you would like to further increase the default rate limit."
        )
        return self.gate(
            f"{over.kind} per minute", 429, "429", message, self.retry_after(over.wait)
        )

    def too_large(self, over: Over, model: str, version: str) -> Refusal:
        """More tokens than a whole minute holds."""
        refusal = self.rate(replace(over, wait=60.0), model, version)
        return Refusal("too large", refusal.status, refusal.body, refusal.headers)

    def filtered(self) -> Refusal:
        """The prompt met the content filter."""
        found = {"filtered": True, "severity": "high"}
        safe = {"filtered": False, "severity": "safe"}
        inner = {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": {
                "hate": found,
                "self_harm": safe,
                "sexual": safe,
                "violence": safe,
            },
        }
        body = {
            "message": AZURE_FILTER,
            "type": None,
            "param": "prompt",
            "code": "content_filter",
            "status": 400,
        }
        return Refusal("prompt filter", 400, {"error": {**body, "innererror": inner}})


class FireworksWords(OpenAIWords):
    """Fireworks: ``{"error": {object, type, code, message}}``, all faults of a request in one, and
    pydantic's sentences of a field and its value; what is not recorded is said as by OpenAI.
    """

    def body(self, message: str, kind: str, param: str | None, code: str | None) -> JSON:
        """What stands under ``error``; ``code`` is the type where there is none."""
        return {"object": "error", "type": kind, "code": code or kind, "message": message}

    def key(self, given: str, *, token: bool) -> Refusal:
        """No key, or not the right one."""
        error = {
            "message": "The API key you provided is invalid.",
            "code": "UNAUTHORIZED",
            "type": "error",
        }
        return Refusal("key", 401, {"error": error})

    def model(self, name: str) -> Refusal:
        """No such model."""
        message = "Model not found, inaccessible, and/or not deployed"
        return Refusal(
            "model",
            404,
            {"error": {"message": message, "param": "model", "code": "NOT_FOUND", "type": "error"}},
        )

    def unknown(self, name: str, value: object, *, reasoning: bool) -> Refusal:
        """A field outside the schema."""
        return self.error(
            "unknown field", f"Extra inputs are not permitted, field: '{name}', value: {value!r}"
        )

    def wrong_type(self, rule: str, name: str, expected: str, value: object) -> Refusal:
        """A value of the wrong JSON type."""
        return self.error(rule, f"Input should be {expected}, field: '{name}', value: {value!r}")

    def outside(
        self, rule: str, name: str, limit: float, value: float, *, integer: bool, above: bool
    ) -> Refusal:
        """A number beyond its range."""
        side = "less" if above else "greater"
        return self.error(
            rule,
            f"Input should be {side} than or equal to {limit:g}, field: '{name}', value: {value!r}",
        )

    def rate(self, over: Over, model: str, version: str) -> Refusal:
        """Over the budget of a minute."""
        message = (
            f"Rate limit exceeded for {over.kind} per minute: limit {over.limit}, please try again"
            f" in {duration(over.wait)}"
        )
        headers = {**self.retry_after(over.wait), "x-ratelimit-over-limit": "yes"}
        return self.error(
            f"{over.kind} per minute",
            message,
            status=429,
            kind="rate_limit_exceeded",
            headers=headers,
        )

    def several(self, refusals: Sequence[Refusal]) -> Refusal:
        """All of them in one sentence."""
        if len(refusals) == 1:
            return refusals[0]
        faults = "; ".join(refusal.message for refusal in refusals)
        return self.error(refusals[0].rule, f"{len(refusals)} request validation errors: {faults}")
