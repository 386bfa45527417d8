"""Rivals: the alternatives to a bias where the answers are few labels. ``table`` lists them."""
