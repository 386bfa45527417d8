"""Trials in a run's folder: the tokenizer checked, the store opened, the run recorded."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import click

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.session import Session
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import check_bias
from blackbox_lb.errors import BlbError, BudgetExhausted, Interrupted, ProfileError
from blackbox_lb.jobs.records.run_record import Manifest, work_in
from blackbox_lb.jobs.runs.names import TOP_LOGPROBS
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import Reporter
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.vocabulary.tokenizer import Tokenizer


async def checked_tokenizer(session: Session, bias: Bias | None = None) -> Tokenizer:
    """The tokenizer of the session's model.

    Raises:
        ProfileError: nothing says which token ends a completion.
        BiasError: the tokenizer or the provider does not take ``bias``.
    """
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
    with work_in(folder), _opened(store, elsewhere) as rollouts:
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
    trials: Trials, record: Manifest, opening: Callable[[], None] = lambda: None
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
        error = _with_store(Interrupted("Interrupted"), trials)
        raise error from failure
    except (BlbError, click.Abort) as failure:
        error = failure
        raise
    finally:
        if sys.exc_info()[0] is None or error is not None:
            record.end(trials.drift, budget.spent, error)


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
            " a tokenizer.json or .gguf file"
        )


def _with_store(
    error: BudgetExhausted | Interrupted, trials: Trials
) -> BudgetExhausted | Interrupted:
    """The error, with a note on the kept data and its place."""
    kept = f"{trials.store.size().completions:,} completions are kept in {trials.store.path}"
    if isinstance(error, Interrupted):
        return Interrupted(
            f"{error} after {trials.budget.spent}: {kept}, and the same command goes on from there"
        )
    return BudgetExhausted(f"{error}; {kept}")
