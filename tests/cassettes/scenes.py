"""What was asked of each provider and what it answered, exchange by exchange, as its documentation
has it.

Requests are written out here and not built with the package, so that a replay compares two readings
of the documentation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tests.cassettes.answers import (
    FIREWORKS_MODEL,
    JSON,
    LMSTUDIO_MODEL,
    NOW,
    SMOLLM2_IDS,
    filtered,
    fireworks,
    lmstudio_chat,
    lmstudio_response,
    openai_chat,
    openai_legacy,
)
from tests.cassettes.toy import ESTONIA, LEGACY, PARROT, SKY, Token

__all__ = ["PROVIDERS", "Exchange"]


@dataclass(frozen=True)
class Exchange:
    """One request and its answer; ``body`` is None for GET."""

    url: str
    body: JSON | None
    answer: JSON
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


Scenes: TypeAlias = dict[str, list[Exchange]]

NEUTRAL: JSON = {
    "temperature": 1.0,
    "top_p": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
CAPITAL, EMOJI = "Name the capital of Estonia in one word.", "Show a parrot as one emoji."
CAPITAL_TOKENS, EMOJI_TOKENS = 9 + 7, 8 + 7
"""Tokens of the text under o200k_base and 7 that chat puts around it."""
QUESTION, OTHER = "Is the sky blue? Answer yes or no.", "Is grass green? Answer yes or no."
BARE = "The capital of Estonia is"


def said(text: str) -> list[JSON]:
    return [{"role": "user", "content": text}]


def listing(base: str, *names: str) -> Exchange:
    """GET /models."""
    data = [{"id": name, "object": "model", "created": NOW, "owned_by": "system"} for name in names]
    return Exchange(base, None, {"object": "list", "data": data})


# --- OpenAI

OPENAI = "https://api.openai.com/v1"
MODELS = listing(f"{OPENAI}/models", "gpt-4o-mini", "gpt-4.1-mini", "gpt-3.5-turbo-instruct")
TALLINN: list[Token] = [b"Tall", b"inn"]
REVAL: list[Token] = [b"Re", b"val"]
POLLY: list[Token] = [b"\xf0\x9f", b"\xa6", b"\x9c"]
OWL: list[Token] = [b"\xf0\x9f", b"\xa6", b"\x89"]


def asked(text: str, model: str = "gpt-4o-mini", **more: Any) -> JSON:
    """A request of the chat endpoint with neutral sampling and 20 alternatives."""
    logprobs = {"logprobs": True, "top_logprobs": 20}
    return {
        "model": model,
        "messages": said(text),
        **NEUTRAL,
        "max_completion_tokens": 16,
        **logprobs,
        **more,
    }


def to_openai(
    body: JSON, answer: JSON, status: int = 200, headers: Mapping[str, str] | None = None
) -> Exchange:
    return Exchange(f"{OPENAI}/chat/completions", body, answer, status, headers or {})


def openai_error(
    message: str,
    kind: str = "invalid_request_error",
    param: str | None = None,
    code: str | None = None,
) -> JSON:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def openai() -> Scenes:
    free = to_openai(asked(CAPITAL), openai_chat(ESTONIA, [[*TALLINN, b"."]], CAPITAL_TOKENS))
    bias = {"720": 15, "1105": 5, "13": -100}
    return {
        "collect": [
            MODELS,
            to_openai(
                asked(CAPITAL, n=3),
                openai_chat(ESTONIA, [TALLINN, [*TALLINN, b"."], REVAL], CAPITAL_TOKENS),
            ),
            to_openai(asked(EMOJI, n=3), openai_chat(PARROT, [POLLY, POLLY, OWL], EMOJI_TOKENS)),
        ],
        "a_biased_request": [
            MODELS,
            free,
            to_openai(
                asked(CAPITAL, logit_bias=bias), openai_chat(ESTONIA, [REVAL], CAPITAL_TOKENS)
            ),
        ],
        "completions_endpoint": [MODELS, *_legacy()],
        **_openai_refusals(),
        "a_rate_limit": [MODELS, *_rate_limit()],
    }


def _legacy() -> list[Exchange]:
    request = {
        "model": "gpt-3.5-turbo-instruct",
        "prompt": BARE,
        **NEUTRAL,
        "max_tokens": 3,
        "logprobs": 5,
    }
    completions: list[list[Token]] = [
        [b" Tall", b"inn", b"."],
        [b" R", b"iga"],
        [b" \xf0\x9f", b"\xa6", b"\x89"],
    ]
    return [
        Exchange(f"{OPENAI}/completions", request, openai_legacy(LEGACY, each, BARE, 5))
        for each in completions
    ]


def _openai_refusals() -> Scenes:
    shown = (
        "Incorrect API key provided: wrong***word. You can find your API key at"
        " https://platform.openai.com/account/api-keys."
    )
    unknown = "The model `gpt-4o-tiny` does not exist or you do not have access to it."
    lacks = "Unsupported parameter: 'logprobs' is not supported with this model."
    return {
        "a_wrong_key": [
            Exchange(MODELS.url, None, openai_error(shown, code="invalid_api_key"), 401)
        ],
        "an_unknown_model": [
            MODELS,
            to_openai(
                asked(CAPITAL, "gpt-4o-tiny"), openai_error(unknown, code="model_not_found"), 404
            ),
        ],
        "a_model_without_logprobs": [
            MODELS,
            to_openai(
                asked(CAPITAL, "gpt-4.1-thinking"),
                openai_error(lacks, param="logprobs", code="unsupported_parameter"),
                400,
            ),
        ],
    }


def _rate_limit() -> list[Exchange]:
    """Of 10,000 tokens a minute 4 are left, the request costs 28 (its characters / 4, 2 more, and
    max_completion_tokens).
    """
    limit, used, cost = 10_000, 9_996, len(CAPITAL) // 4 + 2 + 16
    wait = (used + cost - limit) * 60_000 // limit
    message = (
        "Rate limit reached for gpt-4o-mini in organization org-example on tokens per min (TPM):"
        f" Limit {limit}, Used {used}, Requested {cost}. Please try again in {wait}ms. Visit"
        " https://platform.openai.com/account/rate-limits to learn more."
    )
    asks = {"retry-after": "1", "retry-after-ms": str(wait)}
    refusal = openai_error(message, "tokens", code="rate_limit_exceeded")
    return [
        to_openai(asked(CAPITAL), refusal, 429, _budget(limit, limit - used) | asks),
        to_openai(
            asked(CAPITAL), openai_chat(ESTONIA, [TALLINN], CAPITAL_TOKENS), 200, _budget(limit, 0)
        ),
    ]


def _budget(limit: int, left: int) -> dict[str, str]:
    milliseconds = (limit - left) * 60_000 // limit
    tokens = "1m0s" if milliseconds == 60_000 else f"{milliseconds / 1000}s"
    requests = {"limit-requests": "500", "remaining-requests": "499", "reset-requests": "120ms"}
    told = {
        **requests,
        "limit-tokens": str(limit),
        "remaining-tokens": str(left),
        "reset-tokens": tokens,
    }
    return {f"x-ratelimit-{name}": value for name, value in told.items()}


# --- Azure

AZURE = "https://example-resource.openai.azure.com/openai"
DEPLOYMENT = "capitals"
AZURE_MODELS = listing(f"{AZURE}/v1/models", "gpt-4o-mini-2024-07-18")
BAD_PROMPT, BAD_ANSWER = (
    "A prompt that the filter refuses.",
    "A prompt with an answer that the filter withholds.",
)
REFUSED = {
    "error": {
        "message": (
            "The response was filtered due to the prompt triggering Azure OpenAI's content"
            " management policy. Please modify your prompt and retry. To learn more about our"
            " content filtering policies please read our documentation:"
            " https://go.microsoft.com/fwlink/?linkid=2198766"
        ),
        "type": None,
        "param": "prompt",
        "code": "content_filter",
        "status": 400,
        "innererror": {
            "code": "ResponsibleAIPolicyViolation",
            "content_filter_result": {
                "hate": {"filtered": True, "severity": "high"},
                "self_harm": {"filtered": False, "severity": "safe"},
                "sexual": {"filtered": False, "severity": "safe"},
                "violence": {"filtered": False, "severity": "safe"},
            },
        },
    }
}


def to_azure(body: JSON, answer: JSON, status: int = 200) -> Exchange:
    return Exchange(f"{AZURE}/v1/chat/completions", body, answer, status)


def azure() -> Scenes:
    two = asked(CAPITAL, DEPLOYMENT, n=2)
    good = filtered(openai_chat(ESTONIA, [TALLINN, REVAL], CAPITAL_TOKENS))
    return {
        "collect": [AZURE_MODELS, to_azure(two, good)],
        "a_filtered_prompt": [
            AZURE_MODELS,
            to_azure(asked(BAD_PROMPT, DEPLOYMENT, n=2), REFUSED, 400),
            to_azure(asked(BAD_PROMPT + " Again.", DEPLOYMENT, n=2), REFUSED, 200),
            to_azure(two, good),
        ],
        "a_filtered_completion": [
            AZURE_MODELS,
            to_azure(
                asked(BAD_ANSWER, DEPLOYMENT, n=2),
                filtered(openai_chat(ESTONIA, [[*TALLINN, b"."], TALLINN], 11 + 7), 0),
            ),
        ],
    }


def azure_classic() -> Scenes:
    """The deployment is in the path, every request names an api-version, and tokens are limited by
    ``max_tokens``.
    """
    version = "api-version=2024-10-21"
    url = f"{AZURE}/deployments/{DEPLOYMENT}/chat/completions?{version}"
    body = {
        ("max_tokens" if key == "max_completion_tokens" else key): value
        for key, value in asked(CAPITAL, DEPLOYMENT).items()
    }
    return {
        "collect": [
            listing(f"{AZURE}/models?{version}", "gpt-4o-mini-2024-07-18"),
            Exchange(
                url,
                {**body, "n": 2},
                filtered(openai_chat(ESTONIA, [TALLINN, [*TALLINN, b"."]], CAPITAL_TOKENS)),
            ),
        ],
    }


# --- Fireworks

FIREWORKS = "https://api.fireworks.ai/inference/v1"
FIREWORKS_NEUTRAL: JSON = {
    **NEUTRAL,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
}


def to_fireworks(prompt: JSON, **more: Any) -> JSON:
    rest = {
        "max_tokens": 8,
        "logprobs": True,
        "top_logprobs": 5,
        "context_length_exceeded_behavior": "error",
    }
    return {"model": FIREWORKS_MODEL, **prompt, **FIREWORKS_NEUTRAL, **rest, **more}


def fireworks_ai() -> Scenes:
    models = listing(f"{FIREWORKS}/models", "accounts/fireworks/models/gpt-oss-20b")
    url, question = f"{FIREWORKS}/chat/completions", {"messages": said(QUESTION)}
    yes, no, sure = [b"Yes", b"."], [b"No"], [b"Sure", b"!"]
    bias: dict[Token, float] = {b"No": 2.5, b"Yes": -1.25}
    biased = {str(SMOLLM2_IDS[token]): nats for token, nats in bias.items()}
    return {
        "collect": [
            models,
            *(
                Exchange(url, to_fireworks(question), fireworks(SKY, each))
                for each in (yes, no, sure)
            ),
        ],
        "a_biased_request": [
            models,
            Exchange(url, to_fireworks(question, logit_bias=biased), fireworks(SKY, no, bias)),
        ],
        "completions_endpoint": [
            models,
            Exchange(
                f"{FIREWORKS}/completions",
                to_fireworks({"prompt": QUESTION}),
                fireworks(SKY, yes, chat=False),
            ),
        ],
    }


# --- LM Studio

LMSTUDIO = "http://localhost:1234/v1"
LMSTUDIO_NEUTRAL: JSON = {**NEUTRAL, "top_k": 0, "min_p": 0.0, "repeat_penalty": 1.0}


def lm_studio() -> Scenes:
    models = listing(f"{LMSTUDIO}/models", LMSTUDIO_MODEL)
    asks = {"max_output_tokens": 16, "include": ["message.output_text.logprobs"], "top_logprobs": 5}
    request = {"model": LMSTUDIO_MODEL, "input": said(QUESTION), **LMSTUDIO_NEUTRAL, **asks}
    samples: list[list[Token]] = [[b"Yes", b"."], [b"No"], [b"Sure", b"!"]]
    url = f"{LMSTUDIO}/responses"
    return {
        "collect": [
            models,
            *(Exchange(url, request, lmstudio_response(SKY, each)) for each in samples),
        ],
        "judging": [
            models,
            *_judged({}, ("Yes, it is.", 5), ("Yes.", 2)),
            *_judged({"28": -100.0}, ("Yes.", 2), ("Yes", 1)),
        ],
    }


def _judged(bias: Mapping[str, float], *texts: tuple[str, int]) -> list[Exchange]:
    """Two prompts, each answered once with each of ``texts`` (and its number of tokens)."""
    added = {"logit_bias": dict(bias)} if bias else {}
    return [
        Exchange(
            f"{LMSTUDIO}/chat/completions",
            {
                "model": LMSTUDIO_MODEL,
                "messages": said(prompt),
                **LMSTUDIO_NEUTRAL,
                "max_tokens": 8,
                **added,
            },
            lmstudio_chat(text, prompt_tokens, generated),
        )
        for prompt, prompt_tokens in ((QUESTION, 10 + 30), (OTHER, 9 + 30))
        for text, generated in texts
    ]


PROVIDERS: Mapping[str, Callable[[], Scenes]] = {
    "openai": openai,
    "azure": azure,
    "azure-classic": azure_classic,
    "fireworks": fireworks_ai,
    "lmstudio": lm_studio,
}
"""Folder -> its cassettes: name -> exchanges."""
