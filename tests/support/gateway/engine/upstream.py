"""Upstream: the engine behind the gateway, any server of llama.cpp's dialect, asked neutrally and
one completion at a time.
"""

from __future__ import annotations

import math
import random
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.providers.profile import load_profile
from tests.support.exact import ExactServer
from tests.support.exact.llamacpp_answers import RefusedRequest
from tests.support.gateway.engine.logprobs import EnginePosition
from tests.support.gateway.refusals import JSON

__all__ = ["EngineCompletion", "UpstreamEngine", "UpstreamFailed", "Want"]

LISTED = 20
"""Alternatives asked of the engine: as many as OpenAI ever looks at."""
UNNAMED = "<|endoftext|>"
"""What a special token is called where the engine does not tell."""
SECONDS = 600.0
LEARNING = 8
"""Answers of one token that are tried until one lists the vocabulary."""


class UpstreamFailed(Exception):
    """The engine answered with an error ``status``, or not at all (status 0)."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


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


@dataclass(frozen=True, slots=True)
class EngineCompletion:
    """One completion. ``positions``: without the end token, which is ``end`` where one was
    generated.

    ``generated``: tokens without the end token; more than ``positions`` where the engine left some
    out of its list.
    ``post``: of each position, the end last, the logprob that it was drawn with, where that was
    asked for and is known.
    """

    text: str
    finish: str
    positions: tuple[EnginePosition, ...]
    end: EnginePosition | None
    generated: int
    prompt_tokens: int
    post: tuple[float | None, ...] = ()


class UpstreamEngine:
    """The engine at ``base_url`` (with /v1); ``size`` is that of its vocabulary, in tokens.

    ``exact``: the same engine where it runs in this process, which is then called rather than sent
    requests.
    """

    def __init__(self, base_url: str, concurrency: int, exact: ExactServer | None = None) -> None:
        """InputError if no llama.cpp server answers there."""
        self.base_url, self._exact = base_url.rstrip("/"), exact
        self._neutral = dict(load_profile("llamacpp").neutral)
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=concurrency)
        self._http = httpx2.Client(
            timeout=SECONDS, limits=limits, trust_env=False, verify=_certificates(base_url)
        )
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="gateway")
        self._lock = threading.Lock()
        self._bytes: dict[int, bytes] = {}
        self._names: dict[int, str] = {}
        try:
            self.size = int(
                self._http.get(f"{self.base_url}/models").json()["data"][0]["meta"]["n_vocab"]
            )
        except (httpx2.HTTPError, ValueError, KeyError, IndexError, TypeError) as error:
            self.close()
            raise InputError(
                f"no llama.cpp server answers at {base_url} ({type(error).__name__}: {error}); the"
                " gateway needs a running engine, such as tests.support.exact.ExactServer or an"
                " embedded engine, with /v1 in its address"
            ) from error

    def close(self) -> None:
        """Hang up."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._http.close()

    def draw(self, want: Want) -> list[EngineCompletion]:
        """``want.n`` completions, asked for at once. Raises UpstreamFailed."""
        self._learn(want)
        seeds = [None if want.seed is None else (want.seed + i) & 0xFFFFFFFF for i in range(want.n)]
        at_once = map if self._exact is not None and not self._exact.delay else self._pool.map
        return list(at_once(lambda seed: self._one(want, seed), seeds))

    def raw(self, token: int, printed: bytes = b"") -> bytes:
        """The exact bytes of a token, none for a special one."""
        return self._bytes.get(token, printed)

    def special(self, token: int) -> str:
        """What a special token is called, as in ``<|im_end|>``."""
        with self._lock:
            known = self._names.get(token)
        if known is None:
            answer = self._post(
                f"{self.base_url.removesuffix('/v1')}/detokenize", {"tokens": [token]}
            )
            known = str(answer.get("content") or UNNAMED)
            with self._lock:
                self._names[token] = known
        return known

    def _learn(self, want: Want) -> None:
        """The bytes of every token, from one position that lists them all: a sampled entry may
        print a whole character.
        """
        with self._lock:
            for tried in range(LEARNING):
                if self._bytes:
                    return
                # Where only the first part of a character was generated, the engine lists nothing;
                # other words may do better.
                other = _prompt(want, f"Count to {tried}.") if tried else {}
                body = {
                    **self._neutral,
                    **want.body,
                    **other,
                    **self._width(want, self.size),
                    "max_tokens": 1,
                }
                entries = _entries(self._post(self.base_url + want.path, body))
                listed = entries[0]["top_logprobs"] if entries else []
                self._bytes = {int(entry["id"]): bytes(entry["bytes"] or ()) for entry in listed}
        if not self._bytes:
            raise UpstreamFailed(
                200, f"the engine listed no logprobs in {LEARNING} answers of one token"
            )

    def _width(self, want: Want, width: int) -> JSON:
        width = min(width, self.size)
        return (
            {"logprobs": True, "top_logprobs": width}
            if "messages" in want.body
            else {"logprobs": width}
        )

    def _one(self, want: Want, seed: int | None) -> EngineCompletion:
        body = {
            **self._neutral,
            **want.body,
            **self._width(want, self.size if want.whole else LISTED),
        }
        if want.bias:
            body["logit_bias"] = [[token, value] for token, value in want.bias.items()]
        if want.post and seed is None:
            seed = random.getrandbits(32)
        if seed is not None:
            body["seed"] = seed
        draw = _draw(self._post(self.base_url + want.path, body))
        if not want.post:
            return draw
        # The engine tells one or the other; the same seed draws the same tokens, and where it did
        # not, nothing is told.
        again = self._post(
            self.base_url + want.path, {**body, **self._width(want, 1), "post_sampling_probs": True}
        )
        return replace(draw, post=_shares(draw, _entries(again)))

    def _post(self, url: str, body: JSON) -> JSON:
        if self._exact is not None:
            return _called(self._exact, url.removeprefix(self.base_url.removesuffix("/v1")), body)
        try:
            answer = self._http.post(url, json=body)
        except httpx2.HTTPError as error:
            raise UpstreamFailed(0, f"{type(error).__name__}: {error}") from error
        if answer.status_code != 200:
            raise UpstreamFailed(answer.status_code, answer.text[:300])
        found: JSON = answer.json()
        return found


def _called(engine: ExactServer, path: str, body: JSON) -> JSON:
    try:
        answer = engine.post(path, body)
    except RefusedRequest as error:
        raise UpstreamFailed(error.status, str(error)) from error
    if not isinstance(answer, dict):
        raise UpstreamFailed(answer if isinstance(answer, int) else 0, "planted fault")
    return answer


def _certificates(base_url: str) -> ssl.SSLContext:
    """None for plain HTTP: to load them takes a tenth of a second."""
    return (
        ssl.create_default_context()
        if base_url.startswith("https")
        else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    )


def _prompt(want: Want, text: str) -> JSON:
    return (
        {"messages": [{"role": "user", "content": text}]}
        if "messages" in want.body
        else {"prompt": text}
    )


def _entries(answer: JSON) -> list[JSON]:
    found: list[JSON] = (answer["choices"][0].get("logprobs") or {}).get("content") or []
    return found


def _draw(answer: JSON) -> EngineCompletion:
    choice = answer["choices"][0]
    entries = _entries(answer)
    positions = [_position(entry) for entry in entries]
    ended = choice["finish_reason"] == "stop" and bool(entries) and not entries[-1]["token"]
    message = choice.get("message")
    return EngineCompletion(
        text=str((choice["text"] if message is None else message["content"]) or ""),
        finish=choice["finish_reason"],
        positions=tuple(positions[:-1] if ended else positions),
        end=positions[-1] if ended else None,
        generated=int(answer["usage"]["completion_tokens"]) - ended,
        prompt_tokens=int(answer["usage"]["prompt_tokens"]),
    )


def _shares(draw: EngineCompletion, again: list[JSON]) -> tuple[float | None, ...]:
    found: list[float | None] = []
    positions = draw.positions if draw.end is None else (*draw.positions, draw.end)
    for position, entry in zip(positions, again, strict=False):
        if entry["id"] != position.id:
            break
        share = entry.get("prob")
        found.append(math.log(share) if share else None)
    return tuple(found) + (None,) * (len(positions) - len(found))


def _position(entry: Mapping[str, Any]) -> EnginePosition:
    """Tokens that cannot be sampled at all (no finite logprob) are left out of the list."""
    listed = [
        each
        for each in entry["top_logprobs"]
        if each["logprob"] is not None and each["logprob"] > -1e30
    ]
    return EnginePosition(
        id=int(entry["id"]),
        logprob=float(entry["logprob"]),
        ids=np.array([each["id"] for each in listed], dtype=np.int64),
        logprobs=np.array([each["logprob"] for each in listed], dtype=np.float64),
        raw=bytes(entry["bytes"] or ()),
    )
