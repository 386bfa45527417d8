"""Names of the files in a run's folder, and defaults that need no other module."""

STORE = "rollouts.db"
"""The rollout store inside a run's folder."""
RESULT = "result.json"
BIAS = "bias.json"
LEARNED = "learned.json"
EVALUATION = "evaluation.json"
ANALYSIS = "analysis.json"
REPORT = "report.html"
"""The page that ``blb report`` makes of a run's folder."""
FIT_FILES = (RESULT, BIAS, LEARNED, EVALUATION, ANALYSIS, REPORT)
"""What a fit writes into its folder, and what is about that; the most important first."""
RUNS = "runs"
"""The folder of all runs."""
TOP_LOGPROBS = 20
"""Alternatives that are listed for a token, where the provider lists as many."""
TEST_SAMPLES = 6
"""Completions of each test prompt at each setting."""
ABSTAIN_BELOW = 0.8
"""Calibrated probability below which a decision abstains by default: right in four of five."""
COLLECTING = ("tokens.id", "neutral")
"""Rows of a profile that completions, and lists of next tokens, need to be of use."""
SAMPLING_WITH_A_BIAS = (*COLLECTING, "bias")
