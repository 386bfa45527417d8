"""What a fit returns: the bias, the learned vector before its compile, and the record of both."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.estimate.choice.candidates import Candidate
from blackbox_lb.jobs.fitting.document import FitResult, FitUsage, TrainingCounts, known
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.rollouts.reading import FILTERED, INCOMPLETE


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


@dataclass(frozen=True, slots=True)
class Fitted:
    """What a fit returns. bias: as it is sent, with its verdict. uncompiled: the learned vector
    before the compile. result: every number of the fit.
    """

    bias: Bias
    uncompiled: Bias
    result: FitResult


def recorded(
    bias: Bias,
    uncompiled: Bias,
    training: Positions,
    *,
    kl: float,
    usage: tuple[int, int, int],
    **fields: Any,
) -> Fitted:
    """The result of a fit.

    kl: nats a completion, NaN where it could not be computed. usage: completions, tokens of their
    prompts, and tokens. fields: the other fields of FitResult that are not those of the bias.
    """
    completions, prompt_tokens, completion_tokens = usage
    result = FitResult(
        status=bias.status,
        verdict=bias.verdict,
        findings=bias.findings,
        estimator=bias.estimator,
        chosen=dict(bias.settings),
        entries=len(bias.entries),
        uncompiled_entries=len(uncompiled.entries),
        kl_nats_per_completion=known(kl),
        learned=bias.learned,
        training=TrainingCounts(
            rollouts=bias.rollouts,
            tokens=bias.tokens,
            incomplete=training.tally[INCOMPLETE],
            filtered=training.tally[FILTERED],
        ),
        censoring=bias.censoring,
        operating=None if bias.operating is None else bias.operating.as_json(),
        usage=FitUsage(
            completions=completions,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
        ),
        **fields,
    )
    return Fitted(bias, uncompiled, result)
