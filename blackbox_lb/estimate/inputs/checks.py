"""Checks of an estimator's arguments, and the names of its arrays.

Index letters: ``n`` rollouts, ``m`` token positions laid end to end, ``s`` the sorted support of
token ids.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts

Vector: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]

POSITIVE_TOLERANCE = 1e-3
"""Largest logprob above 0 that counts as rounding (float32 and quantised servers print 1e-7 to
1e-4) and is read as 0.
"""


def positive(name: str, value: float) -> float:
    """Return ``value`` if it is finite and above 0. Raises InputError otherwise."""
    if not (np.isfinite(value) and value > 0):
        raise InputError(f"{name} is {value}; it must be a finite number above 0")
    return float(value)


def vector(name: str, values: npt.ArrayLike, size: int) -> Vector:
    """``values`` as float64 of shape (size,), all finite. Raises InputError otherwise."""
    array = np.asarray(values, dtype=np.float64)
    if array.shape != (size,):
        raise InputError(f"{name} has shape {array.shape}; it must be ({size},)")
    if not np.isfinite(array).all():
        raise InputError(
            f"{name} holds {array[~np.isfinite(array)][0]}; every value must be finite"
        )
    return array


def weight_vector(name: str, values: npt.ArrayLike | None, size: int) -> Vector:
    """Weights of shape (size,), none negative and not all 0; None weighs each 1."""
    array = np.ones(size) if values is None else vector(name, values, size)
    if (array < 0).any():
        raise InputError(f"{name} holds {array.min()}; weights must not be negative")
    if not array.any():
        raise InputError(f"{name} are all 0; at least one position must count")
    return array


def clean_logprobs(
    name: str, logprobs: npt.NDArray[np.float32], rollouts: Rollouts, rows: Ids
) -> Vector:
    """Logprobs as float64 with rounding above 0 clamped; NaN and positive values are refused by
    rollout key.

    logprobs: any shape in nats. rows: the rollout of each value, the same shape.
    """
    values = logprobs.astype(np.float64)
    if values.size and not values.max() <= POSITIVE_TOLERANCE:  # nor is NaN
        corrupt = np.isnan(values) | (values > POSITIVE_TOLERANCE)
        value = values[corrupt][0]
        key = rollouts.keys[int(rows[corrupt][0])]
        raise InputError(
            f"{name} {value} in rollout {key}; a logprob must be a number, at most 0"
            f" ({int(corrupt.sum())} of {values.size} are not): discard this rollout and sample it"
            " again"
        )
    return np.minimum(values, 0.0, out=values)


def sampled_ids(rollouts: Rollouts, rows: Ids) -> Ids:
    """(m,) the sampled ids. Raises InputError, naming the rollout: an invalid one. rows: (m,) the
    rollout of each position.
    """
    if rollouts.token_ids.size and int(rollouts.token_ids.min()) < 0:
        where = int(np.argmin(rollouts.token_ids))
        raise InputError(
            f"token id {rollouts.token_ids[where]} in rollout {rollouts.keys[int(rows[where])]};"
            " ids of sampled tokens start at 0: discard this rollout"
        )
    return rollouts.token_ids.astype(np.int64)
