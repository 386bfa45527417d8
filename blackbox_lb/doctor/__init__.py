"""The doctor: a live self-test that proves or disproves what a provider's profile claims, in under 100 cheap requests."""

from __future__ import annotations

from blackbox_lb.doctor.examine import examine, most_requests, most_tokens
from blackbox_lb.doctor.findings import Finding, Report
from blackbox_lb.doctor.save import check_target, save_profile

__all__ = ["Finding", "Report", "check_target", "examine", "most_requests", "most_tokens", "save_profile"]
