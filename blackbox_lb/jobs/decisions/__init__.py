"""The fit of a decision: probabilities of options are read, mended and judged."""
