"""Addresses, and the environment's settings of connections: certificates, key logs, proxy servers.

HTTP libraries read these variables themselves, some when they are imported, and fail on a bad value
with errors of their own. Here they are read once for all, and a bad one is an ``InputError`` that
names it.
"""

from __future__ import annotations

import ipaddress
import os
import re
import ssl
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import causes, shorten
from blackbox_lb.safety.secrets import redacted

KEY_LOG = "SSLKEYLOGFILE"
CERTIFICATE_FILE = "SSL_CERT_FILE"
CERTIFICATE_FOLDER = "SSL_CERT_DIR"
OF_REQUESTS = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
"""Variables with the certificates of the library ``requests``, which tiktoken uses."""
HTTP = ("http", "https")
SOCKS = ("socks5", "socks5h")
PORTS = {"http": 80, "https": 443}

_UNTRUSTED = {
    9: "it is not valid yet; see the clock of this machine",
    10: "renew it on the server, or see the clock of this machine",
    62: "use the host name that the certificate is for",
    64: "use the address that the certificate is for",
}
"""OpenSSL's number of a fault in a certificate -> its remedy, where trusting it is none."""


class ProxyServer(NamedTuple):
    """A proxy server of the environment, and the variable that names it."""

    address: str
    variable: str

    def __str__(self) -> str:
        return redacted(f"the proxy server {self.address} ({self.variable})")


def check_key_log() -> None:
    """Raise InputError where SSLKEYLOGFILE names a file that cannot be written.

    Every TLS context writes there, also those that libraries make while they are imported.
    """
    path = os.environ.get(KEY_LOG)
    if not path:
        return
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).keylog_filename = path
    except (OSError, ValueError) as error:
        raise InputError(
            f"{KEY_LOG} names the file {path}, which cannot be written:"
            f" {getattr(error, 'strerror', None) or error}; correct the variable, or unset it"
        ) from error


def check_certificates(variables: Iterable[str]) -> None:
    """Raise InputError where the environment names certificates that cannot be used.

    Checked are the key log, SSL_CERT_DIR (which counts where SSL_CERT_FILE is not set), and
    ``variables``, which name files of certificates.
    """
    check_key_log()
    folders = os.environ.get(CERTIFICATE_FOLDER)
    if folders and not os.environ.get(CERTIFICATE_FILE):
        exists = any(Path(folder).is_dir() for folder in folders.split(os.pathsep))
        if not exists:
            raise InputError(
                f"{CERTIFICATE_FOLDER} names {folders}, which is no folder; correct the variable,"
                " or unset it"
            )
    for variable in variables:
        path = os.environ.get(variable)
        if not path:
            continue
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            if Path(path).is_dir() and variable in OF_REQUESTS:
                context.load_verify_locations(capath=path)
            else:
                context.load_verify_locations(cafile=path)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            if isinstance(error, ssl.SSLError):
                reason = "it holds no certificate in PEM"
            raise InputError(
                f"{variable} names the file of certificates {path}, which cannot be used:"
                f" {reason}; correct the variable, or unset it"
            ) from error


def certificates() -> ssl.SSLContext:
    """The trusted certificates: SSL_CERT_FILE, else SSL_CERT_DIR, else the system's.

    Raises:
        InputError: a variable names certificates that cannot be used.
    """
    import httpx2  # takes a third of a second, which commands without a connection need not wait

    check_certificates([CERTIFICATE_FILE])
    return httpx2.create_ssl_context()


def check_environment(url: str, variables: Iterable[str] = (CERTIFICATE_FILE,)) -> None:
    """Raise InputError where the environment keeps another library from reaching an address.

    Args:
        url: the address.
        variables: the variables from which the library takes its file of certificates.
    """
    check_certificates(variables)
    proxy_server(url)


def verification(url: str, proxy: str | None = None) -> ssl.SSLContext:
    """The TLS context of connections to an address, and to the proxy server before it; it has
    ``certificates`` where one of them is of https.

    Certificates take a twentieth of a second to load.
    """
    if any(address.lower().startswith("https:") for address in (url, proxy or "")):
        return certificates()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def proxy_server(url: str, schemes: Iterable[str] = (*HTTP, *SOCKS)) -> ProxyServer | None:
    """The proxy server that the environment names for an address; None for a direct connection.

    Servers of this machine are reached directly, because a proxy server for the outside world
    cannot reach them. So are the hosts in NO_PROXY, whichever variable names the proxy server.

    Args:
        url: the address to be reached.
        schemes: kinds of proxy servers that the caller can use.

    Raises:
        InputError: the variable names no usable proxy server, or one of another kind.
    """
    target = urlsplit(url)
    proxies = getproxies()
    scheme = "all"
    if proxies.get(target.scheme):
        scheme = target.scheme
    if not proxies.get(scheme) or _is_direct(target, proxies.get("no", "")):
        return None
    names = (f"{scheme}_proxy", f"{scheme.upper()}_PROXY")
    variable = next((name for name in names if os.environ.get(name)), "the system's settings")
    address = proxies[scheme]
    if "://" not in address:
        address = f"http://{address}"
    remedy = f"correct {variable}, unset it, or add {target.hostname} to NO_PROXY"
    try:
        server = urlsplit(address)
        usable = bool(server.hostname) and (server.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or any(character.isspace() for character in address):
        raise InputError(
            f"{variable} holds {redacted(address)!r}, which is no address of a proxy server;"
            f" {remedy}"
        )
    if server.scheme not in schemes:
        raise InputError(
            f"{variable} names a {server.scheme} proxy server, and only"
            f" {', '.join(schemes)} can be used here; {remedy}"
        )
    if server.scheme in SOCKS and find_spec("socksio") is None:
        raise InputError(
            f"{variable} names a {server.scheme} proxy server, which needs the package socksio;"
            f" install it (pip install 'httpx2[socks]'), or {remedy}"
        )
    return ProxyServer(address, variable)


def _is_direct(target: SplitResult, exceptions: str) -> bool:
    """Whether ``target`` is reached without a proxy server; ``exceptions``: NO_PROXY.

    An entry is ``*``, a host with all below it, an address, or a network such as 10.0.0.0/8; a
    port behind it, or a scheme before it, must be that of the target.
    """
    host = target.hostname or ""
    if is_loopback(host):
        return True
    port = target.port or PORTS.get(target.scheme)
    for entry in exceptions.lower().replace(",", " ").split():
        scheme, _, name = entry.rpartition("://")
        if scheme not in ("", "all", target.scheme):
            continue
        if name == "*" or _is_inside(host, name):
            return True
        name = name.lstrip("*").lstrip(".").replace("[", "").replace("]", "")
        if name and any(
            spelled == name or spelled.endswith(f".{name}") for spelled in (host, f"{host}:{port}")
        ):
            return True
    return bool(proxy_bypass(host))  # exceptions in the system's settings, on macOS and Windows


def _is_inside(host: str, network: str) -> bool:
    try:
        return ipaddress.ip_address(host) in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False


def untrusted_certificate(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """The failed check of a certificate behind an error; None where there is none."""
    for cause in causes(error):
        # aiohttp's own error is of this class, too, and lacks OpenSSL's number.
        if isinstance(cause, ssl.SSLCertVerificationError) and hasattr(cause, "verify_code"):
            return cause
    return None


def explain_certificate(error: ssl.SSLCertVerificationError) -> tuple[str, str]:
    """The fault of a certificate in OpenSSL's words, and the remedy."""
    remedy = _UNTRUSTED.get(error.verify_code)
    if remedy is None:
        remedy = (
            "if you trust the server, give the file of its authority's certificate in"
            f" {CERTIFICATE_FILE}"
        )
        for variable in (CERTIFICATE_FILE, CERTIFICATE_FOLDER):
            if path := os.environ.get(variable):
                remedy = (
                    f"{variable} names the trusted ones, {path}: add the certificate of the"
                    " server's authority there"
                )
                break
    return error.verify_message, remedy


REQUESTS = ("/chat/completions", "/completions", "/responses", "/embeddings")
"""Paths of requests below the address of an API, the longest first where one ends in another."""


def read_address(text: str, subject: str, remedy: str, secrets: str, *, of_api: bool = True) -> str:
    """The http(s) address that a user wrote, with its scheme in lower case, without blanks around
    it and slashes at its end.

    Args:
        text: as it was written.
        subject: the address in messages, as in "the address of the reward".
        remedy: the way to give one.
        secrets: the place of keys and queries, which no address may hold.
        of_api: the paths of requests lie below it.

    Raises:
        InputError: it is no http(s) URL with a host and a usable port, it holds a query, a
            fragment or a password, or, ``of_api``, it ends in the path of a request. The message
            repeats none of the secrets.
    """
    scheme, mark, rest = text.strip().rstrip("/").partition("://")
    address = f"{scheme.lower()}{mark}{rest}"
    if not is_http_url(address):
        host_on = re.split("[?#]", text.strip().rpartition("@")[2], maxsplit=1)[0]
        raise InputError(f"{subject}, {shorten(host_on)}, is not a http(s) URL; {remedy}")
    parts = urlsplit(address)
    if "@" in parts.netloc:
        raise InputError(f"{subject} holds a user name, a password or a key; {secrets}")
    if "?" in address:
        raise InputError(f"{subject} holds a query, which could be a key; {secrets}")
    if "#" in address:
        clean = parts._replace(fragment="").geturl()
        raise InputError(
            f"{subject} holds a fragment, which starts at its # and reaches no server; leave it"
            f" out: {clean}"
        )
    end = next((path for path in REQUESTS if parts.path.endswith(path)), None)
    if of_api and end is not None:
        raise InputError(
            f"{subject} ends in {end}, which is the path of a request; leave it out:"
            f" {address.removesuffix(end)}"
        )
    return address


def is_http_url(address: str) -> bool:
    """Whether an address is an http(s) URL with a host and a usable port."""
    from yarl import URL  # by which requests are sent

    try:
        URL(address)
        parts = urlsplit(address)
        port = parts.port or 0
    except ValueError:
        return False
    has_blank = any(character.isspace() for character in parts.netloc)
    return parts.scheme in HTTP and bool(parts.hostname) and port >= 0 and not has_blank


PLAIN_HTTP = frozenset(
    {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "RECORD_LAYER_FAILURE"}
)
"""OpenSSL's reasons where what answers a TLS handshake is no TLS, such as a server of http."""


def speaks_plain_http(error: BaseException | None) -> bool:
    """Whether a connection by https failed because the server does not speak TLS."""
    return any(
        isinstance(cause, ssl.SSLError) and getattr(cause, "reason", None) in PLAIN_HTTP
        for cause in causes(error)
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host: localhost, 127.0.0.0/8, ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
