"""Collection by batch: requests and answers go in files, hours apart and at a lower price."""

from blackbox_lb.extras.batches.plan import OfflineSession
from blackbox_lb.extras.batches.record import BatchRecord, Jobs
from blackbox_lb.extras.batches.run import Pending, cancel_batches, collect_batches

__all__ = ["BatchRecord", "Jobs", "OfflineSession", "Pending", "cancel_batches", "collect_batches"]
