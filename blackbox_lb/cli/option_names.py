"""The names of options in what the library says: below ``cli/`` a message names the parameters of
Python in double backticks, which no server's words have; a user of the command line reads options.
"""

import re

OPTIONS = frozenset(
    [
        "allow_host",
        "allow_origin",
        "alpha",
        "alpha_scale",
        "answer_column",
        "base_url",
        "baseline_close",
        "baseline_max_tokens",
        "baseline_prompt",
        "baseline_temperature",
        "baseline_thinking_tokens",
        "baseline_words",
        "batch",
        "batch_requests",
        "best_of",
        "bias",
        "calibrate",
        "cancel",
        "classifier",
        "clip",
        "concurrency",
        "correct",
        "count",
        "data",
        "data_dir",
        "depends_on",
        "deploy",
        "effect",
        "endpoint",
        "engine",
        "entries",
        "estimator",
        "few_shot",
        "field",
        "filter",
        "force",
        "forget",
        "format",
        "full_vocab",
        "go_on",
        "grace",
        "host",
        "integers",
        "json",
        "kappa",
        "kl_price",
        "l2",
        "labels",
        "labels_only",
        "learn_from",
        "limit",
        "max_body",
        "max_cost",
        "max_requests",
        "max_tokens",
        "max_tokens_total",
        "messages_column",
        "metric",
        "model",
        "no_wait",
        "num_fewshot",
        "objective",
        "on_conflict",
        "on_drift",
        "only_stored",
        "others",
        "out",
        "per_completion",
        "phases",
        "plots",
        "policy",
        "port",
        "positions",
        "prefill",
        "price",
        "prices",
        "prompt_column",
        "prompt_template",
        "provider",
        "quiet",
        "restart",
        "reward",
        "rollouts",
        "samples",
        "samples_per_prompt",
        "save",
        "seed",
        "setting",
        "shard",
        "split",
        "store",
        "task",
        "tau",
        "test_data",
        "test_limit",
        "test_samples",
        "thinking",
        "thorough",
        "threshold",
        "timeout",
        "tokenizer",
        "top",
        "top_logprobs",
        "unobserved",
        "upstream",
        "validation_data",
        "validation_limit",
        "validation_samples",
        "validation_size",
        "weights",
        "workers",
        "yes",
    ]
)
"""The parameter behind every option of every command."""
_PARAMETER = re.compile(r"``([a-z][a-z0-9_]*)(?:=([^`]*))?``")


def with_option_names(message: str) -> str:
    """``message`` with options in the place of parameters: ``top_logprobs=0`` in double
    backticks becomes --top-logprobs 0. What names no option stays as it is.
    """
    return _PARAMETER.sub(_option, message)


def _option(parameter: re.Match[str]) -> str:
    name, value = parameter.groups()
    if name not in OPTIONS:
        return parameter[0]
    option = f"--{name.replace('_', '-')}"
    return option if value is None else f"{option} {value}"
