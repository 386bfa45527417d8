"""Commands, options, and values of options that users may still name, and what to use instead."""

from typing import Any

import click

from blackbox_lb.errors import InputError

ANALYZE_SAMPLES = (
    "blb analyze draws no completions any more: blb eval BIAS --deploy temperature=1 draws them"
    " into the store beside BIAS, and blb analyze BIAS reads them there"
)
ANALYZE_ASKS = (
    "blb analyze asks no server any more: leave out what names the server and limits spending;"
    " --tokenizer with the model's vocabulary gives the texts of tokens"
)
RIVALS = {
    "--baseline-prompt": "prompt:VALUE",
    "--baseline-temperature": "temperature:VALUE",
    "--baseline-max-tokens": "max-tokens:VALUE",
    "--best-of": "best-of:VALUE",
    "--baseline-words": "words:VALUE",
    "--baseline-close": "close:VALUE",
    "--labels-only": "labels-only",
    "--threshold": "threshold",
    "--calibrate": "calibrate:VALUE",
    "--few-shot": "few-shot:VALUE",
    "--classifier": "classifier:VALUE",
    "--asked-shares": "asked-shares",
    "--drawn-label": "drawn-label",
}
"""What each was of blb eval -> the value of --rival."""
REMOVED = {
    "blb trust": (
        "blb trust is gone: a blb.toml that is found may set only data, and one that you name may"
        " set everything, as in blb --config blb.toml fit"
    ),
    "--full-vocab": (
        "--full-vocab is no more: blb analyze reads the lists of stored completions, and its scores"
        " are exact where these hold the whole vocabulary; draw such with blb eval BIAS --deploy"
        " temperature=1 --top-logprobs SIZE, from vLLM with --max-logprobs -1"
    ),
    "analyze --task": ANALYZE_SAMPLES,
    "analyze --data": ANALYZE_SAMPLES,
    "analyze --samples": ANALYZE_SAMPLES,
    "analyze --base-url": ANALYZE_ASKS,
    "analyze --model": ANALYZE_ASKS,
    "analyze --max-cost": ANALYZE_ASKS,
    "analyze --max-requests": ANALYZE_ASKS,
    "--estimator ratio": (
        "--estimator ratio is no more, nor is a fit to completions without logprobs; use projection"
        " (the default) or ips, with a provider that returns logprobs"
    ),
    "--learn-from both": (
        "--learn-from both is no more; use --learn-from answers, or --learn-from samples"
    ),
    "--kappa": (
        "--kappa is no more: it was a setting of --estimator ratio; use projection (the default),"
        " with --l2"
    ),
    "--objective reward-kl": (
        "--objective reward-kl is no more; choose reward, and keep the bias nearer to the model"
        " with a larger --l2 or --tau"
    ),
    "--objective macro-f1": (
        "--objective macro-f1 is no more; choose balanced, the mean recall of the labels, and read"
        " the macro-F1 that is reported"
    ),
    "--kl-price": (
        "--kl-price is no more: it was a setting of --objective reward-kl; keep the bias nearer to"
        " the model with a larger --l2 or --tau"
    ),
    "--baseline-thinking-tokens": (
        "--baseline-thinking-tokens is no more; compare with --rival close:NATS, so many nats on"
        " the text that ends thinking, or with an instruction by --rival prompt:TEXT"
    ),
    **{name: f"{name} is no more; use blb eval --rival {rival}" for name, rival in RIVALS.items()},
}
"""The command; or the option, with its command or its value where that went alone -> what went, and
the way that remains."""


def refuse_removed(name: str) -> None:
    """Raise InputError for the ``name`` of an option, or an option with a value, that went."""
    if name in REMOVED:
        raise InputError(REMOVED[name])


def refuse_removed_value(option: click.Option, value: Any) -> None:
    """Raise InputError for a value of an option, or for one of several, that went."""
    for single in value if isinstance(value, list | tuple) else (value,):
        refuse_removed(f"{max(option.opts, key=len)} {single}")
