"""The paper's tables run again: its settings as files, its layout, and our numbers beside its own."""

from __future__ import annotations

from blackbox_lb.reproduce.configuration import Configuration, load_configuration
from blackbox_lb.reproduce.reproduce import Job, rewards_of, run
from blackbox_lb.reproduce.results import LoraResult, Reproduction, load_lora
from blackbox_lb.reproduce.scaling import Scaled, scaled

__all__ = [
    "Configuration",
    "Job",
    "LoraResult",
    "Reproduction",
    "Scaled",
    "load_configuration",
    "load_lora",
    "rewards_of",
    "run",
    "scaled",
]
