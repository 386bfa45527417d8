"""The main job: collect, reward, estimate, choose the strength on validation prompts, and judge on unseen test prompts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from blackbox_lb.bias import Bias, Censored, Drawn, Entry, Verdict
from blackbox_lb.compile import losses, most_entries
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.candidates import Candidate, Limits, Sweep, candidates
from blackbox_lb.estimate.normaliser import NextToken
from blackbox_lb.estimate.rollouts import Rollouts
from blackbox_lb.evaluate import GREEDY, SAMPLED, Setting
from blackbox_lb.session import Session
from blackbox_lb.tasks import Task
from blackbox_lb.training import Training, censored, training_set
from blackbox_lb.trials import Trials
from blackbox_lb.types import Example

__all__ = ["FitPlan", "FitResult", "Tried", "fit"]


@dataclass(frozen=True, slots=True)
class FitPlan:
    """What a fit does. Counts are of completions a prompt; ``entries`` None means as many as the provider takes."""

    samples: int = 10
    limit: int | None = None
    validation_samples: int = 6
    test_samples: int = 6
    sweep: Sweep = field(default_factory=Sweep)
    entries: int | None = None
    integers: bool = False
    settings: tuple[Setting, ...] = (SAMPLED, GREEDY)


@dataclass(frozen=True, slots=True)
class Tried:
    """One candidate and its mean reward on the validation prompts, as a user reads it."""

    settings: dict[str, float | int | None]
    entries: int
    reward: float


@dataclass(frozen=True, slots=True)
class FitResult:
    """``bias``: what was judged, with its verdict. ``kl``: nats a completion from the base, at temperature 1.

    ``kl`` is NaN where it could not be computed, and ``kl_missing`` says why; ``kl_whole`` is False where the end token is not
    listed, so that it is the KL of the tokens given that the completion goes on, which is less than the whole. ``base_reward`` and
    ``tried``: mean rewards on the validation prompts. ``incomplete`` and ``filtered``: completions left out of the fit (see
    ``Training``).
    """

    bias: Bias
    base_reward: float
    tried: tuple[Tried, ...]
    kl: float
    kl_missing: str | None
    incomplete: int
    filtered: int
    kl_whole: bool = True

    @property
    def kl_sentence(self) -> str:
        """The KL for a person to read, or why there is none."""
        if self.kl_missing is not None:
            return f"KL to the base not computed: {self.kl_missing}"
        given = "" if self.kl_whole else ", given where each completion ends (the end token is not listed)"
        return f"KL to the base {self.kl:.2f} nats a completion at temperature 1{given}"

    def as_json(self) -> dict[str, Any]:
        """Everything a program wants to know, the entries of the bias aside."""
        return {
            "status": self.bias.status,
            "verdict": [row.model_dump() for row in self.bias.verdict],
            "chosen": dict(self.bias.settings),
            "entries": len(self.bias.entries),
            "kl_nats_per_completion": _known(self.kl),
            "kl_missing": self.kl_missing,
            "kl_whole": self.kl_whole,
            "validation": {
                "base": self.base_reward,
                "tried": [{**asdict(row), "reward": _known(row.reward)} for row in self.tried],
            },
            "training": {
                "rollouts": self.bias.rollouts,
                "tokens": self.bias.tokens,
                "incomplete": self.incomplete,
                "filtered": self.filtered,
            },
            "censoring": None if self.bias.censoring is None else self.bias.censoring.model_dump(),
        }


def _known(value: float) -> float | None:
    """The value as JSON has it: null where it could not be computed."""
    return None if math.isnan(value) else value


async def fit(trials: Trials, task: Task, plan: FitPlan) -> FitResult:
    """Learn a bias and judge it on fresh completions. Everything received is in the trials' store: the same call resumes.

    Raises:
        ProviderError: the API failed; what was received is kept.
        InputError: nothing can be learned, for instance because no completion earned a reward.
    """
    limits = _limits(trials.session, plan)  # before anything is paid for
    examples = task.train[: plan.limit]
    keys = await trials.collect("training", examples, SAMPLED, plan.samples)
    training = training_set(trials.store, examples, keys, trials.reward, trials.session.end_tokens)
    _remark_on(training, trials)
    next_token = NextToken.of(training.rollouts)
    kept_back = censored(training.rollouts, next_token, plan.sweep.rule)
    trials.report.remark(kept_back.sentence(trials.top_logprobs))
    chosen, tried, base_reward = await _choose(trials, task.validation, training.rollouts, next_token, plan, limits)
    verdict = await trials.judge(task.test, plan.settings, plan.test_samples, chosen.logit_bias)
    bias = await _bias(trials, task, training, next_token, kept_back, chosen, plan, limits, verdict)
    kl = await trials.kl(task.test, plan.test_samples, chosen.logit_bias, next_token)
    return FitResult(
        bias=bias,
        base_reward=base_reward,
        tried=tuple(tried),
        kl=kl,
        kl_missing=_why_no_kl(trials.session) if math.isnan(kl) else None,
        kl_whole=trials.session.end_tokens.listed is True,
        incomplete=training.incomplete,
        filtered=training.filtered,
    )


def _limits(session: Session, plan: FitPlan) -> Limits:
    rules, entries = session.profile.bias, most_entries(session.profile, plan.entries)
    return Limits(entries, rules.low, rules.high, plan.integers or not rules.fractions, session.highest_id)


def _why_no_kl(session: Session) -> str:
    name, where = session.profile.name, session.biased_endpoint
    if session.tells_base_logprobs:
        return "no biased completion of the test prompts lists all of its tokens"
    if where != session.endpoint:
        return f"{name} takes a bias at its {where} endpoint and returns logprobs at {session.endpoint}"
    if session.profile.logprobs.meaning == "after bias":
        return f"{name} returns logprobs of the biased policy"
    return f"it is not known whether {name} returns logprobs of the base or of the biased policy"


def _remark_on(training: Training, trials: Trials) -> None:
    reward, report = trials.reward, trials.report
    values = np.array([reward.value(r) for r in training.rollouts.rewards])
    report.remark(
        f"{len(values)} rollouts, {len(training.rollouts.token_ids):,} tokens, mean {reward.label} {values.mean():.3f}"
    )
    for sentence in training.left_out:
        report.remark(sentence)
    if np.ptp(values) == 0:
        raise InputError(
            f"every completion has the same {reward.label} ({values[0]:.3g}): there is nothing to learn from this reward; "
            "use another reward or harder prompts"
        )


async def _choose(
    trials: Trials,
    examples: Sequence[Example],
    rollouts: Rollouts,
    next_token: NextToken,
    plan: FitPlan,
    limits: Limits,
) -> tuple[Candidate, list[Tried], float]:
    """The candidate with the highest mean reward on fresh completions of the validation prompts."""
    base = (await trials.scores("validation, base", examples, SAMPLED, plan.validation_samples)).mean_reward
    if math.isnan(base):
        raise InputError(
            "no completion of the validation prompts passed the content filter; use other validation prompts"
        )
    tried: list[Tried] = []
    best, highest = None, -math.inf
    for candidate in candidates(rollouts, next_token, plan.sweep, limits):
        label = ", ".join(f"{name} {value:g}" for name, value in candidate.settings.items() if value is not None)
        scores = await trials.scores(
            f"validation, {label}", examples, SAMPLED, plan.validation_samples, candidate.logit_bias
        )
        reward = (
            scores.mean_reward
        )  # NaN where the content filter stopped everything: never the best, unless there is no other
        if best is None or reward > highest:
            best, highest = candidate, -math.inf if math.isnan(reward) else reward
        tried.append(Tried(candidate.settings, candidate.sparse.entries, reward))
        trials.report.remark(f"validation, {label}: {trials.reward.label} {reward:.3f} (base {base:.3f})")
    if best is None:
        raise InputError("the sweep is empty: give at least one --tau, and one --l2 or --alpha")
    if highest <= base:
        trials.report.remark(
            "no candidate beat the base on the validation prompts; the best of them is judged all the same"
        )
    return best, tried, base


async def _bias(
    trials: Trials,
    task: Task,
    training: Training,
    next_token: NextToken,
    kept_back: Censored,
    chosen: Candidate,
    plan: FitPlan,
    limits: Limits,
    verdict: Iterable[Verdict],
) -> Bias:
    session, sparse = trials.session, chosen.sparse
    return Bias(
        provider=session.profile.name,
        model=session.model,
        tokenizer=trials.tokenizer.fingerprint,
        vocab_size=trials.tokenizer.vocabulary_size,
        task=task.name,
        reward=trials.reward.spec,
        estimator=plan.sweep.estimator,
        settings=chosen.settings,
        data_hash=task.data_hash,
        rollouts=len(training.rollouts.keys),
        tokens=len(training.rollouts.token_ids),
        sampling=Drawn(
            max_tokens=trials.reward.max_tokens, top_logprobs=trials.top_logprobs, endpoint=session.endpoint
        ),
        censoring=kept_back,
        compiled=losses(sparse, limits.entries, integers=limits.integers),
        verdict=tuple(verdict),
        entries=await _named(trials, next_token, chosen),
    )


async def _named(trials: Trials, next_token: NextToken, chosen: Candidate) -> tuple[Entry, ...]:
    """The entries with what each token reads as: its bytes if an answer showed them, its text from the server."""
    known = trials.store.token_bytes(trials.tokenizer.fingerprint)
    counts = dict(zip(next_token.token_ids.tolist(), next_token.sampled_counts().astype(int).tolist(), strict=True))
    texts = await trials.session.texts_of(chosen.sparse.token_ids.tolist())
    return tuple(
        Entry(
            id=token,
            bytes=known[token].hex() if token in known else None,
            text=text,
            bias=value,
            seen=counts.get(token, 0),
        )
        for (token, value), text in zip(chosen.logit_bias.items(), texts, strict=True)
    )
