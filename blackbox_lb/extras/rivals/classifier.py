"""``classifier:KIND``: a classifier of the prompts' texts, learned without the model.

It has the same training rows as the bias.
"""

from __future__ import annotations

import importlib.util
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.extras.rivals.case import Case, right
from blackbox_lb.jobs.evaluation.policies import Decided, Decides, Policy
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.safety.printable import first_line
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example
from blackbox_lb.vocabulary.embedding import EXTRA, Encoder, load_encoder, resolve_encoder

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""Values of C, the inverse strength of the penalty; cross-validation chooses among them."""
FOLDS = 5
"""Parts of the training rows in cross-validation."""
WORDS = re.compile(r"\w+").findall


def classifier(case: Case, value: str) -> Policy:
    """A classifier on ``tfidf``, or on ``embedding:NAME_OR_FOLDER``.

    Raises:
        InputError: another ``value``, no such embedding model, a package that is not installed, or
            one label in all training rows.
    """
    kind, _, name = value.partition(":")
    is_known = (kind == "tfidf" and not name) or (kind == "embedding" and bool(name))
    if not is_known:
        raise InputError(
            f"``rival=classifier:{value}`` is not known; give tfidf, or embedding:NAME_OR_FOLDER"
        )
    title = f"classifier {kind}"
    packages = ["sklearn"]
    if name:
        title += f" {name}"
        packages.append("sentence_transformers")
    for package in packages:
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"``rival=classifier:{value}`` needs {package.replace('_', '-')}, which is not"
                f" installed: {EXTRA}"
            )
    if name:
        resolve_encoder(name)
    labels = case.decision("classifier")
    case.check_training("classifier")
    right(case.task, labels)
    return Decides(
        rival=title,
        decision=Classifier(case, labels, name or None),
        tokens=0,
        cost=f"no request; it learns from {len(case.task.train):,} training rows without the model",
    )


@dataclass(frozen=True, slots=True)
class Classifier:
    """Logistic regression on words and pairs of words, or on embeddings.

    encoder: the embedding model; None for words.
    """

    case: Case
    labels: Labels
    encoder: str | None = None

    def lists(self) -> Sequence[Example]:
        """No prompts, because the model is not asked."""
        return ()

    async def decide(self, trials: Trials) -> Decided:
        """Learn from the training rows, and decide for each test prompt."""
        labels = right(self.case.task, self.labels)
        has_label = labels >= 0
        labels = labels[has_label]
        examples = zip(self.case.task.train, has_label.tolist(), strict=True)
        training: Any = [example.prompt.text for example, usable in examples if usable]
        test: Any = [example.prompt.text for example in self.case.task.test]
        encode = None
        if self.encoder is not None:
            encode = load_encoder(self.encoder)
            test = np.asarray(encode(test))
        model = learned_classifier(training, labels, encode, self.case.seed)
        return Decided(tuple(model.predict(test).tolist()))


def learned_classifier(texts: Sequence[str], labels: Ids, encode: Encoder | None, seed: int) -> Any:
    """A fitted classifier of scikit-learn. encode: of texts; None for their words.

    Raises:
        InputError: nothing can be learned, as from one label alone.
    """
    from sklearn.exceptions import ConvergenceWarning

    training: Any = texts
    steps: list[Any] = []
    if encode is None:
        from sklearn.feature_extraction.text import TfidfVectorizer

        steps.append(
            TfidfVectorizer(
                ngram_range=(1, 2), sublinear_tf=True, tokenizer=WORDS, token_pattern=None
            )
        )
    else:
        training = np.asarray(encode(texts))
    rarest = int(np.unique(labels, return_counts=True)[1].min())
    model = _with_validation(steps, rarest, seed)
    with warnings.catch_warnings():
        # It fails to converge at strengths that are hardly ever chosen.
        warnings.simplefilter("ignore", ConvergenceWarning)
        try:
            model.fit(training, labels)
        except ValueError as error:
            raise InputError(
                f"no classifier can be learned from {len(texts)} training rows:"
                f" {first_line(error)}; drop ``rival=classifier``"
            ) from error
    return model


def _with_validation(steps: list[Any], rarest: int, seed: int) -> Any:
    """The classifier behind ``steps``, with C by stratified cross-validation.

    C is 1 where the rarest label has a single row.
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(*steps, LogisticRegression(max_iter=1000))
    if rarest < 2:
        return model
    folds = StratifiedKFold(min(FOLDS, rarest), shuffle=True, random_state=seed)
    return GridSearchCV(
        model,
        {"logisticregression__C": STRENGTHS},
        cv=folds,
        scoring="accuracy",
        error_score="raise",
    )
