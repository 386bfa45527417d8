"""Open files and connections: how many this process may have, and what helps where it has all."""

from __future__ import annotations

import errno
import os
import sys

from blackbox_lb.safety.causes import causes

TOO_MANY = (errno.EMFILE, errno.ENFILE)
"""Numbers of the system's error where no more files may be opened, by this process or by all."""


def most_open_files() -> int | None:
    """Files and connections that this process may have open at once; None for no known limit."""
    if sys.platform == "win32":
        return None
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if limit == resource.RLIM_INFINITY else limit


def has_too_many(error: BaseException | None) -> bool:
    """Whether an error, or one that it comes from, is that no more files may be opened."""
    return any(isinstance(cause, OSError) and cause.errno in TOO_MANY for cause in causes(error))


def none_left() -> bool:
    """Whether no more files may be opened now: some libraries do not say why they cannot."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY))
    except OSError as error:
        return error.errno in TOO_MANY
    return False


def remedy_for_too_many() -> str:
    """What helps where no more files may be opened."""
    limit = most_open_files()
    allowed = "" if limit is None else f", which is {limit} now"
    return f"raise the limit on open files (ulimit -n{allowed}), or ask for less at once"
