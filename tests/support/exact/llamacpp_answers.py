"""Dialect: the answers of a llama.cpp server with an ExactModel as its model. No network here.

Served: POST /v1/chat/completions, /v1/completions, /apply-template, /tokenize, /detokenize; GET
/v1/models, /props, /health. A prompt of token ids must begin with ids that /tokenize made of a
prompt. A trailing assistant message is continued, and repeated in the reply. As there, a bias is
added first, then top_k, top_p and min_p truncate (by default too), then the temperature applies;
returned logprobs are those of the model before all of that. A text ends before a stop text, and the
list of logprobs is shorter by as many tokens as the stop text has by itself.
"""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import lru_cache
from itertools import count
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tests.support.exact.model import ExactModel, log_softmax

JSON: TypeAlias = dict[str, Any]

COMPLETIONS = ("/v1/chat/completions", "/v1/completions")
DEFAULTS = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


class RefusedRequest(Exception):
    """An error answer with this status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Dialect:
    """Answers by path and body; ``texts`` (v,) are the texts of the tokens, "" for the end token.

    prompt_of maps the text of a request to a prompt number of the model. The draw of a request
    without a seed follows from its body, from how often that came since ``forget``, and from
    ``seed``: whatever order requests arrive in, the same completions are drawn. call_token begins a
    call: its text is <tool_call>.
    """

    def __init__(
        self,
        model: ExactModel,
        name: str,
        prompt_of: Callable[[str], int] | None,
        seed: int,
        call_token: int | None = None,
    ) -> None:
        self.model, self.name, self.call_token = model, name, call_token
        self.texts = [_text(token) for token in range(model.vocab_size)]
        if call_token is not None:
            self.texts[call_token] = "<tool_call>"
        if model.end is not None:
            self.texts[model.end] = ""
        self._known_texts = {text: token for token, text in enumerate(self.texts) if text}
        self._prompt_of = prompt_of or model.prompt_of
        self._seed = seed
        self._drawn: defaultdict[int, count[int]] = defaultdict(count)
        self._next = lru_cache(maxsize=4096)(_sorted_logprobs)
        self._tokenized: dict[tuple[int, ...], str] = {}
        self._sizes: dict[str, int] = {}

    def forget(self) -> None:
        """Draw as at the start."""
        self._drawn.clear()

    def get(self, path: str) -> JSON:
        """The answer to GET ``path``."""
        if path == "/health":
            return {"status": "ok"}
        if path == "/v1/models":
            meta = {"n_vocab": self.model.vocab_size, "n_ctx_train": 4096}
            return {
                "object": "list",
                "data": [
                    {"id": self.name, "object": "model", "owned_by": "llamacpp", "meta": meta}
                ],
            }
        if path == "/props":
            params = {"n_predict": -1, "seed": 4294967295, **DEFAULTS}
            return {
                "default_generation_settings": {"n_ctx": 4096, "params": params},
                "total_slots": 4,
                "model_path": self.name,
                "chat_template": "{{ messages }}",
                "build_info": "b0-unknown",
            }
        raise RefusedRequest(404, "File Not Found")

    def post(self, path: str, body: JSON, number: int) -> JSON:
        """The answer to POST ``path``; ``number`` counts completion requests."""
        if path == "/apply-template":
            return {"prompt": _prompt_text(body, chat=True)}
        if path == "/tokenize":
            return {
                "tokens": self._tokens(str(body.get("content", "")), bool(body.get("with_pieces")))
            }
        if path == "/detokenize":
            return {
                "content": "".join(
                    self.texts[self._known(token)] for token in body.get("tokens", [])
                )
            }
        if path not in COMPLETIONS:
            raise RefusedRequest(404, "File Not Found")
        return self._complete(body, number, chat=path == COMPLETIONS[0])

    def tokenize(self, text: str) -> list[int]:
        """Token ids: the longest known text at each place, else one id for each byte of an unknown
        character.
        """
        known = self._known_texts
        longest, fallback = max(map(len, known)), len(known)
        ids: list[int] = []
        while text:
            size = next(
                (size for size in range(min(longest, len(text)), 0, -1) if text[:size] in known), 0
            )
            ids += [known[text[:size]]] if size else [byte % fallback for byte in text[0].encode()]
            text = text[max(size, 1) :]
        return ids

    def _tokens(self, text: str, with_pieces: bool) -> list[Any]:
        ids = self.tokenize(text)
        self._tokenized[tuple(ids)] = text
        return [{"id": token, "piece": self.texts[token]} for token in ids] if with_pieces else ids

    def _known(self, token: object) -> int:
        if not isinstance(token, int) or not 0 <= token < self.model.vocab_size:
            raise RefusedRequest(
                400, f"token {token!r} is not in the vocabulary of {self.model.vocab_size}"
            )
        return token

    def _complete(self, body: JSON, number: int, *, chat: bool) -> JSON:
        prompt, before = self._prompt(body, chat)
        listed = _listed(body, chat)
        ids, finish = self._generate(body, prompt, before, number)
        text, cut = self._cut("".join(self.texts[token] for token in ids), _stops(body))
        text = ("".join(self.texts[token] for token in before) if chat else "") + text
        choice: JSON = {"finish_reason": finish, "index": 0}
        choice |= {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        told = ids[: max(len(ids) - cut, 0)]
        if listed > 0 and told:
            choice["logprobs"] = {
                "content": self._logprobs(told, before, self._prompt_of(prompt), listed)
            }
        if prompt not in self._sizes:
            self._sizes[prompt] = len(self.tokenize(prompt))
        used = self._sizes[prompt] + len(before)
        return {
            "choices": [choice],
            "created": 1795258811,
            "model": self.name,
            "system_fingerprint": "b0-unknown",
            "object": "chat.completion" if chat else "text_completion",
            "usage": {
                "completion_tokens": len(ids),
                "prompt_tokens": used,
                "total_tokens": used + len(ids),
            },
            "id": f"chatcmpl-{number:08d}" if chat else f"cmpl-{number:08d}",
        }

    def _cut(self, text: str, stops: list[str]) -> tuple[str, int]:
        """The text before the first stop text, and the number of tokens that the list of logprobs
        lacks for it.
        """
        found = min(((text.index(stop), stop) for stop in stops if stop in text), default=None)
        return (text, 0) if found is None else (text[: found[0]], len(self.tokenize(found[1])))

    def _prompt(self, body: JSON, chat: bool) -> tuple[str, list[int]]:
        """The text of the prompt, and the tokens of the completion so far."""
        given = body.get("prompt")
        if chat or not isinstance(given, list):
            text, messages = _prompt_text(body, chat), body["messages"] if chat else []
            if len(messages) < 2 or messages[-1].get("role") != "assistant":
                return text, []
            before = self.tokenize(str(messages[-1].get("content")))
            return _prompt_text({**body, "messages": messages[:-1]}, chat), before
        ids = [self._known(token) for token in given]
        size = next(
            (size for size in range(len(ids), 0, -1) if tuple(ids[:size]) in self._tokenized), 0
        )
        if not size or len(ids) - size >= self.model.horizon:
            raise RefusedRequest(
                400,
                f"a prompt of {len(ids)} token ids is none that was tokenized here, or is complete",
            )
        return self._tokenized[tuple(ids[:size])], ids[size:]

    def _generate(
        self, body: JSON, prompt: str, before: list[int], number: int
    ) -> tuple[list[int], str]:
        model, rng = self.model, self._rng(body, prompt)
        delta, stops = self._bias(body.get("logit_bias")), _stops(body)
        limit = body.get("max_tokens", body.get("max_completion_tokens"))
        room = model.horizon - len(before)
        most = room if limit is None or limit < 0 else min(max(int(limit), 1), room)
        ids: list[int] = []
        prompt_number = self._prompt_of(prompt)
        while len(ids) < most:
            scores = self._next(model, (*before, *ids), prompt_number)[0] + delta
            ids.append(_draw(scores, body, rng))
            if ids[-1] == model.end or (
                stops and any(stop in "".join(self.texts[token] for token in ids) for stop in stops)
            ):
                return ids, "stop"
        return ids, "length"

    def _rng(self, body: JSON, prompt: str) -> np.random.Generator:
        seed = body.get("seed")
        if seed is None or seed == -1:
            content = zlib.crc32(json.dumps(body, sort_keys=True).encode())
            return np.random.default_rng([self._seed, next(self._drawn[content]), content])
        return np.random.default_rng([int(seed) & 0xFFFFFFFF, zlib.crc32(prompt.encode())])

    def _bias(self, given: object) -> npt.NDArray[np.float64]:
        """The bias by id: ids out of range are ignored and text keys are tokenised, as in
        llama.cpp.
        """
        delta = np.zeros(self.model.vocab_size)
        pairs = list(given.items()) if isinstance(given, Mapping) else given or []
        if not isinstance(pairs, list):
            raise RefusedRequest(
                400, f"logit_bias {given!r} is neither an object nor a list of pairs"
            )
        for key, value in pairs:
            amount = -np.inf if value is False else float(value)
            for token in [int(key)] if str(key).lstrip("-").isdigit() else self.tokenize(str(key)):
                if 0 <= token < self.model.vocab_size:
                    delta[token] += amount
        return delta

    def _logprobs(self, ids: list[int], before: list[int], prompt: int, k: int) -> list[JSON]:
        entries = []
        for t, token in enumerate(ids):
            _, order, logprobs = self._next(self.model, (*before, *ids[:t]), prompt)
            listed = [
                self._entry(candidate, logprob)
                for candidate, logprob in zip(order[:k], logprobs[:k], strict=True)
            ]
            own = self._entry(token, logprobs[order.index(token)])
            entries.append({**own, "top_logprobs": listed})
        return entries

    def _entry(self, token: int, logprob: float) -> JSON:
        text = self.texts[token]
        return {"id": token, "token": text, "bytes": list(text.encode()), "logprob": logprob}


def _sorted_logprobs(
    model: ExactModel, prefix: tuple[int, ...], prompt: int
) -> tuple[npt.NDArray[np.float64], list[int], list[float]]:
    """(v,) the logprobs after a prefix by id, and ids and reported logprobs from the likeliest
    on.
    """
    logprobs = model.logprobs(prefix, prompt)
    order = np.argsort(-logprobs, kind="stable")
    return logprobs, order.tolist(), _timings(logprobs[order])


def _timings(logprobs: npt.NDArray[np.float64]) -> list[float]:
    """As 32-bit floats, none above zero."""
    told: list[float] = np.minimum(logprobs, 0.0).astype(np.float32).tolist()
    return told


def _text(token: int) -> str:
    letters = ""
    token += 1
    while token:
        token, letter = divmod(token - 1, 26)
        letters = chr(ord("a") + letter) + letters
    return f" {letters}"


def _prompt_text(body: JSON, chat: bool) -> str:
    if body.get("stream") or body.get("n", 1) != 1:
        raise RefusedRequest(
            400,
            f"stream {body.get('stream')} and n {body.get('n')}: one whole answer a request is"
            " served",
        )
    if not chat and isinstance(body.get("prompt"), str):
        return str(body["prompt"])
    messages = body.get("messages")
    if (
        not chat
        or not isinstance(messages, list)
        or not all(isinstance(message, dict) for message in messages)
    ):
        raise RefusedRequest(
            400, "'messages' must be a list of messages" if chat else "'prompt' must be a string"
        )
    return "\n\n".join(str(message.get("content")) for message in messages)


def _listed(body: JSON, chat: bool) -> int:
    """The number of wanted alternatives; 0 lists nothing at all, as in llama.cpp."""
    if not chat:
        return int(body.get("logprobs") or 0)
    if body.get("logprobs"):
        return int(body.get("top_logprobs", 20))
    if body.get("top_logprobs") is not None:
        raise RefusedRequest(400, "top_logprobs requires logprobs to be set to true")
    return 0


def _stops(body: JSON) -> list[str]:
    stop = body.get("stop") or []
    return [stop] if isinstance(stop, str) else [str(one) for one in stop]


def _draw(scores: npt.NDArray[np.float64], body: JSON, rng: np.random.Generator) -> int:
    options = {
        name: float(value if (value := body.get(name)) is not None else d)
        for name, d in DEFAULTS.items()
    }
    if options["temperature"] <= 0:
        return int(scores.argmax())
    noise = rng.random(len(scores))  # one number for each token, whatever is kept
    gumbel = -np.log(-np.log(noise))
    if options["top_k"] <= 0 and options["top_p"] >= 1 and options["min_p"] <= 0:
        return int(np.argmax(scores / options["temperature"] + gumbel))
    order = np.argsort(-scores, kind="stable")
    if options["top_k"] > 0:
        order = order[: int(options["top_k"])]
    kept = np.exp(log_softmax(scores[order]))
    if options["top_p"] < 1:
        kept = kept[: 1 + int(np.searchsorted(np.cumsum(kept), options["top_p"]))]
    order = order[: len(kept)][kept >= options["min_p"] * kept[0]]
    return int(order[np.argmax(scores[order] / options["temperature"] + gumbel[order])])
