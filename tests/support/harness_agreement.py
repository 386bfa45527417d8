"""The package's scores of answers beside those of lm-evaluation-harness's own ``evaluate``.

The harness's side is a model that answers with given texts, and a task whose test split has the
document of each text once. Every filter of the task is compared, extracted answers and scores.
"""

from __future__ import annotations

import collections
import importlib
from pathlib import Path
from typing import Any

from blackbox_lb.extras.harness import HarnessMetric, HarnessOptions, load_harness
from blackbox_lb.extras.harness.documents import load_leaves
from blackbox_lb.types import Example

LM: Any = importlib.import_module("lm_eval.api.model").LM


class Stored(LM):  # type: ignore[misc]
    """A model that answers each request with the next text."""

    def __init__(self, texts: list[str]) -> None:
        super().__init__()
        self.texts = texts

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """The texts, one a request."""
        if len(requests) != len(self.texts):
            raise ValueError(f"{len(requests)} requests for {len(self.texts)} texts")
        return self.texts

    def loglikelihood(self, requests: list[Any]) -> list[tuple[float, bool]]:
        """Never asked for."""
        raise NotImplementedError

    def loglikelihood_rolling(self, requests: list[Any]) -> list[float]:
        """Never asked for."""
        raise NotImplementedError


def agreement(
    name: str, answers: list[tuple[Example, str]], options: HarnessOptions
) -> dict[str, collections.Counter[str]]:
    """For each filter: how many completions, how many with the same extracted answer, with the same
    score, and correct.
    """
    counts: dict[str, collections.Counter[str]] = {}
    filters = [
        ensemble.name
        for ensemble in next(iter(load_leaves(name, options.data_dir, None).values()))._filters
    ]
    for chosen in filters:
        judge = load_harness(
            name, HarnessOptions(options.data_dir, options.num_fewshot, chosen)
        ).correct.judge  # type: ignore[union-attr]
        assert isinstance(judge, HarnessMetric)
        counts[chosen] = _compared(judge, answers, _samples(judge, answers))
    return counts


def _samples(judge: HarnessMetric, answers: list[tuple[Example, str]]) -> list[dict[str, Any]]:
    """What the harness's ``evaluate`` logs for each answer, in their order, with the judge's
    filter.
    """
    logged: dict[int, dict[str, Any]] = {}
    documents = [judge.documents[example.id] for example, _ in answers]
    for leaf in dict.fromkeys(document.leaf for document in documents):
        places = [place for place, document in enumerate(documents) if document.leaf == leaf]
        task = _fresh(leaf, [documents[place].doc for place in places], documents[places[0]].task)
        lm = Stored([answers[place][1] for place in places])
        results = importlib.import_module("lm_eval.evaluator").evaluate(
            lm, {leaf: task}, log_samples=True, bootstrap_iters=0
        )
        for sample in results["samples"][leaf]:
            if sample["filter"] == judge.filter:
                logged[places[sample["doc_id"]]] = sample
    return [logged[place] for place in range(len(answers))]


def _fresh(leaf: str, docs: list[dict[str, Any]], loaded: Any) -> Any:
    """The harness's task with these documents as its test split, made anew from its
    configuration.
    """
    datasets = importlib.import_module("datasets")
    config = loaded.config
    splits = {
        split
        for split in (config.training_split, config.validation_split, config.fewshot_split)
        if split
    }
    parts = {split: datasets.Dataset.from_list(docs[:1]) for split in splits} | {
        "test": datasets.Dataset.from_list(docs)
    }
    more = {
        "custom_dataset": lambda **_: datasets.DatasetDict(parts),
        "dataset_kwargs": None,
        # the documents are processed: shuffled once, as the completions were asked
        "process_docs": None,
        "test_split": "test",
        "num_fewshot": 0,
    }
    folder = str(
        Path(config.metadata["config_source"]).parent
    )  # all of the harness's tasks would take 10 seconds
    manager = importlib.import_module("lm_eval.tasks").TaskManager(
        include_defaults=False, include_path=folder
    )
    return manager.load([{"group": "agreement", "task": [{"task": leaf, **more}]}])["tasks"][leaf]


def _compared(
    judge: HarnessMetric, answers: list[tuple[Example, str]], samples: list[dict[str, Any]]
) -> collections.Counter[str]:
    counts: collections.Counter[str] = collections.Counter(completions=len(answers))
    for (example, text), sample in zip(answers, samples, strict=True):
        ours = judge(example, text)
        counts["same answer"] += [judge.extracted(example, text)] == sample["filtered_resps"]
        counts["same score"] += float(ours) == float(sample[judge.metric])
        counts["correct"] += ours
    return counts
