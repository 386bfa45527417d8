"""``blb eval``: judge biases on fresh completions, beside the alternatives to a bias."""

from __future__ import annotations

from blackbox_lb.cli.grouped import (
    AMOUNT,
    COUNT,
    HelpGroup,
    LateChoice,
    argument,
    command,
    option,
    options,
)
from blackbox_lb.cli.options import (
    TaskOptions,
    TrialOptions,
    VerboseOptions,
    bias_files,
    decide,
    labels,
)

EVAL_PLAN = "blackbox_lb.jobs.evaluation.run:EvalPlan"


@options
class EvalOptions(TaskOptions, TrialOptions, VerboseOptions):
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
    baseline_prompt: tuple[str, ...] = option(
        HelpGroup.JUDGING, "Try this instruction, added to the prompt, instead. Repeatable."
    )
    baseline_temperature: tuple[float, ...] = option(
        HelpGroup.JUDGING,
        "Try this lower temperature (of wanted shares: or a higher one) instead. Repeatable.",
    )
    baseline_max_tokens: tuple[int, ...] = option(
        HelpGroup.JUDGING, "Try this limit of a completion instead, lower or higher. Repeatable."
    )
    best_of: tuple[int, ...] = option(
        HelpGroup.JUDGING,
        "Try the likeliest of N completions (mean logprob under the base model) instead."
        " Repeatable.",
    )
    baseline_words: tuple[str, ...] = option(
        HelpGroup.JUDGING,
        "Try a hand list instead: so many nats, as in -2, on every spelling that is one token of"
        " each line of FILE. Repeatable.",
        metavar="FILE:NATS",
    )
    baseline_close: tuple[float, ...] = option(
        HelpGroup.JUDGING,
        "Try so many nats on the first token of the text that ends --thinking instead. Repeatable.",
    )
    labels: str | None = labels()
    decide: str | None = decide()
    labels_only: bool = option(
        HelpGroup.JUDGING,
        "Of a decision: forbid everything but the labels instead, by the provider's highest bias on"
        " their tokens.",
    )
    threshold: bool = option(
        HelpGroup.JUDGING,
        "Of a decision: decide here by the returned logprobs of the labels, each with an offset"
        " learned from the training answers, instead. For labels of one token the same as a bias on"
        " them with all else forbidden.",
    )
    calibrate: tuple[str, ...] = option(
        HelpGroup.JUDGING,
        "Of a decision: divide the labels' probabilities by those without content (contextual) or"
        " by their mean over the test prompts (batch) instead. Repeatable.",
        type=LateChoice(lambda: ("contextual", "batch")),
    )
    few_shot: tuple[int, ...] = option(
        HelpGroup.JUDGING,
        "Of a decision: put K training examples before the prompt instead. Repeatable.",
        type=COUNT,
        metavar="K",
    )
    classifier: tuple[str, ...] = option(
        HelpGroup.JUDGING,
        "Of a decision: classify without the model instead, by words (tfidf) or by an embedding"
        " model (embedding:NAME_OR_FOLDER), learned on the training rows. Needs the extra clusters."
        " Repeatable.",
    )
    asked_shares: bool = option(
        HelpGroup.JUDGING,
        "Of wanted shares: ask for them in words, added to the prompt, instead.",
    )
    drawn_label: bool = option(
        HelpGroup.JUDGING,
        "Of wanted shares: draw a label for each completion in this program and ask for it in the"
        " prompt instead.",
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

    The alternatives to a bias go into the same table, alone and together with each BIAS: an
    instruction, a lower temperature, fewer tokens, the best of several completions. Where the
    answers are few labels, also the labels alone, thresholds, calibration, examples and a
    classifier; the output then counts which label was said for which. With --reward distribution,
    also the shares in words and the label drawn in code; the output then has the wanted and the
    drawn share of each label, by group, too. Without BIAS, the
    alternatives are compared with the base, before a fit costs anything. NAME is the name of a bias
    in the tables, by default the file's, or the folder's of a bias.json. A bias may come from
    another server of the same model: only the tokenizer must be the same. Writes evaluation.json
    into --out; a second run resumes there.
    """
    from blackbox_lb.cli.actions.eval import execute

    execute(options)
