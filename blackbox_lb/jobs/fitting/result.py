"""What a fit returns: the bias, the learned vector before its compile, and the record of both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from blackbox_lb.api.session import Session
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Compiled, Entry, PromptRecord, SamplingRecord
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.estimate.choice.candidates import Candidate
from blackbox_lb.estimate.choice.table import ROWS, rule
from blackbox_lb.estimate.reweighting import censoring_of
from blackbox_lb.jobs.compiling.compile import compile_report
from blackbox_lb.jobs.fitting.document import (
    FitResult,
    FitUsage,
    TrainingCounts,
    Validation,
    known,
)
from blackbox_lb.jobs.fitting.evidence.selection import Selected
from blackbox_lb.jobs.fitting.explain import Explanation
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.judge import Judgement
from blackbox_lb.jobs.fitting.scored_policies import SettingTest
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.records import Censoring, Scalar
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.rollouts.reading import CUT, FILTERED, INCOMPLETE


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit returns.

    Attributes:
        bias: as it is sent, with its verdict.
        uncompiled: the learned vector before the compile; where decisions are mended, ``bias``.
        result: every number of the fit.
        tests: the completions of the test prompts with their scores.
    """

    bias: Bias
    uncompiled: Bias
    result: FitResult
    tests: tuple[SettingTest, ...]


async def written(
    job: FitJob, selected: Selected, sent: RequestBias, test: Judgement, why: Explanation
) -> Bias:
    """The bias as its file holds it.

    Args:
        job: the fit.
        selected: the chosen candidate, with what it was learned from.
        sent: the bias that was judged.
        test: its numbers.
        why: what explains the verdict.
    """
    trials = job.trials
    choice = selected.choice
    chosen = choice.candidate
    compiled: Compiled | None = compile_report(
        chosen.sparse, job.limits.entries, integers=job.limits.integers
    )
    errors = why.errors
    if choice.richer is not None:
        chosen = choice.richer.candidate
        compiled = None
        errors = choice.richer.errors
    learned_from = selected.positions.learned_from
    return Bias(
        phrases=phrases_of(job.plan),
        features=sent.features,
        sent=sent.sent,
        provider=trials.session.profile.name,
        model=trials.session.model,
        tokenizer=trials.tokenizer.fingerprint,
        vocab_size=trials.tokenizer.vocabulary_size,
        task=job.task.name,
        reward=trials.reward.name,
        estimator=chosen.estimator,
        settings=chosen.settings | _settings(job.plan),
        data_hash=job.task.data_hash,
        rollouts=len(learned_from.keys),
        tokens=len(learned_from.token_ids),
        sampling=SamplingRecord(
            max_tokens=trials.reward.max_tokens,
            top_logprobs=trials.top_logprobs,
            endpoint=trials.session.endpoint,
        ),
        prompts=prompts_of(job.plan),
        censoring=_censoring(job.plan, selected.positions, chosen),
        compiled=compiled,
        learned=why.learned,
        findings=why.findings,
        verdict=tuple(test.verdict),
        operating=test.operating,
        calibration=selected.calibration,
        entries=await sent_entries(trials, selected.positions, chosen, errors.tolist()),
    )


def prompts_of(plan: Plan) -> PromptRecord | None:
    """How the plan makes prompts of the data; None where it sends them as they are."""
    if plan.prompt_template is None and plan.system is None:
        return None
    return PromptRecord(template=plan.prompt_template, system=plan.system)


def phrases_of(plan: Plan) -> tuple[str, ...]:
    """The phrases that the sender is to keep out, as the bias file writes them."""
    if plan.parsed_phrases is None:
        return ()
    return plan.parsed_phrases.entries


def _settings(plan: Plan) -> dict[str, Scalar]:
    """What the plan adds to the settings of the chosen candidate."""
    settings: dict[str, Scalar] = {}
    if plan.learn_from != "samples":
        settings["learn_from"] = plan.learn_from
    if plan.confined_to is not None:
        settings["phases"] = plan.confined_to.spec
    return settings


def _censoring(plan: Plan, positions: Positions, chosen: Candidate) -> Censoring | None:
    """The tokens that the provider withheld, with the rule that the estimator of the chosen
    candidate uses for them; None where nothing was sampled.
    """
    if plan.learn_from != "samples":
        return None
    sweep = plan.sweep
    if chosen.estimator in ROWS:
        sweep = replace(sweep, estimators=(chosen.estimator,))
    return censoring_of(positions.rollouts, positions.next_token, rule(sweep))


async def sent_entries(
    trials: Trials, training: Positions, chosen: Candidate, errors: Sequence[float]
) -> tuple[Entry, ...]:
    """The sent entries, each with its token's bytes if an answer showed them, and its text from the
    server.

    errors: (k,) nats, the standard error of each, NaN where it has none.
    """
    token_bytes = trials.store.token_bytes(trials.tokenizer.fingerprint)
    counts = training.seen(chosen.sparse.token_ids)
    texts = await trials.session.texts_of(chosen.sparse.token_ids.tolist())
    return tuple(
        Entry(
            id=token,
            bytes=_hex(token_bytes.get(token)),
            text=text,
            bias=value,
            error=None if math.isnan(error) else error,
            seen=count,
        )
        for (token, value), text, error, count in zip(
            chosen.logit_bias.items(), texts, errors, counts.tolist(), strict=True
        )
    )


def uncompiled_of(trials: Trials, bias: Bias, chosen: Candidate, training: Positions) -> Bias:
    """The learned vector before the compile, as a bias of its own: the source for other limits,
    without any request.
    """
    ids = chosen.token_ids
    token_bytes = trials.store.token_bytes(trials.tokenizer.fingerprint)
    values = zip(ids.tolist(), chosen.values.tolist(), training.seen(ids).tolist(), strict=True)
    texts = {
        entry.id: entry.text for entry in bias.entries
    }  # the others' are those of their bytes: a server takes long for many
    entries = tuple(
        Entry(
            id=token,
            bytes=_hex(token_bytes.get(token)),
            text=texts.get(
                token,
                token_bytes[token].decode("utf-8", "replace") if token in token_bytes else None,
            ),
            bias=value,
            seen=count,
        )
        for token, value, count in values
        if value
    )
    return bias.verified(()).replacing(
        features=(),
        sent=None,
        operating=None,
        compiled=None,
        entries=entries,
    )


def _hex(raw: bytes | None) -> str | None:
    if raw is None:
        return None
    return raw.hex()


def recorded(
    job: FitJob, selected: Selected, test: Judgement, bias: Bias, uncompiled: Bias
) -> Fitted:
    """The result of a fit; arguments as in ``written``."""
    trials = job.trials
    choice = selected.choice
    tally = selected.positions.tally
    why_no_kl = None
    if math.isnan(test.kl):
        why_no_kl = _why_no_kl(trials.session)
    completions, prompt_tokens, completion_tokens = trials.store.spent(trials.used)
    result = FitResult(
        status=bias.status,
        origin=choice.sentence,
        verdict=bias.verdict,
        findings=bias.findings,
        estimator=bias.estimator,
        chosen=dict(bias.settings),
        entries=len(bias.entries),
        uncompiled_entries=len(uncompiled.entries),
        kl_nats_per_completion=known(test.kl),
        kl_missing=why_no_kl,
        kl_whole=trials.session.end_tokens.listed is True
        and not (trials.may_cut_stops and tally[CUT]),
        learned=bias.learned,
        validation=Validation(base=choice.base, tried=choice.tried),
        training=TrainingCounts(
            rollouts=bias.rollouts,
            tokens=bias.tokens,
            incomplete=tally[INCOMPLETE],
            filtered=tally[FILTERED],
        ),
        censoring=bias.censoring,
        decisions=test.decisions,
        shares=test.shares,
        operating=None if bias.operating is None else bias.operating.as_json(),
        beside=test.beside,
        by_words=selected.by_words,
        usage=FitUsage(
            completions=completions,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
        ),
    )
    return Fitted(bias, uncompiled, result, test.tests)


def _why_no_kl(session: Session) -> str:
    """The reason why there is no KL, in words."""
    name = session.profile.name
    where = session.biased_endpoint
    if session.tells_base_logprobs:
        return "no biased completion of the test prompts lists all of its tokens"
    if where != session.endpoint:
        return (
            f"{name} takes a bias at its {where} endpoint and returns logprobs at"
            f" {session.endpoint}"
        )
    if session.profile.logprobs.meaning == "after bias":
        return f"{name} returns logprobs of the biased policy"
    return f"it is not known whether {name} returns logprobs of the base or of the biased policy"
