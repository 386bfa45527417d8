"""Every dialect on loopback in front of one exact model: its own server, the rules gateway, and
three that are written here.

vLLM, SGLang and the Responses API have no server in the package: what the exact server answers is
put into their shapes, as recorded from vLLM 0.32 and SGLang 0.5.23 (providers/*.toml) and as
documented for LM Studio.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
import tiktoken
import tiktoken.registry

from blackbox_lb.literals import Endpoint
from tests.encodings import register_encoding
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway

__all__ = ["DIALECTS", "KEY", "MODEL", "Dialect", "register"]

JSON = dict[str, Any]
MODEL = ExactModel(40, 6, end=True, prompts=4, sharpness=0.7)
END = 39
KEY = "gateway-key"
SPECIAL = "<|endoftext|>"


@dataclass(frozen=True)
class Dialect:
    """``serve``: a context manager of a server. ``k``: alternatives asked for. ``seeded``: whether
    its requests take a seed.
    """

    provider: str
    endpoint: Endpoint
    serve: Callable[[], Any]
    model: str | None = None
    tokenizer: str | None = None
    k: int = 5
    seeded: bool = True
    path: str = "base_url"


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


class ResponsesServer(ExactServer):
    """POST /v1/responses; without a seed in the request, the prompt is one. The end token is
    neither listed nor counted.
    """

    def post(self, path: str, body: JSON) -> Any:
        """As ExactServer's."""
        if not path.endswith("/responses"):
            return super().post(path, body)
        prompt = body["input"][-1]["content"]
        chat = {
            **{
                name: value
                for name, value in body.items()
                if name not in ("input", "include", "max_output_tokens")
            },
            "messages": body["input"],
            "max_tokens": body["max_output_tokens"],
            "logprobs": True,
            "seed": zlib.crc32(prompt.encode()),
        }
        answer: Any = super().post("/v1/chat/completions", chat)
        return self._response(answer) if isinstance(answer, dict) else answer

    def _response(self, answer: JSON) -> JSON:
        choice = answer["choices"][0]
        told = [self._entry(each) for each in choice["logprobs"]["content"] if each["id"] != END]
        part = {
            "type": "output_text",
            "text": choice["message"]["content"],
            "annotations": [],
            "logprobs": told,
        }
        cut = choice["finish_reason"] == "length"
        return {
            "object": "response",
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "model": answer["model"],
            "output": [
                {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
            ],
            "usage": {"input_tokens": answer["usage"]["prompt_tokens"], "output_tokens": len(told)},
        }

    def _entry(self, entry: JSON) -> JSON:
        return {
            **self._named(entry),
            "top_logprobs": [self._named(each) for each in entry["top_logprobs"]],
        }

    @staticmethod
    def _named(entry: JSON) -> JSON:
        return {
            "token": printed(entry),
            "logprob": entry["logprob"],
            "bytes": entry["bytes"] or None,
        }


def gateway(rules: str) -> Callable[[], Any]:
    """The rules gateway in front of the exact server."""

    @contextmanager
    def serve() -> Iterator[RulesGateway]:
        with ExactServer(MODEL) as engine, RulesGateway(rules, engine, key=KEY) as running:
            yield running

    return serve


FIRE = "accounts/fireworks/models/gateway"
MINI, INSTRUCT = "gpt-4o-mini", "gpt-3.5-turbo-instruct"
DIALECTS: dict[str, Dialect] = {
    "llama.cpp chat": Dialect("llamacpp", "chat", lambda: ExactServer(MODEL)),
    "llama.cpp completions": Dialect("llamacpp", "completions", lambda: ExactServer(MODEL)),
    "vLLM chat": Dialect("vllm", "chat", lambda: VllmServer(MODEL)),
    "vLLM completions": Dialect("vllm", "completions", lambda: VllmServer(MODEL)),
    "SGLang chat": Dialect("sglang", "chat", lambda: SglangServer(MODEL)),
    "SGLang completions": Dialect(
        "sglang", "completions", lambda: SglangServer(MODEL), tokenizer="exact"
    ),
    "OpenAI chat": Dialect("openai", "chat", gateway("openai"), MINI, "exact"),
    "OpenAI completions": Dialect("openai", "completions", gateway("openai"), INSTRUCT, "exact"),
    "Responses (LM Studio)": Dialect(
        "lmstudio", "responses", lambda: ResponsesServer(MODEL), "exact", "exact", seeded=False
    ),
    "Azure chat": Dialect("azure", "chat", gateway("azure"), MINI, "exact"),
    "Azure completions": Dialect("azure", "completions", gateway("azure"), INSTRUCT, "exact"),
    "Azure classic chat": Dialect(
        "azure-classic", "chat", gateway("azure"), MINI, "exact", path="url"
    ),
    "Fireworks chat": Dialect("fireworks", "chat", gateway("fireworks"), FIRE),
    "Fireworks completions": Dialect("fireworks", "completions", gateway("fireworks"), FIRE),
}
