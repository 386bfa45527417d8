"""One module a command, with its options."""

from __future__ import annotations

import importlib
import keyword

import click

__all__ = ["COMMANDS", "GROUPS", "load_command"]

COMMANDS = {
    "analyze": (
        "learning",
        "Show the effect of a bias on each token: scores, bands, families.",
    ),
    "check": ("learning", "Say whether a bias can mend a decision, before a fit is paid for."),
    "collect": (
        "learning",
        "Sample completions of the training prompts into the store, and nothing else.",
    ),
    "completion": (
        "setup",
        "Print the script that lets bash, zsh or fish complete commands, options and values.",
    ),
    "compile": (
        "learning",
        "Make a learned bias fit another provider or limit, and say what that loses.",
    ),
    "doctor": ("setup", "Test live whether a provider does what its profile claims."),
    "eval": ("learning", "Judge a bias on fresh completions of unseen prompts."),
    "export": (
        "using",
        "Print a bias as code for the OpenAI SDK, LiteLLM, LangChain, curl or vLLM.",
    ),
    "fit": ("learning", "Learn a bias and prove on unseen prompts whether it helps: the main job."),
    "init": (
        "setup",
        "Ask a few questions and write blb.toml, so that later commands need few options.",
    ),
    "providers": ("setup", "List the providers, or everything that is known of one."),
    "proxy": (
        "using",
        "Add the bias for any language and tool: an OpenAI-compatible reverse proxy.",
    ),
    "report": (
        "using",
        "Make one page of a run for people: verdict in words, plots, tokens, examples, costs.",
    ),
    "runs": ("using", "List the finished fits of a folder: reward, verdict, entries, cost."),
    "score": ("learning", "Score stored completions with any reward, without sampling again."),
    "show": ("using", "Show a bias file: verdict, promoted and suppressed tokens."),
    "store": ("setup", "Check, merge, recover rollout stores; Parquet out and in."),
    "try": ("using", "Answer a prompt without a bias and with it, side by side."),
}
"""Name -> its folder below this one, its help line; the module NAME in that folder defines
``NAME_command``.
"""
GROUPS = {
    "Start": ("init", "check", "doctor"),
    "Learn": ("fit", "eval", "collect"),
    "Look": ("show", "try", "runs", "report", "analyze", "score"),
    "Use": ("export", "proxy", "compile"),
    "Data and settings": ("store", "providers", "completion"),
}
"""Headings of ``blb --help`` with their commands, in the order of use; a test finds each once."""


def load_command(name: str) -> click.Command:
    """The command ``name``, imported now."""
    folder, _ = COMMANDS[name]
    module_name = f"{name}_" if keyword.iskeyword(name) else name
    module = importlib.import_module(f"{__name__}.{folder}.{module_name}")
    command: click.Command = getattr(module, f"{name}_command")
    return command
