"""What estimators read: rollouts, recipes with their settings, checked arrays and thresholds."""
