"""Addresses: how a profile's address, key and query are written into code and shell commands that
run elsewhere.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from urllib.parse import quote

from blackbox_lb.providers.schema import Connection

ANY = Connection(
    base_url_env="OPENAI_BASE_URL", api_key_env="OPENAI_API_KEY", api_key_required=False
)
"""An API without a known profile: its address and key stand in the variables of OpenAI's own SDK.
"""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an API, as expressions in Python and as lines in a shell.

    url, key, query: in Python. None where the SDK reads OPENAI_BASE_URL and OPENAI_API_KEY by
        itself, or where there is no query.
    header: the name of the header with the key.
    set_url, shell_path: lines of a shell that set URL, and the text that follows it.
    shell_key: the header with the key, in a shell; empty where the API has none.
    """

    url: str | None
    key: str | None
    header: str
    query: str | None
    set_url: str
    shell_path: str
    shell_key: str

    @classmethod
    def of(cls, rules: Connection, base_url: str | None, prefix: str, route: str) -> Address:
        """Build the address of an endpoint. prefix: its path up to the ``route`` that OpenAI's SDK
        appends by itself.
        """
        url, set_url = _address(rules, base_url)
        key, shell_key = _key(rules)
        scheme = ""
        if rules.api_key_header == "Authorization":
            scheme = "Bearer "
        shell_header = ""
        if shell_key:
            shell_header = f"{rules.api_key_header}: {scheme}{shell_key}"
        query, shell_query = _query(rules)
        shell_path = shlex.quote(prefix + route) + shell_query
        variables = (rules.base_url_env, rules.api_key_env)
        if rules.api_key_required and variables == (ANY.base_url_env, ANY.api_key_env):
            sdk_url = None
            if base_url:
                sdk_url = url
            return cls(sdk_url, None, "Authorization", query, set_url, shell_path, shell_header)
        if prefix:
            url = f"{url} + {literal(prefix)}"
        return cls(url, key, rules.api_key_header, query, set_url, shell_path, shell_header)

    def arguments(self, url: str, headers: str, query: str) -> list[str]:
        """Keyword arguments for the address, the key and the query under the names of one
        library.
        """
        parts = [] if self.url is None else [f"{url}={self.url}"]
        if self.key is not None:
            parts.append(f"api_key={self.key}")
            if self.header != "Authorization":
                parts.append(f"{headers}={{{literal(self.header)}: {self.key}}}")
        if self.query is None:
            return parts
        return [*parts, f"{query}={self.query}"]


def _query(rules: Connection) -> tuple[str | None, str]:
    """The query parameters of every request, as a Python expression and as shell text after a
    path.
    """
    parameters = {**dict.fromkeys(rules.query_env, ""), **rules.query}
    if not parameters:
        return None, ""
    python = []
    shell = []
    for name, value in parameters.items():
        argument = literal(value)
        text = quote(value, safe="")
        variable = rules.query_env.get(name)
        if variable is not None:
            argument = f"os.environ.get({literal(variable)}, {argument})"
            text = f"${{{variable}:-{text}}}"
        python.append(f"{literal(name)}: {argument}")
        shell.append(f"{quote(name, safe='')}={text}")
    return f"{{{', '.join(python)}}}", f'"?{"&".join(shell)}"'


def _key(rules: Connection) -> tuple[str, str]:
    """The key as a Python expression and as a shell expression; none where the API has none."""
    name = rules.api_key_env
    if not name:
        return '"none"', ""
    if rules.api_key_required:
        return f"os.environ[{literal(name)}]", f"${name}"
    return f'os.environ.get({literal(name)}, "none")', f"${{{name}:-none}}"


def _address(rules: Connection, base_url: str | None) -> tuple[str, str]:
    """The address as a Python expression, and the shell lines that put it into URL."""
    name = rules.base_url_env
    path = rules.base_path
    if base_url is not None or name is None:
        fixed = (base_url or rules.base_url or "").strip().rstrip("/")
        return literal(fixed), f"URL={shlex.quote(fixed)}"
    if rules.base_url is not None:
        return (
            f"os.environ.get({literal(name)}, {literal(rules.base_url)})",
            f"URL=${{{name}:-{shlex.quote(rules.base_url)}}}",
        )
    url = f"os.environ[{literal(name)}]"
    shell = f': "${{{name}:?set it to the address of the API}}"\nURL=${name}'
    if not path:
        return url, shell
    quoted = shlex.quote(path)
    return (
        f'{url}.rstrip("/").removesuffix({literal(path)}) + {literal(path)}',
        f"{shell}\nURL=${{URL%/}}\nURL=${{URL%{quoted}}}{quoted}",
    )


def literal(value: object) -> str:
    """A Python literal in ASCII, safe for any terminal; in double quotes where none has to be
    escaped.
    """
    text = ascii(value)
    if '"' in text:
        return text
    return text.replace("'", '"')
