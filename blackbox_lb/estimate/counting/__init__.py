"""The estimator that counts sampled tokens, by sums over any sharding (``ips``)."""
