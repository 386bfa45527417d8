"""From a name to the task objects of lm-evaluation-harness, with data from the hub or from files.

https://github.com/EleutherAI/lm-evaluation-harness, checked with version 0.4.13.
"""

import difflib
import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from blackbox_lb.errors import BlbError, InputError
from blackbox_lb.safety.printable import did_you_mean, shorten
from blackbox_lb.tasks.records.hub_data import library, offline_without_hub, quiet, read_folder

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
        config = {**_config(index, leaf), **settings}
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


def _config(index: dict[str, Any], leaf: str) -> dict[str, Any]:
    return dict(
        _lm_eval("tasks._yaml_loader").load_yaml(
            index[leaf].yaml_path, resolve_func=False, recursive=True
        )
    )


def _refuse_likelihoods(index: dict[str, Any], leaves: list[str]) -> None:
    kinds = {leaf: _config(index, leaf).get("output_type", "generate_until") for leaf in leaves}
    wrong = {leaf: kind for leaf, kind in kinds.items() if kind != "generate_until"}
    if wrong:
        leaf, kind = next(iter(wrong.items()))
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
    index = manager.task_index
    tasks = [name for name, entry in index.items() if entry.kind.name == "TASK"]
    close = difflib.get_close_matches(leaf, tasks, len(tasks), 0.3)
    kinds = [_config(index, name).get("output_type") for name in close]
    pairs = zip(close, kinds, strict=True)
    return [name for name, kind in pairs if kind == "generate_until"][:MOST_SUGGESTED]


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
    try:
        with offline_without_hub() as online, seeded():
            return dict(manager.load([spec])["tasks"])
    except BlbError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if data_dir is not None:
            missing = reason
            if isinstance(error, KeyError):
                missing = f"it asks for the split {error}"
            raise InputError(
                f"the files in {data_dir} do not suit lm-eval task {name}: {missing}; give it a"
                " file for each split, with the columns of the data set that the task names"
            ) from error
        hub = ""
        if not online:
            hub = " (the hub does not answer and the cache does not have it)"
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
