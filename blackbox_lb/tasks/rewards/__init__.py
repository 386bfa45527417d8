"""Rewards: matching, formulas, JSON schemas, mathematics, a judge, an endpoint, or a user's own
function.
"""
