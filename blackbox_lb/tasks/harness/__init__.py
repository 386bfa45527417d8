"""Tasks of lm-evaluation-harness: its prompts, few-shot examples, stop texts, filters and metrics; splits as in the paper.

https://github.com/EleutherAI/lm-evaluation-harness; the paper, section "Tasks and data" and the appendix on prompt templates. A
completion is correct where the harness's own filter and metric, called on its text, say 1.

============ =====================================================================================================
split        documents
============ =====================================================================================================
test         the task's test split, or its validation split where it has none; the prompts are the harness's
validation   the task's own where it has three splits; else a sample of train by hash, min(500, 20 %) unless told
train        the rest of the training split
============ =====================================================================================================

A task with one split only (GPQA) is divided 80/10/10 by a hash of task, split and index. Choices that the harness shuffles are
shuffled from its seed 0, anew for each pass over a split, so that every run sees the same order. Few-shot examples are drawn from
its seed 1234. No validation or test document is one, nor the document itself, but where the harness's own test prompts have one: a
test question that train has too, or, where they draw almost all of train, a validation document. The note counts those.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.tasks.harness.documents import Document, HarnessPrompts, Splits, draw_prompts, split_documents
from blackbox_lb.tasks.harness.load import load_leaves, working
from blackbox_lb.tasks.records.files import SourcedExample
from blackbox_lb.tasks.records.hub_data import library
from blackbox_lb.tasks.rewards.matching import Matcher
from blackbox_lb.tasks.sets.task import Task
from blackbox_lb.types import Example, Prompt

__all__ = ["HarnessMetric", "HarnessOptions", "load_harness"]

MAX_TOKENS = 256
"""What the harness's clients for APIs generate at most where a task does not say."""
_LIMITS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_USED = {*_LIMITS, "until", "do_sample", "temperature"}


@dataclass(frozen=True, slots=True)
class HarnessOptions:
    """What is not as the harness has it.

    ``data_dir``: a folder with a file for each split, instead of the hub. ``num_fewshot``: examples before each question.
    ``filter`` and ``metric``: which of the task's decides, its first unless told. ``validation_size``: documents sampled of train.
    """

    data_dir: Path | None = None
    num_fewshot: int | None = None
    filter: str | None = None
    metric: str | None = None
    validation_size: int | None = None


def load_harness(name: str, options: HarnessOptions | None = None) -> Task:
    """The generate_until task or group ``name``, joined into one task.

    InputError: not installed, unknown, one that compares likelihoods, no such filter or metric, its data cannot be had, or its
    subtasks differ in stop texts, token limit, filter or metric.
    """
    options = options or HarnessOptions()
    with working():
        tasks = load_leaves(name, options.data_dir, options.num_fewshot)
        chosen = _same({leaf: _chosen(task, leaf, options) for leaf, task in tasks.items()}, "filter and metric")
        stop, max_tokens = _same({leaf: _generation(task) for leaf, task in tasks.items()}, "stop texts and token limit")
        splits = split_documents(name, tasks, options.validation_size)
        test = draw_prompts(splits.parts["test"], splits.judged(), as_harness=True)
        if not splits.parts["validation"] or options.validation_size is not None:
            splits.sample_validation(name, options.validation_size, test.fewshot)
        rest = draw_prompts([*splits.parts["train"], *splits.parts["validation"]], splits.judged())
        prompts = test | rest
        rows = {split: [_row(d, prompts) for d in part] for split, part in splits.parts.items()}
    judge = HarnessMetric({d.id: d for part in splits.parts.values() for d in part}, *chosen)
    return Task.from_splits(
        name,
        rows,
        correct=Matcher(f"lm-eval:{name} {'/'.join(chosen)}", needs_answer=False, judge=judge),
        max_tokens=max_tokens,
        stop=stop,
        note=_note(name, tasks, chosen, splits, prompts),
    )


def _chosen(task: Any, leaf: str, options: HarnessOptions) -> tuple[str, str]:
    better = task.higher_is_better()
    name = _one_of(options.filter, [ensemble.name for ensemble in task._filters], "--filter", leaf)
    metric = _one_of(options.metric, list(better), "--metric", leaf)
    if not better[metric]:
        raise InputError(f"metric {metric} of lm-eval task {leaf} is better where lower; choose another with --metric")
    return name, metric


def _one_of(wanted: str | None, names: list[str], option: str, leaf: str) -> str:
    if wanted is None:
        return names[0]
    if wanted not in names:
        raise InputError(f"{option} is {wanted!r}; lm-eval task {leaf} has {', '.join(names)}")
    return wanted


def _generation(task: Any) -> tuple[tuple[str, ...], int]:
    settings = task.config.generation_kwargs
    until = settings.get("until") or []
    limits = [settings[name] for name in _LIMITS if settings.get(name)]
    return tuple(until if isinstance(until, list) else [until]), int(limits[0]) if limits else MAX_TOKENS


def _same(values: dict[str, Any], what: str) -> Any:
    (first, value), *rest = values.items()
    for leaf, other in rest:
        if other != value:
            raise InputError(f"the {what} of {first} are {value}, of {leaf} {other}; name one of the tasks, not the group")
    return value


def _row(document: Document, drawn: HarnessPrompts) -> SourcedExample:
    target = document.task.doc_to_target(document.doc)
    answers = tuple(text for item in (target if isinstance(target, list) else [target]) if (text := str(item)).strip())
    example = Example(document.id, Prompt.user(drawn.prompts[document.id]), answers)
    return SourcedExample(example, f"lm-eval task {document.leaf}, document {document.index} of {document.split}")


class HarnessMetric:
    """The harness's own filter and metric on the text of one completion, for the documents of one task by their example's id."""

    def __init__(self, documents: dict[str, Document], filter_name: str, metric: str) -> None:
        self.documents, self.filter, self.metric = documents, filter_name, metric

    def __call__(self, example: Example, text: str) -> bool:
        document = self._document(example)
        score = document.task.process_results(document.doc, [self.extracted(example, text)])[self.metric]
        if score not in (0, 1):
            raise InputError(
                f"metric {self.metric} of lm-eval task {document.leaf} is {score!r} for example {example.id!r}, and correct or not "
                "must be 1 or 0; choose another with --metric"
            )
        return bool(score)

    def extracted(self, example: Example, text: str) -> Any:
        """The answer that the filter finds in ``text``, "[invalid]" in many tasks where there is none."""
        document = self._document(example)
        instance = library("lm_eval.api.instance", "an lm-eval task").Instance(
            "generate_until", document.doc, ("", {}), 0, (document.leaf, document.index, 1), [text]
        )
        (ensemble,) = (ensemble for ensemble in document.task._filters if ensemble.name == self.filter)
        ensemble.apply([instance])
        return instance.filtered_resps[self.filter]

    def _document(self, example: Example) -> Document:
        if example.id not in self.documents:
            raise DataError(f"example {example.id!r} is none of this lm-eval task's; load the task that it belongs to")
        return self.documents[example.id]


def _note(name: str, tasks: dict[str, Any], chosen: tuple[str, str], splits: Splits, drawn: HarnessPrompts) -> str:
    """One paragraph: versions, filter and metric, few-shot examples, where the splits come from, what is not used."""
    first = next(iter(tasks.values()))
    others = [ensemble.name for ensemble in first._filters if ensemble.name != chosen[0]]
    parts = splits.parts
    shots = first.config.num_fewshot or 0
    serving = sum(document.key in drawn.fewshot for document in parts["train"])
    judged = sum(document.key in drawn.fewshot for document in [*parts["validation"], *parts["test"]])
    ignored = sorted(set(first.config.generation_kwargs) - _USED)
    sentences = [
        f"lm-evaluation-harness {version('lm-eval')}, task {name} (version {first.VERSION})"
        + (f", {len(tasks)} of its tasks joined" if len(tasks) > 1 else ""),
        f"correct by filter {chosen[0]} and metric {chosen[1]}" + (f" (not by {' or '.join(others)})" if others else ""),
        f"validation: {splits.origin}",
        f"{shots} few-shot examples a prompt; {serving} of {len(parts['train'])} train documents serve as such"
        + (f", and {judged} validation or test documents in test prompts, as the harness draws them" if judged else ""),
    ]
    if splits.dropped:
        sentences.append(f"{splits.dropped} documents dropped that ask what a later split asks")
    if first.config.repeats > 1:
        sentences.append(f"each completion is judged alone, not {first.config.repeats} together")
    if ignored:
        sentences.append(f"its sampling settings {', '.join(ignored)} are not used")
    return "; ".join(sentences)
