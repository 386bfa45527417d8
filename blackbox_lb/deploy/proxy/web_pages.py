"""Web pages that call the proxy: the origins that may, and the headers by which a page may read an
answer of the proxy's own.

Any page that a browser shows can send requests to this machine. The browser only keeps the page
from reading the answer, and an upstream without a key has worked and charged by then. Browsers name
the page's origin in ``Origin``, and say ``Sec-Fetch-Site: cross-site`` where they leave it out
(https://fetch.spec.whatwg.org/#http-cors-protocol, https://www.w3.org/TR/fetch-metadata/). A page
cannot set either header.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

from aiohttp import web

from blackbox_lb.deploy.injection import quoted
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.errors import InputError
from blackbox_lb.safety.network import is_loopback
from blackbox_lb.safety.printable import shorten

ANY = "*"
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#@\\]+")


class PageRule:
    """The rule for requests of web pages.

    Pages of this machine (localhost, 127.0.0.1, ::1 and ``hosts``) and of the proxy's own address
    (an IP address, or this machine's name) may call it, and those of ``origins``:
    "https://app.example", "null" for files and sandboxes, "*" for all. Any other name could be a
    stranger's that points here (DNS rebinding).

    Raises InputError: one of ``origins`` is no origin.
    """

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self._hosts = frozenset(name.lower() for name in hosts)
        machine = socket.gethostname().lower()
        self._own_names = frozenset((machine, f"{machine}.local"))
        self._origins = frozenset(origin.strip().lower().removesuffix("/") for origin in origins)
        for origin in self._origins:
            if not _ORIGIN.fullmatch(origin):
                raise InputError(
                    f"--allow-origin {shorten(origin)} is no origin; give a scheme, a host and a"
                    " port, as in https://app.example or http://192.0.2.1:3000, or null or *"
                )

    def check(self, request: web.BaseRequest) -> None:
        """Raise ErrorAnswer 403 where the request is a page's that may not call the proxy."""
        origins = request.headers.getall("Origin", [])
        refused = [origin for origin in origins if not self._may_call(origin, request)]
        if refused:
            raise ErrorAnswer(
                403,
                f"a web page of the origin {quoted(refused[0])} asks, and blb proxy answers pages"
                " of this machine alone; start it with --allow-origin and that origin if the page"
                " may use the upstream",
                code="origin_not_allowed",
            )
        is_foreign = request.headers.get("Sec-Fetch-Site", "").strip().lower() == "cross-site"
        if is_foreign and not origins and ANY not in self._origins:
            raise ErrorAnswer(
                403,
                "a web page of another site asks, without its origin, and blb proxy answers pages"
                " of this machine alone; open the address itself, call it with fetch(), or start"
                " the proxy with --allow-origin '*'",
                code="origin_not_allowed",
            )

    def headers(self, request: web.BaseRequest) -> dict[str, str]:
        """The headers of an answer of the proxy's own, by which a page that may call it can read
        it.
        """
        origins = request.headers.getall("Origin", [])
        if len(origins) != 1 or not self._may_call(origins[0], request):
            return {}
        return {
            "Access-Control-Allow-Origin": origins[0],
            "Access-Control-Allow-Credentials": "true",
            "Vary": "Origin",
        }

    def _may_call(self, origin: str, request: web.BaseRequest) -> bool:
        origin = origin.strip().lower()
        if ANY in self._origins or origin in self._origins:
            return True
        try:
            address = urlsplit(origin)
            host = address.hostname or ""
        except ValueError:
            return False
        if address.scheme not in ("http", "https"):
            return False
        own_host = request.headers.get("Host", "").lower()
        if is_loopback(host) or host in self._hosts:
            return True
        is_own_name = host in self._own_names or _is_ip_address(host)
        return address.netloc == own_host and is_own_name


def _is_ip_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
