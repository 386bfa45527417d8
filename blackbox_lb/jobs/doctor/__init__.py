"""The doctor: a live self-test that proves or disproves what a provider's profile claims, in under 100 cheap requests."""

from __future__ import annotations

from blackbox_lb.jobs.doctor.asking.findings import Report, RowFinding
from blackbox_lb.jobs.doctor.run import examine, most_requests, most_tokens
from blackbox_lb.jobs.doctor.save import check_target, save_profile

__all__ = ["Report", "RowFinding", "check_target", "examine", "most_requests", "most_tokens", "save_profile"]
