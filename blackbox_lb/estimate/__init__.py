"""From scored rollouts to one logit-bias vector: numpy and scipy only, no I/O."""
