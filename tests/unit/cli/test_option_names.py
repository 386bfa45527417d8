"""Messages of the library with the command line's names of options."""

from __future__ import annotations

from collections.abc import Iterator

import click
import pytest

from blackbox_lb.cli.echo import option_names, with_option_names
from docs.generate import commands


def long_options(command: click.Command) -> Iterator[str]:
    """The names of a command's options and of those of the commands inside, as parameters."""
    for parameter in command.params:
        for option in (*parameter.opts, *parameter.secondary_opts):
            if option.startswith("--") and option != "--help":
                yield option.removeprefix("--").replace("-", "_")
    for inner in getattr(command, "commands", {}).values():
        yield from long_options(inner)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("lower ``max_tokens``", "lower --max-tokens"),
        ("use ``estimator=ips``, which", "use --estimator ips, which"),
        ("``depends_on='a b'`` is not known", "--depends-on 'a b' is not known"),
        (
            "its words: `max_tokens` and ``usage``",
            "its words: `max_tokens` and ``usage``",
        ),
        ("``rival='words:w:-2'`` or ``top_logprobs``", "--rival 'words:w:-2' or --top-logprobs"),
    ],
)
def test_parameters_become_options(message: str, shown: str) -> None:
    """With their values; other words in backticks stay."""
    assert with_option_names(message) == shown


def test_every_option_is_known() -> None:
    """A new option of any command is named in messages without a line elsewhere."""
    names = {name for command in commands().values() for name in long_options(command)}
    assert names == option_names()
