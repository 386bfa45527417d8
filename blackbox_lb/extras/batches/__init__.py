"""Collection by batch: requests go out in files and their answers come back in files, hours later,
at a lower price.
"""

from blackbox_lb.extras.batches.offline import OfflineSession
from blackbox_lb.extras.batches.record import BatchRecord, Jobs
from blackbox_lb.extras.batches.run import Pending, cancel_batches, collect_batches

__all__ = ["BatchRecord", "Jobs", "OfflineSession", "Pending", "cancel_batches", "collect_batches"]
