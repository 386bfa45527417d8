"""The engine behind the gateway, any server of llama.cpp's dialect: asked neutrally and one
completion at a time, and read as a provider would tell its answer.

Index letters: ``k`` listed tokens of one position, ``v`` the vocabulary. All logprobs are in nats.
"""

from __future__ import annotations

import http.client
import json
import math
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias
from urllib.parse import urlsplit

import numpy as np
import numpy.typing as npt

from blackbox_lb.providers.profile import load_profile
from tests.support.exact import ExactServer
from tests.support.exact.llamacpp_answers import RefusedRequest
from tests.support.exact.model import log_softmax

JSON: TypeAlias = dict[str, Any]
Endpoint: TypeAlias = Literal["chat", "completions"]
Lie: TypeAlias = Literal["top_p 0.9", "after bias", "ignored bias", "64 entries", "integers"]
Fault: TypeAlias = Callable[[int], int | None]
"""Number of an accepted completion request, from 0 -> a status to answer instead, or None."""
Vector: TypeAlias = npt.NDArray[np.float64]

NEUTRAL: Mapping[str, float] = {
    "temperature": 1.0,
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
ENGINE_NAMES: Mapping[str, str] = {"repetition_penalty": "repeat_penalty"}
PATHS: Mapping[Endpoint, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
LEGACY_TOKENS = 16
"""The default of max_tokens: schema CreateCompletionRequest.max_tokens.default."""
LISTED = 20
"""Alternatives asked of the engine: as many as OpenAI ever looks at."""
LEARNING = 8
"""Answers of one token that are tried until one lists the vocabulary."""
SECRET_TOP_P = 0.9
SECONDS = 600.0


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Options of ``RulesGateway``, with their values filled in.

    key, token: what clients must send; ``token`` is an Entra token (azure). models, legacy_models
    (completions endpoint only), reasoning_models (refuse logprobs with 400): names, or deployments
    (azure). entries: most entries of a bias, None for no limit. largest: largest token id that may
    be biased, the last of the vocabulary unless given. quantise: gaps to the likeliest logprob are
    multiples of so many nats; None switches it off. filter_prompts: a text that meets the content
    filter (azure). hosts: name -> fields that the host lacks, the preferred one first
    (openrouter). lie: sampling secretly truncated at top-p .9, logprobs of the biased distribution,
    the bias ignored, no more than 64 entries, fractions rounded.
    """

    key: str = "gateway-key"
    token: str = "gateway-token"  # opens nothing but this gateway
    models: tuple[str, ...] = ()
    legacy_models: tuple[str, ...] = ()
    reasoning_models: tuple[str, ...] = ()
    entries: int | None = None
    largest: int | None = None
    quantise: float | None = None
    filter_prompts: str | None = None
    hosts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    lie: Lie | None = None


class UpstreamFailed(Exception):
    """The engine answered with an error, or not at all."""


@dataclass(frozen=True, slots=True)
class Want:
    """What is asked of the engine: ``n`` completions of ``body`` at ``path``, with ``bias`` by
    token id.

    ``whole``: list the whole vocabulary at each position. ``post``: tell what each token was drawn
    with.
    """

    path: str
    body: JSON
    bias: Mapping[int, float]
    n: int = 1
    seed: int | None = None
    whole: bool = False
    post: bool = False

    def listing(self, width: int) -> JSON:
        """The fields that ask for ``width`` alternatives."""
        chat = {"logprobs": True, "top_logprobs": width}
        return chat if "messages" in self.body else {"logprobs": width}


@dataclass(frozen=True, slots=True, eq=False)
class Position:
    """The sampled token ``id`` with its ``logprob``; ``ids``, ``logprobs`` (k,): what is listed,
    from most likely. ``raw``: the bytes that the engine printed for the sampled token.
    """

    id: int
    logprob: float
    ids: npt.NDArray[np.int64]
    logprobs: Vector
    raw: bytes = b""

    def top(self, k: int) -> list[tuple[int, float]]:
        """The ``k`` most likely of the list."""
        return list(zip(self.ids[:k].tolist(), self.logprobs[:k].tolist(), strict=True))

    def rank(self) -> int:
        """How many listed tokens are more likely than the sampled one; the length of the list where
        it is not listed.
        """
        return int(np.flatnonzero(self.ids == self.id)[0]) if self.id in self.ids else len(self.ids)

    def with_logprobs(self, logprobs: Vector) -> Position:
        """The same tokens with other logprobs (k,)."""
        order = np.argsort(-logprobs, kind="stable")
        at = np.flatnonzero(self.ids == self.id)
        own = float(logprobs[at[0]]) if len(at) else self.logprob
        return replace(self, logprob=own, ids=self.ids[order], logprobs=logprobs[order])


@dataclass(frozen=True, slots=True)
class Completion:
    """One completion. ``drawn``: every listed position as the engine gave it, without the end
    token; ``told``: the same as the provider tells it.

    ``kept``: how many of them belong to the text before a stop text. ``tokens``: what usage counts;
    more than the positions where the engine left some out of its list. ``post``: the logprob that
    each position was drawn with, the end last, where that was asked for and is known.
    """

    text: str
    finish: str
    drawn: tuple[Position, ...]
    told: tuple[Position, ...]
    kept: int
    tokens: int
    prompt_tokens: int
    post: tuple[float | None, ...] = ()


def sampling_of(body: JSON) -> dict[str, float]:
    """The sampling settings of a request: its own, then neutral ones."""
    own = {name: float(body[name]) for name in NEUTRAL if body.get(name) is not None}
    return {**NEUTRAL, **own}


def want_of(
    settings: RequestSettings, endpoint: Endpoint, body: JSON, *, whole: bool, post: bool
) -> Want:
    """What is asked of the engine for a checked request."""
    sampling = sampling_of(body)
    if settings.lie == "top_p 0.9":
        sampling["top_p"] = min(sampling["top_p"], SECRET_TOP_P)
    asked: JSON = {ENGINE_NAMES.get(name, name): value for name, value in sampling.items()}
    asked["top_k"] = int(sampling["top_k"])
    if endpoint == "chat":
        asked["messages"] = body["messages"]
    else:
        asked["prompt"] = body["prompt"]
    most = body.get("max_completion_tokens") or body.get("max_tokens")
    if most is not None or endpoint == "completions":
        asked["max_tokens"] = most or LEGACY_TOKENS
    bias = {int(token): float(value) for token, value in (body.get("logit_bias") or {}).items()}
    if settings.lie == "ignored bias":
        bias = {}
    if settings.lie == "integers":
        bias = {token: float(round(value)) for token, value in bias.items()}
    return Want(
        PATHS[endpoint], asked, bias, body.get("n") or 1, body.get("seed"), whole=whole, post=post
    )


class UpstreamEngine:
    """The engine at ``base_url`` (with /v1); ``size`` is that of its vocabulary, in tokens.

    An ``ExactServer`` runs in this process, and is called rather than sent requests.
    """

    def __init__(self, engine: Any, concurrency: int) -> None:
        address = engine if isinstance(engine, str) else engine.base_url
        self._url = address.rstrip("/").removesuffix("/v1")
        self._exact = engine if isinstance(engine, ExactServer) else None
        self._neutral = dict(load_profile("llamacpp").neutral)
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="gateway")
        self._lock = threading.Lock()
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, str] = {}
        self.size = int(self._send("GET", "/v1/models")["data"][0]["meta"]["n_vocab"])

    def close(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def draw(self, want: Want) -> list[Completion]:
        """``want.n`` completions, asked for at once. Raises UpstreamFailed."""
        self._learn(want)
        seeds = [None if want.seed is None else (want.seed + i) & 0xFFFFFFFF for i in range(want.n)]
        at_once = map if self._exact is not None and not self._exact.delay else self._pool.map
        return list(at_once(lambda seed: self._one(want, seed), seeds))

    def raw(self, token: int, printed: bytes = b"") -> bytes:
        """The exact bytes of a token, none for a special one."""
        return self._bytes.get(token, printed)

    def text(self, token: int, printed: bytes = b"") -> str:
        """As in ``token``: bytes that are no UTF-8 become ``\\xe2``; a special token has a name."""
        raw = self.raw(token, printed)
        return raw.decode("utf-8", "backslashreplace") if raw else self._special(token)

    def key(self, token: int, printed: bytes = b"") -> str:
        """As in the keys of legacy lists: ``bytes:\\xe2\\x80`` where the bytes are no UTF-8."""
        raw = self.raw(token, printed)
        text = self.text(token, printed)
        return text if raw.decode("utf-8", "ignore").encode() == raw else f"bytes:{text}"

    def offsets(self, positions: Sequence[Position]) -> list[int]:
        """Where each token begins, in characters of the text of all."""
        joined = b""
        starts = []
        for position in positions:
            starts.append(len(joined.decode("utf-8", "ignore")))
            joined += self.raw(position.id, position.raw)
        return starts

    def _special(self, token: int) -> str:
        """What a special token is called, as in ``<|im_end|>``."""
        with self._lock:
            name = self._names.get(token)
        if name is None:
            answer = self._send("POST", "/detokenize", {"tokens": [token]})
            name = str(answer.get("content") or "<|endoftext|>")
            with self._lock:
                self._names[token] = name
        return name

    def _learn(self, want: Want) -> None:
        """The bytes of every token, from one position that lists them all: a sampled entry may
        print a whole character. Where only the first part of a character was generated, the engine
        lists nothing, and other words may do better.
        """
        with self._lock:
            for attempt in range(LEARNING):
                if self._bytes:
                    return
                body = {**self._neutral, **want.body, **want.listing(self.size), "max_tokens": 1}
                if attempt and "messages" in body:
                    body["messages"] = [{"role": "user", "content": f"Count to {attempt}."}]
                entries = _entries(self._send("POST", want.path, body))
                listed = entries[0]["top_logprobs"] if entries else []
                self._bytes = {int(other["id"]): bytes(other["bytes"] or ()) for other in listed}
        if not self._bytes:
            raise UpstreamFailed(f"no logprobs in {LEARNING} answers of one token")

    def _one(self, want: Want, seed: int | None) -> Completion:
        width = self.size if want.whole else min(LISTED, self.size)
        body = {**self._neutral, **want.body, **want.listing(width)}
        if want.bias:
            body["logit_bias"] = [[token, value] for token, value in want.bias.items()]
        if want.post and seed is None:
            seed = random.getrandbits(32)
        if seed is not None:
            body["seed"] = seed
        answer = self._send("POST", want.path, body)
        completion = _completion(answer)
        if not want.post:
            return completion
        # The engine tells one or the other; the same seed draws the same tokens, and where it did
        # not, nothing is told.
        shares = {**body, **want.listing(1), "post_sampling_probs": True}
        again = _entries(self._send("POST", want.path, shares))
        return replace(completion, post=_shares(_entries(answer), again))

    def _send(self, method: str, path: str, body: JSON | None = None) -> JSON:
        """The engine's answer. Raises UpstreamFailed."""
        answer: Any
        if self._exact is not None:
            try:
                answer = self._exact.post(path, body) if body else self._exact.get(path)
            except RefusedRequest as error:
                raise UpstreamFailed(str(error)) from error
        else:
            connection = http.client.HTTPConnection(urlsplit(self._url).netloc, timeout=SECONDS)
            headers = {"content-type": "application/json"}
            try:
                connection.request(method, path, json.dumps(body) if body else None, headers)
                received = connection.getresponse()
                content = received.read()
            except OSError as error:
                raise UpstreamFailed(f"no engine at {self._url}: {error}") from error
            finally:
                connection.close()
            answer = json.loads(content) if received.status == 200 else content[:300]
        if not isinstance(answer, dict):
            raise UpstreamFailed(str(answer))
        return answer


def _entries(answer: JSON) -> list[JSON]:
    """The listed positions of an answer, with the end token."""
    return (answer["choices"][0].get("logprobs") or {}).get("content") or []


def _completion(answer: JSON) -> Completion:
    """An answer of the engine as it is."""
    choice = answer["choices"][0]
    entries = _entries(answer)
    ended = choice["finish_reason"] == "stop" and bool(entries) and not entries[-1]["token"]
    positions = tuple(_position(entry) for entry in (entries[:-1] if ended else entries))
    message = choice.get("message")
    return Completion(
        text=str((choice["text"] if message is None else message["content"]) or ""),
        finish=choice["finish_reason"],
        drawn=positions,
        told=positions,
        kept=len(positions),
        tokens=int(answer["usage"]["completion_tokens"]) - ended,
        prompt_tokens=int(answer["usage"]["prompt_tokens"]),
    )


def _position(entry: Mapping[str, Any]) -> Position:
    """Tokens that cannot be sampled at all (no finite logprob) are left out of the list."""
    listed = [
        other
        for other in entry["top_logprobs"]
        if other["logprob"] is not None and other["logprob"] > -1e30
    ]
    return Position(
        id=int(entry["id"]),
        logprob=float(entry["logprob"]),
        ids=np.array([other["id"] for other in listed], dtype=np.int64),
        logprobs=np.array([other["logprob"] for other in listed], dtype=np.float64),
        raw=bytes(entry["bytes"] or ()),
    )


def _shares(entries: list[JSON], again: list[JSON]) -> tuple[float | None, ...]:
    """Logprobs of what each token was drawn from, as long as the second draw is the first."""
    told: list[float | None] = []
    for entry, other in zip(entries, again, strict=False):
        if entry["id"] != other["id"]:
            break
        share = other.get("prob")
        told.append(math.log(share) if share else None)
    return (*told, *[None] * (len(entries) - len(told)))


def as_told(
    settings: RequestSettings,
    engine: UpstreamEngine,
    completion: Completion,
    want: Want,
    stops: Sequence[str],
) -> Completion:
    """``completion`` under the rules and lies of ``settings``, ended at the first stop text."""
    told = completion.drawn
    if settings.lie == "after bias" and want.bias:
        told = tuple(tilted(position, want.bias) for position in told)
    if settings.quantise is not None:
        told = tuple(quantised(position, settings.quantise) for position in told)
    completion = replace(completion, told=told)
    text = completion.text
    found = [text.index(stop) for stop in stops if stop in text]
    if not found:
        return completion
    at = min(found)
    over = min(at + len(stop) for stop in stops if text.startswith(stop, at))
    starts = engine.offsets(completion.drawn)
    return replace(
        completion,
        text=text[:at],
        finish="stop",
        kept=sum(start < at for start in starts),
        tokens=sum(start < over for start in starts),
    )


def tilted(position: Position, bias: Mapping[int, float]) -> Position:
    """The logprobs of softmax(logits + bias); exact where the whole vocabulary (v) is listed."""
    deltas = np.array([bias.get(token, 0.0) for token in position.ids.tolist()])
    return position.with_logprobs(log_softmax(position.logprobs + deltas))


def propensity(position: Position, bias: Mapping[int, float], temperature: float) -> float:
    """The logprob of the sampled token under what it was drawn from: the bias, then the
    temperature. The whole vocabulary must be listed.
    """
    changed = tilted(position, bias)
    if temperature <= 0:
        return 0.0 if changed.rank() == 0 else float("-inf")
    return float(log_softmax(changed.logprobs / temperature)[changed.rank()])


def quantised(position: Position, quantum: float) -> Position:
    """With gaps to the likeliest rounded to multiples of ``quantum`` nats.

    The listed mass stays what it was, so that the list remains part of a distribution.
    """
    # The sampled token keeps its place where it is not listed.
    scores = np.append(position.logprobs, position.logprob)
    most = scores[:-1].max()
    scores = most + quantum * np.round((scores - most) / quantum)
    lost = _log_total(position.logprobs) - _log_total(scores[:-1])
    scores = np.minimum(scores + lost, 0.0)
    changed = position.with_logprobs(scores[:-1])
    if position.id in position.ids:
        return changed
    return replace(changed, logprob=float(scores[-1]))


def _log_total(logprobs: Vector) -> float:
    """The logarithm of the listed mass: scipy's takes longer than all else of an answer."""
    most = logprobs.max()
    return float(most + np.log(np.exp(logprobs - most).sum()))
