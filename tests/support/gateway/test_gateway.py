"""The rules gateway refuses what the real services refuse, in their words, and takes what they
take.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2
import openai
import pytest

from blackbox_lb.errors import InputError
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import SOURCES, RulesGateway
from tests.support.gateway.rules.rate_buckets import RateBucket, duration

JSON = dict[str, Any]
MODEL = ExactModel(40, 3, seed=5, end=True)
LARGEST = 100_257
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Certificates take a tenth of a second to load."""
FIRE = "accounts/fireworks/models/gateway"
MODELS = {"openai": "gpt-4o-mini", "azure": "gpt-4o-mini", "fireworks": FIRE}


@pytest.fixture(scope="module")
def engine() -> Iterator[ExactServer]:
    """One exact engine for the whole module."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture(scope="module")
def gateways(engine: ExactServer) -> Iterator[dict[str, RulesGateway]]:
    """One gateway of each kind; ids up to those of a large vocabulary may be biased."""
    with (
        RulesGateway("openai", engine, largest=LARGEST) as first,
        RulesGateway("azure", engine, largest=LARGEST) as second,
        RulesGateway("fireworks", engine, largest=LARGEST) as third,
    ):
        yield {"openai": first, "azure": second, "fireworks": third}


def post(
    gateway: RulesGateway, body: Any, path: str = "/chat/completions", **headers: str
) -> httpx2.Response:
    """One POST below the base URL, with the right key unless told otherwise."""
    sent = headers or {"authorization": f"Bearer {gateway.key}"}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return httpx2.post(
        gateway.base_url + path, content=content, headers=sent, timeout=30, verify=NO_TLS
    )


def chat(provider: str, /, **fields: Any) -> JSON:
    """A chat request that every provider takes, with other fields."""
    return {
        "model": MODELS[provider],
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 1,
        **fields,
    }


def legacy(**fields: Any) -> JSON:
    """A request of the completions endpoint that OpenAI takes, with other fields."""
    return {"model": "gpt-3.5-turbo-instruct", "prompt": "hello", "max_tokens": 1, **fields}


def error(message: str, param: str | None = None, code: str | None = None) -> JSON:
    """OpenAI's error body."""
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    }


def entries(n: int) -> JSON:
    """A bias of ``n`` entries."""
    return {str(token): 1 for token in range(n)}


class Case(NamedTuple):
    """Fields of a chat request (``prompt``: of a completions request) that is taken (None: nothing
    to show), of one that is refused, and the parameter and code in the answer to it."""

    rule: str
    taken: JSON | None
    refused: JSON
    param: str | None = None
    code: str | None = None


ABOVE, BELOW, KIND = "integer_above_max_value", "integer_below_min_value", "invalid_type"
MISSING, REASONING = "missing_required_parameter", "reasoning: parameters"
LOOSE, THINKS, THINKS_OLD = {"max_tokens": None}, {"model": "gpt-5-mini"}, {"model": "o4-mini"}

OPENAI_CASES = [
    Case("required", {}, {"messages": None}, "messages", MISSING),
    Case("required", None, {"model": None}),
    Case("required", None, {"messages": []}, "messages", "empty_array"),
    Case("required", None, {"messages": [{"content": "x"}]}, "messages[0].role", MISSING),
    Case("unknown field", {"user": "me", "store": False}, {"top_k": 0}),
    Case("unknown field", None, {**THINKS, "top_k": 0}, "top_k", "unknown_parameter"),
    Case("unknown field", {"prompt": "x"}, {"prompt": "x", "top_logprobs": 1}),
    Case("type", {"n": 2}, {"n": "2"}, "n", KIND),
    Case("type", {"temperature": 1}, {"temperature": "hot"}, "temperature", KIND),
    Case("type", None, {"max_tokens": 4.5}, "max_tokens", KIND),
    Case("type", None, {"logprobs": 5}, "logprobs", KIND),
    Case("type", None, {"messages": ["hello"]}, "messages[0]", KIND),
    Case("type", None, {"messages": "hello"}, "messages", KIND),
    Case("type", None, {"messages": [{"role": "user", "content": 7}]}, "messages[0].content", KIND),
    Case("range", {"n": 128}, {"n": 129}, "n", ABOVE),
    Case("range", None, {"n": 0}, "n", BELOW),
    Case("range", {"temperature": 2, "top_p": 1, "presence_penalty": -2, "frequency_penalty": 2}, {"temperature": 2.5}, "temperature", "decimal_above_max_value"),
    Case("range", None, {"top_p": 1.1}, "top_p", "decimal_above_max_value"),
    Case("range", None, {"presence_penalty": -3}, "presence_penalty", "decimal_below_min_value"),
    Case("range", {"max_tokens": 1}, {"max_tokens": -678}, "max_tokens", BELOW),
    Case("stop", {"stop": list("abcd")}, {"stop": list("abcde")}, "stop", "array_above_max_length"),
    Case("top_logprobs", {"logprobs": True, "top_logprobs": 20}, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    Case("top_logprobs", {"logprobs": True, "top_logprobs": 0}, {"logprobs": True, "top_logprobs": -1}, "top_logprobs", BELOW),
    Case("top_logprobs without logprobs", {"logprobs": True, "top_logprobs": 1}, {"top_logprobs": 1}, "top_logprobs"),
    Case("legacy logprobs", {"prompt": "x", "logprobs": 5}, {"prompt": "x", "logprobs": 6}, "logprobs", ABOVE),
    Case("prompt token", None, {"prompt": [1, 123456]}),
    Case("two token limits", {**LOOSE, "max_completion_tokens": 1}, {"max_completion_tokens": 1}, None, "invalid_parameter_combination"),
    Case("bias object", {"logit_bias": {}}, {"logit_bias": [[3, 1]]}, "logit_bias", KIND),
    Case("bias entries", {"logit_bias": entries(300)}, {"logit_bias": entries(301)}, "logit_bias"),
    Case("bias properties", None, {"logit_bias": entries(1025)}, "logit_bias", "object_above_max_properties"),
    Case("bias keys", None, {"logit_bias": {"AI": 10}}, "logit_bias"),
    Case("bias keys", None, {"logit_bias": {"-1": 10}}, "logit_bias"),
    Case("bias largest id", {"logit_bias": {"100257": 1}}, {"logit_bias": {"100265": -100}}, "logit_bias"),
    Case("bias values", {"logit_bias": {"3": 100, "4": -100, "5": 0.5}}, {"logit_bias": {"3": 101}}, "logit_bias.3", "decimal_above_max_value"),
    Case("bias values", None, {"logit_bias": {"3": True}}, "logit_bias.3", KIND),
    Case(REASONING, {**LOOSE, **THINKS, "max_completion_tokens": 1, "temperature": 1}, {**LOOSE, **THINKS, "logprobs": True}, "logprobs", "unsupported_parameter"),
    Case(REASONING, None, THINKS, "max_tokens", "unsupported_parameter"),
    Case(REASONING, None, {**THINKS_OLD, "logit_bias": {"1": 1}}, "logit_bias", "unsupported_parameter"),
    Case("reasoning: values", None, {**LOOSE, **THINKS_OLD, "temperature": 0.1}, "temperature", "unsupported_value"),
    Case("not served", {"stream": False}, {"stream": True}, None, "gateway_not_served"),
]  # fmt: skip
"""For OpenAI and Azure."""

FIREWORKS_CASES = [
    Case("required", {}, {"messages": None}, "messages"),
    Case("unknown field", {"top_k": 0, "min_p": 0, "typical_p": 1, "repetition_penalty": 1}, {"xtc": 1}, "xtc"),
    Case("unknown field", None, {"session-key": "a", "provider": "b"}, "provider"),
    Case("type", None, {"n": "2"}, "n"),
    Case("range", {"top_k": 100}, {"top_k": 101}, "top_k"),
    Case("stop", None, {"stop": list("abcde")}, "stop"),
    Case("top_logprobs", {"logprobs": True, "top_logprobs": 5}, {"logprobs": True, "top_logprobs": 6}, "top_logprobs"),
    Case("top_logprobs without logprobs", None, {"top_logprobs": 1}, "top_logprobs"),
    Case("legacy logprobs", {"logprobs": 5}, {"logprobs": 6}, "logprobs"),
    Case("prompt token", {"prompt": "x"}, {"prompt": [123456]}),
    Case("two token limits", {**LOOSE, "max_completion_tokens": 1}, {"max_completion_tokens": 1}),
    Case("bias object", None, {"logit_bias": [[3, 1]]}, "logit_bias"),
    Case("bias keys", None, {"logit_bias": {"AI": 1}}, "logit_bias"),
    Case("bias largest id", None, {"logit_bias": {"100258": 1}}, "logit_bias"),
    Case("bias values", {"logit_bias": {**entries(2000), "3": -99.5}}, {"logit_bias": {"3": -101}}, "logit_bias.3"),
    Case("not served", None, {"echo": True}),
]  # fmt: skip

CASES = {"openai": OPENAI_CASES, "azure": OPENAI_CASES, "fireworks": FIREWORKS_CASES}
ELSEWHERE = {
    "url",
    "key",
    "model",
    "model of the endpoint",
    "JSON",
    "requests per minute",
}
ELSEWHERE |= {
    "tokens per minute",
    "too large",
    "quota",
    "server error",
    "prompt filter",
    "bias entries",
}
ELSEWHERE |= {
    "batch file",
    "batch size",
    "batch values",
    "batch cancel",
    "no such batch",
    "no such file",
}
"""Rules with a test of their own below, or in test_gateway_batches.py."""


def path_of(body: JSON) -> str:
    """The endpoint of a request body."""
    return "/completions" if "prompt" in body else "/chat/completions"


def whole(provider: str, fields: JSON) -> JSON:
    """A whole request with these fields."""
    if "prompt" not in fields:
        return chat(provider, **fields)
    body = legacy(**fields)
    return {**body, "model": FIRE} if provider == "fireworks" else body


@pytest.mark.parametrize(
    ("provider", "case"),
    [(provider, case) for provider, cases in CASES.items() for case in cases],
    ids=lambda value: value if isinstance(value, str) else value.rule,
)
def test_each_rule_takes_the_limit_and_refuses_what_is_beyond(
    gateways: dict[str, RulesGateway], provider: str, case: Case
) -> None:
    """What is within a rule is answered, what is beyond is refused with the parameter and the code,
    and the call names the rule.
    """
    gateway = gateways[provider]
    if case.taken is not None:
        answer = post(gateway, whole(provider, case.taken), path_of(case.taken))
        assert answer.status_code == 200, answer.text
    answer = post(gateway, whole(provider, case.refused), path_of(case.refused))
    refusal = answer.json()["error"]
    assert answer.status_code == 400
    if provider == "fireworks":
        assert refusal["type"] == "invalid_request_error"
        assert case.param is None or f"'{case.param}'" in refusal["message"]
    else:
        assert (refusal["param"], refusal["code"]) == (case.param, case.code)
    assert gateway.calls[-1].rule == case.rule


@pytest.mark.parametrize("provider", SOURCES)
def test_every_rule_is_tested(provider: str) -> None:
    """No rule of the table goes without a test, and none that is tested is missing there."""
    refusing = {rule for rule in SOURCES[provider] if not rule.startswith("answer:")}
    tested = {case.rule for case in CASES[provider]}
    assert tested <= refusing <= tested | ELSEWHERE


def test_fireworks_takes_a_limit_of_entries_from_the_test(engine: ExactServer) -> None:
    """Its own limit is unknown, so that it has none unless a test sets one."""
    with RulesGateway("fireworks", engine, entries=2) as gateway:
        assert post(gateway, chat("fireworks", logit_bias=entries(2))).status_code == 200
        assert post(gateway, chat("fireworks", logit_bias=entries(3))).status_code == 400
        assert gateway.calls[-1].rule == "bias entries"


def test_the_first_fault_is_told_in_the_recorded_order(gateways: dict[str, RulesGateway]) -> None:
    """A missing prompt before an unknown field, an unknown field before a bad value, then fields by
    name.
    """
    gateway = gateways["openai"]
    faults: list[tuple[JSON, str | None]] = [
        ({"messages": None, "zzz": 1}, "messages"),
        ({"zzz": 1, "n": "abc"}, None),
        ({"n": "abc", "stop": list("abcde")}, "n"),
        ({"stop": list("abcde"), "temperature": 3}, "stop"),
    ]
    for fields, param in faults:
        assert post(gateway, chat("openai", **fields)).json()["error"]["param"] == param


def test_keys(gateways: dict[str, RulesGateway]) -> None:
    """Each provider's 401 in its own shape; a given key is shown masked, and only the right one is
    taken.
    """
    openai_gateway, azure, fireworks = gateways["openai"], gateways["azure"], gateways["fireworks"]
    answer = post(openai_gateway, chat("openai"), authorization="Bearer invalid-key-12345")
    message = (
        "Incorrect API key provided: invalid-*****2345. You can find your API key at"
        " https://platform.openai.com/account/api-keys."
    )
    assert (answer.status_code, answer.json()) == (401, error(message, None, "invalid_api_key"))
    assert "x-ratelimit-limit-requests" not in answer.headers
    assert (
        "You didn't provide an API key"
        in post(openai_gateway, chat("openai"), other="x").json()["error"]["message"]
    )
    answer = post(azure, chat("azure"), **{"api-key": "wrong"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "401")
    assert post(azure, chat("azure"), authorization="Bearer wrong").json()["statusCode"] == 401
    assert post(azure, chat("azure"), **{"api-key": azure.key}).status_code == 200
    assert post(azure, chat("azure"), authorization=f"Bearer {azure.token}").status_code == 200
    answer = post(fireworks, chat("fireworks"), authorization="Bearer wrong")
    assert answer.status_code == 401
    assert answer.json() == {
        "error": {
            "message": "The API key you provided is invalid.",
            "code": "UNAUTHORIZED",
            "type": "error",
        }
    }
    assert {gateway.calls[-1].rule for gateway in (fireworks,)} == {"key"}


def test_unknown_models_and_deployments(gateways: dict[str, RulesGateway]) -> None:
    """404 in each provider's shape, and a model asked at the endpoint that it does not have."""
    answer = post(gateways["openai"], {**chat("openai"), "model": "nope"})
    message = "The model `nope` does not exist or you do not have access to it."
    assert (answer.status_code, answer.json()) == (404, error(message, None, "model_not_found"))
    answer = post(gateways["azure"], {**chat("azure"), "model": "nope"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "DeploymentNotFound")
    answer = post(gateways["fireworks"], {**chat("fireworks"), "model": "nope"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NOT_FOUND")
    answer = post(gateways["openai"], legacy(model="gpt-4o-mini"), "/completions")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"].startswith(
        "This is a chat model and not supported in the v1/completions"
    )
    assert gateways["openai"].calls[-1].rule == "model of the endpoint"


def test_urls_and_json(gateways: dict[str, RulesGateway]) -> None:
    """A path that is not there, and a body that is no JSON object."""
    answer = post(gateways["openai"], chat("openai"), "/tokenize")
    assert (answer.status_code, answer.json()) == (404, error("Invalid URL (POST /v1/tokenize)"))
    answer = post(gateways["azure"], chat("azure"), "/tokenize")
    assert (answer.status_code, answer.json()) == (
        404,
        {"error": {"code": "404", "message": "Resource not found"}},
    )
    assert post(gateways["fireworks"], chat("fireworks"), "/tokenize").status_code == 404
    for gateway in gateways.values():
        answer = post(gateway, b"{not json")
        assert (answer.status_code, gateway.calls[-1].rule) == (400, "JSON")


def test_azure_classic_paths(gateways: dict[str, RulesGateway]) -> None:
    """The deployment is in the path and the api-version is required; the SDK's client of that name
    works with both keys.
    """
    gateway = gateways["azure"]
    classic = f"{gateway.url}/openai/deployments/gpt-4o-mini/chat/completions"
    headers = {"api-key": gateway.key}
    assert (
        httpx2.post(classic, json=chat("azure"), headers=headers, verify=NO_TLS).json()["error"][
            "message"
        ]
        == "Resource not found"
    )
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}
    assert (
        httpx2.post(
            f"{classic}?api-version=2024-10-21", json=body, headers=headers, verify=NO_TLS
        ).status_code
        == 200
    )
    for key, token in ((gateway.key, None), (None, gateway.token)):
        with openai.AzureOpenAI(
            azure_endpoint=gateway.url,
            api_version="2024-10-21",
            api_key=key,
            azure_ad_token=token,
            max_retries=0,
        ) as client:
            answer = client.chat.completions.create(**chat("azure", logprobs=True, top_logprobs=2))
            assert answer.choices[0].logprobs is not None
            with pytest.raises(
                openai.NotFoundError, match="deployment for this resource does not exist"
            ):
                client.chat.completions.create(**chat("azure", model="nope"))


def test_azure_content_filter(engine: ExactServer) -> None:
    """A prompt is refused with an inner error."""
    with RulesGateway("azure", engine, filter_prompts="bomb") as gateway:
        answer = post(gateway, chat("azure", messages=[{"role": "user", "content": "a bomb"}]))
        refusal = answer.json()["error"]
        assert (answer.status_code, refusal["code"], refusal["param"]) == (
            400,
            "content_filter",
            "prompt",
        )
        assert refusal["innererror"]["code"] == "ResponsibleAIPolicyViolation"
        assert gateway.calls[-1].rule == "prompt filter"


def test_request_budget(engine: ExactServer) -> None:
    """The third request of a budget of two gets 429 with the wait in its headers; refused requests
    are charged too.
    """
    with RulesGateway("openai", engine, requests_per_minute=2) as gateway:
        first = post(gateway, chat("openai"))
        assert first.headers["x-ratelimit-limit-requests"] == "2"
        assert first.headers["x-ratelimit-remaining-requests"] == "1"
        assert first.headers["x-ratelimit-reset-requests"] in ("30s", "29.999s", "29.998s")
        assert post(gateway, chat("openai", n=0)).status_code == 400
        last = post(gateway, chat("openai"))
        refusal = last.json()["error"]
        assert (last.status_code, refusal["code"], refusal["type"]) == (
            429,
            "rate_limit_exceeded",
            "requests",
        )
        assert (
            "on requests per min (RPM): Limit 2, Used 2, Requested 1. Please try again in "
            in refusal["message"]
        )
        assert 0 < int(last.headers["retry-after"]) <= 30
        assert 0 < int(last.headers["retry-after-ms"]) <= 30_000
        assert gateway.calls[-1].rule == "requests per minute"
        assert gateway.statuses == [200, 400, 429]


@pytest.mark.parametrize(
    ("provider", "code"),
    [("openai", "rate_limit_exceeded"), ("azure", "429"), ("fireworks", "rate_limit_exceeded")],
)
def test_token_budget(engine: ExactServer, provider: str, code: str) -> None:
    """Prompt and completion tokens are charged; a request that no minute could hold is refused at
    once.
    """
    with RulesGateway(provider, engine, tokens_per_minute=20) as gateway:
        long = post(gateway, chat(provider, messages=[{"role": "user", "content": "x" * 200}]))
        assert (long.status_code, long.json()["error"]["code"]) == (429, code)
        assert gateway.calls[-1].rule == "too large"
        answers = [
            post(gateway, chat(provider, n=4)) for _ in range(4)
        ]  # 4 for the prompt and 4 generated
        refused = [answer for answer in answers if answer.status_code == 429]
        assert 1 <= len(refused) <= 2
        assert gateway.calls[-1].rule == "tokens per minute"
        assert int(refused[0].headers["retry-after"]) >= 1


def test_the_budget_refills_steadily() -> None:
    """A bucket of 60 a minute gives one a second, and durations print as OpenAI prints them."""
    now = [0.0]
    budget = RateBucket(60, 6_000, clock=lambda: now[0])
    assert [budget.admit(100) for _ in range(60)] == [None] * 60
    over = budget.admit(1)
    assert over is not None
    assert (over.kind, over.used, over.wait) == ("requests", 60, 1.0)
    now[0] = 1.0
    assert budget.admit(100) is None
    assert budget.levels()["tokens"].reset == pytest.approx(60.0)
    shown = {
        0.0: "0s",
        0.0001: "0s",
        0.017: "17ms",
        1: "1s",
        8.64: "8.64s",
        360: "6m0s",
        61.5: "1m1.5s",
        3600: "1h0m0s",
    }
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_quota_and_faults(engine: ExactServer) -> None:
    """After the quota every request gets insufficient_quota; planted faults come in the provider's
    shape.
    """
    with RulesGateway("openai", engine, quota=1) as gateway:
        assert post(gateway, chat("openai")).status_code == 200
        answer = post(gateway, chat("openai"))
        refusal = answer.json()["error"]
        assert (answer.status_code, refusal["code"], refusal["type"]) == (
            429,
            "insufficient_quota",
            "insufficient_quota",
        )
        assert "retry-after" not in answer.headers
    with RulesGateway(
        "openai", engine, faults=lambda number: 503 if number == 0 else "drop"
    ) as gateway:
        assert post(gateway, chat("openai")).json()["error"]["type"] == "server_error"
        assert gateway.calls[-1].rule == "server error"
        with pytest.raises(httpx2.RemoteProtocolError):
            post(gateway, chat("openai"))
        assert gateway.statuses == [503, "drop"]


def test_an_engine_that_fails_is_a_server_error() -> None:
    """What the engine behind refuses becomes 500 with its reason; no engine at all is one clear
    sentence.
    """
    with (
        ExactServer(MODEL, faults=lambda number, answer: 503) as broken,
        RulesGateway("azure", broken) as gateway,
    ):
        answer = post(gateway, chat("azure"))
        assert (answer.status_code, answer.json()["error"]["type"]) == (500, "server_error")
    with pytest.raises(InputError, match=r"no llama\.cpp server answers at http://127\.0\.0\.1:9"):
        RulesGateway("openai", "http://127.0.0.1:9/v1").__enter__()


@pytest.mark.parametrize(
    "options",
    [
        {"lie": "about everything"},
        {"quantise": 0.0},
        {"filter_prompts": "x"},
        {"requests_per_minute": 0},
    ],
    ids=str,
)
def test_options_that_make_no_sense_are_refused(options: JSON) -> None:
    """An option outside its range, or of another provider, is an InputError before anything
    starts.
    """
    with pytest.raises(InputError):
        RulesGateway("openai", "http://127.0.0.1:9/v1", **options)


def test_unknown_rules_and_a_quota_without_a_record_are_refused() -> None:
    """Only some providers are played, and insufficient_quota only where it was recorded."""
    with pytest.raises(InputError, match="known: openai, azure, fireworks"):
        RulesGateway("novita", "http://127.0.0.1:9/v1")
    with pytest.raises(InputError, match="quota"):
        RulesGateway("fireworks", "http://127.0.0.1:9/v1", quota=1)


def test_what_is_recorded(engine: ExactServer) -> None:
    """Bodies in order of arrival, headers without keys, statuses; nothing of a key anywhere."""
    with (
        RulesGateway("openai", engine) as gateway,
        openai.OpenAI(base_url=gateway.base_url, api_key=gateway.key) as client,
    ):
        assert [model.id for model in client.models.list()] == [
            "gpt-4o-mini",
            "gpt-3.5-turbo-instruct",
            "gpt-5-mini",
            "o4-mini",
        ]
        client.chat.completions.create(**chat("openai"))
        assert [call.path for call in gateway.calls] == ["/v1/models", "/v1/chat/completions"]
        assert gateway.requests == [chat("openai")]
        assert gateway.calls[1].headers["user-agent"].startswith("OpenAI/Python")
        assert gateway.key not in repr(gateway.calls)


def test_requests_are_held_against_the_official_schema(engine: ExactServer) -> None:
    """A neutral request is valid; an unknown field, a fraction in the bias and a bad message are
    told with their place.
    """
    neutral = {"temperature": 1.0, "top_p": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    with RulesGateway("openai", engine) as gateway:
        for body in (
            chat("openai", logprobs=True, top_logprobs=20, **neutral),
            legacy(logprobs=5, **neutral),
        ):
            assert (
                post(
                    gateway, {**body, "logit_bias": {"3": -7}, "seed": 3, "n": 2}, path_of(body)
                ).status_code
                == 200
            )
        assert gateway.invalid_requests == []
        post(gateway, chat("openai", top_k=0))
        post(gateway, chat("openai", logit_bias={"3": 1.5}))
        post(gateway, chat("openai", messages=[{"role": "wizard", "content": "x"}]))
        assert {found.where.split(".")[0] for found in gateway.invalid_requests} == {
            "top_k",
            "logit_bias",
            "0",
        }
        assert gateway.invalid_requests[1].where == "logit_bias.3"
        assert "not a field" in gateway.invalid_requests[0].why
