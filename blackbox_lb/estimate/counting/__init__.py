"""Estimators that count sampled tokens: sums that add up over any sharding (``ips``, ``snips``, ``ratio``)."""
