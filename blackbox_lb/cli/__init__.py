"""The command ``blb``: one file a command, loaded when it is called, and no logic of its own."""

from __future__ import annotations

import importlib
from typing import Any

import click

from blackbox_lb import __version__
from blackbox_lb.errors import BlbError

__all__ = ["main"]

COMMANDS = {
    "collect": "Sample completions of the training prompts into the store, and nothing else.",
    "compile": "Make a learned bias fit another provider or limit, and say what that loses.",
    "doctor": "Test live whether a provider does what its profile claims.",
    "eval": "Judge a bias on fresh completions of unseen prompts.",
    "export": "Print a bias as code for the OpenAI SDK, LiteLLM, LangChain, curl or vLLM.",
    "fit": "Learn a bias and prove on unseen prompts whether it helps: the main job.",
    "providers": "List the providers, or everything that is known of one.",
    "proxy": "Add the bias for any language and tool: an OpenAI-compatible reverse proxy.",
    "show": "Show a bias file: verdict, promoted and suppressed tokens.",
}
"""Name -> help line; the command NAME is ``blackbox_lb.cli.NAME:command``."""


class Commands(click.Group):
    """Imports a command when it is called, so that ``blb --help`` answers at once; prints our errors as one sentence."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, sorted."""
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, imported now."""
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"blackbox_lb.cli.{cmd_name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(sorted(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; an error of our tree ends it with its sentence and exit code 2."""
        try:
            return super().invoke(ctx)
        except BlbError as error:
            click.echo(f"Error: {error}", err=True)
            ctx.exit(2)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="blb")
def main() -> None:
    """Adapt a language model that you can only call.

    blb samples completions with token logprobs from an inference API, scores them with a reward, learns one logit-bias vector,
    and proves on fresh samples whether it helps. Try it without a key or a GPU:

        blb fit --provider local --task capitals --reward correct-and-short
    """
