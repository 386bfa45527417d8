"""``blb`` in the test's own process."""

from __future__ import annotations

from typing import Any, Protocol

from click.testing import CliRunner, Result

from blackbox_lb.cli import main


def blb(*arguments: object, **options: Any) -> Result:
    """Run the command line with these words; ``options`` are those of click's ``invoke``."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **options)


class Server(Protocol):
    """A server of llama.cpp's dialect."""

    @property
    def base_url(self) -> str:
        """With /v1."""
        ...


def options(**values: object) -> tuple[str, ...]:
    """Options of the command line: ``max_tokens=8`` is ``--max-tokens 8``, and a list gives its
    option once for each member.
    """
    words: list[str] = []
    for name, value in values.items():
        for member in value if isinstance(value, list) else [value]:
            words += [f"--{name.replace('_', '-')}", str(member)]
    return tuple(words)


def asking(server: Server, **values: object) -> tuple[str, ...]:
    """Options of a command that asks a server, and others."""
    return options(provider="llamacpp", base_url=server.base_url, **values)


def refusal(result: Result) -> str:
    """What a command wrote to stderr, without line breaks, which must have ended with exit code 2
    and no traceback.
    """
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


def refused(*arguments: object) -> str:
    """The refusal of the command line with these words."""
    return refusal(blb(*arguments))
