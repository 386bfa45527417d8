"""FitResult: the result of a fit, for programs."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Comparison, Entry
from blackbox_lb.estimate.choice.candidates import Candidate
from blackbox_lb.jobs.fitting.choosing.scorers import Measured, TriedCandidate
from blackbox_lb.records import Decisions
from blackbox_lb.rollouts.judging.decisions import DrawnShares
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.training import Training


async def sent_entries(
    trials: Trials, training: Training, chosen: Candidate, errors: Sequence[float]
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


def uncompiled_of(trials: Trials, bias: Bias, chosen: Candidate, training: Training) -> Bias:
    """The learned vector before the compile, as a bias of its own: the source for other limits,
    without any request.
    """
    ids = chosen.token_ids
    token_bytes = trials.store.token_bytes(trials.tokenizer.fingerprint)
    values = zip(ids.tolist(), chosen.learned.tolist(), training.seen(ids).tolist(), strict=True)
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
class FitUsage:
    """The completions behind a fit, drawn by this run or an earlier one.

    ``prompt_tokens`` counts the prompt once a completion, which is more than its cost where one
    request gives several.
    """

    completions: int
    prompt_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class FitResult:
    """The result of a fit.

    ``kl``: nats a completion from the base, at temperature 1.

    ``kl`` is NaN where it could not be computed, and ``kl_missing`` says why; ``kl_whole`` is False
    where the end token is not listed, or those of a stop text, so that it is the KL of the tokens
    given that the completion goes on, which is less than the whole. ``base``, ``base_by_setting``
    and ``tried``: of the validation prompts, which chose. ``incomplete``, ``filtered``: completions
    left out of the fit.
    ``decisions``: setting -> those of the base and of the biased model on the test prompts, where
    there are labels. ``beside``: a bias that depends on the prompt against the fixed one, and
    against a classifier on the same features, on the test prompts. ``shares``: setting -> the
    labels that the base and the biased model draw on the test prompts beside the wanted shares,
    where the reward compares these. ``origin``: where the chosen
    bias comes from, its entries, and what came second.
    """

    bias: Bias
    uncompiled: Bias
    base: Measured
    tried: tuple[TriedCandidate, ...]
    kl: float
    kl_missing: str | None
    incomplete: int
    filtered: int
    kl_whole: bool = True
    base_by_setting: tuple[Measured, ...] = ()
    usage: FitUsage | None = None
    decisions: Mapping[str, tuple[Decisions, Decisions]] = field(default_factory=dict)
    beside: tuple[Comparison, ...] = ()
    origin: str = ""
    shares: Mapping[str, tuple[DrawnShares, DrawnShares]] = field(default_factory=dict)

    @property
    def kl_sentence(self) -> str:
        """The KL in words, or why there is none."""
        if self.kl_missing is not None:
            return f"KL to the base not computed: {self.kl_missing}"
        if self.kl_whole:
            condition = ""
        else:
            condition = ", given where each completion ends (what ends it is not listed)"
        if self.kl == 0 and self.bias.entries:
            return f"KL to the base not distinguishable from 0 with so few completions{condition}"
        return f"KL to the base {self.kl:.2f} nats a completion at temperature 1{condition}"

    def as_json(self) -> dict[str, Any]:
        """The whole result for JSON, without the entries of the bias."""
        bias = self.bias
        return {
            "status": bias.status,
            "origin": self.origin,
            "verdict": [row.model_dump() for row in bias.verdict],
            "findings": [row.model_dump() for row in bias.findings],
            "estimator": bias.estimator,
            "chosen": dict(bias.settings),
            "entries": len(bias.entries),
            "uncompiled_entries": len(self.uncompiled.entries),
            "kl_nats_per_completion": None if math.isnan(self.kl) else self.kl,
            "kl_missing": self.kl_missing,
            "kl_whole": self.kl_whole,
            "learned": None if bias.learned is None else bias.learned.model_dump(),
            "validation": {
                "base": self.base.as_json(),
                "base_by_setting": [score.as_json() for score in self.base_by_setting],
                "tried": [row.as_json() for row in self.tried],
            },
            "training": {
                "rollouts": bias.rollouts,
                "tokens": bias.tokens,
                "incomplete": self.incomplete,
                "filtered": self.filtered,
            },
            "censoring": None if bias.censoring is None else bias.censoring.model_dump(),
            "decisions": {
                setting: {"base": base.model_dump(), "biased": biased.model_dump()}
                for setting, (base, biased) in self.decisions.items()
            },
            "shares": {
                setting: {
                    "base": [group.model_dump() for group in base.rows],
                    "biased": [group.model_dump() for group in biased.rows],
                }
                for setting, (base, biased) in self.shares.items()
            },
            "operating": None if bias.operating is None else bias.operating.as_json(),
            "beside": [row.model_dump() for row in self.beside],
            "usage": None if self.usage is None else asdict(self.usage),
        }
