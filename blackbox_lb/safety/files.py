"""Files of the user: paths, atomic writes, locks between processes, the limit on open files.

An atomic write means that a reader, or a crash, meets the old file or the new one, never a part.
"""

from __future__ import annotations

import errno
import os
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import causes

OTHER_FILES = 48
"""Files that a command has open beside its connections: libraries, the store, logs."""
TOO_MANY = (errno.EMFILE, errno.ENFILE)
"""Numbers of the system's error where no more files may be opened, by this process or by all."""


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with a leading ``~`` or ``~user`` as that home.

    A home that does not exist stays as it is written, as in a shell.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111  (pathlib's raises RuntimeError)


def exists(path: str | os.PathLike[str]) -> bool:
    """Whether there is something at the path, which may be a text that is none: too long for the
    name of a file, or with a zero byte.
    """
    return os.path.exists(path)  # noqa: PTH110  (pathlib's raises OSError for such a text)


# --- Atomic writes


@contextmanager
def replacing(path: Path, draft: str | None = None) -> Iterator[Path]:
    """Open a draft beside ``path``; it replaces the file when the body ends without an error.

    Afterwards a crash cannot lose the new file. After an error the draft is removed.

    Args:
        path: the file to replace; it need not exist.
        draft: the draft's name, where the body needs a certain one. By default each draft has a
            hidden name of its own, so several may write at once.

    Raises:
        OSError: the file cannot be written.
    """
    new = path.with_name(draft or f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield new
        with new.open("rb+") as file:
            os.fsync(file.fileno())
        new.replace(path)
        # Makes the rename durable, where the system lets a folder be opened.
        with suppress(OSError):
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Put ``content`` in place of the file, as ``replacing`` does. Raises OSError."""
    with replacing(path) as draft, draft.open("xb") as file:
        file.write(content)


@contextmanager
def explained(doing: str, remedy: str) -> Iterator[None]:
    """Turn an OSError of the body into an InputError, "cannot ``doing``: reason; ``remedy``"."""
    try:
        yield
    except OSError as error:
        if has_too_many(error):
            remedy = remedy_for_too_many()
        raise InputError(f"cannot {doing}: {error.strerror or error}; {remedy}") from error


# --- Locks


@contextmanager
def locked(path: Path, refusal: str, *, reentrant: bool = False) -> Iterator[None]:
    """Hold a lock between processes on the file ``path``; the death of the process releases it.

    Args:
        path: the lock's file, which is created and stays.
        refusal: the message where another process holds the lock.
        reentrant: this process may hold it already.

    Raises:
        InputError: another process holds it, or the file cannot be written.
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


# --- The limit on open files


def most_open_files() -> int | None:
    """Files and connections that this process may have open at once; None for no known limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return None
    return limit


def most_connections(most: int, files_each: int = 1) -> int:
    """Connections at a time: ``most``, or as many of ``files_each`` as this process may have files
    open, less ``OTHER_FILES``.
    """
    files = most_open_files()
    if files is None:
        return most
    return max(1, min(most, (files - OTHER_FILES) // files_each))


def has_too_many(error: BaseException | None) -> bool:
    """Whether an error, or a cause of it, is the limit on open files."""
    return any(isinstance(cause, OSError) and cause.errno in TOO_MANY for cause in causes(error))


def none_left() -> bool:
    """Whether no more files may be opened now.

    Some libraries do not say why they cannot open a file.
    """
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in TOO_MANY
    return False


def remedy_for_too_many() -> str:
    """The remedy where no more files may be opened."""
    limit = most_open_files()
    allowed = ""
    if limit is not None:
        allowed = f", which is {limit} now"
    return f"raise the limit on open files (ulimit -n{allowed}), or ask for less at once"
