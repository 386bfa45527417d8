"""``projection``: reward-weighted maximum likelihood and its standard errors."""
