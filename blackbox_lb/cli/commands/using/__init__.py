"""Commands that read, send or pass on a learned bias."""
