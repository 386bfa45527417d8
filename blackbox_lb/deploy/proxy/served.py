"""The biases that are served, each under a model name: the model's own name, or ``MODEL@ALIAS``."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import check_bias
from blackbox_lb.bias.operating import Promise
from blackbox_lb.deploy.injection import Injection, quoted
from blackbox_lb.deploy.part_sender import PartSender
from blackbox_lb.errors import InputError
from blackbox_lb.literals import OnConflict
from blackbox_lb.providers.profile import load_profile

_ALIAS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True, slots=True)
class ServedBias:
    """One bias under one name. A request for ``name`` is sent on for ``model`` with the bias of
    ``injection``, or by ``parts``.
    """

    model: str
    alias: str | None
    bias: Bias
    injection: Injection
    parts: PartSender | None = None

    @property
    def name(self) -> str:
        """The model name in a request: MODEL, or MODEL@ALIAS."""
        if self.alias is None:
            return self.model
        return f"{self.model}@{self.alias}"


def load_served(
    biases: Iterable[str],
    *,
    at: Sequence[str] = (),
    models: Sequence[str] = (),
    provider: str | None = None,
    on_conflict: OnConflict = "raise",
) -> list[ServedBias]:
    """Load the biases that ``[ALIAS=]PATH`` name, one row for each model name in requests.

    at: ``[ALIAS=]POINT``, another operating point of the biases with that alias, or of those
    without one (see ``Bias.at``). models: the server's names of the model, where they differ from
    the bias file's; every bias then applies to each of them. provider: a profile that sets the
    limits and the format of each bias.

    Raises InputError: a bad alias, an empty model name, or an unknown provider (ProfileError);
    BiasError: a file that cannot be read, or a bias that the provider does not take.
    """
    if "" in models:
        raise InputError(
            "--model '' names no model; give the server's name of it, or leave --model out"
        )
    profile = None
    if provider is not None:
        profile = load_profile(provider)
    points: dict[str | None, Promise] = {}
    named = [parse_bias_argument(argument) for argument in biases]
    if models and not named:
        raise InputError(
            "``model`` gives a bias another name of its model, and there is no bias; mended"
            " questions go by the name that the server's answers have"
        )
    aliases = {alias for alias, _ in named}
    for alias, promise in map(parse_point, at):
        of = "without an alias"
        if alias is not None:
            of = f"with the alias {quoted(alias)}"
        if alias in points:
            raise InputError(f"``at`` names two operating points of the biases {of}; give one")
        if alias not in aliases:
            raise InputError(f"``at`` names an operating point of a bias {of}, and there is none")
        points[alias] = promise
    pairs = profile is not None and profile.bias.format == "pairs"
    rows = []
    for alias, path in named:
        bias = Bias.load(path)
        if alias in points:
            bias = bias.at_promise(points[alias])
        if profile is not None:
            highest = profile.bias.highest_id
            check_bias(bias, profile, highest if isinstance(highest, int) else None)
        injection = Injection.of(bias, on_conflict, pairs)
        for model in models or (bias.model,):
            parts = PartSender.of(bias, injection, provider)  # its counts are of this name
            rows.append(ServedBias(model, alias, bias, injection, parts))
    return rows


def parse_point(argument: str) -> tuple[str | None, Promise]:
    """The alias, if there is one, and the point of an ``[ALIAS=]POINT``. InputError: no point."""
    head, _, level = argument.rpartition("=")
    alias, equals, measure = head.rpartition("=")
    promise = Promise.parse(f"{measure}={level}")
    return (alias if equals else None), promise


def parse_bias_argument(argument: str) -> tuple[str | None, Path]:
    """The alias, if there is one, and the file of a ``[ALIAS=]FILE``. InputError: no such alias."""
    alias, equals, path = argument.partition("=")
    # A path may hold "=" too: "./a=b.json" and "runs/a=b/bias.json" are paths, because an alias
    # holds no slash.
    if not equals or "/" in alias or "\\" in alias:
        return None, Path(argument)
    if not _ALIAS.fullmatch(alias):
        raise InputError(
            f"the alias {quoted(alias)} is none; use letters, digits, '.', '_' and '-', as in"
            " --bias short=bias.json"
        )
    return alias, Path(path)
