"""Requests to an inference API: an HttpService with the API's key, its budgets of requests and
tokens, and advice by its profile.

The openai SDK, which takes a second to load and six times as long for a bare short request
(``bench.collector``), is used for files and batches alone, which are few.

The provider keeps a bucket for requests and one for tokens. A bucket holds ``limit``, a request
takes its share out when it is admitted, and it fills up again at ``limit`` per minute without
pause: the header ``reset`` is the time until it is full, so one request of 5,000 a minute resets in
12 ms (https://platform.openai.com/docs/guides/rate-limits, "Rate limits in headers"; tokens are the
prompt's and ``max_tokens``, and refused requests count). Limits per day look the same but for a
longer reset: one of 10,000 a day resets in 8.64 s. Azure sends the same headers with resets in bare
milliseconds, or only what remains
(https://learn.microsoft.com/azure/ai-services/openai/how-to/quota). Fireworks sends no more than
tokens per second, of the prompt and generated, and enforces them per minute
(https://docs.fireworks.ai/serverless/rate-limits).

``RateLimiter`` mirrors these buckets. Its own count moves with every request that it lets through,
at once, so that workers who ask together do not all see the same remainder. Headers are late: they
may or may not count requests sent after theirs. So they bound the count, and it is moved only as
far as a bound requires.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from blackbox_lb.api.wire import loads
from blackbox_lb.errors import (
    ConnectionFailed,
    InputError,
    ModelUnsuitable,
    ProfileError,
    ProviderError,
    RateLimited,
)
from blackbox_lb.providers.credentials import Credentials, TokenProvider, environment
from blackbox_lb.providers.profile import Profile
from blackbox_lb.safety.files import most_connections
from blackbox_lb.safety.http.clients import (
    HttpAnswer,
    HttpRequest,
    Transport,
    at_most,
    ceiling,
)
from blackbox_lb.safety.http.error_answers import Fault
from blackbox_lb.safety.http.header_values import DAY, MINUTE, lowered, parse_duration, parse_number
from blackbox_lb.safety.http.retries import (
    ATTEMPTS,
    PATIENCE,
    MalformedResponseTolerance,
    is_passing,
)
from blackbox_lb.safety.http.service import (
    MOST_CONNECTIONS,
    HttpService,
    when_to_go_on,
)
from blackbox_lb.safety.network import read_address, verification
from blackbox_lb.safety.printable import with_remedy

if TYPE_CHECKING:
    import httpx2
    import openai

FACTS = ("limit", "rate", "remaining", "reset", "window")
"""Facts of a bucket: its limit for each window, or per second; its remainder; the time until it is
full; the window, in seconds.
"""
KINDS = ("requests", "tokens", "prompt-tokens", "generated-tokens")

OPENAI_HEADERS: Mapping[str, str] = {
    f"{fact}-{kind}": f"x-ratelimit-{word}-{kind}"
    for kind in ("requests", "tokens")
    for fact, word in zip(FACTS, ("limit", "", "remaining", "reset", "renewalperiod"), strict=True)
    if word
}
"""The headers of OpenAI and Azure; only Azure sends the window (``renewalperiod``)."""

MEMORY = 600.0
"""Seconds for which requests are remembered: a later answer has timed out."""
SHORTEST = 0.001
"""Shortest wait in seconds; a caller who sleeps for less burns the processor for nothing."""
NOW = 1e-6
"""Seconds that count as none: clocks of uptime or of the epoch resolve no finer."""
ROUNDING = 2.0
"""Seconds by which a reset may be rounded up."""


class RateLimiter:
    """The waits of requests that avoid a provider's refusals. No clock of its own: ``now`` is in
    seconds.

    ``names``: ``FACT-KIND`` -> a header's name, where FACT is limit (for each window, by default a
    minute), rate (a limit per second), remaining, reset or window, and KIND requests, tokens,
    prompt-tokens or generated-tokens. Where only ``remaining`` is sent, the largest seen value
    stands for the limit. A kind without any header is open.

    Not for several threads. Workers that ask one at a time, first come first served, keep large
    requests from being overtaken.

    Raises ProfileError: ``names`` has a key that is no such pair.
    """

    def __init__(self, names: Mapping[str, str] = OPENAI_HEADERS) -> None:
        self._buckets: dict[str, _Bucket] = {}
        self._names: dict[str, dict[str, str]] = {}
        for key, header in names.items():
            fact, _, kind = key.partition("-")
            if fact not in FACTS or kind not in KINDS:
                raise ProfileError(
                    f"no rate limit is called {key!r}: give one of {', '.join(FACTS)}, a hyphen,"
                    f" and one of {', '.join(KINDS)}"
                )
            self._buckets.setdefault(kind, _Bucket())
            self._names.setdefault(kind, {})[fact] = header.lower()
        self._paused_until = -math.inf

    def wait(self, tokens: int, now: float, *, generated: int = 0) -> float:
        """Seconds until a request may start; 0.0 means now, and then it is counted as started.

        ``tokens``: the prompt's and the most that may be generated (``max_tokens`` times ``n``);
        ``generated``: the latter alone. A request larger than a whole bucket starts when the bucket
        is full.
        """
        shares = _shares(tokens, generated)
        waits = (bucket.wait(shares[kind], now) for kind, bucket in self._buckets.items())
        longest = max(self._paused_until - now, *waits, 0.0)
        if longest > NOW:
            return max(longest, SHORTEST)
        for kind, bucket in self._buckets.items():
            bucket.take(shares[kind], now)
        return 0.0

    def update(
        self,
        headers: Mapping[str, str],
        now: float,
        *,
        started: float | None = None,
        tokens: int = 0,
        generated: int = 0,
    ) -> None:
        """Learn from an answer's headers, refusals included.

        ``started``: the ``now`` at which ``wait`` let the answered request through, with the same
        ``tokens`` and ``generated``. It shows which requests the headers cannot count; without it
        headers only ever lower the budget.
        """
        fields = lowered(headers)
        shares = _shares(tokens, generated)
        for kind, bucket in self._buckets.items():
            facts = {fact: fields.get(name) for fact, name in self._names[kind].items()}
            bucket.learn(facts, now, started, shares[kind])

    def refused(self, seconds: float, now: float) -> None:
        """Let nothing start for ``seconds`` after a 429 (those of ``retry_after``, or the caller's
        own); no number counts as 0.
        """
        if math.isfinite(seconds):
            self._paused_until = max(self._paused_until, now + seconds)


class _Bucket:
    """One of the provider's buckets as far as it is known. ``level``: the amount that may start
    now, up to the limit; None: any.
    """

    def __init__(self) -> None:
        self._limit: float | None = None
        self._most_seen = 1.0
        self._window = MINUTE
        self._level: float | None = None
        self._at = -math.inf
        self._started = _Log()

    @property
    def _size(self) -> float:
        if self._limit is None:
            return self._most_seen
        return self._limit

    @property
    def _rate(self) -> float:
        """Refill in units a second."""
        return self._size / self._window

    def wait(self, share: float, now: float) -> float:
        level = self._refilled(now)
        if level is None:
            return 0.0
        return max(0.0, (min(share, self._size) - level) / self._rate)

    def take(self, share: float, now: float) -> None:
        self._started.add(share, now)
        level = self._refilled(now)
        if level is not None:
            self._level = max(0.0, level - share)

    def learn(
        self, headers: Mapping[str, str | None], now: float, started: float | None, share: float
    ) -> None:
        remaining = parse_number(headers.get("remaining"))
        limit = _positive(headers.get("limit"))
        reset = headers.get("reset")
        self._window = (
            _positive(headers.get("window")) or _window(limit, remaining, reset) or self._window
        )
        rate = _positive(headers.get("rate"))
        if limit or rate:
            self._limit = limit or (rate or 0.0) * self._window
        self._most_seen = max(self._most_seen, remaining or 0.0)
        if remaining is not None:
            self._level = self._corrected(remaining, now, started, share)
        elif self._limit is not None and self._level is None:
            self._level = self._limit - self._started.since(now - self._window)
        if self._level is not None:
            self._level = min(max(0.0, self._level), self._size)
            self._at = max(now, self._at)

    def _corrected(
        self, remaining: float, now: float, started: float | None, share: float
    ) -> float:
        """This client's count, clamped to the bounds that ``remaining`` sets.

        The provider counted when it admitted the request, so that ``remaining`` lacks later ones
        and the refill since, or when it answered, so that it lacks neither: the truth lies between.
        """
        level = self._refilled(now)
        if started is None:
            if level is None:
                return remaining - self._started.since(-math.inf)
            return min(level, remaining)
        low = max(0.0, remaining - max(0.0, self._started.since(started) - share))
        high = max(remaining, low + self._rate * max(0.0, now - started))
        if level is None:
            return low
        return min(max(level, low), high)

    def _refilled(self, now: float) -> float | None:
        if self._level is not None and now > self._at:
            self._level = min(self._size, self._level + self._rate * (now - self._at))
            self._at = now
        return self._level


class _Log:
    """The amount started since any moment of the last ``MEMORY`` seconds."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._sums = [0.0]

    def add(self, share: float, now: float) -> None:
        self._times.append(max(now, self._times[-1]) if self._times else now)
        self._sums.append(self._sums[-1] + share)
        old = bisect_left(self._times, now - MEMORY)
        if old > len(self._times) // 2:
            del self._times[:old], self._sums[:old]

    def since(self, time: float) -> float:
        """The sum of shares started at ``time`` or later."""
        return self._sums[-1] - self._sums[bisect_left(self._times, time)]


def _window(limit: float | None, remaining: float | None, reset: str | None) -> float | None:
    """Seconds in which the bucket fills, by the time until it is full; None where the headers do
    not show it.

    Only a reset far beyond a minute's shows a longer window; a bare number may be seconds or
    milliseconds and shows nothing.
    """
    if limit is None or remaining is None or reset is None or parse_number(reset) is not None:
        return None
    seconds = parse_duration(reset)
    used = limit - remaining
    if seconds is None or used < 1:
        return None
    window = seconds * limit / used
    if seconds > ROUNDING + 10 * MINUTE * used / limit and window < 1.1 * DAY:
        return window
    return MINUTE


def _shares(tokens: int, generated: int) -> dict[str, float]:
    amounts = (1, tokens, tokens - generated, generated)
    return {kind: max(0.0, float(amount)) for kind, amount in zip(KINDS, amounts, strict=True)}


def _positive(text: str | None) -> float | None:
    return parse_number(text) or None


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
SDK_HEADERS = ("Authorization", "OpenAI-Organization", "OpenAI-Project")
"""Headers that the SDK adds from the environment of one provider to requests for any other."""
API_PATH = "/v1"
"""The end of the address of most APIs."""
Parse: TypeAlias = Callable[[bytes], Awaitable[Any]]


class Channel(HttpService):
    """Requests to one API, for as long as it is open. ``attempts``: tries of a request, rate limits
    aside.

    ``transport`` stands in for the network.

    Raises InputError: no usable address. AuthenticationFailed: no key where one is needed.
    """

    def __init__(
        self,
        profile: Profile,
        base_url: str | None = None,
        *,
        attempts: int = ATTEMPTS,
        token_provider: TokenProvider | None = None,
        transport: Transport | None = None,
    ) -> None:
        self.profile = profile
        self.base_url = address_of(profile, base_url)
        self._budgets = RateLimiter(profile.connection.rate_limit_headers)
        self.malformed = MalformedResponseTolerance()
        self._turn = asyncio.Lock()
        self._limited_by = f"{profile.name} allows no more by the rate limits in its headers"
        self._credentials = Credentials(profile, token_provider)
        super().__init__(
            self.base_url,
            profile.name,
            advice={
                "no answer": "is the server running? Another address goes in ``base_url``",
                "moved": "give the new address with ``base_url``",
            },
            secrets=lambda: self._credentials.secrets,
            attempts=attempts,
            transport=transport,
        )

    async def authorize(self, request: HttpRequest) -> None:
        """Add the key."""
        request.headers.update(await self._credentials.headers())
        request.url = request.url.update_query(self._credentials.query)

    def for_files(self, timeout: httpx2.Timeout) -> openai.AsyncOpenAI:
        """The SDK's client of the same API under the same key, for answers of any size, with the
        SDK's own retries; the caller closes it.

        Raises InputError: the SDK is too old for it.
        """
        import httpx2
        import openai

        async def authorize(request: httpx2.Request) -> None:
            for header in SDK_HEADERS:
                request.headers.pop(header, None)
            request.headers.update(await self._credentials.headers())
            request.url = request.url.copy_merge_params(self._credentials.query)

        if not hasattr(openai, "DefaultAsyncHttpx2Client"):
            raise InputError(
                f"openai {openai.__version__} cannot talk through httpx2, which batches need;"
                " install openai 2.49 or newer"
            )
        most = most_connections(MOST_CONNECTIONS)
        proxy = None
        if self._proxy_server is not None:
            proxy = self._proxy_server.address
        client = httpx2.AsyncClient(
            timeout=timeout,
            limits=httpx2.Limits(max_connections=most, max_keepalive_connections=most),
            # The key would be added again for any host that a redirect names.
            follow_redirects=False,
            event_hooks={"request": [authorize]},
            verify=verification(self.base_url),
            proxy=proxy,
            trust_env=False,
        )
        return openai.AsyncOpenAI(
            base_url=self.base_url,
            api_key="the credentials hook knows",
            max_retries=ATTEMPTS - 1,
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
        with self.reading(HttpAnswer(200, {}, content, self.base_url)) as body:
            return parse(body)

    async def get(self, path: str) -> Any:
        """The JSON at ``path``. A missing server is not waited for, one that is loading its model
        is.
        """

        async def once() -> Any:
            query = self.profile.connection.query
            answer = await self.send("GET", self.base_url + path, query=query)
            with self.reading(answer) as content:
                return loads(content)

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

        tokens = prompt_tokens + generated
        model = body.get("model")
        sent = json.dumps(body, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
        url = path
        if path.startswith("/"):
            url = self.base_url + path

        async def send() -> Any:
            started = await self._admitted(tokens, generated)

            def learn(headers: Mapping[str, str]) -> None:
                now = time.monotonic()
                self._budgets.update(
                    headers, now, started=started, tokens=tokens, generated=generated
                )

            try:
                response = await self.send(
                    "POST", url, sent, query=self.profile.connection.query, model=model
                )
            except ProviderError as error:
                if error.status is not None:
                    learn(error.headers)
                    if isinstance(error, RateLimited):
                        self._budgets.refused(error.pause, time.monotonic())
                raise
            learn(response.headers)
            with self.reading(response) as content:
                answer = loads(content) if parse is None else await parse(content)
            self.check_answer(answer, "choices", model)
            return answer

        async def once() -> Any:
            result = read(await around(send))
            self.malformed.good += generated > 0
            return result

        with at_most(ceiling(body, generated)):
            return await self.tried(
                once, lambda error: is_passing(error) or self.malformed.passing(error)
            )

    async def _admitted(self, tokens: int, generated: int) -> float:
        """Wait until the provider's budgets allow a request; return when it was let through.

        First come, first served: else small requests would overtake a large one for ever.

        Raises RateLimited: a wait that is longer than a request waits.
        """
        started = time.monotonic()
        if not self._turn.locked() and not self._budgets.wait(tokens, started, generated=generated):
            return started
        with self._droppable():
            async with self._turn:
                while True:
                    started = time.monotonic()
                    delay = self._budgets.wait(tokens, started, generated=generated)
                    if not delay:
                        return started
                    if delay > PATIENCE:
                        error = RateLimited(with_remedy(self._limited_by, when_to_go_on(delay)))
                        error.pause = delay
                        raise error
                    await self._waits.wait(delay, self._limited_by, RateLimited.__name__)

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
            case "unsupported" if self._decides_at(url):
                return (
                    f"{model} may be no model that decides; name one with ``model``, or leave out"
                    " ``endpoint=decisions`` where the host has a chat endpoint, and the question"
                    " is put as a prompt"
                )
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

    def _decides_at(self, url: str | None) -> bool:
        """Whether an address is that of the endpoint of decisions."""
        rules = self.profile.decisions
        return rules is not None and url is not None and url.endswith(rules.path)

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
    address = base_url or environment(rules.base_url_env) or rules.base_url or ""
    remedy = "give one with ``base_url``"
    if rules.base_url_env:
        remedy = f"{remedy} or in {rules.base_url_env}"
    if not address.strip():
        raise InputError(
            f"{profile.name} has no address of its own; {remedy}, as in"
            f" https://HOST{rules.base_path or '/v1'}"
        )
    address = read_address(
        address,
        "the address",
        remedy,
        "keys belong in the environment, a query in connection.query of a profile",
    )
    if address.endswith(rules.base_path):
        return address
    return address + rules.base_path
