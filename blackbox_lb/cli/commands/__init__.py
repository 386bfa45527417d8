"""One module a command: its options, and what it does with them.

The help of a command needs its options alone, so a function imports what it runs.
"""

from __future__ import annotations

import importlib
import keyword

import click

__all__ = ["COMMANDS", "GROUPS", "load_command"]

GROUPS = {
    "Start": {
        "init": "Ask a few questions and write blb.toml, so that later commands need few options.",
        "check": "Say whether a bias can mend a decision, before a fit is paid for.",
        "doctor": "Test live whether a provider does what its profile claims.",
    },
    "Learn": {
        "fit": "Learn a bias and prove on unseen prompts whether it helps: the main job.",
        "eval": "Judge a bias on fresh completions of unseen prompts.",
        "collect": "Sample completions of the training prompts into the store, and nothing else.",
        "words": "Keep words and phrases out without a fit: a bias from a list, and what it costs.",
    },
    "Look": {
        "show": "Show a bias file: verdict, promoted and suppressed tokens.",
        "try": "Answer a prompt without a bias and with it, side by side.",
        "runs": "List the finished fits of a folder: reward, verdict, entries, cost.",
        "report": (
            "Make one page of a run for people: verdict in words, plots, tokens, examples, costs."
        ),
        "analyze": "Show the effect of a bias on each token: scores, bands, families.",
        "score": "Score stored completions with any reward, without sampling again.",
    },
    "Use": {
        "export": "Print a bias for another tool: as code, a command, a preset or settings.",
        "serve": "Serve the embedded engine with a bias: for people without a server.",
        "proxy": "Add the bias for any language and tool: an OpenAI-compatible reverse proxy.",
        "compile": "Make a learned bias fit another provider or limit, and say what that loses.",
    },
    "Data and settings": {
        "store": "Check and merge rollout stores; Parquet out and in.",
        "providers": "List the providers, or everything that is known of one.",
        "rewards": "List the rewards, with what a completion is worth by each.",
        "completion": (
            "Print the script that lets bash, zsh or fish complete commands, options and values."
        ),
    },
}
"""Headings of ``blb --help`` -> command -> its help line, in the order of use; the module NAME here
defines ``NAME_command``.
"""
COMMANDS = tuple(name for commands in GROUPS.values() for name in commands)


def load_command(name: str) -> click.Command:
    """The command ``name``, imported now."""
    module_name = f"{name}_" if keyword.iskeyword(name) else name
    module = importlib.import_module(f"{__name__}.{module_name}")
    command: click.Command = getattr(module, f"{name}_command")
    return command
