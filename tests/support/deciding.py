"""DecidingServer: an endpoint that decides between labels, in System One's and OpenAI's shape, with
probabilities of known vectors.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tests.support.listener import Listener, Reply, Request

JSON = dict[str, Any]
LogProbs = Callable[[Any, str, Sequence[str]], Sequence[float]]
"""(state, id of the question, names of its options in the order of the request) -> log p, which
need not be normalised.
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
        if request.path == "/v1/systemone":
            return Reply(200, self._system_one(body))
        if request.path == "/v1/decisions":
            return Reply(200, self._openai(body))
        return Reply(404, {"error": {"message": "no such path"}})

    def probabilities(self, state: Any, name: str, options: Sequence[str]) -> list[float]:
        """As they are printed."""
        logits = np.asarray(self._logprobs(state, name, options), float)
        odds = np.exp(logits - logits.max())
        shares: list[float] = (odds / odds.sum()).tolist()
        if self._decimals is None:
            return shares
        return [round(share, self._decimals) for share in shares]

    def _system_one(self, body: JSON) -> JSON:
        answers: JSON = {}
        for name, question in body["questions"].items():
            criteria = question.get("criteria") or {}
            if question["type"] == "noul":
                [yes, _] = self.probabilities(body["state"], name, ["true", "false"])
                answers[name] = {"type": "noul", "noul": yes}
                continue
            options = list(criteria)
            if question["type"] == "score":
                options = [str(place) for place in range(len(criteria))]
            shares = self.probabilities(body["state"], name, options)
            table = dict(zip(options, shares, strict=True))
            answers[name] = {
                "type": question["type"],
                "confidence": max(shares),
                "probabilities": table,
            }
            if question["type"] == "score":
                answers[name]["score"] = sum(place * share for place, share in enumerate(shares))
                answers[name]["legend"] = dict(zip(options, criteria, strict=True))
            else:
                answers[name]["choice"] = max(table, key=lambda option: table[option])
        usage = {"input_tokens": 100, "output_tokens": len(answers)}
        return {"model": self.model, "answers": answers, "usage": usage}

    def _openai(self, body: JSON) -> JSON:
        answers = []
        for question in body["questions"]:
            name = question.get("name")
            if body["input"] in self._refused:
                answers.append({"type": "refusal", "name": name})
                continue
            if question["type"] == "predicate":
                [yes, _] = self.probabilities(body["input"], name, ["true", "false"])
                answers.append({"type": "predicate", "name": name, "probability": yes})
                continue
            values = [choice["value"] for choice in question["choices"]]
            shares = self.probabilities(body["input"], name, values)
            pairs = zip(values, shares, strict=True)
            answers.append(
                {
                    "type": "choice",
                    "name": name,
                    "choice": values[int(np.argmax(shares))],
                    "confidence": max(shares),
                    "probabilities": [
                        {"value": value, "probability": share} for value, share in pairs
                    ],
                }
            )
        usage = {"input_tokens": 90, "output_tokens": 0, "total_tokens": 90}
        return {"model": self.model, "answers": answers, "usage": usage}
