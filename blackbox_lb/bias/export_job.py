"""What is exported: the bias, its numbers and the server, and the parts of code that formats
share.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from blackbox_lb.bias.addresses import ANY, Address, literal
from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import InputError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import Connection
from blackbox_lb.safety.printable import printable

PROMPT = "Hello"


@dataclass(frozen=True, slots=True)
class ExportJob:
    """One export: the bias, its file and its numbers, for a model behind a server.

    remarks: sentences on what the format cannot carry.
    """

    bias: Bias
    file: Path
    values: Mapping[str, float]
    model: str
    profile: Profile | None
    base_url: str | None
    remarks: tuple[str, ...] = ()

    @property
    def chat(self) -> bool:
        """Whether the bias was learned on chat answers, or on continuations of a text."""
        return self.bias.prompted_endpoint == "chat"

    @property
    def server(self) -> Address:
        """The address of the endpoint for this kind of prompt."""
        name = self.bias.prompted_endpoint
        path = route = "/chat/completions" if self.chat else "/completions"
        if self.profile is not None and name in self.profile.endpoints:
            path = self.profile.endpoint(name).path.replace("{model}", quote(self.model, safe=""))
        return Address.of(self.connection, self.base_url, path.removesuffix(route), route)

    @property
    def connection(self) -> Connection:
        """The address and the variable of the key; ``ANY`` where no server is known."""
        if self.profile is None or self.profile.connection.embedded:
            return ANY
        return self.profile.connection

    def check_no_query(self) -> None:
        """Raise InputError: the API wants a query, which LiteLLM does not send."""
        if self.server.query is not None:
            raise InputError(
                "LiteLLM's OpenAI-compatible route sends no query, and this API wants"
                f" {self.server.query}; take another format, or a provider without one"
            )

    @property
    def prompt(self) -> dict[str, Any]:
        if self.chat:
            return {"messages": [{"role": "user", "content": PROMPT}]}
        return {"prompt": PROMPT}

    @property
    def asked(self) -> str:
        """The prompt as an argument of a call."""
        ((name, value),) = self.prompt.items()
        return f"{name}={'PROMPT' if self.computes else literal(value)}"

    @property
    def computes(self) -> bool:
        """Whether the script computes the map of each request by itself."""
        return self.bias.scopes == {"prompt"}

    @property
    def applies(self) -> bool:
        """Whether the script sends through ``apply``, which asks for each phase of an answer."""
        return "prefix" in self.bias.scopes

    @property
    def settings(self) -> dict[str, Any]:
        """The temperature at which the bias was judged, where it helps if there are several, and
        the limit of a completion in the fit; without what is not known.
        """
        settings: dict[str, Any] = {}
        rows = [row for row in self.bias.verdict if row.metric == self.bias.verdict[0].metric]
        if rows:
            best = next((row for row in rows if row.word == "HELPS"), rows[0])
            degrees = 0.0
            if best.setting != "greedy":
                degrees = float(best.setting.removeprefix("temperature "))
            settings["temperature"] = int(degrees) if degrees.is_integer() else degrees
        if self.bias.sampling is not None:
            settings["max_tokens"] = self.bias.sampling.max_tokens
        return settings

    @property
    def sent_settings(self) -> dict[str, Any]:
        """The same as fields of a request: the limit has another name at some hosts."""
        limit = "max_tokens"
        name = self.bias.prompted_endpoint
        if self.profile is not None and name in self.profile.endpoints:
            limit = self.profile.endpoint(name).max_tokens
        return {
            limit if field == "max_tokens" else field: value
            for field, value in self.settings.items()
        }

    @property
    def about(self) -> str:
        """Lines of comment."""
        unchecked = "" if self.profile else ", limits not checked"
        lines = (
            f"A bias of {len(self.bias.entries):,} tokens for {printable(self.bias.model)} by"
            f" blackbox_lb: {printable(self.bias.status)}{unchecked}",
            *self.remarks,
        )
        return "\n".join(f"# {line}" for line in lines)

    @property
    def texts(self) -> dict[str, str]:
        """The text of each token as a comment, by its id."""
        return {str(entry.id): f"# '{entry.readable}'" for entry in self.bias.entries}

    @property
    def legend(self) -> str:
        """A line of comment for each token that is sent: its id, its value, its text."""
        texts = self.texts
        return "".join(
            f"# {token:>7} {value:+8.3f} {texts[token].removeprefix('# ')}\n"
            for token, value in self.values.items()
        )

    def listed(self, line: str, indent: str) -> str:
        """A line for each token with its text as a comment. line: has places for the id and the
        value as JSON.
        """
        texts = self.texts
        return "".join(
            f"{indent}{line.format(json.dumps(token), json.dumps(value))}  {texts[token]}\n"
            for token, value in self.values.items()
        )

    def python(self, imports: str, *code: str) -> str:
        """A script: the imports, the numbers, or how they are computed from the prompt, and the
        code.
        """
        text = "\n".join(code)
        system = "import os\n\n" if "os.environ" in text else ""
        if self.applies:
            return f"{self.about}\n{system}{imports}\n\n{text}\n"
        if self.computes:
            (value,) = self.prompt.values()
            computed = (
                f"LOGIT_BIAS = logit_bias({literal(str(self.file))}, messages=PROMPT)  # each"
                " prompt has its own"
            )
            imports = f"from blackbox_lb import logit_bias\n{imports}"
            return (
                f"{self.about}\n{system}{imports}\n\nPROMPT ="
                f" {literal(value)}\n{computed}\n\n{text}\n"
            )
        table = self.listed("{}: {},", "    ")
        return f"{self.about}\n{system}{imports}\n\nLOGIT_BIAS = {{\n{table}}}\n\n{text}\n"

    def curl(self, **fields: Any) -> str:
        """A POST of the prompt and ``fields``; see ``posted``."""
        body = {"model": self.model, **self.prompt, **self.sent_settings, **fields}
        return posted('"${URL%/}"' + self.server.shell_path, self.server.shell_key, body)


def posted(url: str, key: str, body: Mapping[str, Any]) -> str:
    """A POST whose body is a here-document, so that the shell expands nothing.

    url, key: words of a shell, the key as a header or "".
    """
    header = [f'-H "{key}"'] if key else []
    words = [url, *header, '-H "Content-Type: application/json"', "--data-binary @-"]
    return f"curl -sS {' '.join(words)} <<'JSON'\n{json.dumps(body)}\nJSON\n"


def call_lines(function: str, values: Mapping[str, Any], *more: str) -> list[str]:
    """The lines of a call, one argument a line."""
    all_arguments = [*arguments(values), *more]
    if not all_arguments:
        return [f"{function}()"]
    return [f"{function}(", *(f"    {argument}," for argument in all_arguments), ")"]


def arguments(values: Mapping[str, Any]) -> list[str]:
    """Named arguments of a call."""
    return [f"{name}={literal(value)}" for name, value in values.items()]
