"""The choice of a candidate: the settings tried, the provider's limits, the goal."""
