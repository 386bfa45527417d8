"""``blb fit``: from prompts and a reward to a bias with its verdict."""

from __future__ import annotations

from blackbox_lb.fitting.plan import FitPlan
from blackbox_lb.fitting.result import FitResult
from blackbox_lb.fitting.run import fit

__all__ = ["FitPlan", "FitResult", "fit"]
