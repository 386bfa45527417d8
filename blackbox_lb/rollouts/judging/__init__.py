"""Fresh completions with and without a bias, and the verdict on them."""
