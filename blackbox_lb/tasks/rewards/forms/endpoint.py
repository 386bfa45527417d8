"""The reward that an HTTP endpoint gives.

It gets ``POST {"items": [...]}`` with one object a completion:

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

and answers ``{"rewards": [...]}``: as many finite numbers of nats, in the same order.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

from blackbox_lb.errors import CorruptResponse
from blackbox_lb.safety.network import read_address
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.secrets import watch
from blackbox_lb.tasks.rewards.remote import Remote
from blackbox_lb.tasks.rewards.reward import Form
from blackbox_lb.types import Completion, Example

KEY = "BLB_REWARD_KEY"
"""The environment variable with the bearer token of a reward endpoint, if it needs one."""
BATCH = 32
"""Completions in one request to an endpoint."""
CONCURRENCY = 4
"""Requests to an endpoint in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointReward(Remote):
    """Any HTTP endpoint that follows the schema above."""

    answer_field: ClassVar[str] = "rewards"
    batch: int = BATCH
    concurrency: int = CONCURRENCY

    @classmethod
    def parse(cls, spec: str) -> EndpointReward:
        """The endpoint at an address.

        Raises InputError: not an address, or one with a password or a query.
        """
        url = read_address(
            spec,
            "the address of the reward",
            "give one as https://HOST/PATH",
            f"keys belong in the environment variable {KEY}",
            of_api=False,
        )
        return cls(name=url, url=url)

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
        """See ``Remote``."""
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
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                number = float(value)
            except OverflowError:
                number = math.inf
            if math.isfinite(number):
                return repr(number)
        return CorruptResponse(
            f"{self.name} answered {shorten(value)} for example {item['id']!r}; a reward is a"
            " finite number of nats"
        )

    def headers(self) -> dict[str, str]:
        watch([KEY])
        keys = self.secrets()
        return {"Authorization": f"Bearer {keys[0]}"} if keys else {}

    def secrets(self) -> list[str]:
        key = os.environ.get(KEY, "").strip()
        return [key] if key else []


FORMS = (
    Form(
        "https",
        "what an HTTP endpoint of yours answers, in nats (http:// too)",
        EndpointReward.parse,
        takes="//HOST/PATH",
        reaches="host",
    ),
)
