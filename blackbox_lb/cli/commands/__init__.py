"""One module a command, with its options."""

from __future__ import annotations

__all__ = ["COMMANDS"]

COMMANDS = {
    "analyze": "Tell what a bias does to each token: scores, families, minimal pairs.",
    "collect": "Sample completions of the training prompts into the store, and nothing else.",
    "completion": "Print the script that lets bash, zsh or fish complete commands, options and values.",
    "compile": "Make a learned bias fit another provider or limit, and say what that loses.",
    "doctor": "Test live whether a provider does what its profile claims.",
    "eval": "Judge a bias on fresh completions of unseen prompts.",
    "export": "Print a bias as code for the OpenAI SDK, LiteLLM, LangChain, curl or vLLM.",
    "fit": "Learn a bias and prove on unseen prompts whether it helps: the main job.",
    "init": "Ask a few questions and write blb.toml, so that later commands need few options.",
    "providers": "List the providers, or everything that is known of one.",
    "proxy": "Add the bias for any language and tool: an OpenAI-compatible reverse proxy.",
    "report": "Make one page of a run for people: verdict in words, plots, tokens, examples, costs.",
    "reproduce": "Run the paper's tables on your model, scaled down, beside its own numbers.",
    "score": "Score stored completions with any reward, without sampling again.",
    "show": "Show a bias file: verdict, promoted and suppressed tokens.",
    "store": "Check, compact, merge, recover rollout stores; Parquet out and in.",
}
"""Name -> help line; the command NAME is ``blackbox_lb.cli.NAME:command``."""
