"""What came out of a run, as one page for somebody who will never open a terminal."""

from __future__ import annotations

from blackbox_lb.jobs.report.data import Run, read_run
from blackbox_lb.jobs.report.page import render, write_report

__all__ = ["Run", "read_run", "render", "write_report"]
