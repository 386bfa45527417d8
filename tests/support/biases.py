"""Bias files with features, made by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.features import FeatureVector, PromptFeature, parse_feature
from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.records import Entry, Verdict
from blackbox_lb.bias.request_bias import SentRange
from blackbox_lb.vocabulary.tokenizer import PROBE_TEXT, fingerprint
from tests.support.exact import ExactServer

FIELDS: dict[str, Any] = {
    "provider": "vllm",
    "model": "m",
    "tokenizer": "t",
    "reward": "contains",
    "estimator": "projection",
}
WIDE = SentRange(low=-1e6, high=1e6)
Values = Mapping[int, float]


def bias_of(*entries: Entry, **fields: Any) -> Bias:
    """A bias of these entries."""
    return Bias(**(FIELDS | {"entries": entries} | fields))


def exact_bias(server: ExactServer, *entries: Entry, **fields: Any) -> Bias:
    """One that was learned of the model behind a server."""
    tokenizer = fingerprint(server.tokenize(PROBE_TEXT))
    own = {"provider": "llamacpp", "model": "exact", "tokenizer": tokenizer}
    return bias_of(*entries, **(own | fields))


def feature(spec: str) -> PromptFeature:
    """The feature of the prompt that a command line names."""
    found = parse_feature(spec)
    assert found is not None
    return found


def length_verdict(setting: str, word: Literal["HELPS", "NO EVIDENCE", "HURTS"]) -> Verdict:
    """A verdict on completions that became twice as long."""
    return Verdict(
        metric="length",
        setting=setting,
        base=1.0,
        biased=2.0,
        difference=1.0,
        low=0.5,
        high=1.5,
        p=0.01,
        n_prompts=9,
        n_base=9,
        n_biased=9,
        better="higher",
        verdict=word,
    )


def prompt_bias(
    spec: str,
    vectors: Sequence[FeatureVector],
    *,
    integers: bool = False,
    probe: tuple[float, ...] = (),
    **fields: Any,
) -> Bias:
    """A bias that depends on the prompt, by default of the tokens 5 and 9."""
    made = feature(spec).replacing(vectors=tuple(vectors))
    if probe:
        made = made.replacing(probe=probe)
    entries = (Entry(id=5, bias=1.0), Entry(id=9, bias=-2.0))
    sent = SentRange(low=-100.0, high=100.0, integers=integers)
    return Bias(**(FIELDS | {"entries": entries, "features": (made,), "sent": sent} | fields))


def phased_bias(
    spec: str, wholes: Sequence[Values], features: Sequence[PromptFeature] = (), **fields: Any
) -> Bias:
    """A bias with phases, from the whole vector of each feature where it holds alone, and of the
    rest last; ``features`` of the prompt beside them. A bias that is confined to the first tokens
    has the first of ``wholes``.
    """
    *named, rest = wholes
    ids = sorted({token for values in wholes for token in values})
    phases = Phases.parse([spec])
    if phases.confined:
        rest = wholes[0]
        moved = phases.features
    else:
        moved = tuple(
            row.one_vector([values.get(token, 0.0) - rest.get(token, 0.0) for token in ids])
            for row, values in zip(phases.features, named, strict=True)
        )
    entries = tuple(Entry(id=token, bias=rest.get(token, 0.0)) for token in ids)
    rows = (*features, *moved)
    return Bias(**(FIELDS | {"entries": entries, "features": rows, "sent": WIDE} | fields))


def in_phase(wholes: Sequence[Values], phase: int) -> dict[int, float]:
    """The vector of ``phased_bias`` in a phase, before it is rounded."""
    *named, rest = wholes
    total = dict(rest)
    for j, values in enumerate(named):
        if phase & 1 << j:
            for token in {*values, *rest}:
                change = values.get(token, 0.0) - rest.get(token, 0.0)
                total[token] = total.get(token, 0.0) + change
    return total
