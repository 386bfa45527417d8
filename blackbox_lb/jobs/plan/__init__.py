"""What a user may set: each value is declared once, for the command line, blb.toml and Python."""
