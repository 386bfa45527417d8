"""``blb eval``: a bias beside the base and beside what a user would try instead, on the same prompts."""
