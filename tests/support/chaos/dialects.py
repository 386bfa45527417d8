"""Dialects on loopback in front of one exact model.

What the exact server answers is put into the shapes of vLLM and SGLang, as recorded from vLLM 0.32
and SGLang 0.5.23 (providers/*.toml).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import tiktoken
import tiktoken.registry

from tests.encodings import register_encoding
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway

JSON = dict[str, Any]
MODEL = ExactModel(40, 6, end=True, prompts=4, sharpness=0.7)
END = 39
KEY = "gateway-key"
SPECIAL = "<|endoftext|>"


@dataclass(frozen=True)
class Dialect:
    """A provider's chat endpoint. ``serve``: a context manager of a server."""

    provider: str
    serve: Callable[[], Any]
    model: str | None = None
    tokenizer: str | None = None


def register(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the exact model's vocabulary an encoding of tiktoken, called exact."""
    with ExactServer(MODEL) as server:
        register_encoding(monkeypatch, "exact", server.texts, END, SPECIAL)


def printed(entry: JSON) -> str:
    """The text of a token, the end's by its name."""
    return str(entry["token"]) or SPECIAL


class VllmServer(ExactServer):
    """Ids as token strings; the sampled token first in its list, in chat in the place of the
    last.
    """

    def post(self, path: str, body: JSON) -> Any:
        """As ExactServer's."""
        if path == "/tokenize":
            return super().post(path, {"content": body["prompt"]})
        answer = super().post(path, body)
        if not isinstance(answer, dict) or "choices" not in answer:
            return answer
        return {
            **answer,
            "choices": [self._choice(choice, "chat" in path) for choice in answer["choices"]],
        }

    def _choice(self, choice: JSON, chat: bool) -> JSON:
        entries = [self._entry(entry) for entry in choice["logprobs"]["content"]]
        if chat:
            cut = [
                {**each, "top_logprobs": each["top_logprobs"][: len(each["top_logprobs"]) - 1]}
                for each in entries
            ]
            return {**choice, "logprobs": {"content": cut}}
        tops = [
            {each["token"]: each["logprob"] for each in entry["top_logprobs"]} for entry in entries
        ]
        lists = {"tokens": [entry["token"] for entry in entries], "top_logprobs": tops}
        return {
            **choice,
            "logprobs": {**lists, "token_logprobs": [entry["logprob"] for entry in entries]},
        }

    def _entry(self, entry: JSON) -> JSON:
        """With k+1 alternatives at most, the sampled one first."""
        others = [each for each in entry["top_logprobs"] if each["id"] != entry["id"]]
        k = len(entry["top_logprobs"])
        listed = [self._named(each) for each in (entry, *others)]
        return {**self._named(entry), "top_logprobs": listed[: max(k, 1) + 1]}

    @staticmethod
    def _named(entry: JSON) -> JSON:
        return {
            "token": f"token_id:{entry['id']}",
            "logprob": entry["logprob"],
            "bytes": list(entry["token"].encode()),
        }


class SglangServer(ExactServer):
    """``meta_info`` in chat; texts and sampled ids in completions."""

    def post(self, path: str, body: JSON) -> Any:
        """As ExactServer's; a text is split as the encoding does."""
        if path == "/tokenize":
            return {
                "tokens": (
                    tiktoken.get_encoding("exact").encode(body["prompt"], disallowed_special=())
                )
            }
        answer = super().post(path, body)
        if not isinstance(answer, dict) or "choices" not in answer:
            return answer
        make = self._chat if "chat" in path else self._legacy
        return {**answer, "choices": [make(choice) for choice in answer["choices"]]}

    def _chat(self, choice: JSON) -> JSON:
        entries = choice["logprobs"]["content"]
        meta = {
            "output_token_logprobs": [[each["logprob"], each["id"], None] for each in entries],
            "output_top_logprobs": [
                [[each["logprob"], each["id"], None] for each in entry["top_logprobs"]]
                for entry in entries
            ],
        }
        return {**choice, "meta_info": meta}

    def _legacy(self, choice: JSON) -> JSON:
        entries = choice["logprobs"]["content"]
        lists = {
            "tokens": [printed(entry) for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [
                {printed(each): each["logprob"] for each in e["top_logprobs"]} for e in entries
            ],
        }
        return {**choice, "logprobs": lists, "token_ids": [entry["id"] for entry in entries]}


@contextmanager
def openai() -> Iterator[RulesGateway]:
    """OpenAI's rules in front of the exact server."""
    with ExactServer(MODEL) as engine, RulesGateway("openai", engine, key=KEY) as running:
        yield running


DIALECTS: dict[str, Dialect] = {
    "llama.cpp": Dialect("llamacpp", lambda: ExactServer(MODEL)),
    "vLLM": Dialect("vllm", lambda: VllmServer(MODEL)),
    "OpenAI": Dialect("openai", openai, "gpt-4o-mini", "exact"),
}
