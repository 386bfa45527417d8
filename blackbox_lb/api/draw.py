"""How completions are drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.literals import Endpoint
from blackbox_lb.questions.question import Question
from blackbox_lb.types import Sampling


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

    def on(self, endpoint: Endpoint) -> Draw:
        """A draw that names an endpoint: this one's, else ``endpoint``."""
        if self.endpoint:
            return self
        return replace(self, endpoint=endpoint)
