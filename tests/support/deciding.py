"""DecidingServer: an endpoint that decides between labels, in System One's and OpenAI's shape, with
probabilities of known vectors.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from blackbox_lb.questions.serving import QuestionAnswer, answer_body, parse_request
from tests.support.exact.listener import Listener, Reply, Request

JSON = dict[str, Any]
LogProbs = Callable[[Any, str, Sequence[str]], Sequence[float]]
"""(state, id of the question, names of its options in the order of the request) -> log p, which
need not be normalised; () of a refusal.
"""


class DecidingServer:
    """A context manager. logprobs: of each question. decimals: of the printed probabilities, None
    for all. refused: states whose questions are refused. faults: number of the request, from 0 ->
    the status in place of an answer. requests: the bodies so far.
    """

    def __init__(
        self,
        logprobs: LogProbs,
        *,
        decimals: int | None = None,
        refused: Sequence[Any] = (),
        faults: Mapping[int, int] | None = None,
        model: str = "decider-1",
    ) -> None:
        self._logprobs = logprobs
        self._decimals = decimals
        self._refused = list(refused)
        self._faults = dict(faults or {})
        self.model = model
        self.requests: list[JSON] = []
        self._lock = threading.Lock()
        self._http: Listener | None = None

    def __enter__(self) -> DecidingServer:
        self._http = Listener(self._reply)
        self._http.start()
        return self

    def __exit__(self, *raised: object) -> None:
        assert self._http is not None
        self._http.stop()

    @property
    def base_url(self) -> str:
        """With its ``/v1``."""
        assert self._http is not None
        return f"{self._http.url}/v1"

    def _reply(self, request: Request) -> Reply:
        if request.method == "GET":
            return Reply(200, {"data": [{"id": self.model}]})
        body = json.loads(request.body)
        with self._lock:
            number = len(self.requests)
            self.requests.append(body)
        if number in self._faults:
            return Reply(self._faults[number], {"error": {"message": "not now"}})
        name = request.path.rpartition("/")[2]
        if name not in ("systemone", "decisions"):
            return Reply(404, {"error": {"message": "no such path"}})
        asked = parse_request(body, name)
        decided = {}
        for question in asked.questions:
            shares = self.probabilities(asked.state, question.id, question.names)
            is_refused = asked.state in self._refused or not shares
            if is_refused:
                shares = [1 / len(question.options)] * len(question.options)
            decided[question.id] = QuestionAnswer(tuple(shares), refused=is_refused)
        return Reply(200, bare(answer_body(asked, self.model, decided, 100)))

    def probabilities(self, state: Any, name: str, options: Sequence[str]) -> list[float]:
        """As they are printed."""
        logits = np.asarray(self._logprobs(state, name, options), float)
        if not logits.size:
            return []
        odds = np.exp(logits - logits.max())
        shares: list[float] = (odds / odds.sum()).tolist()
        if self._decimals is None:
            return shares
        return [round(share, self._decimals) for share in shares]


def bare(body: JSON) -> JSON:
    """An answer without the fields that tell what was mended, as other servers write it."""
    answers = body["answers"]
    for fields in answers if isinstance(answers, list) else answers.values():
        for name in ("x_mended", "x_abstain"):
            fields.pop(name, None)
    return body
