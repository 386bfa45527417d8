"""Scratch: large arrays in memory up to a budget, beyond it in a file that lives as long as they
do.
"""

import mmap
import os
import tempfile
import threading
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import StoreError

SEGMENT = 1 << 28
"""Least bytes of one mapping: each holds a file descriptor, and a process may have a few hundred.
"""
ALIGNED = 64


class Scratch:
    """Allocates arrays: ``budget`` bytes of them in memory, later ones in unnamed temporary files
    in ``folder``.

    The operating system may page the latter out, so they take no memory that another program needs.
    Nobody has to free them: a file goes when the last array in it does, or with the process.
    """

    def __init__(self, folder: Path, budget: int) -> None:
        self._folder = folder
        self._left = budget
        self._segment: mmap.mmap | None = None
        self._used = self._size = 0
        self._lock = threading.Lock()

    def __call__(self, size: int, dtype: type[np.generic], /) -> npt.NDArray[Any]:
        """A writable array of shape (size,), for any thread. StoreError: the disk is full, or
        nothing can be written there.
        """
        with self._lock:
            return self._given(size, dtype)

    def _given(self, size: int, dtype: type[np.generic]) -> npt.NDArray[Any]:
        length = size * np.dtype(dtype).itemsize
        if length <= self._left:
            self._left -= length
            return np.empty(size, dtype)
        if self._segment is None or length > self._size - self._used:
            self._used = 0
            self._size = max(SEGMENT, length)
            self._segment = _mapped(self._folder, self._size)
        array = np.frombuffer(self._segment, dtype, size, self._used)
        self._used += -(-length // ALIGNED) * ALIGNED
        return array[:]  # scipy copies an array whose base is larger than itself, or no array


def _mapped(folder: Path, length: int) -> mmap.mmap:
    try:
        with tempfile.TemporaryFile(dir=folder, prefix="blb-") as file:
            _reserve(cast(BinaryIO, file), length)
            return mmap.mmap(file.fileno(), length)
    except OSError as error:
        raise StoreError(
            f"the listed tokens need {length:,} bytes in {folder} while they are worked on:"
            f" {error}; free some space there, or move the rollout store to a larger disk"
        ) from error


def _reserve(file: BinaryIO, length: int) -> None:
    """Reserve the space at once: a write to a mapping on a full disk would end the process."""
    reserve = getattr(os, "posix_fallocate", None)  # neither on Windows nor on macOS
    if reserve is not None:
        reserve(file.fileno(), 0, length)
        return
    zeros = bytes(1 << 20)
    for start in range(0, length, len(zeros)):
        file.write(zeros[: length - start])
    file.flush()
