"""Estimators that count sampled tokens, by sums over any sharding (``ips``, ``ratio``)."""
