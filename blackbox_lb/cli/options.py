"""Options that several commands share: which model, which task, how to sample, how to print."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar, get_args

import click

from blackbox_lb.bias import Bias
from blackbox_lb.cli.accounts import accounted
from blackbox_lb.cli.terminal import reporter
from blackbox_lb.compile import check_limits
from blackbox_lb.connection import connect
from blackbox_lb.drift import ON_DRIFT
from blackbox_lb.errors import InputError, ProfileError
from blackbox_lb.forecast import Forecast, Stage
from blackbox_lb.profiles import profile_names
from blackbox_lb.session import Session
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, Task, load_task, parse_reward
from blackbox_lb.tasks.harness import HarnessOptions
from blackbox_lb.trials import Trials
from blackbox_lb.types import Endpoint

__all__ = [
    "connect_to",
    "count_option",
    "limit_options",
    "load",
    "model_options",
    "open_trials",
    "output_options",
    "rollouts_option",
    "run_folder",
    "sampling_options",
    "spending_options",
    "task_options",
]

F = TypeVar("F", bound=Callable[..., Any])
TOP_LOGPROBS = 20
COLLECTING = ("tokens.id", "neutral")
"""Rows of a profile without which a completion teaches nothing."""
SAMPLING_WITH_A_BIAS = (*COLLECTING, "bias")
COLUMNS = ("prompt_column", "answer_column", "messages_column", "prompt_template")
STORE = "rollouts.db"
"""The rollout store inside a run's folder."""


def _together(*options: Callable[[Any], Any]) -> Callable[[F], F]:
    def decorate(function: F) -> F:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate


def count_option(name: str, default: int, text: str) -> Callable[[F], F]:
    """An option that counts completions, from 1."""
    return click.option(name, type=click.IntRange(1), default=default, show_default=True, help=text)


def model_options(provider: str | None = "local") -> Callable[[F], F]:
    """Which model to call, and where; ``provider``: the default, None for that of a bias."""
    return _together(
        click.option(
            "--provider",
            default=provider,
            show_default=provider or "the bias's own",
            help=f"{', '.join(profile_names())}, or a path to your own TOML.",
        ),
        click.option(
            "--model", help="Model name; for local a .gguf path or a hub name. [default: the server's only model]"
        ),
        click.option("--base-url", help="Address of the API, with its /v1. [default: the provider's]"),
        click.option(
            "--endpoint",
            type=click.Choice(get_args(Endpoint)),
            help="Where to collect. [default: the provider's first]",
        ),
        click.option(
            "--tokenizer",
            help="Vocabulary, where the provider tells no token ids: o200k_base, cl100k_base, a tokenizer.json or .gguf file. "
            "[default: by the model's name]",
        ),
        click.option("--concurrency", type=click.IntRange(1), help="Requests in flight. [default: the provider's]"),
    )


def task_options(*, reward: bool = True) -> Callable[[F], F]:
    """Prompts, answers and the reward; without ``reward`` none is asked for."""
    return _together(
        click.option("--task", help="A built-in task: capitals; or lm-eval:NAME, a task of lm-evaluation-harness."),
        click.option(
            "--data",
            type=click.Path(path_type=Path),
            help="JSONL, CSV or Parquet with prompt (or messages) and answer; a folder; or hf:OWNER/NAME[/CONFIG][@SPLIT].",
        ),
        click.option("--prompt-column", default="prompt", show_default=True, help="Column of --data with the prompt."),
        click.option("--answer-column", default="answer", show_default=True, help="Column with the accepted answers."),
        click.option("--messages-column", default="messages", show_default=True, help="Column with chat messages."),
        click.option("--prompt-template", help='Prompt put together from columns: "Question: {question} Answer:".'),
        click.option(
            "--validation-data", type=click.Path(path_type=Path), help="Prompts to choose on. [default: part of --data]"
        ),
        click.option(
            "--test-data", type=click.Path(path_type=Path), help="Prompts to judge on. [default: part of --data]"
        ),
        click.option("--validation-limit", type=click.IntRange(1), help="Use only the first N validation prompts."),
        click.option("--test-limit", type=click.IntRange(1), help="Use only the first N test prompts."),
        click.option(
            "--data-dir",
            type=click.Path(path_type=Path),
            help="Folder with lm-eval:NAME's data, a file a split: train.jsonl, test.jsonl. [default: the hub]",
        ),
        click.option(
            "--num-fewshot", type=click.IntRange(0), help="Examples before each question. [default: lm-eval's]"
        ),
        click.option("--filter", help="Filter of lm-eval:NAME that extracts the answer. [default: its first]"),
        click.option("--metric", help="Metric of lm-eval:NAME that says what is correct. [default: its first]"),
        click.option(
            "--validation-size",
            type=click.IntRange(1),
            help="Documents of lm-eval:NAME sampled from train to choose on. [default: 20 %, at most 500]",
        ),
        click.option(
            "--reward",
            required=reward,
            hidden=not reward,
            help="exact-match, contains, regex:PATTERN, json-schema:FILE, accuracy, log-accuracy, length, correct-and-short, "
            "accuracy-gated-length, accuracy-minus-length, module:function, https://HOST/PATH, or judge:FILE.toml.",
        ),
        click.option(
            "--correct",
            hidden=not reward,
            help="What counts as correct: exact-match, contains, math or regex:PATTERN. [default: the task's]",
        ),
    )


def sampling_options() -> Callable[[F], F]:
    """How completions are drawn."""
    return _together(
        click.option(
            "--max-tokens", type=click.IntRange(1), help="Longest completion, in tokens. [default: the task's]"
        ),
        click.option(
            "--top-logprobs",
            type=click.IntRange(0),
            help=f"Alternatives listed a token, 0 for no logprobs at all. [default: {TOP_LOGPROBS}, or the provider's limit]",
        ),
        click.option("--seed", type=click.IntRange(0), help="Sent with every request, so that a run can be repeated."),
    )


def output_options() -> Callable[[F], F]:
    """Where results go and how much is said."""
    return _together(
        click.option(
            "--out",
            type=click.Path(path_type=Path),
            help="Folder of the run; running again resumes. [default: runs/TASK]",
        ),
        click.option("--store", type=click.Path(path_type=Path), help="Rollout store. [default: rollouts.db in --out]"),
        click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."),
        click.option("--quiet", is_flag=True, help="No progress and no remarks."),
    )


def rollouts_option() -> Callable[[F], F]:
    """Stores and exports that are read beside the run's own."""
    return click.option(
        "--rollouts",
        multiple=True,
        metavar="SOURCE",
        help="Rollouts collected elsewhere, which are read and not asked for again: a store, an export's folder, or the URL of one "
        "(s3://bucket/folder); * stands for several. Can be given several times.",
    )


def spending_options() -> Callable[[F], F]:
    """What the command may spend."""
    return _together(
        click.option("--max-requests", type=click.IntRange(1), help="Stop before one more request would be sent."),
        click.option(
            "--max-tokens-total",
            type=click.IntRange(1),
            help="Stop before prompts and completions together could pass so many tokens.",
        ),
        click.option(
            "--max-cost",
            type=click.FloatRange(0, min_open=True),
            metavar="USD",
            help="Stop before the price could pass so many US dollars.",
        ),
        click.option(
            "--prices",
            type=click.Path(path_type=Path),
            help="TOML with prices of your own, which go before those that come along.",
        ),
    )


def limit_options() -> Callable[[F], F]:
    """What the command may spend, whether it asks first, and what it does when something changes."""
    return _together(
        spending_options(),
        click.option("--price", help="PROMPT,COMPLETION in US dollars for a million tokens, as in 0.15,0.60."),
        click.option("--yes", is_flag=True, help="Do not ask on a terminal before the first request that costs money."),
        click.option(
            "--on-drift",
            type=click.Choice(ON_DRIFT),
            help="Stop when another model or system answers, or note it and go on. [default: stop; systems of a provider "
            "with many: note]",
        ),
        click.option(
            "--restart",
            is_flag=True,
            help="Go on in --out with other settings than those of a run that was not finished.",
        ),
    )


def load(options: Mapping[str, Any]) -> tuple[Task, Reward]:
    """The task that ``task_options`` name, and its reward."""
    reward, correct = options["reward"], options["correct"]
    needs_answer = parse_reward(reward, max_tokens=1, correct=correct or "contains").needs_answer
    task = load_task(
        options["task"],
        options["data"],
        options["validation_data"],
        options["test_data"],
        **{name: options[name] for name in COLUMNS if options.get(name) is not None},
        require_answers=needs_answer,
        harness=HarnessOptions(**{field.name: options.get(field.name) for field in fields(HarnessOptions)}),
    ).first(validation=options.get("validation_limit"), test=options.get("test_limit"))
    limit = options["max_tokens"] or task.max_tokens
    return task, parse_reward(reward, max_tokens=limit, correct=correct or task.correct)


def run_folder(options: Mapping[str, Any], task: Task) -> Path:
    """The folder that holds a run's bias and result, made if need be."""
    folder = Path(options["out"] or Path("runs") / task.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make the folder {folder}: {error.strerror}; give another with --out") from error
    return folder


def connect_to(options: Mapping[str, Any], **more: Any) -> AbstractAsyncContextManager[Session]:
    """A session with the model that ``model_options`` name; ``more`` goes to ``connect``."""
    names = ("model", "base_url", "endpoint", "tokenizer")
    more = {**more, **({"session": options["session"]} if "session" in options else {})}
    return connect(options["provider"], **{name: options[name] for name in names}, **more)


@asynccontextmanager
async def open_trials(
    options: Mapping[str, Any],
    task: Task,
    reward: Reward,
    bias: Bias | None = None,
    needs: Sequence[str] = SAMPLING_WITH_A_BIAS,
    stages: Callable[[Trials], Iterable[Stage | Forecast]] = lambda trials: (),
) -> AsyncIterator[Trials]:
    """Everything that drawing and scoring completions needs, as the options say; closed at the end.

    ``needs``: rows of the profile that must be known. A ``bias`` that the model's tokenizer or the provider does not take is
    refused before anything is asked for. ``stages``: what will be asked for at most, told before the first request.
    """
    if reward.remote is not None:
        reward.remote.headers()  # a missing key is told before anything is paid for
    spelled = "clusters" in options.get("estimator", ())
    async with connect_to(
        options,
        concurrency=options["concurrency"],
        max_tokens=reward.max_tokens,
        longest_prompt=task.longest_prompt,
        needs=needs,
        own_vocabulary=spelled,
        budget=options.get("budget"),
    ) as session:
        _require_end_tokens(session)
        tokenizer = await session.tokenizer()
        if bias is not None:
            bias.check_tokenizer(tokenizer.fingerprint)
            check_limits(bias.logit_bias, session.profile, session.highest_id)
        with _store(options["store"] or run_folder(options, task) / STORE, options.get("rollouts", ())) as store:
            trials = Trials(
                session=session,
                store=store,
                tokenizer=tokenizer,
                reward=reward,
                report=reporter(options),
                top_logprobs=_top_logprobs(options["top_logprobs"], session),
                seed=options["seed"],
                concurrency=options["concurrency"],
                stop=task.stop,
            )
            async with accounted(trials, options, task, stages):
                yield trials


def _store(path: Path, elsewhere: Sequence[str]) -> RolloutStore:
    """The run's store, with the rollouts that were collected ``elsewhere`` beside it."""
    if not elsewhere:
        return RolloutStore(path)
    from blackbox_lb.store.sources import Gathered

    return Gathered(path, elsewhere)


def _require_end_tokens(session: Session) -> None:
    if session.end_tokens.listed is not True and session.vocabulary is None:
        state = "does not list" if session.end_tokens.listed is False else "is not known to list"
        raise ProfileError(
            f"{session.profile.name} {state} the token that ends a completion, so its id must be known to leave it out of the fit: "
            "give the model's vocabulary with --tokenizer, as a tokenizer.json or .gguf file"
        )


def _top_logprobs(wanted: int | None, session: Session) -> int:
    """As many alternatives as were asked for; unasked, as many as help and the provider lists."""
    limit = session.profile.most_logprobs(session.endpoint)
    return min(TOP_LOGPROBS, TOP_LOGPROBS if limit is None else limit) if wanted is None else wanted
