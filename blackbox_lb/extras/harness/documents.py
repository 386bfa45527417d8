"""The tasks of lm-evaluation-harness by their names, and their documents in three splits with their
prompts.

https://github.com/EleutherAI/lm-evaluation-harness, checked with version 0.4.13.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from blackbox_lb.errors import BlbError, InputError
from blackbox_lb.literals import Split
from blackbox_lb.safety.printable import did_you_mean, first_line, shorten
from blackbox_lb.tasks.records.files import ExampleRow
from blackbox_lb.tasks.records.hub_data import library, offline_without_hub, quiet, read_folder
from blackbox_lb.tasks.sets.task import divide
from blackbox_lb.types import Example, Prompt

SEED = 0
"""The harness's ``seed`` of Python's random numbers, which shuffle the choices of GPQA."""
MOST_SUGGESTED = 4
"""Generative tasks that a refusal names."""
_DECLARED = re.compile(
    rb"^(?:task|group):[ \t]*['\"]?([^\s'\"\[\]]+)['\"]?[ \t]*\r?$", re.MULTILINE
)


def load_leaves(name: str, data_dir: Path | None, num_fewshot: int | None) -> dict[str, Any]:
    """Load the generate_until tasks of ``name``. To be called inside ``working``.

    Args:
        name: a task, a group or a tag.
        data_dir: files that are read instead of the hub's. A group has a folder for each task,
            called like the task or its subset.
        num_fewshot: few-shot examples a prompt; None for the task's number.

    Returns:
        Tasks by name, in the order of the group.

    Raises:
        InputError: the harness is not installed, there is no such task, it compares likelihoods, or
            its data cannot be loaded.
    """
    manager = _manager(name)
    index = manager.task_index
    leaves = _expand(index, name, {})
    _refuse_likelihoods(index, [leaf for leaf, _ in leaves])
    members = []
    for leaf, settings in leaves:
        config = {**index[leaf].cfg, **settings}
        member: dict[str, Any] = {"task": leaf, **settings}
        if num_fewshot is not None:
            _check_fewshot(leaf, config, num_fewshot)
            member["num_fewshot"] = num_fewshot
        if data_dir is not None:
            folder = _folder(data_dir, leaf, config.get("dataset_name"), alone=len(leaves) == 1)
            # The harness calls it with the task's metadata and dataset_kwargs.
            member["custom_dataset"] = partial(_read_folder, folder)
            member["dataset_kwargs"] = None
        members.append(member)
    tasks = _loaded(manager, name, members, data_dir)
    return {leaf: _checked(task, leaf) for leaf, task in tasks.items()}


def _read_folder(folder: Path, /, **_metadata: Any) -> Any:
    return read_folder(folder)


def _check_fewshot(leaf: str, config: dict[str, Any], num_fewshot: int) -> None:
    if config.get("num_fewshot") == 0 and num_fewshot:
        raise InputError(
            f"lm-eval task {leaf} fixes 0 few-shot examples and the harness ignores any other"
            " number; leave ``num_fewshot`` out"
        )


def _manager(name: str) -> Any:
    """The harness's index with ``name``, of its folder alone if that suffices.

    Reading all of the 14,000 files takes 10 seconds and more.
    """
    manager = _lm_eval("tasks").TaskManager
    declared = _declared()
    if name in declared:
        small = manager(include_defaults=False, include_path=str(declared[name].parent))
        if _complete(small.task_index, name):
            return small
    elif not _is_tag(name):
        hint = did_you_mean(name, declared, most=5)
        raise InputError(
            f"lm-evaluation-harness has no task {shorten(name)}{hint}; python -m lm_eval ls tasks"
            f" lists its {len(declared):,} tasks"
        )
    return manager()


def _lm_eval(module: str) -> Any:
    return library(f"lm_eval.{module}", "``task=lm-eval:NAME``")


def _folder_of_tasks() -> Path:
    return Path(_lm_eval("tasks").__path__[0])


def _files() -> list[Path]:
    return sorted(_folder_of_tasks().rglob("*.yaml"))


@lru_cache(maxsize=1)
def _declared() -> dict[str, Path]:
    """The file that declares a task or group, by its name."""
    names: dict[str, Path] = {}
    for path in _files():
        declared = _DECLARED.search(path.read_bytes())
        if declared:
            names.setdefault(declared[1].decode(), path)
    return names


def _is_tag(name: str) -> bool:
    listed = re.compile(
        rb"^(?:tag:|[ \t]*-)[ \t]*['\"]?%s['\"]?[ \t]*\r?$" % re.escape(name).encode(), re.MULTILINE
    )
    return any(listed.search(path.read_bytes()) for path in _files())


def _complete(index: dict[str, Any], name: str) -> bool:
    try:
        return all(leaf in index for leaf, _ in _expand(index, name, {}))
    except KeyError:
        return False


def _expand(
    index: dict[str, Any], name: str, overrides: dict[str, Any]
) -> list[tuple[str, dict[str, Any]]]:
    """The tasks under ``name``, each with the settings that its groups give it."""
    entry = index[name]
    if entry.kind.name == "TAG":
        return [(leaf, overrides) for leaf in sorted(entry.tags)]
    if entry.kind.name != "GROUP":
        return [(name, overrides)]
    group_fields = set(library("lm_eval.config.group", "a group").GroupConfig.__dataclass_fields__)
    group_fields |= {"tag", "include"}
    config = entry.cfg
    settings = {key: value for key, value in config.items() if key not in group_fields}
    overrides = {**settings, **overrides}
    leaves: list[tuple[str, dict[str, Any]]] = []
    for item in config["task"]:
        if isinstance(item, str):
            leaves += _expand(index, item, overrides)
        else:
            inner = item.get("task")
            if not isinstance(inner, str):
                inner = item["group"]
            more = {key: value for key, value in item.items() if key not in ("task", "group")}
            leaves += _expand(index, inner, {**overrides, **more})
    return leaves


def _refuse_likelihoods(index: dict[str, Any], leaves: list[str]) -> None:
    for leaf in leaves:
        kind = index[leaf].cfg.get("output_type", "generate_until")
        if kind == "generate_until":
            continue
        generative = _generative(leaf)
        remedy = "take a task of the type generate_until"
        if generative:
            remedy = f"take a generative one: {', '.join(generative)}"
        raise InputError(
            f"lm-eval task {leaf} is of the type {kind}: it compares likelihoods of given texts and"
            f" samples no completion, which a bias is learned from; {remedy}"
        )


def _generative(leaf: str) -> list[str]:
    """The generate_until tasks of the same benchmark, the closest names first."""
    path = _declared().get(leaf)
    root = _folder_of_tasks()
    if path is None:
        return []
    family = root / path.relative_to(root).parts[0]
    manager = _lm_eval("tasks").TaskManager(include_defaults=False, include_path=str(family))
    tasks = [
        name
        for name, entry in manager.task_index.items()
        if entry.kind.name == "TASK" and entry.cfg.get("output_type") == "generate_until"
    ]
    return difflib.get_close_matches(leaf, tasks, MOST_SUGGESTED, 0.3)


def _folder(data_dir: Path, leaf: str, subset: str | None, *, alone: bool) -> Path:
    names = [name for name in (leaf, subset) if name]
    for name in names:
        if (data_dir / name).is_dir():
            return data_dir / name
    if alone:
        return data_dir
    raise InputError(
        f"``data_dir={data_dir}`` has no folder {' or '.join(names)}; a group needs one for each of"
        " its tasks, with a file a split"
    )


def _loaded(
    manager: Any, name: str, members: list[dict[str, Any]], data_dir: Path | None
) -> dict[str, Any]:
    spec = {"group": f"blackbox-lb {name}", "task": members}
    with offline_without_hub() as online, translated(name, data_dir, online), seeded():
        return dict(manager.load([spec])["tasks"])


@contextmanager
def translated(name: str, data_dir: Path | None, online: bool = True) -> Iterator[None]:
    """Inside the block whatever the task's own code raises on its data is an InputError.

    Args:
        name: that of the task.
        data_dir: files that are read instead of the hub's.
        online: whether the hub answers.
    """
    try:
        yield
    except BlbError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        if isinstance(error, ImportError) or isinstance(error.__context__, ImportError):
            raise InputError(
                f"lm-eval task {name} needs a Python package that is not installed: {reason}"
            ) from error
        if data_dir is not None:
            if isinstance(error, KeyError):
                reason = f"it asks for {error}"
            raise InputError(
                f"the files in {data_dir} do not suit lm-eval task {name}: {reason}; give it a"
                " file for each split, with the columns of the data set that the task names"
            ) from error
        hub = "" if online else " (the hub does not answer and the cache does not have it)"
        raise InputError(
            f"lm-eval task {name} cannot be loaded{hub}: {reason}; give its data as files with"
            " ``data_dir``, a file a split (train.jsonl, test.jsonl)"
        ) from error


@contextmanager
def working() -> Iterator[None]:
    """Inside the block the harness is quiet, caches no shuffle, and compiles each template once.

    It would compile a prompt's template for each document anew, which takes 20 times as long.
    """
    datasets = library("datasets", "``task=lm-eval:NAME``")
    env = _lm_eval("utils").env
    cached = datasets.is_caching_enabled()
    datasets.disable_caching()
    compile_template = env.from_string
    env.from_string = lru_cache(maxsize=1024)(compile_template)
    try:
        with quiet():
            yield
    finally:
        env.from_string = compile_template
        if cached:
            datasets.enable_caching()


@contextmanager
def seeded() -> Iterator[None]:
    """Start Python's random numbers from the harness's seed, and restore them after the block."""
    random = importlib.import_module("random")
    state = random.getstate()
    random.seed(SEED)
    try:
        yield
    finally:
        random.setstate(state)


def _checked(task: Any, leaf: str) -> Any:
    if getattr(task, "OUTPUT_TYPE", None) != "generate_until" or not hasattr(task, "sampler"):
        raise InputError(
            f"lm-eval task {leaf} is a Python class of its own kind, which is not supported; take"
            " another task"
        )
    if getattr(task, "UNSAFE_CODE", False):
        raise InputError(
            f"lm-eval task {leaf} runs the code that a model writes on this machine; take another"
            " task"
        )
    if getattr(task, "MULTIMODAL", False):
        raise InputError(
            f"lm-eval task {leaf} asks about images or sound, and only text can be sent; take"
            " another task"
        )
    return task


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
    rows = [ExampleRow(Example(key, Prompt.user(""))) for key in by_id]
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
    name: that of the task.
    fewshot: gets the content of every document that is drawn.
    excluded: the document that is not drawn; None for the one that the harness names.
    """

    def __init__(self, inner: Any, name: str, fewshot: set[str]) -> None:
        self.inner = inner
        self.name = name
        self.fewshot = fewshot
        self.excluded: dict[str, Any] | None = None

    def sample(self, n: int, eval_doc: Any = None, **more: Any) -> Any:
        """Draw ``n`` documents. Raises InputError: there are fewer."""
        if self.excluded is not None:
            eval_doc = self.excluded
        try:
            docs = self.inner.sample(n=n, eval_doc=eval_doc, **more)
        except (AssertionError, ValueError) as error:
            raise InputError(
                f"lm-eval task {self.name} has {len(self.inner.df)} few-shot examples that are no"
                f" validation or test documents, and a prompt needs {n} beside its own document;"
                " give fewer with ``num_fewshot``, or more data"
            ) from error
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
                sampler.inner.replace_df(
                    [doc for doc in sampler.inner.df if _key(doc) not in judged]
                )
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
    """Give the task a recording sampler inside the block."""
    inner = task.sampler
    with seeded():
        pool = list(task.fewshot_docs() or [])
    task.sampler = _Sampler(inner.replace_df(pool), task.config.task, fewshot)
    task.set_fewshot_seed(FEWSHOT_SEED)
    try:
        yield task.sampler
    finally:
        task.sampler = inner.replace_df(pool)


def _key(doc: Any) -> str:
    return json.dumps(doc, sort_keys=True, default=str)
