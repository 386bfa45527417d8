"""``blb analyze``: what a bias does to each token that is generated under it."""
