"""The choice of a candidate, by fresh completions of the validation prompts."""
