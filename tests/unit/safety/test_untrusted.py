"""Files and requests of strangers: bounded, never run, and never able to move a cursor, run in a
page or reach another host.
"""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
from click.testing import Result

from blackbox_lb.api.connect import connect
from blackbox_lb.bias.document import MAX_BYTES, Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.cli import keys
from blackbox_lb.cli.commands import COMMANDS, load_command
from blackbox_lb.cli.echo import print_json
from blackbox_lb.cli.found import FLAGS, PATHS, TEXTS
from blackbox_lb.cli.settings import keys_of
from blackbox_lb.cli.terminal import Terminal, print_table
from blackbox_lb.deploy.injection import Injection
from blackbox_lb.deploy.proxy.bodies import ServedBiases
from blackbox_lb.deploy.proxy.error_answers import ErrorAnswer
from blackbox_lb.deploy.proxy.served import ServedBias
from blackbox_lb.deploy.proxy.upstream import Upstream
from blackbox_lb.errors import DataError, InputError
from blackbox_lb.extras.report.page_text import tame
from blackbox_lb.safety.untrusted import open_regular, parse_json, parse_toml, read_bounded
from blackbox_lb.tasks import load_examples, parse_reward
from blackbox_lb.tasks.rewards.registry import find
from tests.support.biases import feature
from tests.support.commands import blb, options
from tests.support.errors import raises_naming
from tests.support.proxy_upstream import VALUES, bias, plain, proxied

ROOT = Path(__file__).parents[3]
HOSTILE = (
    "\x1b[31mred \x1b]8;;http://evil\x07link\x1b]8;;\x07 \u202eevil\u202c \u200bhidden\ufeff \x9b2J"
    " \x00 [bold red]x[/]"
)
"""Colours, an OSC 8 link, bidirectional overrides, zero-width and C1 characters, a NUL, and the
markup of rich.
"""


def nested(depth: int) -> str:
    """A list in a list in a list."""
    return "[" * depth + "]" * depth


DIGITS = "9" * 5_000


@pytest.mark.parametrize(
    ("parse", "text", "fact"),
    [
        (parse_toml, f"a = {DIGITS}", "4,300"),
        (parse_json, '{"a":' * 5_000 + "1" + "}" * 5_000, "200"),
        (parse_json, "[" + "[]," * 1_000 + nested(200) + "]", "200"),
        (parse_toml, "a = " + "[" * 100_000, "200"),
        (parse_toml, "[" + "a." * 5_000 + "a]", "200"),
        (parse_toml, "a = " + "{b = " * 5_000, "200"),
        (parse_json, '[{"a": 1, "b": {"a": 1, "c": 1}}, {"a": 1, "a": 2}]', "'a'"),
    ],
)
def test_depth_digits_and_keys_are_bounded(
    parse: Callable[[bytes], object], text: str, fact: str
) -> None:
    """A key that stands twice is read by nobody; the reason is about the file, not about a setting
    of Python.
    """
    with raises_naming(ValueError, fact) as error:
        parse(text.encode())
    assert "sys." not in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        nested(200),
        f"[{DIGITS[:4_300]}]",
        '["' + "[" * 1_000 + '"]',
        "[" + "[]," * 1_000 + "{}]",
    ],
)
def test_what_is_at_the_limits_is_read(text: str) -> None:
    """Brackets in texts are no depth, and neither are many beside each other."""
    assert parse_json(text)


@contextmanager
def piped(content: bytes, *, delay: float = 0.0) -> Iterator[Path]:
    """The path of a pipe that a program writes to, as ``<(command)`` gives it."""
    reading, writing = os.pipe()

    def write() -> None:
        os.write(writing, content)
        os.close(writing)

    writer = threading.Timer(delay, write)
    writer.start()
    try:
        yield Path(f"/dev/fd/{reading}")
    finally:
        writer.join()
        os.close(reading)


@pytest.mark.parametrize("delay", [0.0, 0.1])
def test_a_pipe_is_read_as_a_file_is(delay: float, tmp_path: Path) -> None:
    """All that a program writes, now or later, within the limit, though a pipe has no size."""
    with piped(b"x" * 11, delay=delay) as path:
        assert read_bounded(path, 11) == b"x" * 11
    with piped(b"x" * 11, delay=delay) as path, raises_naming(ValueError, "10"):
        read_bounded(path, 10)
    (tmp_path / "file").write_bytes(b"x" * 11)
    assert read_bounded(tmp_path / "file", 11) == b"x" * 11
    with raises_naming(ValueError, "10"):
        read_bounded(tmp_path / "file", 10)


@pytest.mark.parametrize("read", [lambda path: read_bounded(path, 10), open_regular])
def test_what_nobody_writes_to_is_refused_at_once(
    tmp_path: Path, read: Callable[[Path], object]
) -> None:
    """A pipe without a writer and a device: opening or reading them would wait for ever."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(OSError, match="file"):
            read(path)
    assert read_bounded(Path(os.devnull), 10) == b""


CAPITALS = "fit --provider vllm --task capitals --dry-run"


@pytest.mark.parametrize(
    "words",
    [
        "fit --provider vllm --reward contains --dry-run --data pipe.jsonl",
        "fit --provider vllm --reward contains --dry-run --data pipe.parquet",
        f"{CAPITALS} --reward avoid:pipe.txt",
        f"{CAPITALS} --reward json-schema:pipe.json",
        f"{CAPITALS} --reward length --provider pipe.toml",
        f"{CAPITALS} --reward length --tools pipe.json",
        "show pipe.json",
    ],
)
def test_no_command_waits_for_a_pipe_without_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    """Data, lists, schemas, profiles, tools and bias files: the file is named, exit code 2."""
    monkeypatch.chdir(tmp_path)
    name = re.split("[ :]", words)[-1]
    os.mkfifo(name)
    # A command that waits for a writer gets one in the end, so that the test fails and ends.
    rescue = threading.Timer(60, lambda: Path(name).write_bytes(b""))
    rescue.daemon = True
    rescue.start()
    result = blb(*words.split())
    rescue.cancel()
    assert result.exit_code == 2, result.output
    assert name in result.output
    assert "file" in result.output
    assert "Traceback" not in result.output


def test_what_stands_twice_costs_no_more_than_reading(tmp_path: Path) -> None:
    """The last of 50,000 keys, and the last of 20,000 columns: refused in the time that reading
    takes, because the proxy answers nobody else meanwhile.
    """
    text = "{" + ",".join(f'"{number}":0' for number in range(50_000)) + ',"x":0,"x":0}'
    path = tmp_path / "wide.csv"
    path.write_text(",".join(["prompt", *map(str, range(20_000)), "prompt"]) + "\n")
    started = time.process_time()
    with raises_naming(ValueError, "'x'"):
        parse_json(text)
    with raises_naming(DataError, "prompt'"):
        load_examples(path)
    assert time.process_time() - started < 2


def test_a_dense_bias_of_150000_tokens_loads(tmp_path: Path) -> None:
    """The limits leave room for the largest vocabularies: a bias on every token, with texts and
    errors, is a quarter of them.
    """
    rows = [
        {
            "id": n,
            "bytes": f"{n:08x}",
            "text": f" tøken{n}",
            "bias": n / 7e4 - 1.01,
            "error": 0.123456789,
            "seen": n,
        }
        for n in range(150_000)
    ]
    head = {"format": "blackbox-lb/bias", "version": 4, "provider": "vllm", "model": "m"}
    head |= {"tokenizer": "t", "reward": "length", "estimator": "ips"}
    text = json.dumps({**head, "entries": rows})
    (tmp_path / "bias.json").write_text(text, encoding="utf-8")
    assert (tmp_path / "bias.json").stat().st_size < MAX_BYTES / 3
    loaded = Bias.load(tmp_path / "bias.json")
    assert len(loaded.entries) == 150_000
    assert loaded.entries[-1] == Entry(**rows[-1])


def test_a_small_parquet_file_cannot_fill_the_memory(tmp_path: Path) -> None:
    """A file of a few kilobytes whose rows would take gigabytes is refused after the limit,
    quickly.
    """
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    schema = pyarrow.schema([("prompt", pyarrow.string())])
    path = tmp_path / "bomb.parquet"
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        batch = pyarrow.table({"prompt": pyarrow.array(["x" * 100_000] * 100)})
        for _ in range(100):
            writer.write_table(batch)
    assert path.stat().st_size < 2**20
    with raises_naming(DataError, "268,435,456"):
        load_examples(path)


def test_no_file_of_the_package_unpickles_or_evaluates() -> None:
    """No pickle, no eval, no YAML loader, and numpy's own format only with pickles refused."""
    for path in (ROOT / "blackbox_lb").rglob("*.py"):
        source = path.read_text(encoding="utf-8")
        modules = ("pickle", "dill", "shelve", "marshal")
        words = [f"import {module}" for module in modules]
        for word in (*words, "yaml.load(", "allow_pickle=True", "joblib"):
            assert word not in source, (path, word)
        assert " eval(" not in source.replace("re.eval(", ""), path
        if "np.load(" in source:
            assert "allow_pickle=False" in source, path


@pytest.mark.parametrize(
    ("spec", "form"),
    [
        ("rewards:score", "module:function"), ("pkg.mod:Class.score", "module:function"),
        ("regex:a.b", "regex"), ("judge:judge.toml", "judge"), ("https://host/path", "https"),
        ("http://host", "https"), ("length", "length"), ("json-schema:a.json", "json-schema"),
        ("https:pwn", "https"), ("http:pwn", "https"), ("HTTPS:pwn", "https"), ("regex:pwn", "regex"),
        ("judge:pwn", "judge"), ("json-schema:pwn", "json-schema"), ("length:pwn", "module:function"),
        ("no-module:pwn", None),
    ],
)  # fmt: skip
def test_what_a_reward_names(
    spec: str, form: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard and the interpreter read a spec alike: code runs where the form is a function, and
    nowhere else.
    """
    named = find(spec)
    assert (None if named is None else named[0].name) == form
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    module = spec.partition(":")[0].partition(".")[0]
    for name in (module, module.lower()):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with suppress(InputError):
        parse_reward(spec, max_tokens=5)
    if form == "module:function":
        sys.modules.pop(module, None)
    assert (tmp_path / "ran").exists() is (form == "module:function")


def plant(folder: Path, settings: str) -> None:
    """Write a settings file, a module that leaves a trace when it is imported, and rows."""
    sys.modules.pop("planted", None)
    (folder / "blb.toml").write_text(settings)
    (folder / "planted.py").write_text(
        f"open({str(folder / 'ran')!r}, 'w').close()\ndef score(a, b): return 0.0\n"
    )
    (folder / "d.jsonl").write_text("".join(f'{{"prompt": "p{n}"}}\n' for n in range(30)))


@pytest.mark.parametrize(
    ("command", "row"),
    [
        ("fit", 'provider = "mine.toml"'), ("fit", 'base_url = "http://h/v1"'), ("fit", "yes = true"),
        ("fit", 'base_url = "http://127.0.0.1@h/v1"'), ("fit", 'base_url = "http://127.0.0.1.h/v1"'),
        ("fit", 'base_url = "http://[127.0.0.1/v1"'), ("fit", 'base_url = "http://h#@localhost/v1"'),
        ("fit", 'reward = "planted:score"'), ("fit", 'reward = "judge:j.toml"'), ("fit", 'reward = "https://h/r"'),
        ("fit", 'reward = "http://127.0.0.1/r"'), ("fit", 'reward = "avoid:/etc/passwd"'),
        ("fit", 'phrases = "/etc/passwd"'), ("fit", 'phrases = "../words.txt"'),
        ("fit", 'reward = "json-schema:../s.json"'), ("fit", 'reward = "marks:.env"'),
        ("fit", 'depends_on = "embedding:m@http://h/v1"'), ("fit", 'depends_on = ["words", "embedding:m"]'),
        ("fit", 'data = "/etc/passwd"'), ("fit", 'data = "../d.jsonl"'), ("fit", 'data = "~/d.jsonl"'),
        ("fit", 'data = ".env"'), ("fit", 'data = "away/d.jsonl"'), ("fit", 'test_data = "hf:../../x"'),
        ("fit", 'tokenizer = "/elsewhere/t.json"'), ("fit", 'tools = "../tools.json"'), ("fit", 'prices = "/p.toml"'),
        ("fit", 'data_dir = ".."'), ("fit", 'rollouts = ["runs/*", "../runs/*"]'), ("fit", 'objective = "cost:../c.json"'),
        ("fit", 'out = "../x"'), ("fit", 'store = "/elsewhere/x.db"'), ("fit", "restart = true"),
        ("eval", "save = true"), ("eval", 'rival = "classifier:embedding:m"'), ("eval", 'rival = ["words:/w.txt:-2"]'),
        ("eval", 'rival = "phrases:/etc/passwd"'), ("eval", 'rival = ["phrases:../words.txt"]'),
        ("report", 'out = "~/.bashrc"'), ("report", 'out = ".git/hooks/x"'), ("report", 'out = "away/x"'),
        ("report", 'plots = "/etc"'), ("doctor", 'save = "../mine.toml"'), ("score", 'per_completion = "../x"'),
        ("proxy", 'upstream = "http://h/v1"'), ("proxy", 'host = "0.0.0.0"'), ("proxy", 'allow_host = "h"'),
        ("proxy", 'allow_origin = "*"'), ("proxy", 'bias = "s=../b.json"'), ("proxy", 'bias = "s=~/b.json"'),
        ("export", 'base-url = "http://h/v1"'), ("init", "force = true"), ("collect", "cancel = true"),
    ],
)  # fmt: skip
def test_a_found_file_reaches_no_key_host_or_other_folder(
    command: str, row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such option is refused before the command begins, by its name; named, it arrives."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "away").symlink_to(tmp_path)
    monkeypatch.chdir(folder)
    (folder / "blb.toml").write_text(f"[{command}]\n{row}\n")
    loaded = load_command(command)
    ran: list[dict[str, Any]] = []
    monkeypatch.setattr(loaded, "callback", lambda **options: ran.append(options))
    for param in loaded.params:
        monkeypatch.setattr(param, "required", False)
    refused = blb(command)
    assert refused.exit_code == 2
    assert row.partition(" ")[0].replace("-", "_") in refused.stderr
    assert ran == []
    assert blb("--config", "blb.toml", command).exit_code == 0
    assert len(ran) == 1


@pytest.mark.parametrize(
    "row",
    [
        *('data = "../d.jsonl"', 'out = "../x"', 'tokenizer = "../t.json"', 'reward = "marks:/m"'),
        *('reward = "planted:score"', 'provider = "mine.toml"', 'base_url = "http://h/v1"'),
    ],
)
def test_a_file_in_a_folder_above_may_set_no_more(
    row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is the folder of the file, not the one below in which the command runs."""
    folder = tmp_path / "project"
    (folder / "below").mkdir(parents=True)
    (folder / "blb.toml").write_text(f"[fit]\n{row}\n")
    monkeypatch.chdir(folder / "below")
    result = blb("fit", *(() if "reward" in row else ("--reward", "length")))
    assert result.exit_code == 2
    assert f"{row.partition(' ')[0]} = " in result.stderr
    assert "blb --config" in result.stderr


@pytest.mark.parametrize("below", [False, True])
def test_a_found_file_may_set_data(
    below: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packaged providers, a server on this machine, data, rewards by name, numbers, and places in
    its own folder; also from a folder below.
    """
    (tmp_path / "blb.toml").write_text(
        '[defaults]\nprovider = "openai"\nmodel = "/models/m"\ndata = "d.jsonl"\n'
        'reward = "regex:a:/b"\nbase_url = "http://[::1]:8000/v1"\n'
        '[fit]\nout = "runs/x"\ntau = [0.5]\ndepends_on = "words"\nquiet = true\nyes = false\n'
        'objective = "recall@precision=.95"\ntokenizer = "o200k_base"\nestimator = "ips"\n'
        'test_data = "hf:OWNER/NAME@test"\n'
        'phrases = "words.txt"\n[score]\nreward = "avoid:words.txt"\n'
        '[eval]\nrival = ["prompt:Be brief.", "words:words.txt:-2", "classifier:tfidf"]\n'
    )
    (tmp_path / "words.txt").write_text("very\n")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below" if below else tmp_path)
    ran: list[dict[str, Any]] = []
    for name in ("fit", "score", "eval"):
        monkeypatch.setattr(load_command(name), "callback", lambda **options: ran.append(options))
        for param in load_command(name).params:
            monkeypatch.setattr(param, "required", False)
        result = blb(name)
        assert result.exit_code == 0, result.stderr
    assert ran[0]["out"].resolve() == tmp_path / "runs" / "x"
    assert Path(ran[0]["phrases"]).resolve() == tmp_path / "words.txt"
    assert Path(ran[1]["reward"].removeprefix("avoid:")).resolve() == tmp_path / "words.txt"


BY_VALUE = frozenset({"provider", "base_url", "reward", "depends_on", "rival"})
NEVER = frozenset(
    {"yes", "restart", "cancel", "force", "open", "save"}  # of eval; the doctor's is a path
    | {"host", "allow_host", "allow_origin", "upstream"}
)
"""Options that a found file may set by their value, and those that it never may."""


def test_every_option_is_sorted_by_what_it_reaches() -> None:
    """Somebody has thought of each new option that is no number and no choice of a list."""
    sorted_out = TEXTS | FLAGS | PATHS | BY_VALUE | NEVER
    for name in COMMANDS:
        for key, option in keys_of(load_command(name)).items():
            is_plain = isinstance(
                option.type, click.Choice | click.types.IntParamType | click.types.FloatParamType
            )
            if option.is_flag:
                assert key in FLAGS | NEVER, (name, key)
            else:
                assert is_plain or key in sorted_out, (name, key)


def test_what_init_wrote_needs_no_further_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packaged provider, a server on this machine, a file here and a reward by name are data.
    With a function as the reward init names the command that remains, and that one runs it.
    """
    plant(tmp_path, "")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    words = ["init", "--yes", "--force", "--provider", "llamacpp", "--data", "d.jsonl"]
    where = ["--base-url", "http://127.0.0.1:9/v1"]
    written = blb(*words, *where, "--reward", "length")
    assert written.exit_code == 0
    assert "next: blb fit\n" in written.stdout
    assert "no answer from" in blb("collect", "--out", "run").stderr
    written = blb(*words, *where, "--reward", "planted:score")
    assert written.exit_code == 0
    assert "next: blb --config blb.toml fit\n" in written.stdout
    assert "reward" in written.stdout
    (tmp_path / "ran").unlink()
    sys.modules.pop("planted")
    refused = blb("collect", "--out", "run")
    assert refused.exit_code == 2
    for part in ("reward = 'planted:score'", "planted", "blb --config"):
        assert part in refused.stderr
    assert not (tmp_path / "ran").exists()
    own = blb("collect", "--out", "run", "--reward", "length")
    assert "no answer from" in own.stderr, "who gives the option does not use the file's"
    assert not (tmp_path / "ran").exists()
    assert "no answer from" in blb("--config", "blb.toml", "collect", "--out", "run").stderr
    assert (tmp_path / "ran").exists()


# --- Keys of files that are not the package's

PROFILE = """
extends = "llamacpp"
name = "stranger"
[connection]
base_url = "https://keys.invalid/v1"
api_key_env = "GITHUB_TOKEN"
headers_env = { X-More = "AWS_SECRET_ACCESS_KEY", X-None = "BLB_TEST_UNSET" }
"""
JUDGE = """
base_url = "https://keys.invalid/v1"
model = "m"
api_key_env = "GITHUB_TOKEN"
prompt = "{completion}"
pattern = "1"
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Result, bool]]:
    """Run ``blb collect`` with a stranger's files beside it; nothing can be reached."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_TOKEN", "planted-and-nobodys-business")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted-as-well-and-longer")
    plant(tmp_path, "")
    (tmp_path / "stranger.toml").write_text(PROFILE)
    (tmp_path / "judge.toml").write_text(JUDGE)
    sent: list[str] = []

    @functools.wraps(connect)
    def no_session(provider: str, **options: Any) -> None:
        sent.append(provider)
        raise InputError("here the requests would begin")

    monkeypatch.setattr("blackbox_lb.api.connect.connect", no_session)

    def run(*words: str, terminal: bool = False, answer: str = "") -> tuple[Result, bool]:
        sent.clear()
        monkeypatch.setattr(keys, "is_terminal", lambda: terminal)
        arguments = ["collect", "--data", "d.jsonl", "--out", "run", *words]
        return blb(*arguments, input=answer), bool(sent)

    return run


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("--provider", "stranger.toml", "--reward", "length"), "AWS_SECRET_ACCESS_KEY and GITHUB_TOKEN go to"),
        (("--provider", "llamacpp", "--reward", "judge:judge.toml"), "GITHUB_TOKEN goes to"),
    ],
)  # fmt: skip
def test_a_file_that_sends_keys_is_said_and_asked_for(
    asked: Callable[..., tuple[Result, bool]], words: tuple[str, ...], names: str
) -> None:
    """Before the first request; no key's value is shown; a no ends it, --yes answers it; nobody is
    asked where nobody can answer.
    """
    result, sent = asked(*words)
    assert f"{names} keys.invalid" in result.stderr
    assert "planted" not in result.output
    assert sent
    result, sent = asked(*words, terminal=True, answer="n\n")
    assert result.exit_code == 1
    assert f"{names} keys.invalid" in result.stderr
    assert not sent
    assert asked(*words, terminal=True, answer="y\n")[1]
    assert asked(*words, "--yes", terminal=True)[1]


@pytest.mark.parametrize(
    ("on", "said"),
    [
        ("words", ""),
        ("embedding:some/model", ""),
        ("embedding:m@https://h.invalid/v1", "EMBEDDINGS_API_KEY and the prompts go to h.invalid"),
        ("embedding:m@https://api.openai.com/v1", "the prompts go to api.openai.com"),
    ],
)
def test_a_bias_that_sends_prompts_is_said(
    on: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bias file may name an API that embeds the prompts of its users."""
    monkeypatch.setenv("EMBEDDINGS_API_KEY", "planted")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    bias: Any = SimpleNamespace(features=(feature(on),))
    keys.tell_host_of_bias(Path("bias.json"), bias, None)
    told = capsys.readouterr().err
    assert said in told
    assert bool(told) is bool(said)


# --- What is shown


def unsafe(text: str) -> list[str]:
    """Characters that a terminal acts on or a reader cannot see."""
    return [character for character in text if not character.isprintable() and character != "\n"]


def test_nothing_shown_moves_the_cursor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Remarks, tables, JSON, errors: every control, ANSI, bidirectional and zero-width character is
    an escape, markup is text.
    """
    print_table(f"title {HOSTILE}", ("name",), [(HOSTILE,)], text_columns=range(1))
    print_json({"text": HOSTILE, HOSTILE: 1})
    Terminal().notice(HOSTILE)
    shown = capsys.readouterr()
    assert not unsafe(shown.out)
    assert not unsafe(shown.err)
    assert shown.out.count("[bold red]x[/]") >= 3
    assert "[bold red]x[/]" in shown.err
    document = shown.out[shown.out.index("{\n") :]
    assert json.loads(document) == {"text": HOSTILE, HOSTILE: 1}
    (tmp_path / "d.csv").write_text(
        f"{HOSTILE.replace(chr(0), '')},answer\np,a\n", encoding="utf-8"
    )
    words = [
        "collect",
        *options(provider="llamacpp", base_url="http://127.0.0.1:9/v1", reward="length"),
    ]
    said = blb(*words, "--data", tmp_path / "d.csv").stderr
    assert "[bold red]x[/]" in said
    assert not unsafe(said)


DOORS = frozenset({"echo.py", "json_output.py"})
"""The modules of cli/ through which everything is shown."""


def test_the_terminal_has_one_door() -> None:
    """No module of the command prints past it."""
    for path in sorted((ROOT / "blackbox_lb" / "cli").rglob("*.py")):
        if path.name in DOORS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                called = ast.unparse(node.func)
                to_a_file = any(word.arg == "file" for word in node.keywords)
                assert called not in ("click.echo", "click.secho", "sys.stdout.write"), path
                assert called != "print" or to_a_file, path


def test_a_profile_cannot_speak(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its title and its evidence are printed as characters, and keys are masked, on the terminal
    and in questions; a name that cannot be seen is refused.
    """
    monkeypatch.setenv("GITHUB_TOKEN", "planted-and-nobodys-business")
    evil = json.dumps(f"{HOSTILE} planted-and-nobodys-business")
    (tmp_path / "evil.toml").write_text(
        f'extends = "vllm"\ntitle = {evil}\nhomepage = {evil}\n'
        f'[evidence.bias]\ngrade = "D"\ndate = 2026-01-01\nsource = {evil}\nseen = {evil}\n'
    )
    profile = tmp_path / "evil.toml"
    doctor = options(provider=profile, base_url="http://127.0.0.1:9/v1")
    for command in (["providers", profile], ["doctor", *doctor]):
        result = blb(*command)
        assert "1b[31mred" in result.output, result.output
        assert not unsafe(result.output)
        assert "planted" not in result.output
    (tmp_path / "name.toml").write_text(f'extends = "vllm"\nname = {evil}\n')
    refused = blb("providers", tmp_path / "name.toml")
    assert refused.exit_code == 2
    assert "row name" in refused.stderr
    assert not unsafe(refused.output)


def test_a_bias_file_cannot_speak(tmp_path: Path) -> None:
    """Whatever its texts hold, ``blb show`` and ``blb export`` print characters, and exported code
    has no line of a stranger's.
    """
    entries = (Entry(id=1, text=HOSTILE, bias=1.0),)
    texts = dict.fromkeys(("tokenizer", "reward", "estimator", "task"), HOSTILE)
    texts["model"] = f"{HOSTILE}\nimport os"
    Bias(provider=HOSTILE, entries=entries, **texts).save(tmp_path / "bias.json")
    forms = ("openai", "litellm", "langchain", "curl", "vllm", "json")
    for words in (["show"], *(["export", "--format", form] for form in forms)):
        result = blb(*words, tmp_path / "bias.json")
        assert result.exit_code in (0, 2), result.output
        assert not unsafe(result.output), words
        assert "[bold red]" in result.output or words[0] == "export"
        assert not re.search(
            r"^\s*import os$", result.stdout.replace("import os\n\n", "", 1), re.MULTILINE
        ), words


def test_a_page_names_what_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the report every such character is named, and a key that an old document holds is
    masked.
    """
    monkeypatch.setenv("PLANTED_KEY", "planted-key-in-a-page")
    assert tame("a\u202eb\u200bc\x1b[2J") == "a⟨U+202E⟩b⟨U+200B⟩c⟨U+001B⟩[2J"
    assert tame("x planted-key-in-a-page http://ada:pw@h/") == "x [masked] http://[masked]@h/"


# --- The proxy

BIASES = ServedBiases(
    [ServedBias("m", name, bias("m"), Injection(RequestBias(VALUES))) for name in (None, "a")]
)
BODIES = {
    "nan": b'{"model": "m", "temperature": NaN}',
    "infinity": b'{"model": "m", "temperature": -Infinity}',
    "model twice": b'{"model": "m@a", "model": "other"}',
    "bias twice": b'{"model": "m", "x": {"logit_bias": 1, "logit_bias": 2}}',
    "escaped twice": b'{"model": "other", "\\u006dodel": "m"}',
    "deep": b'{"model": "m", "messages": ' + nested(200).encode() + b"}",
    "very deep": b'{"model": "m", "messages": ' + nested(100_000).encode() + b"}",
    "beyond a double": b'{"model": "m", "temperature": -1e400}',
    "beyond a double, by alias": b'{"model": "m@a", "x": [1e400]}',
    "long number": b'{"model": "m", "n": ' + b"9" * 5_000 + b"}",
}


@pytest.mark.parametrize("name", BODIES)
def test_a_body_that_two_readers_read_differently_is_refused(name: str) -> None:
    """The upstream might find another model in it, or no bias; the answer is 400 and says what is
    wrong.
    """
    with raises_naming(ErrorAnswer, "JSON") as error:
        BIASES.edit("/v1/chat/completions", BODIES[name])
    assert error.value.status == 400


def test_a_model_called_like_a_path_reaches_no_other_route() -> None:
    """Names of models in a bias file are quoted where they become part of an address."""
    model = "../../admin?x=1#"
    served = ServedBias(model, "a", bias(model), Injection(RequestBias(VALUES)))
    biases = ServedBiases([served])
    edit = biases.edit("/openai/deployments/..%2F..%2Fadmin%3Fx=1%23@a/chat/completions", b"{}")
    assert edit.target == "/openai/deployments/..%2F..%2Fadmin%3Fx%3D1%23/chat/completions"
    with pytest.raises(ErrorAnswer):
        Upstream("http://up").url(edit.target)


BODY = b'{"model": "m", "messages": []}'
SMUGGLED: dict[str, bytes] = {
    "two lengths": b"Content-Length: 30\r\nContent-Length: 5\r\n\r\n" + BODY,
    "length and chunks": b"Content-Length: 30\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "list of lengths": b"Content-Length: 30, 30\r\n\r\n" + BODY,
    "signed length": b"Content-Length: +30\r\n\r\n" + BODY,
    "negative length": b"Content-Length: -1\r\n\r\n" + BODY,
    "length in words": b"Content-Length: thirty\r\n\r\n" + BODY,
    "blank before colon": b"Content-Length : 30\r\n\r\n" + BODY,
    "folded": b"X: a\r\n Transfer-Encoding: chunked\r\nContent-Length: 30\r\n\r\n" + BODY,
    "bare line feed in a value": (
        b"X: a\nTransfer-Encoding: chunked\r\nContent-Length: 30\r\n\r\n" + BODY
    ),
    "nul in a value": b"X: a\0b\r\nContent-Length: 30\r\n\r\n" + BODY,
    "unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "bad chunk": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
    "huge chunk": b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffffff\r\n\r\n",
    "long header": b"X: " + b"a" * 100_000 + b"\r\n\r\n",
}


@pytest.mark.parametrize("name", SMUGGLED)
def test_ambiguous_framing_goes_no_further(name: str) -> None:
    """Two readers would see two requests: the proxy refuses with a 4xx, or sends one request whose
    framing is its own.
    """
    with proxied(plain()) as (origin, port, _):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + SMUGGLED[name])
            answer = client.recv(65_536)
        time.sleep(0.02)
    assert answer[:10] in (b"HTTP/1.1 4", b"HTTP/1.0 4", b"HTTP/1.1 2"), answer[:80]
    assert len(origin.arrived) == (1 if answer[9:10] == b"2" else 0)
    for arrived in origin.arrived:
        names = [name.lower() for name, _ in arrived.fields]
        framing = [name for name in names if name in ("content-length", "transfer-encoding")]
        assert framing == ["content-length"]
        assert int(arrived.headers["content-length"]) == len(arrived.body)
