"""The error tree. Every error that this package raises on purpose is one of these.

BlbError
├── BudgetExhausted              a limit of requests, tokens or money is reached
├── Drifted                      the model, its tokenizer or its system changed meanwhile
├── Interrupted                  Ctrl-C or SIGTERM; the command line exits with 130
├── InputError (ValueError)      the input is wrong: an option, a file, a row, a model
│   ├── DataError                a task file or one of its rows
│   ├── ProfileError             a provider profile is missing, malformed or forbids this
│   ├── BiasError                a bias file is malformed or exceeds a limit
│   │   └── TokenizerMismatch    a bias learned under one tokenizer met another
│   └── StoreError               a rollout store is missing, foreign, newer or not writable
│       ├── StoreBusy            another process keeps it locked
│       └── StoreCorrupt         it, or a row of it, is damaged
└── ProviderError (RuntimeError) the other side of the wire
    ├── ConnectionFailed         nothing answers, or the connection broke, after retries
    ├── AuthenticationFailed     401 and 403
    ├── RateLimited              429 after all retries
    │   └── QuotaExhausted       429: the account has no credit left; no retry cures it
    ├── RequestRejected          any other 4xx: the provider refuses this request
    │   ├── ContentFiltered      its content filter refuses this prompt
    │   └── ModelUnsuitable      the model takes no logit bias or returns no logprobs
    ├── ServerFailed             5xx after all retries
    ├── NoLogprobs               a well-formed answer without the token logprobs asked for
    └── CorruptResponse          an answer that breaks its contract: NaN, missing fields

Each message says what happened, with the value, the limit and the remedy.
The command line prints it as one sentence and exits with 2.
"""

from collections.abc import Mapping
from types import MappingProxyType

__all__ = [
    "AuthenticationFailed",
    "BiasError",
    "BlbError",
    "BudgetExhausted",
    "ConnectionFailed",
    "ContentFiltered",
    "CorruptResponse",
    "DataError",
    "Drifted",
    "InputError",
    "Interrupted",
    "ModelUnsuitable",
    "NoLogprobs",
    "ProfileError",
    "ProviderError",
    "QuotaExhausted",
    "RateLimited",
    "RequestRejected",
    "ServerFailed",
    "StoreBusy",
    "StoreCorrupt",
    "StoreError",
    "TokenizerMismatch",
]


class BlbError(Exception):
    """Root of the tree; catch this to catch everything this package raises on purpose."""


class BudgetExhausted(BlbError):
    """The next request could pass a limit that the user set; what was received is kept."""


class Drifted(BlbError):
    """Another model or system answers than before; what was received is kept.

    The message names both.
    """


class Interrupted(BlbError):
    """The user stopped the run; what was in flight has been received and is kept."""


class InputError(BlbError, ValueError):
    """The input cannot be used."""


class DataError(InputError):
    """A task file, or one row of it, cannot be used; the message carries the line number."""


class ProfileError(InputError):
    """A provider profile is missing, malformed, or does not allow what was asked."""


class BiasError(InputError):
    """A bias file is malformed or exceeds a limit."""


class TokenizerMismatch(BiasError):
    """A bias learned under one tokenizer was about to be sent to another."""


class StoreError(InputError):
    """A rollout store cannot be used.

    It is missing, another program's, written by a newer version, or cannot be written (a full disk,
    say).
    """


class StoreBusy(StoreError):
    """Another process kept the rollout store locked until the wait for it ended."""


class StoreCorrupt(StoreError):
    """A rollout store or one of its rows is damaged.

    ``blb store check`` finds the damage, ``blb store merge`` saves the rest.
    """


class ProviderError(BlbError, RuntimeError):
    """The inference API failed or refused.

    reason: what the service answered, without a remedy; "" where it refused nothing.
    pause: seconds that the service asks to wait before another request; 0 for none.
    status, headers: of its answer in HTTP; None and none where there is none.
    """

    reason: str = ""
    pause: float = 0.0
    status: int | None = None
    headers: Mapping[str, str] = MappingProxyType({})


class ConnectionFailed(ProviderError):
    """Nothing answered, or the connection broke, after all retries."""


class AuthenticationFailed(ProviderError):
    """The API key is missing, wrong or not allowed (401, 403)."""


class RateLimited(ProviderError):
    """Still refused with 429 after all retries."""


class QuotaExhausted(RateLimited):
    """The account has no credit left (429 ``insufficient_quota``); retrying is useless."""


class RequestRejected(ProviderError):
    """The provider refuses this request (a 4xx other than 401, 403, 408, 409 and 429)."""


class ContentFiltered(RequestRejected):
    """The provider's content filter refuses this prompt.

    Such prompts are counted and not sent again.
    """


class ModelUnsuitable(RequestRejected):
    """The model takes no logit bias or returns no logprobs.

    Its profile says so, or the provider's answer.
    """


class ServerFailed(ProviderError):
    """The server kept failing (5xx) after all retries."""


class NoLogprobs(ProviderError):
    """The answer carries no token logprobs although they were asked for."""


class CorruptResponse(ProviderError):
    """The answer breaks its own contract.

    It has NaN or positive logprobs, or missing or inconsistent fields.
    """
