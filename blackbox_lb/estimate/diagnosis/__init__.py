"""Why a fit helped or did not: findings in plain words, each with its numbers and remedy."""
