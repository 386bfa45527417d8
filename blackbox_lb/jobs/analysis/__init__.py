"""``blb analyze``: what a bias does to each token that is generated under it."""

from __future__ import annotations

from blackbox_lb.jobs.analysis.document import Analysis
from blackbox_lb.jobs.analysis.run import analyze

__all__ = ["Analysis", "analyze"]
