"""The nouns of the package: prompts go out, completions with token logprobs come back.

Arrays use these axes: ``t`` tokens of one completion, ``k`` listed alternatives. Logprobs are in
nats.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

Ending: TypeAlias = Literal["whole", "cut", "filtered", "broken off"]
IntArray: TypeAlias = npt.NDArray[np.int32]
FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]

POSITIVE_TOLERANCE = 1e-3
"""Largest logprob above 0, in nats, that is rounding and is read as 0: float32 and quantised
servers print 1e-7 to 1e-4.
"""
NO_TOKEN = -1
"""Padding in ``Completion.top_ids``."""
UNNAMED = -2
"""A listed token without an id, because the provider withholds a special token's bytes. It has a
probability and no bias.
"""

ENDINGS: Mapping[str, Ending] = {
    # https://platform.openai.com/docs/api-reference/chat/object; Azure, Fireworks, Groq, DeepSeek,
    # OpenRouter, vLLM, SGLang, llama.cpp and LM Studio use these names.
    "stop": "whole",
    "tool_calls": "whole",
    "function_call": "whole",
    "length": "cut",
    "content_filter": "filtered",
    # Together, and llama.cpp before 2024 (docs.together.ai/reference/chat-completions)
    "eos": "whole",
    # text-generation-inference and watsonx (huggingface.co/docs/text-generation-inference)
    "eos_token": "whole",
    "stop_sequence": "whole",
    "token_limit": "cut",
    # xAI, and gateways that hand on Anthropic's names
    # (docs.anthropic.com/en/api/handling-stop-reasons)
    "end_turn": "whole",
    "tool_use": "whole",
    "max_tokens": "cut",
    "model_context_window_exceeded": "cut",
    "refusal": "filtered",
    # Gemini and Cohere, in small letters (ai.google.dev/api/generate-content, docs.cohere.com)
    "complete": "whole",
    "safety": "filtered",
    "recitation": "filtered",
    "blocklist": "filtered",
    "prohibited_content": "filtered",
    "spii": "filtered",
    "error_toxic": "filtered",
    # The Responses API (platform.openai.com/docs/api-reference/responses/object)
    "max_output_tokens": "cut",
    # Mistral, at the end of the model's context (docs.mistral.ai/api)
    "model_length": "cut",
    # vLLM, where a request's repetition_detection stops a loop (vllm/v1/engine/__init__.py)
    "repetition": "cut",
    # z.AI's filter (docs.z.ai/api-reference/llm/chat-completion)
    "sensitive": "filtered",
    # Bedrock's filters behind gateways (docs.aws.amazon.com/bedrock, Converse)
    "content_filtered": "filtered",
    "guardrail_intervened": "filtered",
}
"""How a completion ended, by the finish reason in small letters; see ``ending_of``.

Of what is not listed, these are known: error (OpenRouter, Mistral, vLLM), network_error (z.AI),
insufficient_system_resource (DeepSeek), abort (vLLM, SGLang).
"""

STATE = "state"
"""The role of a message whose text is JSON, of what a question is about; and its column in data."""
CALL_BEGIN = "<tool_call>"
CALL_END = "</tool_call>"
CALL_MARKS = (CALL_BEGIN, "[TOOL_CALLS]", "<|python_tag|>")
"""Texts that stand before a call and before nothing else."""
CALL_OPENINGS = (*CALL_MARKS, "{", "```", "<function")
"""Texts that begin a call, by the templates of the common open models."""
_ARGUMENTS = ("arguments", "parameters")
"""Fields of a call that hold its arguments."""
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*(?:</tool_call>|(?=<tool_call>)|\Z)", re.DOTALL)
_FENCED = re.compile(r"```[a-z]*\s*(.*?)\s*(?:```|\Z)", re.DOTALL)
_MARKED = re.compile(r"(?:\[TOOL_CALLS\]|<\|python_tag\|>)\s*(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message.

    role: of who says it. content: its text; "" of a turn of the assistant that calls functions
        alone.
    tool_calls: the functions that a turn of the assistant calls, the JSON text of OpenAI's
        ``tool_calls`` in one spelling, "" for none.
    tool_call_id: of a message of the role ``tool``, the id of the call whose result it is; ""
        elsewhere.
    name: of a message of the role ``tool``, the function's name where the data have it; ""
        elsewhere.
    """

    role: str
    content: str
    tool_calls: str = ""
    tool_call_id: str = ""
    name: str = ""

    @property
    def fields(self) -> dict[str, str]:
        """Role and content, and each other field that is not empty, as texts."""
        optional = {
            "tool_calls": self.tool_calls,
            "tool_call_id": self.tool_call_id,
            "name": self.name,
        }
        present = {field: text for field, text in optional.items() if text}
        return {"role": self.role, "content": self.content, **present}

    @property
    def as_json(self) -> dict[str, Any]:
        """The message as OpenAI's chat format has it; a turn of calls alone has no content."""
        message: dict[str, Any] = self.fields
        if self.tool_calls:
            message["tool_calls"] = json.loads(self.tool_calls)
            message["content"] = self.content or None
        return message

    @property
    def text(self) -> str:
        """Its content, with its calls behind it as they stand in the text of a completion."""
        if not self.tool_calls:
            return self.content
        functions = [call["function"] for call in json.loads(self.tool_calls)]
        calls = [ToolCall(function["name"], function["arguments"]) for function in functions]
        return with_calls(self.content, calls)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The chat messages of a request. A plain text prompt is one user message.

    The ``completions`` endpoint gets the text of a single message as it is, and takes no prompt of
    several messages.

    messages: the chat, in order.
    columns: further columns of the prompt's row, which the model never sees. Equal prompts may
        differ in them.
    tools: the functions that the model may call, the JSON text of OpenAI's ``tools`` in one
        spelling, "" for none. The chat endpoint alone takes them.
    """

    messages: tuple[Message, ...]
    columns: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    tools: str = ""

    @classmethod
    def user(cls, text: str) -> Prompt:
        """A prompt of one user message."""
        return cls((Message("user", text),))

    @property
    def text(self) -> str:
        """The texts of all messages, joined by blank lines."""
        return "\n\n".join(message.text for message in self.messages)

    @property
    def sent_texts(self) -> list[str]:
        """Everything that the model reads of it: all messages with their calls, and the tools."""
        texts = [message.content for message in self.messages]
        texts += [message.tool_calls for message in self.messages if message.tool_calls]
        if self.tools:
            texts.append(self.tools)
        return texts


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt with its accepted answers.

    answers: empty where the reward needs none.
    variants: where rows of one prompt differ in their answers, the answers of each row, the
        commonest first; () otherwise.
    source: the row in messages, as "train.jsonl, line 3".
    weights: the wanted share of each of ``answers`` among the completions of the prompt, with sum
        1; () where every answer is as good as any other.
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
        """The answers of the rows of this prompt, each variant once."""
        return self.variants or (self.answers,)


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a completion is drawn: from softmax((logits + bias) / temperature), never truncated.

    temperature: 0 is greedy.
    max_tokens: longest completion, in tokens.
    top_logprobs: listed alternatives a token.
    seed: None sends none.
    stop: a completion ends before the first of these texts.
    """

    temperature: float = 1.0
    max_tokens: int = 256
    top_logprobs: int = 20
    seed: int | None = None
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Span:
    """A place in the text of a completion, and the part of the reward that is earned there.

    start, end: characters of the text, from 0, the end not included. If they are equal, the span is
        the place between two characters, or the end of the text.
    amount: nats of the reward, negative for a cost.
    """

    start: int
    end: int
    amount: float


@dataclass(frozen=True, slots=True)
class EndTokens:
    """How a provider treats the tokens that end a completion.

    listed: whether a sampled end token is the last of the listed tokens; None for not known.
    ids: all special tokens.
    stop_prefix_ids: tokens that may begin a stop text. The listed tokens may lack those of the stop
        text that ended the completion.
    """

    listed: bool | None = True
    ids: frozenset[int] = frozenset()
    stop_prefix_ids: frozenset[int] = frozenset()


class ListedBytes(Mapping[int, bytes]):
    """Token id -> bytes, for the tokens of one answer.

    The bytes of an answer are rarely read, so the dictionary is built at the first reading.

    Args:
        ids: (n,) token ids, which may repeat.
        numbers: (n,) the place of each token's bytes in ``spellings``.
        spellings: the bytes of all tokens so far, of this and other answers.
    """

    def __init__(self, ids: IntArray, numbers: IntArray, spellings: Sequence[bytes]) -> None:
        self.ids = ids
        self._numbers = numbers
        self._spellings = spellings
        self._table: dict[int, bytes] | None = None

    def as_dict(self) -> dict[int, bytes]:
        """The dictionary, built once."""
        if self._table is None:
            ids, places = np.unique(self.ids, return_index=True)
            numbers = self._numbers[places].tolist()
            self._table = {
                token: self._spellings[number]
                for token, number in zip(ids.tolist(), numbers, strict=True)
            }
        return self._table

    def __getitem__(self, token: int) -> bytes:
        return self.as_dict()[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self.as_dict())

    def __len__(self) -> int:
        return len(self.as_dict())

    def __reduce__(self) -> tuple[type[dict[int, bytes]], tuple[dict[int, bytes]]]:
        return dict, (self.as_dict(),)  # without the bytes of all other tokens


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call of a function.

    An API that finds the calls in what a model wrote sends them apart from the text. They are put
    back into it in the form of Hermes and Qwen models
    (https://github.com/NousResearch/Hermes-Function-Calling), so that a stored text holds the whole
    completion.

    name: of the function. arguments: the JSON text that the model wrote for them; it need not be
    valid JSON.
    """

    name: str
    arguments: str

    @property
    def parsed_arguments(self) -> Any:
        """The value of the arguments' JSON; None where it is no JSON, or null."""
        try:
            return json.loads(self.arguments)
        except (ValueError, RecursionError):
            return None

    @property
    def text(self) -> str:
        """The call as it stands in the text of a completion."""
        written = self.arguments.strip()
        if not isinstance(self.parsed_arguments, dict):
            written = json.dumps(self.arguments, ensure_ascii=False)
        name = json.dumps(self.name, ensure_ascii=False)
        return f'{CALL_BEGIN}\n{{"name": {name}, "arguments": {written}}}\n{CALL_END}'


def ending_of(finish_reason: str) -> Ending:
    """How a completion with this finish reason ended; one that is not in ``ENDINGS``, or "" for
    none, broke it off.
    """
    return ENDINGS.get(finish_reason.lower(), "broken off")


def broken_off_by_host(reasons: Mapping[str, int]) -> str:
    """What the host did to completions, for a sentence about them; "" for none.

    reasons: finish reason -> their number.
    """
    if not reasons:
        return ""
    listed = ", ".join(f"{reason or None!r:.60}: {number}" for reason, number in reasons.items())
    return f"the host broke them off (finish_reason {listed})"


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """One sampled completion with the provider's token logprobs.

    No unlisted token is more likely than a listed one.

    text: what the model wrote. Calls of functions that the provider sends apart stand in it as
        ``ToolCall.text``.
    finish_reason: "stop", "length" or "content_filter" for the provider's word for it, "stop" also
        where a completion ended with a call; else the provider's own word (``ENDINGS``).
    token_ids, logprobs: (t,), the listed tokens and their logprobs in nats under the *unbiased*
        model at temperature 1. The profile's row ``logprobs.meaning`` says where a bias or another
        temperature changes them.
    top_ids, top_logprobs: (t, k), each row from most to least likely, padded with -1 and -inf; id
        -2 is a listed token without an id.
    prompt_tokens: the length of the prompt, by the provider's count.
    model: its name in the answer.
    whole: False where the provider listed fewer tokens than it generated, or nothing readable, and
        where a filter or the host ended the completion.
    token_bytes: id -> bytes, of the ids in this answer, as far as the provider gives them.
    propensities: (t,), logprobs under the policy that sampled the tokens; None unless the provider
        gives both kinds.
    bounded: (t,), True where the sampled token has no logprob of its own; None for nowhere.
        ``logprobs`` then holds the smallest listed one, an upper bound and no propensity.
    generated: tokens generated, by the provider's count; None where it gives none.
    fingerprint: the provider's names of the answering system (row ``models.system``), joined by
        ``drift.SYSTEM_PARTS``; "" where it gives none.
    note: why the completion is not whole or has no text, or how its lists were completed, to be
        read behind a number of completions; "" for none. It is not stored.
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
        return cls(
            text="",
            finish_reason=finish_reason,
            token_ids=np.zeros(0, np.int32),
            logprobs=np.zeros(0, np.float32),
            top_ids=np.zeros((0, 0), np.int32),
            top_logprobs=np.zeros((0, 0), np.float32),
            model=model,
            whole=False,
        )

    def without_lists(self) -> Completion:
        """The same without its lists, which take most of the memory of a completion."""
        return replace(
            self,
            token_ids=self.token_ids.copy(),
            logprobs=self.logprobs.copy(),
            top_ids=np.zeros((0, 0), np.int32),
            top_logprobs=np.zeros((0, 0), np.float32),
        )

    @property
    def filtered(self) -> bool:
        """Whether the provider's content filter withheld the completion or its rest."""
        return ending_of(self.finish_reason) == "filtered"

    @property
    def broken_off(self) -> bool:
        """Whether the host ended it, and neither the model nor a limit."""
        return ending_of(self.finish_reason) == "broken off"

    @property
    def cut(self) -> bool:
        """Whether it ended at the token limit."""
        return ending_of(self.finish_reason) == "cut"

    @property
    def readable(self) -> bool:
        """Whether it can be scored: neither a content filter nor the host ended it, and it can be
        read.
        """
        if ending_of(self.finish_reason) in ("filtered", "broken off"):
            return False
        return self.whole or self.n_tokens > 0

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The functions that it calls, in its order; see ``calls_in``."""
        return calls_in(self.text)

    @property
    def n_tokens(self) -> int:
        """Tokens generated, by the provider's count; where it gives none, tokens listed."""
        if self.generated is None:
            return len(self.token_ids)
        return self.generated


def with_calls(text: str, calls: Iterable[ToolCall]) -> str:
    """The text of a completion with its calls behind it, each on lines of its own."""
    return "\n".join([*([text] if text.strip() else []), *(call.text for call in calls)])


def calls_in(text: str) -> tuple[ToolCall, ...]:
    """The calls in the text of a completion, in its order; () where it calls nothing.

    A call is a JSON object with a name and arguments, in ``<tool_call>`` tags, behind a mark such
    as ``[TOOL_CALLS]``, or, where a text has neither, as the whole text or a fenced block: small
    models often leave out the tags, and a server then leaves the call in the text. A call that was
    cut is none.
    """
    if CALL_BEGIN in text:
        parts = _TAGGED.findall(text)
    elif marked := _MARKED.search(text):
        parts = [marked[1]]
    elif text.lstrip().startswith(("{", "[")):
        parts = [text]
    else:
        parts = _FENCED.findall(text)
    return tuple(call for part in parts for call in _calls_of(part))


def _calls_of(text: str) -> Iterator[ToolCall]:
    """The calls in one JSON value, an object or a list of them; what follows it is left aside."""
    try:
        value, _ = json.JSONDecoder().raw_decode(text.strip())
    except (ValueError, RecursionError):
        return
    for item in value if isinstance(value, list) else [value]:
        if not isinstance(item, dict) or not isinstance(item.get("name"), str):
            continue
        field = next((name for name in _ARGUMENTS if name in item), None)
        if field is None:
            continue
        arguments = item[field]
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        yield ToolCall(item["name"], arguments)
