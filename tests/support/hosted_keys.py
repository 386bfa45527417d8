"""An environment with the keys of hosted APIs and nothing else about them."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

OTHERS = ("AZURE_OPENAI_AD_TOKEN", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID")


def set_keys(monkeypatch: pytest.MonkeyPatch, variables: Iterable[str], key: str) -> None:
    """Let each variable hold the key, and take out what would redirect a request."""
    for variable in variables:
        monkeypatch.setenv(variable, key)
    for variable in OTHERS:
        monkeypatch.delenv(variable, raising=False)
