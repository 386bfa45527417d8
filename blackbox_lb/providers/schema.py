"""The rows of a provider profile, each a capability that differs between inference APIs.

Docstrings give the meaning of each row and of its values.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, Field, model_validator

from blackbox_lb.literals import DecisionShape, Endpoint
from blackbox_lb.safety.printable import printable
from blackbox_lb.safety.secrets import SECRET_WORD, redacted

Nats = Annotated[float, Field(allow_inf_nan=False)]
Dollars = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Json = str | int | Annotated[float, Field(allow_inf_nan=False)] | bool
"""A value of a request; JSON has no word for infinities, which TOML has."""
Route = Annotated[str, Field(pattern="^/")]
TokenId = Annotated[str, Field(pattern=r"^((field|string) \S+|bytes|text|latin-1)$")]
HeaderName = Annotated[str, Field(pattern=r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$")]
"""A token of RFC 9110, section 5.6.2."""


T = TypeVar("T", bound=Mapping[str, object])


def no_secrets(table: T) -> T:
    """The table, which holds no key.

    Raises:
        ValueError: a name or a value in it looks like that of a key. The message leaves the value
            out.
    """
    for name, value in table.items():
        if isinstance(value, Mapping):
            no_secrets(value)
        if not isinstance(value, str) or not value:
            continue
        if SECRET_WORD.search(name) or redacted(value) != value:
            raise ValueError(
                f"{name} holds what looks like a key, and a profile is no place for one; put it"
                " into an environment variable and name that in connection.query_env or"
                f' connection.headers_env, as in query_env = {{ "{name}" = "MY_KEY" }}'
            )
    return table


def visible(name: str) -> str:
    """The name, which consists of printable characters.

    Raises:
        ValueError: a character of it cannot be printed.
    """
    if not name.isprintable():
        raise ValueError(
            f"{printable(name)} holds a character that cannot be printed; write a name without it"
        )
    return name


class ProfileRow(BaseModel, frozen=True, extra="forbid", strict=True):
    """A table of a profile: frozen, strictly typed, and closed to misspelt keys."""


class Connection(ProfileRow):
    """Address and credentials of the API. Keys come from the environment, never from a file.

    base_url: the address.
    base_url_env: a variable with an address that is preferred to ``base_url``.
    base_path: appended to an address that lacks it.
    api_key_env: the variable with the key.
    api_key_required: nothing is sent without a key or a token, so ``api_key_env`` or ``token_env``
        must name its variable.
    api_key_url: the page where a user gets a key.
    api_key_header: the header with the key; ``Authorization`` carries it as a bearer token.
    token_env: a variable with a bearer token (Microsoft Entra), used where there is no key.
    headers_env: further header -> the variable with its value.
    query: parameters of every request.
    query_env: parameter -> the variable that replaces its value.
    lists_models: GET /models lists the names that ``model`` takes. Elsewhere it only shows that
        the key is good.
    concurrency: first number of requests in flight; ``AdaptiveConcurrency`` finds a better one.
        For an embedded engine it is the largest number.
    embedded: the engine runs in this process.
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
        names = [self.api_key_env, self.token_env]
        names += [*self.headers_env.values(), *self.query_env.values()]
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
    """One endpoint.

    path: ``{model}`` in it is the name of the model (deployment).
    dialect: the shape of the answer's logprobs.
    ask_logprobs: flag = ``logprobs: true, top_logprobs: k``; count = ``logprobs: k``; include = the
        Responses API's ``include`` and ``top_logprobs``; no = the endpoint gives none.
    sampled_in_list: a sampled token that is not among the k most likely is not listed (no), listed
        beside them (added), or listed in place of the last (replaces the last). This decides which
        listed alternatives are sure to be the most likely ones.
    top_logprobs: most alternatives, where not ``logprobs.limit``.
    id: the place of token ids, where not ``tokens.id``.
    sampled_ids: dotted field of a choice that lists the sampled ids.
    bias: whether it takes ``logit_bias``.
    stop: whether it takes stop texts.
    max_tokens: the field that limits the completion.
    """

    path: Route
    dialect: Literal["content", "legacy", "meta", "responses"]
    ask_logprobs: Literal["flag", "count", "include", "no"]
    sampled_in_list: Literal["no", "added", "replaces the last"]
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    id: TokenId | None = None
    sampled_ids: str | None = None
    bias: bool = True
    stop: bool = True
    max_tokens: str = "max_tokens"


class DecisionRules(ProfileRow):
    """The endpoint that decides between labels: it gives a probability for each and takes no bias.

    shape: the shape of its requests (see ``questions.shapes``).
    path: under the base URL.
    decimals: of the probabilities that it prints; None for all.
    options, levels, questions: most options of a choice, levels of a score, and questions of a
        request; None for no known limit.
    models: patterns of the models that it answers for; none where every model does.
    input_price: US dollars for a million tokens of input; None for not known.
    """

    shape: DecisionShape
    path: Route
    decimals: Annotated[int, Field(ge=1)] | None = None
    options: Annotated[int, Field(ge=2)] | None = None
    levels: Annotated[int, Field(ge=2)] | None = None
    questions: Annotated[int, Field(ge=1)] | None = None
    models: list[str] = []
    input_price: Dollars | None = None


class LogprobRules(ProfileRow):
    """The meaning of returned logprobs.

    limit: most alternatives a token; None for no known limit.
    limit_remedy: the remedy where more are asked for.
    limit_is_setting: a server may be started with another limit, so more may be asked for.
    meaning: before bias = of the unbiased model at temperature 1, whatever was sent; after bias =
        of the distribution after bias and temperature, so that of the model only without a bias at
        temperature 1; unknown = treated as after bias.
    propensity: the field with the sampled token's logprob under the policy that sampled it.
    censored: the number in place of a sampled token's logprob that is withheld.
    end_token_listed: whether a sampled end token is listed; None if not known.
    stop_text_listed: whether the tokens of the stop text that ended a completion are listed, or
        only counted; None if not known.
    reasoning_listed: whether the tokens of a model's thinking, their marks included, are listed
        before those of its text. False means that an answer with thoughts is never whole. None
        means not known; such an answer is whole where as many tokens are listed as counted.
    drops_fragments: a token that is a part of a character is left out of the lists, so that an
        answer of that token alone has no list at all; ``rollouts.fragments`` asks for them.
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
    """How tokens are identified.

    id: ``field NAME`` = an id in that field of each entry; ``string PREFIX`` = an id behind the
        prefix in the token string; ``bytes`` = no id, but bytes that identify the token under a
        vocabulary; ``text`` = no id, and only the printed text.
    bytes_exact: ``bytes`` are those of the token, not those of its printed text.
    """

    id: TokenId
    bytes_exact: bool


class TokenizeRoute(ProfileRow):
    """The server's route from a text to token ids.

    POST ``path`` under the server's root, with the text in field ``text``, answers
    ``{"tokens": [ids]}``.
    """

    path: Route
    text: str
    fields: dict[str, Json] = {}


class DetokenizeRoute(ProfileRow):
    """The server's route from token ids to a text.

    POST ``path`` under the server's root, with ``{"tokens": [ids]}``, answers the text in field
    ``answer``.
    """

    path: Route
    answer: str
    fields: dict[str, Json] = {}


class TokenizerRules(ProfileRow):
    """The source of the tokenizer.

    source: server = the routes of the server; openai names = the encoding that tiktoken knows for
        the model's name; model name = none, so that a bias is tied to the model's name unless
        ``tokenizer`` names a vocabulary.
    vocabulary_size: field of the first entry of GET /models with the number of tokens.
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
    """The server's route from messages to the prompt that the chat template makes of them.

    POST ``path`` under the server's root, with ``{"messages": [...]}``, answers the prompt in field
    ``answer``, as token ids or as a text. A text is split by the rules in ``ReferenceRules.text``.
    """

    path: Route
    answer: str
    fields: dict[str, Json] = {}


class ReferenceRules(ProfileRow):
    """How to ask for what follows a prompt and a part of its completion, as a prompt of token ids.

    endpoint: the endpoint that takes such a prompt.
    chat: the route that applies the chat template.
    text: fields for the route tokenizer.tokenize that make it split a text like a prompt.
    """

    endpoint: Endpoint
    chat: ChatRoute
    text: dict[str, Json]


class AnswerRules(ProfileRow):
    """How to ask for the listed alternatives along a given answer; False for not known.

    prompt_logprobs: the field of a request with token ids that asks for so many alternatives at
        each of them. The field of the same name in the choice holds null for the first id, then
        ``{id: {"logprob": nats}}``.
    continues: the fields that make the chat endpoint continue a trailing assistant message.
    repeats: an answer that is no stream then begins with that message.
    stop_reason: the field of a choice that holds the stop text that ended it.
    prompt_ids: the field of the answer, or of the choice, that lists the ids of the prompt.
    mixed_prompts: the prompt of the completions endpoint may be a list of texts and token ids.
    """

    prompt_logprobs: str | Literal[False] = False
    continues: dict[str, Json] | Literal[False] = False
    repeats: bool = False
    stop_reason: str | Literal[False] = False
    prompt_ids: str | Literal[False] = False
    mixed_prompts: bool = False


class BiasRefusal(ProfileRow):
    """A set-up of the server in which it takes no ``logit_bias`` at all.

    words: a part of the server's refusal, by which it is recognised, in any case of letters.
    why: the set-up.
    remedy: how to leave it.
    ignored_before: whether earlier versions of the server ignored the bias silently in this set-up.
    """

    words: Annotated[str, Field(min_length=1)]
    why: str
    remedy: str
    ignored_before: bool = False


class BiasRules(ProfileRow):
    """The limits on ``logit_bias``.

    format: object = ``{id: nats}``; pairs = ``[[id, nats]]``.
    low, high: smallest and largest bias, in nats.
    fractions: False where only integers are taken.
    entries: most tokens; None for no limit.
    highest_id: ids above it are refused. "end of text" is the id of ``<|endoftext|>``; None allows
        the whole vocabulary.
    refused: set-ups in which no bias is taken.
    """

    format: Literal["object", "pairs"]
    low: Nats
    high: Nats
    fractions: bool
    entries: Annotated[int, Field(ge=1)] | None = None
    highest_id: Annotated[int, Field(ge=0)] | Literal["end of text"] | None = None
    refused: list[BiasRefusal] = []

    def refusal_of(self, message: str) -> BiasRefusal | None:
        """The set-up in ``refused`` that a server's message is about; None for no such set-up."""
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
    """What a request for completions may ask for.

    n: most completions a request.
    shares_prompt: they pay for the prompt once, so several are asked for at a time.
    seed: whether a request takes a seed.
    stops: most stop texts a request; None for no known limit.
    """

    n: Annotated[int, Field(ge=1)] = 1
    shares_prompt: bool = False
    seed: bool = True
    stops: Annotated[int, Field(ge=1)] | None = None


class BatchRules(ProfileRow):
    """Requests in files of JSON Lines, answered later.

    urls: endpoint -> the ``url`` of each line.
    command: the program that answers a file on the user's machine, with {input}, {output} and
        {model}. None where files go to the provider, by ``/files`` and ``/batches`` beside its
        endpoints.
    requests: most lines of a file; None for no limit.
    size: most bytes of a file; None for no limit.
    price: the cost of a token in a batch, as a share of its price in a live request.
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
    """Models that are refused before anything is sent, and facts about others.

    refused: models that cannot be used.
    work: some models that can, for messages.
    untried: patterns of models about which sources contradict each other; they count as
        ``unknown = ["bias"]``.
    ends: the days on which models are switched off; the first pattern that matches counts.
    fleet: many systems answer under one model name, so ``system`` changes between answers.
        Elsewhere a change means another server or set-up.
    system: the field of an answer that names the answering system. Of several, the first names the
        host and the others the set-up of it.
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
        if isinstance(self.system, str):
            return [self.system]
        return self.system


class Evidence(ProfileRow):
    """The source of a row.

    grade: S source code or official specification, R recorded traffic, L measured on a live server,
        D vendor documentation, 3 third-party report; several joined by commas.
    date: the day on which the source was read or measured.
    source: its address or name.
    seen: the exact observation, where the row does not say it.
    """

    grade: Annotated[str, Field(pattern=r"^[SRLD3](, [SRLD3])*$")]
    date: date
    source: Annotated[str, Field(min_length=1)]
    seen: str = ""
