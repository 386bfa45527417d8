"""``blb eval``: a bias beside the base and beside the alternatives to a bias, on the same
prompts.
"""
