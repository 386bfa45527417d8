"""Exported biases: what each tool sends is the bias, exactly, whatever stands in a model's name."""

from __future__ import annotations

import json
import logging
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml  # type: ignore[import-untyped]

from blackbox_lb import Bias, logit_bias
from blackbox_lb.bias.export import FORMATS, export
from blackbox_lb.bias.features import FeatureVector, bucket_of
from blackbox_lb.bias.records import Compiled, Entry, PromptRecord, SamplingRecord
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.vocabulary import load_vocabulary
from tests.support.biases import FIELDS, WIDE, feature, length_verdict
from tests.support.commands import blb
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer

VALUES = {0: -1.5, 3: 0.1, 7: 2.0, 10: 1 / 3, 11: -0.0}
SENT = {"0": -1.5, "3": 0.1, "7": 2, "10": 1 / 3, "11": 0}
EVIL = 'it\'s a "$(touch evil)" `x`\\ \nJSON\n# \u202e'
ENDPOINTS = pytest.mark.parametrize("endpoint", ["chat", "completions"])


def learned(endpoint: Any = "chat", **fields: Any) -> Bias:
    """A bias of five tokens, whole numbers among them."""
    drawn = SamplingRecord(max_tokens=8, top_logprobs=5, endpoint=endpoint)
    entries = tuple(Entry(id=token, bias=value) for token, value in VALUES.items())
    rest = {"provider": "own", "model": "exact", "entries": entries, "sampling": drawn}
    return Bias(**FIELDS | rest | fields)


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model of 12 tokens."""
    with ExactServer(ExactModel(12, 8, end=True)) as running:
        yield running


@pytest.fixture
def here(server: ExactServer, monkeypatch: pytest.MonkeyPatch) -> ExactServer:
    """That server as what is exported finds it."""
    monkeypatch.setenv("OPENAI_BASE_URL", server.base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    return server


def run(script: str) -> None:
    """Run a script as it is printed."""
    exec(compile(script, "exported", "exec"), {})


def test_the_numbers(tmp_path: Path) -> None:
    """Ids as JSON has them, whole values as integers, everything else to the last bit, sorted by
    id; of a bias, of its file, and by ``--format json``.
    """
    text = '{"0": -1.5, "3": 0.1, "7": 2, "10": 0.3333333333333333, "11": 0}'
    assert json.dumps(logit_bias(learned())) == text
    learned().save(tmp_path / "b.json")
    assert logit_bias(str(tmp_path / "b.json")) == SENT
    shown = blb("export", tmp_path / "b.json", "--format", "json")
    assert json.loads(shown.stdout) == SENT


@ENDPOINTS
def test_the_openai_script_sends_the_bias(here: ExactServer, endpoint: str) -> None:
    """To the endpoint that the bias was learned on."""
    run(export(learned(endpoint), "openai"))
    ((path, body),) = here.calls
    assert path == ("/v1/chat/completions" if endpoint == "chat" else "/v1/completions")
    assert (body["model"], body["logit_bias"]) == ("exact", SENT)


@ENDPOINTS
def test_the_bias_of_a_prompt_is_computed_where_the_script_runs(
    here: ExactServer, endpoint: str, tmp_path: Path
) -> None:
    """The file stays beside the script; formats that compute nothing are refused."""
    says_hello = FeatureVector(
        name="hello", bucket=bucket_of("hello"), weight=1.0, values=(1.0, 0.0, 0.0, 0.0, 0.0)
    )
    words = feature("words").replacing(vectors=(says_hello,))
    learned(endpoint, features=(words,), sent=WIDE).save(tmp_path / "b.json")
    run(export(tmp_path / "b.json", "openai"))
    (body,) = here.requests
    assert body["logit_bias"] == {"0": VALUES[0] + 1.0, "3": 0.1, "7": 2, "10": 0.3333}
    assert "logit_bias=LOGIT_BIAS" in export(tmp_path / "b.json", "litellm")
    for format in sorted(name for name in FORMATS if "prompt" not in FORMATS[name].scopes):
        with raises_naming(BiasError, f"``format={format}``", "words", "``depends_on``"):
            export(tmp_path / "b.json", format)


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@ENDPOINTS
def test_the_curl_command_sends_the_bias(here: ExactServer, endpoint: str, tmp_path: Path) -> None:
    """Whatever stands in the model's name arrives as it is and runs nothing."""
    text = export(learned(endpoint), "curl", model=EVIL)
    subprocess.run(["sh", "-c", text], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    ((path, body),) = here.calls
    assert path == ("/v1/chat/completions" if endpoint == "chat" else "/v1/completions")
    assert (body["model"], body["logit_bias"]) == (EVIL, SENT)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("format", "endpoint", "function", "prefix"),
    [
        ("litellm", "chat", "completion", "openai/"),
        ("litellm", "completions", "text_completion", "text-completion-openai/"),
        ("langchain", "chat", "ChatOpenAI", ""),
        ("langchain", "completions", "OpenAI", ""),
    ],
)
def test_the_script_of_a_library_gives_the_bias(
    monkeypatch: pytest.MonkeyPatch, format: str, endpoint: str, function: str, prefix: str
) -> None:
    """To the function of the endpoint. LiteLLM takes any OpenAI-compatible API under a prefix; a
    chat model of LangChain has the bias in extra_body, for its own field takes integers only.
    """
    library = MagicMock()
    monkeypatch.setitem(sys.modules, {"langchain": "langchain_openai"}.get(format, format), library)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://there/v1")
    run(export(learned(endpoint), format, model=EVIL))
    ((name, _, given),) = library.method_calls
    address = given["api_base" if format == "litellm" else "base_url"]
    fields = given["extra_body"] if function == "ChatOpenAI" else given
    assert (name, given["model"], address) == (function, prefix + EVIL, "http://there/v1")
    assert fields["logit_bias"] == SENT


def test_vllm_serves_the_file_and_a_request_names_it(server: ExactServer, tmp_path: Path) -> None:
    """Run with a stand-in for vllm: the folder that the server reads holds the bias under the name
    that the request gives.
    """
    file = tmp_path / "it's short.json"
    learned(provider="vllm").save(file)
    learned(provider="vllm").save(tmp_path / "bias.json")
    assert f"cp {tmp_path / 'bias.json'} biases/bias.json" in export(tmp_path, "vllm")
    (tmp_path / "vllm").write_text('#!/bin/sh\nls "$BLB_BIAS_DIR" > served\necho "$@" >> served\n')
    (tmp_path / "vllm").chmod(0o755)
    text = export(file, "vllm", base_url=server.base_url)
    command = f"cd {shlex.quote(str(tmp_path))}\nPATH={shlex.quote(str(tmp_path))}:$PATH\n{text}"
    subprocess.run(["sh", "-c", command], check=True, capture_output=True, timeout=60)
    named, direct = server.requests
    assert (tmp_path / "served").read_text().splitlines() == [
        "it's short.json",
        "serve exact --logits-processors blackbox_lb.serve.vllm:LearnedBias",
    ]
    assert (
        Bias.load(tmp_path / "biases" / f"{named['vllm_xargs']['blb_bias']}.json").logit_bias
        == VALUES
    )
    assert "logit_bias" not in named
    assert direct["logit_bias"] == SENT


def test_vllm_says_where_a_bias_is_too_large_for_a_request() -> None:
    """The server can serve it all the same; no request carries it, and the reason and remedy are
    told.
    """
    entries = tuple(Entry(id=token, bias=0.5) for token in range(1_025))
    text = export(learned(entries=entries), "vllm")
    assert "logit_bias" not in text
    assert (
        "# Not in the request itself: the bias has 1025 entries, vllm takes at most 1024; " in text
    )
    assert "blb compile ``provider=vllm``" in text


@pytest.mark.parametrize("format", sorted(set(FORMATS) - {"vllm"}))
def test_a_bias_that_the_provider_does_not_take_is_refused(format: str) -> None:
    """By every format, and by ``logit_bias``, with the remedy."""
    entries = tuple(Entry(id=token, bias=1.0) for token in range(1_025))
    for refuse in (
        lambda: export(learned(entries=entries, provider="vllm"), format),
        lambda: logit_bias(learned(entries=entries), "vllm"),
    ):
        with raises_naming(BiasError, "1025", "1024", "``provider=vllm``"):
            refuse()


@pytest.mark.usefixtures("tiktoken_cache")
def test_special_tokens_of_openai_are_refused() -> None:
    """OpenAI takes ids up to the end of text. What was compiled for it has none above, so that no
    vocabulary is asked for.
    """
    fields = {"model": "gpt-4o-mini", "tokenizer": load_vocabulary("o200k_base").fingerprint}
    whole = tuple(Entry(id=token, bias=1.0) for token in (5, 200_012))
    bias = learned(entries=whole, **fields)
    with raises_naming(BiasError, "200012", "199999", "1", "2"):
        logit_bias(bias, "openai")
    assert logit_bias(learned(entries=whole[:1], **fields), "openai") == {"5": 1}
    unnamed = learned(provider="openai", model="prod", compiled=Compiled(), entries=whole[:1])
    assert logit_bias(unnamed, "openai") == {"5": 1}
    with raises_naming(InputError, "'prod'", "``tokenizer=o200k_base``"):
        logit_bias(learned(model="prod", entries=whole[:1]), "openai")


def test_keys_stay_in_their_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address, the variable of the key and its header come from the profile; the key itself
    stands nowhere.
    """
    own = tmp_path / "own.toml"
    own.write_text(
        'extends = "vllm"\nname = "own"\n[connection]\nbase_url = "http://own:1/v1"\napi_key_env ='
        ' "OWN_KEY"\napi_key_required = true\napi_key_header = "X-Key"\n'
    )
    monkeypatch.setenv("OWN_KEY", "secret-1")
    for format in ("openai", "litellm", "langchain", "curl"):
        text = export(learned(), format, provider=str(own))
        assert "http://own:1/v1" in text
        assert "X-Key" in text
        assert "OWN_KEY" in text
        assert "secret-1" not in text
    whole = tuple(Entry(id=token, bias=1.0) for token in VALUES)
    azure = learned(provider="azure", compiled=Compiled(), entries=whole)
    for format in ("openai", "curl"):
        assert "AZURE_OPENAI_ENDPOINT" in export(azure, format)
        assert "/openai/v1" in export(azure, format)
    classic = azure.replacing(provider="azure-classic", model="my prod")
    assert '"?api-version=${OPENAI_API_VERSION:-2024-10-21}"' in export(classic, "curl")
    assert (
        'default_query={"api-version": os.environ.get("OPENAI_API_VERSION", "2024-10-21")}'
        in export(classic, "openai")
    )
    assert '"/deployments/my%20prod"' in export(classic, "openai")
    with raises_naming(InputError, "LiteLLM", "api-version"):
        export(classic, "litellm")
    assert "OpenAI()" in export(
        learned(provider="openai", compiled=Compiled(), entries=whole), "openai"
    )


def test_what_is_not_known_is_said() -> None:
    """A provider that comes with no profile has no limits that could be checked, and the comment
    says so; a format is named.
    """
    assert export(learned(), "curl").startswith(
        "# A bias of 5 tokens for exact by blackbox_lb: UNVERIFIED, limits not checked\n"
    )
    assert "not checked" not in export(learned(provider="vllm"), "curl")
    with raises_naming(InputError, "'yaml'"):
        export(learned(), "yaml")


def judged(**fields: Any) -> Bias:
    """The same with a verdict at temperature .5, and texts of its tokens."""
    rows = (
        length_verdict("greedy", "NO EVIDENCE"),
        length_verdict("temperature 0.5", "HELPS"),
    )
    entries = tuple(
        Entry(id=token, bias=value, text=f" token{token}") for token, value in VALUES.items()
    )
    return learned(**{"verdict": rows, "entries": entries, **fields})


WITH_COMMENTS = sorted(name for name, rules in FORMATS.items() if rules.comments)


@pytest.mark.parametrize("format", WITH_COMMENTS)
def test_comments_have_the_texts_and_the_command_the_setting(format: str) -> None:
    """Every format with comments has the text of each token that it sends, and the temperature and
    the limit at which the bias is known to help.
    """
    text = export(judged(provider="vllm"), format)
    sent = [token for token in VALUES if FORMATS[format].limit is None or round(VALUES[token])]
    if format != "llamacpp":  # a server has no such settings
        assert re.search(r"temperature\W{1,4}0\.5\b", text), text
        assert re.search(r"max.(completion.)?tokens\W{1,4}8\b", text), text
    if format != "vllm":  # the bias goes as a file
        assert all(f"' token{token}'" in text for token in sent), text


def test_presets_and_settings_hold_the_numbers() -> None:
    """Read as the tools read them, by their sources, they give the values that are sent."""
    bias = judged()
    rows = json.loads(export(bias, "sillytavern"))
    assert {row["text"].strip("[]"): row["value"] for row in rows} == SENT
    assert len({row["id"] for row in rows}) == len(SENT)
    (model,) = yaml.safe_load(export(bias, "litellm-yaml", model=EVIL))["model_list"]
    assert model["litellm_params"]["model"] == f"openai/{EVIL}"
    assert model["litellm_params"]["logit_bias"] == SENT
    assert model["litellm_params"]["api_base"] == "os.environ/OPENAI_BASE_URL"
    flags = re.findall(r"^  -l (\d+)([+-])(\S+) ", export(bias, "llamacpp"), re.MULTILINE)
    assert {token: float(sign + value) for token, sign, value in flags} == SENT
    words = shlex.split(export(bias, "inspect"), comments=True)
    (pairs,) = [word for word in words if word.startswith("--logit-bias=")]
    assert {
        token: float(value)
        for token, value in (
            pair.split("=") for pair in pairs.removeprefix("--logit-bias=").split(",")
        )
    } == SENT
    (body,) = re.findall(r"^\{.*\}$", export(bias, "openrouter-preset"), re.MULTILINE)
    assert json.loads(body)["logit_bias"] == SENT


def test_litellm_gets_the_address_and_the_key_of_the_provider() -> None:
    """The address that is given, else the provider's own; a variable that holds only a part of it
    is refused. A bias of continuations goes to the endpoint of texts.
    """

    def parameters(**options: Any) -> Any:
        text = export(learned("completions"), "litellm-yaml", **options)
        return yaml.safe_load(text)["model_list"][0]["litellm_params"]

    told = parameters(provider="fireworks")
    assert told["model"] == "text-completion-openai/exact"
    assert told["api_base"] == "https://api.fireworks.ai/inference/v1"
    assert told["api_key"] == "os.environ/FIREWORKS_API_KEY"
    assert parameters(base_url="http://there:1/v1/")["api_base"] == "http://there:1/v1"
    whole = tuple(Entry(id=token, bias=1.0) for token in VALUES)
    azure = learned(provider="azure", compiled=Compiled(), entries=whole)
    with raises_naming(InputError, "/openai/v1", "AZURE_OPENAI_ENDPOINT", "``base_url``"):
        export(azure, "litellm-yaml")
    text = export(azure, "litellm-yaml", base_url="https://a/openai/v1")
    told = yaml.safe_load(text)["model_list"][0]["litellm_params"]
    assert told["extra_headers"] == {"api-key": "os.environ/AZURE_OPENAI_API_KEY"}


def test_what_a_tool_rounds_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """As a comment, or in the log where the format has none; what becomes 0 is left out."""
    said = "3 of 5 values are rounded, by at most 0.50 nats, and 3 become 0"
    text = export(judged(), "llm")
    assert f"# llm takes whole numbers from -100 to 100: {said}" in text
    words = shlex.split(text, comments=True)
    assert json.loads(words[words.index("logit_bias") + 1]) == {"0": -2, "7": 2}
    with caplog.at_level(logging.WARNING):
        assert export(judged(), "open-webui") == "0:-2,7:2\n"
    assert said in caplog.text


def test_phrases_are_the_most_suppressed_texts(caplog: pytest.LogCaptureFixture) -> None:
    """Spellings are one phrase, the most suppressed first; a bias that suppresses little is
    refused. Phrases that a file keeps out come before all, the heaviest first, without patterns.
    """
    values = {1: (" delve", -6.0), 2: ("delve", -9.0), 3: ("tapestry", -5.0), 4: ("is", -4.9)}
    entries = tuple(
        Entry(id=token, bias=value, text=text) for token, (text, value) in values.items()
    )
    with caplog.at_level(logging.WARNING):
        text = export(judged(entries=entries), "koboldcpp-strings")
    assert json.loads(text) == {"banned_tokens": ["delve", "tapestry"]}
    assert "A ban is harder than the bias" in caplog.text
    with raises_naming(BiasError, "1.50", "5"):
        export(judged(), "koboldcpp-strings")
    kept_out = ("a testament to", "delve\t2", "re:not .* but")
    for some in (entries[:1], ()):
        text = export(judged(entries=some, phrases=kept_out), "koboldcpp-strings")
        assert json.loads(text) == {"banned_tokens": ["delve", "a testament to"]}
    many = tuple(f"phrase{number}" for number in range(50))
    text = export(judged(entries=(), phrases=many), "koboldcpp-strings")
    assert json.loads(text) == {"banned_tokens": list(many[:48])}
    assert "48 phrases: the last 2 of 50 are left out" in caplog.text


def test_the_prompts_of_the_fit_are_said() -> None:
    """A tool that asks otherwise asks another question."""
    asked = PromptRecord(template="Ticket: {text}\nTeam:", system="Be short.")
    text = export(judged(prompts=asked), "openai")
    assert (
        "# The fit asked with the template 'Ticket: {text}\\\\nTeam:' and the system message"
        " 'Be short.'." in text
    )


@pytest.mark.parametrize("format", ["pydantic-ai", "dspy"])
def test_scripts_of_other_libraries_are_python(format: str) -> None:
    """Whatever stands in the model's name."""
    compile(export(judged(), format, model=EVIL), format, "exec")
