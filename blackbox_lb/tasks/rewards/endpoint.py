"""A reward computed elsewhere: the message sent for a completion, and the value of an answer.
Sending is not done here.

An HTTP endpoint gets ``POST {"items": [...]}`` with one object a completion:

=============== ==================================================================================
id              the example's
prompt          [{"role", "content"}, ...]
answers         accepted answers, possibly none
completion      the text
finish_reason   "stop", "length", ... by the provider
tokens          of the completion, by the provider's count
tools           the functions that were offered, where there were any
tool_calls      [{"name", "arguments"}, ...] then, the arguments as JSON text
=============== ==================================================================================

and answers ``{"rewards": [...]}``: as many numbers of nats, in the same order, each finite or
"-inf" (never imitate it).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any
from urllib.parse import unquote, urlsplit

from blackbox_lb.errors import CorruptResponse, InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.secrets import watch
from blackbox_lb.tasks.rewards.spans import LocatedReward
from blackbox_lb.types import Completion, Example

KEY = "BLB_REWARD_KEY"
"""The environment variable with the bearer token of a reward endpoint, if it needs one."""
BATCH = 32
"""Completions in one request to an endpoint."""
CONCURRENCY = 4
"""Requests to an endpoint in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote(ABC):
    """One remote reward. ``known``: fetched values in nats by ``key``; ``score`` reads them.

    ``name`` goes into messages and files and holds no credentials; ``url`` neither. ``batch``:
    completions a request;
    ``concurrency``: requests in flight. ``otherwise``: nats for an answer without a number; None:
    such an answer is an error.
    """

    name: str
    url: str
    batch: int
    concurrency: int
    needs_answer: bool = False
    otherwise: float | None = None
    known: dict[str, float] = field(default_factory=dict, repr=False, compare=False)

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
        """The answer for each item, to be kept, or why it is no reward. Raises CorruptResponse for
        a reply of another shape.
        """

    @abstractmethod
    def number(self, answer: str) -> float | None:
        """Nats of a kept answer; None where it holds no number."""

    @abstractmethod
    def headers(self) -> dict[str, str]:
        """Headers with the credentials. Raises AuthenticationFailed where they are missing."""

    @abstractmethod
    def secrets(self) -> list[str]:
        """The texts that no message may repeat."""

    def learn(self, key: str, answer: str, value: float) -> None:
        """Take in a kept answer and its nats."""
        self.known[key] = value

    def measure(self, example: Example, completion: Completion) -> LocatedReward:
        """The fetched reward, with its places where the service says some."""
        return LocatedReward(self.score(example, completion))

    def key(self, example: Example, completion: Completion) -> str:
        """The key of one answer: a hash of everything that determines it."""
        return self.key_of(self.item(example, completion))

    def key_of(self, item: Mapping[str, Any]) -> str:
        text = json.dumps([self.identity, item], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(f"blackbox-lb/reward\n{text}".encode()).hexdigest()

    def score(self, example: Example, completion: Completion) -> float:
        """The fetched reward in nats. Raises InputError where it was never fetched."""
        try:
            return self.known[self.key(example, completion)]
        except KeyError as error:
            raise InputError(
                f"the reward {self.name} of a completion of example {example.id!r} was never"
                " fetched; collect it through Trials.collect, or call fetch_rewards first"
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointReward(Remote):
    """Any HTTP endpoint that follows the schema above."""

    authorization: str = field(default="", repr=False, compare=False)
    batch: int = BATCH
    concurrency: int = CONCURRENCY

    @classmethod
    def parse(cls, spec: str) -> EndpointReward:
        """The endpoint at an address; a user and password in it become the header Authorization.

        Raises InputError: not an address, or one with a query.
        """
        url = check_address(spec, "the reward", f"keys belong in the environment variable {KEY}")
        parts = urlsplit(spec)
        pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
        basic = ""
        if "@" in parts.netloc:
            basic = f"Basic {base64.b64encode(pair.encode()).decode()}"
        return cls(name=url, url=url, authorization=basic)

    @property
    def identity(self) -> Any:
        return {"endpoint": self.url}

    def item(self, example: Example, completion: Completion) -> dict[str, Any]:
        item: dict[str, Any] = {
            "id": example.id,
            "prompt": [message.as_json for message in example.prompt.messages],
            "answers": list(example.answers),
            "completion": completion.text,
            "finish_reason": completion.finish_reason,
            "tokens": completion.n_tokens,
        }
        if example.prompt.tools:
            item["tools"] = json.loads(example.prompt.tools)
            item["tool_calls"] = [asdict(call) for call in completion.tool_calls]
        return item

    def body(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {"items": list(items)}

    def answers(self, reply: Any, items: Sequence[dict[str, Any]]) -> list[str | CorruptResponse]:
        came = reply.get("rewards") if isinstance(reply, dict) else None
        if not isinstance(came, list):
            raise CorruptResponse(
                f'{self.name} answered {shorten(reply)}; expected is {{"rewards": [...]}}, a number'
                " of nats for each item"
            )
        if len(came) != len(items):
            raise CorruptResponse(
                f"{self.name} answered {len(came)} rewards for {len(items)} items; one each is"
                " needed"
            )
        return [self._checked(value, item) for value, item in zip(came, items, strict=True)]

    def _checked(self, value: Any, item: dict[str, Any]) -> str | CorruptResponse:
        if value == "-inf":
            return "-inf"
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if not math.isnan(number) and number != math.inf:
                return repr(number)
        return CorruptResponse(
            f"{self.name} answered {shorten(value)} for example {item['id']!r}; a reward is a"
            ' number of nats, finite or "-inf"'
        )

    def number(self, answer: str) -> float | None:
        return float(answer)

    def headers(self) -> dict[str, str]:
        watch([KEY])
        key = os.environ.get(KEY)
        if self.authorization:
            return {"Authorization": self.authorization}
        if key:
            return {"Authorization": f"Bearer {key.strip()}"}
        return {}

    def secrets(self) -> list[str]:
        sent = self.headers().get("Authorization", "")
        clear = ""
        if sent.startswith("Basic "):
            clear = base64.b64decode(sent[6:]).decode().partition(":")[2]
        return [secret for secret in (sent.partition(" ")[2], clear) if secret]


def check_address(address: str, what: str, remedy: str) -> str:
    """The http(s) address without user, password and trailing slash. Raises InputError, without
    repeating those: it is none.
    """
    try:
        parts = urlsplit(address)
        usable = (
            parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 0) >= 0
        )
    except ValueError:
        usable = False
    if not usable:
        shown = shorten(address.rpartition("@")[2])
        raise InputError(
            f"the address {shown} of {what} is not a http(s) URL; give one as https://HOST/PATH"
        )
    if parts.query or parts.fragment:
        raise InputError(
            f"the address of {what} holds a query, which could be a key and would be stored;"
            f" {remedy}"
        )
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
