"""A store's upkeep: checking, and rescuing a damaged one."""
