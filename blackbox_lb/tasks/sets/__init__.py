"""A task: prompts in splits, with a reward. The built-in one is capitals of countries."""
