"""Files of settings that the user trusts, by path and hash of the contents.

Each has a small file in the user's state folder. A settings file that is moved or changed is not
trusted any more.
"""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

from platformdirs import user_state_path

from blackbox_lb.safety.files import explained, write_whole

REMEDY = "make that folder writable"


def trusted_folder() -> Path:
    """The folder of the trusted files: below ``XDG_STATE_HOME`` on Linux, elsewhere by custom."""
    return user_state_path("blackbox_lb") / "trusted"


def is_trusted(path: Path, contents: Any) -> bool:
    """Whether the user trusts the file with these contents, which JSON can write."""
    try:
        return _entry(path).read_text(encoding="utf-8") == _record(path, contents)
    except (OSError, ValueError):
        return False


def trust(path: Path, contents: Any) -> None:
    """Trust the file with these contents from now on.

    Raises:
        InputError: the user's state folder cannot be written.
    """
    entry = _entry(path)
    with explained(f"remember in {entry.parent} that {path} is trusted", REMEDY):
        entry.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(entry, _record(path, contents).encode())


def forget(path: Path) -> bool:
    """Trust the file no longer, and return whether it was trusted.

    Raises:
        InputError: the user's state folder cannot be written.
    """
    entry = _entry(path)
    with explained(f"forget in {entry.parent} that {path} is trusted", REMEDY):
        was_trusted = entry.exists()
        entry.unlink(missing_ok=True)
    return was_trusted


def _entry(path: Path) -> Path:
    return trusted_folder() / f"{_hash(str(path.resolve()))}.json"


def _record(path: Path, contents: Any) -> str:
    digest = _hash(json.dumps(contents, default=str))
    return json.dumps({"path": str(path.resolve()), "sha256": digest}) + "\n"


def _hash(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
