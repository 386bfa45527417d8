"""A bias of few entries: the choice of tokens and values, as fractions or whole numbers."""
