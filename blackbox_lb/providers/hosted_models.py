"""The models that hosts serve, from lists of a known date: ``providers/models/NAME.toml``."""

from __future__ import annotations

import re
from datetime import date
from difflib import get_close_matches
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from blackbox_lb.errors import InputError, ProfileError
from blackbox_lb.providers.packaged import profiles_folder
from blackbox_lb.providers.schema import Dollars, Json, ProfileRow
from blackbox_lb.safety.untrusted import parse_toml

FOLDER = "models"
"""The lists stand in this folder beside the profiles."""
CUTS = ("top_k", "top_p", "min_p")
"""Settings that truncate the distribution."""
NEAREST = 3
"""Names that are suggested where none fits."""


class HostedModel(ProfileRow):
    """One model of a host's list.

    name: the name for ``model``.
    open: whether its weights are public.
    weights: the name of the weights on the Hugging Face hub; "" where the list has none.
    price: US dollars for a million prompt tokens and a million completion tokens; None where the
        list has none.
    defaults: settings that hold for the model unless a request changes them.
    """

    name: Annotated[str, Field(min_length=1)]
    open: bool
    weights: str = ""
    price: Annotated[list[Dollars], Field(min_length=2, max_length=2)] | None = None
    defaults: dict[str, Json] = Field(default_factory=dict)

    @property
    def cuts(self) -> dict[str, Json]:
        """The defaults that truncate the distribution."""
        off = {"top_k": (0, -1), "top_p": (1, 1.0), "min_p": (0, 0.0)}
        return {
            name: value
            for name, value in self.defaults.items()
            if name in CUTS and value not in off[name]
        }


class HostedModels(ProfileRow):
    """The list of one host, models with open weights first.

    provider: the host's profile.
    date: the day of the list.
    source: where the list was found.
    fields: whether the list says of each model, or only of the host, that it takes ``logit_bias``
        and gives logprobs.
    models: the list.
    """

    provider: str
    date: date
    source: Annotated[str, Field(min_length=1)]
    fields: Literal["each model", "the host"]
    models: Annotated[list[HostedModel], Field(min_length=1)]


def listed_hosts() -> list[str]:
    """The sorted names of the profiles that have a list of models."""
    folder = profiles_folder() / FOLDER
    names = [entry.name for entry in folder.iterdir()]
    return sorted(name.removesuffix(".toml") for name in names if name.endswith(".toml"))


def load_models(provider: str) -> HostedModels:
    """The list of the models that ``provider`` serves.

    Raises:
        InputError: there is none.
        ProfileError: the list is malformed.
    """
    if provider not in listed_hosts():
        raise InputError(
            f"there is no list of the models of {provider}; there are lists of"
            f" {', '.join(listed_hosts())}, and an address of your own lists what it serves at"
            " /models"
        )
    content = (profiles_folder() / FOLDER / f"{provider}.toml").read_bytes()
    try:
        return HostedModels.model_validate(parse_toml(content))
    except ValidationError as error:
        raise ProfileError(f"the list of the models of {provider}: {error}") from error


def find_hosts(name: str) -> list[tuple[HostedModels, HostedModel]]:
    """Each list that has a model of that name, with the model.

    Lists that say of each model whether it takes a bias and gives logprobs come first.

    Names are compared without their publisher and by their parts, so that ``Qwen/Qwen3.5-9B`` is
    also qwen/qwen3.5-9b, and glm-5.1 is also glm-5p1 and glm-5-1.

    Raises:
        InputError: no list has it.
    """
    query = _parts(name)
    pairs = [
        (hosted, model) for hosted in map(load_models, listed_hosts()) for model in hosted.models
    ]
    matches = [
        (hosted, model)
        for hosted, model in pairs
        if _contains(_parts(model.name), query) or _contains(_parts(model.weights), query)
    ]
    if not query or not matches:
        raise InputError(_unknown(name, [model.name for _, model in pairs]))
    matches.sort(key=lambda match: (match[0].fields != "each model", match[0].provider))
    return matches


def _parts(name: str) -> list[str]:
    """The parts of a model's name without its publisher, in lower case; 5p1 is 5.1."""
    model = name.lower().rpartition("/")[2]
    return re.findall(r"[a-z0-9]+", re.sub(r"(?<=\d)p(?=\d)", ".", model))


def _contains(parts: list[str], query: list[str]) -> bool:
    """Whether the parts of ``query`` stand in ``parts`` one behind the other."""
    starts = range(len(parts) - len(query) + 1)
    return any(parts[start : start + len(query)] == query for start in starts)


def _unknown(name: str, names: list[str]) -> str:
    """The sentence on a model that no list has, with the nearest of ``names``."""
    spelled = {"-".join(_parts(listed)): listed for listed in names}
    nearest = get_close_matches("-".join(_parts(name)), spelled, n=NEAREST)
    suggestion = ""
    if nearest:
        close = ", ".join(spelled[spelling] for spelling in nearest)
        suggestion = f" (did you mean {close}?)"
    return (
        f"no list of a host has a model called {name!r}{suggestion}; blb providers openrouter"
        " ``models`` shows the longest list, and open weights of any name run on a vLLM, SGLang or"
        " llama.cpp server of your own"
    )
