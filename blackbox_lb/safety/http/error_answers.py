"""The meaning of error answers of all inference APIs: a status and a body in, a ``Fault`` out.

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
    "other scheme",
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
"""Kinds of faults that their names do not explain:

bad id, too many entries: of ``logit_bias``.
context full: all requests in flight are too long together.
context length: this request is too long.
other endpoint: the model is served at another endpoint.
other scheme: the server speaks https at this port.
quota: no credit is left, and waiting does not help.
rejected: any other refusal of this request.
unsupported: the model or the server lacks a parameter.
"""

LONGEST_MESSAGE = 500
"""Most characters of a quote; servers that validate repeat the whole request in their words."""
LONGEST_SEARCHED = 20_000
"""Characters that are searched for a reason."""


@dataclass(frozen=True, slots=True)
class Fault:
    """The meaning of one error answer.

    message, code, param: the provider's words, with secrets masked; a numeric code as text.
    status: the HTTP status, or the one in the body; None where there is neither.
    parameter: the request field to blame, where the words name it; for "other endpoint" the name
        of that endpoint.
    limit: the largest accepted number of alternatives a token (unsupported, 0 or more), of entries
        (too many entries), or the largest token id (bad id).
    provider: the provider's name for the message.
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
        status: int | str | None = self.status
        if status is None:
            status = "an error"
        return f"{self.provider or 'the provider'} answered {status}: {self.message}"


def classify(
    status: int | None, body: Any, profile_name: str = "", *, secrets: Iterable[str] = ()
) -> Fault:
    """The fault of an error answer. Never raises, whatever ``body`` is.

    Args:
        status: HTTP status; None for an error inside a stream.
        body: parsed JSON, with or without the outer ``error``, or text, or bytes.
        profile_name: the provider's name for the message.
        secrets: keys and tokens in use, masked wherever they are echoed.
    """
    keys = list(secrets)
    if isinstance(secrets, str):
        keys = [secrets]
    words = _read(body)
    if status is None or status < 400:
        status = words.status or status
    kind, parameter, limit = _judge(words, status)

    def quote(text: str | None) -> str | None:
        return text and _shortened(masked(text, keys))

    return Fault(
        kind,
        quote(words.message) or "no explanation",
        quote(words.code),
        quote(words.param),
        status,
        quote(parameter),
        limit,
        profile_name,
    )


# --- The meaning

PER_TIME = (
    r"\bper (?:second|minute|hour|day)\b|\b(?:requests|tokens) per min\b|\bconcurren|\bretry in \d"
)
"""Words of a limit that is free again after a while, or once fewer requests are in flight."""


@dataclass(frozen=True, slots=True)
class ErrorSign:
    """One row of what error answers mean.

    kind: the fault; ``service.ERRORS`` has its error, and ``retries.is_passing`` whether that error
        is waited for or ends the run.
    source: where the sign was read or recorded.
    codes: codes and types that decide under any status, letters and digits only, with blanks
        between.
    sentence: pattern of a message that decides under any status. Its group ``limit`` is the largest
        accepted number, ``beyond`` the smallest refused one.
    unless: pattern of a message for which neither ``codes`` nor ``sentence`` counts.
    statuses: HTTP statuses that decide where no code and no sentence does.
    bare_codes: codes and types that decide only without an error status, inside a stream or behind
        a gateway that answers 200.
    """

    kind: FaultKind
    source: str
    codes: str = ""
    sentence: str = ""
    unless: str = ""
    statuses: tuple[int, ...] = ()
    bare_codes: str = ""


OPENAI = "https://platform.openai.com/docs/guides/error-codes"
AZURE = "https://learn.microsoft.com/azure/ai-services/openai/concepts/content-filter"
HTTP = "https://www.rfc-editor.org/rfc/rfc9110#name-status-codes"

SIGNS: tuple[ErrorSign, ...] = (
    ErrorSign(
        "content filter",
        f"{OPENAI}, {AZURE}; DeepSeek says Content Exists Risk",
        codes="contentfilter responsibleaipolicyviolation contentpolicyviolation invalidprompt",
        sentence=(
            r"content management policy|flagged as potentially violating|content exists risk"
        ),
    ),
    ErrorSign(
        "quota",
        f"{OPENAI}; Azure's API management says Out of call volume quota",
        codes=(
            "insufficientquota creditbalanceexhausted organizationspendlimitexceeded "
            "organizationusagelimitexceeded projectspendlimitexceeded billinghardlimitreached "
            "billingnotactive"
        ),
        sentence=r"exceeded your current quota|spending limit|out of call volume quota",
        # Scaleway answers INSUFFICIENT QUOTA to its limits of a minute and of concurrent requests
        # (https://www.scaleway.com/en/docs/generative-apis/troubleshooting/fixing-common-issues/,
        # https://github.com/LibreChat-AI/agents/issues/357). Gemini's limits of a minute use
        # OpenAI's sentence, and go on with the time to wait
        # (https://ai.google.dev/gemini-api/docs/rate-limits).
        unless=PER_TIME,
    ),
    ErrorSign(
        "quota",
        "https://api-docs.deepseek.com/quick_start/error_codes (Insufficient Balance, 402);"
        " https://openrouter.ai/docs/api-reference/errors (402);"
        " https://docs.claude.com/en/api/errors (credit balance is too low, 400)",
        sentence=r"insufficient balance|credit balance is too low",
        statuses=(402,),
    ),
    ErrorSign(
        "authentication",
        OPENAI,
        codes="invalidapikey authenticationerror unauthorized permissiondenied",
        sentence=r"(?:incorrect|invalid) api key|api key not valid",
        statuses=(401, 403),
    ),
    # Before "rate limit": no wait makes a request smaller that is larger than a minute's tokens.
    ErrorSign(
        "rejected",
        "OpenAI's and Groq's 429 and 413 of a request above the tokens of a minute",
        sentence=r"^request too large\b",
    ),
    ErrorSign(
        "rate limit",
        f"{OPENAI}; {HTTP}",
        sentence=rf"exceeded your current (?:quota|limit|threshold)\b.*?(?:{PER_TIME})",
        statuses=(429,),
        bare_codes="ratelimitexceeded ratelimiterror slowdown toomanyrequests",
    ),
    ErrorSign(
        "overloaded",
        f"{OPENAI}; {HTTP}; 529 of https://docs.claude.com/en/api/errors",
        statuses=(503, 529),
        bare_codes="overloadederror serverisoverloaded serviceunavailable serviceunavailableerror",
    ),
    ErrorSign(
        "timeout",
        HTTP,
        statuses=(408,),
        bare_codes="timeout timeouterror requesttimeout",
    ),
    ErrorSign("conflict", HTTP, statuses=(409,)),
    ErrorSign(
        "server",
        f"{OPENAI}; {HTTP}",
        statuses=tuple(status for status in range(500, 1000) if status not in (501, 503, 529)),
        bare_codes="servererror internalservererror internalerror apierror",
    ),
    ErrorSign(
        "context full",
        "llama.cpp's 500 where the requests in flight fill the memory that they share"
        " (--kv-unified): all fail, fewer would not",
        sentence=r"context size has been exceeded",
    ),
    ErrorSign(
        "too many entries",
        "OpenAI",
        sentence=r"provided \d+ logit bias\w*.*?at most (?P<limit>\d{1,9})\b",
    ),
    ErrorSign(
        "too many entries",
        "Fireworks",
        sentence=r"too many logit bias\w*.*?max size is (?P<limit>\d{1,9})\b",
    ),
    ErrorSign(
        "bad id",
        "OpenAI",
        sentence=r"invalid key in 'logit_bias'(?:.*?maximum value is (?P<limit>\d{1,9})\b)?",
    ),
    ErrorSign(
        "bad id",
        "SGLang",
        sentence=r"logit_bias must ha(?:s|ve) keys in \[0, ?(?P<limit>\d{1,9})\]",
    ),
    ErrorSign(
        "bad id",
        "vLLM",
        sentence=(
            r"logit_bias contain out-of-vocab.*?vocabulary size: (?P<beyond>\d{1,9})\b"
            r"|logit_bias keys must be"
        ),
    ),
    ErrorSign(
        "other endpoint",
        "OpenAI's 404, like an unknown model's; vLLM for a base model, which has no chat template",
        sentence=(
            r"(?P<chat>is a chat model and not supported)|(?P<responses>only supported in"
            r" v1/responses)|"
            r"(?P<completions>is not a chat model|default chat template is no longer allowed)"
        ),
    ),
    ErrorSign(
        "unknown model",
        "400 of Mistral and OpenAI, OpenRouter, DeepSeek now and before, Bedrock, xAI, llama.cpp's"
        " router; 404 of Azure, Fireworks, Ollama, Together, mlx-lm, vLLM and SGLang",
        codes="modelnotfound deploymentnotfound invalidmodel",
        sentence=(
            r"\binvalid model\b|is not a valid model id|supported api model names are|\bmodel not"
            r" exist|model identifier is invalid|"
            r"\bmodel (?:\S{1,200} )?(?:is )?not found\b|\bmodel \S{1,200} does not exist|"
            r"\bunable to access model\b|\brepository not found\b"
        ),
    ),
    ErrorSign(
        "context length",
        "OpenAI, vLLM now and before, llama.cpp, SGLang now and before, Fireworks,"
        " llama-cpp-python",
        codes="contextlengthexceeded exceedcontextsizeerror",
        sentence=(
            r"maximum context length|model's context length|longer than the maximum model"
            r" length|exceeds the (?:available )?context "
            r"size|exceeds the maximum allowed length|prompt is too long|exceed context window|is"
            r" too large to process"
        ),
    ),
    ErrorSign(
        "other scheme",
        "nginx's 400, Go's net/http, Apache",
        sentence=(
            r"plain http request was sent to https port|http request to an https server"
            r"|speaking plain http to an ssl"
        ),
    ),
    ErrorSign(
        "rejected",
        "llama.cpp's 500 of what its template, its parser or its set-up can never serve (recorded,"
        " build 10499)",
        sentence=(
            r"jinja exception|requires --jinja|json\.exception\.(?:parse_error|type_error\.302)|"
            r"input is not supported - hint|cannot use both"
        ),
    ),
    ErrorSign(
        "not found",
        HTTP,
        statuses=(404, 410),
        bare_codes="notfound notfounderror",
    ),
    ErrorSign("unsupported", HTTP, statuses=(501,)),
)
"""What error answers mean, what is waited for, and what ends a run. Codes of all rows decide
before sentences, in the order of the rows, and both before statuses.
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
"""Kind, parameter to blame, limit; as in ``Fault``."""


def _judge(words: _Words, status: int | None) -> Verdict:
    message = words.message[:LONGEST_SEARCHED]
    signs = [
        sign
        for sign in SIGNS
        if not (sign.unless and re.search(sign.unless, message, re.IGNORECASE))
    ]
    for sign in signs:
        if not words.codes.isdisjoint(sign.codes.split()):
            return sign.kind, None, None
    for sign in signs:
        match = None
        if sign.sentence:
            match = re.search(sign.sentence, message, re.IGNORECASE)
        if match is not None:
            parameter = match.lastgroup
            if sign.kind in ("too many entries", "bad id"):
                parameter = "logit_bias"
            return sign.kind, parameter, _limit(match)
    if status is None or status in (400, 403, 404, 422, 501):
        verdict = _unsupported(words, message)
        if verdict is not None:
            return verdict
    for sign in signs:
        if status in sign.statuses:
            return sign.kind, None, None
    if status is None or status < 400:
        for sign in signs:
            if not words.codes.isdisjoint(sign.bare_codes.split()):
                return sign.kind, None, None
    return "rejected", None, None


def _limit(match: re.Match[str]) -> int | None:
    groups = match.groupdict()
    if groups.get("beyond"):
        return int(groups["beyond"]) - 1
    if groups.get("limit"):
        return int(groups["limit"])
    return None


def _unsupported(words: _Words, message: str) -> Verdict | None:
    """The verdict where the words name a parameter that is not taken; else None."""
    for complaint in message.split("; "):
        if match := TOO_LARGE.search(complaint):
            for name in ("top_logprobs", "logprobs"):
                if PARAMETERS[name].search(complaint):
                    return "unsupported", name, _limit(match)
    if match := NAMED.search(message):
        return "unsupported", next(name for name in match.groups() if name), None
    if UNSUPPORTED_CODES & words.codes:
        return "unsupported", words.param, None
    for sentence in re.split(r"[.;!]\s", message):
        if LACKS.search(sentence):
            for name, pattern in PARAMETERS.items():
                if pattern.search(sentence):
                    return "unsupported", name, None
    return None


# --- The words


@dataclass(frozen=True, slots=True)
class _Words:
    """An error body, read.

    message, code, param: its words, on one line.
    codes: every code and type in it, letters and digits only.
    status: the HTTP status that it names.
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
    if isinstance(body, dict):
        return _read_dict(body)
    return _Words(_printable(_text(body)))


def _read_dict(body: dict[str, Any]) -> _Words:
    layers = list(_layers(body))
    inner = layers[-1]
    values = [layer.get(key) for layer in layers for key in ("code", "type", "status")]
    codes = [_text(value) for value in values if value is not None]
    statuses = [int(code) for code in codes if re.fullmatch(r"[1-5]\d\d", code)]
    for layer in layers:
        if isinstance(layer.get("innererror"), dict):
            codes.append(_text(layer["innererror"].get("code")))
        if isinstance(layer.get("error"), str):
            codes.append(layer["error"])
    return _Words(
        message=_printable(_message(inner)),
        code=_printable(_text(inner.get("code"))) or None,
        param=_printable(_text(inner.get("param"))) or None,
        codes=frozenset(re.sub(r"[^a-z0-9]", "", code.lower()) for code in codes) - {""},
        status=next(iter(statuses), None),
    )


def _layers(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """``body`` and the objects inside it, outermost first."""
    layer: Any = body
    while isinstance(layer, dict):
        yield layer
        layer = next(
            (layer[key] for key in ("error", "detail") if isinstance(layer.get(key), dict)), None
        )


def _message(inner: dict[str, Any]) -> str:
    """The sentence in an error object; its JSON where there is none."""
    keys = ("message", "error", "detail", "msg", "title")
    message = next((inner[key] for key in keys if inner.get(key)), None)
    if isinstance(message, list):
        message = "; ".join(_complaint(part) for part in message)
    metadata = inner.get("metadata")
    # OpenRouter's own message is "Provider returned error"; the reason stands in the error inside.
    if isinstance(metadata, dict) and metadata.get("raw"):
        return f"{_text(message)}: {_text(metadata['raw'])}"
    if not message:
        message = {key: value for key, value in inner.items() if value is not None} or None
    return _text(message)


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
"""The shape of keys of any issuer. Fingerprints and hashes in this package's own messages have it
too, so it is masked only in the words of servers.
"""


def masked(text: str, secrets: Iterable[str] = ()) -> str:
    """A server's words with all secrets masked, by ``redacted`` and in the shape ``LONG``."""
    return LONG.sub(MASK, redacted(text, secrets))


def _printable(text: str) -> str:
    """The text on one line, with a blank for each run of blanks and unprintable characters."""
    characters = []
    for character in text:
        if not character.isprintable():
            character = " "
        characters.append(character)
    return " ".join("".join(characters).split())


def _shortened(text: str) -> str:
    if len(text) <= LONGEST_MESSAGE:
        return text
    return f"{text[: LONGEST_MESSAGE - 1].rstrip()}…"
