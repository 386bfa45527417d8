"""``blb compile``: a bias within a provider's limits, and the gain that it keeps."""
