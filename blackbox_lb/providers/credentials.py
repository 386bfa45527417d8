"""The credentials of a request: a key or a token from the environment, in the header that the
provider's profile names.

The secret is added to each request as it leaves, in a header or the query, and is held nowhere
else: not in the SDK's client, whose representation or errors could print it, and not in any file.
"""

import os
from collections.abc import Awaitable, Callable
from typing import TypeAlias

import httpx2

from blackbox_lb.errors import AuthenticationFailed
from blackbox_lb.providers.profile import Profile

TokenProvider: TypeAlias = Callable[[], Awaitable[str]]
"""Called before every request for a bearer token, as
``azure.identity.aio.get_bearer_token_provider`` returns it.
"""

SDK_HEADERS = ("Authorization", "OpenAI-Organization", "OpenAI-Project")
"""Headers that the SDK adds from the environment of one provider to requests for any other."""


def environment(name: str | None) -> str | None:
    """The value of an environment variable; None where it is unset or empty."""
    return (os.environ.get(name) or None) if name else None


class Credentials:
    """A request hook. ``token_provider`` wins over the key, the key over the token in
    ``connection.token_env``.

    Raises AuthenticationFailed: the provider needs a key and there is none; names the variable and
    where to get one.
    """

    def __init__(self, profile: Profile, token_provider: TokenProvider | None = None) -> None:
        rules = profile.connection
        key = _secret(rules.api_key_env)
        token = _secret(rules.token_env)
        if rules.api_key_required and not (key or token or token_provider):
            raise AuthenticationFailed(_missing(profile))
        self._header = rules.api_key_header
        self._key = None if token_provider else key
        self._token = None if self._key else token
        self._token_provider = token_provider
        self._extra = {
            header: value for header, name in rules.headers_env.items() if (value := _secret(name))
        }
        self._query = {
            name: value for name, key in rules.query_env.items() if (value := environment(key))
        }
        self._last_token: str | None = None

    async def __call__(self, request: httpx2.Request) -> None:
        for header in SDK_HEADERS:
            request.headers.pop(header, None)
        if self._token_provider:
            self._last_token = await self._token_provider()
        token = self._last_token or self._token
        if token:
            request.headers["Authorization"] = f"Bearer {token}"
        elif self._key:
            bearer = self._header.lower() == "authorization"
            request.headers[self._header] = f"Bearer {self._key}" if bearer else self._key
        request.headers.update(self._extra)
        if self._query:
            request.url = request.url.copy_merge_params(self._query)

    @property
    def secrets(self) -> list[str]:
        """The texts that no message may repeat."""
        single = (self._key, self._token, self._last_token)
        return [each for each in (*single, *self._extra.values(), *self._query.values()) if each]

    def __repr__(self) -> str:
        return f"<Credentials in {self._header}>"


def _secret(name: str | None) -> str | None:
    """The variable's value, valid in a header. Raises AuthenticationFailed, without the value,
    where it is not.
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
    other = f", or {rules.token_env} to a bearer token" if rules.token_env else ""
    where = f"; keys are made at {rules.api_key_url}" if rules.api_key_url else ""
    return (
        f"{profile.name} needs an API key: set the environment variable"
        f" {rules.api_key_env}{other}{where}"
    )
