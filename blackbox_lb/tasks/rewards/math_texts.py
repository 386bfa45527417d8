"""Accepted answers of mathematics problems that are texts or letters, and whether a completion
gives them.
"""

import re
from functools import lru_cache

from blackbox_lb.tasks.rewards.normalising import normalise

_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal)?|math(?:bf|it|rm)|mbox|operatorname)\s*\{([^{}]*)\}"
)
_DELIMITERS = re.compile(r"\\[()\[\]]|(?<!\\)\$|\\boxed\s*\{(.*)\}", re.DOTALL)
_LETTERS = re.compile(r"\W*[^\W\d_](?:[^\W\d_]|[\s().,;:!?'’\"-])*")
_MARKER = re.compile(r"####|\banswer\s*(?:is|:|=)", re.IGNORECASE)
_BEFORE = frozenset({"a", "an", "the", "option", "choice"})


@lru_cache(maxsize=4096)
def text_of(answer: str) -> str | None:
    r"""The words of an accepted answer that is a text or a letter; None for any other.

    ``\text{even}`` gives ``even``, and ``\text{(C)}`` gives ``(C)``.
    """
    bare = _bare(answer)
    return bare if _LETTERS.fullmatch(bare) else None


def is_only_text(answer: str) -> bool:
    """Whether a text cannot be a product of variables, as ``xy`` can."""
    text = text_of(answer)
    if text is None:
        return False
    letters = [char for char in text if char.isalpha()]
    return len(letters) == 1 or len(letters) > 3 or _TEXT.search(answer) is not None


def is_sentence(answer: str) -> bool:
    """Whether an answer that is no expression can be compared as text, as ``1.5 million`` can."""
    return re.search(r"[^\W\d_]", answer) is not None and not re.search(r"[\\^{}]", answer)


def gives_text(answer: str, completion: str) -> bool:
    """Whether a completion gives the words of an accepted answer.

    The last box must hold just them; without a box they follow the last "answer is", "answer:" or
    ####; without that the completion ends in them. A single letter must have its case.
    """
    words = _words(_bare(answer), answer)
    box = _last_box(completion)
    if box is not None:
        return words in (_words(_bare(box), answer), _words(_bare(box.rpartition("=")[2]), answer))
    stretches = _MARKER.split(completion)
    given = _words(_bare(stretches[-1]), answer)
    if len(stretches) == 1:
        return given[-len(words) :] == words
    if given[: len(words)] == words:
        return True
    while given and given[0].lower() in _BEFORE:
        given = given[1:]
    return given[: len(words)] == words


def _bare(text: str) -> str:
    """A text without the delimiters of mathematics and the commands for text."""
    text = _DELIMITERS.sub(lambda match: match[1] or "", text.strip())
    return _TEXT.sub(r"\1", text).replace(r"\ ", " ").replace("~", " ").strip()


def _words(text: str, answer: str) -> list[str]:
    """The words of a text, as they are where the answer is a single letter with a case."""
    letters = re.findall(r"[^\W_]", _bare(answer))
    if len(letters) == 1 and letters[0].lower() != letters[0].upper():
        return re.findall(r"[^\W_]+", text)
    return normalise(text).split()


def _last_box(completion: str) -> str | None:
    r"""The content of the last ``\boxed{}`` or ``\fbox{}``, up to its own closing brace."""
    begin = max(completion.rfind(r"\boxed"), completion.rfind(r"\fbox"))
    opening = completion.find("{", begin)
    if begin < 0 or opening < 0:
        return None
    depth = 0
    for position in range(opening, len(completion)):
        if completion[position] == "{":
            depth += 1
        elif completion[position] == "}":
            depth -= 1
            if depth == 0:
                return completion[opening + 1 : position]
    return completion[opening + 1 :]
