"""``projection``: reward-weighted maximum likelihood, its solver, cross-validation and standard
errors.
"""
