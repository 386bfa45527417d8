"""A bias of few entries: which tokens to list and with which values, fractions or whole numbers."""
