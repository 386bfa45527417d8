"""The dialect of the Responses API: one completion, in the parts of its messages, with entries as
those of chat completions.

https://platform.openai.com/docs/api-reference/responses/object
"""

from collections.abc import Mapping
from typing import Any

from blackbox_lb.api.wire.dialects.chat import positions, spelled
from blackbox_lb.api.wire.dialects.position import AnswerDialect, Choice
from blackbox_lb.api.wire.envelope import count, quoted, without
from blackbox_lb.errors import CorruptResponse
from blackbox_lb.providers.profile import Profile

ENDED = {"max_output_tokens": "length", None: "length"}
"""``incomplete_details.reason`` -> the finish reason of a chat completion, where their names
differ.
"""


def _choices(profile: Profile, answer: Any) -> list[Choice]:
    """The one choice that a chat completion would have."""
    output = None
    if isinstance(answer, Mapping):
        output = answer.get("output")
    if not isinstance(output, list) or not all(isinstance(entry, dict) for entry in output):
        raise without(profile, answer, "output")
    status = answer.get("status", "completed")
    if status not in ("completed", "incomplete"):
        provider_error = quoted(answer.get("error"))
        raise CorruptResponse(
            f"{profile.name} answered with status {status!r:.40}, neither completed nor incomplete:"
            f" {provider_error}"
        )
    reason = (answer.get("incomplete_details") or {}).get("reason")
    parts = [part for item in output if item.get("type") == "message" for part in item["content"]]
    total = count(answer, "output_tokens")
    if status == "completed" and not parts and total:
        raise without(profile, answer, "a message, although it is complete and has tokens")
    texts = [part for part in parts if part.get("type") == "output_text"]
    # A refusal never has logprobs in this API; a text without them lacks those that were asked for.
    silent = any(part["text"] and not part.get("logprobs") for part in texts)
    entries = [entry for part in texts for entry in part.get("logprobs") or []]
    if 0 < (total or 0) < len(entries):
        raise CorruptResponse(
            f"{profile.name} lists {len(entries)} tokens of a response and counts {total} in"
            " `usage`; one of the two is wrong"
        )
    choice = {
        "finish_reason": "stop" if status == "completed" else ENDED.get(reason, reason),
        "message": {
            "content": "".join(
                part["text"] if part in texts else part.get("refusal", "") for part in parts
            )
        },
        "logprobs": None if silent else {"content": entries},
    }
    return [choice]


RESPONSES = AnswerDialect(positions, spelled, choices=_choices, several=False)
