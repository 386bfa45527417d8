"""Embeddings of the texts that a bias depends on, from a model on this machine or an API."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from math import sqrt
from threading import Lock
from typing import Any, Protocol

from blackbox_lb.errors import CorruptResponse, InputError
from blackbox_lb.safety.network import path_of_request
from blackbox_lb.safety.printable import first_line

OPENAI = "https://api.openai.com/"
AT_ONCE = 64
"""Texts embedded together."""
MOST_KNOWN = 20_000
"""Vectors that are kept: 60 MB at 384 numbers."""
TIMEOUT = 60.0
"""Seconds of an API's silence."""
PROBE = "How many of the quick brown foxes jumped over the lazy dog?"
"""The text whose vector tells one embedding model from another."""


def of_an_api(name: str) -> bool:
    """Whether a model is named as ``MODEL@URL``."""
    return "@http" in name


def key_variable(url: str) -> str:
    """The environment variable with the key of an embeddings API."""
    return "OPENAI_API_KEY" if url.startswith(OPENAI) else "EMBEDDINGS_API_KEY"


class AnswerStore(Protocol):
    """A store of what remote services answered, by key."""

    def rewards(self, keys: Iterable[str]) -> Mapping[str, str]:
        """Those of ``keys`` that are there."""

    def add_rewards(self, answers: Mapping[str, str]) -> None:
        """Store more."""


class TextVectors:
    """Embeddings of texts, of length 1, each computed once.

    name: of a model, as ``load_encoder`` takes it; or ``MODEL@URL``, an OpenAI-compatible API whose
    address ends before ``/embeddings``, with its key in EMBEDDINGS_API_KEY (at OpenAI itself,
    OPENAI_API_KEY). tokens: that such an API has counted. kept: a store, where what an API answered
    is paid for once and for all.
    """

    def __init__(self, name: str, kept: AnswerStore | None = None) -> None:
        self.name = name
        self.tokens = 0
        self._kept, self._turn = kept, Lock()
        self._encode: Any = None
        self._known: dict[str, tuple[float, ...]] = {}

    def of(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        """The vector of each text; that of an empty one is empty.

        Raises:
            InputError: no such model. ProviderError: the API gives no vectors.
        """
        with self._turn:  # a proxy asks from several threads
            return self._of(texts)

    def _of(self, texts: Sequence[str]) -> list[tuple[float, ...]]:
        missing = [text for text in dict.fromkeys(texts) if text and text not in self._known]
        if len(self._known) + len(missing) > MOST_KNOWN:
            self._known, missing = {}, [text for text in dict.fromkeys(texts) if text]
        for start in range(0, len(missing), AT_ONCE):
            part = missing[start : start + AT_ONCE]
            if self._encode is None:
                from blackbox_lb.vocabulary.embedding import (
                    load_encoder,
                )  # loads numpy, which reading a bias file must not

                self._encode = self._stored if of_an_api(self.name) else load_encoder(self.name)
            for text, row in zip(part, self._encode(part), strict=True):
                numbers = [float(value) for value in row]
                length = sqrt(sum(value * value for value in numbers))
                if not 0 < length < float("inf"):
                    raise InputError(
                        f"the embedding model {self.name} gives a vector of length {length}; use"
                        " another"
                    )
                self._known[text] = tuple(round(value / length, 6) for value in numbers)
        return [self._known[text] if text else () for text in texts]

    def _stored(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors in the store, those that it lacks from the API."""
        if self._kept is None:
            return self._asked(texts)
        keys = {
            text: sha256(f"embedding\0{self.name}\0{text}".encode("utf-8", "replace")).hexdigest()
            for text in texts
        }
        found = {key: json.loads(row) for key, row in self._kept.rewards(keys.values()).items()}
        if missing := [text for text in texts if keys[text] not in found]:
            asked = {
                keys[text]: row for text, row in zip(missing, self._asked(missing), strict=True)
            }
            self._kept.add_rewards({key: json.dumps(row) for key, row in asked.items()})
            found |= asked
        return [found[keys[text]] for text in texts]

    def _asked(self, texts: Sequence[str]) -> list[list[float]]:
        """Ask the API (https://platform.openai.com/docs/api-reference/embeddings/create)."""
        from blackbox_lb.safety.http.service import (
            run_apart,  # a second, which a file need not wait
        )

        return run_apart(self._fetched(texts))

    async def _fetched(self, texts: Sequence[str]) -> list[list[float]]:
        """The vectors from the API, by as many requests as its faults deserve."""
        from blackbox_lb.safety.http.service import HttpService, ServiceWording

        model, _, url = self.name.partition("@")
        if end := path_of_request(url):
            raise InputError(
                f"the address {url} of the embeddings API ends in {end}, which is the path of a"
                f" request; leave it out: {model}@{url.rstrip('/').removesuffix(end)}"
            )
        key = os.environ.get(key_variable(url))
        headers: dict[str, str] = {}
        secrets: list[str] = []
        if key:
            headers["Authorization"] = f"Bearer {key}"
            secrets.append(key)
        content = json.dumps({"model": model, "input": list(texts)}).encode()
        address = f"{url.rstrip('/')}/embeddings"
        wording = ServiceWording(
            f"the embeddings API {url}",
            place=f"the embeddings API {url}",
            advice={
                "no answer": "check its address",
                "authentication": f"check the key in {key_variable(url)}",
                "unknown model": f"is {model!r} the model's name?",
                "not found": f"is {model!r} the model's name, and {url} the API's address?",
            },
        )
        service = HttpService(url, wording, secrets=lambda: secrets, timeout=TIMEOUT)

        async def once() -> list[list[float]]:
            response = await service.send(
                service.request("POST", address, content, headers=headers), model
            )
            with service.reading(response) as body:
                answer = json.loads(body)
            return self._rows(answer, texts, url)

        async with service:
            return await service.tried(once)

    def _rows(self, answer: Any, texts: Sequence[str], url: str) -> list[list[float]]:
        """The vectors of an answer, in the order of ``texts``. CorruptResponse: it has others."""
        try:
            rows = [
                [float(value) for value in row["embedding"]]
                for row in sorted(answer["data"], key=lambda row: row["index"])
            ]
            self.tokens += int(answer.get("usage", {}).get("total_tokens", 0))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise CorruptResponse(
                f"the embeddings API {url} answers with no list of vectors ({first_line(error)})"
            ) from error
        if len(rows) != len(texts):
            raise CorruptResponse(
                f"the embeddings API {url} gave {len(rows)} vectors for {len(texts)} texts"
            )
        return rows
