"""Rewards computed elsewhere: the message sent for a completion, and the value of an answer.
Sending is not done here.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from blackbox_lb.errors import CorruptResponse, InputError
from blackbox_lb.tasks.rewards.reward import Reward, Score
from blackbox_lb.types import Completion, Example

KEPT = "the rewards that came are kept, the same command goes on from there"


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote(Reward):
    """A reward that another program computes. ``fetch_rewards`` asks for it and stores the answers;
    ``score`` reads what came.

    Attributes:
        url: of the program, without credentials.
        batch: completions in one request.
        concurrency: requests in flight.
        otherwise: nats for an answer without a number; None: such an answer is an error.
        known: fetched values in nats by ``key``.
        answer_field: of a reply.
    """

    answer_field: ClassVar[str]
    url: str
    batch: int
    concurrency: int
    otherwise: float | None = None
    known: dict[str, float] = field(default_factory=dict, repr=False, compare=False)

    @property
    def label(self) -> str:
        """See ``Reward``."""
        return f"reward of {self.name}"

    @property
    def is_untried(self) -> bool:
        """See ``Reward``."""
        return not self.known

    def check_key(self) -> None:
        """See ``Reward``."""
        self.headers()

    @property
    @abstractmethod
    def identity(self) -> Any:
        """All else that determines the answer to an item, as JSON; no credentials."""

    @abstractmethod
    def item(self, example: Example, completion: Completion) -> dict[str, Any]:
        """The message about one completion."""

    @abstractmethod
    def body(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The body of one request."""

    @abstractmethod
    def answers(self, reply: Any, items: Sequence[dict[str, Any]]) -> list[str | CorruptResponse]:
        """The answer for each item, to be kept, or why it is no reward.

        reply: as JSON; of a judge its words and its finish reason.

        Raises CorruptResponse: the reply has another shape.
        """

    @abstractmethod
    def headers(self) -> dict[str, str]:
        """Headers with the credentials. Raises AuthenticationFailed where they are missing."""

    @abstractmethod
    def secrets(self) -> list[str]:
        """The texts that no message may repeat."""

    def learn(self, key: str, answer: str, example: str) -> bool:
        """Take in a kept answer about a completion of the example of this id; return whether it
        holds a number. CorruptResponse: it holds none, and nothing says what that is worth.
        """
        del example
        self.known[key] = float(answer)
        return True

    def lost_quotes(self, key: str, text: str) -> int:
        """How many of the passages quoted in the answer ``key`` do not stand in ``text``."""
        del key, text
        return 0

    def key(self, example: Example, completion: Completion) -> str:
        """The key of one answer: a hash of everything that determines it."""
        return self.key_of(self.item(example, completion))

    def key_of(self, item: Mapping[str, Any]) -> str:
        text = json.dumps([self.identity, item], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(f"blackbox-lb/reward\n{text}".encode()).hexdigest()

    def score(self, example: Example, completion: Completion) -> Score:
        """See ``Reward``. InputError: it was never fetched."""
        try:
            return Score(self.known[self.key(example, completion)])
        except KeyError as error:
            raise InputError(
                f"the reward {self.name} of a completion of example {example.id!r} was never"
                " fetched; collect it through Trials.collect, or call fetch_rewards first"
            ) from error
