"""Provider profiles: rows that are checked, inherited, and refused with the row's name; every row
with its evidence.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.transport.channel import RateLimiter
from blackbox_lb.api.wire import build_request
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.errors import ModelUnsuitable, ProfileError
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.types import Prompt, Sampling
from tests.support.errors import raises_naming

PROVEN = ["azure", "azure-classic", "fireworks", "llamacpp", "local", "openai", "sglang", "vllm"]
GUESSED = [
    "lmstudio",
    "byteplus",
    "cerebras",
    "deepinfra",
    "mlx",
    "nim",
    "novita",
    "openrouter",
    "tabbyapi",
    "together",
]
DECIDING = ["ollama", "perplexity", "typesafe", "upstage"]
NAMES = sorted([*PROVEN, *GUESSED, *DECIDING])
ACME = Path(__file__).parent / "acme.toml"
IDENTITY = {"extends", "name", "title", "homepage", "unknown", "evidence"}
CHOICES = {
    *("connection.api_key_env", "connection.base_url_env", "connection.concurrency"),
    *("connection.embedded", "logprobs.limit_remedy", "logprobs.limit_is_setting"),
}
"""Rows on how this package behaves: no facts of a provider, so they need no evidence."""
DOCUMENTATION = {"errors"}
"""Evidence that belongs to no row."""
NEEDED = ("tokens.id", "neutral", "bias")


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted row -> value. Lists, empty tables and plain values are rows; other tables are taken
    apart.
    """
    rows: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            rows |= flattened(value, f"{prefix}{key}.")
        else:
            rows[f"{prefix}{key}"] = value
    return rows


def own_rows(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Dotted row -> value and the evidence of a shipped file itself, without what it extends."""
    path = Path(__file__).parents[3] / "providers" / f"{name}.toml"
    table = tomllib.loads(path.read_text(encoding="utf-8"))
    return flattened(
        {key: value for key, value in table.items() if key not in IDENTITY}
    ), table.get("evidence", {})


def around(row: str) -> list[str]:
    """A dotted row and the tables that it stands in, from the inside out."""
    parts = row.split(".")
    return [".".join(parts[:length]) for length in range(len(parts), 0, -1)]


def test_the_profiles_that_come_along() -> None:
    """They load, are called as their files, tell of the errors that their provider answers with,
    and map no header of a budget that nothing reads.
    """
    assert profile_names() == NAMES
    for name in NAMES:
        profile = load_profile(name)
        assert profile.name == name
        assert profile.evidence["errors"].seen
        RateLimiter(profile.connection.rate_limit_headers)


@pytest.mark.parametrize("name", NAMES)
def test_every_row_has_its_evidence(name: str) -> None:
    """Each row that a file sets is covered by a grade, a date and a source in that same file, but
    for a choice of ours. Evidence and unknown name rows and tables that exist, apart from the few
    keys that are documentation only.
    """
    rows, evidence = own_rows(name)
    bare = [
        row
        for row in rows
        if row not in CHOICES and not any(each in evidence for each in around(row))
    ]
    assert bare == []
    for seen in evidence.values():
        assert {"grade", "date", "source"} <= set(seen) <= {"grade", "date", "source", "seen"}
    profile = load_profile(name)
    existing = {
        each for row in flattened(profile.model_dump(exclude=IDENTITY)) for each in around(row)
    }
    assert set(profile.evidence) - existing <= DOCUMENTATION
    assert set(profile.unknown) <= existing


@pytest.mark.parametrize("name", PROVEN + DECIDING)
def test_what_is_proven_or_has_a_safe_reading_blocks_nothing(name: str) -> None:
    """All that somebody has looked at can be collected from and given a bias before anyone has run
    the doctor.
    """
    load_profile(name).require(NEEDED, "this")


@pytest.mark.parametrize("model", ["gpt-4.1", "ft:gpt-4.1-2025-04-14:acme::A1", "gpt-4.1-mini"])
@pytest.mark.parametrize("name", ["openai", "azure", "azure-classic"])
def test_a_model_that_sources_disagree_about_is_a_guess(name: str, model: str) -> None:
    """Its bias is refused until the self-test has looked; its completions may be collected, and no
    list recommends it.
    """
    profile = load_profile(name)
    assert model not in profile.models.work
    profile.require(["tokens.id", "neutral"], "this", model)
    facts = (f"bias with {model} of {name}", f"``model={model}``", "``save``")
    with raises_naming(ProfileError, *facts):
        profile.require(NEEDED, "this", model)
    profile.require(NEEDED, "this", "gpt-4o-mini")


def test_the_end_of_a_model() -> None:
    """By its name or that of the model that it was fine-tuned from; none where none is known. Every
    model that OpenAI and Azure recommend has its end: a bias cannot outlive its model.
    """
    for name, model, end in (
        ("openai", "gpt-4o-mini-2024-07-18", "2027-01-14"),
        ("openai", "ft:gpt-4.1-mini-2025-04-14:acme::A1", "2027-01-14"),
        ("openai", "gpt-4", "2026-10-23"),
        ("openai", "gpt-oss-120b", "None"),
        ("azure", "gpt-4o", "2026-10-01"),
        ("azure-classic", "gpt-4.1-mini", "2026-10-14"),
        ("azure", "prod", "None"),
        ("vllm", "gpt-4o", "None"),
    ):
        row = load_profile(name).end_of(model)
        assert str(row and row.date) == end, (name, model)
    for name in ("openai", "azure"):
        profile = load_profile(name)
        assert all(profile.end_of(model) for model in [*profile.models.work, "gpt-4.1"])


def test_an_end_stays_with_a_profile_of_the_same_host(tmp_path: Path) -> None:
    """Written by the self-test and read again."""
    openai = load_profile("openai")
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps({**openai.rows_of_its_host, "extends": "openai"}))
    assert load_profile(str(path)).end_of("gpt-4o") == openai.end_of("gpt-4o")


REFUSED = (
    "o1 o1-mini-2024-09-12 o3 o3-pro o4-mini o4-mini-deep-research codex-mini-latest gpt-5"
    " gpt-5-mini-2025-08-07 gpt-5.1 gpt-5.4-nano gpt-5-search-api gpt-5.3-chat-latest gpt-6-luna"
    " gpt-6.1-sol chat-latest computer-use-preview ft:o4-mini-2025-04-16:acme::A1b2"
    " gpt-audio-mini gpt-4o-audio-preview gpt-4o-mini-audio-preview-2024-12-17"
    " gpt-4o-search-preview"
)
TAKEN = (
    "gpt-4o gpt-4o-mini gpt-4o-2024-11-20 gpt-4.1 gpt-4.1-mini-2025-04-14 gpt-4-turbo"
    " gpt-3.5-turbo-instruct davinci-002 gpt-oss-120b ft:gpt-4o-mini-2024-07-18:acme:o1:A1b2"
)


@pytest.mark.parametrize("model", REFUSED.split())
def test_models_that_cannot_be_used_are_refused(model: str) -> None:
    """OpenAI's models that reject logprobs, logit_bias or a neutral request, with the reason and
    models that work.
    """
    with raises_naming(ModelUnsuitable, model, "openai", "gpt-4o-mini", "gpt-4o"):
        load_profile("openai").check_model(model)


def test_models_that_can_be_used_are_not_refused() -> None:
    """Neither here nor on Azure, also not for a name that holds another's. A deployment has to be
    named; a server that lists its models may be asked.
    """
    for name in ("openai", "azure", "azure-classic"):
        for model in TAKEN.split():
            load_profile(name).check_model(model)
    load_profile("vllm").check_model(None)
    with raises_naming(ProfileError, "``model``"):
        load_profile("azure").check_model(None)


def test_a_profile_of_ones_own_from_scratch() -> None:
    """About twenty lines describe an OpenAI-compatible host, and the request is the one that they
    describe.
    """
    text = ACME.read_text(encoding="utf-8")
    assert len([line for line in text.splitlines() if line]) <= 21
    acme = load_profile(str(ACME))
    body = build_request(
        acme,
        Draw(Sampling(max_tokens=7, top_logprobs=20), RequestBias({5: 1.5}), "chat"),
        model="m",
        prompt=Prompt.user("hello"),
    )
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "temperature": 1.0,
        "max_tokens": 7,
        "logprobs": 20,
        "logit_bias": {"5": 1.5},
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
    }
    with raises_naming(ProfileError, "blb doctor ``provider=acme``"):
        acme.require(NEEDED, "this")


OWN = 'extends = "vllm"\nname = "x"\n'
BROKEN: list[tuple[str, tuple[str, ...]]] = [
    ("name = ", ("TOML",)),
    ('name = "x"', ("row title",)),
    ('extends = "nobody"', ("'nobody'", "vllm")),
    ('extends = "vllm"\nname = 3', ("row name", "3")),
    ('extends = "vllm"\n[name]\nx = 1', ("row name", "{'x': 1}")),
    (OWN + "speed = 9", ("row speed",)),
    (OWN + "connection = 3", ("row connection", "3")),
    (OWN + "evidence = 3", ("row evidence", "3")),
    (OWN + 'unknown = ["tokns.id"]', ("row unknown", "'tokns.id'")),
    (OWN + 'unknown = ["neutral.top_z"]', ("row unknown", "'neutral.top_z'")),
    (OWN + "[bias]\nentries = 0", ("row bias.entries",)),
    (OWN + "[bias]\nentires = 5", ("row bias.entires", "entries")),
    (OWN + "[bias]\nlow = 5.0\nhigh = -5.0", ("row bias", "low = 5", "high = -5")),
    (OWN + "[bias]\nlow = -inf", ("row bias.low", "-inf")),
    (OWN + '[logprobs]\nmeaning = "sideways"', ("row logprobs.meaning",)),
    (OWN + '[tokens]\nid = "field"', ("row tokens.id",)),
    (OWN + '[tokenizer]\nvocabulary_size = "n_vocab"', ("row tokenizer.vocabulary_size",)),
    (OWN + "[endpoints.chat]\nbais = true", ("row endpoints.chat.bais", "bias")),
    (OWN + "[neutral.top_k]\nx = 1", ("row neutral.top_k", "{'x': 1}")),
    (OWN + "[neutral]\ntop_p = nan", ("row neutral.top_p", "nan")),
    (OWN + "[request.options]\nmin_p = inf", ("row request.options", "inf")),
    (OWN + '[endpoints.chat]\npath = "chat/completions"', ("row endpoints.chat.path",)),
    (OWN + '[[models.refused]]\npattern = ""\nwhy = "w"', ("row models.refused.0.pattern",)),
    (
        OWN + '[evidence]\n"bias" = { grade = "X", date = 2026-11-21, source = "s" }',
        ("row evidence.bias.grade",),
    ),
    (
        OWN + '[connection]\nheaders_env = { "two words" = "X" }',
        ("row connection.headers_env",),
    ),
    (OWN + '[connection]\napi_key_header = "Key:"', ("row connection.api_key_header",)),
    (
        OWN + '[connection]\napi_key_required = true\napi_key_env = ""',
        ("row connection", "connection.api_key_env", "api_key_required = false"),
    ),
    (
        'extends = "openai"\nname = "x"\n[tokenizer]\nsource = "server"',
        ("row tokenizer", "tokenize", "detokenize"),
    ),
    (
        ACME.read_text()
        .partition("[endpoints.chat]")[0]
        .replace("[connection]", "endpoints = {}\n[connection]"),
        ("no endpoint", "[decisions]"),
    ),
]


@pytest.mark.parametrize(("text", "facts"), BROKEN)
def test_a_broken_profile_is_refused(tmp_path: Path, text: str, facts: tuple[str, ...]) -> None:
    """The message names the file and the row."""
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with raises_naming(ProfileError, *facts):
        load_profile(str(path))


def test_a_guess_inside_a_table_makes_the_table_one(tmp_path: Path) -> None:
    """What needs all of a table is refused where one of its rows is a guess, and only that; the
    message names the row.
    """
    path = tmp_path / "mine.toml"
    path.write_text('extends = "vllm"\nname = "mine"\nunknown = ["bias.fractions", "tokens"]\n')
    mine = load_profile(str(path))
    with raises_naming(ProfileError, "bias.fractions", "mine"):
        mine.require(["bias"], "this")
    with raises_naming(ProfileError, "tokens", "mine"):
        mine.require(["tokens.id"], "this")
    mine.require(["neutral", "bias.low", "tokenizer"], "this")
    known = {
        row: mine.is_known(row)
        for row in ("bias", "bias.fractions", "bias.low", "tokens.id", "tokenizer")
    }
    assert known == {
        "bias": False,
        "bias.fractions": False,
        "bias.low": True,
        "tokens.id": False,
        "tokenizer": True,
    }


def test_an_address_of_ones_own_is_not_overruled(tmp_path: Path) -> None:
    """The variable of the extended profile is not inherited beside one's own address; it is without
    one, and one's own counts.
    """
    path = tmp_path / "mine.toml"
    for own, variable in (
        ('base_url = "http://127.0.0.1:1/v1"', None),
        ('base_url = "http://127.0.0.1:1/v1"\nbase_url_env = "MINE"', "MINE"),
        ("concurrency = 2", "OPENAI_BASE_URL"),
    ):
        path.write_text(
            f'extends = "openai"\nname = "mine"\n[connection]\napi_key_env = "MY_KEY"\n{own}\n'
        )
        assert load_profile(str(path)).connection.base_url_env == variable
    again = tmp_path / "again.toml"
    path.write_text(
        'extends = "openai"\nname = "mine"\n[connection]\nbase_url ='
        ' "http://127.0.0.1:1/v1"\napi_key_env = "MY_KEY"\n'
    )
    again.write_text(f'extends = "{path.as_posix()}"\nname = "again"\n')
    assert load_profile(str(again)).connection.base_url_env is None


def test_another_address_inherits_nothing_of_the_parents_host(tmp_path: Path) -> None:
    """Row by row: no key, header, key page, model list, batch, price or evidence of them; the rules
    of its requests stay.

    An engine's profile is about a server of the user's own, and so is Azure's, which has no
    address: their keys stay.
    """
    path = tmp_path / "mine.toml"
    elsewhere = '[connection]\nbase_url = "https://example.invalid/v1"\n'
    for parent in NAMES:
        path.write_text(f'extends = "{parent}"\n{elsewhere}api_key_env = "MY_KEY"\n')
        mine, there = load_profile(str(path)), load_profile(parent)
        connection, theirs = mine.connection, there.connection.base_url
        if theirs is None or "127.0.0.1" in theirs or "localhost" in theirs:
            assert connection.base_url_env is None
            assert mine.models == there.models
            continue
        assert connection.secret_variables == ["MY_KEY"]
        assert (connection.api_key_url, connection.base_url_env, connection.rate_limit_headers) == (
            None,
            None,
            {},
        )
        assert not mine.models.model_dump(exclude_defaults=True)
        assert (mine.batch, mine.name) == (None, "mine")
        assert not [
            row
            for row in mine.evidence
            if row.startswith(("models", "batch", "connection.api_key_url"))
        ]
        assert (mine.endpoints, mine.neutral, mine.bias, mine.request) == (
            there.endpoints,
            there.neutral,
            there.bias,
            there.request,
        )
    path.write_text(f'extends = "openai"\n{elsewhere}')
    with raises_naming(
        ProfileError, "connection.api_key_env", "token_env", "api_key_required = false"
    ):
        load_profile(str(path))


@pytest.mark.parametrize("length", [50, 51, 1_500])
def test_a_chain_of_profiles_has_an_end(length: int, tmp_path: Path) -> None:
    """A long one is one sentence with the limit, whatever Python's own limits are."""
    paths = [tmp_path / f"{number}.toml" for number in range(length)]
    names = [*(path.as_posix() for path in paths[1:]), "vllm"]
    for path, name in zip(paths, names, strict=True):
        path.write_text(f'extends = "{name}"')
    if length == 50:
        assert load_profile(str(paths[0])).endpoints == load_profile("vllm").endpoints
        return
    with raises_naming(ProfileError, "50"):
        load_profile(str(paths[0]))
