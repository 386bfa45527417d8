"""A run: its folder, its trials, its plan, its result; what the command line and Python share."""
