"""Every line of ``blb`` on a page is run, page by page, with an exact model
where the page has its server.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx2
import pytest

from blackbox_lb.bias.document import Bias
from tests.docs.test_snippets import command_of, parse
from tests.encodings import register_encoding
from tests.support.commands import asking, blb, options
from tests.support.deciding_upstream import TEAM, mended
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway
from tests.support.installed import MODULE, documented, put_package
from tests.support.questions import write_rows

pytestmark = pytest.mark.needs("lm_eval")

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
MODEL = ExactModel(24, 8, seed=2, end=True, prompts=8, sharpness=0.7)
END = MODEL.vocab_size - 1
KEYS = {
    "openai": "OPENAI_API_KEY",
    "azure": "AZURE_OPENAI_API_KEY",
    "fireworks": "FIREWORKS_API_KEY",
    "openrouter": "OPENROUTER_API_KEY",
    "together": "TOGETHER_API_KEY",
}
HOSTED = {
    "openai": "gpt-4o-mini",
    "azure": "gpt-4o-mini",
    "fireworks": "accounts/fireworks/models/gateway",
    "openrouter": "openai/gpt-4o-mini",
    "together": "Qwen/Qwen3.5-9B",
}
LARGER = {"fireworks", "openrouter", "together"}
"""Hosts of which the encoding here has more tokens than the model: the doctor contradicts them."""
SAMPLES = {"collect", "doctor", "eval", "fit"}
"""Commands that send prompts: their completions are made short."""
FEW = {
    "collect": {"--samples-per-prompt": "3"},
    "eval": {"--test-samples": "2"},
    "fit": {
        "--samples-per-prompt": "3",
        "--validation-samples": "2",
        "--test-samples": "2",
        "--l2": "5",
    },
}
"""And few, and one strength, where a page leaves them to the defaults: a line that runs with these
runs with more.
"""


def command_lines(page: Path) -> list[list[str]]:
    """The words after ``blb`` of every line that a reader would type, continued lines joined."""
    blocks = re.findall(
        r"^```console\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = (re.match(r"\$ (?:uv run )?blb (.*)", line) for line in lines)
    return [shlex.split(each[1], comments=True) for each in found if each]


@pytest.fixture(scope="module")
def engine() -> Iterator[ExactServer]:
    """The exact model that stands behind every provider here."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture
def gateways(engine: ExactServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Provider -> address of its rules on loopback, and the exact model's vocabulary as an encoding
    of tiktoken.
    """
    register_encoding(monkeypatch, "pages", engine.texts, END)
    monkeypatch.setattr("blackbox_lb.extras.batches.run.FIRST_PAUSE", 0.0)
    for variable in KEYS.values():
        monkeypatch.setenv(variable, "a-key")
    running = {name: RulesGateway(name, engine, key="a-key").__enter__() for name in KEYS}
    yield {name: gateway.base_url for name, gateway in running.items()}
    for gateway in running.values():
        gateway.__exit__(None, None, None)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory, engine: ExactServer) -> Path:
    """A folder with the files that the pages name, and a run for pages that start from one."""
    root, word = tmp_path_factory.mktemp("prepared"), engine.texts[3].strip()
    rows = [{"prompt": f"question {n}", "answer": word} for n in range(30)]
    sums = [
        {"question": f"What is {n} and 1?", "answer": f"It is {n + 1}.\n#### {n + 1}"}
        for n in range(1200)
    ]
    (root / "gsm8k").mkdir()
    other = [{"prompt": f"other {n}", "answer": word} for n in range(20)]
    decisions = [{**row, "answer": engine.texts[3 + n % 2].strip()} for n, row in enumerate(rows)]
    labels = [text.strip() for text in engine.texts[3:5]]
    survey: list[dict[str, Any]] = [
        {"prompt": f"survey {n}", "answer": dict(zip(labels, (3, 1), strict=True)), "city": city}
        for n, city in enumerate(["Oslo", "Quito"] * 15)
    ]
    files: dict[str, Sequence[object]] = {
        "survey": survey,
        "train": rows,
        "test": other,
        "decisions": decisions,
        "gsm8k/train": sums[:1100],
        "gsm8k/test": sums[1100:],
    }
    for name, lines in files.items():
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    (root / "questions.csv").write_text(
        "question,gold\n" + "".join(f"q {n},{word}\n" for n in range(30))
    )
    lines_of_text = [f"Write a story, in {n} lines, about rain." for n in range(1, 31)]
    (root / "prompts.txt").write_text("\n".join(lines_of_text))
    (root / "list.txt").write_text(f"{word} 2\n{engine.texts[0].strip()}\n")
    task = options(data=root / "train.jsonl", reward="contains", out=root / "runs" / "train")
    few = [word for pair in FEW["fit"].items() for word in pair]
    run(["fit", *asking(engine, max_tokens=8), *task, *few])
    (root / "runs" / "train" / "run.json").unlink()  # pages may replace it, but not their own runs
    shutil.copy(root / "runs" / "train" / "bias.json", root)
    (root / "runs" / "stories").mkdir()
    phrases = " ".join(text.strip() for text in engine.texts[:2])
    with_phrases = Bias.load(root / "bias.json").replacing(phrases=(phrases,))
    with_phrases.save(root / "runs" / "stories" / "bias.json")
    (root / "runs" / "team").mkdir()
    learned = Bias.load(root / "bias.json").replacing(entries=(), decisions=(mended(TEAM),))
    learned.save(root / "runs" / "team" / "bias.json")
    shutil.copy(ROOT / "tests" / "docs" / "rewards_of_a_page.py", root / "rewards.py")
    for name in ("machine1.db", "machine2.db", "broken.db"):
        shutil.copy(root / "runs" / "train" / "rollouts.db", root / name)
    os.truncate(root / "broken.db", (root / "broken.db").stat().st_size // 2)
    save_tokenizer(root / "smollm2")
    return root


def save_tokenizer(folder: Path) -> None:
    """A model's folder with a vocabulary of single bytes."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: n for n, letter in enumerate(letters)}, [])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))


@pytest.fixture
def folder(tmp_path: Path, prepared: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A working directory of one's own with all of it."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    names = {"polite": f"{MODULE}:Polite"}
    monkeypatch.syspath_prepend(put_package(tmp_path, documented(), "polite-rewards", names))
    yield
    sys.modules.pop(MODULE, None)


def run(words: list[str]) -> None:
    """One command in this process; exit code 0."""
    result = blb(*words)
    # blb doctor ends with 1 where a claim is contradicted.
    expected = {0, 1} if words[0] == "doctor" and LARGER & set(words) else {0}
    assert result.exit_code in expected, (words, result.output)


def option(words: list[str], name: str) -> str | None:
    """The value that a line gives to an option."""
    return words[words.index(name) + 1] if name in words else None


def without(words: list[str], *names: str) -> list[str]:
    """The words without these options and their values."""
    drop = {
        place + shift
        for name in names
        if name in words
        for place in [words.index(name)]
        for shift in (0, 1)
    }
    return [word for place, word in enumerate(words) if place not in drop]


def here(words: list[str], engine: ExactServer, gateways: dict[str, str]) -> list[str]:
    """The line with this machine's servers in place of the page's, and short completions."""
    provider = option(words, "--provider")
    if provider == "vllm" and "--batch" in words:  # asks no server
        return [*words, "--max-tokens", "8"]
    if provider in HOSTED:
        there = options(tokenizer="pages", base_url=gateways[provider])
        words = [*without(words, "--tokenizer", "--base-url"), *there]
        words[words.index("--model") + 1] = HOSTED[provider]
        words = [*words, *(["--yes"] if words[0] == "doctor" else [])]
    elif provider is not None:
        if provider.endswith(".toml"):  # a hosted model's own name and vocabulary
            words = without(words, "--model", "--tokenizer")
        words = [*without(words, "--base-url", "--provider"), *asking(engine)]
    if option(words, "--task") == "lm-eval:gsm8k":
        words = [*without(words, "--data-dir"), "--data-dir", "gsm8k"]
        if words[0] == "fit":
            few = options(limit=30, validation_limit=10, test_limit=10)
            words = [*without(words, *few[::2]), *few]
    if (option(words, "--reward") or "").startswith("avoid:delve,"):
        listed = ",".join(text.strip() for text in engine.texts[:4])
        words[words.index("--reward") + 1] = f"avoid:{listed}"
    if option(words, "--task") == "capitals":  # the exact model writes no English
        words = [*without(words, "--task"), "--data", "train.jsonl", "--out", "runs/capitals"]
    if words[0] == "fit" and option(words, "--task") == "continents" and "--out" not in words:
        words = [*words, "--out", "runs/continents"]
    if option(words, "--task") == "continents" or {"--labels", "labels-only"} & set(
        words
    ):  # nor its labels
        labels = ",".join(text.strip() for text in engine.texts[3:5])
        decision = options(data="decisions.jsonl", labels=labels)
        words = [*without(words, "--task", "--data", "--labels"), *decision]
        words = [*words, *([] if "--out" in words else ["--out", f"runs/{words[0]}-decisions"])]
    if option(words, "--correct") == "exact-match":  # and no word alone
        words = without(words, "--correct")
    if option(words, "--task") == "lm-eval:gsm8k":  # and no sums
        words = [*without(words, "--reward"), "--reward", "length"]
    if words == ["init"]:  # what a reader types
        words = ["init", *asking(engine, data="train.jsonl"), "--yes"]
    fewer = [
        word
        for name, number in FEW.get(words[0], {}).items()
        if name not in words
        for word in (name, number)
    ]
    return [*words, *fewer, *(["--max-tokens", "8"] if words[0] in SAMPLES - {"doctor"} else [])]


def serve(words: list[str], engine: ExactServer) -> None:
    """``blb proxy`` as a process of its own: it says where it listens, answers one request, and
    stops when asked.
    """
    words = [*without(words, "--upstream"), "--upstream", engine.base_url, "--port", "0"]
    command = [sys.executable, "-m", "blackbox_lb", *words]
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as proxy:
        watchdog = threading.Timer(60, proxy.kill)
        watchdog.start()
        try:
            assert proxy.stdout is not None
            address = re.findall(r"http://127\.0\.0\.1:\d+/v1", proxy.stdout.readline())[0]
            assert httpx2.get(f"{address}/models", trust_env=False).status_code == 200
        finally:
            watchdog.cancel()
            proxy.terminate()


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "page", [page for page in PAGES if command_lines(page)], ids=lambda page: page.stem
)
def test_the_lines_of_a_page_run(
    page: Path, engine: ExactServer, gateways: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after the other, in a folder that has what the page says there is; as it stands there
    each line is read, too, but for a reward that the page leaves to its blb.toml.
    """
    for words in command_lines(page):
        for param in command_of(words).params:
            if param.name == "reward":
                monkeypatch.setattr(param, "required", False)
        parse(words)
        if words[0] == "proxy":
            serve(words, engine)
        elif words[0] != "serve":  # needs an engine: tests/live/test_serve.py
            run(here(words, engine, gateways))
        if option(words, "--per-completion") == "lines.jsonl":
            mark(Path("lines.jsonl"), Path("marked.jsonl"))


def mark(written: Path, marked: Path) -> None:
    """What people do between two lines of a page: they mark the first letter of each completion."""
    rows = [json.loads(line) for line in written.read_text().splitlines()]
    for row in rows:
        row["marks"] = row["completion"].split()[:1]
    write_rows(marked, rows)
