"""The inputs of estimators: rollouts, recipes with their settings, checked arrays and
thresholds.
"""
