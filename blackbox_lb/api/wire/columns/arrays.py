"""The columns of a chat answer's list as the arrays of a completion: the checks of
``position.Reader``, for all positions at once.

Where one would complain, or would have to look closer at a position, it raises
``UnsupportedLayout`` and ``position.Reader`` takes over.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.api.wire.columns.byte_spans import UnsupportedLayout
from blackbox_lb.api.wire.dialects.position import LEAST, ROUNDING, PositionReader
from blackbox_lb.errors import BlbError
from blackbox_lb.types import NO_TOKEN, UNNAMED, ListedBytes

Table = tuple[npt.NDArray[np.int32], npt.NDArray[np.float64]]


@dataclass(frozen=True, slots=True)
class LogprobColumns:
    """The contents of a list: t positions with ``widths`` (t,) alternatives each.

    ``ids`` (t,) and ``logprobs`` (t,) float64: of the sampled tokens, unchecked; ``listed``: the
    alternatives (see ``sort``).
    ``token_bytes``: id -> bytes of the alternatives, where the profile's are exact.
    """

    ids: Any
    logprobs: Any
    widths: Any
    listed: Table
    token_bytes: ListedBytes


def arrays_of(
    reader: PositionReader, choice: dict[str, Any], columns: LogprobColumns
) -> dict[str, Any]:
    """The fields of a ``Completion`` from the list ``columns`` of ``choice``, equal to those of
    ``position.Reader``.

    Raises UnsupportedLayout: the equality is not certain.
    """
    if choice["logprobs"].get("refusal"):
        raise UnsupportedLayout("two lists")
    try:
        ids = _sampled(reader, choice, columns.ids)
    except (BlbError, TypeError, ValueError, OverflowError) as error:
        raise UnsupportedLayout(str(error)[:200]) from error
    listed = columns.listed
    sure = _sure(reader, columns.widths)
    logprobs, bounded = _own(reader, ids, columns, listed, sure)
    top_ids, top_logprobs = _cut(listed, sure)
    return {
        "token_ids": ids,
        "logprobs": logprobs.astype(np.float32),
        "top_ids": top_ids,
        "top_logprobs": top_logprobs.astype(np.float32),
        "whole": not (ids == UNNAMED).any(),
        "token_bytes": columns.token_bytes,
        "propensities": None,
        "bounded": bounded if bounded.any() else None,
    }


def _sampled(reader: PositionReader, choice: dict[str, Any], named: Any) -> Any:
    """The sampled ids (t,): those listed in the choice, if it lists them, and then no other is
    named.
    """
    given = reader.sampled_ids(choice, len(named))
    if given is None:
        return named
    ids = np.array(given, dtype=np.int32)
    if ((named != ids) & (named != UNNAMED)).any():
        raise UnsupportedLayout("another token is named than was sampled")
    return ids


def _checked(values: Any) -> Any:
    """Logprobs of at most 0; none that stands for something else."""
    if len(values) and not (values.max() <= ROUNDING and values.min() > LEAST):
        raise UnsupportedLayout("a logprob that the plain reader has to judge")
    return np.where(values > 0, 0.0, values)


def sort(widths: Any, top_ids: Any, top_logprobs: Any) -> Table:
    """All alternatives (t, k), from the most likely, equal ones by id, padded with -1 and -inf.
    Raises UnsupportedLayout.
    """
    t = len(widths)
    k = int(widths.max(initial=0))
    if len(top_ids) == t * k:  # as wide everywhere
        ids = top_ids.reshape(t, k)
        logprobs = _checked(top_logprobs).reshape(t, k)
    else:
        ids = np.full((t, k), NO_TOKEN, np.int32)
        logprobs = np.full((t, k), -np.inf)
        there = np.arange(k) < widths[:, None]
        ids[there], logprobs[there] = top_ids, _checked(top_logprobs)
    here = logprobs[:, :-1]
    after = logprobs[:, 1:]
    in_order = (here > after) | ((here == after) & (ids[:, :-1] <= ids[:, 1:]))
    rows = (~in_order.all(axis=1)).nonzero()[0]
    if len(rows):
        order = np.lexsort((ids[rows], -logprobs[rows]), axis=-1)
        ids[rows] = np.take_along_axis(ids[rows], order, axis=1)
        logprobs[rows] = np.take_along_axis(logprobs[rows], order, axis=1)
    by_id = np.sort(ids, axis=1)
    if ((by_id[:, 1:] == by_id[:, :-1]) & (by_id[:, 1:] >= 0)).any():
        raise UnsupportedLayout("a token is listed twice")
    return ids, logprobs


def _sure(reader: PositionReader, widths: Any) -> Any:
    """The number of a position's alternatives that are surely more likely than all unlisted tokens;
    see ``position.likeliest``.
    """
    if reader.asked < 0:
        return widths
    replaced = reader.rules.sampled_in_list == "replaces the last"
    return np.maximum(np.minimum(widths, reader.asked) - int(replaced), 0)


def _own(
    reader: PositionReader, ids: Any, columns: LogprobColumns, listed: Table, sure: Any
) -> tuple[Any, Any]:
    """The sampled tokens' logprobs (t,), and where they are only bounds; see
    ``position.Reader.position``.
    """
    logprobs = columns.logprobs
    censored = reader.profile.logprobs.censored
    hidden = np.zeros(len(ids), np.bool_) if censored is None else logprobs == censored
    if censored is not None and (listed[1] == censored).any():
        raise UnsupportedLayout("an alternative without a logprob")
    bounded = hidden.copy()
    if hidden.any():
        logprobs = logprobs.copy()
        for t in np.flatnonzero(hidden):
            here = np.flatnonzero((listed[0][t] == ids[t]) & (ids[t] != UNNAMED))
            bounded[t] = not len(here)
            last = listed[1][t, sure[t] - 1] if sure[t] else 0.0
            logprobs[t] = listed[1][t, here[0]] if len(here) else last
    return _checked(logprobs), bounded


def _cut(listed: Table, sure: Any) -> Table:
    """The certain alternatives, as narrow as the longest row of them."""
    width = int(sure.max(initial=0))
    ids = listed[0][:, :width]
    logprobs = listed[1][:, :width]
    if len(sure) and sure.min() == ids.shape[1]:
        return ids.copy(), logprobs
    beyond = np.arange(ids.shape[1]) >= sure[:, None]
    return np.where(beyond, np.int32(NO_TOKEN), ids), np.where(beyond, -np.inf, logprobs)
