"""The settings that several commands share: the model, the prompts, the limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, Field, Strict

from blackbox_lb.api.drift import OnDrift
from blackbox_lb.jobs.plan.setting import CommaTexts, HelpGroup, Option, Settings, setting
from blackbox_lb.jobs.runs.names import TEST_SAMPLES, TOP_LOGPROBS
from blackbox_lb.literals import Endpoint

if TYPE_CHECKING:
    from blackbox_lb.tasks import Task
    from blackbox_lb.tasks.records.files import Rows
    from blackbox_lb.tasks.rewards.registry import RewardFunction

    AnyPath: TypeAlias = str | Path
    DataSource: TypeAlias = Rows | Task | None
    RowsSource: TypeAlias = Rows | None
    RewardSpec: TypeAlias = str | RewardFunction
    ToolsSource: TypeAlias = str | Path | Sequence[Mapping[str, Any]] | None
else:
    # What these may be is checked where they are read: the help needs none of their modules.
    AnyPath = Annotated[Path, Strict(False)]
    DataSource = Any
    RowsSource = Any
    RewardSpec = Any
    ToolsSource = Any

Counted: TypeAlias = Literal["all", "thinking", "answer"]


class ServerSettings(Settings):
    """The model of a provider and its address; None stands for the provider's own."""

    model: str | None = setting(
        None,
        HelpGroup.FIRST,
        "Model name; for local a .gguf path or a hub name. [default: the server's only model]",
    )
    base_url: str | None = setting(
        None, HelpGroup.FIRST, "Address of the API, with its /v1. [default: the provider's]"
    )
    endpoint: Endpoint | None = setting(
        None, HelpGroup.MODEL, "Where to collect. [default: the provider's first]"
    )
    tokenizer: str | None = setting(
        None,
        HelpGroup.MODEL,
        "Vocabulary, where the provider gives no token ids: o200k_base, cl100k_base or a"
        " tokenizer.json. [default: by the model's name]",
    )
    concurrency: int | None = setting(
        None,
        HelpGroup.MODEL,
        "Requests in flight. [default: the provider's number, and more while that is faster]",
        ge=1,
    )


PROVIDER_HELP = (
    "An API by its name (blb providers lists all), or a path to your own TOML. [default: {unless}]"
)


class ModelSettings(ServerSettings):
    """The provider with its model."""

    provider: str = setting(
        "local",
        HelpGroup.FIRST,
        PROVIDER_HELP.format(unless="local"),
        show_default=False,
    )

    @property
    def server(self) -> dict[str, Any]:
        """Arguments of ``connect``."""
        return {name: getattr(self, name) for name in ModelSettings.model_fields}


class TaskSettings(Settings):
    """Prompts with their answers, the reward, and how long a completion may be, in tokens."""

    reward: Annotated[
        RewardSpec,
        Option(
            HelpGroup.FIRST,
            kind=str,
            more={"required": True},
        ),
    ] = Field(
        description="What a completion is worth: accuracy, length, avoid:WORDS, ... (blb rewards"
        " lists all), or module:function of your own."
    )
    correct: str | None = setting(
        None,
        HelpGroup.TASK,
        "What counts as correct: exact-match, contains, math or regex:PATTERN. [default: the"
        " task's]",
        recorded=True,
    )
    thinking: str | None = setting(
        None,
        HelpGroup.TASK,
        "The model's thinking, which is measured then: inside:OPEN..CLOSE, or until:TEXT where it"
        " begins at once.",
        metavar="PHASE",
        recorded=True,
    )
    count: Counted = setting(
        "all",
        HelpGroup.TASK,
        "What rewards by length count: all tokens, those of the thinking, or those of the answer"
        " after it.",
        recorded=True,
    )
    task: str | None = setting(
        None,
        HelpGroup.FIRST,
        "A built-in task, capitals or continents; or lm-eval:NAME, a task of"
        " lm-evaluation-harness.",
    )
    data: DataSource = setting(
        None,
        HelpGroup.FIRST,
        "Table, JSON or Parquet with prompt (or messages) and answer; .txt with a prompt a line; a"
        " folder; or hf:OWNER/NAME[/CONFIG][@SPLIT].",
        kind=Path,
    )
    max_tokens: int | None = setting(
        None, HelpGroup.FIRST, "Longest completion, in tokens. [default: the task's]", ge=1
    )
    prompt_column: str = setting(
        "prompt",
        HelpGroup.FIRST,
        "Column of --data with the prompt, or a path into one: question.stem.",
    )
    answer_column: str = setting("answer", HelpGroup.FIRST, "Column with the accepted answers.")
    messages_column: str = setting("messages", HelpGroup.TASK, "Column with chat messages.")
    prompt_template: str | None = setting(
        None,
        HelpGroup.TASK,
        'Prompt put together from columns: "Question: {question} Answer:".',
    )
    system: str | None = setting(
        None, HelpGroup.TASK, "A system message before each prompt of --data that has none."
    )
    tools: ToolsSource = setting(
        None,
        HelpGroup.TASK,
        "JSON file of the functions that the model may call, as OpenAI's tools, for each prompt."
        " [default: the column tools]",
        kind=Path,
    )
    field: str | None = setting(
        None,
        HelpGroup.TASK,
        "Path to the array of rows in a .json file that is one object: examples.",
    )
    prefill: bool = setting(
        False,
        HelpGroup.TASK,
        "Messages may end with a turn of the assistant, which is sent: the completion goes on from"
        " it.",
    )
    validation_data: RowsSource = setting(
        None, HelpGroup.TASK, "Prompts to choose on. [default: part of --data]", kind=Path
    )
    test_data: RowsSource = setting(
        None, HelpGroup.TASK, "Prompts to judge on. [default: part of --data]", kind=Path
    )
    validation_limit: int | None = setting(
        None, HelpGroup.TASK, "Use only the first N validation prompts.", ge=1
    )
    test_limit: int | None = setting(
        None, HelpGroup.TASK, "Use only the first N test prompts.", ge=1
    )
    data_dir: AnyPath | None = setting(
        None,
        HelpGroup.TASK,
        "Folder with lm-eval:NAME's data, a file a split: train.jsonl, test.jsonl. [default: the"
        " hub]",
    )
    num_fewshot: int | None = setting(
        None, HelpGroup.TASK, "Examples before each question. [default: lm-eval's]", ge=0
    )
    filter: str | None = setting(
        None,
        HelpGroup.TASK,
        "Filter of lm-eval:NAME that extracts the answer. [default: its first]",
    )
    metric: str | None = setting(
        None,
        HelpGroup.TASK,
        "Metric of lm-eval:NAME that says what is correct. [default: its first]",
    )
    validation_size: int | None = setting(
        None,
        HelpGroup.TASK,
        "Rows to choose on, drawn from those that are no test rows. [default: 2 of 7, or all of"
        " them by cross-fitting where lists choose between labels of few rows; of lm-eval:NAME"
        " 20 %, at most 500]",
        ge=1,
    )


class OpeningSettings(Settings):
    """A decision between a way to begin and everything else."""

    decide: str | None = setting(
        None,
        HelpGroup.TASK,
        "A decision for or against a way to begin the completion: calls-tool, or"
        " begins-with:TEXT,... The column want (or answer) says what each prompt wants: call or"
        " answer; begins or other.",
        metavar="OPENING",
    )


class DecisionSettings(OpeningSettings):
    """The labels of a decision."""

    labels: CommaTexts | None = setting(
        None,
        HelpGroup.TASK,
        "Labels of a decision, as in yes,no. [default: the answers of --data, where they are few]",
        kind=str,
        metavar="LABEL,...",
        multiple=False,
    )


class CollectionSettings(Settings):
    """The completions of the training prompts."""

    samples_per_prompt: int = setting(10, HelpGroup.FIRST, "Completions a training prompt.", ge=1)
    limit: int | None = setting(
        None, HelpGroup.SAMPLING, "Use only the first N training prompts.", ge=1
    )


class JudgingSettings(Settings):
    """The completions of the test prompts."""

    test_samples: int = setting(
        TEST_SAMPLES, HelpGroup.JUDGING, "Completions a test prompt, setting and policy.", ge=1
    )


class SamplingSettings(Settings):
    """What is asked for with every completion."""

    top_logprobs: int | None = setting(
        None,
        HelpGroup.SAMPLING,
        f"Alternatives listed a token, 0 for no logprobs at all. [default: {TOP_LOGPROBS}, or the"
        " provider's limit]",
        ge=0,
    )
    seed: int | None = setting(
        None,
        HelpGroup.SAMPLING,
        "Sent with every request, so that a run can be repeated.",
        ge=0,
    )


class SpendingSettings(Settings):
    """The limits on a command's spending; None: no limit."""

    max_requests: int | None = setting(
        None, HelpGroup.LIMITS, "Stop before one more request would be sent.", ge=1
    )
    max_tokens_total: int | None = setting(
        None,
        HelpGroup.LIMITS,
        "Stop before prompts and completions together could pass so many tokens.",
        ge=1,
    )
    max_cost: float | None = setting(
        None,
        HelpGroup.FIRST,
        "Stop before the price could pass so many US dollars.",
        gt=0,
        metavar="USD",
    )
    prices: AnyPath | None = setting(
        None,
        HelpGroup.LIMITS,
        "TOML with prices of your own, which go before those that come along.",
    )

    @property
    def price_table(self) -> Path | None:
        """The file of ``prices``."""
        return None if self.prices is None else Path(self.prices)


def _price(value: str) -> str:
    """``value``, which is a price. Raises InputError: it is none."""
    from blackbox_lb.providers.prices import parse_prices  # needed when there is a price

    parse_prices(value)
    return value


class LimitSettings(SpendingSettings):
    """The limits on spending, and the price."""

    price: Annotated[str, AfterValidator(_price)] | None = setting(
        None,
        HelpGroup.LIMITS,
        "PROMPT,COMPLETION in US dollars for a million tokens, as in 0.15,0.60.",
    )


class QuietSettings(Settings):
    """Whether anything is said on the way."""

    quiet: bool = setting(False, HelpGroup.OUTPUT, "No progress and no remarks.")


class FolderSettings(QuietSettings):
    """The place of results."""

    out: AnyPath | None = setting(
        None, HelpGroup.FIRST, "Folder of the run; running again resumes. [default: runs/TASK]"
    )
    store: AnyPath | None = setting(
        None, HelpGroup.OUTPUT, "Rollout store. [default: rollouts.db in --out]"
    )

    @property
    def folder(self) -> Path | None:
        """The folder of ``out``."""
        return None if self.out is None else Path(self.out)

    @property
    def store_file(self) -> Path | None:
        """The file of ``store``."""
        return None if self.store is None else Path(self.store)


class TrialSettings(ModelSettings, SamplingSettings, LimitSettings, FolderSettings):
    """Everything for drawing completions, without the task."""

    on_drift: OnDrift | None = setting(
        None,
        HelpGroup.LIMITS,
        "Stop when another model or system answers, or note it and go on. [default: stop; systems"
        " of a provider with many: note]",
    )
    restart: bool = setting(
        False,
        HelpGroup.LIMITS,
        "Go on in --out with other settings than those of a run that was not finished, or whose"
        " results lie there; these are put aside.",
    )
