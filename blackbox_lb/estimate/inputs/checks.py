"""Checks of an estimator's arguments, and the names of its arrays."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError

Vector: TypeAlias = npt.NDArray[np.float64]
Ids: TypeAlias = npt.NDArray[np.int64]
Bools: TypeAlias = npt.NDArray[np.bool_]


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
