"""Commands that read, send or pass on a bias that was learned."""
