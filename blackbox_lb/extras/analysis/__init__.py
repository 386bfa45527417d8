"""``blb analyze``: the effect of a bias on each token that is generated under it."""
