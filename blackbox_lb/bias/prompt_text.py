"""The parts of a prompt that features read: of a request's body, or of a row of a task.

They are read in the client before the request is sent, from the prompt alone, but for a group,
which the request names. Nothing here needs numpy.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blackbox_lb.types import Prompt

GROUP = "blb_group"
"""Field of a request that names the group of its prompt; it is taken out before the request is
sent.
"""
MOST_READ = 20_000
"""Characters of a text that are read, from its beginning: about 5,000 tokens, in 5 ms."""


@dataclass(frozen=True, slots=True)
class PromptText:
    """The parts of a prompt that features are read from.

    user: the last user message, "" where there is none.
    system: the system messages, joined by blank lines.
    group: the name of its group in a request, None where nobody names it.
    columns: further columns of its row in a task.
    vector: (d,) the embedding of ``user``, empty where it is not needed.
    """

    user: str
    system: str = ""
    group: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    vector: tuple[float, ...] = ()

    @classmethod
    def of(cls, messages: Iterable[tuple[str, str]], group: str | None = None) -> PromptText:
        """From ``(role, text)`` pairs; without a user message the last one counts as such."""
        rows = list(messages)
        user_texts = [text for role, text in rows if role == "user"] or [
            text for _, text in rows[-1:]
        ]
        system = "\n\n".join(text for role, text in rows if role in ("system", "developer"))
        user = ""
        if user_texts:
            user = user_texts[-1]
        return cls(user, system, group)

    @classmethod
    def of_prompt(cls, prompt: Prompt) -> PromptText:
        """Of a prompt of a task, with the columns of its row."""
        text = cls.of((message.role, message.content) for message in prompt.messages)
        return cls(text.user, text.system, columns=prompt.columns)

    @classmethod
    def of_request(cls, document: Mapping[str, Any]) -> PromptText | None:
        """Of a request's body, chat or completions; None where it has neither text nor group
        (images, token ids, several prompts).
        """
        messages = document.get("messages")
        group = document.get(GROUP)
        group = group if isinstance(group, str) else None
        if isinstance(messages, list):
            pairs = [pair for pair in map(_message, messages) if pair is not None]
            if group or any(text for _, text in pairs):
                return cls.of(pairs, group)
            return None
        prompt = document.get("prompt")
        if isinstance(prompt, list) and len(prompt) == 1:
            prompt = prompt[0]
        text = ""
        if isinstance(prompt, str):
            text = prompt
        if text or group:
            return cls(text, group=group)
        return None


def _message(message: object) -> tuple[str, str] | None:
    """Role and text of a chat message; the text parts of one with several."""
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        return None
    content = message.get("content")
    parts: Sequence[object] = content if isinstance(content, list) else [content]
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return message["role"], "\n".join(text for text in texts if isinstance(text, str))
