"""Which candidate to take: what is tried, within what the provider accepts, for which goal."""
