"""A store's upkeep: checking, compacting, and saving what a damaged one still holds."""
