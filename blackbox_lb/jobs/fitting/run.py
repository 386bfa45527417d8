"""The main job: collect, reward, estimate, choose the strength on validation prompts, and judge on unseen test prompts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np

from blackbox_lb.api.session import Session
from blackbox_lb.bias.document import (
    Bias,
    Censored,
    Entry,
    Learned,
    RecordedFinding,
    SamplingRecord,
    Verdict,
)
from blackbox_lb.bias.limits import most_entries
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits, candidates
from blackbox_lb.estimate.choice.table import estimator, rule
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.compiling.compile import Kept, gain_by_entries, losses
from blackbox_lb.jobs.fitting.choice import Choice
from blackbox_lb.jobs.fitting.choose import choose
from blackbox_lb.jobs.fitting.explain import Explanation, explain
from blackbox_lb.jobs.fitting.list_fidelity import fidelity
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.jobs.fitting.result import FitResult, FitUsage
from blackbox_lb.jobs.fitting.training_rollouts import check_plan, clusters_of, learn
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.reference import ask_reference, check_reference
from blackbox_lb.rollouts.training import Training, censored
from blackbox_lb.tasks import Task

__all__ = ["FitPlan", "FitResult", "fit"]


KL_PROMPTS = 40
"""Test prompts that are answered at temperature 1 for the KL alone, where the verdict is given at other settings."""
CURVE_POSITIONS = 5_000
"""Training positions at which the gain is told by number of entries; it takes time in proportion, up to seconds a thousand."""


async def fit(trials: Trials, task: Task, plan: FitPlan) -> FitResult:
    """Learn a bias and judge it on fresh completions. Everything received is in the trials' store: the same call resumes.

    Raises:
        ProviderError: the API failed; what was received is kept.
        InputError: nothing can be learned, for instance because no completion earned a reward.
    """
    trials = replace(trials, used=set())
    limits = _limits(trials.session, plan)  # before anything is paid for
    check_plan(trials, task, plan)
    if task.note:
        trials.report.remark(task.note)
    if plan.full_vocab:
        await check_reference(trials, task.train[: plan.limit], plan.full_vocab)
    training = await learn(trials, task, plan, limits)
    reference = None
    if plan.full_vocab:
        reference = await ask_reference(trials, task.train[: plan.limit], training, plan.full_vocab, plan.sweep.seed)
        trials.report.remark(reference.sentence)
    clusters = await clusters_of(trials, task, plan)
    kept_back = censored(training.rollouts, training.next_token, rule(plan.sweep))
    trials.report.remark(kept_back.sentence(trials.top_logprobs))
    choice = await choose(
        trials,
        task.validation,
        candidates(training.rollouts, training.next_token, plan.sweep, limits, clusters=clusters, whole=training.whole),
        training.next_token,
        samples=plan.validation_samples,
        goal=plan.goal,
        settings=plan.settings,
    )
    chosen = choice.candidate
    kept_back = kept_back.model_copy(update={"unobserved": rule(replace(plan.sweep, estimators=(chosen.estimator,)))})
    verdict = await trials.judge(task.test, plan.settings, plan.test_samples, chosen.logit_bias)
    why = explain(
        training.rollouts,
        training.next_token,
        chosen,
        trials.reward,
        verdict,
        sweep=plan.sweep,
        vocab_size=trials.tokenizer.vocabulary_size,
        top_logprobs=trials.top_logprobs,
        clusters=clusters,
        base=training.base,
    )
    bias = await _bias(trials, task, training, choice, why, kept_back, limits, verdict)
    exact = None if reference is None else fidelity(reference, training.next_token, chosen, limits)
    if exact is not None and bias.compiled is not None:
        bias = Bias(**{**dict(bias), "compiled": bias.compiled.model_copy(update={"exact": exact.record})})
    kl = await _kl(trials, task, plan, choice, training.next_token)
    uncompiled = _uncompiled(trials, bias, chosen, training, clusters)
    return FitResult(
        bias=bias,
        uncompiled=uncompiled,
        base=choice.base,
        tried=choice.tried,
        kl=kl,
        kl_missing=_why_no_kl(trials.session) if math.isnan(kl) else None,
        incomplete=training.incomplete,
        filtered=training.filtered,
        encoded=training.encoded,
        kl_whole=trials.session.end_tokens.listed is True and not (trials.may_cut_stops and training.cut),
        fidelity=exact,
        base_by_setting=choice.base_by_setting,
        entries_curve=_entries_curve(trials, uncompiled, bias, training.next_token),
        usage=FitUsage(*trials.store.spent(trials.used)),
    )


async def _kl(trials: Trials, task: Task, plan: FitPlan, choice: Choice, tail: NextToken) -> float:
    """The KL of the chosen policy at temperature 1: of what was judged there, else of a few completions drawn for it."""
    judged = SAMPLED in plan.settings
    examples, samples = (task.test, plan.test_samples) if judged else (task.test[:KL_PROMPTS], 1)
    return await trials.kl(examples, samples, choice.candidate.logit_bias, tail)


def _entries_curve(trials: Trials, learned: Bias, bias: Bias, next_token: NextToken) -> tuple[Kept, ...] | None:
    """The gain kept by number of entries, at up to ``CURVE_POSITIONS`` training positions; None where it cannot be told."""
    size = next_token.n_positions
    if size > CURVE_POSITIONS:
        chosen = np.random.default_rng(0).choice(size, CURVE_POSITIONS, replace=False)
        next_token = next_token.take(np.sort(chosen))
        trials.report.remark(f"gain by number of entries: at {CURVE_POSITIONS:,} of {size:,} training positions")
    try:
        rows = gain_by_entries(learned, trials.session.profile, next_token, bias, highest_id=trials.session.highest_id)
    except InputError as error:
        trials.report.remark(f"gain by number of entries not computed: {error}")
        return None
    return tuple(rows)


def _limits(session: Session, plan: FitPlan) -> CompileLimits:
    rules, entries = session.profile.bias, most_entries(session.profile, plan.entries)
    return CompileLimits(entries, rules.low, rules.high, plan.integers or not rules.fractions, session.highest_id)


def _why_no_kl(session: Session) -> str:
    name, where = session.profile.name, session.biased_endpoint
    if session.tells_base_logprobs:
        return "no biased completion of the test prompts lists all of its tokens"
    if where != session.endpoint:
        return f"{name} takes a bias at its {where} endpoint and returns logprobs at {session.endpoint}"
    if session.profile.logprobs.meaning == "after bias":
        return f"{name} returns logprobs of the biased policy"
    return f"it is not known whether {name} returns logprobs of the base or of the biased policy"


async def _bias(
    trials: Trials,
    task: Task,
    training: Training,
    choice: Choice,
    why: Explanation,
    kept_back: Censored,
    limits: CompileLimits,
    verdict: Sequence[Verdict],
) -> Bias:
    session, chosen = trials.session, choice.candidate
    learned = None
    if why.statistics is not None:
        learned = Learned(**asdict(why.statistics), reliability=why.agreement.reliability)
    return Bias(
        provider=session.profile.name,
        model=session.model,
        tokenizer=trials.tokenizer.fingerprint,
        vocab_size=trials.tokenizer.vocabulary_size,
        task=task.name,
        reward=trials.reward.spec,
        estimator=chosen.estimator,
        settings=chosen.settings,
        data_hash=task.data_hash,
        rollouts=len(training.everything.keys),
        tokens=len(training.everything.token_ids),
        sampling=SamplingRecord(
            max_tokens=trials.reward.max_tokens, top_logprobs=trials.top_logprobs, endpoint=session.endpoint
        ),
        censoring=kept_back,
        compiled=losses(chosen.sparse, limits.entries, integers=limits.integers),
        learned=learned,
        findings=tuple(RecordedFinding(**asdict(each)) for each in why.findings),
        verdict=tuple(verdict),
        entries=await _entries(trials, training, chosen, why),
    )


async def _entries(trials: Trials, training: Training, chosen: Candidate, why: Explanation) -> tuple[Entry, ...]:
    """The entries with what each token reads as: its bytes if an answer showed them, its text from the server."""
    known = trials.store.token_bytes(trials.tokenizer.fingerprint)
    counts = training.seen(chosen.sparse.token_ids)
    texts = await trials.session.texts_of(chosen.sparse.token_ids.tolist())
    return tuple(
        Entry(
            id=token,
            bytes=_hex(known.get(token)),
            text=text,
            bias=value,
            error=None if math.isnan(error) else error,
            seen=seen,
        )
        for (token, value), text, error, seen in zip(
            chosen.logit_bias.items(), texts, why.errors.tolist(), counts.tolist(), strict=True
        )
    )


def _uncompiled(trials: Trials, bias: Bias, chosen: Candidate, training: Training, clusters: Ids | None) -> Bias:
    """The learned vector before the compile, as a bias of its own: what other limits are compiled from, without any request."""
    tied = estimator(chosen.estimator).facts.clustered
    everything = np.arange(len(clusters)) if clusters is not None and tied else ()
    ids = np.union1d(training.next_token.token_ids, everything).astype(np.int64)
    known = trials.store.token_bytes(trials.tokenizer.fingerprint)
    values = zip(ids.tolist(), chosen.learned.tolist(), training.seen(ids).tolist(), strict=True)
    texts = {entry.id: entry.text for entry in bias.entries}
    entries = tuple(
        Entry(
            id=token,
            bytes=_hex(known.get(token)),
            text=texts.get(token, _text(known.get(token))),
            bias=value,
            seen=seen,
        )
        for token, value, seen in values
        if value
    )
    return Bias(**{**dict(bias.verified(())), "compiled": None, "entries": entries})


def _hex(raw: bytes | None) -> str | None:
    return None if raw is None else raw.hex()


def _text(raw: bytes | None) -> str | None:
    """What bytes that an answer showed read as: asking a server for the texts of thousands of tokens takes long."""
    return None if raw is None else raw.decode("utf-8", "replace")
