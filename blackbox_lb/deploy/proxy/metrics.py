"""Counts of requests, as ``/healthz`` and ``/metrics`` tell them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from blackbox_lb.deploy.part_sender import PhraseCounts
from blackbox_lb.safety.printable import printable

DECISIONS = ("mended", "abstained", "passed")
PHRASE_COUNTERS = {
    "answers": "Answers that phrases were kept out of",
    "steps": "Times that an answer was cut before a phrase",
    "let_through": "Phrases that were left in",
    "delivered": "Tokens of these answers that clients got",
    "discarded": "Tokens that were drawn and thrown away",
    "requests": "Requests to the upstream for these answers",
}
MOST_NAMES = 100
"""Models whose requests are counted by name: clients choose these."""
BUCKETS = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Upper ends in seconds of the classes of durations; a last one has no end."""


class Metrics:
    """What happened to the requests so far.

    answered: requests by the status of their answer; 499 for a client that left before its end.
    biased: requests that carried a bias, by its name.
    unbiased: requests to endpoints that take a bias, sent on without one.
    decisions: answers to questions: "mended", "abstained" where the promise of a mended one asks
        for somebody else, "passed" where nothing was learned of the question.
    without: requests for a model without a bias, by its name, up to ``MOST_NAMES`` of them.
    other: all other requests that were sent on.
    refused: requests that the proxy refused, by the code of the error.
    failed: requests without a whole answer that is no error of the server, by the code.
    seconds: of all answers, from the whole head of a request to the end of its answer.
    phrases: what keeping phrases out took, by the name of the bias.
    """

    def __init__(self, names: Iterable[str], phrases: Mapping[str, PhraseCounts]) -> None:
        self.phrases = phrases
        self.answered: Counter[str] = Counter()
        self.biased: Counter[str] = Counter(dict.fromkeys(names, 0))
        self.unbiased = 0
        self.without: Counter[str] = Counter()
        self.decisions: Counter[str] = Counter(dict.fromkeys(DECISIONS, 0))
        self.other = 0
        self.refused: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.seconds = 0.0
        self._buckets = [0] * len(BUCKETS)

    def answer(self, status: int, seconds: float) -> None:
        """Count an answer."""
        self.answered[str(status)] += 1
        self.seconds += seconds
        for place, end in enumerate(BUCKETS):
            if seconds <= end:
                self._buckets[place] += 1

    def is_first_without(self, model: str) -> bool:
        """Count a request for a model without a bias; whether it is the first with that name."""
        is_new = model not in self.without
        if is_new and len(self.without) >= MOST_NAMES:
            return False
        self.without[model] += 1
        return is_new

    @property
    def counts(self) -> dict[str, int]:
        """Requests by what became of them."""
        return {
            "biased": self.biased.total(),
            "unbiased": self.unbiased,
            "refused": self.refused.total(),
            "failed": self.failed.total(),
            "other": self.other,
        }

    @property
    def text(self) -> str:
        """Prometheus' text format:
        https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format.
        """
        sent_on = {"other": self.other, "unbiased": self.unbiased}
        lines = [
            *_counter("requests", "Requests by the status of the answer", "status", self.answered),
            *_counter("biased_requests", "Requests that carried a bias", "bias", self.biased),
            *_counter("unbiased_requests", "Requests sent on without a bias", "kind", sent_on),
            *_counter("decisions", "Answers to questions", "outcome", self.decisions),
            *self._phrase_counters(),
            *_counter("refused_requests", "Requests that were not sent on", "code", self.refused),
            *_counter("upstream_errors", "Requests that failed upstream", "code", self.failed),
            "# HELP blb_proxy_request_seconds Seconds to the end of an answer.",
            "# TYPE blb_proxy_request_seconds histogram",
        ]
        number = self.answered.total()
        for end, count in zip((*BUCKETS, "+Inf"), (*self._buckets, number), strict=True):
            lines.append(f'blb_proxy_request_seconds_bucket{{le="{end}"}} {count}')
        lines.append(f"blb_proxy_request_seconds_sum {self.seconds:.6f}")
        lines.append(f"blb_proxy_request_seconds_count {number}")
        return "\n".join(lines) + "\n"

    def _phrase_counters(self) -> Iterator[str]:
        """Nothing where no bias keeps phrases out."""
        for field, description in PHRASE_COUNTERS.items():
            counts = {name: getattr(row, field) for name, row in self.phrases.items()}
            if counts:
                yield from _counter(f"phrases_{field}", description, "bias", counts)


def _counter(name: str, description: str, label: str, counts: dict[str, int]) -> Iterator[str]:
    yield f"# HELP blb_proxy_{name}_total {description}."
    yield f"# TYPE blb_proxy_{name}_total counter"
    for key, count in sorted(counts.items()):
        value = printable(key).replace("\\", r"\\").replace('"', r"\"")
        yield f'blb_proxy_{name}_total{{{label}="{value}"}} {count}'
