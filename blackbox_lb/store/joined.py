"""Several stores read as one: the store of a run, and sources that were collected elsewhere.

Shards can be learned from without a merge, because a completion in a source is read by its key as
if it were in the store. Sources are never written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from blackbox_lb.errors import InputError
from blackbox_lb.safety.files import expanded
from blackbox_lb.store.rollouts import RolloutStore
from blackbox_lb.types import Completion

STORE = "rollouts.db"


def open_sources(names: Sequence[str], *, check_file: bool = True) -> list[RolloutStore]:
    """Open stores for reading only.

    Args:
        names: files, or folders of runs; ``*`` and ``?`` in a name stand for several.
        check_file: see ``RolloutStore``.

    Returns:
        The stores, in the order of ``names``.

    Raises:
        InputError: there is nothing of that name, or no store.
        StoreError: a store cannot be read.
    """
    with ExitStack() as stack:
        stores = [
            stack.enter_context(RolloutStore(path, read_only=True, check_file=check_file))
            for name in names
            for path in _paths(name)
        ]
        stack.pop_all()  # the caller closes them
        return stores


def _paths(name: str) -> list[Path]:
    """The files of the stores that ``name`` stands for."""
    pattern = expanded(name)
    matches = [pattern]
    if not pattern.exists():
        matches = sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))
    paths = [path / STORE if path.is_dir() else path for path in matches]
    for path in paths or [pattern]:
        if not path.is_file() or path.suffix == ".parquet":
            raise InputError(
                f"there is no rollout store at {path}; give a store or the folder of a run, and"
                " what blb store export wrote to blb store import first"
            )
    return paths


class Gathered(RolloutStore):
    """The store at ``path``, which gets everything new, read together with sources.

    Of several copies of a row the first is read, from the store and then from the sources in their
    order.

    Args:
        path: the store.
        names: the sources, see ``open_sources``.
        read_only: the store is neither created nor written.
        home: key -> number of the source that has it, for a store that is opened again and was
            checked before.
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
        """Of every key that a source has and the store has not."""
        check_file = home is None
        self.sources = tuple(open_sources(names, check_file=check_file))
        try:
            super().__init__(path, read_only=read_only, check_file=check_file)
        except BaseException:
            for source in self.sources:
                source.close()
            raise

    def again(self, keys: Collection[str]) -> Callable[[], Gathered]:
        """A function that opens the stores again for reading these keys.

        It works in any process with access to the same files.
        """
        home = {key: self._home[key] for key in keys if key in self._home}
        return partial(Gathered, self.path.resolve(), self.names, read_only=True, home=home)

    def close(self) -> None:
        """Close all files; everything added is already durable."""
        with ExitStack() as closing:
            for source in self.sources:
                closing.callback(source.close)
            super().close()

    def keys(self, request: str) -> set[str]:
        """Keys of all completions of one request hash, in any of the stores."""
        in_store = super().keys(request)
        in_sources = [source.keys(request) for source in self.sources]
        for number, keys in enumerate(in_sources):
            for key in keys - in_store:
                self._home.setdefault(key, number)
        return in_store.union(*in_sources)

    def order(self, keys: Collection[str]) -> list[str]:
        """Keys in the cheapest order to read: those of the store first, then source by source."""
        return sorted(keys, key=lambda key: self._home.get(key, -1))

    def completions(self, keys: Iterable[str]) -> Iterator[Completion]:
        """The completions with these keys, in this order. Raises StoreError for a missing one."""
        keys = list(keys)
        homes = [self._home.get(key) for key in keys]
        in_store = [key for key, home in zip(keys, homes, strict=True) if home is None]
        completions: dict[int | None, Iterator[Completion]] = {None: super().completions(in_store)}
        for number, source in enumerate(self.sources):
            in_source = [key for key, home in zip(keys, homes, strict=True) if home == number]
            completions[number] = source.completions(in_source)
        for home in homes:
            yield next(completions[home])

    def spent(self, keys: Iterable[str]) -> tuple[int, int, int]:
        """Completions with these keys, tokens of their prompts, and generated tokens."""
        keys_of: dict[int | None, list[str]] = {}
        for key in keys:
            keys_of.setdefault(self._home.get(key), []).append(key)
        completions, prompt_tokens, generated = super().spent(keys_of.get(None, []))
        for number, source in enumerate(self.sources):
            counts = source.spent(keys_of.get(number, []))
            completions += counts[0]
            prompt_tokens += counts[1]
            generated += counts[2]
        return completions, prompt_tokens, generated

    def rewards(self, keys: Iterable[str]) -> dict[str, str]:
        """The answers for remote rewards with these keys, from any of the stores."""
        keys = list(keys)
        answers: dict[str, str] = {}
        for source in reversed(self.sources):
            answers |= source.rewards(keys)
        return answers | super().rewards(keys)

    def tokenizer_of(self, key: str) -> str:
        """The fingerprint of the tokenizer of a completion; "" where it is not known."""
        number = self._home.get(key)
        if number is None:
            return super().tokenizer_of(key)
        return self.sources[number].tokenizer_of(key)

    def token_bytes(self, tokenizer: str) -> dict[int, bytes]:
        """The bytes of every token of this tokenizer in any stored answer."""
        token_bytes: dict[int, bytes] = {}
        for source in reversed(self.sources):
            token_bytes |= source.token_bytes(tokenizer)
        return token_bytes | super().token_bytes(tokenizer)
