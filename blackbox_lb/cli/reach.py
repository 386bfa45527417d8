"""What the value of an option reaches: code, keys, hosts, money, files elsewhere, or nothing.

A ``blb.toml`` that is merely found may set what reaches nothing. Each check asks the parser that
later reads the value.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from blackbox_lb.errors import InputError
from blackbox_lb.providers.packaged import is_profile_file

HARMLESS_TEXTS = frozenset(
    {
        *(
            "answer_column",
            "messages_column",
            "system",
            "prompt_column",
            "prompt_template",
            "filter",
            "field",
        ),
        *("metric", "task", "correct", "thinking", "labels", "shard", "setting", "deploy"),
        *("baseline_prompt", "phases", "entries", "l2", "model", "price", "hosts"),
        *("at", "decide", "positive"),
    }
)
"""Options that take a text from which nothing but numbers, prompts and names of data comes."""
READ = frozenset(
    {
        *("data", "validation_data", "test_data", "data_dir", "prices", "tokenizer", "rollouts"),
        *("baseline_words", "bias", "objective", "tools"),
    }
)
"""Options that name files to be read as data, within bounds."""
WRITTEN = frozenset({"out", "save", "store", "plots", "per_completion"})
"""Options that name files or folders to be written."""
FLAGS = {
    "yes": "spends money and sends keys without a question",
    "save": "writes into the bias files that a command line names",
}
"""Flags that are not harmless, with what they do."""


def reach(option: click.Option, key: str, value: Any, folder: Path) -> str | None:
    """What the value of an option reaches, as the end of a sentence; None for nothing.

    Args:
        key: the option's name in a settings file.
        value: as the command gets it.
        folder: of the settings file; writing in it is harmless, but for hidden files.
    """
    if option.is_flag:
        if value:
            return FLAGS.get(key)
        return None
    if isinstance(value, tuple):
        reasons = [_reach_of_one(option, key, single, folder) for single in value]
        return next((reason for reason in reasons if reason is not None), None)
    return _reach_of_one(option, key, value, folder)


def _reach_of_one(option: click.Option, key: str, value: Any, folder: Path) -> str | None:
    if isinstance(value, int | float) or isinstance(option.type, click.Choice):
        return None
    if key in HARMLESS_TEXTS or key in READ:
        return None
    if key in WRITTEN:
        return _writing(Path(value), folder)
    check = CHECKS.get(key)
    if check is None:
        return "is not known to be harmless"
    return check(str(value))


def _writing(path: Path, folder: Path) -> str | None:
    target = path.resolve()
    home = folder.resolve()
    if not target.is_relative_to(home):
        return "writes outside the folder of the settings file"
    if any(part.startswith(".") for part in target.relative_to(home).parts):
        return "writes a hidden file"
    return None


def _reward(spec: str) -> str | None:
    from blackbox_lb.tasks.rewards.reward import reward_kind

    reasons = {
        "function": f"runs code of the module {spec.partition(':')[0]}",
        "judge": "names a file that says which key goes to which host",
        "endpoint": "sends completions to that address",
    }
    return reasons.get(reward_kind(spec))


def _provider(name: str) -> str | None:
    if is_profile_file(name):
        return "names a file that says which keys go to which host"
    return None


def _address(address: str) -> str:
    return "sends prompts and keys to that address"


def _depends_on(spec: str) -> str | None:
    from blackbox_lb.bias.features import Embedding, parse_feature

    try:
        feature = parse_feature(spec)
    except InputError:  # the command refuses it, too
        return None
    if isinstance(feature, Embedding):
        return _embedding()
    return None


def _classifier(spec: str) -> str | None:
    if spec == "tfidf":
        return None
    return _embedding()


def _embedding() -> str:
    return "loads a model, which may run code, or sends prompts to an API"


def _open_door(name: str) -> str:
    return "says who may use the proxy"


CHECKS: dict[str, Callable[[str], str | None]] = {
    "reward": _reward,
    "provider": _provider,
    "base_url": _address,
    "upstream": _address,
    "depends_on": _depends_on,
    "classifier": _classifier,
    "host": _open_door,
    "allow_host": _open_door,
    "allow_origin": _open_door,
}
"""Options whose value decides: key -> its check."""
