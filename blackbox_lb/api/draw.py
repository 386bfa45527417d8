"""How completions are drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.literals import Endpoint
from blackbox_lb.questions.question import Question
from blackbox_lb.types import Sampling

LARGEST_SEED = 0x7FFFFFFF
"""Of 31 bits, which every server takes."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How completions are drawn.

    sampling: temperature, longest completion, listed alternatives, seed and stop texts.
    bias: what is added to the logits; see ``RequestBias.at``.
    endpoint: the endpoint that samples; None for that of the session.
    fields: further fields of the request.
    questions: of the endpoint that decides between labels; none elsewhere.
    """

    sampling: Sampling
    bias: RequestBias = NO_BIAS
    endpoint: Endpoint | None = None
    fields: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    questions: tuple[Question, ...] = ()

    @property
    def sent_texts(self) -> list[str]:
        """What goes out with every prompt: the questions, as JSON."""
        return [json.dumps(question.as_json()) for question in self.questions]

    def seeded(self, number: int) -> Sampling:
        """The sampling of the request with this number, of those that one draw takes, with a seed
        of its own: the same random numbers would tie one request's tokens to another's.
        """
        seed = self.sampling.seed
        if seed is None:
            return self.sampling
        return replace(self.sampling, seed=(seed + number) & LARGEST_SEED)

    def on(self, endpoint: Endpoint) -> Draw:
        """A draw that names an endpoint: this one's, else ``endpoint``."""
        if self.endpoint:
            return self
        return replace(self, endpoint=endpoint)
