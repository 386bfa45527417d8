"""What a ``blb.toml`` may set that is merely found and not named: data, and nothing else.

A folder that somebody else wrote may hold such a file. An option that is not named here needs
``blb --config FILE``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from blackbox_lb.providers.packaged import is_profile_file
from blackbox_lb.safety.files import expanded
from blackbox_lb.safety.network import is_loopback

TEXTS = frozenset(
    {
        *("task", "model", "system", "prompt_template", "field", "filter", "metric", "correct"),
        *("prompt_column", "answer_column", "messages_column", "thinking", "labels", "positive"),
        *("layout", "only", "at", "deploy", "setting", "phases", "entries", "l2", "price", "shard"),
        "hosts",
    }
)
"""Options whose text is only sent, counted or compared."""
FLAGS = frozenset(
    {
        *("json", "quiet", "verbose", "dry_run", "models", "prefill", "integers"),
        *("only_stored", "go_on", "batch", "no_wait", "decisions", "rivals", "access_log", "raw"),
        "only_tokens",
        "parts",
    }
)
"""Flags that answer no question, overwrite, withdraw or put aside nothing."""
PATHS = frozenset(
    {
        *("data", "validation_data", "test_data", "data_dir", "tools", "prices", "tokenizer"),
        *("rollouts", "bias", "objective", "question", "decide", "phrases"),
        *("out", "save", "store", "plots", "per_completion"),
    }
)
"""Options that name files, also after = or a colon, as in short=b.json."""
FEATURES = frozenset({"nothing", "words", "system-prompt", "groups", "route"})


def is_data(key: str, value: Any, folder: Path) -> bool:
    """Whether a value reaches no code, no key, no host but this machine and no other folder.

    Args:
        key: the option's name in the file. An option with a list of choices is always data.
        value: as the command gets it.
        folder: of the file.
    """
    if isinstance(value, tuple):
        return all(is_data(key, item, folder) for item in value)
    if isinstance(value, bool):
        return not value or key in FLAGS
    if isinstance(value, int | float):
        return True
    text = str(value)
    head, _, rest = text.partition(":")
    match key:
        case "provider":
            return not is_profile_file(text)
        case "base_url":
            return _is_on_this_machine(text)
        case "reward":
            from blackbox_lb.tasks.rewards.registry import find

            form = find(text)
            if form is None or form[0].reaches == "nothing":  # the command refuses an unknown name
                return True
            return form[0].reaches == "file" and _is_inside(form[1], folder)
        case "depends_on":
            return head in FEATURES
        case "rival":
            if head == "words":
                return _is_inside(rest.rpartition(":")[0], folder)
            if head == "phrases":
                return _is_inside(rest, folder)
            return head != "classifier" or rest == "tfidf"
    if key in PATHS:
        return all(_is_inside(part, folder) for part in (text, *re.split("[=:]", text)))
    return key in TEXTS


def _is_inside(path: str, folder: Path) -> bool:
    """Whether a path leads into the folder, links followed, and to nothing hidden in it.

    A number such as .95 after the = of an objective hides nothing.
    """
    target = expanded(path).resolve()
    home = folder.resolve()
    if not target.is_relative_to(home):
        return False
    return not any(re.match(r"\.(?!\d)", part) for part in target.relative_to(home).parts)


def _is_on_this_machine(address: str) -> bool:
    try:
        return is_loopback(urlsplit(address.strip()).hostname or "")
    except ValueError:
        return False
