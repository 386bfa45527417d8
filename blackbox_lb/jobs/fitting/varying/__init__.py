"""Biases that vary with the prompt or with the phase of a completion, each learned beside the fixed
one.
"""
