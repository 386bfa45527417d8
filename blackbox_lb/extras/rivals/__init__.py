"""Rivals: the alternatives to a bias where the answers are few labels. One module each, one row in
``table``.
"""
