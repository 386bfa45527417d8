"""Types of arrays."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Bools", "Ids", "Vector"]

Bools: TypeAlias = npt.NDArray[np.bool_]
Ids: TypeAlias = npt.NDArray[np.int64]
Vector: TypeAlias = npt.NDArray[np.float64]
