"""Sources of prompts, accepted answers and rewards."""

from blackbox_lb.tasks.load import load_task
from blackbox_lb.tasks.records.files import load_examples
from blackbox_lb.tasks.rewards.registry import parse_reward
from blackbox_lb.tasks.rewards.reward import Reward, Score
from blackbox_lb.tasks.sets.task import Task

__all__ = ["Reward", "Score", "Task", "load_examples", "load_task", "parse_reward"]
