"""The envelope of an answer: its choices, their texts, and its counts of tokens.

Every dialect's choices are read as those of a chat completion, so that the rest of the wire knows
one envelope.
"""

import json
import re
import reprlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from blackbox_lb.errors import CorruptResponse
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import ToolCall, ending_of, with_calls

REMEDY = (
    "raise ``max_tokens``, or turn thinking off (the model's own switch, under [request] in a"
    " profile)"
)
CUT = f"were cut inside their thinking, so that they have no text: {REMEDY}"
UNLISTED = (
    "are not whole: tokens of their thinking are counted and not listed with them;"
    f" {REMEDY.partition(', or ')[2]}"
)
"""Notes on completions, behind their number."""
ALL_THOUGHT = (
    "ended by itself with all of its words in its thoughts and no text: is the server's reasoning"
    " parser for another model? Start it without one (vLLM: --reasoning-parser), or turn thinking"
    " off"
)
"""The fault of an answer, behind its name."""
THOUGHT_PARTS = ("thinking", "redacted_thinking", "reasoning")
"""Types of the parts of a message that are thoughts."""
SPECIAL = re.compile(r"<\|(?:start|channel)\|>[^<]*|<[^<>\s]+>|\[[A-Z_/]+\]")
"""How templates spell what is no part of a text, as <|im_end|>, </s>, [EOS] or gpt-oss's
<|channel|>analysis.
"""


def has_thoughts(answer: Mapping[str, Any], choice: Mapping[str, Any], *, alone: bool) -> bool:
    """Whether the model thought before the completion. ``alone``: it is the answer's only one, so
    that ``usage`` is about it.
    """
    logprobs = choice.get("logprobs")
    if shows_thoughts(choice):
        return True
    if isinstance(logprobs, Mapping) and logprobs.get("reasoning_content"):
        return True
    usage = None
    if alone:
        usage = answer.get("usage")
    details = []
    if isinstance(usage, Mapping):
        details = [usage.get(f"{kind}_tokens_details") for kind in ("completion", "output")]
    return any(isinstance(detail, Mapping) and detail.get("reasoning_tokens") for detail in details)


def shows_thoughts(choice: Mapping[str, Any]) -> bool:
    """Whether the message of a choice holds the words of thoughts."""
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return False
    if message.get("reasoning_content") or message.get("reasoning"):
        return True
    content = message.get("content")
    return isinstance(content, list) and any(is_thought(part) for part in content)


def is_thought(part: Any) -> bool:
    """Whether a part of a message's content is a thought of the model."""
    return isinstance(part, Mapping) and part.get("type") in THOUGHT_PARTS


def is_cut(text: str, finish_reason: str, *, thought: bool) -> bool:
    """Whether the limit of tokens cut the completion of a model that ``thought`` before its text
    began.
    """
    return thought and not text and ending_of(finish_reason) == "cut"


def reason_of(choice: Mapping[str, Any]) -> str:
    """The finish reason of a choice in the words of chat completions, "stop", "length" or
    "content_filter"; its own word where it broke the completion off or ends a call that is not
    there; "" for none.

    SGLang's own answers have it in an object, ``{"type": "length", "length": 12}``.

    Raises TypeError: it is no text.
    """
    reason = choice.get("finish_reason")
    if isinstance(reason, Mapping):
        reason = reason.get("type")
    text = text_field({"finish_reason": reason}, "finish_reason")
    if text in ENDED_BY_CALL and not has_calls(choice):
        return text
    return WORDS.get(ending_of(text), text)


ENDED_BY_CALL = ("tool_calls", "function_call", "tool_use")
"""The ends of a completion that calls a function: it stopped by itself."""
WORDS: Mapping[str, str] = {"whole": "stop", "cut": "length", "filtered": "content_filter"}
"""How a completion ended -> the finish reason of chat completions."""


def fault_of_end(choice: Mapping[str, Any]) -> str | None:
    """Why a choice is no completion, to be read behind the name of its sender: the host broke it
    off, or it ended by itself with all of its words in its thoughts. None where it is one.

    Raises TypeError, ValueError: it is of another shape than a choice.
    """
    reason = reason_of(choice)
    words = host_error(choice)
    if words or ending_of(reason) == "broken off":
        because = ""
        if words:
            because = f": {words}"
        return (
            f"broke its answer off, finish_reason {reason or None!r:.60}{because}; if this goes on,"
            " lower ``concurrency`` or use another host"
        )
    ended = ending_of(reason) == "whole"
    if ended and shows_thoughts(choice) and not text_of(choice).strip():
        return ALL_THOUGHT
    return None


def host_error(choice: Mapping[str, Any]) -> str:
    """The words of an ``error`` inside a choice, as OpenRouter puts it beside what came before it
    (https://openrouter.ai/docs/api-reference/errors); "" where there is none.
    """
    error = choice.get("error")
    if not error:
        return ""
    words = error
    if isinstance(error, Mapping):
        words = error.get("message") or json.dumps(error, default=str)
    return quoted(words)


MOST_TOKENS = 2**31
"""Largest number of tokens; numbers beyond fit into no column."""
TEXT_PARTS = {"text": "text", "output_text": "text", "refusal": "refusal"}
"""Types of the parts of a message that are text for the user, each with the field of its text."""


def quoted(answer: Any) -> str:
    """The beginning of an answer, for a message."""
    try:
        return str(answer)[:200]
    except RecursionError:  # what the parser can nest, Python cannot always print
        return reprlib.repr(answer)[:200]


def listed_choices(profile: Profile, answer: Any) -> list[dict[str, Any]]:
    """The answer's choices, in its own order; one that is no object is an empty, unreadable one.

    Raises CorruptResponse: there are none, or two with the same ``index``.
    """
    choices = None
    if isinstance(answer, Mapping):
        choices = answer.get("choices")
    if not isinstance(choices, list):
        choices = []
    if not any(isinstance(choice, dict) for choice in choices):
        raise without(profile, answer, "choices")
    places = Counter(
        choice.get("index")
        for choice in choices
        if isinstance(choice, dict) and type(choice.get("index")) is int
    )
    if places and max(places.values()) > 1:
        raise CorruptResponse(
            f"{profile.name} answered with {max(places.values())} choices of index"
            f" {places.most_common(1)[0][0]}; each completion of a request has an index of its own"
        )
    return [choice if isinstance(choice, dict) else {} for choice in choices]


def without(profile: Profile, answer: Any, name: str) -> CorruptResponse:
    """The error for an answer that lacks ``name``."""
    return CorruptResponse(f"{profile.name} answered without {name}: {quoted(answer)}")


def is_filtered(choice: Mapping[str, Any]) -> bool:
    """Whether the provider's content filter withheld the completion: Azure then sends neither
    logprobs nor a message.
    """
    return choice.get("logprobs") is None and reason_of(choice) == "content_filter"


def is_blank(choice: Mapping[str, Any], text: str) -> bool:
    """Whether an ended completion looks like one of no token: no text, and logprobs that are null
    or list nothing.
    """
    logprobs = choice.get("logprobs") or {}
    meta = choice.get("meta_info") or {}
    ended = not text and reason_of(choice) in ("stop", "length")
    return (
        ended
        and isinstance(logprobs, dict)
        and isinstance(meta, dict)
        and not any([*logprobs.values(), meta.get("output_token_logprobs")])
    )


def text_of(choice: Mapping[str, Any]) -> str:
    """What the model wrote: the content, or the refusal in its place, and behind it the calls of
    functions (``ToolCall.text``).

    Raises TypeError, ValueError: the content is neither a text nor a list of known parts, or a
    call has no name.
    """
    message = choice.get("message")
    if is_filtered(choice):
        content = content_text((message or choice).get("content"))
        return content or text_field(choice, "text")
    if message is None:
        return text_field({"text": choice["text"]}, "text")
    calls = calls_of(choice)
    # An answer that was cut inside its thinking, or that only calls, may lack the field.
    may_lack = calls or message.keys() & {"reasoning_content", "reasoning"}
    content = content_text(message.get("content") if may_lack else message["content"])
    text = content or text_field(message, "refusal")
    if not calls:
        return text
    return with_calls(text, calls)


def has_calls(choice: Mapping[str, Any]) -> bool:
    """Whether the provider sends calls of functions apart from the text."""
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return False
    return bool(message.get("tool_calls") or message.get("function_call"))


def hides_call(choice: Mapping[str, Any]) -> bool:
    """Whether a completion calls a function and lists no token, as OpenAI's do."""
    places = [choice.get("logprobs"), choice.get("meta_info")]
    lists = ("content", "refusal", "output_token_logprobs")
    listed = any(
        place.get(name) for place in places if isinstance(place, Mapping) for name in lists
    )
    return has_calls(choice) and not listed


def calls_of(choice: Mapping[str, Any]) -> list[ToolCall]:
    """The calls of functions that the provider sends apart from the text: ``tool_calls``, or the
    older ``function_call``.

    Raises TypeError, ValueError: a call without a name, or with arguments that are no text.
    """
    message = choice.get("message")
    if not isinstance(message, Mapping):
        return []
    written = [call["function"] for call in message.get("tool_calls") or []]
    if message.get("function_call"):
        written.append(message["function_call"])
    calls = []
    for function in written:
        name = text_field(function, "name")
        if not name:
            raise ValueError(f"a call has no name: {quoted(function):.60}")
        calls.append(ToolCall(name, text_field(function, "arguments")))
    return calls


def content_text(content: Any) -> str:
    """The text of a message's ``content``: of a text itself, of a list its text parts joined.

    Thinking parts are thoughts and no part of the text (``thinking.is_thought``); null is no text.

    Raises TypeError: another kind of content. ValueError: another kind of part.
    """
    if not isinstance(content, list):
        return text_field({"content": content}, "content")
    texts = list[str]()
    for part in content:
        kind = None
        if isinstance(part, dict):
            kind = part.get("type")
        if kind in TEXT_PARTS and isinstance(part.get(TEXT_PARTS[kind]), str):
            texts.append(part[TEXT_PARTS[kind]])
        elif not is_thought(part):
            raise ValueError(f"content holds a part that is no text: {quoted(part):.60}")
    return "".join(texts)


def text_field(table: Mapping[str, Any], name: str) -> str:
    """The text in a field of an answer; "" where it is null or missing.

    Raises TypeError: it is of another kind. Python's spelling of it would pass for a text.
    """
    value = table.get(name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{name} is no text: {quoted(value):.60}")
    return value


def count(answer: Mapping[str, Any], *names: str) -> int | None:
    """The first of the fields ``names`` of the answer's ``usage`` that is a whole number from 0;
    None where none is.

    CorruptResponse: the number is larger than any answer's.
    """
    usage = answer.get("usage")
    values = []
    if isinstance(usage, Mapping):
        values = [usage.get(name) for name in names]
    number = next(
        (
            value
            for value in values
            if isinstance(value, int) and not isinstance(value, bool) and value >= 0
        ),
        None,
    )
    if number is not None and number >= MOST_TOKENS:
        raise CorruptResponse(
            f"the answer's usage counts {number:.3g} tokens, which no answer has; ask again"
        )
    return number


def lengths(
    total: int | None,
    listed: Sequence[int],
    reasons: Sequence[str],
    *,
    end_token_listed: bool | None,
    most_cut: int = 0,
) -> list[tuple[int | None, bool]]:
    """For each choice, its number of generated tokens and whether all of them are listed.

    total: completion tokens of the answer, over all choices. listed: listed tokens of each choice.
    Where several choices do not sum to the total, any of them may be short, so none counts as
    whole. A choice that stopped may have one more than it lists unless the end token is sure to be
    listed: gpt-4o counted it among ``completion_tokens`` and did not list it, gpt-4o-mini does
    neither. most_cut: most tokens of a stop text that a stopped choice may have generated without
    listing them; a single choice is then as whole as it can be, and the lengths of several are not
    known. The text decides as well (``response._is_complete``).
    """
    if total is None:
        return [(None, True) for _ in listed]
    ends = [int(end_token_listed is not True and reason == "stop") for reason in reasons]
    for hidden in ([0] * len(listed), ends):
        if sum(listed) + sum(hidden) == total:
            return [(length + more, True) for length, more in zip(listed, hidden, strict=True)]
    if len(listed) == 1:
        cut = total - listed[0] - ends[0]
        return [(total, reasons[0] == "stop" and 0 < cut <= most_cut)]
    return [(None, False) for _ in listed]
