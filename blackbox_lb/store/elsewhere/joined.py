"""Rollouts collected elsewhere: a run's own store, beside stores and exports that are only read.

Shards can be learned from without a merge. Anything in a source is found by its key, as if it were in the store.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.store.rollouts import RolloutStore
from blackbox_lb.types import Completion

PARQUET = ".parquet"


def open_sources(names: Sequence[str], beside: Path) -> list[RolloutStore]:
    """Open stores and exports, each for reading only, in the order of ``names``.

    An export is imported once, into a store in the folder ``beside`` that is named after its files, their sizes and dates.

    A name is a store (a file, or the folder of a run), an export (its folder, or a Parquet file of it), or a URL of an export that
    fsspec knows (https://filesystem-spec.readthedocs.io), as in s3://bucket/folder. ``*`` and ``?`` in it stand for several.

    Raises InputError: nothing is there, nothing of these kinds, or an export was changed. StoreError: a store cannot be read.
    """
    with ExitStack() as opened:
        found: list[RolloutStore] = []
        for name in names:
            for each in _opened(name, beside):
                opened.callback(each.close)
                found.append(each)
        opened.pop_all()
        return found


def _opened(name: str, beside: Path) -> Iterator[RolloutStore]:
    system, path = _filesystem(name)
    here = _is_local(system)
    paths = sorted(system.glob(path)) if set("*?") & set(path) else [path]
    parquet: list[str] = []
    for each in paths:
        if system.isdir(each):
            inside = [file for file in sorted(system.ls(each, detail=False)) if file.endswith(PARQUET)]
            stores = [] if inside else [file for file in system.ls(each, detail=False) if file.endswith("rollouts.db")]
            if not inside and not stores:
                raise InputError(
                    f"there is neither rollouts.db nor an export in {each}; give a store, or what blb store export wrote"
                )
            parquet += inside
            yield from (_store(file, here) for file in stores)
        elif not system.exists(each):
            raise InputError(f"there are no rollouts at {each}; give a store, an export of one, or a URL of an export")
        elif each.endswith(PARQUET):
            parquet.append(each)
        else:
            yield _store(each, here)
    if not paths:
        raise InputError(f"nothing is called {name}; give a store, an export of one, or a URL of an export")
    if parquet:
        yield _imported(system, parquet, beside)


def _imported(system: Any, paths: Sequence[str], beside: Path) -> RolloutStore:
    from blackbox_lb.safety.atomic_file import replacing
    from blackbox_lb.store.elsewhere.parquet_exchange import import_files

    versions = "\n".join(f"{path} {system.ukey(path)}" for path in paths)
    target = beside / f"imported-{sha256(versions.encode()).hexdigest()[:16]}.db"
    if not target.exists():
        with replacing(target) as draft:
            import_files(paths, draft, system)
    return RolloutStore(target, read_only=True)


def _store(path: str, here: bool) -> RolloutStore:
    if not here:
        raise InputError(
            f"{path} is a store on another machine, and SQLite reads local files only; copy it here, or export it there: "
            "blb store export"
        )
    return RolloutStore(path, read_only=True)


def _absolute(name: str) -> str:
    """A name with the same meaning in another folder."""
    system, path = _filesystem(name)
    return path if _is_local(system) else name


def _is_local(system: Any) -> bool:
    return "file" in ([system.protocol] if isinstance(system.protocol, str) else system.protocol)


def _filesystem(name: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError as error:
        raise InputError("--rollouts needs fsspec; install it with: pip install 'blackbox-lb[parquet]'") from error
    try:
        system, path = url_to_fs(str(Path(name).expanduser()) if name.startswith("~") else name)
    except (ImportError, ValueError, OSError) as error:
        raise InputError(f"cannot open {name}: {error}; give a path, or a URL that fsspec knows") from error
    return system, path


class Gathered(RolloutStore):
    """The store at ``path``, which gets everything new, with the sources called ``names`` beside it (``open_sources``).

    Of several copies the first is read: the store, then the sources in their order. home: source of each key, for a
    store that is opened again.
    """

    def __init__(
        self, path: Path | str, names: Sequence[str], *, read_only: bool = False, home: Mapping[str, int] | None = None
    ) -> None:
        self.names = tuple(_absolute(name) for name in names)
        self._home = dict(home or {})
        self.sources = tuple(open_sources(names, Path(path).parent))
        try:
            super().__init__(path, read_only=read_only)
        except BaseException:
            for each in self.sources:
                each.close()
            raise

    def again(self, keys: Collection[str]) -> Callable[[], Gathered]:
        """A function that opens it again for reading these keys, in any process with access to the same files."""
        home = {key: number for key in keys if (number := self._home.get(key)) is not None}
        return partial(Gathered, self.path.resolve(), self.names, read_only=True, home=home)

    def close(self) -> None:
        with ExitStack() as closing:
            for each in self.sources:
                closing.callback(each.close)
            super().close()

    def keys(self, request: str) -> set[str]:
        """Keys of all completions of one request hash, wherever they are."""
        own = super().keys(request)
        for number, each in enumerate(self.sources):
            for key in each.keys(request) - own:
                self._home.setdefault(key, number)
        return own.union(*(each.keys(request) for each in self.sources))

    def order(self, keys: Collection[str]) -> dict[str, Any]:
        """Keys in the cheapest order to read: those of the store first, then source by source."""
        found: dict[str, Any] = dict.fromkeys(key for key in keys if key not in self._home)
        for number, each in enumerate(self.sources):
            here = each.order([key for key in keys if self._home.get(key) == number])
            found.update(dict.fromkeys(sorted(here, key=lambda key: here[key])))
        return found

    def completions(self, keys: Iterable[str]) -> Iterator[Completion]:
        """The completions with these keys, in this order. Raises StoreError for a missing one."""
        for key in keys:
            number = self._home.get(key)
            yield from super().completions([key]) if number is None else self.sources[number].completions([key])

    def spent(self, keys: Iterable[str]) -> tuple[int, int, int]:
        """The number of completions with these keys, and their tokens: of their prompts, one for each, and generated."""
        homes: dict[int | None, list[str]] = {}
        for key in keys:
            homes.setdefault(self._home.get(key), []).append(key)
        counts = [super().spent(homes.pop(None, []))]
        counts += [self.sources[number].spent(here) for number, here in homes.items() if number is not None]
        completions, prompts, generated = (sum(each) for each in zip(*counts, strict=True))
        return completions, prompts, generated

    def rewards(self, keys: Iterable[str]) -> dict[str, str]:
        """The stored answers for remote rewards, for those of ``keys`` that are anywhere."""
        wanted = list(keys)
        found: dict[str, str] = {}
        for each in reversed(self.sources):
            found |= each.rewards(wanted)
        return found | super().rewards(wanted)

    def token_bytes(self, tokenizer: str) -> dict[int, bytes]:
        """The bytes of every token of this tokenizer in any stored answer."""
        found: dict[int, bytes] = {}
        for each in reversed(self.sources):
            found |= each.token_bytes(tokenizer)
        return found | super().token_bytes(tokenizer)
