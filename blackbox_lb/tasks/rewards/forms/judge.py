r"""The reward that a language model gives as judge.

A judge is a TOML file:

```toml
base_url = "https://api.openai.com/v1"   # any OpenAI-compatible chat API
model = "gpt-4.1-mini"
api_key_env = "OPENAI_API_KEY"           # left out: no key is sent
prompt = '''
Question: {prompt}
Answer: {completion}
How helpful is the answer, from 0 to 10? End with "Score: N".'''
pattern = 'Score:\s*(-?[0-9.]+)'        # its last match counts, and of that the first group
scale = 0.1                              # nats of one point
quotes = 'Objection: "(.*?)"'            # left out: the judge quotes nothing
```

``{prompt}``, ``{completion}`` and ``{answer}`` (accepted answers, one a line) are filled in; other
braces stay. Sampling is greedy. The judge's words are stored unchanged: another pattern, scale,
``quotes`` or ``otherwise`` reads them again and costs nothing.

With ``quotes`` the reward has places: the passages that the pattern finds in the judge's words (its
first group) are looked up in the completion, and share the reward equally. So let the judge's
number be what its objections cost, 0 where it has none. What no passage earns, because the judge
quotes none or nothing that stands in the text, is earned where the text ends.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import regex
from pydantic import AfterValidator, BaseModel, Field, JsonValue, ValidationError

from blackbox_lb.errors import AuthenticationFailed, CorruptResponse, InputError
from blackbox_lb.providers.schema import no_secrets
from blackbox_lb.safety.documents import first_problem
from blackbox_lb.safety.http.error_answers import masked
from blackbox_lb.safety.network import read_address
from blackbox_lb.safety.printable import shorten
from blackbox_lb.safety.secrets import watch
from blackbox_lb.safety.untrusted import read_settings
from blackbox_lb.tasks.rewards.remote import KEPT, Remote
from blackbox_lb.tasks.rewards.reward import Credit, Form, Score
from blackbox_lb.tasks.rewards.spans import find_quote
from blackbox_lb.types import Completion, Example, Prompt, Span

ROW_OF_FIELD = {
    "model": "model",
    "messages": "prompt",
    **dict.fromkeys(
        ("max_tokens", "max_new_tokens", "max_output_tokens", "n_predict", "num_predict"),
        "max_tokens",
    ),
}
"""Fields of a judge's request, by the names of several servers -> the row of its file that sets
them, and by which its tokens are reserved.
"""
ONE_ANSWER = {"n": 1, "best_of": 1, "stream": False}
"""Fields of a judge's request with the only value for which one answer comes, in one piece."""
NUMBER = re.compile(r"([+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)\.?", re.ASCII)
"""A number of a judge, perhaps at the end of a sentence."""
LEFT_OF_A_PART = re.compile(r"(?:\d(?:[.,'’_٫٬–-]|[eE][+-]?)?|(?<![^\W_])[-−])\Z")
RIGHT_OF_A_PART = re.compile(r"[\d_]|[.,'’٫٬]\d|[eE][+-]?\d|[–-]\d|[\u00a0\u2009\u202f]\d{3}(?!\d)")
"""What stands beside a match that is only a part of a number: of 7,5 or 1,000, of 10, of -3, or of
the range 7-8.
"""
NOT_WHOLE = re.compile(r"\n\[not whole: finish_reason (length|content_filter)\]\Z")
"""The end of the kept words of a judge that its limit of tokens, or a filter, stopped."""
SECONDS = 5.0
"""Longest search for what a judge quotes in its answer."""
PLACES = re.compile(r"\{(prompt|completion|answer)\}")


class JudgeFile(BaseModel, extra="forbid", frozen=True):
    """The rows of a judge's file.

    ``max_tokens`` limits the judge's answer; ``fields`` are further fields of the request;
    ``otherwise`` stands for the number of an answer that holds none; left out, such an answer ends
    the run. ``quotes``: the pattern of what the judge quotes, None where it quotes nothing.
    """

    base_url: str
    model: str
    api_key_env: str | None = None
    prompt: str
    pattern: str
    scale: float = Field(default=1.0, allow_inf_nan=False)
    otherwise: float | None = Field(default=None, allow_inf_nan=False)
    max_tokens: int = Field(default=256, ge=1)
    concurrency: int = Field(default=8, ge=1)
    fields: Annotated[dict[str, JsonValue], AfterValidator(no_secrets)] = {}
    quotes: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge(Remote):
    """A judge behind a chat API. ``path``: of its file. ``quoted``: what it quotes, by ``key``."""

    answer_field: ClassVar[str] = "choices"
    needs_answer: bool = field()
    credit: Credit = field()
    batch: int = 1
    file: JudgeFile = field(compare=False)
    path: Path = field(compare=False)
    quoted: dict[str, tuple[str, ...]] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def load(cls, path: str) -> Judge:
        """Load the judge of a file. InputError: unreadable, a missing or unknown row, an unusable
        pattern or prompt.
        """
        file = _read(path)
        url = read_address(
            file.base_url,
            f"base_url of the judge {path}",
            "give one as https://HOST/v1",
            "keys belong in the variable that api_key_env names",
        )
        otherwise = None
        if file.otherwise is not None:
            otherwise = file.otherwise * file.scale
            if not math.isfinite(otherwise):
                raise InputError(
                    f"the judge {path}: otherwise = {file.otherwise:g} times scale ="
                    f" {file.scale:g} is beyond the largest number; give a smaller one"
                )
        return cls(
            name=f"judge:{path}",
            url=f"{url}/chat/completions",
            concurrency=file.concurrency,
            needs_answer="{answer}" in file.prompt,
            credit="whole" if file.quotes is None else "places",
            otherwise=otherwise,
            file=file,
            path=Path(path),
        )

    @property
    def judge(self) -> Judge:
        """See ``Reward``."""
        return self

    @property
    def identity(self) -> Any:
        file = self.file
        return {"judge": self.url, **self.body([{"content": file.prompt}])}

    def item(self, example: Example, completion: Completion) -> dict[str, Any]:
        filled = {
            "prompt": _conversation(example.prompt),
            "completion": completion.text,
            "answer": "\n".join(example.answers),
        }
        return {"content": PLACES.sub(lambda place: filled[place[1]], self.file.prompt)}

    def body(self, items: Sequence[dict[str, Any]]) -> dict[str, Any]:
        (item,) = items
        file = self.file
        messages = [{"role": "user", "content": item["content"]}]
        return {
            "model": file.model,
            "messages": messages,
            "temperature": 0,
            "max_tokens": file.max_tokens,
            **file.fields,
        }

    @property
    def most_tokens(self) -> int:
        """Most tokens of an answer, whichever of its two limits a server goes by."""
        completion_limit = self.file.fields.get("max_completion_tokens")
        if isinstance(completion_limit, int):
            return max(self.file.max_tokens, completion_limit)
        return self.file.max_tokens

    def answers(self, reply: Any, items: Sequence[dict[str, Any]]) -> list[str | CorruptResponse]:
        """See ``Remote``: the words of the only answer, marked where it is not whole."""
        del items
        words, finish_reason = reply
        words = words.encode("utf-8", "replace").decode()
        if finish_reason in ("length", "content_filter"):
            words = f"{words}\n[not whole: finish_reason {finish_reason}]"
        return [words]

    def learn(self, key: str, answer: str, example: str) -> bool:
        number = self._number(answer)
        value = self.otherwise if number is None else number
        if value is None:
            reply = masked(answer, self.secrets())
            raise CorruptResponse(
                f"{self.name} said {reply[:200]!r} of a completion of example {example!r},"
                f" {self._why_no_number(answer)}, or say with otherwise what such an answer is"
                f" worth ({KEPT})"
            )
        self.known[key] = value
        if self.file.quotes is not None:
            self.quoted[key] = self._quotes_in(answer, self.file.quotes)
        return number is not None

    def _number(self, answer: str) -> float | None:
        """Nats of an answer; None where it holds no number."""
        if NOT_WHOLE.search(answer):
            return None
        matches = list(re.finditer(self.file.pattern, answer))
        if not matches:
            return None
        match = matches[-1]
        group = min(match.re.groups, 1)
        written = NUMBER.fullmatch((match[group] or "").strip())
        if written is None:
            return None
        start, end = match.span(group)
        is_part = LEFT_OF_A_PART.search(answer[max(0, start - 4) : start])
        if end == match.end():  # else the pattern says itself what follows
            is_part = is_part or RIGHT_OF_A_PART.match(answer[end : end + 5])
        number = float(written[1]) * self.file.scale
        if is_part or not math.isfinite(number):
            return None
        return number

    def _why_no_number(self, answer: str) -> str:
        """Why ``_number`` reads none from an answer, and the remedy, behind a quotation of it."""
        end = NOT_WHOLE.search(answer)
        if end is None:
            return (
                "where the pattern finds no number that can be read without doubt; correct pattern"
                " or prompt"
            )
        if end[1] == "content_filter":
            return "which a content filter stopped; change the prompt"
        return (
            f"which its max_tokens = {self.file.max_tokens} cut; raise max_tokens in the judge's"
            " file, for a judge that thinks by the length of its thoughts (all completions are then"
            " judged anew)"
        )

    def _quotes_in(self, answer: str, written: str) -> tuple[str, ...]:
        """What the pattern ``written`` finds in the judge's words, in their order; each passage
        once. InputError: the search takes too long.
        """
        pattern = regex.compile(written)
        try:
            matches = list(pattern.finditer(answer, timeout=SECONDS))
        except TimeoutError as error:
            raise InputError(
                f"{self.name}: quotes takes more than {SECONDS:g} s on an answer of"
                f" {len(answer):,} characters; write it without repetitions inside repetitions"
            ) from error
        group = min(pattern.groups, 1)
        quotes = [(match[group] or "").strip() for match in matches]
        return tuple(dict.fromkeys(quote for quote in quotes if quote))

    def score(self, example: Example, completion: Completion) -> Score:
        """See ``Remote``: with the passages that the judge quotes, where its file says how."""
        score = Remote.score(self, example, completion)
        if self.file.quotes is None:
            return score
        reward = score.value
        if reward == 0:
            return Score(reward, ())
        text = completion.text
        quotes = self.quoted[self.key(example, completion)]
        places = sorted({place for quote in quotes if (place := find_quote(text, quote))})
        if not places:
            places = [(len(text), len(text))]
        amount = reward / len(places)
        return Score(reward, tuple(Span(start, end, amount) for start, end in places))

    def lost_quotes(self, key: str, text: str) -> int:
        """How many of the passages quoted in the answer ``key`` do not stand in ``text``."""
        quotes = self.quoted.get(key, ())
        return len([quote for quote in quotes if find_quote(text, quote) is None])

    def headers(self) -> dict[str, str]:
        name = self.file.api_key_env
        if not name:
            return {}
        key = (os.environ.get(name) or "").strip()
        if not (key and key.isascii() and key.isprintable()):
            raise AuthenticationFailed(
                f"{self.name} needs an API key: set the environment variable {name}"
            )
        return {"Authorization": f"Bearer {key}"}

    def secrets(self) -> list[str]:
        return [value.partition(" ")[2] for value in self.headers().values()]


def _read(path: str) -> JudgeFile:
    try:
        file = JudgeFile.model_validate(
            read_settings(Path(path), "the judge", "give judge:FILE.toml")
        )
    except ValidationError as error:
        raise InputError(
            f"the judge {path}: {first_problem(error)}; it knows"
            f" {', '.join(JudgeFile.model_fields)}"
        ) from error
    watch([file.api_key_env])
    row = "pattern"
    try:
        re.compile(file.pattern)
        row = "quotes"
        regex.compile(file.quotes or "")
    except (re.error, regex.error, RecursionError, OverflowError) as error:
        raise InputError(
            f"the judge {path}: {row} is not a valid regular expression: {error}; correct it"
        ) from error
    _check_fields(path, file.fields)
    if "{completion}" not in file.prompt:
        raise InputError(
            f"the judge {path}: prompt has no {{completion}}, so every completion would be judged"
            " alike; write it in"
        )
    return file


def _check_fields(path: str, fields: Mapping[str, JsonValue]) -> None:
    """Raise InputError for a field that has a row of its own, or asks for several answers."""
    for name, value in fields.items():
        if name in ROW_OF_FIELD:
            raise InputError(
                f"the judge {path}: fields sets {name}, for which the file has the row"
                f" {ROW_OF_FIELD[name]}; give it there, so that its tokens are counted before they"
                " are spent"
            )
        if name in ONE_ANSWER and value != ONE_ANSWER[name]:
            raise InputError(
                f"the judge {path}: fields sets {name} = {shorten(value)}; one answer is read, in"
                " one piece, so leave it out"
            )
    limit = fields.get("max_completion_tokens", 1)
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise InputError(
            f"the judge {path}: fields sets max_completion_tokens = {shorten(limit)}; give a whole"
            " number from 1"
        )


def _conversation(prompt: Prompt) -> str:
    """The text of a single message; of several, each after its role."""
    if len(prompt.messages) == 1:
        return prompt.messages[0].text
    return "\n\n".join(f"{message.role}: {message.text}" for message in prompt.messages)


FORMS = (
    Form(
        "judge",
        "what a language model says, asked as the file describes",
        Judge.load,
        takes="FILE.toml",
        reaches="host",
    ),
)
