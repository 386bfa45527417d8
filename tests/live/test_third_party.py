"""Other people's clients through ``blb proxy`` with SmolLM2 behind it: each gets the biased answer,
and the plain one.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

import httpx2
import pytest

from blackbox_lb.api.local.engine import LocalEngine, resolve_model
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from tests.support.environments import OFFLINE, Install, environment, install, output
from tests.support.smollm import FINGERPRINT, ids

__all__ = ["environment"]  # a fixture

JSON: TypeAlias = dict[str, Any]
Endpoint: TypeAlias = Literal["chat", "completions"]

CLIENTS = Path(__file__).with_name("third_party")
PAGE = (Path(__file__).parents[2] / "docs" / "clients.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
PAGE_MODEL = re.compile(r"gpt-4o-mini|gpt-3\.5-turbo-instruct")
MAX_TOKENS = 20
QUESTION, PROMPT = "Is the sky blue?", "Once upon a time"
BIASES: dict[str, dict[str, float]] = {
    "": {},
    "@short": {"<|im_end|>": 6.0},
    "@yes": {" yes": 100.0},
}
"""What a name adds: nothing; 6 nats on the end token, so that the same sentence stops sooner; one
word, whatever is asked.
"""

PACKAGES = {"import litellm": "litellm", "from langchain_openai": "langchain-openai"}


@dataclass(frozen=True)
class Served:
    """An engine and a proxy before it: ``model`` is the engine's own name, ``folder`` holds the
    bias files.
    """

    engine: str
    proxy: str
    model: str
    folder: Path


@cache
def direct(served: Served, endpoint: Endpoint, suffix: str, text: str) -> str:
    """The answer straight from the engine, the bias of ``suffix`` in the request itself."""
    path, body = request(endpoint, served.model, text)
    if suffix:
        bias = Bias.load(served.folder / f"{suffix[1:]}.json")
        body["logit_bias"] = {str(token): value for token, value in bias.logit_bias.items()}
    answer = httpx2.post(served.engine + path, json=body, timeout=60).raise_for_status()
    return text_of(answer.json())


def request(endpoint: Endpoint, model: str, text: str) -> tuple[str, JSON]:
    """Path and body of a greedy request."""
    body = {"model": model, "temperature": 0, "max_tokens": MAX_TOKENS}
    if endpoint == "chat":
        return "/chat/completions", {**body, "messages": [{"role": "user", "content": text}]}
    return "/completions", {**body, "prompt": text}


def text_of(answer: JSON) -> str:
    """The text of the only choice, of a whole answer or of one streamed chunk."""
    (choice,) = answer["choices"]
    part = choice.get("message") or choice.get("delta") or choice
    return part.get("content") or part.get("text") or ""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """SmolLM2 behind a proxy with two biases."""
    pytest.importorskip("xllamacpp")
    pytest.importorskip("aiohttp")
    folder = tmp_path_factory.mktemp("biases")
    with LocalEngine(resolve_model(), parallel=4, context=512, threads=2) as engine:
        model = httpx2.get(f"{engine.base_url}/models").json()["data"][0]["id"]
        for suffix in ("@short", "@yes"):
            save_bias(folder / f"{suffix[1:]}.json", model, BIASES[suffix])
        files = [f"--bias={suffix[1:]}={folder / suffix[1:]}.json" for suffix in ("@short", "@yes")]
        with running_proxy(*files, "--upstream", engine.base_url) as proxy:
            yield Served(engine.base_url, proxy, model, folder)


def save_bias(path: Path, model: str, words: dict[str, float]) -> None:
    """A bias file with these words of the model's vocabulary, in nats."""
    Bias(
        provider="llamacpp",
        model=model,
        tokenizer=FINGERPRINT,
        reward="length",
        estimator="ips",
        entries=tuple(Entry(id=ids()[word.encode()], bias=value) for word, value in words.items()),
    ).save(path)


@contextmanager
def running_proxy(*options: str) -> Iterator[str]:
    """The address of a running ``blb proxy``, which must end in order when it is told to."""
    command = [sys.executable, "-m", "blackbox_lb", "proxy", *options, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        first = process.stdout.readline() if process.stdout is not None else ""
        address = re.match(r"blb proxy at (\S+) ", first)
        assert address, first
        yield address[1]
    finally:
        process.terminate()
        _, complaints = process.communicate(timeout=60)
    assert process.returncode == 0, complaints


def curl(served: Served, endpoint: Endpoint, suffix: str, text: str, **options: Any) -> str:
    """What curl prints, ``-N``: as it arrives."""
    path, body = request(endpoint, served.model + suffix, text)
    header = "Content-Type: application/json"
    return output(
        "curl",
        "-sS",
        "-N",
        "-m",
        "60",
        "-H",
        header,
        "-d",
        json.dumps({**body, **options}),
        served.proxy + path,
    )


def chunks(stream: str) -> list[JSON]:
    """The events of a stream that ends with ``[DONE]``."""
    lines = [line.removeprefix("data: ") for line in stream.splitlines() if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.live
def test_the_biases_show_on_the_engine_itself(served: Served) -> None:
    """Greedily, the raised end token cuts the same answer short and the raised word is all that
    comes: what clients must see.
    """
    plain, short, yes = (direct(served, "chat", suffix, QUESTION) for suffix in BIASES)
    assert 0 < len(short) < len(plain)
    assert plain.startswith(short)
    assert yes == " yes" * MAX_TOKENS
    assert (
        direct(served, "completions", "@yes", PROMPT)
        == yes
        != direct(served, "completions", "", PROMPT)
        != ""
    )


@pytest.mark.live
@pytest.mark.parametrize("suffix", BIASES)
@pytest.mark.parametrize(("endpoint", "text"), [("chat", QUESTION), ("completions", PROMPT)])
def test_curl(served: Served, endpoint: Endpoint, text: str, suffix: str) -> None:
    """The answer under each name is the engine's own with that bias, whole and as the sum of
    streamed pieces.
    """
    expected = direct(served, endpoint, suffix, text)
    assert text_of(json.loads(curl(served, endpoint, suffix, text))) == expected
    pieces = [text_of(chunk) for chunk in chunks(curl(served, endpoint, suffix, text, stream=True))]
    assert "".join(pieces) == expected
    assert len(pieces) > 1


@pytest.mark.live
def test_curl_under_the_models_own_name(served: Served) -> None:
    """A bias without an alias is what the model's own name gets."""
    with running_proxy(
        "--bias", str(served.folder / "short.json"), "--upstream", served.engine
    ) as proxy:
        biased = Served(served.engine, proxy, served.model, served.folder)
        answer = text_of(json.loads(curl(biased, "chat", "", QUESTION)))
    assert (
        answer == direct(served, "chat", "@short", QUESTION) != direct(served, "chat", "", QUESTION)
    )


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the official SDK in its current version."""
    folder = tmp_path_factory.mktemp("node")
    install(folder, "npm", "install", "--prefix", folder, "--no-audit", "--no-fund", "openai")
    print(
        "openai for Node",
        json.loads((folder / "node_modules/openai/package.json").read_text())["version"],
    )
    return folder


@pytest.fixture(params=["node", "litellm", "langchain-openai"])
def client(request: pytest.FixtureRequest) -> list[Path]:
    """The command that runs a script of ``third_party``."""
    name = request.param
    if name == "node":
        folder: Path = request.getfixturevalue("node")
        script = shutil.copy(
            CLIENTS / "node_client.mjs", folder
        )  # node looks for packages beside the script
        return [Path("node"), Path(script)]
    python = request.getfixturevalue("environment")(name) / "python"
    return [python, CLIENTS / f"{name.partition('-')[0]}_client.py"]


@pytest.mark.live
@pytest.mark.slow
def test_sdk(served: Served, client: list[Path]) -> None:
    """Whole, streamed, legacy and sent again after a 500: the engine's own answers; an unknown
    alias raises the SDK's 404.
    """
    asked = {
        "base_url": served.proxy,
        "model": served.model,
        "suffixes": list(BIASES),
        "max_tokens": MAX_TOKENS,
    }
    asked |= {"question": QUESTION, "prompt": PROMPT}
    found = json.loads(
        output(*client, folder=CLIENTS, REQUEST=json.dumps(asked), **OFFLINE).splitlines()[-1]
    )
    unknown = found.pop("unknown")
    assert unknown["status"] == 404
    assert f"{served.model}@short" in unknown["message"]
    assert list(found) == list(BIASES)
    for suffix, row in found.items():
        chat = direct(served, "chat", suffix, QUESTION)
        assert len(row["streamed"]) > 1
        assert {**row, "streamed": "".join(row["streamed"])} == {
            "chat": chat,
            "streamed": chat,
            "completions": direct(served, "completions", suffix, PROMPT),
            "finish_reason": "stop" if suffix == "@short" else "length",
            **({"retried": chat, "attempts": 2} if client[0].name == "node" else {}),
        }
        print(
            f"{client[0].name if client[0].name == 'node' else client[1].stem}"
            f" {served.model}{suffix}: {chat!r}"
        )


def block(marker: str, served: Served, suffix: str = "@short") -> str:
    """The page's one block with this text in it, for the proxy and the model at hand."""
    (text,) = [text for _, text in BLOCKS if marker in text]
    text = text.replace("http://127.0.0.1:8080/v1", served.proxy).replace("@short", suffix)
    return PAGE_MODEL.sub(served.model, text).removeprefix("$ ").replace("\\\n", "")


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize(
    ("endpoint", "suffix"),
    [
        ("chat", ""),
        ("chat", "@short"),
        ("chat", "@yes"),
        ("completions", ""),
        ("completions", "@yes"),
    ],
)
def test_lm_eval(
    served: Served, environment: Install, tmp_path: Path, endpoint: Endpoint, suffix: str
) -> None:
    """The page's command logs the engine's own answers, and the score is theirs: all of them "yes"
    under that bias alone.
    """
    marker = "local-chat-completions" if endpoint == "chat" else "local-completions"
    command = shlex.split(block(marker, served, suffix).replace("gsm8k", "yes_no"))
    command += ["--include_path", str(CLIENTS), "--gen_kwargs", f"max_gen_toks={MAX_TOKENS}"]
    command += ["--log_samples", "--output_path", str(tmp_path)]
    output(
        environment("lm-eval[api]") / command[0],
        *command[1:],
        HF_HOME=str(tmp_path / "hub"),
        **OFFLINE,
    )
    (log,) = tmp_path.rglob("samples_yes_no_*.jsonl")
    (results,) = tmp_path.rglob("results_*.json")
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    assert len(rows) == 3
    for row in rows:
        assert row["resps"] == [[direct(served, endpoint, suffix, row["doc"]["question"])]]
    score = json.loads(results.read_text())["results"]["yes_no"]["exact_match,first-word"]
    print(f"lm_eval, {marker}, {served.model}{suffix}: exact_match {score}")
    assert (score == 1) is (suffix == "@yes")


@pytest.mark.live
def test_the_pages_curl(served: Served) -> None:
    """The page's command line prints the biased answer."""
    printed = output("bash", "-c", block("curl -sS", served), OPENAI_API_KEY="none")
    assert text_of(json.loads(printed)) == direct(served, "chat", "@short", QUESTION)


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("marker", ["import litellm", "from langchain_openai"])
def test_the_pages_python(served: Served, environment: Install, marker: str) -> None:
    """Each snippet prints the biased answer."""
    python = environment(PACKAGES[marker]) / "python"
    assert output(python, "-c", block(marker, served), **OFFLINE).strip() == direct(
        served, "chat", "@short", QUESTION
    )


@pytest.mark.live
@pytest.mark.slow
def test_the_pages_node(served: Served, node: Path) -> None:
    """The snippet prints the biased answer, and so it does with the address in the environment
    alone.
    """
    script, bare = node / "snippet.mjs", node / "bare.mjs"
    script.write_text(block('from "openai"', served))
    bare.write_text(re.sub(r"new OpenAI\(.*\)", "new OpenAI()", script.read_text()))
    expected = direct(served, "chat", "@short", QUESTION)
    assert output("node", script, **OFFLINE).strip() == expected
    assert output("node", bare, OPENAI_BASE_URL=served.proxy, **OFFLINE).strip() == expected


@pytest.mark.live
@pytest.mark.slow
def test_the_pages_llm(served: Served, environment: Install, tmp_path: Path) -> None:
    """With the page's YAML where llm looks for it, its command line streams the biased answer."""
    (tmp_path / "extra-openai-models.yaml").write_text(block("model_id: short", served))
    command = shlex.split(block("llm -m", served))
    printed = output(
        environment("llm") / command[0], *command[1:], LLM_USER_PATH=str(tmp_path), **OFFLINE
    )
    assert printed.strip() == direct(served, "chat", "@short", QUESTION)


def test_every_block_of_the_page_is_tested() -> None:
    """Each is one of those that the tests above run, or a ``blb`` command line: see
    ``docs/test_snippets.py``.
    """
    run = [
        "curl -sS",
        'from "openai"',
        "local-chat-completions",
        "local-completions",
        "model_id: short",
        "llm -m",
    ]
    for _, text in BLOCKS:
        if not text.startswith("$ blb "):
            assert sum(marker in text for marker in [*run, *PACKAGES]) == 1, text
