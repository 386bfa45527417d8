"""What a run leaves beside its results: its settings, its numbers, and where each came from."""
