"""The lists of hosted models: which models of a host take a bias, and which hosts serve a model."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest
from click.testing import Result

from blackbox_lb.providers.hosted_models import listed_hosts, load_models
from blackbox_lb.providers.profile import load_profile
from tests.support.commands import blb, refused


def providers(*arguments: str) -> Result:
    """``blb providers``."""
    return blb("providers", *arguments)


def hosts(name: str) -> list[dict[str, Any]]:
    """The hosts of a model, each with its name there."""
    found: list[dict[str, Any]] = json.loads(providers("--hosts", name, "--json").stdout)
    return found


@pytest.mark.parametrize("name", listed_hosts())
def test_a_list_is_one_of_a_hosts_models(name: str) -> None:
    """Of a profile that takes a bias and returns logprobs, with a day and a source, each name once,
    open weights first.
    """
    hosted = load_models(name)
    profile = load_profile(name)
    assert hosted.provider == name == profile.name
    assert dt.date(2026, 1, 1) < hosted.date < dt.date(2026, 11, 26)
    assert hosted.source
    assert profile.connection.api_key_required
    assert profile.logprobs.limit != 0
    names = [model.name for model in hosted.models]
    assert len(set(names)) == len(names)
    is_open = [model.open for model in hosted.models]
    assert is_open == sorted(is_open, reverse=True)


@pytest.mark.parametrize(
    ("name", "host", "served"),
    [
        ("openai/gpt-oss-20b", "fireworks", "accounts/fireworks/models/gpt-oss-20b"),
        ("GPT-OSS-120B", "cerebras", "gpt-oss-120b"),
        ("gpt-oss-120b", "byteplus", "gpt-oss-120b-250805"),
        ("glm-5.1", "fireworks", "accounts/fireworks/models/glm-5p1"),
        ("deepseek-v3.2", "byteplus", "deepseek-v3-2-251201"),
        ("Qwen/Qwen3-235B-A22B-Instruct-2507", "openrouter", "qwen/qwen3-235b-a22b-2507"),
        ("Llama-3.3-70B-Instruct", "together", "meta-llama/Llama-3.3-70B-Instruct-Turbo"),
    ],
)
def test_a_model_is_found_under_each_hosts_spelling(name: str, host: str, served: str) -> None:
    """By the parts of its name without the publisher, or of its weights' name."""
    assert (host, served) in [(row["provider"], row["model"]["name"]) for row in hosts(name)]


def test_hosts_are_in_order_and_of_the_size_asked_for() -> None:
    """What is listed with both fields is surer than a host's own description, and comes first. 120b
    is no part of 20b, nor 5.1 of 5. The table has the days of the lists.
    """
    rows = hosts("gpt-oss-120b")
    fields = [row["fields"] for row in rows]
    assert fields == sorted(fields)
    assert set(fields) == {"each model", "the host"}
    table = providers("--hosts", "gpt-oss-120b").stdout
    assert all(host in table for host in ("openrouter", "together", "novita", "2026-07-02"))
    assert (rows[0]["provider"], rows[0]["model"]["weights"]) == (
        "openrouter",
        "openai/gpt-oss-120b",
    )
    names = {row["model"]["name"] for row in rows}
    assert names.isdisjoint(row["model"]["name"] for row in hosts("gpt-oss-20b"))
    assert all("5.2" not in row["model"]["name"] for row in hosts("glm-5.1"))


@pytest.mark.parametrize("name", ["qwen99", "", "/", "gpt-oss-20"])
def test_a_model_that_no_list_has_is_refused(name: str) -> None:
    """With a sentence; of a name that is nearly one, with the ones that are."""
    said = refused("providers", "--hosts", name)
    assert ("openai/gpt-oss-20b" in said) is (name == "gpt-oss-20")


def test_the_models_of_a_host() -> None:
    """A table with the day of the list, and the same as JSON."""
    result = providers("openrouter", "--models")
    assert result.exit_code == 0
    rows = [line.split() for line in result.stdout.splitlines()]
    names = [row[0] for row in rows if row]
    assert names.index("qwen/qwen3.5-9b") < names.index("openai/gpt-4o-mini")
    assert "2026-08-22" in result.stdout
    (row,) = [row for row in rows if row and row[0] == "qwen/qwen3.5-27b"]
    assert row[1:4] == ["Qwen/Qwen3.5-27B", "top_k", "20"]
    document = json.loads(providers("openrouter", "--models", "--json").stdout)
    assert (document["date"], len(document["models"])) == ("2026-08-22", 102)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--models"],
        ["azure", "--models"],
        ["nobody", "--models"],
        ["openrouter", "--hosts", "gpt-oss-20b"],
        ["--models", "--hosts", "gpt-oss-20b"],
    ],
)
def test_what_cannot_be_listed_is_refused(arguments: list[str]) -> None:
    """No host, one without a list, two questions at once: exit code 2 and a sentence."""
    result = providers(*arguments)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
