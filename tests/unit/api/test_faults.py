"""Error answers of every inference API are understood alike, and no key gets through in what is
kept of them.
"""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blackbox_lb.api.transport.channel import Channel
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety.http.error_answers import Fault, FaultKind, classify
from blackbox_lb.safety.http.retries import is_passing

same = settings(derandomize=True)


def openai(
    message: str,
    type_: str | None = "invalid_request_error",
    code: str | None = None,
    param: str | None = None,
) -> Any:
    """An error body as OpenAI wraps it."""
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def unsupported(name: str) -> Any:
    """What OpenAI's reasoning models say of a parameter."""
    said = f"Unsupported parameter: '{name}' is not supported with this model."
    return openai(said, code="unsupported_parameter", param=name)


QUOTA = "You exceeded your current quota, please check your plan and billing details."
LIMIT = (
    "Rate limit reached for gpt-4o-mini in organization org-x on tokens per min (TPM): Limit"
    " 200000, Requested 7592."
)
FILTERED = {
    "message": (
        "The response was filtered due to the prompt triggering Azure Content management policy."
    ),
    "type": None,
    "param": "prompt",
    "code": "content_filter",
    "status": 400,
    "innererror": {
        "code": "ResponsibleAIPolicyViolation",
        "content_filter_result": {"hate": {"filtered": True, "severity": "high"}},
    },
}

CASES: list[tuple[int | None, Any, FaultKind]] = [
    # Who asks.
    (401, openai("Incorrect API key provided: invalid-*****2345.", code="invalid_api_key"), "authentication"),
    (401, {"error": {"code": "401", "message": "Access denied due to invalid subscription key"}}, "authentication"),
    (401, {"error": {"code": 401, "message": "Invalid API Key", "type": "authentication_error"}}, "authentication"),
    (401, {"error": "Unauthorized"}, "authentication"),
    (403, {"error": {"code": "403", "message": "Public access is disabled."}}, "authentication"),
    (403, openai("Country, region, or territory not supported", code="unsupported_country_region_territory"), "authentication"),
    (400, [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key."}}], "authentication"),
    (401, {"error": {"code": "AuthenticationError", "message": "The API key format is incorrect.", "param": "", "type": "Unauthorized"}}, "authentication"),
    (None, {"error": {"code": "401", "message": "Access denied"}}, "authentication"),
    (None, {"error": "Unauthorized"}, "authentication"),
    # Who pays: code and type, only one of them, the specific codes, other statuses.
    (429, openai(QUOTA, "insufficient_quota", "insufficient_quota"), "quota"),
    (429, openai(QUOTA, "insufficient_quota"), "quota"),
    (429, openai(QUOTA, None, "insufficient_quota"), "quota"),
    (429, openai("No prepaid credits remain.", "insufficient_quota", "credit_balance_exhausted"), "quota"),
    (429, openai("The project's budget is spent.", None, "project_spend_limit_exceeded"), "quota"),
    (429, {"message": QUOTA}, "quota"),
    (None, openai(QUOTA, "insufficient_quota", "insufficient_quota"), "quota"),
    (402, openai("Insufficient Balance", "unknown_error", "invalid_request_error"), "quota"),
    (403, {"error": {"code": "403", "message": "Out of call volume quota. Quota will be replenished in 12 days."}}, "quota"),
    (412, openai("Account a is suspended, possibly due to reaching the monthly spending limit", "error"), "quota"),
    # How fast.
    (429, openai(LIMIT, "tokens", "rate_limit_exceeded"), "rate limit"),
    (429, {"message": LIMIT}, "rate limit"),
    (429, {"error": {"code": "429", "message": "exceeded call rate limit of your current OpenAI S0 tier."}}, "rate limit"),
    (429, {"error": {"code": 429, "message": f"{QUOTA} Please retry in 26.3s.", "status": "RESOURCE_EXHAUSTED"}}, "rate limit"),
    (429, None, "rate limit"),
    (200, {"error": {"code": 429, "message": "The upstream provider is busy."}}, "rate limit"),
    (None, openai("Slow down", "requests", "rate_limit_exceeded"), "rate limit"),
    (429, openai("Request too large for gpt-4o on tokens per min (TPM): Limit 30000", "tokens", "rate_limit_exceeded"), "rejected"),
    # A limit that passes, in the words of a spent account.
    (429, {"status": 429, "error": "INSUFFICIENT QUOTA", "message": "You exceeded your current limit of concurrent requests."}, "rate limit"),
    (429, {"status": 429, "error": "INSUFFICIENT QUOTA", "message": "You exceeded your current quota of tokens per minute."}, "rate limit"),
    (None, {"error": "INSUFFICIENT QUOTA", "message": "You exceeded your current quota of requests per minute."}, "rate limit"),
    (429, {"status": 429, "error": "INSUFFICIENT QUOTA", "message": "No credit is left."}, "quota"),
    (402, {"error": {"message": "This request requires more credits, or fewer max_tokens.", "code": 402}}, "quota"),
    (400, {"type": "error", "error": {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API."}}, "quota"),
    # What may be said.
    (400, {"error": FILTERED}, "content filter"),
    (400, FILTERED, "content filter"),
    (200, {"error": FILTERED}, "content filter"),
    (400, {"error": {"code": "BadRequest", "message": "no", "innererror": FILTERED["innererror"]}}, "content filter"),
    (400, openai("Your request was rejected.", code="content_policy_violation"), "content filter"),
    (400, openai("Your prompt was flagged as potentially violating our usage policy."), "content filter"),
    (400, openai("Invalid prompt.", code="invalid_prompt"), "content filter"),
    (400, openai("Content Exists Risk"), "content filter"),
    # What the model or server lacks.
    (501, {"detail": "Not implemented"}, "unsupported"),
    # Where.
    (404, openai("The model `x` does not exist or you do not have access to it.", code="model_not_found"), "unknown model"),
    (404, {"error": {"code": "DeploymentNotFound", "message": "The API deployment does not exist."}}, "unknown model"),
    (403, openai("Project `p` does not have access to model `gpt-4`", code="model_not_found"), "unknown model"),
    (404, {"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError", "code": 404}, "unknown model"),
    (400, {"object": "error", "message": "Invalid model: tiny-9", "type": "invalid_model", "code": "1500"}, "unknown model"),
    (400, {"code": "Client specified an invalid argument", "error": "Model not found: tiny-9"}, "unknown model"),
    (400, {"error": {"message": "acme/tiny-9 is not a valid model ID", "code": 400}, "user_id": "u"}, "unknown model"),
    (400, openai("The supported API model names are big-1 or big-2, but you passed tiny-9."), "unknown model"),
    (400, openai("Model Not Exist"), "unknown model"),
    (400, openai("invalid model ID"), "unknown model"),
    (400, {"error": {"code": 400, "message": "model 'tiny-9' not found", "type": "invalid_request_error"}}, "unknown model"),
    (400, {"message": "The provided model identifier is invalid."}, "unknown model"),
    (404, {"error": {"message": "Model not found, inaccessible, and/or not deployed", "code": "NOT_FOUND"}}, "unknown model"),
    (404, openai("This is a chat model and not supported in the v1/completions endpoint. Did you mean that?"), "other endpoint"),
    (404, openai("This is not a chat model and thus not supported in the v1/chat/completions endpoint."), "other endpoint"),
    (404, openai("This model is only supported in v1/responses and not in v1/chat/completions."), "other endpoint"),
    (400, openai("As of transformers v4.44, default chat template is no longer allowed"), "other endpoint"),
    (404, openai("Model acme/tiny-9 does not exist"), "unknown model"),
    (404, {"error": {"message": "No endpoints found that can handle the requested parameters.", "code": 404}}, "not found"),
    (404, openai("Unable to access model acme/tiny-9"), "unknown model"),
    (404, {"error": "Repository not found: acme/tiny-9"}, "unknown model"),
    (404, {"detail": "Not Found"}, "not found"),
    (404, b"404 page not found", "not found"),
    (None, {"message": "gone", "type": "NotFoundError"}, "not found"),
    # How busy.
    (503, {"error": {"code": 503, "message": "Loading model", "type": "unavailable_error"}}, "overloaded"),
    (503, {"object": "error", "message": "The request queue is full.", "type": "ServiceUnavailable", "code": 503}, "overloaded"),
    (529, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded"),
    (None, {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}, "overloaded"),
    (500, {"error": {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}}, "context full"),
    (500, openai("The server had an error while processing your request.", "server_error"), "server"),
    (500, {"error": {"code": 500, "message": "Compute error.", "type": "server_error"}}, "server"),
    (None, openai("The server had an error while processing your request.", "server_error"), "server"),
    (502, "<html><head><title>502 Bad Gateway</title></head><body></body></html>", "server"),
    (504, "upstream request timeout", "server"),
    (520, None, "server"),
    (408, openai("The request took too long."), "timeout"),
    (409, openai("Conflict with another request."), "conflict"),
    # Which scheme.
    (400, b"Client sent an HTTP request to an HTTPS server.\n", "other scheme"),
    (400, "<html><head><title>400</title></head><body>The plain HTTP request was sent to HTTPS port</body></html>", "other scheme"),
    # What else is refused.
    (400, openai("Invalid token in prompt: 123456. Minimum value is 0, maximum value is 100257 (inclusive)."), "rejected"),
    (400, {"detail": "Invalid top_logprobs and logprobs value"}, "rejected"),
    (400, {"error": {"code": 400, "message": "request (2009 tokens) exceeds the context size", "n_ctx": 512}}, "context length"),
    (400, {"error": {"message": "This model's maximum context length is 4096. Reduce max_tokens.", "code": 400}}, "context length"),
    (400, openai("Too long.", code="context_length_exceeded", param="messages"), "context length"),
    (500, {"error": {"code": 500, "message": "too long", "type": "exceed_context_size_error", "n_ctx": 256}}, "context length"),
    (500, {"error": {"code": 500, "message": "input (700 tokens) is too large to process. increase the batch"}}, "context length"),
    (400, openai("You passed 9 input characters. However, the model's context length is only 8 tokens."), "context length"),
    (400, openai("The decoder prompt (length 50) is longer than the maximum model length of 40."), "context length"),
    (400, {"object": "error", "message": "The input (61) is longer than the model's context length (40)."}, "context length"),
    (400, {"object": "error", "message": "Input length (61) exceeds the maximum allowed length (40)."}, "context length"),
    (400, openai("The prompt is too long: 9000, model maximum context length: 8191"), "context length"),
    (500, {"error": {"message": "Requested tokens (22) exceed context window of 20", "code": 500}}, "context length"),
    # llama.cpp's, final though they are 500s.
    (500, {"error": {"code": 500, "message": "tools param requires --jinja flag", "type": "server_error"}}, "rejected"),
    (500, {"error": {"code": 500, "message": "While executing x: Error: Jinja Exception: roles must alternate"}}, "rejected"),
    (500, {"error": {"code": 500, "message": "image input is not supported - hint: provide the mmproj"}}, "rejected"),
    (500, {"error": {"code": 500, "message": "Cannot use both json_schema and grammar", "type": "server_error"}}, "rejected"),
    (500, {"error": {"code": 500, "message": "[json.exception.parse_error.101] parse error at line 1"}}, "rejected"),
    (400, openai("Invalid 'max_tokens': integer above maximum value. Expected a value <= 4096, but got 8192."), "rejected"),
    (400, {"error": {"code": 400, "message": "Field 'temperature': type must be number, but is string"}}, "rejected"),
    (422, {"detail": [{"loc": ["body", "messages"], "msg": "Field required", "type": "missing"}]}, "rejected"),
    (400, openai("This model does not support images. Perhaps max_tokens is too small as well."), "rejected"),
    (400, {"error": {"code": "InvalidParameter", "message": "One or more parameters specified in the request are not valid.", "param": "", "type": "BadRequest"}}, "rejected"),
    (400, {"object": "error", "message": "logit_bias: not a token id", "type": "BadRequestError", "param": None, "code": 400}, "rejected"),
    (422, openai("Input should be a valid integer", param="body.logprobs"), "rejected"),
    (413, "", "rejected"),
    (None, None, "rejected"),
    (200, {"choices": []}, "rejected"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "body", "kind"), CASES)
def test_kinds(status: int | None, body: Any, kind: FaultKind) -> None:
    """Bodies of every shape, retyped from recorded and documented answers, are of the kind that
    decides what to do next.
    """
    fault = classify(status, body, "someone")
    assert fault.kind == kind
    assert fault.message
    inner = body.get("error") if isinstance(body, dict) else None
    if isinstance(inner, dict):
        assert classify(status, inner) == classify(status, body), (
            "the SDK takes off the outer error"
        )


LACKING: list[tuple[Any, str, int | None]] = [
    (unsupported("logprobs"), "logprobs", None),
    (unsupported("top_logprobs"), "top_logprobs", None),
    (unsupported("logit_bias"), "logit_bias", None),
    (unsupported("stop"), "stop", None),
    ("Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.", "max_tokens", None),
    ("Unsupported value: 'temperature' does not support 0.7 with this model.", "temperature", None),
    (openai("No.", code="unsupported_parameter", param="logit_bias"), "logit_bias", None),
    ("You are not allowed to request logprobs from this model", "logprobs", None),
    ("logprobs are not supported with reasoning models.", "logprobs", None),
    ("Unrecognized request argument supplied: logprobs", "logprobs", None),
    ("logprobs, best_of and echo parameters are not available on gpt-35-turbo model. Please remove the parameter.", "logprobs", None),
    ("Logprobs is not enabled for models/gemini-2.5-pro", "logprobs", None),
    ('Invalid JSON payload received. Unknown name "logprobs": Cannot find field.', "logprobs", None),
    ("5 is greater than the maximum of 1 - 'logprobs'", "logprobs", 1),
    ("Requested sample logprobs of 25, which is greater than max allowed: 20", "logprobs", 20),
    ("Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20, but got 25.", "top_logprobs", 20),
    ("Invalid value for 'top_logprobs': must be less than or equal to 20.", "top_logprobs", 20),
    ("Input should be less than or equal to 9, field: 'n'; Input should be less than or equal to 5, field: 'top_logprobs'", "top_logprobs", 5),
    ("Extra inputs are not permitted, field: 'return_token_ids', value: True.", "return_token_ids", None),
    ("[{'type': 'extra_forbidden', 'loc': ('body', 'prompt_logprobs'), 'msg': 'Extra inputs are not permitted'}]", "prompt_logprobs", None),
    ({"detail": [{"type": "extra_forbidden", "loc": ["body", "min_p"], "msg": "Extra inputs are not permitted"}]}, "min_p", None),
    ("The min_p and logit_bias sampling parameters are not yet supported with speculative decoding.", "logit_bias", None),
    ("This endpoint doesn't support logit bias", "logit_bias", None),
]  # fmt: skip


@pytest.mark.parametrize(("said", "parameter", "limit"), LACKING)
def test_what_a_model_lacks(said: Any, parameter: str, limit: int | None) -> None:
    """The sentences that say so name the parameter, and how many alternatives there may be, in
    every shape of a body.
    """
    shapes = [
        openai(said),
        {"object": "error", "message": said},
        [{"error": {"message": said, "code": 400}}],
        said,
    ]
    for body in shapes if isinstance(said, str) else [said]:
        for status in (400, 403, 422, None):
            fault = classify(status, body)
            assert (fault.kind, fault.parameter, fault.limit) == ("unsupported", parameter, limit)


BIASES: list[tuple[Any, FaultKind, int | None]] = [
    (openai("You provided 500 logit biases, but can provide at most 300", param="logit_bias"), "too many entries", 300),
    ({"error": {"message": "Too many logit bias tokens: 5000. The max size is 1024."}}, "too many entries", 1024),
    (openai("Invalid key in 'logit_bias': 100265. Maximum value is 100257.", param="logit_bias"), "bad id", 100_257),
    (openai("Invalid key in 'logit_bias': AI. You should only be submitting non-negative integers."), "bad id", None),
    ({"object": "error", "message": "logit_bias must has keys in [0, 248319], got 999999999."}, "bad id", 248_319),
    ({"error": {"message": "token_id(s) [60000] in logit_bias contain out-of-vocab token ids. Vocabulary size: 49152"}}, "bad id", 49_151),
]  # fmt: skip


@pytest.mark.parametrize(("body", "kind", "limit"), BIASES)
def test_a_bias_that_is_not_accepted(body: Any, kind: FaultKind, limit: int | None) -> None:
    """OpenAI's, vLLM's and SGLang's sentences tell how many entries, or up to which id."""
    fault = classify(400, body)
    assert (fault.kind, fault.parameter, fault.limit) == (kind, "logit_bias", limit)


def test_what_passes_by_itself() -> None:
    """Exactly the faults that waiting may cure are tried again: an empty account and a filtered
    prompt are not.
    """
    passing = {"rate limit", "overloaded", "server", "timeout", "conflict", "context full"}
    channel = Channel(load_profile("vllm"), "http://127.0.0.1:9/v1")
    for kind in get_args(FaultKind):
        assert is_passing(channel.error_of(Fault(kind, "no"), "a-model")) == (kind in passing)
    kinds = {kind for _, _, kind in CASES} | {kind for _, kind, _ in BIASES}
    assert kinds == set(get_args(FaultKind))


SECRETS = [
    "sk-abcdEFGH1234ijklMNOP5678qrst",
    "sk-proj-a_b-CdEf0123456789-ghIJkl",
    "fw_3ZQabcdefghijklmnopq",
    "gsk_abcdefgh1234",
    "hf_abcdefghijklmnopqrst",
    "0123456789abcdef0123456789abcdef",
    "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRST",
    "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl-x_y",
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "shape",
    [
        lambda text: openai(f"Incorrect API key provided: {text}. You can find your key at your account.", code="invalid_api_key"),
        lambda text: {"error": {"message": "denied", "code": text, "param": f"key={text}"}},
        lambda text: {"detail": {"headers": {"authorization": f"Bearer {text}"}}},
        lambda text: f"<html><p>{text}</p></html>",
        lambda text: f"X_{text}".encode(),
    ],
)  # fmt: skip
def test_echoed_keys_are_masked(secret: str, shape: Any) -> None:
    """What looks like a whole key does not get through, wherever a server puts it."""
    assert secret not in repr(classify(401, shape(secret)))
    assert "[masked]" in repr(classify(401, shape(secret)))


@pytest.mark.parametrize(
    "message",
    [
        (
            "Incorrect API key provided: sk-abc***. You can find your API key at"
            " https://platform.openai.com/account/api-keys."
        ),
        "Incorrect API key provided: invalid-*****2345.",
        "Incorrect API key provided: sk-proj-********wxyz.",
        "The model accounts/fireworks/models/llama-v3p1-70b-instruct does not exist",
        "Limit 200000 in organization org-Ab12Cd34Ef56Gh78 of task-scheduling-and-more",
        "request 6624fbc0-526e-4c5f-b98c-fb96daf3c582",
    ],
)
def test_what_is_no_key_stays(message: str) -> None:
    """Keys that the server has already starred, models, organizations and request numbers remain
    readable.
    """
    assert classify(401, openai(message)).message == message


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["error", "message", "code", "type", "param", "detail", "innererror", "status", "loc", "msg", "metadata"]),
        inner,
        max_size=4,
    ),
    max_leaves=12,
)  # fmt: skip


@same
@given(
    st.none() | st.integers(-1, 700), json_values | st.binary(max_size=40) | st.text(max_size=40)
)
def test_any_body_is_understood(status: int | None, body: Any) -> None:
    """Whatever a server answers: a kind, a printable message of at most 500 characters, and never
    an exception.
    """
    fault = classify(status, body)
    assert fault.kind in get_args(FaultKind)
    assert fault.message.isprintable()
    assert 0 < len(fault.message) <= 500
