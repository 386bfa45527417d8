"""Azure OpenAI's rules: OpenAI's behind a gate of its own, with deployments, two kinds of keys and
a content filter.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from tests.support.gateway.batches import BatchLimits
from tests.support.gateway.engine.completion_view import CompletionView
from tests.support.gateway.engine.upstream import Want
from tests.support.gateway.refusals import JSON, Refusal, refusal
from tests.support.gateway.rules.openai import OpenAIRules, Route, bearer

__all__ = ["AzureRules"]

CLASSIC = re.compile(r"/openai/deployments/([^/]+)/(chat/completions|completions)")
VERSION = re.compile(r"\d{4}-\d{2}-\d{2}(-preview)?")
SAFE = {"filtered": False, "severity": "safe"}
KINDS = ("hate", "self_harm", "sexual", "violence")


class AzureRules(OpenAIRules):
    """Both generations of paths: ``/openai/deployments/{name}/...?api-version=`` and
    ``/openai/v1/...``.
    """

    prefix: ClassVar[str] = "/openai/v1"
    name: ClassVar[str] = "azure"
    headers: ClassVar[Mapping[str, str]] = {
        **OpenAIRules.headers,
        "x-ratelimit-renewalperiod-requests": "60",
        "x-ratelimit-reset-requests": "2",
        "x-ratelimit-renewalperiod-tokens": "60",
        "x-ratelimit-reset-tokens": "1",
    }
    """With the window in seconds; resets are whole milliseconds."""
    batches: ClassVar[BatchLimits | None] = BatchLimits(
        requests=100_000, expires=False, slow_files=2, endpoints=("/chat/completions",)
    )

    def route(self, method: str, path: str, query: Mapping[str, str]) -> Route:
        """Where ``path`` leads; a classic path needs an api-version that looks like one."""
        classic = CLASSIC.fullmatch(path)
        if classic is None:
            return super().route(method, path, query)
        version = query.get("api-version", "")
        if method != "POST" or not VERSION.fullmatch(version):
            raise refusal(self.name, "url")
        return Route(
            "chat" if classic[2] == "chat/completions" else "completions", classic[1], version
        )

    def batch_path(self, path: str, query: Mapping[str, str]) -> str | None:
        """Behind either prefix; the classic one needs an api-version."""
        found = super().batch_path(path, query)
        rest = path.removeprefix("/openai")
        classic = rest != path and rest.split("/")[1] in ("files", "batches")
        return (
            rest
            if found is None and classic and VERSION.fullmatch(query.get("api-version", ""))
            else found
        )

    def authorise(self, route: Route, headers: Mapping[str, str]) -> None:
        """A key in ``api-key``, or an Entra token as bearer; the newer paths take the key as bearer
        too.
        """
        key, token = headers.get("api-key"), bearer(headers)
        if key is not None:
            if key != self.settings.key:
                raise refusal(self.name, "key")
            return
        accepted = (
            {self.settings.token} if route.version else {self.settings.token, self.settings.key}
        )
        if token not in accepted:
            raise refusal(self.name, "token" if token else "key")

    def model(self, route: Route, body: JSON) -> str:
        """The deployment: in a classic path, else the model of the body."""
        return (
            super().model(route, body)
            if route.name is None
            else self._of_endpoint(route, route.name)
        )

    def check_prompt(self, body: JSON) -> Refusal | None:
        """The content filter before anything is generated."""
        text = str(body.get("messages") or body.get("prompt"))
        found = self.settings.filter_prompts
        if found is None or found not in text:
            return None
        return refusal(self.name, "prompt filter")

    def envelope(self, body: JSON) -> JSON:
        """Fields beside the choices: what the filter found in the prompt."""
        results = dict.fromkeys(KINDS, SAFE)
        return {
            "prompt_filter_results": [{"prompt_index": 0, "content_filter_results": results}],
            "system_fingerprint": "fp_gateway",
        }

    def chat_choice(self, index: int, reading: CompletionView, body: JSON, want: Want) -> JSON:
        """One choice, and what the filter found in it."""
        results = dict.fromkeys(KINDS, SAFE)
        return {
            **super().chat_choice(index, reading, body, want),
            "content_filter_results": results,
        }
