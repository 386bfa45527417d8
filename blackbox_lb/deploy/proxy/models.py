"""``/v1/models`` with the aliases: the upstream's own list, fetched with the caller's key, and each
``MODEL@ALIAS``.
"""

import logging
from typing import Any

import aiohttp
from aiohttp import web

from blackbox_lb.deploy.injection import quoted
from blackbox_lb.deploy.proxy.bodies import ServedBiases
from blackbox_lb.deploy.proxy.limits import PREFIX
from blackbox_lb.deploy.proxy.served import ServedBias
from blackbox_lb.deploy.proxy.upstream import REWRITTEN, Upstream
from blackbox_lb.safety.untrusted import strict_json

MODELS = f"{PREFIX}/models"
_NO_ROUTE = frozenset((404, 405, 501))
_MOST = 16 * 2**20
"""Largest list of models that is read, in bytes; a longer one counts as none."""

log = logging.getLogger(__name__)


async def models_answer(
    upstream: Upstream, answer: aiohttp.ClientResponse, biases: ServedBiases
) -> web.Response | None:
    """The list with the aliases and the upstream's headers; None where the upstream's answer is to
    be passed on. Where the upstream has no such route, the names known here are the list.
    """
    is_list = answer.status == web.HTTPOk.status_code
    if not is_list and answer.status not in _NO_ROUTE:
        return None
    headers = upstream.headers_of(answer, REWRITTEN)
    document: dict[str, Any] = {}
    if is_list:
        with upstream.faults():
            document = await read_object(answer)
    data = document.get("data")
    if not isinstance(data, list):
        if is_list:
            log.warning(
                "the upstream answers %s with 200 and no list of models (Content-Type %s), so the"
                " list holds the proxy's own names alone; see whether --upstream is the address of"
                " an API",
                MODELS,
                quoted(answer.headers.get("Content-Type", "none")),
            )
        rows = [_entry(row, {}) for row in biases]
        return web.json_response({"object": "list", "data": rows}, headers=headers)
    theirs = {
        row["id"]: row for row in data if isinstance(row, dict) and isinstance(row.get("id"), str)
    }
    ours = [
        _entry(row, theirs.get(row.model, {})) for row in biases.aliased if row.name not in theirs
    ]
    return web.json_response({**document, "data": [*data, *ours]}, headers=headers)


async def read_object(answer: aiohttp.ClientResponse) -> dict[str, Any]:
    """The JSON object in an answer; empty where it is none, or longer than ``_MOST``."""
    content = bytearray()
    # read(n) gives what has arrived, at most n bytes.
    while piece := await answer.content.read(_MOST + 1 - len(content)):
        content += piece
    try:
        document = strict_json(bytes(content))
    except ValueError:
        return {}
    if isinstance(document, dict):
        return document
    return {}


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
