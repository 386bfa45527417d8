"""Rivals: what a user would do instead of a bias where the answers are few labels. One module each, one row in ``table``."""
