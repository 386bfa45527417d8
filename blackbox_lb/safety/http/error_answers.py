"""The meaning of error answers of all inference APIs: one status and one body in, one ``Fault``
out.

The same fault looks different everywhere. OpenAI wraps ``{message, type, param, code}`` in
``error`` (https://platform.openai.com/docs/guides/error-codes), Azure adds an ``innererror`` and
writes numbers as strings
(https://learn.microsoft.com/azure/ai-services/openai/concepts/content-filter), vLLM and llama.cpp
write the status into ``code``, SGLang leaves out the wrapper, FastAPI answers ``detail``, and
gateways answer a sentence or a web page. Codes decide before sentences, and sentences before the
status. The quote of the provider's words holds no secret and no control character.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from blackbox_lb.safety.secrets import MASK, redacted

FaultKind: TypeAlias = Literal[
    "authentication",
    "bad id",
    "conflict",
    "content filter",
    "context full",
    "context length",
    "not found",
    "other endpoint",
    "overloaded",
    "quota",
    "rate limit",
    "rejected",
    "server",
    "timeout",
    "too many entries",
    "unknown model",
    "unsupported",
]
"""context length: this request is too long. context full: all requests in flight are, together.
other endpoint: the model has another one. quota: no credit is left, waiting does not help. too many
entries, bad id: of ``logit_bias``. unsupported: the model or the server lacks a parameter.
rejected: any other refusal of this request."""

LONGEST_MESSAGE = 500
"""Most characters quoted of the provider's words; servers that validate repeat the whole request in
them.
"""
LONGEST_SEARCHED = 20_000
"""Characters that are searched for a reason."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One error answer, understood.

    ``message``, ``code``, ``param``: the provider's words, secrets masked; ``code`` as text even
    where it is a number.
    ``status``: HTTP status, or the one in the body, None where there is neither.
    ``parameter``: the request field to blame, if the words name it; of "other endpoint" its name.
    ``limit``: the largest accepted number: alternatives a token (unsupported, 0 or more), entries
    (too many entries), or a token id (bad id).
    """

    kind: FaultKind
    message: str
    code: str | None = None
    param: str | None = None
    status: int | None = None
    parameter: str | None = None
    limit: int | None = None
    provider: str = ""

    def __str__(self) -> str:
        status = "an error" if self.status is None else self.status
        return f"{self.provider or 'the provider'} answered {status}: {self.message}"


def classify(
    status: int | None, body: Any, profile_name: str = "", *, secrets: Iterable[str] = ()
) -> Fault:
    """Return the fault of an error answer. Never raises, whatever ``body`` is.

    ``status``: HTTP status; None for an error inside a stream. ``body``: parsed JSON, with or
    without the outer ``error``, or text, or bytes. ``profile_name``: for the message. ``secrets``:
    keys and tokens in use, masked wherever they are echoed.
    """
    words = _read(body)
    status = words.status or status if status is None or status < 400 else status
    kind, parameter, limit = _judge(words, status)
    known = [secrets] if isinstance(secrets, str) else list(secrets)
    code, param, parameter = (
        text and _shortened(masked(text, known)) for text in (words.code, words.param, parameter)
    )
    message = _shortened(masked(words.message, known)) or "no explanation"
    return Fault(kind, message, code, param, status, parameter, limit, profile_name)


# --- The meaning

CODES: dict[FaultKind, frozenset[str]] = {
    "content filter": frozenset(
        {"contentfilter", "responsibleaipolicyviolation", "contentpolicyviolation", "invalidprompt"}
    ),
    "quota": frozenset(
        {
            "insufficientquota",
            "creditbalanceexhausted",
            "organizationspendlimitexceeded",
            "organizationusagelimitexceeded",
            "projectspendlimitexceeded",
            "billinghardlimitreached",
            "billingnotactive",
        }
    ),
    "authentication": frozenset(
        {"invalidapikey", "authenticationerror", "unauthorized", "permissiondenied"}
    ),
    "context length": frozenset({"contextlengthexceeded", "exceedcontextsizeerror"}),
    "unknown model": frozenset({"modelnotfound", "deploymentnotfound", "invalidmodel"}),
}
"""Codes and types, letters and digits only, that decide under any status."""

BARE_CODES: dict[FaultKind, frozenset[str]] = {
    "rate limit": frozenset({"ratelimitexceeded", "ratelimiterror", "slowdown", "toomanyrequests"}),
    "overloaded": frozenset(
        {"overloadederror", "serverisoverloaded", "serviceunavailable", "serviceunavailableerror"}
    ),
    "server": frozenset({"servererror", "internalservererror", "internalerror", "apierror"}),
    "timeout": frozenset({"timeout", "timeouterror", "requesttimeout"}),
    "not found": frozenset({"notfound", "notfounderror"}),
}
"""Codes and types that decide without an error status: inside a stream, or behind a gateway that
answers 200.
"""

STATUSES: dict[int, FaultKind] = {
    401: "authentication",
    402: "quota",
    403: "authentication",
    404: "not found",
    408: "timeout",
    409: "conflict",
    410: "not found",
    429: "rate limit",
    501: "unsupported",
    503: "overloaded",
    529: "overloaded",
}

SENTENCES: tuple[tuple[FaultKind, str], ...] = (
    (
        "content filter",
        r"content management policy|flagged as potentially violating|content exists risk",
    ),
    ("quota", r"insufficient balance|spending limit|out of call volume quota"),
    # Gemini's limits per minute use OpenAI's sentence, but go on with the time to wait.
    ("quota", r"exceeded your current quota(?!.*retry in)"),
    # OpenAI and Groq answer 429 to a request that is larger than a whole minute's tokens, which no
    # wait makes smaller.
    ("rejected", r"^request too large\b"),
    ("too many entries", r"provided \d+ logit bias\w*.*?at most (?P<limit>\d{1,9})\b"),
    ("too many entries", r"too many logit bias\w*.*?max size is (?P<limit>\d{1,9})\b"),
    ("bad id", r"invalid key in 'logit_bias'(?:.*?maximum value is (?P<limit>\d{1,9})\b)?"),
    ("bad id", r"logit_bias must ha(?:s|ve) keys in \[0, ?(?P<limit>\d{1,9})\]"),
    ("bad id", r"logit_bias contain out-of-vocab.*?vocabulary size: (?P<beyond>\d{1,9})\b"),
    ("bad id", r"logit_bias keys must be"),
    ("authentication", r"(?:incorrect|invalid) api key|api key not valid"),
    # A model of the other endpoint is a 404 at OpenAI, like an unknown one; a base model has no
    # chat template at vLLM.
    (
        "other endpoint",
        r"(?P<chat>is a chat model and not supported)|(?P<responses>only supported in"
        r" v1/responses)|"
        r"(?P<completions>is not a chat model|default chat template is no longer allowed)",
    ),
    # With 400: Mistral and OpenAI, OpenRouter, DeepSeek now and before, Bedrock, xAI and
    # llama.cpp's router. With 404: Fireworks, Ollama, vLLM and SGLang.
    (
        "unknown model",
        r"\binvalid model\b|is not a valid model id|supported api model names are|\bmodel not"
        r" exist|model identifier is invalid|"
        r"\bmodel (?:\S{1,200} )?(?:is )?not found\b|\bmodel \S{1,200} does not exist",
    ),
    # llama.cpp's 500 where the requests in flight fill the memory that they share (--kv-unified):
    # all fail, fewer would not.
    ("context full", r"context size has been exceeded"),
    # OpenAI, vLLM now and before, llama.cpp, SGLang now and before, Fireworks, llama-cpp-python.
    (
        "context length",
        r"maximum context length|model's context length|longer than the maximum model"
        r" length|exceeds the (?:available )?context "
        r"size|exceeds the maximum allowed length|prompt is too long|exceed context window|is too"
        r" large to process",
    ),
    # llama.cpp answers 500 to requests that its template, its parser or its set-up can never serve
    # (recorded, build 10499).
    (
        "rejected",
        r"jinja exception|requires --jinja|json\.exception\.(?:parse_error|type_error\.302)|input"
        r" is not supported - hint|"
        r"cannot use both",
    ),
)
"""Sentences that decide under any status, in this order. ``limit`` is the largest accepted,
``beyond`` the least refused.
"""

PARAMETERS = {
    name: re.compile(pattern or rf"\b{name}\b", re.IGNORECASE)
    for name, pattern in {
        "logprobs": r"\blog[ _]?prob(?:abilitie)?s\b",
        "top_logprobs": r"\btop[ _]logprobs\b",
        "logit_bias": r"\blogit[ _]bias\b",
        **dict.fromkeys(
            ("max_tokens", "max_completion_tokens", "temperature", "top_p", "top_k", "min_p"), ""
        ),
        **dict.fromkeys(("presence_penalty", "frequency_penalty", "seed", "echo", "best_of"), ""),
    }.items()
}
LACKS = re.compile(
    r"unsupported|(?:not|n't) (?:yet |currently"
    r" )?(?:supported|available|enabled|permitted|implemented|allowed)|"
    r"(?:not|n't) support|unrecognized|unexpected (?:argument|parameter|field|keyword)",
    re.IGNORECASE,
)
NAMED = re.compile(
    r"unsupported (?:parameter|value): '(?P<a>[\w.]{1,60})'|argument supplied: (?P<b>\w{1,60})|"
    r"not permitted, field: '(?P<c>[\w.]{1,60})'|'loc': \('body',"
    r" '(?P<d>\w{1,60})'|body\.(?P<e>\w{1,60}): extra inputs|"
    r"unknown name \"(?P<f>\w{1,60})\"",
    re.IGNORECASE,
)
TOO_LARGE = re.compile(
    r"(?:greater than the maximum of|greater than max allowed:|expected a value <=|less than or"
    r" equal to) (?P<limit>\d{1,9})\b",
    re.IGNORECASE,
)
UNSUPPORTED_CODES = frozenset({"unsupportedparameter", "unsupportedvalue"})

Verdict: TypeAlias = tuple[FaultKind, str | None, int | None]


def _judge(words: _Words, status: int | None) -> Verdict:
    """Kind, parameter to blame, limit."""
    for kind, codes in CODES.items():
        if codes & words.codes:
            return kind, None, None
    said = words.message[:LONGEST_SEARCHED]
    for kind, pattern in SENTENCES:
        if match := re.search(pattern, said, re.IGNORECASE):
            return (
                kind,
                "logit_bias" if kind in ("too many entries", "bad id") else match.lastgroup,
                _limit(match),
            )
    if (status is None or status in (400, 403, 404, 422, 501)) and (
        verdict := _unsupported(words, said)
    ):
        return verdict
    if status is None or status < 400:
        return (
            next((kind for kind, codes in BARE_CODES.items() if codes & words.codes), "rejected"),
            None,
            None,
        )
    return STATUSES.get(status, "server" if status >= 500 else "rejected"), None, None


def _limit(match: re.Match[str]) -> int | None:
    found = match.groupdict()
    if found.get("beyond"):
        return int(found["beyond"]) - 1
    return int(found["limit"]) if found.get("limit") else None


def _unsupported(words: _Words, said: str) -> Verdict | None:
    for complaint in said.split("; "):
        if match := TOO_LARGE.search(complaint):
            for name in ("top_logprobs", "logprobs"):
                if PARAMETERS[name].search(complaint):
                    return "unsupported", name, _limit(match)
    if match := NAMED.search(said):
        return "unsupported", next(name for name in match.groups() if name), None
    if UNSUPPORTED_CODES & words.codes:
        return "unsupported", words.param, None
    for sentence in re.split(r"[.;!]\s", said):
        if LACKS.search(sentence):
            for name, pattern in PARAMETERS.items():
                if pattern.search(sentence):
                    return "unsupported", name, None
    return None


# --- The words


@dataclass(frozen=True, slots=True)
class _Words:
    """``codes``: every code and type, letters and digits only. ``status``: the status in the
    body.
    """

    message: str
    code: str | None = None
    param: str | None = None
    codes: frozenset[str] = frozenset()
    status: int | None = None


def _read(body: Any) -> _Words:
    if isinstance(body, bytes | bytearray):
        body = bytes(body).decode("utf-8", "replace")
    if isinstance(body, str):
        parsed = _json(body)
        if not isinstance(parsed, dict | list):
            return _Words(_printable(_without_tags(body)))
        body = parsed
    if isinstance(body, list):
        body = next((part for part in body if isinstance(part, dict)), {"message": body or None})
    return _read_dict(body) if isinstance(body, dict) else _Words(_printable(_text(body)))


def _read_dict(body: dict[str, Any]) -> _Words:
    layers = list(_layers(body))
    inner = layers[-1]
    codes = [
        layer[key]
        for layer in layers
        for key in ("code", "type", "status")
        if layer.get(key) is not None
    ]
    code = _text(inner.get("code")) or None
    statuses = [int(code) for code in map(_text, codes) if re.fullmatch(r"[1-5]\d\d", code)]
    codes += [
        layer["innererror"].get("code")
        for layer in layers
        if isinstance(layer.get("innererror"), dict)
    ]
    codes += [layer["error"] for layer in layers if isinstance(layer.get("error"), str)]
    return _Words(
        message=_printable(_message(inner)),
        code=_printable(code) if code else None,
        param=_printable(_text(inner.get("param"))) or None,
        codes=frozenset(re.sub(r"[^a-z0-9]", "", _text(code).lower()) for code in codes) - {""},
        status=statuses[0] if statuses else None,
    )


def _layers(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """``body`` and the objects inside it, outermost first."""
    inner: Any = body
    while isinstance(inner, dict):
        yield inner
        inner = next(
            (inner[key] for key in ("error", "detail") if isinstance(inner.get(key), dict)), None
        )


def _message(inner: dict[str, Any]) -> str:
    said = next(
        (inner[key] for key in ("message", "error", "detail", "msg", "title") if inner.get(key)),
        None,
    )
    if isinstance(said, list):
        said = "; ".join(_complaint(part) for part in said)
    metadata = inner.get("metadata")
    raw = metadata.get("raw") if isinstance(metadata, dict) else None
    # OpenRouter's own message is "Provider returned error"; the reason stands in the error inside.
    return (
        f"{_text(said)}: {_text(raw)}"
        if raw
        else _text(
            said or {key: value for key, value in inner.items() if value is not None} or None
        )
    )


def _complaint(part: Any) -> str:
    """One entry of a FastAPI validation error: ``{"loc": ["body", "n"], "msg": "..."}``."""
    if not isinstance(part, dict) or not isinstance(part.get("loc"), list):
        return _text(part)
    return f"{'.'.join(map(_text, part['loc']))}: {_text(part.get('msg'))}"


def _text(value: Any) -> str:
    """Any JSON value as text; None is empty."""
    if value is None or isinstance(value, str):
        return value or ""
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except (ValueError, TypeError, RecursionError):
        return f"({type(value).__name__})"


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _without_tags(text: str) -> str:
    """The words of a web page; any other text unchanged."""
    if not re.search(
        r"<(?:!doctype|html|head|body|title|h1|p)\b", text[:LONGEST_SEARCHED], re.IGNORECASE
    ):
        return text
    page = re.sub(
        r"<(script|style)\b.*?(?:</\1\s*>|$)|<!--.*?(?:-->|$)", " ", text, flags=re.S | re.I
    )
    return html.unescape(re.sub(r"<[^>]*(?:>|$)", " ", page))


# --- The safe quote

LONG = re.compile(r"[A-Za-z0-9]{32,}", re.ASCII)
"""Possible keys of any issuer. This package's own words hold fingerprints and hashes of this shape,
so it is masked only here.
"""


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """A server's words without ``secrets`` and the like: the masks of ``redacted``, and every
    ``LONG`` word.
    """
    return LONG.sub(MASK, redacted(text, secrets))


def _printable(text: str) -> str:
    """The text on one line, without characters that move a terminal's cursor or reverse its
    text.
    """
    return " ".join(
        "".join(character if character.isprintable() else " " for character in text).split()
    )


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_MESSAGE:
        return text
    return f"{text[: LONGEST_MESSAGE - 1].rstrip()}…"
