"""``blb fit``: from prompts and a reward to a bias with its verdict."""
