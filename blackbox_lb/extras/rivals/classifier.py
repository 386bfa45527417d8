"""``classifier``: a classifier of the prompts' texts, learned on the same training rows without
the model.
"""

import importlib.util
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.jobs.evaluation.arms import Alternative, Decided
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.safety.printable import first_line
from blackbox_lb.types import Example
from blackbox_lb.vocabulary.embedding import EXTRA, load_encoder, resolve_encoder

STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0)
"""Values of C, the inverse strength of the penalty, among which cross-validation chooses."""
FOLDS = 5
WORDS = re.compile(r"\w+").findall


def classifier(case: Case, given: object) -> Alternative:
    """``tfidf``, or ``embedding:NAME_OR_FOLDER``.

    Raises InputError: another name, no such embedding model, a package that is not installed, or
    one label in all training rows.
    """
    kind, _, name = str(given).partition(":")
    if kind not in ("tfidf", "embedding") or (kind == "tfidf") == bool(name):
        raise InputError(
            f"``classifier={given}`` is not known; give tfidf, or embedding:NAME_OR_FOLDER"
        )
    for package in ("sklearn", *(["sentence_transformers"] if name else [])):
        if importlib.util.find_spec(package) is None:
            raise InputError(
                f"``classifier={given}`` needs {package.replace('_', '-')}, which is not installed:"
                f" {EXTRA}"
            )
    if name:
        resolve_encoder(name)
    case.right()
    return Alternative(
        f"classifier {kind}" + (f" {name}" if name else ""),
        decision=Classifier(case, name or None),
        max_tokens=0,
        cost=f"no request; it learns from {len(case.task.train):,} training rows without the model",
    )


@dataclass(frozen=True, slots=True)
class Classifier:
    """Logistic regression on words and pairs of words, or on vectors of the embedding model
    ``encoder``.
    """

    case: Case
    encoder: str | None = None

    def lists(self) -> Sequence[Example]:
        """None: the model is not asked."""
        return ()

    async def decide(self, trials: Trials) -> Decided:
        return Decided(tuple(self._decided()))

    def _decided(self) -> list[int]:
        from sklearn.exceptions import ConvergenceWarning

        right = self.case.right()
        known = right >= 0
        rows = [
            each.prompt.text
            for each, has in zip(self.case.task.train, known.tolist(), strict=True)
            if has
        ]
        prompts = [each.prompt.text for each in self.case.task.test]
        if self.encoder is None:
            from sklearn.feature_extraction.text import TfidfVectorizer

            first = [
                TfidfVectorizer(
                    ngram_range=(1, 2), sublinear_tf=True, tokenizer=WORDS, token_pattern=None
                )
            ]
            training: Any = rows
            test: Any = prompts
        else:
            encode = load_encoder(self.encoder)
            first = []
            training = np.asarray(encode(rows))
            test = np.asarray(encode(prompts))
        model = _chosen(
            first, int(np.bincount(right[known])[np.unique(right[known])].min()), self.case.seed
        )
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", ConvergenceWarning
            )  # at strengths that are hardly ever chosen
            try:
                model.fit(training, right[known])
            except ValueError as error:
                raise InputError(
                    f"no classifier can be learned from {len(rows)} training rows:"
                    f" {first_line(error)}; drop ``classifier``"
                ) from error
            found: list[int] = model.predict(test).tolist()
        return found


def _chosen(first: list[Any], rarest: int, seed: int) -> Any:
    """The classifier after ``first``, its C by stratified cross-validation; C = 1 where a label has
    one row (``rarest``).
    """
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV, StratifiedKFold
    from sklearn.pipeline import make_pipeline

    model = make_pipeline(*first, LogisticRegression(max_iter=1000))
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
