"""The documents of lm-evaluation-harness tasks in three splits, with their prompts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from blackbox_lb.errors import InputError
from blackbox_lb.extras.harness.load import seeded
from blackbox_lb.tasks.records.files import SourcedExample
from blackbox_lb.tasks.sets.task import divide
from blackbox_lb.types import Example, Prompt, Split

FEWSHOT_SEED = 1234
"""The default of the harness's own option."""
VALIDATION_MOST = 500
"""Most documents of a validation sample."""
VALIDATION_SHARE = 0.2
"""Largest share of the training documents in a validation sample."""
SHARES = (0.8, 0.1, 0.1)
"""Train, validation and test of a task with one split, as in the paper for GPQA."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a harness task, at its place in one of the task's splits."""

    task: Any = field(repr=False)
    leaf: str
    split: str
    index: int
    doc: dict[str, Any] = field(repr=False)

    @property
    def id(self) -> str:
        """Task, split and index, as in gsm8k:test:17."""
        return f"{self.leaf}:{self.split}:{self.index}"

    @property
    def key(self) -> str:
        """The content, for comparisons."""
        return _key(self.doc)

    @property
    def rank(self) -> bytes:
        """A hash; documents are ordered by it."""
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

    def __or__(self, more: HarnessPrompts) -> HarnessPrompts:
        return HarnessPrompts(self.prompts | more.prompts, self.fewshot | more.fewshot)


@dataclass(slots=True)
class Splits:
    """The documents by split.

    parts: split -> documents.
    origin: the source of the validation split, in words.
    dropped: documents left out because a later split asks the same question.
    """

    parts: dict[Split, list[Document]]
    origin: str
    dropped: int = 0

    def judged(self) -> frozenset[str]:
        """The content of the validation and test documents."""
        return frozenset(
            document.key for split in ("validation", "test") for document in self.parts[split]
        )

    def sample_validation(self, name: str, size: int | None, avoid: set[str]) -> None:
        """Move a sample by hash from train to validation, or cut the task's validation split.

        Args:
            name: that of the task, for errors.
            size: documents; None for the default, which leaves a validation split as it is.
            avoid: content of documents that are taken last.

        Raises:
            InputError: the sample is empty or leaves no training documents.
        """
        has_validation = bool(self.parts["validation"])
        if has_validation:
            if size is None:
                return
            pool = self.parts["validation"]
            source = "its own split"
            most = len(pool)
        else:
            pool = self.parts["train"]
            source = "train"
            most = len(pool) - 1
            if size is None:
                size = min(VALIDATION_MOST, int(VALIDATION_SHARE * len(pool)))
        if not 0 < size <= most:
            raise InputError(
                f"lm-eval task {name} has {len(pool)} documents, of which {size} cannot be the"
                " validation sample; give more data, or another ``validation_size``"
            )
        ordered = sorted(pool, key=lambda document: (document.key in avoid, document.rank))
        chosen = {document.id for document in ordered[:size]}
        self.parts["validation"] = [document for document in pool if document.id in chosen]
        if not has_validation:
            self.parts["train"] = [document for document in pool if document.id not in chosen]
        self.origin = f"{size} of {len(pool)} documents of {source}, by hash"
        _drop_repeated(self)


def split_documents(name: str, tasks: dict[str, Any], validation_size: int | None) -> Splits:
    """The documents of all ``tasks`` by split; ``sample_validation`` fills an empty validation.

    Several tasks are joined in the order of a hash. Documents of train and validation are dropped
    if a later split asks the same question.
    """
    parts: dict[Split, list[Document]] = {"train": [], "validation": [], "test": []}
    for leaf, task in tasks.items():
        for split, documents in _splits_of_task(task, leaf).items():
            parts[split] += documents
    splits = Splits(parts, "the task's own")
    if not parts["test"]:
        if validation_size is not None:
            raise InputError(
                f"lm-eval task {name} has one split, which is divided 80/10/10; leave"
                " ``validation_size`` out"
            )
        origin = "the task's one split divided 80/10/10 by hash"
        splits = Splits(_divided(name, parts["train"]), origin)
    if len(tasks) > 1:
        splits.parts = {
            split: sorted(documents, key=lambda d: d.rank)
            for split, documents in splits.parts.items()
        }
    _drop_repeated(splits)
    return splits


def _splits_of_task(task: Any, leaf: str) -> dict[Split, list[Document]]:
    """The task's splits; a task with a single one has it as train."""
    config = task.config
    judged = config.test_split or config.validation_split
    learned = config.training_split
    if not learned and "train" in task.dataset and judged != "train":
        learned = "train"  # it exists, although the task does not name it
    learned = learned or config.validation_split
    if learned in (None, judged):
        return {"train": _documents(task, leaf, judged)}
    splits: dict[Split, list[Document]] = {
        "train": _documents(task, leaf, learned),
        "test": _documents(task, leaf, judged),
    }
    if config.validation_split not in (None, judged, learned):
        splits["validation"] = _documents(task, leaf, config.validation_split)
    return splits


def _documents(task: Any, leaf: str, split: str) -> list[Document]:
    docs = task.dataset[split]
    with seeded():
        if task.config.process_docs is not None:
            docs = task.config.process_docs(docs)
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
    later_questions = {document.question for document in parts["test"]}
    earlier: tuple[Split, ...] = ("validation", "train")
    for split in earlier:
        documents = parts[split]
        parts[split] = [
            document for document in documents if document.question not in later_questions
        ]
        splits.dropped += len(documents) - len(parts[split])
        later_questions |= {document.question for document in documents}


class _Sampler:
    """Calls the harness's few-shot sampler, records the draws, and keeps one document out.

    inner: the harness's sampler.
    fewshot: gets the content of every document that is drawn.
    excluded: the document that is not drawn; None for the one that the harness names.
    """

    def __init__(self, inner: Any, fewshot: set[str]) -> None:
        self.inner = inner
        self.fewshot = fewshot
        self.excluded: dict[str, Any] | None = None

    def sample(self, n: int, eval_doc: Any = None, **more: Any) -> Any:
        """Draw ``n`` documents."""
        if self.excluded is not None:
            eval_doc = self.excluded
        docs = self.inner.sample(n=n, eval_doc=eval_doc, **more)
        self.fewshot.update(_key(doc) for doc in docs)
        return docs

    def set_rnd(self, seed: int | None) -> None:
        """Seed the harness's sampler."""
        self.inner.set_rnd(seed)


def draw_prompts(
    documents: Iterable[Document], judged: frozenset[str], *, as_harness: bool = False
) -> HarnessPrompts:
    """The prompts of ``documents``, with few-shot examples.

    They are drawn from the harness's seed on, in the order of each task's split. No document in
    ``judged`` is a few-shot example, nor is the document itself.

    Args:
        documents: those that get a prompt.
        judged: content of documents that are no few-shot examples.
        as_harness: take the harness's pool of examples and its order, unless the documents are all
            in that pool (a task with one split).
    """
    result = HarnessPrompts()
    for task in {id(document.task): document.task for document in documents}.values():
        part = sorted(
            (document for document in documents if document.task is task),
            key=lambda document: document.index,
        )
        with _drawing(task, result.fewshot) as sampler:
            pool = {_key(doc) for doc in sampler.inner.df}
            is_apart = not pool.issuperset(document.key for document in part)
            keeps_pool = as_harness and is_apart
            if not keeps_pool and task.config.num_fewshot:
                _keep_out(task, sampler.inner, judged)
            for document in part:
                if not keeps_pool:
                    sampler.excluded = document.doc
                result.prompts[document.id] = task.fewshot_context(
                    document.doc,
                    num_fewshot=task.config.num_fewshot or 0,
                    gen_prefix=task.doc_to_prefix(document.doc),
                )
    return result


@contextmanager
def _drawing(task: Any, fewshot: set[str]) -> Iterator[_Sampler]:
    """Give the task a recording sampler, and remember rendered examples, inside the block."""
    inner = task.sampler
    with seeded():
        pool = list(task.fewshot_docs() or [])
    task.sampler = _Sampler(inner.replace_df(pool), fewshot)
    task.set_fewshot_seed(FEWSHOT_SEED)
    methods = ("doc_to_text", "doc_to_target")
    for name in methods:
        setattr(task, name, _remembered(getattr(task, name)))
    try:
        yield task.sampler
    finally:
        task.sampler = inner.replace_df(pool)
        for name in methods:
            delattr(task, name)


def _remembered(render: Callable[..., Any]) -> Callable[..., Any]:
    """``render``, called once for a few-shot example and not for each of its prompts.

    The pool keeps its documents alive meanwhile, so that their ids stay taken.
    """
    rendered: dict[tuple[int, str], Any] = {}

    def once(doc: Any, template: Any = None) -> Any:
        key = (id(doc), repr(template))
        if key not in rendered:
            rendered[key] = render(doc, template)
        return rendered[key]

    return once


def _keep_out(task: Any, sampler: Any, judged: frozenset[str]) -> None:
    remaining = [doc for doc in sampler.df if _key(doc) not in judged]
    if len(remaining) <= task.config.num_fewshot < len(sampler.df):
        raise InputError(
            f"lm-eval task {task.config.task} has {len(remaining)} few-shot examples that are no"
            f" validation or test documents, and a prompt needs {task.config.num_fewshot} beside"
            " its own document; give fewer with ``num_fewshot``, or more data"
        )
    sampler.replace_df(remaining)


def _key(doc: Any) -> str:
    return json.dumps(doc, sort_keys=True, default=str)
