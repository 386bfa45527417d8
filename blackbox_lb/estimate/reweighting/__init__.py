"""Estimates for one policy from logged completions of another: importance weights and their
diagnostics.
"""
