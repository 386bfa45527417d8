"""Where prompts, accepted answers and rewards come from."""

from __future__ import annotations

from blackbox_lb.tasks.base import Task
from blackbox_lb.tasks.files import load_examples
from blackbox_lb.tasks.load import load_task
from blackbox_lb.tasks.rewards import Reward, parse_reward

__all__ = ["Reward", "Task", "load_examples", "load_task", "parse_reward"]
