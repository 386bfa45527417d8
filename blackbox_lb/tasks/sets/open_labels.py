"""Open labels: a decision between a wanted opening of the completion and everything else.

"Calls a tool" are the completions that begin as calls do, "answers" are all others. The opening has
a few tokens, and the rest of the vocabulary is the other label: no list of its spellings exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from blackbox_lb.errors import InputError
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.records.files import WANT
from blackbox_lb.tasks.rewards.matching import Matcher, normalise
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.tasks.sets.task import SPLITS, Task
from blackbox_lb.types import CALL_OPENINGS, Example

CALLS_TOOL = "calls-tool"
BEGINS_WITH = "begins-with:"
FORMS = f"{CALLS_TOOL} or {BEGINS_WITH}TEXT[,TEXT...]"
OPENING = 0
OTHER = 1
"""The numbers of both labels."""


@dataclass(frozen=True, slots=True)
class OpenLabels(Labels):
    """The labels of a decision for or against an opening, which is the first of them.

    openings: texts that begin the completions of the first label; spaces before them do not count.
    """

    openings: tuple[str, ...] = ()

    @classmethod
    def parse(cls, spec: str) -> OpenLabels:
        """The labels of ``calls-tool`` (call, answer) or of ``begins-with:TEXT,...`` (begins,
        other).

        Raises InputError: another form, or no text.
        """
        if spec == CALLS_TOOL:
            return cls._of(("call", "answer"), CALL_OPENINGS)
        texts = [text.strip() for text in spec.removeprefix(BEGINS_WITH).split(",")]
        if not spec.startswith(BEGINS_WITH) or not all(texts):
            raise InputError(f"``decide={spec}`` is unknown; give {FORMS}")
        return cls._of(("begins", "other"), tuple(dict.fromkeys(texts)))

    @classmethod
    def _of(cls, names: tuple[str, str], openings: tuple[str, ...]) -> OpenLabels:
        accepted = tuple(frozenset({normalise(name)}) for name in names)
        return cls(names, accepted, openings)

    @property
    def spec(self) -> str:
        """What names these labels, as a user writes it."""
        if self.openings == CALL_OPENINGS:
            return CALLS_TOOL
        return f"{BEGINS_WITH}{','.join(self.openings)}"

    @property
    def matcher(self) -> Matcher:
        """See ``Labels.matcher``."""
        return Matcher("the wanted beginning", needs_answer=True, test=self.right)

    def opens(self, text: str) -> bool:
        """Whether a text begins with one of the openings."""
        return text.lstrip().startswith(self.openings)

    def said(self, text: str) -> int:
        """See ``Labels.said``: every text has one of both labels."""
        return OPENING if self.opens(text) else OTHER

    def begun(self, text: str) -> int:
        """See ``Labels.begun``."""
        return self.said(text)

    def right(self, answers: Sequence[str], text: str) -> bool:
        """See ``Labels.right``."""
        return self.said(text) in self._of_answers(answers)

    def check(self, examples: Iterable[Example]) -> None:
        """Raise InputError: an example has an answer that is neither label, or both."""
        for example in examples:
            numbers = self._of_answers(example.answers)
            if len(numbers) != 1 or len(example.answers) != 1:
                wants = shorten(", ".join(example.answers) or "nothing")
                raise InputError(
                    f"{example.place} wants {wants}; with ``decide={self.spec}`` each row wants"
                    f" {' or '.join(self.names)}, in its column {WANT} or answer"
                )


def labels_of_task(decide: str | None, names: Iterable[str] | None, task: Task) -> Labels | None:
    """The labels of a task: open ones, those that are named, or those in its answers.

    Raises InputError: both kinds are asked for, or the answers are not of these labels.
    """
    if decide is None:
        return Labels.named_or_found(names, task.train)
    if names is not None:
        raise InputError(
            "``decide`` has labels of its own, so ``labels`` would name others; leave one out"
        )
    labels = OpenLabels.parse(decide)
    labels.check(example for split in SPLITS for example in task.split(split))
    return labels
