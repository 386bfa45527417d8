"""The rules gateway refuses what the real services refuse, with their codes, and takes what they
take. That its answers are the exact model's is what the doctor finds before it
(tests/unit/extras/test_doctor_gateway.py).
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator

import httpx2
import pytest

from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway
from tests.support.gateway.refusals import JSON

MODEL = ExactModel(40, 3, seed=5, end=True)
LARGEST = 100_257
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Certificates take a tenth of a second to load."""
FIRE = "accounts/fireworks/models/gateway"
INSTRUCT = "gpt-3.5-turbo-instruct"
MINI, OLD = {"model": "gpt-5-mini"}, {"model": "o4-mini"}
LOOSE = {"max_tokens": None}


@pytest.fixture(scope="module")
def gateways() -> Iterator[dict[str, RulesGateway]]:
    """One gateway of each kind; ids up to those of a large vocabulary may be biased."""
    with (
        ExactServer(MODEL) as engine,
        RulesGateway("openai", engine, largest=LARGEST) as first,
        RulesGateway("azure", engine, largest=LARGEST) as second,
        RulesGateway("fireworks", engine, largest=LARGEST) as third,
    ):
        yield {"openai": first, "azure": second, "fireworks": third}


def post(gateway: RulesGateway, fields: JSON, **headers: str) -> httpx2.Response:
    """A request that every provider takes, with other fields and the right key unless told
    otherwise.
    """
    is_chat = "prompt" not in fields
    model = FIRE if "inference" in gateway.base_url else "gpt-4o-mini" if is_chat else INSTRUCT
    body: JSON = {"model": model, "max_tokens": 1, **fields}
    if is_chat and "messages" not in body:
        body["messages"] = [{"role": "user", "content": "hello"}]
    path = "/chat/completions" if is_chat else "/completions"
    return httpx2.post(
        gateway.base_url + path,
        content=json.dumps(body).encode(),
        headers=headers or {"authorization": f"Bearer {gateway.key}"},
        timeout=30,
        verify=NO_TLS,
    )


def entries(number: int) -> JSON:
    """A bias of so many entries."""
    return {"logit_bias": {str(token): 1 for token in range(number)}}


TAKEN: list[JSON] = [
    {"n": 128, "user": "me", "stop": list("abcd"), "stream": False},
    {"logprobs": True, "top_logprobs": 5, "temperature": 2, "top_p": 1, "presence_penalty": -2},
    {"logit_bias": {"3": 100, "4": -100, "5": 0.5, "100257": 1}},
    {"prompt": "x", "logprobs": 5},
    {**LOOSE, "max_completion_tokens": 1},
]
REFUSED: list[tuple[str, str, JSON, str | None, str | None]] = [
    ("openai", "required", {"model": None}, "model", "missing_required_parameter"),
    ("openai", "unknown field", {"top_k": 0}, None, None),
    ("openai", "range", {"n": 129}, "n", "integer_above_max_value"),
    ("openai", "range", {"top_p": 1.1}, "top_p", "decimal_above_max_value"),
    ("openai", "range", {"logprobs": True, "top_logprobs": 21}, "top_logprobs", "integer_above_max_value"),
    ("openai", "range", {"prompt": "x", "logprobs": 6}, "logprobs", "integer_above_max_value"),
    ("openai", "range", {"logit_bias": {"3": -101}}, "logit_bias.3", "integer_below_min_value"),
    ("openai", "bias entries", entries(301), "logit_bias", None),
    ("openai", "bias properties", entries(1025), "logit_bias", "object_above_max_properties"),
    ("openai", "bias keys", {"logit_bias": {"-1": 10}}, "logit_bias", None),
    ("openai", "bias largest id", {"logit_bias": {"100265": -100}}, "logit_bias", None),
    ("openai", "reasoning: parameters", {**LOOSE, **MINI, "logprobs": True}, "logprobs", "unsupported_parameter"),
    ("openai", "reasoning: parameters", MINI, "max_tokens", "unsupported_parameter"),
    ("openai", "reasoning: values", {**LOOSE, **OLD, "temperature": 0.1}, "temperature", "unsupported_value"),
    ("openai", "not served", {"stream": True}, None, "gateway_not_served"),
    ("openai", "model", {"model": "nope"}, None, "model_not_found"),
    ("openai", "chat model", {"prompt": "x", "model": "gpt-4o-mini"}, "model", None),
    ("azure", "bias entries", entries(301), "logit_bias", None),
    ("azure", "model", {"model": "nope"}, None, "DeploymentNotFound"),
    ("fireworks", "unknown field", {"xtc": 1}, None, "invalid_request_error"),
    ("fireworks", "range", {"logprobs": 6}, None, "invalid_request_error"),
    ("fireworks", "model", {"model": "nope"}, None, "NOT_FOUND"),
]  # fmt: skip


@pytest.mark.parametrize("provider", ["openai", "azure", "fireworks"])
@pytest.mark.parametrize("fields", TAKEN)
def test_what_is_within_the_rules_is_answered(
    gateways: dict[str, RulesGateway], provider: str, fields: JSON
) -> None:
    """The limits themselves, at each provider."""
    answer = post(gateways[provider], fields)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(("provider", "rule", "fields", "param", "code"), REFUSED)
def test_what_is_beyond_a_rule_is_refused(
    gateways: dict[str, RulesGateway],
    provider: str,
    rule: str,
    fields: JSON,
    param: str | None,
    code: str | None,
) -> None:
    """With the parameter and the code of the service, and the call names the rule."""
    gateway = gateways[provider]
    answer = post(gateway, fields)
    error = answer.json()["error"]
    assert answer.status_code == (404 if "model" in rule else 400)
    assert (error.get("param"), error["code"]) == (param, code)
    assert gateway.calls[-1].rule == rule


def test_only_the_right_key_is_taken(gateways: dict[str, RulesGateway]) -> None:
    """Azure's in a header of its own, or an Entra token."""
    for gateway in gateways.values():
        assert post(gateway, {}, authorization="Bearer wrong").status_code == 401
        assert post(gateway, {}, other="x").status_code == 401
    azure = gateways["azure"]
    assert post(azure, {}, **{"api-key": "wrong"}).status_code == 401
    assert post(azure, {}, **{"api-key": azure.key}).status_code == 200
    assert post(azure, {}, authorization=f"Bearer {azure.token}").status_code == 200
