"""Decisions of one token: what a bias does to each is known from the lists, without a request."""
