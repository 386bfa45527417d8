"""``blb`` in the test's own process."""

from __future__ import annotations

from typing import Any

from click.testing import CliRunner, Result

from blackbox_lb.cli import main


def blb(*arguments: object, **options: Any) -> Result:
    """Run the command line with these words; ``options`` are those of click's ``invoke``."""
    return CliRunner().invoke(main, [str(argument) for argument in arguments], **options)


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
