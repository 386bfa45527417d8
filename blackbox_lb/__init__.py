"""Adapt a language model that you can only call: learn one logit bias from sampled completions, prove that it helps, apply it.

The names here are loaded when they are first used, so that applying a bias never pays for the estimators.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blackbox_lb.batch import apply_batch
    from blackbox_lb.bias import Bias
    from blackbox_lb.client import apply
    from blackbox_lb.compile import compile_bias
    from blackbox_lb.connection import connect
    from blackbox_lb.errors import BlbError
    from blackbox_lb.estimate.select import Goal
    from blackbox_lb.estimate.sweep import Sweep
    from blackbox_lb.export import logit_bias
    from blackbox_lb.fitting.plan import FitPlan
    from blackbox_lb.fitting.result import FitResult
    from blackbox_lb.fitting.run import fit
    from blackbox_lb.profiles import Profile, load_profile
    from blackbox_lb.session import Session
    from blackbox_lb.store import RolloutStore
    from blackbox_lb.tasks import Reward, Task, load_task, parse_reward
    from blackbox_lb.trials import Trials
    from blackbox_lb.types import Completion, Example, Message, Prompt, Sampling

__version__ = "0.1.0"

__all__ = [
    "Bias",
    "BlbError",
    "Completion",
    "Example",
    "FitPlan",
    "FitResult",
    "Goal",
    "Message",
    "Profile",
    "Prompt",
    "Reward",
    "RolloutStore",
    "Sampling",
    "Session",
    "Sweep",
    "Task",
    "Trials",
    "apply",
    "apply_batch",
    "compile_bias",
    "connect",
    "fit",
    "load_profile",
    "load_task",
    "logit_bias",
    "parse_reward",
]

_HOME = {
    "Bias": "bias",
    "BlbError": "errors",
    "Completion": "types",
    "Example": "types",
    "FitPlan": "fitting.plan",
    "FitResult": "fitting.result",
    "Goal": "estimate.select",
    "Message": "types",
    "Profile": "profiles",
    "Prompt": "types",
    "Reward": "tasks",
    "RolloutStore": "store",
    "Sampling": "types",
    "Session": "session",
    "Sweep": "estimate.sweep",
    "Task": "tasks",
    "Trials": "trials",
    "apply": "client",
    "apply_batch": "batch",
    "compile_bias": "compile",
    "connect": "connection",
    "fit": "fitting.run",
    "load_profile": "profiles",
    "load_task": "tasks",
    "logit_bias": "export",
    "parse_reward": "tasks",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"blackbox_lb.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
