"""One room a command: from a plan to results and files."""
