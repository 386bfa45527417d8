"""Mending what a decision endpoint answers to a client's request, which goes out as it is."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.deploy.proxy.decisions import (
    OTHER_PROMPT,
    ServedQuestions,
    UpstreamWay,
    decided,
    patched,
)
from blackbox_lb.deploy.request_policy import parsed
from blackbox_lb.errors import BiasError, CorruptResponse
from blackbox_lb.questions.fields import RequestFault
from blackbox_lb.questions.serving import parse_request

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DecisionPolicy:
    """The questions of a file, whose answers are mended."""

    served: ServedQuestions

    @classmethod
    def of(cls, bias: Bias) -> DecisionPolicy:
        """Of a file that mends decisions.

        Raises BiasError: a question is read from first tokens, or in both orders of its options,
        which takes other requests than the client's.
        """
        for row in bias.decisions:
            if UpstreamWay.of(row).shape is None or row.both_orders:
                way = "in both orders of its options" if row.both_orders else "from first tokens"
                raise BiasError(
                    f"the question {row.question.id!r} of this bias file, which mends decisions, is"
                    f" read {way}, and a client sends its own requests alone; decide with"
                    " Run.decide, or serve it with ``blb proxy --decide``"
                )
        return cls(ServedQuestions(bias.decisions))

    def mended(self, url: str, content: bytes, answer: bytes) -> bytes:
        """The body of the endpoint's 200 with the mended answers in it. A question of another
        model, or a request that cannot be read, gets the endpoint's own answer, and a log record.

        content: of the request.
        """
        document = parsed(content)
        response = parsed(answer)
        if document is None or response is None or OTHER_PROMPT & document.keys():
            return answer
        try:
            request = parse_request(document, url)
            decisions = self._decisions(request.questions, request.shape, response)
        except (RequestFault, CorruptResponse) as error:
            log.warning("an answer is not mended: %s", error)
            return answer
        return json.dumps(patched(response, request, decisions)).encode()

    def _decisions(self, questions: Any, shape: str, response: dict[str, Any]) -> dict[str, Any]:
        """Question id -> the mended answer, of those that were learned from this model."""
        decisions = {}
        for question, mended in self.served.learned(questions, str(response.get("model"))):
            way = self.served.way_of(question)
            if way.shape != shape:
                log.warning(
                    "the question %s was learned from %s, and is asked at another endpoint: its"
                    " answers are not mended",
                    question.id,
                    way.path,
                )
                continue
            read = way.read(response, questions, [question])
            decisions[question.id] = decided(question, read.scores[question.id], mended, way)
        return decisions
