"""``blb eval``: a bias beside the base and beside what a user would try instead, on the same prompts."""

from __future__ import annotations

from blackbox_lb.evaluation.document import Evaluation
from blackbox_lb.evaluation.run import EvalPlan, evaluate

__all__ = ["EvalPlan", "Evaluation", "evaluate"]
