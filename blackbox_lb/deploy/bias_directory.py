"""A server's directory of bias files: read by name, again when a file changes, and only if they fit
the served model.

Pure Python, so that it runs in the process that answers HTTP as well as beside the model.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import BiasError, BlbError
from blackbox_lb.safety.printable import first_line, legible, printable, shorten

FIELD = "blb_bias"
"""The argument of a request that names its bias."""
FEATURES = "blb_features"
"""The argument of a request with the numbers of its prompt, [NAME, NUMBER, NAME, NUMBER, ...]."""
MOST_FEATURES = 20_000
"""Names and numbers of a request: a text that is read whole has fewer different words."""
NO_BIAS = "none"
"""The name with which a request opts out of the server's default."""
CHECK_SECONDS = 1.0
"""Shortest time between two looks at the files."""
LARGEST = 3.4028234e38
"""Nats; the largest bias that a server's float32 vector holds."""
SHOWN = 10
"""Most names that an error message lists."""

T = TypeVar("T")
Stamp: TypeAlias = tuple[int, int, int]


class Asked(NamedTuple):
    """The bias that a request asks for, and the numbers of its prompt by their names; None where it
    sends none.
    """

    name: str
    numbers: tuple[tuple[str, float], ...] | None = None

    @classmethod
    def of(cls, arguments: Mapping[str, Any] | None, default: str | None) -> Asked | None:
        """From a request's extra arguments, None for no bias. Raises BiasError: not a name, or no
        numbers.
        """
        name = (arguments or {}).get(FIELD, default)
        if name is None or name == NO_BIAS:
            return None
        if not isinstance(name, str) or not name:
            raise BiasError(
                f'{FIELD} is {shorten(name)}, not the name of a bias; give a name or "{NO_BIAS}"'
            )
        row = (arguments or {}).get(FEATURES)
        if row is None:
            return cls(name)
        if not isinstance(row, list | tuple) or len(row) % 2 or len(row) > MOST_FEATURES:
            raise BiasError(
                f"{FEATURES} is no list of names and numbers in turn, of at most"
                f" {MOST_FEATURES:,}; take vllm_xargs() of blackbox_lb"
            )
        numbers: list[tuple[str, float]] = []
        for label, number in zip(row[::2], row[1::2], strict=True):
            is_number = isinstance(number, int | float) and not isinstance(number, bool)
            if not isinstance(label, str) or not is_number or not abs(number) <= LARGEST:
                raise BiasError(
                    f"{FEATURES} has {shorten((label, number))}, which is no name with a number"
                )
            numbers.append((label, float(number)))
        return cls(name, tuple(numbers))

    def check(self, names: Collection[str] | None) -> None:
        """Raise BiasError where the numbers do not belong to the bias. names: the names that it
        knows, None for a bias that does not depend on the prompt.
        """
        if names is None:
            if self.numbers is not None:
                raise BiasError(
                    f"bias {shorten(self.name)} does not depend on the prompt; leave out {FEATURES}"
                )
            return
        if self.numbers is None:
            raise BiasError(
                f"bias {shorten(self.name)} depends on the prompt; send its numbers as"
                f" {FEATURES}, which vllm_xargs() of blackbox_lb computes"
            )
        strange = [label for label, _ in self.numbers if label not in names]
        if strange:
            raise BiasError(
                f"bias {shorten(self.name)} has no feature {shorten(strange[0])}; take"
                " vllm_xargs() of the same file"
            )


@dataclass(frozen=True, slots=True)
class Expected:
    """The requirements for a bias: the tokenizer's ``fingerprint``, its number of ``tokens``, the
    number of the model's ``logits``.

    Models pad their logits; a bias may count its vocabulary with or without the padding.
    """

    fingerprint: str
    tokens: int
    logits: int

    def check(self, bias: Bias) -> None:
        """Raise TokenizerMismatch for another tokenizer, BiasError for a vocabulary of another
        size, a number beyond float32, or a file that moves no tokens.
        """
        bias.check_moves_tokens()
        bias.check_tokenizer(self.fingerprint)
        low, high = sorted((self.tokens, self.logits))
        if bias.vocab_size is not None and not low <= bias.vocab_size <= high:
            raise BiasError(
                f"this bias is for a vocabulary of {bias.vocab_size:,} tokens, but the served model"
                f" has {self.tokens:,} ({self.logits:,} logits): use the model it was learned on,"
                " or fit a new bias"
            )
        if bias.entries and bias.entries[-1].id >= self.logits:
            raise BiasError(
                f"this bias has token id {bias.entries[-1].id:,}, but the served model has only"
                f" {self.logits:,} logits: use the model it was learned on, or fit a new bias"
            )
        for vector in bias.values:
            for entry, value in zip(bias.entries, vector, strict=True):
                if abs(value) > LARGEST:
                    raise BiasError(
                        f"the bias of token {entry.id} is {value} nats, beyond float32; fit it"
                        " again"
                    )


class BiasDirectory(Generic[T]):
    """The ``NAME.json`` of a folder, each converted by ``read``, which refuses a bias by raising
    BiasError.

    A file is read when its name is first asked for, and again after its time, size or inode
    changed, checked at most once a second (``now`` in seconds). An unusable file is logged once; an
    earlier version of it stays in use. Safe to call from several threads. Raises BiasError where
    ``folder`` is no readable directory.
    """

    def __init__(
        self,
        folder: Path,
        read: Callable[[Bias], T],
        *,
        now: Callable[[], float] = time.monotonic,
        log: logging.Logger | None = None,
    ) -> None:
        self._folder = folder
        self._read = read
        self._now = now
        self._log = log or logging.getLogger(__name__)
        self._lock = threading.Lock()
        self._good: dict[str, tuple[Stamp, T]] = {}
        self._bad: dict[str, tuple[Stamp, BiasError]] = {}
        self._checked = now()
        self._unreadable = False
        try:
            self._stamps = _stamps(folder)
        except OSError as error:
            raise BiasError(
                f"{folder}: not a readable directory ({error.strerror}); set BLB_BIAS_DIR to the"
                " folder of the bias files"
            ) from None

    def names(self) -> list[str]:
        """The sorted names in the folder now; not every file need be usable."""
        with self._lock:
            self._look()
            return sorted(self._stamps)

    def get(self, name: str) -> T:
        """Return the result of ``read`` for the bias, the same object until its file changes.

        Raises BiasError: no such name, or a file that was never usable. The message may go to a
        client, so it names no path.
        """
        with self._lock:
            self._look()
            stamp = self._stamps.get(name)
            if stamp is None:
                raise BiasError(f"no bias named {shorten(name)}; {self._offer()}")
            if (
                self._good.get(name, (None,))[0] != stamp
                and self._bad.get(name, (None,))[0] != stamp
            ):
                self._load(name, stamp)
            if name not in self._good:
                raise self._bad[name][1]
            return self._good[name][1]

    def _look(self) -> None:
        if self._now() - self._checked < CHECK_SECONDS:
            return
        self._checked = self._now()
        try:
            self._stamps = _stamps(self._folder)
        except OSError as error:
            if not self._unreadable:
                self._log.warning(
                    "%s: cannot be listed (%s); the biases known so far stay in use",
                    self._folder,
                    error.strerror,
                )
            self._unreadable = True
            return
        self._unreadable = False
        for versions in (self._good, self._bad):
            for name in versions.keys() - self._stamps.keys():
                del versions[name]

    def _load(self, name: str, stamp: Stamp) -> None:
        path = self._folder / f"{name}.json"
        try:
            self._good[name] = (stamp, self._read(Bias.load(path)))
            self._bad.pop(name, None)
        except Exception as error:  # noqa: BLE001  # any other one would end a server's engine
            stays = ""
            if name in self._good:
                stays = "; the earlier version stays in use"
            reason = str(error)
            if not isinstance(error, BlbError):
                reason = f"it cannot be read ({type(error).__name__}: {first_line(error)})"
            self._log.warning("bias %s is refused: %s%s", printable(name), legible(reason), stays)
            self._bad[name] = (
                stamp,
                BiasError(f"bias {printable(name)}: {reason.replace(f'{path}: ', '')}"),
            )

    def _offer(self) -> str:
        names = [printable(name) for name in sorted(self._stamps)]
        if not names:
            return "this server has none yet"
        offer = f"this server has {', '.join(names[:SHOWN])}"
        if len(names) > SHOWN:
            offer += f" and {len(names) - SHOWN} more"
        return offer


def _stamps(folder: Path) -> dict[str, Stamp]:
    """Name -> (time in ns, bytes, inode) of every bias file, without hidden ones, such as an
    unfinished ``Bias.save`` leaves.
    """
    stamps = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.removesuffix(".json")
            if (
                name not in (entry.name, NO_BIAS)
                and not entry.name.startswith(".")
                and entry.is_file()
            ):
                with suppress(FileNotFoundError):  # removed since it was listed
                    status = entry.stat()
                    stamps[name] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return stamps
