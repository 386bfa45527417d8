"""Estimates for one policy from logged completions of another: importance weights, their diagnostics, pooling of rounds."""
