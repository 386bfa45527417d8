"""The nouns of the package: prompts go out, completions with token logprobs come back.

Arrays use these axes: ``t`` tokens of one completion, ``k`` listed alternatives. Logprobs are in
nats.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Endpoint: TypeAlias = Literal["chat", "completions", "responses"]
Split: TypeAlias = Literal["train", "validation", "test"]
IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

NO_TOKEN = -1
"""Padding in ``Completion.top_ids``."""
UNNAMED = -2
"""A listed token without an id (the provider withholds a special token's bytes): it has a
probability and no bias.
"""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """The chat messages of a request. A plain text prompt is one user message.

    The ``completions`` endpoint gets the text of a single message as it is, and takes no prompt of
    several. ``columns``: further columns of its row, of which the model is shown nothing; equal
    prompts may differ in them.
    """

    messages: tuple[Message, ...]
    columns: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def user(cls, text: str) -> Prompt:
        """A prompt of one user message."""
        return cls((Message("user", text),))

    @property
    def text(self) -> str:
        """All message contents, joined by blank lines."""
        return "\n\n".join(message.content for message in self.messages)


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with its accepted answers (empty where the reward needs none).

    variants: the answers of each of its rows where rows of one prompt differ in them, the
        commonest first; () otherwise.
    source: its row for messages, as "train.jsonl, line 3".
    weights: the wanted share of each of ``answers`` among the completions of the prompt, with sum
        1; () where each of them is as good as any other.
    """

    id: str
    prompt: Prompt
    answers: tuple[str, ...] = ()
    variants: tuple[tuple[str, ...], ...] = field(default=(), compare=False, repr=False)
    source: str = field(default="", compare=False, repr=False)
    weights: tuple[float, ...] = ()

    @property
    def place(self) -> str:
        """The row in messages: its file and line, or its id where it comes from no file."""
        return self.source or f"example {self.id!r}"

    @property
    def answers_by_row(self) -> tuple[tuple[str, ...], ...]:
        """The answers of each of its rows, those that differ."""
        return self.variants or (self.answers,)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a completion is drawn: from softmax((logits + bias) / temperature), never truncated;
    temperature 0 is greedy.

    max_tokens, top_logprobs: in tokens. seed: None sends none. stop: a completion ends before the
    first of these texts.
    """

    temperature: float = 1.0
    max_tokens: int = 256
    top_logprobs: int = 20
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the text of a completion, and the part of the reward that is earned there.

    start, end: characters of the text, from 0, the end not included. Equal ones are a place between
    two characters; behind the last one it is where the text ends.
    amount: nats of the reward, negative for a cost.
    """

    start: int
    end: int
    amount: float


class VaryingBias(Protocol):
    """A bias that is not one map for all requests.

    scopes: "prompt" where it depends on the prompt, "prefix" where it changes within an answer.
    phases: what tells where it changes (see ``bias.phases``).
    identity: what tells it from any other, as the store keeps it.
    """

    @property
    def scopes(self) -> frozenset[Any]: ...

    @property
    def phases(self) -> Any: ...

    @property
    def identity(self) -> str: ...

    def __len__(self) -> int:
        """How many tokens may have a bias."""

    def at(self, prompt: Prompt, phase: int | None = None) -> Mapping[int, float]:
        """Token id -> nats for one prompt in a phase, by default that of the first token."""

    def prepare(self, prompts: Sequence[Prompt]) -> None:
        """Compute for many prompts at once what takes long for each."""


AnyBias: TypeAlias = Mapping[int, float] | VaryingBias
"""Nats by token id, the same for all requests or of each one."""


@dataclass(frozen=True, slots=True)
class Draw:
    """How completions are drawn.

    sampling: temperature, longest completion in tokens, listed alternatives, seed and stop texts.
    bias: nats by token id; None or empty: none.
    endpoint: the endpoint that samples; None: the session's own.
    fields: further fields of the request.
    bias_of: a bias that is not one map for all, in place of ``bias``; None: none.
    """

    sampling: Sampling
    bias: Mapping[int, float] | None = None
    endpoint: Endpoint | None = None
    fields: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    bias_of: VaryingBias | None = None

    def on(self, endpoint: Endpoint) -> Draw:
        """The same, on ``endpoint`` where it names none."""
        return self if self.endpoint else replace(self, endpoint=endpoint)

    def at(self, prompt: Prompt) -> Draw:
        """How completions of one prompt are drawn: with its own bias as ``bias``."""
        return (
            self
            if self.bias_of is None
            else replace(self, bias=self.bias_of.at(prompt), bias_of=None)
        )


@dataclass(frozen=True, slots=True)
class EndTokens:
    """How a provider treats the tokens that end a completion.

    listed: whether a sampled end token is the last of the listed tokens; None where this is not
    known. ids: all special tokens. openers: tokens that may begin a stop text; the list may lack
    the tokens of the stop text that ended a completion.
    """

    listed: bool | None = True
    ids: frozenset[int] = frozenset()
    stop_prefix_ids: frozenset[int] = frozenset()


class ListedBytes(Mapping[int, bytes]):
    """Id -> bytes of the tokens ``ids`` (n,), which may repeat: ``spelled[number]`` of each one's
    ``numbers`` (n,).

    Nearly nobody looks at the bytes of an answer, so that a dictionary is made when somebody does.
    """

    def __init__(self, ids: IntArray, numbers: IntArray, spelled: Sequence[bytes]) -> None:
        self.ids = ids
        self._numbers = numbers
        self._spelled = spelled
        self._made: dict[int, bytes] | None = None

    def made(self) -> dict[int, bytes]:
        """The dictionary."""
        if self._made is None:
            ids, at = np.unique(self.ids, return_index=True)
            numbers = self._numbers[at].tolist()
            self._made = {
                token: self._spelled[number]
                for token, number in zip(ids.tolist(), numbers, strict=True)
            }
        return self._made

    def __getitem__(self, token: int) -> bytes:
        return self.made()[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self.made())

    def __len__(self) -> int:
        return len(self.made())

    def __reduce__(self) -> tuple[type[dict[int, bytes]], tuple[dict[int, bytes]]]:
        return dict, (self.made(),)  # without the spellings of all other tokens


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled completion with the provider's token logprobs.

    token_ids, logprobs: (t,), the listed tokens and their logprobs in nats under the *unbiased*
    model at temperature 1 (the profile's row ``logprobs.meaning`` says where a bias or another
    temperature changes them). propensities: (t,), logprobs under the policy that sampled the
    tokens; None unless the provider gives both kinds. bounded: (t,), True where the sampled token
    has no logprob of its own: ``logprobs`` then holds the smallest listed one, an upper bound and
    no propensity. None where every logprob is given. top_ids, top_logprobs: (t, k), each row from
    most to least likely, padded with -1 and -inf; -2 is a listed token without an id. No unlisted
    token is more likely than a listed one. whole: False where the provider listed fewer tokens than
    it generated, or nothing readable. generated: the number of tokens generated, by the provider's
    count; None where it gives none. token_bytes: id -> bytes, of the ids in this answer, as far as
    the provider gives them. fingerprint: the provider's names of the answering system (row
    ``models.system``), joined by ``drift.SYSTEM_PARTS``, "" where it gives none. note: the reason
    why it is not whole, or has no text, to be read behind a number of completions; "" for none. Not
    stored.
    """

    text: str
    finish_reason: str
    token_ids: IntArray
    logprobs: FloatArray
    top_ids: IntArray
    top_logprobs: FloatArray
    prompt_tokens: int = 0
    model: str = ""
    whole: bool = True
    token_bytes: Mapping[int, bytes] = field(default_factory=dict)
    propensities: FloatArray | None = None
    bounded: BoolArray | None = None
    generated: int | None = None
    fingerprint: str = ""
    note: str = ""

    @classmethod
    def empty(cls, finish_reason: str, model: str = "") -> Completion:
        """A completion without any token, the trace of a content filter; not ``whole``."""
        none = np.zeros(0)
        table = np.zeros((0, 0))
        ids = none.astype(np.int32)
        logprobs = none.astype(np.float32)
        return cls(
            "",
            finish_reason,
            ids,
            logprobs,
            table.astype(np.int32),
            table.astype(np.float32),
            model=model,
            whole=False,
        )

    @property
    def filtered(self) -> bool:
        """Whether the provider's content filter withheld the completion or its rest."""
        return self.finish_reason == "content_filter"

    @property
    def readable(self) -> bool:
        """Whether there is anything to score: neither stopped by a content filter nor
        unreadable.
        """
        return not self.filtered and (self.whole or self.n_tokens > 0)

    @property
    def n_tokens(self) -> int:
        """Tokens generated, by the provider's count; where it gives none, tokens listed."""
        return len(self.token_ids) if self.generated is None else self.generated
