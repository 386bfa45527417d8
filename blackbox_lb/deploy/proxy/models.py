"""``/v1/models`` with the aliases: the upstream's own list, fetched with the caller's key, and each
``MODEL@ALIAS``.
"""

import json
import logging
import math
from typing import Any
from urllib.parse import quote, unquote

import aiohttp
from aiohttp import web

from blackbox_lb.deploy.injection import quoted
from blackbox_lb.deploy.proxy.forward import REWRITTEN, Forwarder
from blackbox_lb.deploy.proxy.names import ServedBias, ServedNames
from blackbox_lb.deploy.proxy.requests import PREFIX

_NO_ROUTE = frozenset((404, 405, 501))
_MOST = 16 * 2**20
"""Largest list of models that is read, in bytes; a longer one counts as none."""
_PLAIN = {"Accept-Encoding": "identity"}

log = logging.getLogger(__name__)


def wanted_model(method: str, path: str, names: ServedNames) -> ServedBias | str | None:
    """The answer to make here: "all" for the list, a bias for one alias, None to forward the
    request.

    Raises ErrorAnswer (404): an alias that does not exist.
    """
    if method != "GET" or not path.startswith(f"{PREFIX}/models") or not names.aliased:
        return None
    rest = path.removeprefix(f"{PREFIX}/models")
    if rest in ("", "/"):
        return "all"
    served = None
    if rest.startswith("/"):
        served = names.choose(unquote(rest[1:]))
    if served is not None and served.alias is not None:
        return served
    return None


async def answer_models(
    forwarder: Forwarder,
    request: web.BaseRequest,
    target: str,
    names: ServedNames,
    served: ServedBias | str,
) -> web.StreamResponse:
    """The list, or the one model of an alias, with the upstream's headers. Where the upstream has
    no such route, the names known here are the answer.
    """
    if isinstance(served, ServedBias):
        target = f"{PREFIX}/models/{quote(served.model, safe=':/')}"
    async with await forwarder.ask(request, target, None, _PLAIN) as answer:
        is_list = answer.status == web.HTTPOk.status_code
        is_encoded = answer.headers.get("Content-Encoding", "identity") != "identity"
        if (is_list and is_encoded) or (not is_list and answer.status not in _NO_ROUTE):
            return await forwarder.stream(request, answer)
        headers = forwarder.headers_of(answer, REWRITTEN)
        document = {}
        if is_list:
            document = await _read(forwarder, answer)
            if not isinstance(document.get("data"), list) and not isinstance(served, ServedBias):
                log.warning(
                    "the upstream answers %s/models with 200 and no list of models (Content-Type"
                    " %s), so the list holds the proxy's own names alone; see whether --upstream is"
                    " the address of an API",
                    PREFIX,
                    quoted(answer.headers.get("Content-Type", "none")),
                )
    body = _entry(served, document) if isinstance(served, ServedBias) else _listed(names, document)
    return web.json_response(body, headers=headers)


async def _read(forwarder: Forwarder, answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """The JSON object in an answer; empty where it is none, or longer than ``_MOST``."""
    content = bytearray()
    with forwarder.faults():
        # read(n) gives what has arrived, at most n bytes.
        while piece := await answer.content.read(_MOST + 1 - len(content)):
            content += piece
    try:
        document = json.loads(content, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError):
        return {}
    if isinstance(document, dict):
        return document
    return {}


def _finite(number: str) -> float | None:
    """A number that can be written as JSON again; None for NaN and one beyond a double."""
    value = float(number)
    if math.isfinite(value):
        return value
    return None


def _listed(names: ServedNames, document: dict[str, Any]) -> dict[str, Any]:
    data = document.get("data")
    if not isinstance(data, list):
        return {"object": "list", "data": [_entry(row, {}) for row in names]}
    theirs = {
        row["id"]: row for row in data if isinstance(row, dict) and isinstance(row.get("id"), str)
    }
    ours = [
        _entry(row, theirs.get(row.model, {})) for row in names.aliased if row.name not in theirs
    ]
    return {**document, "data": [*data, *ours]}


def _entry(served: ServedBias, model: dict[str, Any]) -> dict[str, Any]:
    """The model object of OpenAI's specification, with the fields of the upstream's model.

    It leaves out llama.cpp's ``aliases``, which name the model without the bias.
    """
    created = int(served.bias.created.timestamp())
    theirs = {name: value for name, value in model.items() if name != "aliases"}
    return {
        "object": "model",
        "created": created,
        "owned_by": "blackbox-lb",
        **theirs,
        "id": served.name,
    }
