"""Provider profiles: name, capabilities and limits of a provider, read from TOML. A capability is a
row, never a branch in code.
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
from blackbox_lb.providers.names import is_profile_file, profile_names, profiles_folder
from blackbox_lb.providers.schema import (
    AnswerRules,
    BatchRules,
    BiasRules,
    Connection,
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
from blackbox_lb.safety.printable import did_you_mean, with_remedy
from blackbox_lb.safety.secrets import watch
from blackbox_lb.safety.untrusted import MAX_SETTINGS, parse_toml, read_bounded
from blackbox_lb.types import Endpoint

ABOUT = frozenset({"name", "title", "homepage", "unknown", "evidence"})
"""Keys of a profile that are no rows: its name, its base, its evidence."""
LONGEST_CHAIN = 50
"""Most profiles of which each extends the next."""
OF_A_HOST = frozenset(
    {
        *(
            "models",
            "batch",
            "connection.base_url_env",
            "connection.api_key_env",
            "connection.api_key_url",
        ),
        *(
            "connection.token_env",
            "connection.headers_env",
            "connection.query_env",
            "connection.rate_limit_headers",
        ),
    }
)
"""Rows and tables about one host: its keys, its headers, its models, its batches. Another address
does not inherit them.
"""


class Profile(ProfileRow):
    """One provider.

    neutral: request fields that make sampling exactly softmax(logits + bias) at temperature 1.
    request: fields of every request. reference: None where whole distributions are not available.
    batch: None where requests cannot be sent in files. unknown: dotted rows or tables whose values
    are guesses until ``blb doctor`` has measured them. evidence: dotted row or table -> its source.
    """

    name: Annotated[str, AfterValidator(visible)]
    title: str
    homepage: str
    connection: Connection
    endpoints: Annotated[dict[Endpoint, EndpointRules], Field(min_length=1)]
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
    def _guesses(self) -> Profile:
        rows = set(_dotted(self.model_dump(exclude=set(ABOUT))))
        for guess in self.unknown:
            if guess not in rows:
                raise ValueError(
                    f"row unknown names {guess!r}, which is no row or table of a profile"
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
        """The rules of an endpoint. Raises ProfileError, with a list of all endpoints, where the
        provider lacks this one.
        """
        if name not in self.endpoints:
            raise ProfileError(
                f"{self.name} has no {name} endpoint; its profile lists {', '.join(self.endpoints)}"
            )
        return self.endpoints[name]

    def most_logprobs(self, endpoint: Endpoint) -> int | None:
        """Most alternatives a token that the endpoint lists; None for no known limit."""
        own = self.endpoint(endpoint).top_logprobs
        return self.logprobs.limit if own is None else own

    def follows_ids(self, vocabulary: object) -> bool:
        """Whether the lists after a prompt of token ids can be read: they tell ids themselves, or a
        ``vocabulary`` does.
        """
        if self.reference is None:
            return False
        kind = self.endpoint(self.reference.endpoint).id or self.tokens.id
        return vocabulary is not None or kind.startswith(("field ", "string "))

    def check_model(self, model: str | None) -> None:
        """Raise ModelUnsuitable for a model that is known to take no bias or to return no logprobs.

        None means that no model was chosen: a ProfileError where the provider does not list its
        models.
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
        return model is None or not any(
            fnmatchcase(_base_model(model), pattern) for pattern in self.models.untried
        )

    def end_of(self, model: str) -> ModelEnd | None:
        """The day on which ``model``, or the one that it was fine-tuned from, is switched off; None
        where none is known.
        """
        for end in self.models.ends:
            if fnmatchcase(_base_model(model), end.pattern):
                return end
        return None

    @property
    def rows_of_its_host(self) -> dict[str, Any]:
        """The rows of ``OF_A_HOST`` but ``base_url_env``, for a profile of this host at another
        address.
        """
        connection = {row.partition(".")[2] for row in OF_A_HOST - {"connection.base_url_env"}}
        return self.model_dump(
            exclude_defaults=True,
            include={"connection": connection, "models": True, "batch": True},
        )

    def unsuitable(self, model: str, why: str) -> ModelUnsuitable:
        """The error for a ``model`` that cannot be used here: why, and which models can."""
        said = f"{model} cannot be adapted through {self.name}: {why.rstrip('.')}"
        return ModelUnsuitable(
            with_remedy(said, f"models that work: {', '.join(self.models.work)}")
            if self.models.work
            else said
        )

    def is_known(self, row: str) -> bool:
        """Whether a dotted row or table is more than a guess; the tables around it and the rows in
        it count too.
        """
        return not self._guesses_about(row)

    def _guesses_about(self, row: str) -> list[str]:
        return [
            each
            for each in self.unknown
            if f"{row}.".startswith(f"{each}.") or each.startswith(f"{row}.")
        ]

    def require(self, rows: Iterable[str], purpose: str, model: str | None = None) -> None:
        """Raise ProfileError where one of ``rows``, or a row of a table among them, is not known;
        name the measuring command.
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
    """Load the packaged profile ``name``, or a user's own from the TOML file of that path.

    With ``extends = "NAME"`` a profile only holds its differences from that one. With another
    address than that one's, what belongs to its host is not inherited: ``OF_A_HOST``.

    Raises ProfileError: no such profile, unreadable file, or a row that is missing, unknown or of
    the wrong kind.
    """
    rows = _rows(name)
    try:
        profile = Profile.model_validate(rows)
    except ValidationError as error:
        raise ProfileError(
            f"provider profile {name}, {_complaint(error.errors()[0], rows)}; correct it (blb"
            " providers vllm shows all rows)"
        ) from error
    watch(profile.connection.secret_variables)
    return profile


def _base_model(model: str) -> str:
    """The model under a fine-tuned one's name."""
    return model.split(":")[1] if model.startswith("ft:") and model.count(":") > 1 else model


def _complaint(error: ErrorDetails, rows: Any) -> str:
    """One validation error as part of a sentence, with the row's name in the file and the kinds
    that the row may have.
    """
    path = []
    for part in error["loc"]:
        try:
            rows = rows[part]
        except (KeyError, IndexError, TypeError):
            if error["type"] != "missing":
                break
            rows = None
        path.append(str(part))
    row = f"row {'.'.join(path)}: " if path else ""
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
        model = model if field is None else _row_type(field.annotation) or model
    return model.model_fields


def _row_type(annotation: Any) -> type[BaseModel] | None:
    """The class of rows in an annotation such as ``dict[Endpoint, EndpointRules]``."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_row_type, get_args(annotation))), None)


def _dotted(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every row and table, dotted."""
    for key, value in table.items():
        yield f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _dotted(value, f"{prefix}{key}.")


def _rows(name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    if len(seen) > LONGEST_CHAIN:
        raise ProfileError(
            f"provider profile {seen[0]} extends more than {LONGEST_CHAIN} others, one behind the"
            " other; let it extend a packaged one"
        )
    if name in seen:
        raise ProfileError(
            f"provider profile {name} extends itself: {' -> '.join((*seen, name))}; correct extends"
        )
    content = _read(name)
    try:
        rows = parse_toml(content)
    except ValueError as error:
        raise ProfileError(
            f"provider profile {name} is not valid TOML: {error}; correct the file"
        ) from error
    base = rows.pop("extends", None)
    return rows if base is None else _extended(_rows(str(base), (*seen, name)), rows, name)


def _extended(base: dict[str, Any], own: dict[str, Any], name: str) -> dict[str, Any]:
    """``own`` laid over ``base``; evidence is replaced as a whole.

    With the address of another host in ``own``, the rows of ``OF_A_HOST`` are not inherited, nor is
    the name, by which prices are found. An engine on this machine is no host: its rows are about a
    server of the user's own, wherever that runs.
    """
    address = own.get("connection")
    if isinstance(address, dict) and "base_url" in address:
        there = base.get("connection", {})
        theirs = str(there.get("base_url") or "")
        if (
            theirs
            and address["base_url"] != theirs
            and not is_loopback(urlsplit(theirs).hostname or "")
        ):
            base = {key: value for key, value in base.items() if key not in OF_A_HOST}
            there = {
                key: value for key, value in there.items() if f"connection.{key}" not in OF_A_HOST
            }
            known = base.get("evidence", {}).items()
            base["evidence"] = {
                row: seen for row, seen in known if not OF_A_HOST & {row, row.partition(".")[0]}
            }
            base["unknown"] = [
                row for row in base.get("unknown", []) if row.partition(".")[0] not in OF_A_HOST
            ]
            own = {"name": Path(name).stem, **own}
        base["connection"] = {key: value for key, value in there.items() if key != "base_url_env"}
    rows = _merged(base, own)
    if _are_tables(base.get("evidence"), own.get("evidence")):
        rows["evidence"] = {**base["evidence"], **own["evidence"]}
    return rows


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """``own`` laid over ``base``, table by table; any other value is replaced."""
    both = {
        key: _merged(base[key], own[key]) for key in own if _are_tables(base.get(key), own[key])
    }
    return {**base, **own, **both}


def _are_tables(*values: Any) -> bool:
    return all(isinstance(value, dict) for value in values)


def _read(name: str) -> bytes:
    if is_profile_file(name):
        try:
            return read_bounded(Path(name), MAX_SETTINGS)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ProfileError(
                f"cannot read the provider profile {name}: {reason}; give another ``provider``"
            ) from error
    if name not in profile_names():
        known = ", ".join(profile_names())
        raise ProfileError(
            f"unknown provider {name!r}{did_you_mean(name, profile_names())}; known: {known}; or"
            " give the path of your own profile, ending in .toml"
        )
    return (profiles_folder() / f"{name}.toml").read_bytes()
