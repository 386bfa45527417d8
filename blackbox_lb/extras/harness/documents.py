"""The documents of lm-evaluation-harness tasks in three splits, with their prompts and the few-shot
examples drawn for them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.extras.harness.load import seeded
from blackbox_lb.tasks.records.repeats import SourcedExample
from blackbox_lb.tasks.sets.task import divide
from blackbox_lb.types import Example, Prompt, Split

FEWSHOT_SEED = 1234
"""lm-evaluation-harness's own, of its option ``seed``."""
VALIDATION_MOST = 500
VALIDATION_SHARE = 0.2
SHARES = (0.8, 0.1, 0.1)
"""Train, validation and test of a task with one split: the paper's for GPQA."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a harness task, at its place in one of the task's own splits."""

    task: Any = field(repr=False)
    leaf: str
    split: str
    index: int
    doc: dict[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        """As in gsm8k:test:17."""
        return f"{self.leaf}:{self.split}:{self.index}"

    @property
    def key(self) -> str:
        """Its content, to be compared."""
        return _key(self.doc)

    @property
    def rank(self) -> bytes:
        """Its place in the order by hash."""
        return hashlib.sha256(f"0:{self.id}".encode()).digest()

    @property
    def question(self) -> str:
        """The question itself, without description and few-shot examples, in single spaces."""
        return " ".join(str(self.task.doc_to_text(self.doc)).split())


@dataclass(slots=True)
class HarnessPrompts:
    """Prompts by document id, and the content of every few-shot example in them."""

    prompts: dict[str, str] = field(default_factory=dict)
    fewshot: set[str] = field(default_factory=set)

    def __or__(self, other: HarnessPrompts) -> HarnessPrompts:
        return HarnessPrompts(self.prompts | other.prompts, self.fewshot | other.fewshot)


@dataclass(slots=True)
class Splits:
    """The documents by split, the source of validation, and the number dropped because a later
    split asks the same.
    """

    parts: dict[Split, list[Document]]
    origin: str
    dropped: int = 0

    def judged(self) -> frozenset[str]:
        """The content of validation and test."""
        return frozenset(
            document.key for split in ("validation", "test") for document in self.parts[split]
        )

    def sample_validation(self, name: str, size: int | None, avoid: set[str]) -> None:
        """Move a sample by hash out of train, or cut the task's own validation to one; documents in
        ``avoid`` come last.
        """
        own = bool(self.parts["validation"])
        if own and size is None:
            return
        pool = self.parts["validation" if own else "train"]
        size = min(VALIDATION_MOST, int(VALIDATION_SHARE * len(pool))) if size is None else size
        if not 0 < size < len(pool) + own:
            raise InputError(
                f"lm-eval task {name} has {len(pool)} documents, of which {size} cannot be the"
                " validation sample; give more data, or another ``validation_size``"
            )
        chosen = {d.id for d in sorted(pool, key=lambda d: (d.key in avoid, d.rank))[:size]}
        self.parts["validation"] = [d for d in pool if d.id in chosen]
        if not own:
            self.parts["train"] = [d for d in pool if d.id not in chosen]
        self.origin = (
            f"{size} of {len(pool)} documents of {'its own split' if own else 'train'}, by hash"
        )
        _drop_repeated(self)


def split_documents(name: str, tasks: dict[str, Any], validation_size: int | None) -> Splits:
    """The documents of all ``tasks``; without a validation split where it is yet to be sampled.

    Several tasks are joined in the order of a hash. Documents of train and validation are dropped
    that ask what a later split asks.
    """
    parts: dict[Split, list[Document]] = {"train": [], "validation": [], "test": []}
    for leaf, task in tasks.items():
        for split, documents in _own_splits(task, leaf).items():
            parts[split] += documents
    splits = Splits(parts, "the task's own")
    if not parts["test"]:
        if validation_size is not None:
            raise InputError(
                f"lm-eval task {name} has one split, which is divided 80/10/10; leave"
                " ``validation_size`` out"
            )
        splits = Splits(
            _divided(name, parts["train"]), "the task's one split divided 80/10/10 by hash"
        )
    if len(tasks) > 1:
        splits.parts = {
            split: sorted(documents, key=lambda d: d.rank)
            for split, documents in splits.parts.items()
        }
    _drop_repeated(splits)
    return splits


def _own_splits(task: Any, leaf: str) -> dict[Split, list[Document]]:
    config = task.config
    judged = config.test_split or config.validation_split
    unnamed = "train" if "train" in task.dataset and judged != "train" else None
    learned = config.training_split or unnamed or config.validation_split
    if learned in (None, judged):
        return {"train": _documents(task, leaf, judged)}
    own: dict[Split, list[Document]] = {
        "train": _documents(task, leaf, learned),
        "test": _documents(task, leaf, judged),
    }
    if config.validation_split not in (None, judged, learned):
        own["validation"] = _documents(task, leaf, config.validation_split)
    return own


def _documents(task: Any, leaf: str, split: str) -> list[Document]:
    docs = task.dataset[split]
    with seeded():
        docs = docs if task.config.process_docs is None else task.config.process_docs(docs)
    return [Document(task, leaf, split, index, doc) for index, doc in enumerate(docs)]


def _divided(name: str, documents: list[Document]) -> dict[Split, list[Document]]:
    by_id = {document.id: document for document in documents}
    rows = [SourcedExample(Example(key, Prompt.user("")), key) for key in by_id]
    return {
        split: [by_id[row.example.id] for row in part]
        for split, part in divide(name, rows, 0, SHARES).items()
    }


def _drop_repeated(splits: Splits) -> None:
    parts = splits.parts
    asked = {document.question for document in parts["test"]}
    earlier: tuple[Split, ...] = ("validation", "train")
    for split in earlier:
        kept = [d for d in parts[split] if d.question not in asked]
        splits.dropped += len(parts[split]) - len(kept)
        asked |= {d.question for d in parts[split]}
        parts[split] = kept


class _Sampler:
    """Stands before the harness's few-shot sampler: records the draws and keeps one document
    out.
    """

    def __init__(self, inner: Any, drawn: set[str]) -> None:
        self.inner = inner
        self.drawn = drawn
        self.apart: dict[str, Any] | None = None

    def sample(self, n: int, eval_doc: Any = None, **more: Any) -> Any:
        """Draw with the harness's sampler."""
        docs = self.inner.sample(
            n=n, eval_doc=eval_doc if self.apart is None else self.apart, **more
        )
        self.drawn.update(map(_key, docs))
        return docs

    def set_rnd(self, seed: int | None) -> None:
        self.inner.set_rnd(seed)


def draw_prompts(
    documents: Iterable[Document], judged: frozenset[str], *, as_harness: bool = False
) -> HarnessPrompts:
    """The prompts of ``documents``, with few-shot examples drawn from the harness's seed on, in the
    order of each task's split.

    No document in ``judged`` is a few-shot example, nor the document itself. ``as_harness``: the
    harness's own pool and order, unless the documents are all in that pool (a task with one split).
    """
    found = HarnessPrompts()
    for task in {id(d.task): d.task for d in documents}.values():
        part = sorted((d for d in documents if d.task is task), key=lambda d: d.index)
        with _drawing(task, found.fewshot) as sampler:
            pool = {_key(doc) for doc in sampler.inner.df}
            own = as_harness and not pool.issuperset(d.key for d in part)
            if not own and task.config.num_fewshot:
                _keep_out(task, sampler.inner, judged)
            for d in part:
                sampler.apart = None if own else d.doc
                found.prompts[d.id] = task.fewshot_context(
                    d.doc,
                    num_fewshot=task.config.num_fewshot or 0,
                    gen_prefix=task.doc_to_prefix(d.doc),
                )
    return found


@contextmanager
def _drawing(task: Any, drawn: set[str]) -> Iterator[_Sampler]:
    inner = task.sampler
    with seeded():
        whole = list(task.fewshot_docs() or [])
    task.sampler = _Sampler(inner.replace_df(whole), drawn)
    task.set_fewshot_seed(FEWSHOT_SEED)
    rendered = ("doc_to_text", "doc_to_target")
    for name in rendered:
        setattr(task, name, _remembered(getattr(task, name)))
    try:
        yield task.sampler
    finally:
        task.sampler = inner.replace_df(whole)
        for name in rendered:
            delattr(task, name)


def _remembered(render: Callable[..., Any]) -> Callable[..., Any]:
    """Render a few-shot example once and not for each of its prompts; the pool keeps its documents
    alive meanwhile.
    """
    known: dict[tuple[int, str], Any] = {}

    def once(doc: Any, template: Any = None) -> Any:
        place = id(doc), repr(template)
        if place not in known:
            known[place] = render(doc, template)
        return known[place]

    return once


def _keep_out(task: Any, sampler: Any, judged: frozenset[str]) -> None:
    left = [doc for doc in sampler.df if _key(doc) not in judged]
    if len(left) <= task.config.num_fewshot < len(sampler.df):
        raise InputError(
            f"lm-eval task {task.config.task} has {len(left)} few-shot examples that are no"
            f" validation or test documents, and a prompt needs {task.config.num_fewshot} beside"
            " its own document; give fewer with ``num_fewshot``, or more data"
        )
    sampler.replace_df(left)


def _key(doc: Any) -> str:
    return json.dumps(doc, sort_keys=True, default=str)
