"""How each kind of endpoint lists tokens: one module a dialect, each from one answer's JSON to positions."""
