"""What scenes are made of: models whose every probability is known, and rows of data for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from scipy.special import expit

from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import JSON
from tests.support.exact.server import Answer
from tests.support.questions import questions

Rows: TypeAlias = Sequence[Mapping[str, Any]]

EMBEDDINGS = "http://embeddings.example/v1"
"""The address of an API. It is reached through the server as its proxy, because a bias file holds
it, and a port would be another one each time.
"""


class EmbeddingServer(ExactServer):
    """Also a proxy to an API of embeddings, which gives one number a colour that a text names."""

    def post(self, path: str, body: JSON) -> Answer:
        """The answer to POST ``path``."""
        if path != f"{EMBEDDINGS}/embeddings":
            return super().post(path, body)
        self.calls.append((path, body))
        rows = [
            {"index": place, "embedding": [1.0, *(float(colour in text) for colour in COLOURS)]}
            for place, text in enumerate(body["input"])
        ]
        return {"data": rows, "usage": {"total_tokens": len(rows)}}


# --- Models. Token 0 is " a", token 1 " b" and so on; the last one of a model with an end ends.


def with_labels(logit: float, horizon: int, prompts: int, **more: Any) -> ExactModel:
    """A model of 14 tokens whose labels, " b" and " c", have ``logit`` nats more than others."""
    unigram = np.where(np.isin(np.arange(14), (1, 2)), logit, 0.0)
    return ExactModel(14, horizon, seed=3, prompts=prompts, unigram=unigram, end=True, **more)


WRITER = ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)
OPENER = ExactModel(8, 4, seed=2, sharpness=0.5)
THINKER = ExactModel(6, 8, seed=3, sharpness=0.6)
COLOURLESS = with_labels(-4.0, 2, 1)
DECIDER = with_labels(-4.0, 2, 12)
TALKER = ExactModel(14, 2, seed=3, unigram=[0.0, 4.0, 2.5, *[0.0] * 11], end=True)
"""Says its labels often enough for samples to show which is right."""
SHARER = with_labels(1.0, 3, 12)
RANKER = with_labels(-1.0, 1, 2000, sharpness=1.5)
BEGINNER = ExactModel(14, 1, seed=3, prompts=2000, sharpness=1.5, end=True)
CALLER = ExactModel(
    14, 2, seed=5, prompts=2000, unigram=np.where(np.arange(14) == 1, 2.0, 0.0), end=True
)
SPELLER = ExactModel(
    14,
    6,
    seed=5,
    prompts=6,
    unigram=np.where(np.isin(np.arange(14), (1, 2, 4)), -3.0, 0.0),
    end=True,
)
"""Answers of one, two and three tokens, with which it hardly begins."""
CHATTERER = ExactModel(
    14, 2, seed=30, prompts=20, unigram=np.where(np.arange(14) == 13, 0.5, 0.0), end=True
)
"""Begins a fifth of its greedy answers with a label, and mostly goes on."""


def behind(model: ExactModel, **more: Any) -> Callable[[], ExactServer]:
    """A maker of a server of this model."""
    return lambda: ExactServer(model, **more)


# --- Rows

COLOURS = ("red", "blue", "green", "yellow", "black")


def numbered(train: int, validation: int, test: int, **fields: object) -> Rows:
    """That many questions a split. Their numbers have four digits from 0 to 5, so that even for a
    model of six tokens no prompt is read as another one, or as the beginning of another one.
    """
    rows = []
    for number, row in enumerate(questions(train, validation, test, **fields)):
        rows.append({**row, "prompt": f"question {np.base_repr(number, 6):0>4}"})
    return rows


def labelled(model: ExactModel, train: int, validation: int, test: int) -> Rows:
    """Questions whose right label is that of " b" and " c" which the model finds likelier."""
    rows = []
    for row in numbered(train, validation, test):
        logprobs = model.logprobs([], model.prompt_of(row["prompt"]))
        rows.append({**row, "answer": "b" if logprobs[1] > logprobs[2] else "c"})
    return rows


def only(split: str, rows: Rows) -> Rows:
    """The rows of a split, which do not name it any more."""
    own = [row for row in rows if row["split"] == split]
    return [{name: value for name, value in row.items() if name != "split"} for row in own]


def coloured(train: int, validation: int, test: int) -> Rows:
    """Things of which the red and the green ones are b."""
    rows = []
    for number, row in enumerate(numbered(train, validation, test)):
        colour = COLOURS[number % 5]
        answer = "b" if colour in ("red", "green") else "c"
        prompt = f"{row['prompt']}: what is {colour}"
        rows.append({**row, "prompt": prompt, "colour": colour, "answer": answer})
    return rows


def ranked(log_odds: Callable[[str], float], column: str, names: tuple[str, str]) -> Rows:
    """Prompts that get the first name with a chance that rises with the model's own log odds."""
    rng = np.random.default_rng(1)
    rows = []
    for row in numbered(100, 100, 60):
        chance = expit(3.0 * log_odds(row["prompt"]))
        rows.append({**row, column: names[int(rng.random() >= chance)]})
    return rows


def label_odds(prompt: str) -> float:
    """Log odds of " b" against " c"."""
    logprobs = RANKER.logprobs([], RANKER.prompt_of(prompt))
    return float(logprobs[1] - logprobs[2])


def opening_odds(prompt: str) -> float:
    """Nats that " b" or " e" is ahead of all other tokens, and 2 more."""
    logprobs = BEGINNER.logprobs([], BEGINNER.prompt_of(prompt))
    return float(logprobs[[1, 4]].max() - np.delete(logprobs, [1, 4]).max()) + 2.0


def call_odds(prompt: str) -> float:
    """Log odds of a call, and 2 nats more."""
    share = float(np.exp(CALLER.logprobs([], CALLER.prompt_of(prompt))[1]))
    return float(np.log(share) - np.log1p(-share)) + 2.0


def in_cities(**shares: Mapping[str, float]) -> Rows:
    """Questions in turn from each city, with the shares that are wanted there."""
    cities = list(shares)
    rows = []
    for number, row in enumerate(numbered(40, 20, 30)):
        city = cities[number % len(cities)]
        prompt = f"{city} {row['prompt']}"
        rows.append({**row, "prompt": prompt, "city": city, "answer": shares[city]})
    return rows


def spelled() -> Rows:
    """Answers of one to three tokens, by the kind of the prompt."""
    answers = ("b", "c d", "e f g")
    return [
        {**row, "answer": answers[SPELLER.prompt_of(row["prompt"]) % 3]}
        for row in numbered(24, 10, 20)
    ]


def some_without_answers(kept: int) -> Rows:
    """Of 60 training rows all but ``kept`` have lost their answer."""
    rows = [dict(row) for row in labelled(DECIDER, 60, 40, 60)]
    for row in rows[kept:60]:
        del row["answer"]
    return rows


def begun_records() -> Rows:
    """Each prompt with the beginning of a record, behind which the label stands."""
    rows = []
    for row in labelled(DECIDER, 40, 20, 40):
        user = {"role": "user", "content": row["prompt"]}
        begun = {"role": "assistant", "content": " d e"}
        rows.append({"messages": [user, begun], "answer": row["answer"], "split": row["split"]})
    return rows
