"""Adapt a language model that you can only call: learn one logit bias from sampled completions,
prove that it helps, apply it.

The names here are loaded when they are first used, so that applying a bias never pays for the
estimators.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from blackbox_lb._version import __version__ as __version__

if TYPE_CHECKING:
    from blackbox_lb.api.connect import connect
    from blackbox_lb.api.session import Session
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.export import logit_bias, vllm_xargs
    from blackbox_lb.deploy.batch_files import apply_batch
    from blackbox_lb.deploy.client import apply
    from blackbox_lb.errors import (
        BlbError,
        BudgetExhausted,
        Drifted,
        InputError,
        Interrupted,
        ProviderError,
    )
    from blackbox_lb.estimate.choice.estimators import IPS, Projection
    from blackbox_lb.estimate.choice.goal import Goal
    from blackbox_lb.estimate.inputs.rollouts import GivenAnswers, RewardTilt, RewardToGo, Rollouts
    from blackbox_lb.estimate.inputs.sweep import Sweep
    from blackbox_lb.jobs.compiling.compile import compile_bias
    from blackbox_lb.jobs.evaluation.document import Answer
    from blackbox_lb.jobs.fitting.document import FitResult
    from blackbox_lb.jobs.plan.plan import Plan
    from blackbox_lb.jobs.runs.answers import AnswerPair
    from blackbox_lb.jobs.runs.fit import fit, fit_async
    from blackbox_lb.jobs.runs.run import Run
    from blackbox_lb.providers.profile import Profile, load_profile
    from blackbox_lb.rollouts.judging.trials import Trials
    from blackbox_lb.rollouts.positions import Positions
    from blackbox_lb.rollouts.progress import Progress
    from blackbox_lb.store import RolloutStore
    from blackbox_lb.tasks import Reward, Score, Task, load_task, parse_reward
    from blackbox_lb.types import Completion, Example, Message, Prompt, Sampling, Span

__all__ = [
    "IPS",
    "Answer",
    "AnswerPair",
    "Bias",
    "BlbError",
    "BudgetExhausted",
    "Completion",
    "Drifted",
    "Example",
    "FitResult",
    "GivenAnswers",
    "Goal",
    "InputError",
    "Interrupted",
    "Message",
    "Plan",
    "Positions",
    "Profile",
    "Progress",
    "Projection",
    "Prompt",
    "ProviderError",
    "Reward",
    "RewardTilt",
    "RewardToGo",
    "RolloutStore",
    "Rollouts",
    "Run",
    "Sampling",
    "Score",
    "Session",
    "Span",
    "Sweep",
    "Task",
    "Trials",
    "apply",
    "apply_batch",
    "compile_bias",
    "connect",
    "fit",
    "fit_async",
    "load_profile",
    "load_task",
    "logit_bias",
    "parse_reward",
    "vllm_xargs",
]

_HOME = {
    "Answer": "jobs.evaluation.document",
    "AnswerPair": "jobs.runs.answers",
    "Bias": "bias.document",
    "BlbError": "errors",
    "BudgetExhausted": "errors",
    "Completion": "types",
    "Drifted": "errors",
    "Example": "types",
    "FitResult": "jobs.fitting.document",
    "GivenAnswers": "estimate.inputs.rollouts",
    "Goal": "estimate.choice.goal",
    "IPS": "estimate.choice.estimators",
    "InputError": "errors",
    "Interrupted": "errors",
    "Message": "types",
    "Plan": "jobs.plan.plan",
    "Positions": "rollouts.positions",
    "Profile": "providers.profile",
    "Progress": "rollouts.progress",
    "Projection": "estimate.choice.estimators",
    "Prompt": "types",
    "ProviderError": "errors",
    "Reward": "tasks",
    "RewardTilt": "estimate.inputs.rollouts",
    "RewardToGo": "estimate.inputs.rollouts",
    "RolloutStore": "store",
    "Rollouts": "estimate.inputs.rollouts",
    "Run": "jobs.runs.run",
    "Sampling": "types",
    "Score": "tasks",
    "Session": "api.session",
    "Span": "types",
    "Sweep": "estimate.inputs.sweep",
    "Task": "tasks",
    "Trials": "rollouts.judging.trials",
    "apply": "deploy.client",
    "apply_batch": "deploy.batch_files",
    "compile_bias": "jobs.compiling.compile",
    "connect": "api.connect",
    "fit": "jobs.runs.fit",
    "fit_async": "jobs.runs.fit",
    "load_profile": "providers.profile",
    "load_task": "tasks",
    "logit_bias": "bias.export",
    "parse_reward": "tasks",
    "vllm_xargs": "bias.export",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"blackbox_lb.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
