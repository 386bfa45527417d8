"""Provider profiles: what a provider is, can do and limits, read from TOML. A capability is a row here, never a branch in code."""

from __future__ import annotations

import tomllib
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blackbox_lb.errors import ProfileError

__all__ = [
    "BiasRules",
    "Connection",
    "EndpointRules",
    "LogprobRules",
    "Profile",
    "TokenRules",
    "load_profile",
    "profile_names",
]

Json = str | int | float | bool


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Connection(_Row):
    """Where the API is and how to get in. Keys come from the environment variable ``api_key_env``, never from a file.

    ``concurrency``: requests in flight unless told otherwise. ``embedded``: the engine is started in this process.
    """

    base_url: str | None = None
    base_url_env: str | None = None
    api_key_env: str | None = None
    api_key_required: bool = True
    concurrency: Annotated[int, Field(ge=1)] = 8
    embedded: bool = False


class EndpointRules(_Row):
    """One endpoint. ``dialect`` is the shape of the answer's logprobs; ``ask_logprobs`` how they are asked for.

    flag: ``logprobs: true, top_logprobs: k``; count: ``logprobs: k``. ``sampled_in_list``: what happens to a sampled token that is
    not among the k most likely: it is not listed (no), listed beside them (added), or in the place of the last of them (replaces
    the last). It tells which listed alternatives are sure to be the most likely ones.
    """

    path: str
    dialect: Literal["content", "legacy"]
    ask_logprobs: Literal["flag", "count"]
    sampled_in_list: Literal["no", "added", "replaces the last"]


class LogprobRules(_Row):
    """What returned logprobs are. ``limit``: most alternatives a token (None: no limit known).

    ``meaning``: before bias = of the unbiased model.
    """

    limit: Annotated[int, Field(ge=0)] | None = None
    limit_remedy: str = "ask for fewer with --top-logprobs"
    meaning: Literal["before bias"]
    end_token_listed: bool


class TokenRules(_Row):
    """Where token ids stand: ``field NAME`` of each entry, or ``string PREFIX`` before the number in the token string."""

    id: Annotated[str, Field(pattern=r"^(field|string) \S+$")]
    bytes_exact: bool


class TokenizeRoute(_Row):
    """POST ``path`` under the server's root with the text in field ``text`` answers ``{"tokens": [ids]}``."""

    path: str
    text: str
    fields: dict[str, Json] = {}


class DetokenizeRoute(_Row):
    """POST ``path`` under the server's root with ``{"tokens": [ids]}`` answers the text in field ``answer``."""

    path: str
    answer: str


class TokenizerRules(_Row):
    """How the server tells its tokenizer; ``vocabulary_size`` is a field of the first entry of GET /models."""

    tokenize: TokenizeRoute
    detokenize: DetokenizeRoute
    vocabulary_size: Annotated[str, Field(pattern=r"^models \S+$")] | None = None


class BiasRules(_Row):
    """What ``logit_bias`` accepts: nats in [low, high], at most ``entries`` tokens (None: no limit), fractions or integers only."""

    format: Literal["object", "pairs"]
    low: float
    high: float
    fractions: bool
    entries: Annotated[int, Field(ge=1)] | None = None


class Profile(_Row):
    """One provider. ``neutral``: the request fields that make sampling exactly softmax(logits + bias) at temperature 1.

    ``request``: fields sent with every request. ``evidence``: dotted key -> grade, date and what was seen.
    """

    name: str
    title: str
    homepage: str
    connection: Connection
    endpoints: dict[Literal["chat", "completions"], EndpointRules]
    logprobs: LogprobRules
    tokens: TokenRules
    tokenizer: TokenizerRules
    bias: BiasRules
    neutral: dict[str, Json]
    request: dict[str, Json] = {}
    evidence: dict[str, str]


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
    """``own`` laid over ``base``, table by table."""
    both = {key: _merged(base[key], own[key]) for key in own if isinstance(own[key], dict) and key in base}
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
