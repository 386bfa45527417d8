"""Tasks of lm-evaluation-harness, with its prompts, stop texts, filters and metrics.

Splits are as in the paper.

https://github.com/EleutherAI/lm-evaluation-harness; the paper, section "Tasks and data" and the
appendix on prompt templates. A completion is correct if the harness's filter and metric give 1 for
its text.

=========== ======================================================================================
split       documents
=========== ======================================================================================
test        the task's test split, or its validation split where it has none; the prompts are the
            harness's
validation  the task's own where it has three splits; else a sample of train by hash, by default
            min(500, 20 %)
train       the rest of the training split
=========== ======================================================================================

A task with one split only (GPQA) is divided 80/10/10 by a hash of task, split and index. Choices
that the harness shuffles are shuffled from its seed 0, anew for each pass over a split, so that
every run sees the same order.

Few-shot examples are drawn from its seed 1234. No validation or test document is one, nor is the
document itself. Test prompts are an exception, because they are the harness's. They may have a test
question that train has too, or a validation document where they draw almost all of train. The note
counts these.
"""

from importlib.metadata import version
from typing import Any

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.extras.harness.documents import (
    Document,
    HarnessPrompts,
    Splits,
    draw_prompts,
    load_leaves,
    split_documents,
    translated,
    working,
)
from blackbox_lb.safety.printable import first_line
from blackbox_lb.tasks.records.files import ExampleRow
from blackbox_lb.tasks.records.hub_data import library
from blackbox_lb.tasks.rewards.matching import Matcher
from blackbox_lb.tasks.sets.task import HarnessOptions, Task
from blackbox_lb.types import Example, Prompt

__all__ = ["HarnessMetric", "HarnessOptions", "load_harness"]

_USED = {"max_gen_toks", "until", "do_sample", "temperature"}


def load_harness(name: str, options: HarnessOptions | None = None) -> Task:
    """Load the generate_until task or group ``name``, joined into one task.

    Raises:
        InputError: the harness is not installed, or has no such task, filter or metric; the task
            compares likelihoods; its data cannot be loaded; or its subtasks differ in stop texts,
            token limit, filter or metric.
    """
    options = options or HarnessOptions()
    with working(), translated(name, options.data_dir):
        tasks = load_leaves(name, options.data_dir, options.num_fewshot)
        chosen = _same(
            {leaf: _chosen(task, leaf, options) for leaf, task in tasks.items()},
            "filter and metric",
        )
        stop, max_tokens = _same(
            {leaf: _generation(task) for leaf, task in tasks.items()}, "stop texts and token limit"
        )
        splits = split_documents(name, tasks, options.validation_size)
        test = draw_prompts(splits.parts["test"], splits.judged(), as_harness=True)
        if not splits.parts["validation"] or options.validation_size is not None:
            splits.sample_validation(name, options.validation_size, test.fewshot)
        rest = draw_prompts([*splits.parts["train"], *splits.parts["validation"]], splits.judged())
        prompts = test | rest
        rows = {
            split: [_row(document, prompts) for document in documents]
            for split, documents in splits.parts.items()
        }
        note = _note(name, tasks, chosen, splits, prompts)
    documents = {document.id: document for part in splits.parts.values() for document in part}
    judge = HarnessMetric(documents, *chosen)
    return Task.from_splits(
        name,
        rows,
        correct=Matcher(f"lm-eval:{name} {'/'.join(chosen)}", needs_answer=False, judge=judge),
        max_tokens=max_tokens,
        stop=stop,
        note=note,
    )


def _chosen(task: Any, leaf: str, options: HarnessOptions) -> tuple[str, str]:
    better = task.higher_is_better()
    name = _one_of(
        options.filter, [ensemble.name for ensemble in task._filters], "``filter``", leaf
    )
    metric = _one_of(options.metric, list(better), "``metric``", leaf)
    if not better[metric]:
        raise InputError(
            f"metric {metric} of lm-eval task {leaf} is better where lower; choose another with"
            " ``metric``"
        )
    return name, metric


def _one_of(value: str | None, names: list[str], option: str, leaf: str) -> str:
    if value is None:
        return names[0]
    if value not in names:
        raise InputError(f"{option} is {value!r}; lm-eval task {leaf} has {', '.join(names)}")
    return value


def _generation(task: Any) -> tuple[tuple[str, ...], int]:
    """The stop texts and the most tokens of a completion."""
    settings = _sampling(task)
    return tuple(settings["until"]), settings["max_gen_toks"]


def _sampling(task: Any) -> dict[str, Any]:
    """The task's settings for generation, as the harness's own clients read them."""
    settings = task.config.generation_kwargs
    clients = library("lm_eval.models.utils", "an lm-eval task")
    return dict(clients.normalize_gen_kwargs({**settings, "until": settings.get("until") or []}))


def _same(values: dict[str, Any], title: str) -> Any:
    """The value that all tasks share; ``title`` names it in the error where they differ."""
    (first, value), *rest = values.items()
    for leaf, leaf_value in rest:
        if leaf_value != value:
            raise InputError(
                f"the {title} of {first} are {value}, of {leaf} {leaf_value}; name one of the"
                " tasks, not the group"
            )
    return value


def _row(document: Document, prompts: HarnessPrompts) -> ExampleRow:
    targets = document.task.doc_to_target(document.doc)
    if not isinstance(targets, list):
        targets = [targets]
    texts = [str(target) for target in targets]
    answers = tuple(text for text in texts if text.strip())
    source = f"lm-eval task {document.leaf}, document {document.index} of {document.split}"
    prompt = Prompt.user(prompts.prompts[document.id])
    return ExampleRow(Example(document.id, prompt, answers, source=source))


class HarnessMetric:
    """The harness's filter and metric on the text of a completion.

    documents: those of one task, by the id of their example.
    """

    def __init__(self, documents: dict[str, Document], filter_name: str, metric: str) -> None:
        self.documents = documents
        self.filter = filter_name
        self.metric = metric

    def __call__(self, example: Example, text: str) -> bool:
        document = self._document(example)
        try:
            answer = self.extracted(example, text)
            score = document.task.process_results(document.doc, [answer])[self.metric]
        except Exception as error:  # the task's own code
            raise InputError(
                f"metric {self.metric} of lm-eval task {document.leaf} fails on a completion of"
                f" example {example.id!r}: {type(error).__name__}: {first_line(error)}; choose"
                " another with ``metric`` or ``filter``"
            ) from error
        if score not in (0, 1):
            raise InputError(
                f"metric {self.metric} of lm-eval task {document.leaf} is {score!r} for example"
                f" {example.id!r}, and correct or not must be 1 or 0; choose another with"
                " ``metric``"
            )
        return bool(score)

    def extracted(self, example: Example, text: str) -> Any:
        """The answer that the filter finds in ``text``; in many tasks "[invalid]" for none."""
        document = self._document(example)
        instance = library("lm_eval.api.instance", "an lm-eval task").Instance(
            "generate_until", document.doc, ("", {}), 0, (document.leaf, document.index, 1), [text]
        )
        (ensemble,) = (
            ensemble for ensemble in document.task._filters if ensemble.name == self.filter
        )
        ensemble.apply([instance])
        return instance.filtered_resps[self.filter]

    def _document(self, example: Example) -> Document:
        if example.id not in self.documents:
            raise DataError(
                f"example {example.id!r} is none of this lm-eval task's; load the task that it"
                " belongs to"
            )
        return self.documents[example.id]


def _note(
    name: str,
    tasks: dict[str, Any],
    chosen: tuple[str, str],
    splits: Splits,
    prompts: HarnessPrompts,
) -> str:
    """One paragraph: versions, filter and metric, few-shot examples, splits, unused settings."""
    first = next(iter(tasks.values()))
    filter_name, metric = chosen
    train = splits.parts["train"]
    judged = [*splits.parts["validation"], *splits.parts["test"]]

    harness = f"lm-evaluation-harness {version('lm-eval')}, task {name} (version {first.VERSION})"
    if len(tasks) > 1:
        harness += f", {len(tasks)} of its tasks joined"
    correct = f"correct by filter {filter_name} and metric {metric}"
    unused_filters = [item.name for item in first._filters if item.name != filter_name]
    if unused_filters:
        correct += f" (not by {' or '.join(unused_filters)})"
    shots = (
        f"{first.config.num_fewshot or 0} few-shot examples a prompt;"
        f" {_number_in(train, prompts.fewshot)} of {len(train)} train documents serve as such"
    )
    judged_shots = _number_in(judged, prompts.fewshot)
    if judged_shots:
        shots += (
            f", and {judged_shots} validation or test documents in test prompts, as the harness"
            " draws them"
        )
    sentences = [harness, correct, f"validation: {splits.origin}", shots]
    if splits.dropped:
        sentences.append(f"{splits.dropped} documents dropped that ask what a later split asks")
    if first.config.repeats > 1:
        sentences.append(f"each completion is judged alone, not {first.config.repeats} together")
    unused_settings = sorted(set(_sampling(first)) - _USED)
    if unused_settings:
        sentences.append(f"its sampling settings {', '.join(unused_settings)} are not used")
    return "; ".join(sentences)


def _number_in(documents: list[Document], contents: set[str]) -> int:
    return sum(document.key in contents for document in documents)
