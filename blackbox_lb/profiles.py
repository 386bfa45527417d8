"""Provider profiles: what a provider is, can do and limits, read from TOML. A capability is a row here, never a branch in code."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from fnmatch import fnmatchcase
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from blackbox_lb.errors import ModelUnsuitable, ProfileError
from blackbox_lb.rules import (
    BiasRules,
    Connection,
    EndpointRules,
    Evidence,
    Json,
    LogprobRules,
    ModelRules,
    Row,
    SamplingRules,
    TokenizerRules,
    TokenRules,
)
from blackbox_lb.types import Endpoint

__all__ = ["Profile", "load_profile", "profile_names"]


class Profile(Row):
    """One provider. ``neutral``: the request fields that make sampling exactly softmax(logits + bias) at temperature 1.

    ``request``: fields sent with every request. ``unknown``: dotted rows whose value is a guess until ``blb doctor`` has seen it.
    ``evidence``: dotted row or table -> how it is known.
    """

    name: str
    title: str
    homepage: str
    connection: Connection
    endpoints: dict[Endpoint, EndpointRules]
    logprobs: LogprobRules
    tokens: TokenRules
    tokenizer: TokenizerRules
    bias: BiasRules
    sampling: SamplingRules = SamplingRules()
    models: ModelRules = ModelRules()
    neutral: dict[str, Json]
    request: dict[str, Json] = Field(default_factory=dict)
    unknown: list[str] = Field(default_factory=list)
    evidence: dict[str, Evidence] = Field(default_factory=dict)

    def endpoint(self, name: Endpoint) -> EndpointRules:
        """The rules of an endpoint. ProfileError, listing those there are, where the provider has no such endpoint."""
        if name not in self.endpoints:
            raise ProfileError(f"{self.name} has no {name} endpoint; its profile lists {', '.join(self.endpoints)}")
        return self.endpoints[name]

    def most_logprobs(self, endpoint: Endpoint) -> int | None:
        """Most alternatives a token that the endpoint lists; None for no known limit."""
        own = self.endpoint(endpoint).top_logprobs
        return self.logprobs.limit if own is None else own

    def check_model(self, model: str) -> None:
        """Raise ModelUnsuitable for a model that is known to take no bias or to return no logprobs."""
        base = model.split(":")[1] if model.startswith("ft:") and model.count(":") > 1 else model
        for refused in self.models.refused:
            if fnmatchcase(base, refused.pattern):
                raise self.unsuitable(model, refused.why)

    def unsuitable(self, model: str, why: str) -> ModelUnsuitable:
        """The error that says why ``model`` cannot be used here, and which models can."""
        work = f"; models that work: {', '.join(self.models.work)}" if self.models.work else ""
        return ModelUnsuitable(f"{model} cannot be adapted through {self.name}: {why.rstrip('.')}{work}")

    def is_known(self, row: str) -> bool:
        """Whether a dotted row, or the table that it stands in, is more than a guess."""
        return not any(row == guess or row.startswith(f"{guess}.") for guess in self.unknown)

    def require(self, rows: Iterable[str], purpose: str) -> None:
        """Raise ProfileError where one of ``rows`` is not known, naming the command that would find out."""
        guesses = [row for row in rows if not self.is_known(row)]
        if guesses:
            raise ProfileError(
                f"{purpose} needs to know {', '.join(guesses)} of {self.name}, which nobody has proven; "
                f"blb doctor --provider {self.name} --model NAME --save mine.toml finds out, then give --provider mine.toml"
            )


def _folder() -> Traversable:
    """The packaged profiles; in a checkout, the folder at the root."""
    packaged = resources.files("blackbox_lb") / "providers"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "providers"


def profile_names() -> list[str]:
    """Names of the profiles that come with the package, sorted."""
    return sorted(entry.name.removesuffix(".toml") for entry in _folder().iterdir() if entry.name.endswith(".toml"))


def load_profile(name: str) -> Profile:
    """The profile called ``name``, or a user's own when ``name`` is a path to a TOML file.

    A profile may say ``extends = "NAME"``: it then only holds the rows in which it differs from that one.

    Raises:
        ProfileError: no such profile, unreadable file, or a row that is missing, unknown or of the wrong kind.
    """
    rows = _rows(name)
    try:
        return Profile.model_validate(rows)
    except ValidationError as error:
        first = error.errors()[0]
        row = ".".join(str(part) for part in first["loc"])
        raise ProfileError(
            f"provider profile {name}, row {row}: {first['msg']} (got {first['input']!r:.80})"
        ) from error


def _rows(name: str, seen: tuple[str, ...] = ()) -> dict[str, Any]:
    if name in seen:
        raise ProfileError(f"provider profile {name} extends itself: {' -> '.join((*seen, name))}")
    try:
        rows = tomllib.loads(_read(name))
    except tomllib.TOMLDecodeError as error:
        raise ProfileError(f"provider profile {name} is not valid TOML: {error}") from error
    base = rows.pop("extends", None)
    return rows if base is None else _merged(_rows(str(base), (*seen, name)), rows)


def _merged(base: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """``own`` laid over ``base``, table by table; a piece of evidence is replaced whole."""
    both = {key: _merged(base[key], own[key]) for key in own if isinstance(own[key], dict) and key in base}
    if "evidence" in both:
        both["evidence"] = {**base["evidence"], **own["evidence"]}
    return {**base, **own, **both}


def _read(name: str) -> str:
    if name.endswith(".toml"):
        try:
            return Path(name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"cannot read the provider profile {name}: {error}") from error
    if name not in profile_names():
        known = ", ".join(profile_names())
        raise ProfileError(
            f"unknown provider {name!r}; known: {known}; or give the path of your own profile, ending in .toml"
        )
    return (_folder() / f"{name}.toml").read_text(encoding="utf-8")
