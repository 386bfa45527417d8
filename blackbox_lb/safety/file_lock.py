"""Locks between processes, on a file: held by a process, and released by its death."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from blackbox_lb.errors import InputError


@contextmanager
def locked(path: Path, refusal: str, *, reentrant: bool = False) -> Iterator[None]:
    """Hold the lock on the file ``path``, which is made and stays.

    Args:
        refusal: the sentence where somebody else holds it.
        reentrant: this process may hold it already.

    Raises:
        InputError: somebody else holds it, or the file cannot be written.
    """
    from filelock import FileLock, Timeout  # loads asyncio, which most commands do without

    lock = FileLock(path, timeout=0, is_singleton=reentrant, thread_local=False)
    try:
        lock.acquire()
    except Timeout as error:
        raise InputError(refusal) from error
    except OSError as error:
        raise InputError(
            f"cannot lock {path}: {error.strerror or error}; give another ``out``"
        ) from error
    try:
        yield
    finally:
        lock.release()
