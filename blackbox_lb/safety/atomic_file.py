"""Files of the user: paths as they are meant, and atomic writes, so that a reader, or a crash,
meets the old file or the new one, never a part of it. A failure names its remedy.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from blackbox_lb.errors import InputError
from blackbox_lb.safety.open_files import has_too_many, remedy_for_too_many


def expanded(path: str | os.PathLike[str]) -> Path:
    """The path with a leading ``~`` or ``~user`` as that home; unchanged where there is none, as in
    a shell.
    """
    return Path(os.path.expanduser(path))  # noqa: PTH111  (pathlib's raises RuntimeError)


@contextmanager
def replacing(path: Path, draft: str | None = None) -> Iterator[Path]:
    """Open a draft beside ``path``, which replaces the file when the body ends well and is removed
    when it fails.

    Afterwards a crash cannot lose the new file. draft: the draft's name, where the body needs a
    certain one; by default each draft has a hidden name of its own, so several may write at once.
    Raises OSError.
    """
    new = path.with_name(draft or f".{path.name}.{secrets.token_hex(4)}.part")
    try:
        yield new
        with new.open("rb+") as file:
            os.fsync(file.fileno())
        new.replace(path)
        _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            new.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """Put ``content`` in place of the file, as ``replacing`` does. Raises OSError."""
    with replacing(path) as draft, draft.open("xb") as file:
        file.write(content)


@contextmanager
def explained(doing: str, remedy: str) -> Iterator[None]:
    """Raise InputError for an OSError of the body, in the form "cannot ``doing``: the reason;
    ``remedy``".
    """
    try:
        yield
    except OSError as error:
        if has_too_many(error):
            remedy = remedy_for_too_many()
        raise InputError(f"cannot {doing}: {error.strerror or error}; {remedy}") from error


def _sync_folder(folder: Path) -> None:
    """Make a rename in the folder durable, where the system lets a folder be opened."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
