"""Requests to an inference API: an ``HttpService`` with the API's key, its rate-limit budgets, and
advice by its profile.

The openai SDK, which takes a second to load and six times as long for a bare short request
(``bench.collector``), is used for files and batches alone, which are few.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

import httpx2

from blackbox_lb.api.transport.rate_limits import RateLimiter
from blackbox_lb.api.wire import loads
from blackbox_lb.errors import (
    ConnectionFailed,
    InputError,
    ModelUnsuitable,
    ProviderError,
    RateLimited,
)
from blackbox_lb.providers.credentials import Credentials, TokenProvider, environment
from blackbox_lb.providers.profile import Profile
from blackbox_lb.safety.http.clients import at_most, ceiling
from blackbox_lb.safety.http.error_answers import Fault
from blackbox_lb.safety.http.retries import (
    ATTEMPTS,
    MalformedResponseTolerance,
    asked_pause,
    is_passing,
)
from blackbox_lb.safety.http.service import HttpService, ServiceWording, is_http_url
from blackbox_lb.safety.network import path_of_request
from blackbox_lb.safety.printable import with_remedy

if TYPE_CHECKING:
    import openai

NEEDED = frozenset(
    {
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "temperature",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
    }
)
"""Request fields that adapting a model needs: the returned logprobs, the bias, and neutral
sampling.
"""
API_PATH = "/v1"
"""The end of the address of most APIs."""
Parse: TypeAlias = Callable[[bytes], Awaitable[Any]]


class Channel(HttpService):
    """Requests to one API, for as long as it is open. ``attempts``: tries of a request, rate limits
    aside.

    ``transport`` stands in for the network. ``served`` is how long the server had requests, in
    seconds, those at the same time added up.

    Raises InputError: no usable address. AuthenticationFailed: no key where one is needed.
    """

    def __init__(
        self,
        profile: Profile,
        base_url: str | None = None,
        *,
        attempts: int = ATTEMPTS,
        token_provider: TokenProvider | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.profile = profile
        self.base_url = address_of(profile, base_url)
        self._budgets = RateLimiter(profile.connection.rate_limit_headers)
        self.malformed = MalformedResponseTolerance()
        self.served = 0.0
        self._turn = asyncio.Lock()
        self._waiting: set[asyncio.Task[Any]] = set()
        self._credentials = Credentials(profile, token_provider)
        super().__init__(
            self.base_url,
            ServiceWording(
                profile.name,
                advice={
                    "no answer": "is the server running? Another address goes in ``base_url``",
                    "moved": "give the new address with ``base_url``",
                },
            ),
            secrets=lambda: self._credentials.secrets,
            attempts=attempts,
            transport=transport,
        )

    def for_files(self, timeout: httpx2.Timeout) -> openai.AsyncOpenAI:
        """The SDK's client of the same API under the same key, for answers of any size; the caller
        closes it.

        Raises InputError: the SDK is too old for it.
        """
        import openai

        if not hasattr(openai, "DefaultAsyncHttpx2Client"):
            raise InputError(
                f"openai {openai.__version__} cannot talk through httpx2, which batches need;"
                " install openai 2.49 or newer"
            )
        client = self.http_client(httpx2.AsyncClient, timeout)
        client.event_hooks = {"request": [self._credentials]}
        return openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key="the credentials hook knows",
            max_retries=0,
            timeout=timeout,
            default_query=self.profile.connection.query,
            http_client=client,
        )

    def root(self, path: str) -> str:
        """The address of a path that lies beside the API's ``/v1``."""
        return self.base_url.removesuffix(API_PATH) + path

    def parsed(self, content: bytes, parse: Callable[[bytes], Any] = loads) -> Any:
        """``parse`` an answer from a file like a live one. Raises CorruptResponse: it is no
        JSON.
        """
        return self._json(
            httpx2.Response(200, content=content, request=httpx2.Request("GET", self.base_url)),
            parse,
        )

    def drop_waiting(self) -> None:
        """Cancel the requests that wait for their turn or for another try: none of them has been
        sent.
        """
        for task in self._waiting:
            task.cancel()

    async def get(self, path: str) -> Any:
        """The JSON at ``path``. A missing server is not waited for, one that is loading its model
        is.
        """

        async def once() -> Any:
            return self._json(await self._sent("GET", path))

        return await self.tried(
            once, lambda error: is_passing(error) and not isinstance(error, ConnectionFailed)
        )

    async def post(
        self,
        path: str,
        body: dict[str, Any],
        *,
        prompt_tokens: int = 0,
        generated: int = 0,
        around: Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]] = lambda once: once(),
        read: Callable[[Any], Any] = lambda answer: answer,
        parse: Parse | None = None,
    ) -> Any:
        """Return ``read`` of the JSON answer to ``body``, after the retries that fit the fault.

        prompt_tokens: approximate. generated: most tokens to generate. The request waits until the
        provider's budgets allow both. around: called with every try. parse: reads the JSON, where
        not ``loads``. An unreadable answer is asked for again as long as it is one slip among many
        (``MalformedResponseTolerance``).

        Raises ProviderError: one of its subclasses, each with the provider's own words.
        """

        async def once() -> Any:
            result = read(
                await around(
                    lambda: self._once(path, body, prompt_tokens + generated, generated, parse)
                )
            )
            self.malformed.good += generated > 0
            return result

        with at_most(ceiling(body, generated)):
            return await self.tried(
                once, lambda error: is_passing(error) or self.malformed.passing(error)
            )

    async def _sleep(self, seconds: float) -> None:
        with self._waits():
            await asyncio.sleep(seconds)

    @contextmanager
    def _waits(self) -> Iterator[None]:
        """Inside, the task may be dropped without loss."""
        task = asyncio.current_task()
        if task is not None:
            self._waiting.add(task)
        try:
            yield
        finally:
            self._waiting.discard(task)

    async def _once(
        self, path: str, body: dict[str, Any], tokens: int, generated: int, parse: Parse | None
    ) -> Any:
        # First come, first served: else small requests would overtake a large one for ever.
        if (
            self._turn.locked()
            or self._budgets.wait(tokens, started := time.monotonic(), generated=generated) > 0
        ):
            with self._waits():
                async with self._turn:
                    while (
                        delay := self._budgets.wait(
                            tokens, started := time.monotonic(), generated=generated
                        )
                    ) > 0:
                        await asyncio.sleep(delay)

        def learn(response: httpx2.Response) -> None:
            self._budgets.update(
                response.headers,
                time.monotonic(),
                started=started,
                tokens=tokens,
                generated=generated,
            )

        content = json.dumps(
            body, separators=(",", ":"), ensure_ascii=False, allow_nan=False
        ).encode()
        try:
            response = await self._sent("POST", path, content, body.get("model"))
        except ProviderError as error:
            if isinstance(error.__cause__, httpx2.HTTPStatusError):
                learn(error.__cause__.response)
                if isinstance(error, RateLimited):
                    self._budgets.refused(
                        asked_pause(error.__cause__.response.headers), time.monotonic()
                    )
            raise
        learn(response)
        with self.reading(response) as content:
            answer = loads(content) if parse is None else await parse(content)
        if isinstance(answer, dict) and answer.get("error") and not answer.get("choices"):
            # Gateways answer 200 with another server's refusal inside, and so does Azure for some
            # filtered prompts.
            raise self.refusal(None, answer, body.get("model"))
        return answer

    async def _sent(
        self, method: str, path: str, content: bytes | None = None, model: str | None = None
    ) -> httpx2.Response:
        """The answer. path: below the API's address, or a whole one. Raises ProviderError: no
        answer, or a refusal.
        """
        url = path
        if not path.startswith("http"):
            url = self.base_url + path
        request = self.request(method, url, content, query=self.profile.connection.query)
        await self._credentials(request)
        begin = time.monotonic()
        try:
            return await self.send(request, model)
        finally:
            self.served += time.monotonic() - begin

    def _json(self, response: httpx2.Response, parse: Callable[[bytes], Any] = loads) -> Any:
        with self.reading(response) as content:
            return parse(content)

    def error_of(
        self, fault: Fault, model: str | None = None, url: str | None = None
    ) -> ProviderError:
        """The error of a fault; of a model or a set-up that lacks what adapting it needs, what is
        missing.
        """
        refusal = self.profile.bias.refusal_of(fault.message)
        if refusal is not None:
            return ModelUnsuitable(with_remedy(f"{fault}: {refusal.why}", refusal.remedy))
        lacks = fault.kind == "unsupported" and fault.limit is None and fault.parameter in NEEDED
        if lacks and model is not None:
            return self.profile.unsuitable(model, fault.message)
        return super().error_of(fault, model, url)

    def advice(self, fault: Fault, model: str | None, url: str | None) -> str | None:
        """What to do at a fault, by the profile of the API."""
        rules = self.profile.connection
        match fault.kind:
            case "authentication":
                where = ""
                if rules.api_key_url:
                    where = f"; keys are made at {rules.api_key_url}"
                return f"check the key in {rules.api_key_env or 'your profile'}{where}"
            case "quota":
                return "what was received is kept, the same command goes on once there is credit"
            case "rate limit":
                return "lower ``concurrency`` or wait, what was received is kept"
            case "context full":
                return (
                    "lower ``concurrency``, or give the server a longer context; what was received"
                    " is kept"
                )
            case "context length":
                return (
                    "shorten the prompt, lower ``max_tokens``, or give a server of your own a"
                    " longer context"
                )
            case "overloaded" | "server" | "timeout" | "conflict":
                return "what was received is kept, the same command goes on from there"
            case "unsupported" if fault.limit is not None:
                return f"ask for at most {fault.limit} with ``top_logprobs``"
            case "other endpoint" if fault.parameter in self.profile.endpoints:
                return f"use ``endpoint={fault.parameter}``"
            case "unknown model" if model is not None:
                where = ""
                if rules.lists_models:
                    where = f", or see which there are at {self.base_url}/models"
                return f"is {model!r} the model's name? Give another with ``model``{where}"
            case "not found" if url is not None:
                return self._missing(url, model)
            case "not found" if model is not None:
                return f"is {model!r} the model's name?"
            case _:
                return None

    def _missing(self, url: str, model: str | None) -> str:
        """The advice where ``url``, which was asked, does not exist."""
        rules = self.profile.connection
        usual = (rules.base_path or rules.base_url or API_PATH).rstrip("/")
        if usual.endswith(API_PATH) and not self.base_url.endswith(API_PATH):
            return (
                f"{url} was asked for; the address of such an API ends in {API_PATH}: try"
                f" ``base_url={self.base_url}{API_PATH}``"
            )
        named = ""
        if model is not None:
            named = f", and {model!r} the model's name"
        return f"{url} was asked for; is {self.base_url} the API's address{named}?"


def address_of(profile: Profile, base_url: str | None) -> str:
    """The API's address, the profile's own by default. Raises InputError: there is none, or it is
    no plain URL.
    """
    rules = profile.connection
    address = (base_url or environment(rules.base_url_env) or rules.base_url or "").rstrip("/")
    remedy = (
        f"give one with ``base_url``{f' or in {rules.base_url_env}' if rules.base_url_env else ''}"
    )
    if not address:
        raise InputError(
            f"{profile.name} has no address of its own; {remedy}, as in"
            f" https://HOST{rules.base_path or '/v1'}"
        )
    if not is_http_url(address):
        raise InputError(
            f"the address {address.rpartition('@')[2]!r} is not a http(s) URL; {remedy}"
        )
    url = httpx2.URL(address)
    if url.userinfo or url.query:
        raise InputError(
            "the address holds a password or a query; keys belong in the environment, a query in"
            " connection.query of a profile"
        )
    if path := path_of_request(url.path):
        raise InputError(
            f"the address {address} ends in {path}, which is the path of a request; {remedy}"
            f" without it: {address.removesuffix(path)}"
        )
    if address.endswith(rules.base_path):
        return address
    return address + rules.base_path
