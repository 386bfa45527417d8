"""``blb eval``: judge biases on fresh completions, beside what one would do instead."""

from __future__ import annotations

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.grouped import AMOUNT, COUNT, argument, command, option
from blackbox_lb.cli.options import TrialOptions, VerboseOptions
from blackbox_lb.jobs.plan.setting import HelpGroup
from blackbox_lb.jobs.plan.shared import DecisionSettings, TaskSettings

EVAL_PLAN = "blackbox_lb.jobs.evaluation.run:EvalPlan"


class EvalOptions(TaskSettings, DecisionSettings, TrialOptions, VerboseOptions):
    biases: tuple[str, ...] = argument(
        metavar="[[NAME=]BIAS]...", nargs=-1, shell_complete=bias_files
    )
    save: bool = option(HelpGroup.FIRST, "Write each bias's verdict into its file.")
    rivals: bool = option(
        HelpGroup.FIRST,
        "Try what one would do instead of a bias, as it suits the task. Labels: labels only, batch"
        " calibration, 4 examples, a classifier by words. Calls of tools: an instruction, and a"
        " threshold with 2 requests. Text: an instruction by the reward, and a lower temperature.",
    )
    test_samples: int = option(
        HelpGroup.JUDGING,
        "Completions a test prompt, setting and policy.",
        type=COUNT,
        sets=EVAL_PLAN,
        parameter="samples",
    )
    deploy: tuple[str, ...] = option(
        HelpGroup.JUDGING,
        "Judge at this setting, as in temperature=0.5 or greedy. Repeatable. [default: those at"
        " which BIAS was judged; without a verdict temperature=1 and greedy]",
    )
    rival: tuple[str, ...] = option(
        HelpGroup.JUDGING,
        "Try this instead of a bias, alone and together with each BIAS. Repeatable. prompt:TEXT: an"
        " instruction, added to the prompt. temperature:T: a lower one (of wanted shares any)."
        " max-tokens:N: another limit of a completion. best-of:N: the likeliest of several"
        " completions (mean logprob under the base model). words:FILE:NATS: so many nats on every"
        " spelling that is one token of each line of FILE. close:NATS: on the first token of the"
        " text that ends --thinking. Of a decision: labels-only (all else forbidden by the"
        " provider's highest bias); threshold (the labels' logprobs, each with an offset learned"
        " from the training answers); calibrate:contextual or calibrate:batch (their probabilities"
        " divided by those without content, or by their mean over the test prompts); few-shot:K"
        " (training examples before the prompt); classifier:tfidf or"
        " classifier:embedding:NAME_OR_FOLDER (without the model, learned on the training rows;"
        " needs the extra clusters). Of wanted shares: asked-shares (in words, in the prompt);"
        " drawn-label (drawn here for each completion, and asked for in the prompt).",
        metavar="NAME[:VALUE]",
    )
    effect: float | None = option(
        HelpGroup.JUDGING,
        "Say how many prompts would show such a difference of the reward.",
        type=AMOUNT,
        sets=EVAL_PLAN,
    )


@command(
    "eval",
    EvalOptions,
    example="blb eval runs/train/bias.json --data train.jsonl --reward accuracy --rivals",
)
def eval_command(options: EvalOptions) -> None:
    """Judge bias files on fresh completions of the test prompts, all on the same prompts as the
    base.

    What one would do instead goes into the same table, alone and together with each BIAS: --rival
    names it, --rivals tries what suits the task. Where the answers are few labels, the output
    counts which label was said for which; with --reward distribution it has the wanted and the
    drawn share of each label, by group, too. Without BIAS, the rivals are compared with the base,
    before a fit costs anything. NAME is the name of a bias
    in the tables, by default the file's, or the folder's of a bias.json. A bias may come from
    another server of the same model: only the tokenizer must be the same. Writes evaluation.json
    into --out; a second run resumes there.
    """
    from blackbox_lb.cli.actions.eval import execute

    execute(options)
