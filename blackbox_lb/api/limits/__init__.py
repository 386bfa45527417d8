"""How much and how fast: budgets, requests in flight, bounded groups of workers, and Ctrl-C."""
