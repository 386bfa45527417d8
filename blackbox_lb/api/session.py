"""One model behind one inference API: prompts in, completions out; its tokenizer, its vocabulary,
its endpoints.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.limits.budget import SpendLimit, prompt_bound
from blackbox_lb.api.transport.channel import Channel, Parse
from blackbox_lb.api.wire import (
    AnswerReader,
    build_request,
    messages_of,
    read_answer,
    takes_messages,
)
from blackbox_lb.api.wire.envelope import count
from blackbox_lb.api.wire.identity import checked_id
from blackbox_lb.bias.limits import highest_id
from blackbox_lb.bias.request_bias import AnyBias, to_request_bias
from blackbox_lb.errors import (
    AuthenticationFailed,
    ContentFiltered,
    CorruptResponse,
    InputError,
    ProfileError,
    ProviderError,
    RequestRejected,
)
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.credentials import TokenProvider
from blackbox_lb.providers.profile import Profile
from blackbox_lb.safety.http.retries import ATTEMPTS
from blackbox_lb.types import Completion, EndTokens, Prompt, Sampling
from blackbox_lb.vocabulary import Vocabulary, load_vocabulary, vocabulary_of_model
from blackbox_lb.vocabulary.tokenizer import PROBE_TEXT, Tokenizer, fingerprint

OPENAI_VOCABULARIES = frozenset(
    {"cl100k_base", "o200k_base", "o200k_harmony", "p50k_base", "r50k_base"}
)
UNAUTHORIZED = 401
CHARACTERS_A_TOKEN = 4
"""Rule of thumb for the size of an English prompt, in forecasts and in rate-limit budgets, where an
error costs a little waiting.
"""


class Session:
    """One model behind one inference API, for as many requests as are wanted. Use as an
    asynchronous context manager.

    base_url and the API key default to the environment variables of the profile. model: by default
    the server's only one. endpoint: by default the profile's first. tokenizer: the vocabulary of a
    provider without token ids: a tiktoken encoding or a file (see ``load_vocabulary``). budget: the
    account of completion requests, charged before each is sent. channel: the HTTP below.

    Raises InputError: no such endpoint or address; on entering, no such vocabulary.
    AuthenticationFailed: no key. ModelUnsuitable: a model that cannot be adapted. Nothing was sent
    in either case.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        model: str | None = None,
        base_url: str | None = None,
        endpoint: Endpoint | None = None,
        tokenizer: str | None = None,
        attempts: int = ATTEMPTS,
        token_provider: TokenProvider | None = None,
        budget: SpendLimit | None = None,
    ) -> None:
        self.profile = profile
        self._budget = budget or SpendLimit()
        self._prompt_tokens: dict[tuple[Prompt, Endpoint], int] = {}
        self._prompt_ids: dict[Prompt, list[int]] = {}
        self._lists: dict[Endpoint, AnswerReader] = {}
        self._bytes: dict[int, bytes] = {}
        self.endpoint = endpoint or profile.first_endpoint
        profile.endpoint(self.endpoint)
        if self.endpoint != "decisions":
            profile.check_model(model)
        if model is None and tokenizer is None and profile.tokenizer.source == "openai names":
            example = ""
            if profile.models.work:
                example = f", as in ``model={profile.models.work[0]}``"
            raise ProfileError(
                f"{profile.name} serves many models, and the tokenizer is found by the model's"
                f" name; name it with ``model``{example}"
            )
        self._model = model
        self._tokenizer = tokenizer
        self.vocabulary: Vocabulary | None = None
        self.vocabulary_file: Path | None = None
        self.model_behind: str | None = None
        """The model behind a deployment's name, by the answers; None before the first, and where no
        vocabulary goes by that name.
        """
        self.channel = Channel(profile, base_url, attempts=attempts, token_provider=token_provider)

    @property
    def base_url(self) -> str:
        """The address of the API."""
        return self.channel.base_url

    @property
    def model(self) -> str:
        """The provider's name of the model; known after entering the context."""
        if self._model is None:
            raise InputError("the session has not been entered: its model is not known yet")
        return self._model

    @property
    def biased_endpoint(self) -> Endpoint:
        """The endpoint for a bias: the session's own, else the first that takes one."""
        return self.profile.biased_endpoint(self.endpoint)

    @property
    def end_tokens(self) -> EndTokens:
        """The listing of the tokens that end a completion, and their ids, as far as known."""
        special = frozenset[int]()
        if self.vocabulary:
            special = frozenset(self.vocabulary.special.values())
        return EndTokens(self.profile.logprobs.end_token_listed, special)

    @property
    def tells_base_logprobs(self) -> bool:
        """Whether completions sampled with a bias carry the unbiased model's logprobs."""
        return self.profile.tells_base_logprobs(self.endpoint)

    def texts_of_vocabulary(self) -> Mapping[int, bytes]:
        """Token id -> bytes of every token that stands for text; empty where the vocabulary is not
        at hand.
        """
        if self.vocabulary is not None:
            return self.vocabulary.ordinary
        if self.vocabulary_file is None:
            return {}
        from blackbox_lb.vocabulary.gguf import token_texts

        return token_texts(self.vocabulary_file)

    @property
    def highest_id(self) -> int | None:
        """The highest token id that ``logit_bias`` accepts; None for no limit, or an unknown
        one.
        """
        return highest_id(self.profile, self.vocabulary)

    async def __aenter__(self) -> Self:
        try:
            if self.endpoint != "decisions":  # which lists no tokens
                self.vocabulary = _vocabulary(self.profile, self._model, self._tokenizer)
            served = await self._served()
            if self._model is None:
                if len(served) != 1:
                    raise InputError(
                        f"{self.base_url} serves {len(served)} models; choose one with ``model``:"
                        f" {', '.join(served)}"
                    )
                self._model = served[0]
                if self.endpoint != "decisions":
                    self.profile.check_model(self._model)
        except BaseException:
            await self.channel.close()
            raise
        self._budget.droppers.append(self.channel.drop_waiting)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._budget.droppers.remove(self.channel.drop_waiting)
        await self.channel.close()

    async def complete(
        self,
        prompt: Prompt | Sequence[int],
        sampling: Sampling,
        bias: AnyBias = None,
    ) -> Completion:
        """One completion; see ``complete_many``. bias: token id -> nats."""
        return (await self.complete_many(prompt, Draw(sampling, to_request_bias(bias))))[0]

    async def complete_many(
        self, prompt: Prompt | Sequence[int], draw: Draw, n: int = 1
    ) -> list[Completion]:
        """Return ``n`` completions by one request. A prompt that the provider's content filter
        refuses gives ``n`` empty ones.

        On the completions endpoint a prompt may be token ids (see ``prompt_ids``).

        Raises ProviderError: one of its subclasses, each with the provider's own words.
        """

        def read(answer: Any) -> list[Completion]:
            return self.completions_in(answer, draw, n)

        parse = self._reader(draw.endpoint or self.endpoint).read
        try:
            completions: list[Completion] = await self.answer(prompt, draw, n, read, parse)
        except ContentFiltered:
            return [Completion.empty("content_filter", self.model)] * n
        return completions

    def completions_in(self, answer: Any, draw: Draw, n: int = 1) -> list[Completion]:
        """Read the completions of an answer to a request for ``n``, live or from a file; see
        ``read_answer``.

        Raises ProviderError: the answer cannot be read. InputError: it is of a model with another
        vocabulary.
        """
        self._check_model_behind(answer)
        try:
            return read_answer(self.profile, draw.on(self.endpoint), answer, self.vocabulary, n)
        except ProviderError as error:
            raise type(error)(self.channel.masked(str(error))) from error

    @property
    def refusals(self) -> int:
        """Requests so far that the server refused for load or did not answer in time."""
        return self.channel.refusals

    def _check_model_behind(self, answer: Any) -> None:
        """Check the model behind a deployment's name, by the answer, and so the tokenizer.

        Raises InputError: its vocabulary is that of another OpenAI model. ModelUnsuitable: it
        cannot be adapted.
        """
        model = None
        if isinstance(answer, dict):
            model = answer.get("model")
        if self.vocabulary is None or not isinstance(model, str) or model == self.model_behind:
            return
        self.profile.check_model(model)
        right = vocabulary_of_model(model)
        used = self.vocabulary.name
        if right is not None and used in OPENAI_VOCABULARIES and used != right:
            raise InputError(
                f"{self.model!r} on {self.profile.name} is {model}, whose tokenizer is {right}, and"
                f" not {used}; give ``tokenizer={right}``"
            )
        self.model_behind = model

    async def answer(
        self,
        prompt: Prompt | Sequence[int],
        draw: Draw,
        n: int = 1,
        read: Callable[[Any], Any] = lambda answer: answer,
        parse: Parse | None = None,
    ) -> Any:
        """Return ``read`` of the provider's answer, or the raw answer, which holds more than
        completions do. An answer that ``read`` calls corrupt is asked for again, within limits.
        ``n``: completions asked for. ``parse``: see ``Channel.post``.

        Raises ProviderError: one of its subclasses; ContentFiltered where the content filter
        refuses the prompt.
        """
        where = draw.endpoint or self.endpoint
        sampling = draw.sampling
        body = build_request(self.profile, draw.on(where), model=self.model, prompt=prompt, n=n)
        path = self.profile.endpoint(where).path.replace("{model}", self.model)
        if isinstance(prompt, Prompt):
            size = sum(map(len, prompt.sent_texts)) // CHARACTERS_A_TOKEN
        else:
            size = len(prompt)
        generated = n * sampling.max_tokens
        most = self._most_tokens(prompt, where)
        if draw.questions:
            most += prompt_bound(draw.sent_texts)
        answer, result = await self.channel.post(
            path,
            body,
            prompt_tokens=size,
            generated=generated,
            around=lambda once: self._budget.metered(once, most, generated),
            read=lambda answer: (answer, read(answer)),
            parse=parse,
        )
        counted = None
        if isinstance(answer, dict):
            counted = count(answer, "prompt_tokens", "input_tokens")
        if counted is not None and isinstance(prompt, Prompt):
            self._prompt_tokens[prompt, where] = counted
        return result

    def _reader(self, endpoint: Endpoint) -> AnswerReader:
        """The reader of an endpoint's answers; it remembers tokens, under the present
        vocabulary.
        """
        lists = self._lists.get(endpoint)
        if lists is None or lists.vocabulary is not self.vocabulary:
            lists = AnswerReader(self.profile, self.profile.endpoint(endpoint), self.vocabulary)
            self._lists[endpoint] = lists
        return lists

    def _most_tokens(self, prompt: Prompt | Sequence[int], endpoint: Endpoint) -> int:
        """Most tokens of a prompt: by the count in an answer to it, else by its bytes."""
        if not isinstance(prompt, Prompt):
            return len(prompt)
        counted = self._prompt_tokens.get((prompt, endpoint))
        if counted is not None:
            return counted
        return prompt_bound(prompt.sent_texts)

    async def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the prompt's token ids for the session's endpoint, by the rows ``reference`` of
        the profile; asked once.

        Raises ProfileError: the profile has no such rows.
        """
        if prompt not in self._prompt_ids:
            self._prompt_ids[prompt] = await self._ids_of(prompt)
        return self._prompt_ids[prompt]

    async def _ids_of(self, prompt: Prompt) -> list[int]:
        rules = self.profile.reference
        if rules is None or self.profile.tokenizer.tokenize is None:
            raise ProfileError(
                f"{self.profile.name} is not known to take a prompt as token ids; it has no rows"
                " under [reference]"
            )
        text: Any = prompt.text
        if takes_messages(self.endpoint):
            body: dict[str, Any] = {"messages": messages_of(prompt), **rules.chat.fields}
            if prompt.tools:
                body["tools"] = json.loads(prompt.tools)
            text = await self._field(rules.chat.path, rules.chat.answer, body, (str, list))
        if isinstance(text, list):
            return [checked_id(self.profile.name, token) for token in text]
        return await self._encoded(text, rules.text)

    async def _field(
        self, path: str, name: str, body: dict[str, Any], kinds: tuple[type, ...]
    ) -> Any:
        """The field ``name`` in the answer of one of the server's own routes."""
        answer = await self.channel.post(self.channel.root(path), {"model": self.model, **body})
        if not isinstance(answer, dict) or not isinstance(answer.get(name), kinds):
            raise CorruptResponse(
                f"{self.profile.name} answered {path} without {name!r}: {str(answer)[:200]}"
            )
        return answer[name]

    async def tokenizer(self) -> Tokenizer:
        """The fingerprint of the model's tokenizer, and its size where that is known.

        Raises InputError: ``tokenizer`` names another tokenizer than the server's.
        """
        if self.profile.tokenizer.source != "server" or self.endpoint == "decisions":
            if self.vocabulary is None:
                return Tokenizer(f"model:{self.model}", None)
            return Tokenizer(self.vocabulary.fingerprint, self.vocabulary.size)
        served = Tokenizer(
            fingerprint(await self._encoded(PROBE_TEXT)), await self._vocabulary_size()
        )
        if self.vocabulary is not None and self.vocabulary.fingerprint != served.fingerprint:
            raise InputError(
                f"``tokenizer={self.vocabulary.name}`` is not the tokenizer of {self.model}: it"
                f" splits the probe text differently ({self.vocabulary.fingerprint}, the server"
                f" {served.fingerprint}); give the model's own"
            )
        return served

    async def texts_of(self, tokens: Sequence[int]) -> list[str | None]:
        """The printed text of each token id; fragments of a character print as U+FFFD; None where
        it is not known.
        """
        if self.vocabulary is not None:
            raw = [self.vocabulary.bytes_of(token) for token in tokens]
            return [
                None if spelling is None else spelling.decode("utf-8", "replace")
                for spelling in raw
            ]
        if self.profile.tokenizer.source != "server":
            return [None] * len(tokens)
        gate = asyncio.Semaphore(self.profile.connection.concurrency)

        async def one(token: int) -> str:
            async with gate:
                return await self._decoded([token])

        return list(await asyncio.gather(*(one(token) for token in tokens)))

    async def bytes_of(self, tokens: Sequence[int]) -> list[bytes]:
        """The bytes of each token id; those of U+FFFD for a fragment of a character where only the
        server knows the vocabulary, which is asked once for each.
        """
        if self.vocabulary is not None:
            return [self.vocabulary.bytes_of(token) or b"" for token in tokens]
        unknown = [token for token in dict.fromkeys(tokens) if token not in self._bytes]
        texts = await self.texts_of(unknown)
        self._bytes |= {
            token: (text or "").encode() for token, text in zip(unknown, texts, strict=True)
        }
        return [self._bytes[token] for token in tokens]

    async def decode(self, tokens: Sequence[int]) -> str:
        """The text of a row of tokens. Raises InputError: it cannot be known here."""
        if self.vocabulary is None:
            return await self._decoded(tokens)
        return b"".join(self.vocabulary.bytes_of(token) or b"" for token in tokens).decode(
            "utf-8", "replace"
        )

    async def _decoded(self, tokens: Sequence[int]) -> str:
        route = self.profile.tokenizer.detokenize
        if route is None:
            raise InputError(f"{self.profile.name} has no row tokenizer.detokenize")
        return str(
            await self._field(
                route.path, route.answer, {"tokens": [*tokens], **route.fields}, (str,)
            )
        )

    async def encode(self, text: str) -> list[int]:
        """The token ids of a text by itself, without special tokens. Raises InputError: they cannot
        be known here.
        """
        if self.vocabulary is not None:
            return list(self.vocabulary.encode(text))
        return await self._encoded(text)

    async def _encoded(self, text: str, fields: Mapping[str, Any] | None = None) -> list[int]:
        """The token ids by the server's own route; ``fields``: sent in place of the route's own."""
        route = self.profile.tokenizer.tokenize
        if route is None:
            raise InputError(
                f"{self.profile.name} does not tell how it splits a text into tokens; give the"
                " model's vocabulary with ``tokenizer``"
            )
        fields = route.fields if fields is None else fields
        ids = await self._field(route.path, "tokens", {route.text: text, **fields}, (list,))
        if not ids or not all(isinstance(token, int) for token in ids):
            raise CorruptResponse(
                f"{self.profile.name} answered {route.path} without token ids: {str(ids)[:200]}"
            )
        return [checked_id(self.profile.name, token) for token in ids]

    async def _vocabulary_size(self) -> int | None:
        row = self.profile.tokenizer.vocabulary_size
        if row is None:
            return None
        value: Any = await self.channel.get("/models")
        try:
            value = value["data"][0]
            for key in row.removeprefix("models ").split("."):
                value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
        if isinstance(value, int):
            return value
        return None

    async def _served(self) -> Sequence[str]:
        """The model names that the server offers; the request also shows that the server answers
        and takes the key.
        """
        needed = self._model is None
        try:
            answer = await self.channel.get("/models")
            names = [model["id"] for model in answer["data"]]
            if not all(isinstance(name, str) for name in names):
                raise TypeError("the id of a model is no text")
            return list(dict.fromkeys(names))
        except (AuthenticationFailed, RequestRejected, CorruptResponse) as error:
            # A key may be allowed to sample and not to list; only a wrong one is refused with 401.
            if needed or error.status == UNAUTHORIZED:
                raise
        except (KeyError, TypeError) as error:
            if needed:
                excerpt = self.channel.masked(str(answer)[:100])
                raise CorruptResponse(
                    f"{self.base_url}/models does not list models ({excerpt}); is this an"
                    " OpenAI-compatible API?"
                ) from error
        return []


def _vocabulary(profile: Profile, model: str | None, tokenizer: str | None) -> Vocabulary | None:
    """The vocabulary that the user names, or tiktoken's for the model's name."""
    if tokenizer is not None:
        return load_vocabulary(tokenizer)
    if profile.tokenizer.source != "openai names":
        return None
    name = vocabulary_of_model(model or "")
    if name is None:
        raise InputError(
            f"the tokenizer of {model!r} on {profile.name} cannot be told from its name; give"
            " ``tokenizer=o200k_base`` (the gpt-4o and gpt-4.1 families) or cl100k_base (gpt-4,"
            " gpt-3.5-turbo)"
        )
    return load_vocabulary(name)
