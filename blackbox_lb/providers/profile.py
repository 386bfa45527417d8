"""Provider profiles: the name, capabilities and limits of a provider, read from TOML.

A capability is a row of a profile, never a branch in code. ``schema`` has the rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator
from pydantic_core import ErrorDetails

from blackbox_lb.errors import ModelUnsuitable, ProfileError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.packaged import is_profile_file, profile_names, profiles_folder
from blackbox_lb.providers.schema import (
    AnswerRules,
    BatchRules,
    BiasRules,
    Connection,
    DecisionRules,
    EndpointRules,
    Evidence,
    Json,
    LogprobRules,
    ModelEnd,
    ModelRules,
    ProfileRow,
    ReferenceRules,
    SamplingRules,
    TokenizerRules,
    TokenRules,
    no_secrets,
    visible,
)
from blackbox_lb.safety.network import is_loopback
from blackbox_lb.safety.printable import did_you_mean, near_or_listed, with_remedy
from blackbox_lb.safety.secrets import watch
from blackbox_lb.safety.untrusted import MAX_SETTINGS, parse_toml, read_bounded

ABOUT = frozenset({"name", "title", "homepage", "unknown", "evidence"})
"""Keys of a profile that are no rows."""
LONGEST_CHAIN = 50
"""Most profiles of which each extends the next."""
OF_A_HOST = frozenset(
    {
        "models",
        "batch",
        "connection.base_url_env",
        "connection.api_key_env",
        "connection.api_key_url",
        "connection.token_env",
        "connection.headers_env",
        "connection.query_env",
        "connection.rate_limit_headers",
    }
)
"""Rows and tables about one host. A profile with another address does not inherit them."""


class Profile(ProfileRow):
    """One provider.

    decisions: None where no endpoint decides between labels.
    reference: None where distributions over the whole vocabulary are not available.
    batch: None where requests cannot be sent in files.
    neutral: request fields that make sampling exactly softmax(logits + bias) at temperature 1.
    request: fields of every request.
    unknown: dotted rows or tables whose values are guesses until ``blb doctor`` measures them.
    evidence: dotted row or table -> its source.
    """

    name: Annotated[str, AfterValidator(visible)]
    title: str
    homepage: str
    connection: Connection
    endpoints: dict[Endpoint, EndpointRules] = Field(default_factory=dict)
    decisions: DecisionRules | None = None
    logprobs: LogprobRules
    tokens: TokenRules
    tokenizer: TokenizerRules
    bias: BiasRules
    sampling: SamplingRules = SamplingRules()
    models: ModelRules = ModelRules()
    reference: ReferenceRules | None = None
    answers: AnswerRules = AnswerRules()
    batch: BatchRules | None = None
    neutral: dict[str, Json]
    request: Annotated[
        dict[str, Json | list[str] | dict[str, Json | list[str]]], AfterValidator(no_secrets)
    ] = Field(default_factory=dict)
    unknown: list[str] = Field(default_factory=list)
    evidence: dict[str, Evidence] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_rows(self) -> Profile:
        rows = set(_dotted(self.model_dump(exclude=set(ABOUT))))
        for guess in self.unknown:
            if guess not in rows:
                raise ValueError(
                    f"row unknown names {guess!r}, which is no row or table of a profile"
                )
        if not self.endpoints and self.decisions is None:
            raise ValueError("there is no endpoint; give one under [endpoints] or [decisions]")
        if "decisions" in self.endpoints:
            raise ValueError(
                "the endpoint of decisions has rows of its own; move it to the table [decisions]"
            )
        if self.answers.prompt_logprobs is not False and self.reference is None:
            raise ValueError(
                "row answers.prompt_logprobs needs prompts of token ids; give the rows under"
                " [reference], too"
            )
        if self.answers.continues is not False and "chat" not in self.endpoints:
            raise ValueError(
                "row answers.continues is about the chat endpoint, and there is none; leave it out"
            )
        return self

    def endpoint(self, name: Endpoint) -> EndpointRules:
        """The rules of an endpoint.

        Raises:
            ProfileError: the provider lacks it. The message lists its endpoints.
        """
        if name == "decisions" and self.decisions is not None:
            return EndpointRules(
                path=self.decisions.path,
                dialect="content",
                ask_logprobs="no",
                sampled_in_list="no",
                bias=False,
                stop=False,
            )
        if name not in self.endpoints:
            raise ProfileError(
                f"{self.name} has no {name} endpoint; its profile lists"
                f" {', '.join(self.endpoint_names)}"
            )
        return self.endpoints[name]

    @property
    def endpoint_names(self) -> tuple[Endpoint, ...]:
        """All endpoints, the first one first; that of decisions is the last."""
        if self.decisions is None:
            return tuple(self.endpoints)
        return (*self.endpoints, "decisions")

    @property
    def first_endpoint(self) -> Endpoint:
        """The endpoint where none is named."""
        return self.endpoint_names[0]

    def decides(self, model: str | None) -> bool:
        """Whether questions go to the endpoint of decisions unless another one is named: it is the
        only one, or the one that ``model`` has.
        """
        if self.decisions is None:
            return False
        if not self.endpoints:
            return True
        patterns = self.decisions.models
        return model is not None and any(fnmatchcase(model, pattern) for pattern in patterns)

    def most_logprobs(self, endpoint: Endpoint) -> int | None:
        """Most alternatives a token that the endpoint lists; None for no known limit."""
        limit = self.endpoint(endpoint).top_logprobs
        if limit is None:
            return self.logprobs.limit
        return limit

    def biased_endpoint(self, endpoint: Endpoint) -> Endpoint:
        """The endpoint for a bias: ``endpoint``, else the first that takes one."""
        names = [endpoint, *self.endpoints]
        return next((name for name in names if self.endpoint(name).bias), endpoint)

    def tells_base_logprobs(self, endpoint: Endpoint) -> bool:
        """Whether completions that a session at ``endpoint`` samples with a bias carry the
        unbiased model's logprobs.
        """
        same = self.biased_endpoint(endpoint) == endpoint
        return same and self.logprobs.meaning == "before bias"

    def token_ids(self, rules: EndpointRules) -> tuple[str, str]:
        """Where the answers of an endpoint have their token ids: the kind of place (see
        ``TokenRules.id``), and its field or prefix, "" where the kind has none.
        """
        kind, _, name = (rules.id or self.tokens.id).partition(" ")
        return kind, name

    def gives_ids(self, rules: EndpointRules) -> bool:
        """Whether the answers of an endpoint have ids themselves, not only bytes or texts."""
        return self.token_ids(rules)[0] in ("field", "string")

    def follows_ids(self, vocabulary: object) -> bool:
        """Whether the lists after a prompt of token ids can be read.

        Either the lists have token ids, or ``vocabulary`` gives those of their bytes.
        """
        if self.reference is None:
            return False
        return vocabulary is not None or self.gives_ids(self.endpoint(self.reference.endpoint))

    def check_model(self, model: str | None) -> None:
        """Raise ModelUnsuitable for a model that takes no bias or returns no logprobs.

        None stands for no choice, a ProfileError where the provider does not list its models.
        """
        if model is None:
            if not self.connection.lists_models:
                raise ProfileError(
                    f"{self.name} does not list what it serves; name the model or deployment with"
                    " ``model``"
                )
            return
        for refused in self.models.refused:
            if fnmatchcase(_base_model(model), refused.pattern):
                raise self.unsuitable(model, refused.why)

    def tried(self, model: str | None) -> bool:
        """Whether sources agree that ``model`` takes a bias; None is no model in particular."""
        if model is None:
            return True
        base = _base_model(model)
        return not any(fnmatchcase(base, pattern) for pattern in self.models.untried)

    def end_of(self, model: str) -> ModelEnd | None:
        """The end of ``model``, or of the one that it was fine-tuned from; None if not known."""
        for end in self.models.ends:
            if fnmatchcase(_base_model(model), end.pattern):
                return end
        return None

    @property
    def rows_of_its_host(self) -> dict[str, Any]:
        """The rows of ``OF_A_HOST`` for a profile of this host at another address.

        ``base_url_env`` is not among them.
        """
        connection = {row.partition(".")[2] for row in OF_A_HOST - {"connection.base_url_env"}}
        return self.model_dump(
            exclude_defaults=True,
            include={"connection": connection, "models": True, "batch": True},
        )

    def unsuitable(self, model: str, why: str) -> ModelUnsuitable:
        """The error for a ``model`` that cannot be used here: why not, and which models can."""
        message = f"{model} cannot be adapted through {self.name}: {why.rstrip('.')}"
        if self.models.work:
            message = with_remedy(message, f"models that work: {', '.join(self.models.work)}")
        return ModelUnsuitable(message)

    def is_known(self, row: str) -> bool:
        """Whether a dotted row or table is more than a guess.

        A guess about a table around it, or about a row in it, is one about it too.
        """
        return not self._guesses_about(row)

    def _guesses_about(self, row: str) -> list[str]:
        return [
            guess
            for guess in self.unknown
            if f"{row}.".startswith(f"{guess}.") or guess.startswith(f"{row}.")
        ]

    def require(self, rows: Iterable[str], purpose: str, model: str | None = None) -> None:
        """Raise ProfileError where one of ``rows``, dotted rows or tables, is a guess.

        The message has the command that measures it.
        """
        rows = list(rows)
        guesses = list(dict.fromkeys(guess for row in rows for guess in self._guesses_about(row)))
        if "bias" in rows and "bias" not in guesses and not self.tried(model):
            guesses.append(f"bias with {model}")
        if guesses:
            raise ProfileError(
                f"{purpose} needs to know {', '.join(guesses)} of {self.name}, which nobody has"
                f" proven; blb doctor ``provider={self.name}`` ``model={model or 'NAME'}`` ``save``"
                " mine.toml finds out, then give ``provider=mine.toml``"
            )


def load_profile(name: str) -> Profile:
    """Load the packaged profile ``name``, or a user's from the TOML file of that path.

    A profile with ``extends = "NAME"`` holds only its differences from that profile. If their
    addresses differ, the rows of ``OF_A_HOST`` are not inherited.

    Raises:
        ProfileError: no such profile, unreadable file, or a row that is missing, unknown or of the
            wrong kind.
    """
    if not isinstance(name, str):
        raise ProfileError(f"``name`` is a {type(name).__name__}; give the name of a provider")
    rows = _rows(name)
    try:
        profile = Profile.model_validate(rows)
    except ValidationError as error:
        raise ProfileError(
            f"provider profile {name}, {_complaint(error.errors()[0], rows)}; correct it (blb"
            " providers vllm ``json`` shows all rows)"
        ) from error
    watch(profile.connection.secret_variables)
    return profile


def _base_model(model: str) -> str:
    """The model under a fine-tuned one's name."""
    if model.startswith("ft:") and model.count(":") > 1:
        return model.split(":")[1]
    return model


def _complaint(error: ErrorDetails, rows: Any) -> str:
    """One validation error as part of a sentence, with the row's name in the file."""
    path = []
    for part in error["loc"]:
        try:
            rows = rows[part]
        except (KeyError, IndexError, TypeError):
            if error["type"] != "missing":
                break
            rows = None
        path.append(str(part))
    row = ""
    if path:
        row = f"row {'.'.join(path)}: "
    if error["type"] == "value_error":
        return f"{row}{error['ctx']['error']}"
    if error["type"] == "extra_forbidden":
        *table, name = error["loc"]
        return f"{row}there is no such row{did_you_mean(str(name), _rows_of(table))}"
    return f"{row}{error['msg']} (got {error['input']!r:.80})"


def _rows_of(path: Sequence[int | str]) -> Iterable[str]:
    """The names of the rows that a table of a profile may have, by its place in the profile."""
    model: type[BaseModel] = Profile
    for part in path:
        field = model.model_fields.get(str(part))
        if field is not None:
            model = _row_type(field.annotation) or model
    return model.model_fields


def _row_type(annotation: Any) -> type[BaseModel] | None:
    """The class of rows in an annotation such as ``dict[Endpoint, EndpointRules]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_row_type, get_args(annotation))), None)


def _dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """The dotted name of every row and table."""
    for key, value in table.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")


def _rows(name: str, chain: tuple[str, ...] = ()) -> dict[str, Any]:
    """The rows of a profile, laid over those of the profile that it extends.

    chain: the profiles that extend this one, the first one first.
    """
    if len(chain) > LONGEST_CHAIN:
        raise ProfileError(
            f"provider profile {chain[0]} extends more than {LONGEST_CHAIN} others, one behind the"
            " other; let it extend a packaged one"
        )
    if name in chain:
        raise ProfileError(
            f"provider profile {name} extends itself: {' -> '.join((*chain, name))}; correct"
            " extends"
        )
    content = read_profile(name)
    try:
        rows = parse_toml(content)
    except ValueError as error:
        raise ProfileError(
            f"provider profile {name} is not valid TOML: {error}; correct the file"
        ) from error
    base = rows.pop("extends", None)
    if base is None:
        return rows
    return _extended(_rows(str(base), (*chain, name)), rows, name)


def _extended(base: dict[str, Any], changes: dict[str, Any], name: str) -> dict[str, Any]:
    """``changes`` laid over ``base``; evidence of a row is replaced as a whole.

    With the address of another host in ``changes``, the rows of ``OF_A_HOST`` are not inherited,
    nor is the name, by which prices are found. An engine on this machine is no host, since its rows
    are about a server of the user's wherever that runs.
    """
    connection = changes.get("connection")
    if isinstance(connection, dict) and "base_url" in connection:
        base_url = str(base.get("connection", {}).get("base_url") or "")
        is_hosted = bool(base_url) and not is_loopback(urlsplit(base_url).hostname or "")
        if is_hosted and connection["base_url"] != base_url:
            base = _without_host(base)
            changes = {"name": Path(name).stem, **changes}
        base["connection"] = {
            key: value for key, value in base.get("connection", {}).items() if key != "base_url_env"
        }
    rows = _merged(base, changes)
    if _are_tables(base.get("evidence"), changes.get("evidence")):
        rows["evidence"] = {**base["evidence"], **changes["evidence"]}
    return rows


def _without_host(rows: dict[str, Any]) -> dict[str, Any]:
    """The rows without those of ``OF_A_HOST``, and without the evidence and guesses about these."""
    inherited = {key: value for key, value in rows.items() if key not in OF_A_HOST}
    inherited["connection"] = {
        key: value
        for key, value in rows.get("connection", {}).items()
        if f"connection.{key}" not in OF_A_HOST
    }
    inherited["evidence"] = {
        row: source
        for row, source in rows.get("evidence", {}).items()
        if row not in OF_A_HOST and row.partition(".")[0] not in OF_A_HOST
    }
    inherited["unknown"] = [
        row for row in rows.get("unknown", []) if row.partition(".")[0] not in OF_A_HOST
    ]
    return inherited


def _merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``changes`` laid over ``base``, table by table; any other value is replaced."""
    merged = {**base, **changes}
    for key in changes:
        if _are_tables(base.get(key), changes[key]):
            merged[key] = _merged(base[key], changes[key])
    return merged


def _are_tables(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)


def read_profile(name: str) -> bytes:
    """The file of a profile, without what it extends. Raises ProfileError: it cannot be read."""
    if is_profile_file(name):
        try:
            return read_bounded(Path(name), MAX_SETTINGS)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ProfileError(
                f"cannot read the provider profile {name}: {reason}; give another ``provider``"
            ) from error
    if name not in profile_names():
        raise ProfileError(
            f"unknown provider {name!r}{near_or_listed(name, profile_names(), 'known are')};"
            " a profile of your own is a path that ends in .toml"
        )
    return (profiles_folder() / f"{name}.toml").read_bytes()
