"""The credentials of requests: keys and tokens from the environment, placed by the profile.

The secret is added to each request as it leaves, in a header or the query. It is stored nowhere
else, neither in the SDK's client, whose representation or errors could print it, nor in any file.
"""

import os
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from blackbox_lb.errors import AuthenticationFailed
from blackbox_lb.providers.profile import Profile

TokenProvider: TypeAlias = Callable[[], Awaitable[str]]
"""Returns a bearer token; called before every request.
``azure.identity.aio.get_bearer_token_provider`` returns such a function.
"""


def environment(name: str | None) -> str | None:
    """The value of an environment variable; None where it is unset or empty."""
    if not name:
        return None
    return os.environ.get(name) or None


class Credentials:
    """The credentials of requests. query: parameters of each address.

    ``token_provider`` is preferred to the key, and the key to the token in
    ``connection.token_env``.

    Raises:
        AuthenticationFailed: the provider needs a key and there is none. The message has the
            variable and where to get a key.
    """

    def __init__(self, profile: Profile, token_provider: TokenProvider | None = None) -> None:
        rules = profile.connection
        key = _secret(rules.api_key_env)
        token = _secret(rules.token_env)
        if rules.api_key_required and not (key or token or token_provider):
            raise AuthenticationFailed(_missing(profile))
        self._header = rules.api_key_header
        if token_provider:
            key = None
        if key:
            token = None
        self._key = key
        self._token = token
        self._token_provider = token_provider
        self._extra: dict[str, str] = {}
        for header, variable in rules.headers_env.items():
            if value := _secret(variable):
                self._extra[header] = value
        self.query: dict[str, str] = {}
        for parameter, variable in rules.query_env.items():
            if value := environment(variable):
                self.query[parameter] = value
        self._last_token: str | None = None

    async def headers(self) -> dict[str, str]:
        """Those of the next request; ``query`` has the parameters of its address."""
        if self._token_provider:
            self._last_token = await self._token_provider()
        token = self._last_token or self._token
        if token:
            return {"Authorization": f"Bearer {token}", **self._extra}
        if self._key and self._header.lower() == "authorization":
            return {"Authorization": f"Bearer {self._key}", **self._extra}
        if self._key:
            return {self._header: self._key, **self._extra}
        return self._extra

    @property
    def secrets(self) -> list[str]:
        """The texts that no message may repeat."""
        values = [self._key, self._token, self._last_token]
        values += [*self._extra.values(), *self.query.values()]
        return [value for value in values if value]

    def __repr__(self) -> str:
        return f"<Credentials in {self._header}>"


def _secret(name: str | None) -> str | None:
    """The value of a variable; None where it is unset or empty.

    Raises:
        AuthenticationFailed: the value cannot stand in a header. The message leaves it out.
    """
    value = (environment(name) or "").strip()
    if not value.isascii() or not value.isprintable():
        raise AuthenticationFailed(
            f"the environment variable {name} holds a character that no key has (a line break, a"
            " curly quote ...); set it again"
        )
    return value or None


def _missing(profile: Profile) -> str:
    rules = profile.connection
    message = f"{profile.name} needs an API key: set the environment variable {rules.api_key_env}"
    if rules.token_env:
        message += f", or {rules.token_env} to a bearer token"
    if rules.api_key_url:
        message += f"; keys are made at {rules.api_key_url}"
    return message
