"""How the self-test asks: its requests, its budget, and the form of what it finds."""
