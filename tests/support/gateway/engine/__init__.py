"""The engine behind the gateway, and its completions as a provider would show them."""
