"""``blb compile``: a bias within a provider's limits, the gain that it keeps, and its plot."""
