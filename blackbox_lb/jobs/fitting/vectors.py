"""The chosen vector as the entries of a bias file: the sent ones, and all learned ones."""

import math
from collections.abc import Sequence

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.estimate.choice.candidates import Candidate
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.training import Training


async def sent_entries(
    trials: Trials, training: Training, chosen: Candidate, errors: Sequence[float]
) -> tuple[Entry, ...]:
    """The sent entries, each with its token's bytes if an answer showed them, and its text from the
    server.

    errors: (k,) nats, the standard error of each, NaN where it has none.
    """
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
            chosen.logit_bias.items(), texts, errors, counts.tolist(), strict=True
        )
    )


def uncompiled_of(trials: Trials, bias: Bias, chosen: Candidate, training: Training) -> Bias:
    """The learned vector before the compile, as a bias of its own: the source for other limits,
    without any request.
    """
    ids = chosen.token_ids
    known = trials.store.token_bytes(trials.tokenizer.fingerprint)
    values = zip(ids.tolist(), chosen.learned.tolist(), training.seen(ids).tolist(), strict=True)
    texts = {
        entry.id: entry.text for entry in bias.entries
    }  # the others' are those of their bytes: a server takes long for many
    entries = tuple(
        Entry(
            id=token,
            bytes=_hex(known.get(token)),
            text=texts.get(
                token, known[token].decode("utf-8", "replace") if token in known else None
            ),
            bias=value,
            seen=seen,
        )
        for token, value, seen in values
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
    return None if raw is None else raw.hex()
