"""Sending a bias: a client of the same type as the caller's, whose chat and completion requests
carry ``logit_bias``.

The biased client has an HTTP client of its own that edits bodies and hands everything else to the
caller's, so ``.create``, ``.stream``, ``.parse``, ``with_options()``, ``with_raw_response`` and raw
``client.post`` all carry the bias, on openai 2 and 3. A client that is derived from it with another
HTTP client carries the bias, too.
"""

import logging
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

import openai

from blackbox_lb.bias.document import Bias
from blackbox_lb.deploy.decision_policy import DecisionPolicy
from blackbox_lb.deploy.http_wrapping import Policy, policies_of, with_policies, wrapped
from blackbox_lb.deploy.request_policy import Others, RequestPolicy
from blackbox_lb.errors import InputError
from blackbox_lb.literals import OnConflict

log = logging.getLogger(__name__)

C = TypeVar("C", bound=openai.OpenAI | openai.AsyncOpenAI)


def apply(
    client: C,
    bias: Bias | str | Path,
    *,
    models: Iterable[str] | None = None,
    others: Others = "warn",
    on_conflict: OnConflict = "raise",
    as_pairs: bool = False,
    provider: str | None = None,
    verify: bool = False,
) -> C:
    """Return a client of the same type that sends the bias, or mends the answers of decision
    endpoints where the file does that; the caller's own client stays unchanged.

    bias: a Bias or the path of a bias file; values go out exactly as they are, in nats, whole ones
    as integers. models: the model names in requests that get the bias, where the server uses other
    names, such as an Azure deployment; default: ``bias.model``. others: the rule for requests to
    any other model: send them unbiased, with one log record a model ("warn") or without ("pass");
    or "raise". on_conflict: the rule for a request with a ``logit_bias`` of its own: "raise"; send
    "ours" or "theirs" alone; or "add", the sum per id. as_pairs: send ``[[id, value], ...]``
    instead of an object; llama.cpp reads a long list far faster, other servers refuse it. provider:
    the profile of the server, where it is not that of the bias file; it says how a bias with phases
    is sent. verify: ask at once, with at most ten requests of one token each, whether a bias
    arrives through whatever stands between; for an ``openai.OpenAI`` client, since nothing is
    awaited here.

    The two clients share one connection pool. Closing the biased client stops only that client;
    closing the caller's stops both. ``copy`` and ``with_options`` of the biased client carry the
    bias to another ``http_client``, too. Endpoints that generate but take no ``logit_bias``
    (Responses, Assistants, Realtime and the like) raise for a biased model; websocket traffic is
    not seen here and goes out unbiased. An upload of a batch file is not rewritten: an unbiased
    line for a biased model raises, and ``apply_batch`` writes the biased file; an upload in parts
    raises, because it cannot be checked. Limits on entries and range are not checked: a compiled
    bias keeps to them, a sum under "add" may not.

    Of a file that mends decisions, requests go out as they are, and the answers of
    ``/v1/decisions`` and ``/v1/systemone`` to its questions come back mended, with ``x_mended`` and
    the raw probabilities beside them; the other arguments are not read.

    Raises InputError here for a wrong argument and, with ``verify``, where a bias is dropped or
    refused on the way, and from the request itself for a refused model,
    conflict, endpoint or unreadable body. Raises BiasError for a bias file that cannot be read.
    """
    loaded = Bias.of(bias)
    policy: Policy
    if loaded.decides_alone:
        policy = DecisionPolicy.of(loaded)
    else:
        policy = RequestPolicy.of(
            loaded,
            models=models,
            others=others,
            on_conflict=on_conflict,
            as_pairs=as_pairs,
            provider=provider,
        )
    if not isinstance(client, openai.OpenAI | openai.AsyncOpenAI):
        raise InputError(
            f"cannot bias a {type(client).__name__}; give an openai.OpenAI or openai.AsyncOpenAI"
            " client"
        )
    if verify:
        loaded.check_moves_tokens()
        _verify(client, loaded, models, provider)
    # The SDK has no public access to its HTTP client.
    http_client = wrapped(client._client, policy, owned=False)
    try:
        biased = client.with_options(http_client=http_client)
    except TypeError as error:
        raise InputError(
            f"a {type(client).__name__} cannot be copied by its with_options() ({error}); let its"
            " __init__ take the SDK's arguments"
        ) from error
    return cast(C, _carrying(biased))


def _verify(
    client: openai.OpenAI | openai.AsyncOpenAI,
    bias: Bias,
    models: Iterable[str] | None,
    provider: str | None,
) -> None:
    """Log that a bias arrives, or that this cannot be told. Raises InputError: it does not."""
    # Imported here, since no other client needs them.
    from blackbox_lb.deploy.arrival import Arrival, Reply, asking, path_of
    from blackbox_lb.providers.packaged import profile_names
    from blackbox_lb.providers.profile import load_profile

    if not isinstance(client, openai.OpenAI):
        raise InputError(
            "``verify`` asks at once, and an AsyncOpenAI client has to be awaited; verify an OpenAI"
            " client of the same address, or run blb doctor --bias"
        )
    name = provider or bias.provider
    profile = load_profile(name) if provider or name in profile_names() else None
    probes = asking(bias, next(iter(models or ()), bias.model), profile)
    body = next(probes)
    while True:
        reply: Reply
        try:
            reply = client.post(path_of(body), body=body, cast_to=cast(Any, object))
        except openai.APIStatusError as error:
            if error.status_code >= 500:
                raise
            reply = str(error)
        try:
            body = probes.send(reply)
        except StopIteration as end:
            arrival: Arrival = end.value
            break
    if arrival.fails:
        raise InputError(f"the bias does not arrive, it is {arrival.word}: {arrival.sentence}")
    doubtful = arrival.word != "ARRIVES" or arrival.whole
    level = logging.WARNING if doubtful else logging.INFO
    log.log(level, "%s: %s", arrival.word, arrival.sentence)


def _carrying(client: Any) -> Any:
    """The client, whose ``copy`` and ``with_options`` now keep its bias whatever HTTP client they
    are given. The SDK's own would send through that HTTP client as it is.
    """
    for name in ("copy", "with_options"):
        setattr(client, name, partial(_derive, client, getattr(client, name)))
    return client


def _derive(
    client: Any, derive: Callable[..., Any], *, http_client: Any = None, **options: Any
) -> Any:
    if http_client is not None:
        options["http_client"] = with_policies(http_client, policies_of(client._client))
    return _carrying(derive(**options))
