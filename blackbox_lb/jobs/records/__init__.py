"""Records beside a run's results: its settings, its numbers, and their origin."""
