"""``blb eval``: a bias beside the base and beside what one would do instead, on the same
prompts.
"""
