"""``blb check``: whether a bias can help, before anything costs money."""

from __future__ import annotations

from pathlib import Path

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.grouped import PATH, argument, command
from blackbox_lb.cli.options import TrialOptions, VerboseOptions
from blackbox_lb.jobs.plan.shared import DecisionSettings, TaskSettings


class CheckOptions(TaskSettings, DecisionSettings, TrialOptions, VerboseOptions):
    bias: Path | None = argument(
        metavar="[BIAS]", required=False, type=PATH, shell_complete=bias_files
    )


@command(
    "check",
    CheckOptions,
    example="blb check --provider vllm --data train.jsonl --reward accuracy --max-tokens 4",
)
def check_command(options: CheckOptions) -> None:
    """Say whether a bias can mend a decision, before a fit is paid for.

    Looks at the greedy answers of at most 60 training prompts and at one list of next tokens each,
    120 short requests at most, and gives one of three answers: a fixed bias can, with the share of
    right answers to expect; only one that depends on the prompt can; or none can, and why (already
    right, the right answer is not listed, the model does not distinguish the labels). Lists tell of
    the first token: where greedy answers that begin with a label are wrong by what follows it, it
    says so, and what to do. blb fit --learn-from answers reads the same lists from the store of
    --out.

    With --decide only the lists are asked for, and the answers are: one shift of the opening's
    tokens can mend the decision; it can choose another point by a --goal, but is not shown to be
    right more often; or the model does not rank the prompts (its AUC).

    With BIAS, a file with an operating point: whether that still holds on these prompts, one token
    each, 400 at most. It compares the margins with those that the point was chosen on (DRIFTED or
    STEADY), and rows with an answer check its promise (HOLDS, NOT SHOWN or BROKEN). Rows without
    an answer will do, with a --reward that needs none, such as tokens. Of the data of the fit
    itself only the test prompts are asked.
    """
    from blackbox_lb.cli.actions.check import execute

    execute(options)
