"""The paper's tables run again: its settings as files, its layout, and our numbers beside its own."""

from __future__ import annotations

from blackbox_lb.jobs.paper.configuration import Configuration, load_configuration
from blackbox_lb.jobs.paper.results import LoraResult, Reproduction, load_lora
from blackbox_lb.jobs.paper.run import BenchmarkRun, rewards_of
from blackbox_lb.jobs.paper.scaling import Scaled, scaled

__all__ = [
    "BenchmarkRun",
    "Configuration",
    "LoraResult",
    "Reproduction",
    "Scaled",
    "load_configuration",
    "load_lora",
    "rewards_of",
    "scaled",
]
