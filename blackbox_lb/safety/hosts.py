"""Hosts: whether an address is this machine, which needs neither a proxy server nor a question
about money.
"""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches the host: localhost, 127.0.0.0/8, ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
