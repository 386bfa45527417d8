"""Trials in a run's folder: the tokenizer checked, the store opened, the run recorded."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.session import Session
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import check_bias
from blackbox_lb.errors import (
    BiasError,
    BlbError,
    BudgetExhausted,
    InputError,
    Interrupted,
    ProfileError,
)
from blackbox_lb.jobs.fitting.document import FitResult
from blackbox_lb.jobs.fitting.result import Fitted
from blackbox_lb.jobs.plan.shared import FolderSettings, TaskSettings, TrialSettings
from blackbox_lb.jobs.records.run_record import Manifest, RunResults, settings_of_run, work_in
from blackbox_lb.jobs.runs.answers import AnswerPair, shown_answers
from blackbox_lb.jobs.runs.names import (
    BIAS,
    LEARNED,
    RESULT,
    RUNS,
    STORE,
    TOP_LOGPROBS,
)
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.prices import Prices, find_prices, parse_prices
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import Reporter
from blackbox_lb.safety.files import explained, write_whole
from blackbox_lb.safety.http.waits import heard_by
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.sets.task import SPLITS
from blackbox_lb.vocabulary.tokenizer import Tokenizer


def price_model(
    budget: SpendLimit, session: Session, price: str | None, table: Path | None
) -> None:
    """Give the budget the price of the model: ``price``, else that of the endpoint's rules, else a
    row of ``table``, else of the packaged one.

    Raises:
        InputError: the budget has a limit in dollars, and the price is not known.
    """
    rules = session.profile.decisions
    if price is not None:
        budget.prices = parse_prices(price)
    elif session.endpoint == "decisions" and rules is not None and rules.input_price is not None:
        budget.prices = Prices(rules.input_price, 0.0)
    else:
        budget.prices = find_prices(session.profile.name, session.model, table)
    if budget.prices is None:
        _check_unpriced(budget, session.profile.name, session.model, takes_price=True)


def price_judge(
    budget: SpendLimit, reward: Reward, table: Path | None, *, takes_price: bool = True
) -> None:
    """Give the budget the prices of the reward's judge, if it has one.

    takes_price: whether the caller has a parameter for a price beside one for a table.

    Raises:
        InputError: the budget has a limit in dollars, and the judge's price is not known.
    """
    if reward.judge is None:
        return
    model = reward.judge.file.model
    base_url = reward.judge.file.base_url
    budget.judge_prices = _judge_prices(base_url, model, table)
    if budget.judge_prices is None:
        host = urlsplit(base_url).hostname or ""
        _check_unpriced(budget, host, model, takes_price=takes_price)


def _check_unpriced(budget: SpendLimit, provider: str, model: str, *, takes_price: bool) -> None:
    if budget.limits.dollars is None:
        return
    price_option = ""
    if takes_price:
        price_option = (
            "``price=PROMPT,COMPLETION`` in dollars for a million tokens (0,0 for what costs"
            " nothing), or "
        )
    raise InputError(
        f"``max_cost`` needs the price of {model} on {provider}, which is not known: give"
        f" {price_option}``prices=FILE`` with a row [[price]] whose provider is {provider!r};"
        " ``max_tokens_total`` needs no price"
    )


def _judge_prices(base_url: str, model: str, table: Path | None) -> Prices | None:
    """The prices of a judge: by the profile that has its host, or by the host itself."""
    host = urlsplit(base_url).hostname or ""
    profiles = (load_profile(name) for name in profile_names())
    names = [
        profile.name
        for profile in profiles
        if urlsplit(profile.connection.base_url or "").hostname == host
    ]
    for name in [host, *names]:
        prices = find_prices(name, model, table)
        if prices is not None:
            return prices
    return None


def whole_result(
    fitted: Fitted,
    pairs: Sequence[AnswerPair],
    folder: Path,
    provenance: dict[str, Any],
) -> FitResult:
    """The content of result.json."""
    return fitted.result.replacing(
        answers=shown_answers(pairs),
        bias=str(folder / BIAS),
        uncompiled=None if fitted.bias.decisions else str(folder / LEARNED),
        provenance=provenance,
    )


def write_result(fitted: Fitted, result: FitResult, folder: Path) -> dict[str, str]:
    """Write the three files, the most wanted first; return name -> reason for each failure."""
    unwritten = {}
    text = json.dumps(result.model_dump(mode="json"), indent=2) + "\n"
    try:
        write_whole(folder / RESULT, text.encode())
    except OSError as error:
        unwritten[RESULT] = f"{folder / RESULT}: cannot be written ({error.strerror or error})"
    for name, bias in ((BIAS, fitted.bias), (LEARNED, fitted.uncompiled)):
        if name == LEARNED and bias.decisions:  # nothing was compiled
            continue
        try:
            bias.save(folder / name)
        except BiasError as error:
            unwritten[name] = str(error)
    return unwritten


def check_written(unwritten: dict[str, str]) -> None:
    """Raise BiasError where a file could not be written."""
    if unwritten:
        raise BiasError(
            f"{'; '.join(unwritten.values())}; run the same command again: what was drawn is in the"
            " store"
        )


async def checked_tokenizer(session: Session, bias: Bias | None = None) -> Tokenizer:
    """The tokenizer of the session's model.

    Raises:
        ProfileError: nothing says which token ends a completion.
        BiasError: the tokenizer or the provider does not take ``bias``.
    """
    if session.endpoint != "decisions":
        _require_end_tokens(session)
    tokenizer = await session.tokenizer()
    if bias is not None:
        bias.check_tokenizer(tokenizer.fingerprint)
        check_bias(bias, session.profile, session.highest_id)
    return tokenizer


@contextmanager
def trials_in(
    folder: Path,
    store: Path,
    session: Session,
    tokenizer: Tokenizer,
    task: Task,
    reward: Reward,
    *,
    report: Reporter,
    budget: SpendLimit,
    top_logprobs: int | None = None,
    seed: int | None = None,
    concurrency: int | None = None,
    elsewhere: Sequence[str] = (),
) -> Iterator[Trials]:
    """Trials of ``session`` with the rollout store ``store``, while nobody else works in
    ``folder``.

    Args:
        top_logprobs: alternatives listed for a token; None for the usual number, or the provider's.
        elsewhere: sources of rollouts to read beside the run's own store.
    """
    limit = session.profile.most_logprobs(session.endpoint)
    listed = TOP_LOGPROBS if limit is None else min(TOP_LOGPROBS, limit)
    with work_in(folder), _opened(store, elsewhere) as rollouts, heard_by(report.notice):
        if reward.thinking is not None:
            reward.thinking.known = partial(rollouts.token_bytes, tokenizer.fingerprint)
        yield Trials(
            session=session,
            store=rollouts,
            tokenizer=tokenizer,
            reward=reward,
            report=report,
            top_logprobs=listed if top_logprobs is None else top_logprobs,
            seed=seed,
            concurrency=concurrency,
            stop=task.stop,
            budget=budget,
        )


@asynccontextmanager
async def recorded(
    trials: Trials, record: Manifest, opening: Callable[[], None]
) -> AsyncIterator[None]:
    """Inside, changes of the answering system are watched for, and the run is recorded in run.json.

    opening: called before the first request.
    """
    budget = trials.budget
    record.expect(trials.drift)

    def begin() -> None:
        opening()
        record.start()

    budget.opening = begin
    error: BaseException | None = None
    try:
        yield
    except (BudgetExhausted, Interrupted) as failure:
        error = _with_store(failure, trials)
        raise error from failure
    except asyncio.CancelledError as failure:
        if not budget.closed:
            raise
        error = _with_store(budget.interruption(), trials)
        raise error from failure
    except BlbError as failure:
        error = failure
        raise
    finally:
        if sys.exc_info()[0] is None or error is not None:
            record.end(trials.drift, budget.spent, error)


@asynccontextmanager
async def open_run(
    settings: TrialSettings,
    session: Session,
    task: Task,
    reward: Reward,
    *,
    command: str,
    report: Reporter,
    budget: SpendLimit,
    elsewhere: Sequence[str],
    results: RunResults | None,
    announce: Callable[[Trials], None],
    bias: Bias | None = None,
    more: Mapping[str, str | None] | None = None,
) -> AsyncIterator[Trials]:
    """Trials of ``session`` in the folder of a run, which is locked and recorded in run.json;
    prices and limits count, and changes of the answering system are watched for.

    Args:
        command: its name in the record.
        elsewhere: sources of rollouts to read beside the run's own store.
        results: what is written into the run's folder; None for nothing.
        announce: called before the first request of the session's account.
        bias: one that the model's tokenizer and the provider must take.
        more: settings for the record beyond those of every run.

    Raises:
        InputError: a limit on the cost of a model whose price is not known; or a run that is
            resumed under other settings. AuthenticationFailed: the key of the reward is missing.
            BiasError, ProfileError: see ``checked_tokenizer``.
    """
    reward.check_key()  # before anything costs money
    tokenizer = await checked_tokenizer(session, bias)
    if settings.out is None and settings.store_file is not None:
        folder = settings.store_file.parent
    else:
        folder = run_folder(settings, task)
    with trials_in(
        folder,
        settings.store_file or folder / STORE,
        session,
        tokenizer,
        task,
        reward,
        report=report,
        budget=budget,
        top_logprobs=settings.top_logprobs,
        seed=settings.seed,
        concurrency=settings.concurrency,
        elsewhere=elsewhere,
    ) as trials:
        price_model(budget, session, settings.price, settings.price_table)
        price_judge(budget, reward, settings.price_table)
        trials.drift.policy = settings.on_drift
        prompts = [example.prompt for split in SPLITS for example in task.split(split)]
        record = Manifest(
            folder,
            command,
            {**settings_of_run(trials, prompts), **(more or {})},
            results=results,
            restart=settings.restart,
        )
        is_first = budget.spent.requests == 0  # trials opened several times are announced once

        def opening() -> None:
            if is_first:
                announce(trials)

        async with recorded(trials, record, opening):
            yield trials


def results_of(settings: TaskSettings, reward: Reward, files: Sequence[str]) -> RunResults:
    """The results in ``files``, which are about the reward of the settings."""
    return RunResults(tuple(files), {"reward": reward.name, **settings.recorded()})


def run_folder(settings: FolderSettings, task: Task) -> Path:
    """The folder that holds a run's bias and result, made if need be.

    Raises InputError: it cannot be made.
    """
    folder = settings.folder or Path(RUNS) / task.name
    with explained(f"make the folder {folder}", "give another with ``out``"):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _opened(path: Path, elsewhere: Sequence[str]) -> RolloutStore:
    """The run's store, with the rollouts from ``elsewhere`` beside it."""
    if not elsewhere:
        return RolloutStore(path)
    from blackbox_lb.store.joined import Gathered

    return Gathered(path, elsewhere)


def _require_end_tokens(session: Session) -> None:
    if session.end_tokens.listed is not True and session.vocabulary is None:
        state = "does not list" if session.end_tokens.listed is False else "is not known to list"
        raise ProfileError(
            f"{session.profile.name} {state} the token that ends a completion, so its id must be"
            " known to leave it out of the fit: give the model's vocabulary with ``tokenizer``, as"
            " a tokenizer.json"
        )


def _with_store(
    error: BudgetExhausted | Interrupted, trials: Trials
) -> BudgetExhausted | Interrupted:
    """The error, with a note on the kept data and its place."""
    stored = f"{trials.store.size().completions:,} completions are kept in {trials.store.path}"
    if isinstance(error, Interrupted):
        return Interrupted(
            f"{error} after {trials.budget.spent}: {stored}, and the same command goes on"
            " from there"
        )
    return BudgetExhausted(f"{error}; {stored}")
