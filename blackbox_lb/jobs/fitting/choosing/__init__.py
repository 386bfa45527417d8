"""Which candidate is taken: what logged and fresh completions of the validation prompts say of each."""
