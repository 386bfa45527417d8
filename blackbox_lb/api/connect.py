"""From a provider's name to an open session; an embedded engine is started first and stopped
last.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.session import Session
from blackbox_lb.errors import InputError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.credentials import TokenProvider
from blackbox_lb.providers.profile import load_profile


@asynccontextmanager
async def connect(
    provider: str,
    *,
    model: str | None = None,
    base_url: str | None = None,
    endpoint: Endpoint | None = None,
    tokenizer: str | None = None,
    token_provider: TokenProvider | None = None,
    concurrency: int | None = None,
    max_tokens: int = 256,
    longest_prompt: int = 0,
    needs: Iterable[str] = (),
    budget: SpendLimit | None = None,
    session: type[Session] = Session,
) -> AsyncIterator[Session]:
    """A session with the provider's model. ``concurrency``, ``max_tokens`` and ``longest_prompt``
    (characters) size an embedded engine's slots.

    needs: rows of the profile that must be known, or nothing is asked. budget: the account of each
    completion request. session: its class.

    Raises BlbError: unknown provider, missing key, model not found, server down.
    """
    profile = load_profile(provider)
    profile.require(needs, "the run", model)
    vocabulary_file: Path | None = None
    async with AsyncExitStack() as stack:
        if profile.connection.embedded:
            if base_url is not None:
                raise InputError(
                    f"{provider} starts its own engine and takes no ``base_url``; use ``provider``"
                    " llamacpp for a server"
                )
            from blackbox_lb.api.local.engine import LocalEngine, resolve_model

            slots = concurrency or profile.connection.concurrency
            room = max(PROMPT_ROOM, PROMPT_ROOM // 4 + longest_prompt // CHARACTERS_A_TOKEN)
            engine = stack.enter_context(
                LocalEngine(resolve_model(model), parallel=slots, context=room + max_tokens)
            )
            model = None
            base_url = engine.base_url
            vocabulary_file = engine.model_path
        opened = session(
            profile,
            model=model,
            base_url=base_url,
            endpoint=endpoint,
            tokenizer=tokenizer,
            token_provider=token_provider,
            budget=budget,
        )
        opened.vocabulary_file = vocabulary_file
        yield await stack.enter_async_context(opened)


PROMPT_ROOM = 1024
"""Least tokens for the prompt in a slot of an embedded engine."""
CHARACTERS_A_TOKEN = 2
"""Characters a token, fewer than in any language written with spaces: a prompt must not outgrow its
slot.
"""
