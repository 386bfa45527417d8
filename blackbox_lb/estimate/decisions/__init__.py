"""Decisions of one token: the effect of a bias on each is known from the lists, without a
request.
"""
