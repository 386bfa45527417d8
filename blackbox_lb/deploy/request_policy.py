"""The rule for which requests get the bias: those for its model, decided by a request's path and
body alone.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from pydantic_core import from_json

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.features import GROUP
from blackbox_lb.deploy.injection import Injection, deployment, quoted, route
from blackbox_lb.deploy.part_requests import PartRequest
from blackbox_lb.deploy.part_sender import PartSender
from blackbox_lb.errors import InputError
from blackbox_lb.literals import OnConflict
from blackbox_lb.providers.packaged import end_notice_by_name

Others: TypeAlias = Literal["warn", "pass", "raise"]

UNBIASABLE = {
    "Responses": r"/responses(/compact)?",
    "Assistants": r"/assistants(/[^/]+)?|/threads(/[^/]+)?/runs",
    "Agents": r"/agents(/[^/]+)?|/agents/sessions/[^/]+",
    "Realtime": r"/realtime(/sessions|/client_secrets|/calls(/[^/]+/accept)?)",
    "Live": r"/live/sessions(/[^/]+/accept)?",
    "Decisions": r"/decisions|/systemone",
    "Evals": r"/evals/[^/]+/runs",
    "Graders": r"/graders/run",
    "Messages": r"/v\d+/messages",
}
"""Endpoints that generate and take no ``logit_bias``, by the request types of openai 3.54 and
Anthropic's reference: https://github.com/openai/openai-python/tree/main/src/openai/types and
https://docs.anthropic.com/en/api/messages."""
_UNBIASABLE = re.compile(
    "(?:" + "|".join(f"(?P<{name}>{path})" for name, path in UNBIASABLE.items()) + ")/?$"
)

log = logging.getLogger(__name__)


class UrlPurpose(NamedTuple):
    """The purpose of a URL.

    generates: a model generates there. api: the API's name, where it takes no bias ("Decisions":
    questions with options are answered there). uploads: files are uploaded there. announces: a file
    is announced there, whose parts are uploaded one by one. deployment: the Azure deployment in the
    path.
    """

    generates: bool
    api: str | None
    uploads: bool
    announces: bool
    deployment: str | None


@lru_cache(maxsize=1024)
def endpoint(url: str) -> UrlPurpose:
    """The purpose of a POST to this URL or path."""
    path = re.split("[?#]", url, maxsplit=1)[0].rstrip("/")
    samples = route(path) == "completions"
    unbiasable = None
    if not samples:
        unbiasable = _UNBIASABLE.search(path)
    return UrlPurpose(
        samples or unbiasable is not None,
        unbiasable.lastgroup if unbiasable else None,
        path.endswith("/files"),
        path.endswith("/uploads"),
        deployment(path),
    )


@dataclass(frozen=True, slots=True)
class RequestPolicy:
    """A bias, the models that get it, and the rule for requests to others. ``parts``: how a bias
    is sent whose answers are drawn in parts.
    """

    injection: Injection
    models: frozenset[str]
    others: Others
    parts: PartSender | None = None
    _told: set[str | None] = field(default_factory=set, init=False, repr=False, compare=False)

    @classmethod
    def of(
        cls,
        bias: Bias | str | Path,
        *,
        models: Iterable[str] | None,
        others: Others,
        on_conflict: OnConflict,
        as_pairs: bool,
        provider: str | None = None,
    ) -> RequestPolicy:
        """Check the arguments of ``apply``; logs when the bias's model is switched off, where that
        is near. Raises InputError: a wrong one. BiasError: a file that cannot be read.
        """
        _check_choice("others", others, get_args(Others))
        _check_choice("on_conflict", on_conflict, get_args(OnConflict))
        loaded = Bias.of(bias)
        ending = end_notice_by_name(provider or loaded.provider, loaded.model, dt.date.today())
        if ending is not None:
            log.warning("%s", ending)
        injection = Injection.of(loaded, on_conflict, as_pairs)
        parts = PartSender.of(loaded, injection, provider)
        return cls(injection, _names(models, loaded.model), others, parts)

    def in_parts(self, place: UrlPurpose, content: bytes) -> PartRequest | None:
        """The request in parts, None where it goes out as it is. Raises InputError as ``rewritten``
        does.
        """
        if (
            self.parts is None
            or (document := parsed(content)) is None
            or not self.wanted(place, document)
        ):
            return None
        return self.parts.request(document)

    def rewritten(self, place: UrlPurpose, content: bytes) -> bytes:
        """The body to send in place of ``content``; one that is no JSON object stays, and the
        server judges it.

        Raises InputError: a refused model, an endpoint that takes no bias, a conflict with the
        body's own ``logit_bias``.
        """
        document = parsed(content)
        if document is None or not self.wanted(place, document):
            return content
        # Numbers that are written again go through the parser that keeps each unchanged.
        again = "logit_bias" in document or GROUP in document
        return self.injection.body(content, json.loads(content) if again else document)

    def wanted(self, place: UrlPurpose, document: Mapping[str, Any]) -> bool:
        """Whether this request gets the bias. Raises InputError: it cannot have it, or its model is
        refused.
        """
        named = _named(place, document)
        if not any(name in self.models for name in named):
            self._other(named[0] if named else None)
            return False
        if place.api:
            raise InputError(
                f"the {place.api} API takes no logit_bias, so {quoted(named[0])} cannot be biased"
                " there; use client.chat.completions, or a client without bias for an unbiased"
                " answer"
            )
        return True

    def _other(self, model: str | None) -> None:
        first = self.others == "warn" and model not in self._told
        if self.others != "raise" and not first and not log.isEnabledFor(logging.INFO):
            return
        names = ", ".join(quoted(name) for name in sorted(self.models))
        if self.others == "raise":
            raise InputError(
                f"this client biases {names}, but the request is for {quoted(model)}; "
                "add that name to models=[...], or send it through an unbiased client"
            )
        self._told.add(model)
        log.log(
            logging.WARNING if first else logging.INFO,
            "no logit bias sent: the request is for %s, the bias for %s; "
            "add that name to models=[...] where it is the same model, else say others='pass'",
            quoted(model),
            names,
        )


def parsed(content: bytes) -> dict[str, Any] | None:
    """The JSON object in a body, else None. The first parser takes a quarter of the time, and is
    the stricter one.
    """
    try:
        document = from_json(content)
    except ValueError:
        try:
            document = json.loads(content.decode())
        except (ValueError, RecursionError):
            return None
    if isinstance(document, dict):
        return document
    return None


def _named(place: UrlPurpose, document: Mapping[str, Any]) -> list[str]:
    """Every name of the model in a request.

    It is the Azure deployment in the path, else the body's; and, where no bias can go, those in the
    body's parts (``session``).
    """
    named = [place.deployment or document.get("model")]
    if place.api:
        named += [part.get("model") for part in document.values() if isinstance(part, dict)]
    return [name for name in named if isinstance(name, str)]


def _check_choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise InputError(
            f"{name}={value!r} is not a choice; give one of {', '.join(map(repr, allowed))}"
        )


def _names(models: Iterable[str] | None, default: str) -> frozenset[str]:
    if isinstance(models, str):
        raise InputError(
            f"models={models!r} is one string; give a list of model names, [{models!r}]"
        )
    names = frozenset((default,) if models is None else models)
    if not names or "" in names:
        raise InputError(
            f"models={sorted(names)!r} names no model, so no request would carry the bias; name at"
            " least one, or leave it out"
        )
    return names
