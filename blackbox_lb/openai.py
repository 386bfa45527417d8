"""The openai SDK's clients with one more argument: ``OpenAI(bias="bias.json", ...)`` sends the bias
with each request of its model.

Each is a subclass of the SDK's class of the same name and takes the same arguments; requests,
streaming, retries and ``with_options()`` are the SDK's. The rules for the bias are those of
``blackbox_lb.apply``, whose options are here called ``bias_models``, ``bias_others``,
``bias_on_conflict``, ``bias_as_pairs`` and ``bias_provider``. Closing such a client closes its
connections.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Required, TypeAlias, TypedDict, Unpack

import openai

from blackbox_lb.bias.document import Bias
from blackbox_lb.deploy.http_wrapping import with_policies
from blackbox_lb.deploy.request_policy import Others, RequestPolicy
from blackbox_lb.literals import OnConflict

if TYPE_CHECKING:
    import httpx2

__all__ = ["AsyncAzureOpenAI", "AsyncOpenAI", "AzureOpenAI", "OpenAI"]

Given: TypeAlias = Bias | str | Path


class _Options(TypedDict, total=False):
    """Arguments of the constructors, for every client: ours, and the SDK's; openai 2 lacks some of
    these.
    """

    bias: Required[Given]
    bias_models: Iterable[str] | None
    bias_others: Others
    bias_on_conflict: OnConflict
    bias_as_pairs: bool
    bias_provider: str | None
    admin_api_key: str | None
    workload_identity: Any
    organization: str | None
    project: str | None
    webhook_secret: str | None
    websocket_base_url: str | httpx2.URL | None
    timeout: float | openai.Timeout | openai.NotGiven | None
    max_retries: int
    default_headers: Mapping[str, str] | None
    default_query: Mapping[str, object] | None
    http_client: Any


class _Here(_Options, total=False):
    base_url: str | httpx2.URL | openai.NotGiven | None
    provider: Any
    data_residency: Any


class _Sync(_Here, total=False):
    api_key: str | Callable[[], str] | None


class _Async(_Here, total=False):
    api_key: str | Callable[[], Awaitable[str]] | None


class _AzureOptions(_Options, total=False):
    base_url: str
    azure_endpoint: str
    azure_deployment: str | None
    api_version: str | None
    azure_ad_token: str | None


class _Azure(_AzureOptions, total=False):
    api_key: str | Callable[[], str] | None
    azure_ad_token_provider: Callable[[], str] | None


class _AsyncAzure(_AzureOptions, total=False):
    api_key: str | Callable[[], Awaitable[str]] | None
    azure_ad_token_provider: Callable[[], str | Awaitable[str]] | None


class _Biased:
    """Hold the policy, and hand it to the copies that the SDK makes of a client."""

    _client: Any
    _policy: RequestPolicy

    if not TYPE_CHECKING:  # A type checker should see the SDK's own signature.

        def __init__(
            self,
            *,
            bias: Given,
            bias_models: Iterable[str] | None = None,
            bias_others: Others = "warn",
            bias_on_conflict: OnConflict = "raise",
            bias_as_pairs: bool = False,
            bias_provider: str | None = None,
            **options: Any,
        ) -> None:
            super().__init__(**options)
            if not isinstance(bias, RequestPolicy):
                bias = RequestPolicy.of(
                    bias,
                    models=bias_models,
                    others=bias_others,
                    on_conflict=bias_on_conflict,
                    as_pairs=bias_as_pairs,
                    provider=bias_provider,
                )
            # A copy keeps the policy of its original, and mostly its HTTP client.
            self._policy = bias
            self._client = with_policies(self._client, [self._policy])

        def copy(self, *, _extra_kwargs: Mapping[str, Any] = {}, **options: Any) -> Any:
            return super().copy(_extra_kwargs={"bias": self._policy, **_extra_kwargs}, **options)

        with_options = copy


class OpenAI(_Biased, openai.OpenAI):
    """``openai.OpenAI`` that sends ``bias``, a Bias or the path of a bias file. Raises InputError,
    BiasError as ``apply``.
    """

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[_Sync]) -> None: ...


class AsyncOpenAI(_Biased, openai.AsyncOpenAI):
    """``openai.AsyncOpenAI`` that sends ``bias``; see ``OpenAI``."""

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[_Async]) -> None: ...


class AzureOpenAI(_Biased, openai.AzureOpenAI):
    """``openai.AzureOpenAI`` that sends ``bias``; see ``OpenAI``. ``bias_models`` names the
    deployments where they differ.
    """

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[_Azure]) -> None: ...


class AsyncAzureOpenAI(_Biased, openai.AsyncAzureOpenAI):
    """``openai.AsyncAzureOpenAI`` that sends ``bias``; see ``AzureOpenAI``."""

    if TYPE_CHECKING:

        def __init__(self, **options: Unpack[_AsyncAzure]) -> None: ...
