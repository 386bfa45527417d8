"""A store's upkeep: checking, compacting, and rescuing a damaged one."""
