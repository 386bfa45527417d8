"""Options that several commands share, as objects for their actions, and shell completions beyond
click's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from blackbox_lb.cli.grouped import AMOUNT, COUNT, HelpGroup, literal, option, options
from blackbox_lb.jobs.runs.names import TOP_LOGPROBS
from blackbox_lb.providers.packaged import profile_names

if TYPE_CHECKING:
    from blackbox_lb.api.drift import OnDrift
    from blackbox_lb.types import Endpoint

NO_BIAS = frozenset({"analysis.json", "evaluation.json", "result.json"})
"""Other JSON files of a run's folder."""

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def known(names: Callable[[], Iterable[str]]) -> Completer:
    """Complete one of ``names``; where none fits, any file."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        return _fitting(names(), incomplete)

    return complete


def task_names() -> list[str]:
    """The built-in tasks, and the prefixes of other names."""
    from blackbox_lb.tasks.load import BUILT_IN, HARNESS

    return [*BUILT_IN, HARNESS]


def reward_names() -> list[str]:
    """The rewards, each up to the part that differs between users."""
    from blackbox_lb.tasks.rewards.reward import REWARDS

    names = [re.split("PATTERN|FILE|NAME|HOST", name, maxsplit=1)[0] for name in REWARDS]
    return [name for name in names if name != "module:function"]


def bias_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete a bias file here or in the runs below; where none fits, any file."""
    paths = [*Path().glob("*.json"), *Path().glob("runs/*/*.json")]
    return _fitting(
        sorted(path.as_posix() for path in paths if path.name not in NO_BIAS), incomplete
    )


def _fitting(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    fit = [CompletionItem(name) for name in names if name.startswith(incomplete)]
    return fit or [CompletionItem(incomplete, type="file")]


AT = "Another operating point of BIAS, as in precision=.9, recall=.8 or rate=.2: UNVERIFIED."
"""The help of --at."""
FIT_PLAN = "blackbox_lb.jobs.fitting.plan:FitPlan"
CONNECT = "blackbox_lb.api.connect:connect"
FIRST = "blackbox_lb.tasks.sets.task:Task.first"
HARNESS = "blackbox_lb.tasks.sets.task:HarnessOptions"
LOAD_TASK = "blackbox_lb.tasks.load:load_task"
PARSE_REWARD = "blackbox_lb.tasks.rewards.reward:parse_reward"
SPENDING = "blackbox_lb.api.limits.budget:SpendingLimits"
SWEEP = "blackbox_lb.estimate.inputs.recipe:Sweep"
TRIALS = "blackbox_lb.rollouts.judging.trials:Trials"
"""What the options below set."""


def provider(group: HelpGroup | None, unless: str, text: str = "", **more: Any) -> Any:
    """The option --provider; ``unless`` is shown as its default, ``text`` before the names."""
    names = ", ".join(profile_names())
    explanation = f"{text}{names}, or a path to your own TOML. [default: {unless}]"
    return option(group, explanation, shell_complete=known(profile_names), **more)


def labels(decision: str = "a decision") -> Any:
    """The option --labels; ``decision`` is whose they are."""
    return option(
        HelpGroup.TASK,
        f"Labels of {decision}, as in yes,no. [default: the answers of --data, where they are few]",
        metavar="LABEL,...",
    )


def decide() -> Any:
    """The option --decide."""
    return option(
        HelpGroup.TASK,
        "A decision for or against a way to begin the completion: calls-tool, or"
        " begins-with:TEXT,... The column want (or answer) says what each prompt wants: call or"
        " answer; begins or other.",
        metavar="OPENING",
        sets=LOAD_TASK,
    )


def limit(**more: Any) -> Any:
    """The option --limit on the training prompts."""
    return option(HelpGroup.SAMPLING, "Use only the first N training prompts.", type=COUNT, **more)


@options
class ServerOptions:
    """The model of a provider and its address; None stands for the provider's own."""

    model: str | None = option(
        HelpGroup.FIRST,
        "Model name; for local a .gguf path or a hub name. [default: the server's only model]",
        sets=CONNECT,
    )
    base_url: str | None = option(
        HelpGroup.FIRST,
        "Address of the API, with its /v1. [default: the provider's]",
        sets=CONNECT,
    )
    endpoint: Endpoint | None = option(
        HelpGroup.MODEL,
        "Where to collect. [default: the provider's first]",
        type=literal("blackbox_lb.types:Endpoint"),
        sets=CONNECT,
    )
    tokenizer: str | None = option(
        HelpGroup.MODEL,
        "Vocabulary, where the provider gives no token ids: o200k_base, cl100k_base, a"
        " tokenizer.json or .gguf file. [default: by the model's name]",
        sets=CONNECT,
    )
    concurrency: int | None = option(
        HelpGroup.MODEL,
        "Requests in flight. [default: the provider's number, and more while that is faster]",
        type=COUNT,
        sets=(CONNECT, TRIALS),
    )


@options
class ModelOptions(ServerOptions):
    provider: str = provider(
        HelpGroup.FIRST, "local", default="local", show_default=False, sets=CONNECT
    )


@options
class TaskOptions:
    """Prompts with their answers, the reward, and how long a completion may be, in tokens."""

    reward: str = option(
        HelpGroup.FIRST,
        "exact-match, contains, regex:PATTERN, json-schema:FILE, accuracy, log-accuracy, length,"
        " tokens, correct-and-short, accuracy-gated-length, accuracy-minus-length, avoid:FILE,"
        " script:NAME, marks:FILE, calls[:NAME], arguments-valid, distribution[:COLUMN],"
        " module:function, https://HOST/PATH, or judge:FILE.toml.",
        shell_complete=known(reward_names),
        required=True,
    )
    correct: str | None = option(
        HelpGroup.TASK,
        "What counts as correct: exact-match, contains, math or regex:PATTERN. [default: the"
        " task's]",
        recorded=True,
    )
    thinking: str | None = option(
        HelpGroup.TASK,
        "The model's thinking, which is measured then: inside:OPEN..CLOSE, or until:TEXT where it"
        " begins at once.",
        metavar="PHASE",
        sets=PARSE_REWARD,
        recorded=True,
    )
    count: str = option(
        HelpGroup.TASK,
        "What rewards by length count: all tokens, those of the thinking, or those of the answer"
        " after it.",
        type=click.Choice(("all", "thinking", "answer")),
        sets=PARSE_REWARD,
        recorded=True,
    )
    task: str | None = option(
        HelpGroup.FIRST,
        "A built-in task, capitals or continents; or lm-eval:NAME, a task of"
        " lm-evaluation-harness.",
        shell_complete=known(task_names),
        sets=LOAD_TASK,
        parameter="spec",
    )
    data: Path | None = option(
        HelpGroup.FIRST,
        "JSONL, JSON, CSV or Parquet with prompt (or messages) and answer; a folder; or"
        " hf:OWNER/NAME[/CONFIG][@SPLIT].",
        sets=LOAD_TASK,
    )
    max_tokens: int | None = option(
        HelpGroup.FIRST, "Longest completion, in tokens. [default: the task's]", type=COUNT
    )
    prompt_column: str = option(
        HelpGroup.TASK,
        "Column of --data with the prompt, or a path into one: question.stem.",
        sets=LOAD_TASK,
    )
    answer_column: str = option(HelpGroup.TASK, "Column with the accepted answers.", sets=LOAD_TASK)
    messages_column: str = option(HelpGroup.TASK, "Column with chat messages.", sets=LOAD_TASK)
    prompt_template: str | None = option(
        HelpGroup.TASK,
        'Prompt put together from columns: "Question: {question} Answer:".',
        sets=LOAD_TASK,
    )
    system: str | None = option(
        HelpGroup.TASK, "A system message before each prompt of --data that has none."
    )
    tools: Path | None = option(
        HelpGroup.TASK,
        "JSON file of the functions that the model may call, as OpenAI's tools, for each prompt."
        " [default: the column tools]",
    )
    field: str | None = option(
        HelpGroup.TASK,
        "Path to the array of rows in a .json file that is one object: examples.",
        sets=LOAD_TASK,
    )
    prefill: bool = option(
        HelpGroup.TASK,
        "Messages may end with a turn of the assistant, which is sent: the completion goes on from"
        " it.",
        sets=LOAD_TASK,
    )
    validation_data: Path | None = option(
        HelpGroup.TASK,
        "Prompts to choose on. [default: part of --data]",
        sets=LOAD_TASK,
        parameter="validation",
    )
    test_data: Path | None = option(
        HelpGroup.TASK,
        "Prompts to judge on. [default: part of --data]",
        sets=LOAD_TASK,
        parameter="test",
    )
    validation_limit: int | None = option(
        HelpGroup.TASK,
        "Use only the first N validation prompts.",
        type=COUNT,
        sets=FIRST,
        parameter="validation",
    )
    test_limit: int | None = option(
        HelpGroup.TASK,
        "Use only the first N test prompts.",
        type=COUNT,
        sets=FIRST,
        parameter="test",
    )
    data_dir: Path | None = option(
        HelpGroup.TASK,
        "Folder with lm-eval:NAME's data, a file a split: train.jsonl, test.jsonl. [default: the"
        " hub]",
        sets=HARNESS,
    )
    num_fewshot: int | None = option(
        HelpGroup.TASK,
        "Examples before each question. [default: lm-eval's]",
        type=click.IntRange(0),
        sets=HARNESS,
    )
    filter: str | None = option(
        HelpGroup.TASK,
        "Filter of lm-eval:NAME that extracts the answer. [default: its first]",
        sets=HARNESS,
    )
    metric: str | None = option(
        HelpGroup.TASK,
        "Metric of lm-eval:NAME that says what is correct. [default: its first]",
        sets=HARNESS,
    )
    validation_size: int | None = option(
        HelpGroup.TASK,
        "Documents of lm-eval:NAME sampled from train to choose on. [default: 20 %, at most 500]",
        type=COUNT,
        sets=HARNESS,
    )


@options
class SamplingOptions:
    top_logprobs: int | None = option(
        HelpGroup.SAMPLING,
        f"Alternatives listed a token, 0 for no logprobs at all. [default: {TOP_LOGPROBS}, or the"
        " provider's limit]",
        type=click.IntRange(0),
    )
    seed: int | None = option(
        HelpGroup.SAMPLING,
        "Sent with every request, so that a run can be repeated.",
        type=click.IntRange(0),
        sets=(TRIALS, SWEEP),
    )


@options
class SpendingOptions:
    """The limits on a command's spending; None: no limit."""

    max_requests: int | None = option(
        HelpGroup.LIMITS,
        "Stop before one more request would be sent.",
        type=COUNT,
        sets=SPENDING,
        parameter="requests",
    )
    max_tokens_total: int | None = option(
        HelpGroup.LIMITS,
        "Stop before prompts and completions together could pass so many tokens.",
        type=COUNT,
        sets=SPENDING,
        parameter="tokens",
    )
    max_cost: float | None = option(
        HelpGroup.FIRST,
        "Stop before the price could pass so many US dollars.",
        type=AMOUNT,
        metavar="USD",
        sets=SPENDING,
        parameter="dollars",
    )
    prices: Path | None = option(
        HelpGroup.LIMITS, "TOML with prices of your own, which go before those that come along."
    )


@options
class LimitOptions(SpendingOptions):
    """The limits on a command's spending, whether it asks first, and its rule for changes under
    way.
    """

    price: str | None = option(
        HelpGroup.LIMITS, "PROMPT,COMPLETION in US dollars for a million tokens, as in 0.15,0.60."
    )
    yes: bool = option(
        HelpGroup.LIMITS, "Do not ask on a terminal before the first request that costs money."
    )
    on_drift: OnDrift | None = option(
        HelpGroup.LIMITS,
        "Stop when another model or system answers, or note it and go on. [default: stop; systems"
        " of a provider with many: note]",
        type=literal("blackbox_lb.api.drift:OnDrift"),
    )
    restart: bool = option(
        HelpGroup.LIMITS,
        "Go on in --out with other settings than those of a run that was not finished, or whose"
        " results lie there; these are put aside.",
    )


@options
class PrintOptions:
    as_json: bool = option(HelpGroup.OUTPUT, "Print the result as JSON on stdout.", "--json")
    quiet: bool = option(HelpGroup.OUTPUT, "No progress and no remarks.")


@options
class VerboseOptions:
    verbose: bool = option(
        HelpGroup.OUTPUT, "Print every table and number behind the conclusion, too."
    )


@options
class OutputOptions(PrintOptions):
    """The place of results and the amount of output."""

    out: Path | None = option(
        HelpGroup.FIRST, "Folder of the run; running again resumes. [default: runs/TASK]"
    )
    store: Path | None = option(HelpGroup.OUTPUT, "Rollout store. [default: rollouts.db in --out]")


@options
class TrialOptions(ModelOptions, SamplingOptions, LimitOptions, OutputOptions):
    """All options for drawing completions, without the task."""
