"""What leaves this machine and what comes back: credentials, retries, budgets, and errors in the
provider's own words.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.api.transport.channel import Channel
from blackbox_lb.errors import (
    AuthenticationFailed,
    BlbError,
    InputError,
    ModelUnsuitable,
    RequestRejected,
)
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety.http.clients import HttpRequest
from tests.support.answering import Answering
from tests.support.errors import names, raises_naming
from tests.support.exact.listener import Reply

Answer = Callable[[HttpRequest], Reply]
pytestmark = pytest.mark.usefixtures("quick_retries")
KEY = "sk-0123456789abcdef0123456789abcdef"
BODY = {"model": "gpt-4o-mini"}


def send(answer: Answer, provider: str = "openai", **options: Any) -> list[HttpRequest]:
    """POST a request to a provider that answers so; the requests that arrived."""
    arrived: list[HttpRequest] = []

    def handle(request: HttpRequest) -> Reply:
        arrived.append(request)
        return answer(request)

    async def go() -> None:
        channel = Channel(load_profile(provider), transport=Answering(handle), **options)
        try:
            await channel.post("/chat/completions", BODY)
        finally:
            await channel.close()

    try:
        asyncio.run(go())
    except BlbError as error:
        error.arrived = arrived  # type: ignore[attr-defined]
        raise
    return arrived


def refuse(status: int, message: str, _: HttpRequest) -> Reply:
    """An error answer to any request."""
    return Reply(status, {"error": {"message": message}})


def fine(_: HttpRequest) -> Reply:
    """An answer that nothing is wrong with."""
    return Reply(200, {})


def arrived_before(error: BlbError) -> int:
    """How many requests had arrived when ``send`` failed."""
    return len(error.arrived)  # type: ignore[attr-defined]


def test_every_host_gets_its_own_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It stands in Authorization, organisation and project in headers of their own; neither the key
    nor the organisation that the SDK finds in the environment reaches another host.
    """
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-1")
    (request,) = send(fine)
    assert str(request.url) == "https://api.openai.com/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["openai-organization"] == "org-1"
    monkeypatch.setenv("FIREWORKS_API_KEY", "fw-mine")
    (request,) = send(fine, "fireworks")
    assert request.headers["authorization"] == "Bearer fw-mine"
    assert KEY not in str(request.headers)
    assert "openai-organization" not in request.headers
    (request,) = send(fine, "vllm")
    assert "authorization" not in request.headers


def test_an_extended_profile_sends_nothing_of_the_parents_host(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Another address gets its own key alone; its errors name its own variable and neither OpenAI's
    key page nor its models.
    """
    for variable in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_BASE_URL"):
        monkeypatch.setenv(variable, "https://parent-secret.example")
    monkeypatch.setenv("MY_KEY", "mine-0123456789")
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "openai"\n[connection]\nbase_url = "https://elsewhere.example/v1"\napi_key_env ='
        ' "MY_KEY"\n'
    )
    (request,) = send(fine, str(path))
    assert str(request.url) == "https://elsewhere.example/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer mine-0123456789"
    assert "parent-secret" not in str(request.headers)
    assert not [name for name in request.headers if name.startswith("openai-")]
    load_profile(str(path)).check_model("o3-mini")
    lacks = "Unsupported parameter: 'logprobs' is not supported with this model."
    for status, message in ((401, "no"), (400, lacks)):
        with pytest.raises(BlbError) as caught:
            send(partial(refuse, status, message), str(path))
        said = str(caught.value).replace(BODY["model"], "the model asked for")
        assert not re.search("openai|gpt", said, re.IGNORECASE)


@pytest.mark.parametrize(
    ("status", "message", "kind", "facts"),
    [
        (401, "Incorrect API key provided", AuthenticationFailed, ("401", "OPENAI_API_KEY")),
        (
            404,
            "The model `gpt-4o-mini` does not exist or you do not have access to it.",
            RequestRejected,
            ("404", "is 'gpt-4o-mini' the model's name"),
        ),
        (
            400,
            "Unsupported parameter: 'logprobs' is not supported with this model.",
            ModelUnsuitable,
            ("gpt-4o-mini", "'logprobs'", "gpt-4o"),
        ),
        (
            400,
            "Invalid 'top_logprobs': integer above maximum value. Expected a value <= 20.",
            RequestRejected,
            ("ask for at most 20 with ``top_logprobs``",),
        ),
    ],
)
def test_a_refusal_has_its_remedy(
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    message: str,
    kind: type[BlbError],
    facts: tuple[str, ...],
) -> None:
    """The key's variable, the name that may be wrong, models that work; after one request."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with raises_naming(kind, *facts) as caught:
        send(partial(refuse, status, message))
    assert arrived_before(caught.value) == 1


def test_without_an_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """Azure has no address of its own: the option and the variable are named."""
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    monkeypatch.delenv("AZURE_OPENAI_ENDPOINT", raising=False)
    with raises_naming(InputError, "``base_url``", "AZURE_OPENAI_ENDPOINT"):
        send(fine, "azure")


def test_no_key_follows_a_redirect(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever host a redirect names, it is not asked; the sentence names it."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    moved = Reply(307, headers={"location": "https://elsewhere.example/v1/chat/completions"})
    with raises_naming(RequestRejected, "https://elsewhere.example", "``base_url``") as caught:
        send(lambda request: moved)
    assert arrived_before(caught.value) == 1


@pytest.mark.parametrize(
    "value", [f"{KEY[:20]}\r\n{KEY[20:]}", f"\N{LEFT DOUBLE QUOTATION MARK}{KEY}"]
)
def test_a_key_that_no_header_takes(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    """The variable is named, its value is not, and nothing is sent."""
    monkeypatch.setenv("OPENAI_API_KEY", value)
    with raises_naming(AuthenticationFailed, "OPENAI_API_KEY") as caught:
        send(fine)
    assert KEY[:12] not in str(caught.value)
    assert arrived_before(caught.value) == 0


def test_the_address_in_a_profile_and_in_the_environment_is_mended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As the one of an option."""
    path = tmp_path / "mine.toml"
    path.write_text('extends = "vllm"\n[connection]\nbase_url = " HTTP://h:8000/v1 "\n')
    assert Channel(load_profile(str(path))).base_url == "http://h:8000/v1"
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", " HTTPS://mine.openai.azure.com/ ")
    azure = Channel(load_profile("azure"))
    assert azure.base_url == "https://mine.openai.azure.com/openai/v1"


def test_an_address_with_the_path_of_a_request() -> None:
    """It is said, with the address that is left without it, before anything is sent."""
    for path in ("/chat/completions", "/completions", "/responses", "/embeddings"):
        with pytest.raises(InputError) as caught:
            send(fine, "vllm", base_url=f"http://host.example/v1{path}/")
        assert path in str(caught.value)
        assert str(caught.value).endswith("http://host.example/v1")


def missing(provider: str, base_url: str) -> str:
    """The message where a server has nothing at the address of a request."""
    with pytest.raises(RequestRejected) as caught:
        send(lambda _: Reply(404, b"404 page not found"), provider, base_url=base_url)
    return str(caught.value)


def test_what_does_not_exist_is_named_by_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an address is a hint where it is another one, and where the provider's is known
    to have it. A query, which may hold a key, is not repeated.
    """
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    hint = "ends in /v1"
    without = missing("vllm", "http://host.example")
    assert names(without, "http://host.example/chat/completions")
    assert hint in without
    assert "``base_url=http://host.example/v1``" in without
    whole = missing("vllm", "http://host.example/v1")
    assert names(whole, "http://host.example/v1/chat/completions")
    assert hint not in whole
    classic = missing("azure-classic", "https://name.example")
    assert names(classic, "https://name.example/openai/chat/completions")
    assert hint not in classic
    assert "api-version" not in classic
