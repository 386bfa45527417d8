"""A server that fails on purpose, in every way that was seen."""
