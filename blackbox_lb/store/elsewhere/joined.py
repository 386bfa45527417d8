"""Rollouts collected elsewhere: a run's own store, beside stores that are only read.

Shards can be learned from without a merge. Anything in a source is found by its key, as if it were
in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.safety.files import expanded
from blackbox_lb.store.rollouts import RolloutStore
from blackbox_lb.types import Completion

STORE = "rollouts.db"


def open_sources(names: Sequence[str]) -> list[RolloutStore]:
    """Open stores, each for reading only, in the order of ``names``: a file, or the folder of a
    run; ``*`` and ``?`` in a name stand for several.

    Raises InputError: nothing is there, or no store. StoreError: a store cannot be read.
    """
    with ExitStack() as opened:
        found = [
            opened.enter_context(RolloutStore(path, read_only=True))
            for name in names
            for path in _paths(name)
        ]
        opened.pop_all()
        return found


def _paths(name: str) -> list[Path]:
    given = expanded(name)
    found = sorted(Path(given.anchor).glob(str(given.relative_to(given.anchor))))
    paths = [path / STORE if path.is_dir() else path for path in found]
    for path in paths or [given]:
        if not path.is_file() or path.suffix == ".parquet":
            raise InputError(
                f"there is no rollout store at {path}; give a store or the folder of a run, and"
                " what blb store export wrote to blb store import first"
            )
    return paths


class Gathered(RolloutStore):
    """The store at ``path``, which gets everything new, with the sources called ``names`` beside it
    (``open_sources``).

    Of several copies the first is read: the store, then the sources in their order. home: source of
    each key, for a store that is opened again.
    """

    def __init__(
        self,
        path: Path | str,
        names: Sequence[str],
        *,
        read_only: bool = False,
        home: Mapping[str, int] | None = None,
    ) -> None:
        self.names = tuple(str(expanded(name).absolute()) for name in names)
        self._home = dict(home or {})
        self.sources = tuple(open_sources(names))
        try:
            super().__init__(path, read_only=read_only)
        except BaseException:
            for source in self.sources:
                source.close()
            raise

    def again(self, keys: Collection[str]) -> Callable[[], Gathered]:
        """A function that opens it again for reading these keys, in any process with access to the
        same files.
        """
        home = {key: number for key in keys if (number := self._home.get(key)) is not None}
        return partial(Gathered, self.path.resolve(), self.names, read_only=True, home=home)

    def close(self) -> None:
        with ExitStack() as closing:
            for source in self.sources:
                closing.callback(source.close)
            super().close()

    def keys(self, request: str) -> set[str]:
        """Keys of all completions of one request hash, wherever they are."""
        own = super().keys(request)
        for number, source in enumerate(self.sources):
            for key in source.keys(request) - own:
                self._home.setdefault(key, number)
        return own.union(*(source.keys(request) for source in self.sources))

    def order(self, keys: Collection[str]) -> dict[str, Any]:
        """Keys in the cheapest order to read: those of the store first, then source by source."""
        found: dict[str, Any] = dict.fromkeys(key for key in keys if key not in self._home)
        for number, source in enumerate(self.sources):
            here = source.order([key for key in keys if self._home.get(key) == number])
            found.update(dict.fromkeys(sorted(here, key=lambda key: here[key])))
        return found

    def completions(self, keys: Iterable[str]) -> Iterator[Completion]:
        """The completions with these keys, in this order. Raises StoreError for a missing one."""
        for key in keys:
            number = self._home.get(key)
            yield from (
                super().completions([key])
                if number is None
                else self.sources[number].completions([key])
            )

    def spent(self, keys: Iterable[str]) -> tuple[int, int, int]:
        """The number of completions with these keys, and their tokens: of their prompts, one for
        each, and generated.
        """
        homes: dict[int | None, list[str]] = {}
        for key in keys:
            homes.setdefault(self._home.get(key), []).append(key)
        counts = [super().spent(homes.pop(None, []))]
        counts += [
            self.sources[number].spent(here) for number, here in homes.items() if number is not None
        ]
        completions, prompts, generated = (sum(each) for each in zip(*counts, strict=True))
        return completions, prompts, generated

    def rewards(self, keys: Iterable[str]) -> dict[str, str]:
        """The stored answers for remote rewards, for those of ``keys`` that are anywhere."""
        wanted = list(keys)
        found: dict[str, str] = {}
        for source in reversed(self.sources):
            found |= source.rewards(wanted)
        return found | super().rewards(wanted)

    def tokenizer_of(self, key: str) -> str:
        """The fingerprint of the tokenizer of the completion with this key; "" where it is not
        known.
        """
        number = self._home.get(key)
        if number is None:
            return super().tokenizer_of(key)
        return self.sources[number].tokenizer_of(key)

    def token_bytes(self, tokenizer: str) -> dict[int, bytes]:
        """The bytes of every token of this tokenizer in any stored answer."""
        found: dict[int, bytes] = {}
        for source in reversed(self.sources):
            found |= source.token_bytes(tokenizer)
        return found | super().token_bytes(tokenizer)
