"""The choice of a candidate, by logged and fresh completions of the validation prompts."""
