"""The rows of a provider profile: every capability that differs between inference APIs, with its
meaning and its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, model_validator

from blackbox_lb.safety.printable import printable
from blackbox_lb.safety.secrets import SECRET_WORD, redacted
from blackbox_lb.types import Endpoint

Json = str | int | float | bool
TokenId = Annotated[str, Field(pattern=r"^((field|string) \S+|bytes|text|latin-1)$")]
HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
"""A token of RFC 9110, section 5.6.2."""
Nats = Annotated[float, Field(allow_inf_nan=False)]


T = TypeVar("T", bound=Mapping[str, object])


def no_secrets(table: T) -> T:
    """Return ``table``. Raises ValueError, without the value, where a name or a value in it looks
    like a key.
    """
    for name, value in table.items():
        if isinstance(value, Mapping):
            no_secrets(value)
        if (
            isinstance(value, str)
            and value
            and (SECRET_WORD.search(name) or redacted(value) != value)
        ):
            raise ValueError(
                f"{name} holds what looks like a key, and a profile is no place for one; put it"
                " into an environment variable and "
                "name that in connection.query_env or connection.headers_env, as in query_env = {"
                f' "{name}" = "MY_KEY" }}'
            )
    return table


def visible(name: str) -> str:
    """Return ``name``. Raises ValueError, with escapes, where a character of it cannot be seen."""
    if not name.isprintable():
        raise ValueError(
            f"{printable(name)} holds a character that cannot be printed; write a name without it"
        )
    return name


class ProfileRow(BaseModel, frozen=True, extra="forbid", strict=True):
    """Frozen, strictly typed, and without room for a misspelt key."""


class Connection(ProfileRow):
    """Address and credentials of the API. Keys come from the environment variable ``api_key_env``,
    never from a file.

    base_url_env: a variable whose address goes before ``base_url``. base_path: appended to an
    address that lacks it. api_key_required: nothing is sent without a key or a token, so
    ``api_key_env`` or ``token_env`` must name its variable. api_key_url: the page where a user gets
    a key. api_key_header: carries the key, ``Authorization`` as a bearer token. token_env: a
    variable with a bearer token (Microsoft Entra), used without a key. headers_env: further headers
    -> variables. query: goes with every request. query_env: variables that replace parts of it.
    lists_models: GET /models lists the names that ``model`` takes; elsewhere it only shows that
    the key is good. concurrency: first number of requests in flight (``AdaptiveConcurrency`` finds
    a better one), the most for an ``embedded`` engine, which runs in this process.
    rate_limit_headers: limit-requests ... -> the header's name (see ``rate_limits``).
    """

    base_url: str | None = None
    base_url_env: str | None = None
    base_path: str = ""
    api_key_env: str | None = None
    api_key_required: bool = True
    api_key_url: str | None = None
    api_key_header: HeaderName = "Authorization"
    token_env: str | None = None
    headers_env: dict[HeaderName, str] = {}
    query: Annotated[dict[str, str], AfterValidator(no_secrets)] = {}
    query_env: dict[str, str] = {}
    lists_models: bool = True
    concurrency: Annotated[int, Field(ge=1)] = 8
    embedded: bool = False
    rate_limit_headers: dict[str, str] = {}

    @property
    def secret_variables(self) -> list[str]:
        """Names of the environment variables whose values go out with requests."""
        names = (
            self.api_key_env,
            self.token_env,
            *self.headers_env.values(),
            *self.query_env.values(),
        )
        return [name for name in names if name]

    @model_validator(mode="after")
    def _key(self) -> Connection:
        if self.api_key_required and not (self.api_key_env or self.token_env):
            raise ValueError(
                "a key is required and no variable is named that holds it; set the row"
                " connection.api_key_env (or token_env), or api_key_required = false"
            )
        return self


class EndpointRules(ProfileRow):
    """One endpoint. ``{model}`` in ``path`` is the model's (deployment's) name. ``dialect``: the
    shape of the answer's logprobs.

    ask_logprobs: flag = ``logprobs: true, top_logprobs: k``; count = ``logprobs: k``; include = the
    Responses API's ``include`` and ``top_logprobs``; no = the endpoint gives none. top_logprobs:
    most alternatives here, where not ``logprobs.limit``. sampled_in_list: a sampled token not among
    the k most likely is not listed (no), listed beside them (added), or listed in place of the last
    (replaces the last). This decides which listed alternatives are sure to be the most likely ones.
    id: the place of token ids here, where not ``tokens.id``. sampled_ids: dotted field of a choice
    that lists the sampled ids. bias: whether it takes ``logit_bias``. stop: whether it takes stop
    texts. max_tokens: the field that limits the completion.
    """

    path: str
    dialect: Literal["content", "legacy", "meta", "responses"]
    ask_logprobs: Literal["flag", "count", "include", "no"]
    sampled_in_list: Literal["no", "added", "replaces the last"]
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    id: TokenId | None = None
    sampled_ids: str | None = None
    bias: bool = True
    stop: bool = True
    max_tokens: str = "max_tokens"


class LogprobRules(ProfileRow):
    """The meaning of returned logprobs. ``limit``: most alternatives a token (None: no limit
    known). ``limit_is_setting``: a server may be started with another one, so that more may be
    asked for.

    meaning: before bias = of the unbiased model at temperature 1, whatever was sent; after bias =
    of the distribution after bias and temperature, so the model's own only without a bias at
    temperature 1; unknown = treated as after bias. propensity: the field with the sampled token's
    logprob under the policy that sampled it. censored: the number in place of a sampled token's
    logprob that is withheld. end_token_listed: None if not known. stop_text_listed: whether the
    tokens of the stop text that ended a completion are listed, or only counted; None if not known.
    reasoning_listed: whether the tokens of a model's thinking, their marks included, are listed
    before those of its text; False: an answer with thoughts is never whole; None if not known: it
    is where its tokens are as many as are counted. drops_fragments: a token that is a part of a
    character is left out of the lists, so that an answer of that token alone has no list at all.
    """

    limit: Annotated[int, Field(ge=0)] | None = None
    limit_remedy: str = "ask for fewer with ``top_logprobs``"
    limit_is_setting: bool = False
    meaning: Literal["before bias", "after bias", "unknown"]
    propensity: str = "logprob"
    censored: float | None = None
    end_token_listed: bool | None = None
    stop_text_listed: bool | None = None
    reasoning_listed: bool | None = None
    drops_fragments: bool = False


class TokenRules(ProfileRow):
    """The place of token ids: ``field NAME`` of each entry; ``string PREFIX``: behind it in the
    token string; ``bytes``: nowhere, the token's bytes identify it under a vocabulary; ``text``:
    nowhere, and only its printed text is given.

    ``bytes_exact``: ``bytes`` are the token's own, not those of its printed text.
    """

    id: TokenId
    bytes_exact: bool


class TokenizeRoute(ProfileRow):
    """POST ``path`` under the server's root with the text in field ``text`` answers ``{"tokens":
    [ids]}``.
    """

    path: str
    text: str
    fields: dict[str, Json] = {}


class DetokenizeRoute(ProfileRow):
    """POST ``path`` under the server's root with ``{"tokens": [ids]}`` answers the text in field
    ``answer``.
    """

    path: str
    answer: str
    fields: dict[str, Json] = {}


class TokenizerRules(ProfileRow):
    """The source of the tokenizer. ``source``: server = by its own routes; openai names = the
    encoding that tiktoken knows for the model's name; model name = not at all, so that a bias is
    tied to the model's name, unless ``tokenizer`` names a vocabulary.

    ``vocabulary_size`` is a field of the first entry of GET /models.
    """

    source: Literal["server", "openai names", "model name"] = "server"
    tokenize: TokenizeRoute | None = None
    detokenize: DetokenizeRoute | None = None
    vocabulary_size: Annotated[str, Field(pattern=r"^models \S+$")] | None = None

    @model_validator(mode="after")
    def _routes(self) -> TokenizerRules:
        if self.source == "server" and (self.tokenize is None or self.detokenize is None):
            raise ValueError(
                "source 'server' needs the rows tokenize and detokenize; or set source = \"model"
                ' name"'
            )
        return self


class ChatRoute(ProfileRow):
    """POST ``path`` under the server's root with ``{"messages": [...]}`` answers, in field
    ``answer``, the prompt made by the chat template: token ids, or a text, which is split by the
    rules in ``ReferenceRules.text``."""

    path: str
    answer: str
    fields: dict[str, Json] = {}


class ReferenceRules(ProfileRow):
    """How to ask for the next token's distribution over the whole vocabulary after a prefix, a
    prompt of token ids.

    endpoint: takes such a prompt. chat: applies the template. whole: the number of alternatives
    that means all; None: the size of the vocabulary; False: no list holds all. text: fields for the
    route tokenizer.tokenize that make it split a text like a prompt.
    """

    endpoint: Endpoint
    whole: Literal[-1, False] | None = None
    chat: ChatRoute
    text: dict[str, Json]


class AnswerRules(ProfileRow):
    """How to ask for the lists along a given answer, beside ``ReferenceRules``; False: not known.

    prompt_logprobs: the field of a request with token ids that asks for so many alternatives at
    each of them, and the field of the choice that holds them: null for the first id, then ``{id:
    {"logprob": nats}}``. continues: the fields that make the chat endpoint continue a trailing
    assistant message. repeats: an answer that is no stream then begins with that message.
    stop_reason: the field of a choice that holds the stop text that ended it. prompt_ids: the field
    of its answer, or of the choice, that lists the ids of the prompt.
    """

    prompt_logprobs: str | Literal[False] = False
    continues: dict[str, Json] | Literal[False] = False
    repeats: bool = False
    stop_reason: str | Literal[False] = False
    prompt_ids: str | Literal[False] = False


class BiasRefusal(ProfileRow):
    """A set-up of the server in which it takes no ``logit_bias`` at all.

    words: a part of the refusal, by which it is recognised, in any case of letters. why: the
    set-up. remedy: how to get out of it. ignored_before: whether earlier versions ignored the
    bias in this set-up without a word.
    """

    words: Annotated[str, Field(min_length=1)]
    why: str
    remedy: str
    ignored_before: bool = False


class BiasRules(ProfileRow):
    """The limits on ``logit_bias``: nats in [low, high], at most ``entries`` tokens (None: no
    limit), fractions or integers only.

    ``highest_id``: ids above it are refused; "end of text" is the vocabulary's ``<|endoftext|>``;
    None: the whole vocabulary. ``refused``: set-ups in which no bias is taken.
    """

    format: Literal["object", "pairs"]
    low: Nats
    high: Nats
    fractions: bool
    entries: Annotated[int, Field(ge=1)] | None = None
    highest_id: Annotated[int, Field(ge=0)] | Literal["end of text"] | None = None
    refused: list[BiasRefusal] = []

    def refusal_of(self, message: str) -> BiasRefusal | None:
        """The known set-up that a server's refusal tells of; None where it tells of none."""
        for refusal in self.refused:
            if refusal.words.lower() in message.lower():
                return refusal
        return None

    @model_validator(mode="after")
    def _range(self) -> BiasRules:
        if self.low >= self.high:
            raise ValueError(f"low = {self.low:g} must be below high = {self.high:g}")
        return self


class SamplingRules(ProfileRow):
    """``n``: most completions a request; ``shares_prompt``: they pay for the prompt once, so
    several are asked for at a time.

    ``seed``: the request takes a seed. ``stops``: most stop texts a request; None: no limit known.
    """

    n: Annotated[int, Field(ge=1)] = 1
    shares_prompt: bool = False
    seed: bool = True
    stops: Annotated[int, Field(ge=1)] | None = None


class BatchRules(ProfileRow):
    """Requests in files of JSON Lines, answered later. ``urls``: endpoint -> the ``url`` of each
    line.

    command: the program that answers a file on the user's own machine, with {input}, {output} and
    {model}; None: files go to the provider, by ``/files`` and ``/batches`` beside its endpoints.
    requests, size: most lines and bytes of a file (None: no limit). price: the cost of a token
    there, as a share of its price in a live request.
    """

    urls: Annotated[dict[Endpoint, str], Field(min_length=1)]
    command: str | None = None
    requests: Annotated[int, Field(ge=1)] | None = None
    size: Annotated[int, Field(ge=1)] | None = None
    price: Annotated[float, Field(ge=0, le=1)] = 1.0


class RefusedModels(ProfileRow):
    """Models whose names match ``pattern`` (``*`` any text) cannot be used, and ``why``."""

    pattern: Annotated[str, Field(min_length=1)]
    why: str


class ModelEnd(ProfileRow):
    """Models whose names match ``pattern`` are switched off on ``date``.

    successor: the model that the provider names instead; "" where it names none.
    """

    pattern: Annotated[str, Field(min_length=1)]
    date: date
    successor: str = ""


class ModelRules(ProfileRow):
    """Models that are refused before anything is sent, and some that work.

    untried: patterns of models about which sources contradict each other: they count as ``unknown =
    ["bias"]``. ends: the days on which models are switched off, the first pattern that matches.
    fleet: many systems answer under one model name, so ``system`` changes between answers;
    elsewhere a change means another server or set-up. system: the field of an answer that names
    the answering system, or several: the host, and then what tells one set-up of it from another.
    """

    refused: list[RefusedModels] = []
    work: list[str] = []
    untried: list[str] = []
    ends: list[ModelEnd] = []
    fleet: bool = False
    system: str | Annotated[list[str], Field(min_length=1)] = "system_fingerprint"

    @property
    def systems(self) -> list[str]:
        """The fields in ``system``."""
        return [self.system] if isinstance(self.system, str) else self.system


class Evidence(ProfileRow):
    """The source of a row. ``grade``: S source or official specification, R recorded traffic, L
    measured on a live server, D vendor documentation, 3 third-party report; several joined by
    commas. ``seen``: the exact observation, where the row does not say it.
    """

    grade: Annotated[str, Field(pattern=r"^[SRLD3](, [SRLD3])*$")]
    date: date
    source: Annotated[str, Field(min_length=1)]
    seen: str = ""
