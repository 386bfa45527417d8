"""Who may call the proxy: programs of this machine by its own names, and web pages of this machine.

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
from contextlib import suppress
from urllib.parse import urlsplit

from aiohttp import web

from blackbox_lb.deploy.injection import quoted
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.errors import InputError
from blackbox_lb.safety.network import is_loopback
from blackbox_lb.safety.printable import shorten

ANY = "*"
_HOST = re.compile(r"[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\]")
_ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[^\s/?#@\\]+")


class Callers:
    """The rule for who may call.

    A proxy that listens on this machine alone (``is_local``) is called by a name of this machine or
    of ``hosts``: otherwise a web page could let its own name point here (DNS rebinding) and use an
    upstream that needs no key.

    Pages of this machine (localhost, 127.0.0.1, ::1 and ``hosts``) and of the proxy's own address
    (an IP address, or this machine's name) may call it, and those of ``origins``:
    "https://app.example", "null" for files and sandboxes, "*" for all. Any other name could be a
    stranger's that points here.

    Raises InputError: one of ``hosts`` is no host, or one of ``origins`` no origin.
    """

    def __init__(self, hosts: Iterable[str] = (), origins: Iterable[str] = ()) -> None:
        self.is_local = False
        self._hosts = frozenset(name.lower() for name in hosts)
        for host in self._hosts:
            if not _HOST.fullmatch(host):
                raise InputError(
                    f"--allow-host {quoted(host)} is no name that a client calls the proxy by; give"
                    " a host's name without scheme, port and blanks, as host.docker.internal"
                )
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
        """Raise ErrorAnswer: 421 (RFC 9110, section 15.5.20) where the request is meant for another
        host, 403 where it is a page's that may not call the proxy.
        """
        host = request.headers.get("Host", "")
        name = re.sub(r":\d*$", "", host).lower()
        is_own = is_loopback(name.strip("[]")) or name in self._hosts
        if self.is_local and host and not is_own:
            raise ErrorAnswer(
                421,
                f"blb proxy listens on this machine alone and is not {quoted(name)}; call it by"
                " 127.0.0.1 or localhost, or start it with --allow-host and that name",
                code="misdirected_request",
            )
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
        if is_loopback(host) or host in self._hosts:
            return True
        is_own_address = address.netloc == request.headers.get("Host", "").lower()
        return is_own_address and (host in self._own_names or _is_ip_address(host))


def _is_ip_address(host: str) -> bool:
    with suppress(ValueError):
        ipaddress.ip_address(host)
        return True
    return False
