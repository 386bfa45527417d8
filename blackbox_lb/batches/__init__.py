"""Collection by batch: requests go out in files and their answers come back in files, hours later, at a lower price."""

from __future__ import annotations

from blackbox_lb.batches.job import Job, Jobs
from blackbox_lb.batches.offline import OfflineSession
from blackbox_lb.batches.run import Pending, cancel_batches, collect_batches

__all__ = ["Job", "Jobs", "OfflineSession", "Pending", "cancel_batches", "collect_batches"]
