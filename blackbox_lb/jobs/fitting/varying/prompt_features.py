"""The features of training prompts that a bias may depend on, as a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from scipy import sparse

from blackbox_lb.bias.features import (
    DependsOn,
    PromptText,
    bucket_of,
    document_frequency_weights,
    grams,
    weighed,
)
from blackbox_lb.bias.prompt_bias import embedded, read
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.projection.prompt_dependent import FeatureTable
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks import Task
from blackbox_lb.types import Example, Prompt
from blackbox_lb.vocabulary.embedding import EXTRA, TextVectors, of_an_api, resolve_encoder

WORDS_SHOWN = 3
"""Words of a bucket that the bias file names."""


@dataclass(frozen=True, slots=True, eq=False)
class PromptFeatures:
    """The features of the training prompts.

    on: what is depended on. table: (p, f). names: (f,) what ``DependsOn.counted`` calls each.
    weights: feature -> its weight. words: bucket -> its commonest words. vectors: the embedding
    model, None where there is none.
    """

    on: DependsOn
    table: FeatureTable
    names: tuple[str | int, ...]
    weights: Mapping[str | int, float]
    words: Mapping[int, str]
    vectors: TextVectors | None = None

    @classmethod
    def of(
        cls, on: DependsOn, examples: Sequence[Example], vectors: TextVectors | None = None
    ) -> PromptFeatures:
        """Those that at least two of the prompts have, and not all of them; of an embedding, whose
        model ``vectors`` is, all.
        """
        texts = _texts(examples, on, vectors)
        rows = [on.counted(text) for text in texts]
        weights = document_frequency_weights(rows)
        if vectors is None:
            counts = Counter(name for row in rows for name in row)
            weights = {name: weight for name, weight in weights.items() if counts[name] < len(rows)}
        if on.kind != "words":
            weights = dict.fromkeys(weights, 1.0)
        names = tuple(sorted(weights, key=str))
        words: dict[int, Counter[str]] = {}
        for text in texts if on.kind == "words" else ():
            for gram in set(grams(text.user)):
                words.setdefault(bucket_of(gram), Counter())[gram] += 1
        shown = {
            name: " | ".join(word for word, _ in counts.most_common(WORDS_SHOWN))
            for name, counts in words.items()
        }
        return cls(on, _table(rows, names, weights), names, weights, shown, vectors)

    def of_examples(self, examples: Sequence[Example]) -> FeatureTable:
        """(p, f) the same features of other prompts."""
        rows = [self.on.counted(text) for text in _texts(examples, self.on, self.vectors)]
        return _table(rows, self.names, self.weights)


def _texts(
    examples: Sequence[Example], on: DependsOn, vectors: TextVectors | None
) -> list[PromptText]:
    texts = [read(example.prompt, on) for example in examples]
    return texts if vectors is None else embedded(texts, vectors)


def check_features(depends_on: Iterable[DependsOn], task: Task, limit: int | None) -> None:
    """Raise InputError before anything is paid for: no prompt has the column of the groups, equal
    prompts are in two groups, or an embedding model is not on this machine and no hub can have it.
    """
    for on in depends_on:
        if on.kind == "groups":
            _check_groups(
                on, task.train[:limit], [*task.train[:limit], *task.validation, *task.test]
            )
        if on.kind == "embedding" and not of_an_api(on.of):
            resolve_encoder(on.of)
            if find_spec("sentence_transformers") is None:
                raise InputError(
                    f"``depends_on={on.name}`` needs sentence-transformers, which is not installed:"
                    f" {EXTRA}"
                )


def _check_groups(
    on: DependsOn, training: Sequence[Example], everything: Sequence[Example]
) -> None:
    if not any(example.prompt.columns.get(on.of) for example in training):
        found = (
            ", ".join(
                dict.fromkeys(name for example in training for name in example.prompt.columns)
            )
            or "none"
        )
        raise InputError(
            f"``depends_on={on.name}``: no training row has a text in that column (short columns:"
            f" {found})"
        )
    of_prompt: dict[Prompt, str | None] = {}
    for example in everything:
        group = example.prompt.columns.get(on.of)
        if of_prompt.setdefault(example.prompt, group) != group:
            raise InputError(
                f"``depends_on={on.name}``: the prompt {shorten(example.prompt.text)} is in the"
                f" groups {of_prompt[example.prompt]!r} and {group!r}; the model is shown the same"
                " text, so keep one"
            )


def _table(
    rows: Sequence[Mapping[str | int, float]],
    names: Sequence[str | int],
    weights: Mapping[str | int, float],
) -> FeatureTable:
    place = {name: column for column, name in enumerate(names)}
    found = [
        (row, place[name], value)
        for row, each in enumerate(rows)
        for name, value in weighed(each, weights).items()
    ]
    at = ([row for row, _, _ in found], [column for _, column, _ in found])
    return sparse.csr_array(([value for _, _, value in found], at), shape=(len(rows), len(names)))
