"""``blb compile``: a bias made to fit a provider's limits, what that keeps, and its plot."""
