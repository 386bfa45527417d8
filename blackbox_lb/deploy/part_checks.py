"""Which requests are answered in parts: not those whose answer has a fixed form, and not where a
server could not go on from a part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from blackbox_lb.errors import InputError

if TYPE_CHECKING:
    from blackbox_lb.deploy.part_sender import PartSender

_FIXED_FORM = (
    "response_format",
    "grammar",
    "json_schema",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "regex",
    "ebnf",
)
"""Fields that fix the form of an answer, in OpenAI's API, llama.cpp, vLLM and SGLang."""
_LEFT_ALONE = {
    **dict.fromkeys(_FIXED_FORM, "fixes the form of the answer"),
    "functions": "offers functions",
    "best_of": "asks for the best of several",
    "use_beam_search": "searches with beams",
    "echo": "asks for its prompt back",
    "suffix": "has a suffix",
}
_NOTHING: tuple[Any, ...] = (None, False, [], "", 1, {"type": "text"})
_FORMS: dict[str, type | tuple[type, ...]] = {
    "stop": (str, list),
    "stream_options": dict,
    "min_tokens": int,
    "messages": list,
}
"""Fields that are read or written for the parts, and the types that every server takes."""
_PARTS = "a bias with phases is sent in parts, and this request"


def left_alone(document: Mapping[str, Any]) -> str | None:
    """Why the answer to a request is not drawn in parts, as the end of a sentence; None where
    nothing forbids it.
    """
    for name, types in _FORMS.items():
        if document.get(name) is not None and not isinstance(document[name], types):
            return f"has a ``{name}`` of a wrong type"
    stops = document.get("stop")
    if isinstance(stops, list) and not all(isinstance(stop, str) for stop in stops):
        return "has a ``stop`` that is no text"
    for name, reason in _LEFT_ALONE.items():
        if document.get(name) not in _NOTHING:
            return f"{reason} (``{name}``)"
    if document.get("tools") and document.get("tool_choice") not in (None, "auto", "none"):
        return "forces a call (``tool_choice``)"
    messages = document.get("messages")
    if messages is None and not isinstance(document.get("prompt"), str):
        return "has a prompt that is not one text"
    last = messages[-1] if messages else None
    if isinstance(last, dict) and last.get("role") == "assistant":
        return "begins the answer with a message of its own"
    return None


def check_phased(sender: PartSender, document: Mapping[str, Any]) -> None:
    """Raise InputError: a request cannot be answered in parts, or the server is not known to
    continue a message.
    """
    reason = left_alone(document)
    if reason is not None:
        raise InputError(
            f"{_PARTS} {reason}, so that its answer could not be joined; leave that out, or use a"
            " client without a bias"
        )
    if document.get("n") not in _NOTHING:
        raise InputError(f"{_PARTS} asks for several completions (``n``); ask once for each")
    if document.get("tools"):
        _check_tools(sender, document)
    if "messages" in document and sender.profile.answers.continues is False:
        raise InputError(
            f"{sender.profile.name} is not known to continue a message, so a bias with"
            " phases cannot be sent to its chat endpoint; name the server's profile with"
            " provider=, let blb doctor ``save`` find out, or serve the bias inside vLLM"
        )


def _check_tools(sender: PartSender, document: Mapping[str, Any]) -> None:
    """Raise InputError: a call could not be put together from parts."""
    if sender.phases.until:
        raise InputError(
            f"{_PARTS} offers tools, whose calls may hold the text that ends a phase; learn a"
            " bias with ``phases=first``, or leave the tools out"
        )
    if document.get("stream"):
        raise InputError(
            f"{_PARTS} offers tools in a stream, in which a call is known only at its end; ask"
            " without stream"
        )
