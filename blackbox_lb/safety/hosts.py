"""Addresses: whether a host is this machine, which needs neither a proxy server nor a question
about money; whether an address is that of a request and not of an API.
"""

import ipaddress

REQUESTS = ("/chat/completions", "/completions", "/responses", "/embeddings")
"""Paths below the address of an API, the longest first where one ends in another."""


def path_of_request(path: str) -> str | None:
    """The path of a request at the end of an address, None for one that may be an API's."""
    return next((end for end in REQUESTS if path.rstrip("/").endswith(end)), None)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host: localhost, 127.0.0.0/8, ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
