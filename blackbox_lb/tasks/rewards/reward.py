"""What every reward has: a score of a completion, in nats, and what follows from its kind.

A reward is finite. One by a logarithm may be minus infinity, too: the completion is never imitated.
Logarithmic rewards are displayed as their exponentials: ``correct-and-short`` as correct x T/len,
not as its logarithm. T is the token limit and len the tokens of the completion, or of its thinking
or answer alone, by the provider's count, never below 1.

The kinds are in ``forms``, a module each. Whether a completion is *correct* is no part of its
score: the task says what is, a test may take seconds of a completion (``math``), and learning needs
none. A reward from another program is computed in two steps: ``fetch_rewards`` asks for many
completions at once and stores the answers, and ``score`` reads them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, Self, TypeAlias

import numpy as np

from blackbox_lb.errors import DataError
from blackbox_lb.safety.printable import counted
from blackbox_lb.tasks.rewards.matching import Matcher, parse_matcher
from blackbox_lb.tasks.rewards.spans import sum_of
from blackbox_lb.tasks.rewards.thinking import Thinking
from blackbox_lb.types import Completion, Example, FloatArray, Span

if TYPE_CHECKING:
    from blackbox_lb.tasks.rewards.forms.judge import Judge
    from blackbox_lb.tasks.sets.task import Task

Credit: TypeAlias = Literal["whole", "places", "tokens", "open"]
Reach: TypeAlias = Literal["nothing", "file", "code", "host"]
MOST_NAMED = 3
"""Problems of rows, and rows of each, that a message names."""


class Score(NamedTuple):
    """What one completion is worth.

    value: nats, possibly -inf.
    spans: the places of its text whose amounts add up to that; None where it is no sum over places.
    """

    value: float
    spans: tuple[Span, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reward(ABC):
    """One way to score completions.

    Attributes:
        name: as a user writes it and a record repeats it, without the password of an address.
        max_tokens: most tokens of a completion, T.
        right: the test of correctness behind the accuracy that is shown beside the reward.
        thinking: the stretch of a completion that is measured beside it; None for none.
    """

    name: str = ""
    max_tokens: int = 1
    right: Matcher = field(default=parse_matcher("contains"), compare=False)
    thinking: Thinking | None = field(default=None, repr=False, compare=False)

    @property
    def label(self) -> str:
        """The displayed name."""
        return self.name

    @property
    def summary(self) -> str:
        """What it goes by, where that says more than the meaning of its form; "" elsewhere."""
        return ""

    @property
    def needs_answer(self) -> bool:
        """Whether an example without an accepted answer cannot be scored."""
        return False

    @property
    def matcher(self) -> Matcher:
        """The test that the reward itself goes by, where it goes by one."""
        return self.right

    @property
    def credit(self) -> Credit:
        """What earns the reward: the completion as a whole, places of its text (its spans), every
        token alike; "open" where only its first answers will tell.
        """
        return "whole"

    @property
    def has_spans(self) -> bool:
        """Whether it is a sum over places, so that each score has spans."""
        return self.credit in ("places", "tokens")

    @property
    def has_token_costs(self) -> bool:
        """Whether ``token_costs`` says something."""
        return False

    @property
    def by_length(self) -> bool:
        """Whether the length of a completion enters, by a formula of this package."""
        return False

    @property
    def grouped_by(self) -> str | None:
        """The column of the groups within which the labels of all completions together are compared
        with wanted shares; None where each completion has a reward of its own.
        """
        return None

    @property
    def of_shares(self) -> bool:
        """Whether it compares with wanted shares, so that no completion alone has a reward."""
        return self.grouped_by is not None

    @property
    def is_untried(self) -> bool:
        """Whether it is computed by somebody else's code, and has not been computed so far."""
        return self.credit == "open"

    @property
    def judge(self) -> Judge | None:
        """The language model that gives it; None where none does."""
        return None

    @abstractmethod
    def score(self, example: Example, completion: Completion) -> Score:
        """The score of a completion.

        Raises:
            DataError: the example has no answer, and one is needed.
            InputError: a user's function failed, or a remote reward was not fetched.
        """

    def correct(self, example: Example, completion: Completion) -> bool | None:
        """Whether the completion is correct; None where the example has no answer, and where it
        has wanted shares, of which no label is the right one.
        """
        if self.of_shares or (self.right.needs_answer and not example.answers):
            return None
        return self.right(example, completion.text)

    def displayed(self, value: float) -> float:
        """The displayed number of ``value`` nats.

        Raises:
            InputError: there is no finite one.
        """
        return value

    def token_costs(self, texts: Sequence[str], typical: Sequence[str]) -> FloatArray:
        """What the text of each token earns by itself.

        Args:
            texts: n texts of tokens, such as " Deeply".
            typical: texts of completions. A reward by the hundred words (or letters) depends on
                the length of the text, and a token is counted in one of their mean length.

        Returns:
            (n,) nats of the reward; 0 where it says nothing of the token's own text, as of a piece
            of a word.
        """
        del typical
        return np.zeros(len(texts), dtype=np.float32)

    def remembering(self) -> Self:
        """The same reward, which computes nothing twice that may be slow or cost money."""
        return self

    def problem(self, example: Example) -> str | None:
        """What keeps completions of ``example`` from being scored, but for a missing answer; None
        where nothing does.
        """
        return self.matcher.problem(example) or self.right.problem(example)

    def check_fresh(self, title: str) -> None:
        """Raise InputError where it cannot score completions that ``title`` is about to draw."""
        del title

    def check_key(self) -> None:
        """Raise AuthenticationFailed where a key is missing that it needs."""
        return

    def check(self, task: Task, *, needs_answers: bool = True) -> None:
        """Check that all rows of a task can be scored, before anything is paid for.

        Args:
            task: of whichever source.
            needs_answers: False where rows without one are left out of what is scored.

        Raises:
            DataError: some cannot; the message counts them and names the first.
        """
        places: defaultdict[str, list[str]] = defaultdict(list)
        for example in (*task.train, *task.validation, *task.test):
            problem = self.problem(example)
            if needs_answers and self.needs_answer and not example.answers:
                problem = f"no answer, and the reward {self.name} compares with one"
            if problem is not None:
                places[problem].append(example.place)
        if not places:
            return
        listed = [_problem_with_places(*row) for row in list(places.items())[:MOST_NAMED]]
        if len(places) > MOST_NAMED:
            listed.append("...")
        rows = counted(sum(map(len, places.values())), "row")
        raise DataError(
            f"{rows} of the data cannot be scored: {'; '.join(listed)}; correct the data, or choose"
            " another reward or matcher (``reward``, ``correct``)"
        )


def _problem_with_places(problem: str, places: list[str]) -> str:
    named = ", ".join(places[:MOST_NAMED])
    if len(places) > MOST_NAMED:
        named = f"{named} and {len(places) - MOST_NAMED} more"
    return f"{problem} ({named})"


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRule(Reward):
    """A reward that reads nothing but the text of a completion, and is a sum over its places."""

    credit: ClassVar[Credit] = "places"
    has_token_costs: ClassVar[bool] = True

    @abstractmethod
    def spans(self, text: str) -> tuple[Span, ...]:
        """The places of ``text`` in their order; their amounts add up to its reward in nats."""

    def score(self, example: Example, completion: Completion) -> Score:
        """See ``Reward``."""
        del example
        spans = self.spans(completion.text)
        return Score(sum_of(spans), spans)


@dataclass(frozen=True, slots=True)
class Form:
    """One form in which a user names a reward, and what help says of it.

    Attributes:
        name: all of it, or what stands before the colon.
        meaning: what a completion is worth, in one line.
        make: the reward, from what stands behind the colon. InputError: it is wrong.
        takes: what stands behind the colon, such as "FILE"; in brackets where it may be left out.
        reaches: what naming it reaches: nothing, a file that is read as data, code, or a host.
        judges: whether it compares completions with right answers, by what stands behind the colon.
        shown: the number that is displayed.
    """

    name: str
    meaning: str
    make: Callable[[str], Reward]
    takes: str = ""
    reaches: Reach = "nothing"
    judges: Callable[[str], bool] = lambda argument: False
    shown: str = "itself"

    @property
    def spelling(self) -> str:
        """The form as help and documents write it."""
        if self.takes.startswith("["):
            return f"{self.name}[:{self.takes[1:]}"
        if self.takes:
            return f"{self.name}:{self.takes}"
        return self.name

    def takes_only(self, argument: str | None) -> bool:
        """Whether ``argument`` may stand behind the colon; None for no colon."""
        if argument is None:
            return not self.takes or self.takes.startswith("[")
        return bool(self.takes) and (bool(argument) or not self.takes.startswith("["))
