"""Long lists of logprobs read from an answer's bytes into arrays, without a Python object for each
alternative.
"""
