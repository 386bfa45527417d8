"""Run: a finished fit, for people who work in Python."""

from __future__ import annotations

import asyncio
import functools
import html
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from blackbox_lb.api.connect import connect
from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.limits.concurrency import run_interruptible
from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.jobs.deciding import (
    LabelDecision,
    calibration_of_bias,
    check_share,
    label_decision,
    mended_decision,
)
from blackbox_lb.jobs.decisions.applying import missing_system, question_of, read_mended
from blackbox_lb.jobs.fitting.document import FitResult
from blackbox_lb.jobs.runs.answers import AnswerPair, telling
from blackbox_lb.jobs.runs.conclusion import Conclusion
from blackbox_lb.jobs.runs.names import ABSTAIN_BELOW, COLLECTING, STORE
from blackbox_lb.jobs.runs.opening import checked_tokenizer, trials_in
from blackbox_lb.rollouts.answers.given_answers import first_completions
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.safety.printable import legible
from blackbox_lb.store.rows import prompt_hash
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.records.files import prompt_of_row
from blackbox_lb.types import Example, Message, Prompt

if TYPE_CHECKING:
    import openai
    import pandas as pd


async def decide_async(
    run: Run,
    prompts: Iterable[str | Prompt | Mapping[str, Any]],
    *,
    abstain_below: float | None = None,
    question: str | None = None,
) -> tuple[LabelDecision, ...]:
    """See ``Run.decide``."""
    asked = [_prompt_of(run, prompt, number) for number, prompt in enumerate(prompts, start=1)]
    distinct = [Example(prompt_hash(prompt)[:16], prompt) for prompt in dict.fromkeys(asked)]
    if run.bias.decisions:
        return await _decide_mended(run, asked, distinct, abstain_below, question)
    if question is not None:
        raise InputError(
            f"``question={question!r}`` names one of several questions, and this run has none;"
            " leave it out"
        )
    below = ABSTAIN_BELOW if abstain_below is None else abstain_below
    calibration = calibration_of_bias(run.bias, below)
    if not asked:
        return ()
    async with _new_trials(run, distinct, COLLECTING) as trials:
        completions, _ = await first_completions(trials, distinct, "decide", None)
    mappings = FirstLists.of(completions).mappings()
    lists = {example.prompt: listed for example, listed in zip(distinct, mappings, strict=True)}
    return tuple(
        label_decision(run.bias, calibration, prompt, lists[prompt], below) for prompt in asked
    )


async def _decide_mended(
    run: Run,
    asked: Sequence[Prompt],
    distinct: Sequence[Example],
    abstain_below: float | None,
    question: str | None,
) -> tuple[LabelDecision, ...]:
    """The decisions of one question whose probabilities are mended."""
    if abstain_below is not None:
        check_share("abstain_below", abstain_below)
    mended = question_of(run.bias, question)
    if not asked:
        return ()
    async with _new_trials(run, distinct, ()) as trials:
        rows = await read_mended(trials, "decide", distinct, run.bias, mended)
    logprobs = {
        example.prompt: values if is_read else None
        for example, values, is_read in zip(
            distinct, rows.logprobs.tolist(), rows.is_read.tolist(), strict=True
        )
    }
    return tuple(
        mended_decision(mended, prompt, logprobs[prompt], abstain_below) for prompt in asked
    )


@asynccontextmanager
async def _new_trials(
    run: Run, examples: Sequence[Example], needs: Sequence[str]
) -> AsyncIterator[Trials]:
    """Trials of the run's model in its folder, for these prompts. needs: rows of the profile that
    must be known.
    """
    budget = running_budget()
    longest = max(sum(map(len, example.prompt.sent_texts)) for example in examples)
    async with connect(
        **run.server, max_tokens=1, longest_prompt=longest, needs=needs, budget=budget
    ) as session:
        tokenizer = await checked_tokenizer(session)
        run.bias.check_tokenizer(tokenizer.fingerprint)
        with trials_in(
            run.folder,
            run.folder / STORE,
            session,
            tokenizer,
            run.task,
            run.reward,
            report=Silent(),
            budget=budget,
        ) as trials:
            yield replace(trials, used=set())


def _prompt_of(run: Run, value: str | Prompt | Mapping[str, Any], number: int) -> Prompt:
    """The prompt of a text or a row.

    number: its place, from 1, for messages. Raises DataError: the row has no prompt. InputError:
    all prompts of the run have tools, and this one has none. BiasError: it has another system
    message than the questions that are mended.
    """
    prompt = value
    if isinstance(prompt, str):
        prompt = Prompt.user(prompt)
    elif not isinstance(prompt, Prompt):
        prompt = prompt_of_row(prompt, number, state=bool(run.bias.decisions))
    if run.bias.decisions:
        missing = missing_system(run.bias, [Example("", prompt)])
        if missing:
            prompt = replace(prompt, messages=(Message("system", missing), *prompt.messages))
    needs_tools = bool(run.task.train) and all(row.prompt.tools for row in run.task.train)
    if needs_tools and not prompt.tools:
        raise InputError(
            f"prompt {number} offers no tools, and all {len(run.task.train)} prompts that the"
            " probabilities were learned from do; give a row with its tools, as in"
            ' {"prompt": ..., "tools": [...]}'
        )
    return prompt


P = ParamSpec("P")
T = TypeVar("T")
_BUDGET: ContextVar[SpendLimit | None] = ContextVar("_BUDGET", default=None)
"""The account of the running call, which Ctrl-C closes."""


def running_budget() -> SpendLimit:
    """The account of the running call; a new one in a coroutine that the caller awaits."""
    return _BUDGET.get() or SpendLimit()


def blocking(function: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """``function`` for callers without an event loop, and for notebooks, whose loop runs already.

    Ctrl-C lets requests in flight arrive, which are paid for, and then raises Interrupted.
    """

    @functools.wraps(function)
    def called(*arguments: P.args, **options: P.kwargs) -> T:
        budget = SpendLimit()
        token = _BUDGET.set(budget)
        try:
            main = function(*arguments, **options)
            if not _loop_runs():
                return run_interruptible(main, budget)
            return _run_beside(main, budget)
        finally:
            _BUDGET.reset(token)

    return called


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _run_beside(main: Coroutine[Any, Any, T], budget: SpendLimit) -> T:
    """Run ``main`` in a loop of a thread of its own, since this thread's loop is busy."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def watched() -> T:
        loops.append(asyncio.get_running_loop())
        _BUDGET.set(budget)
        return await main

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(asyncio.run, watched())
        try:
            return future.result()
        except KeyboardInterrupt:
            for loop in loops:
                loop.call_soon_threadsafe(budget.close)
            return future.result()


C = TypeVar("C", bound="openai.OpenAI | openai.AsyncOpenAI")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Run:
    """A finished fit. Its text is the summary that the terminal prints.

    Attributes:
        folder: the run's folder with bias.json, result.json and the completions.
        bias: the learned bias with its verdict.
        result: every number of the fit, as result.json has it.
        task: the prompts, in three splits.
        reward: what was rewarded.
        pairs: the answers of both models to the test prompts, by setting, prompt and sample.
        notices: what was said on the way.
        conclusion: the summary in parts.
        server: the model's provider, name and address, as they were given to the fit.
    """

    folder: Path
    bias: Bias
    result: FitResult
    task: Task
    reward: Reward
    pairs: tuple[AnswerPair, ...] = field(repr=False)
    notices: tuple[str, ...]
    conclusion: Conclusion
    server: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def status(self) -> str:
        """HELPS, NO EVIDENCE or HURTS, of the reward; NOT SHOWN TO PAY where always
        saying the commonest label is not shown to be beaten; HOLDS, NOT SHOWN or BROKEN, of an
        operating point's promise.
        """
        return self.conclusion.verdict

    def examples(self, count: int = 5) -> tuple[AnswerPair, ...]:
        """``count`` test prompts with both answers, those that the bias changed first.

        Greedy answers where there are any. Fewer where there are fewer prompts.
        """
        return telling(self.pairs, count)

    def to_frame(self) -> pd.DataFrame:
        """A row for each pair of test answers, as a pandas DataFrame.

        Its columns: setting, id, prompt, answer (the first accepted one, or the wanted shares), and
        for base and biased the text, the reward, whether it is correct, and its tokens.

        Raises:
            InputError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise InputError(
                "Run.to_frame() needs pandas, which is not installed: install it with pip install"
                " pandas, or read the rows of run.pairs"
            ) from error
        return pd.DataFrame([_row(pair) for pair in self.pairs], columns=list(COLUMNS))

    def apply(self, client: C, *, models: Iterable[str] | None = None) -> C:
        """A client of the same type as ``client`` that sends the bias; see :func:`apply`."""
        from blackbox_lb.deploy.client import apply

        return apply(client, self.bias, models=models)

    def decide(
        self,
        prompts: Iterable[str | Prompt | Mapping[str, Any]],
        *,
        abstain_below: float | None = None,
        question: str | None = None,
    ) -> tuple[LabelDecision, ...]:
        """The labels of new prompts with calibrated probabilities, from one token a prompt; where
        the run mends decisions, with mended ones, from the endpoint or the layout of the fit.

        With open labels (``decide="calls-tool"``) they are those of the opening and of everything
        else. What was asked once is in the run's store, and is not asked for again: an endpoint
        gets all questions of the run in one request, so that a second one costs nothing more.

        Args:
            prompts: texts of one user message each, prompts, or rows as data files have them, such
                as ``{"messages": [...], "tools": [...]}``, or ``{"state": {...}}`` where decisions
                are mended.
            abstain_below: probability of the likeliest label below which a decision abstains; None
                for .8, and where decisions are mended for the cut of the promise, if there is one.
            question: the id of one of several mended questions.

        Raises:
            InputError: the run holds no calibrated labels (it learned from no answers), no share
                between 0 and 1, a prompt without tools where all prompts of the run have some, or
                no such question.
            BiasError: another model answers than the one whose decisions are mended.
            DataError: a row without a prompt, or with a broken one.
            ProviderError: the API failed; what was received is kept.
        """

        return blocking(decide_async)(self, prompts, abstain_below=abstain_below, question=question)

    def __str__(self) -> str:
        return legible(str(self.conclusion))

    def __repr__(self) -> str:
        word, sentence = self.bias.headline
        if word != self.status or not sentence:
            return f"<Run {self.status}, {self.folder}>"
        return f"<Run {word}: {sentence}, {self.folder}>"

    def _repr_html_(self) -> str:
        """The summary and a few answers, for a notebook."""
        rows = "".join(
            f"<tr>{''.join(f'<td>{html.escape(legible(cell))}</td>' for cell in _cells(pair))}</tr>"
            for pair in self.examples()
        )
        head = "".join(f"<th>{name}</th>" for name in ("prompt", "base", "biased", ""))
        return (
            f"<pre>{html.escape(str(self))}</pre>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )


COLUMNS = (
    "setting",
    "id",
    "prompt",
    "answer",
    "base",
    "biased",
    "base_reward",
    "biased_reward",
    "base_correct",
    "biased_correct",
    "base_tokens",
    "biased_tokens",
)
"""Columns of :meth:`Run.to_frame`."""


def _row(pair: AnswerPair) -> dict[str, Any]:
    example = pair.example
    return {
        "setting": pair.setting,
        "id": example.id,
        "prompt": example.prompt.text,
        "answer": _answer_of(example),
        "base": pair.base.text,
        "biased": pair.biased.text,
        "base_reward": pair.base.reward,
        "biased_reward": pair.biased.reward,
        "base_correct": pair.base.correct,
        "biased_correct": pair.biased.correct,
        "base_tokens": pair.base.tokens,
        "biased_tokens": pair.biased.tokens,
    }


def _answer_of(example: Example) -> str | dict[str, float] | None:
    """The first accepted answer, or label -> wanted share; None where there is none."""
    if example.weights:
        return dict(zip(example.answers, example.weights, strict=True))
    if example.answers:
        return example.answers[0]
    return None


def _cells(pair: AnswerPair) -> tuple[str, str, str, str]:
    return pair.example.prompt.text, pair.base.text, pair.biased.text, pair.status
