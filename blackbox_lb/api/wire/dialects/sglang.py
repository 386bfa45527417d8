"""The dialect of SGLang's own answers: ``meta_info``, which names every token by its id.

Chat returns it with ``return_meta_info``; ``return_flat_raw_output_top_logprobs`` lays the
alternatives end to end instead of one list a position (SGLang 0.5.23,
``entrypoints/openai/protocol.py``).
"""

from typing import Any

from blackbox_lb.api.wire.dialects.chat import spelled
from blackbox_lb.api.wire.dialects.position import (
    AnswerDialect,
    Choice,
    Position,
    PositionReader,
    checked_id,
)
from blackbox_lb.errors import CorruptResponse, NoLogprobs

Pairs = list[tuple[int, Any]]


def _positions(reader: PositionReader, choice: Choice) -> list[Position]:
    """Every token position of ``choice``, from triples (logprob, id, text) or from flat arrays of
    logprobs and ids.
    """
    meta = choice.get("meta_info") or {}
    sampled = meta.get("output_token_logprobs")
    if sampled is None:
        raise NoLogprobs(
            f"{reader.profile.name} returned no `meta_info.output_token_logprobs`; the server is"
            " too old for return_meta_info"
        )
    provider = reader.profile.name
    tops = (_flat if "output_top_logprobs_shape" in meta else _nested)(provider, meta, len(sampled))
    if len(tops) != len(sampled):
        raise CorruptResponse(
            f"{provider} returned {len(sampled)} tokens and {len(tops)} lists of alternatives"
        )
    return [
        reader.position(checked_id(provider, token), logprob, top, reader.propensity_of(meta))
        for (logprob, token, *_), top in zip(sampled, tops, strict=True)
    ]


def _nested(provider: str, meta: dict[str, Any], n: int) -> list[Pairs]:
    rows = meta.get("output_top_logprobs") or [[]] * n
    return [
        [(checked_id(provider, token), value) for value, token, *_ in row or []] for row in rows
    ]


def _flat(provider: str, meta: dict[str, Any], n: int) -> list[Pairs]:
    """Rows of ``shape[1]`` alternatives; the first ``null_prefix`` positions have none."""
    ids = meta["output_top_logprobs_idx_flat"]
    values = meta["output_top_logprobs_val_flat"]
    (rows, width) = meta["output_top_logprobs_shape"]
    without = meta.get("output_top_logprobs_null_prefix") or 0
    if not len(ids) == len(values) == rows * width:
        raise CorruptResponse(
            f"{provider} returned {len(ids)} ids and {len(values)} logprobs of alternatives for"
            f" {rows} x {width}"
        )
    if without + rows != n:
        raise CorruptResponse(
            f"{provider} returned {n} tokens and {rows + without} lists of alternatives"
        )
    pairs = [(checked_id(provider, token), value) for token, value in zip(ids, values, strict=True)]
    return [[] for _ in range(without)] + [
        pairs[row * width : (row + 1) * width] for row in range(rows)
    ]


META = AnswerDialect(_positions, spelled)
