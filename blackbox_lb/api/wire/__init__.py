"""The wire: requests as dictionaries, answers as completions; pure functions that never touch a
network.

A provider profile decides, row by row, the form of a request and the dialect of its answer.
"""

from blackbox_lb.api.wire.request import (
    asks_logprobs,
    build_request,
    check_stop,
    messages_of,
    most_completions,
    takes_messages,
)
from blackbox_lb.api.wire.response import (
    parse_response,
    read_answer,
    with_logprobs,
    with_prompt,
)
from blackbox_lb.api.wire.scanner import AnswerReader, loads

__all__ = [
    "AnswerReader",
    "asks_logprobs",
    "build_request",
    "check_stop",
    "loads",
    "messages_of",
    "most_completions",
    "parse_response",
    "read_answer",
    "takes_messages",
    "with_logprobs",
    "with_prompt",
]
