"""The layer that masks secrets, and a planted key that no run leaves anywhere: file, store, log,
traceback, process list.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sqlite3
import subprocess
import sys
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

import click
import pytest

from blackbox_lb.api.session import Session
from blackbox_lb.cli.commands import COMMANDS, load_command
from blackbox_lb.errors import ProfileError
from blackbox_lb.providers.credentials import Credentials
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.safety.secrets import (
    MASK,
    environment_secrets,
    guarded,
    mask_error,
    masked_answer,
    redacted,
    watch,
)
from blackbox_lb.store import RolloutStore
from tests.support.commands import options
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.listener import Listener, Reply, Request
from tests.support.questions import write_rows

ROOT = Path(__file__).parents[3]
KEY = "pLanted+Key/42-0123456789-abcdefghij"
QUERY = "qUery+planted/43-0123456789-klmnopqrst"

# --- The layer


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("Incorrect API key provided: sk-abcdefgh1234", "Incorrect API key provided: [masked]"),
        ("Authorization: Bearer abcdef123456, more", "Authorization: Bearer [masked], more"),
        ("api-key: 0123456789abcdef", "api-key: [masked]"),
        ("GET http://h/v1?api-key=abc&n=1", "GET http://h/v1?api-key=[masked]&n=1"),
        ("http://h/v1?a=1&access_token=abc#x", "http://h/v1?a=1&access_token=[masked]#x"),
        ("https://h/?X-Amz-Signature=ab%2Bcd next", "https://h/?X-Amz-Signature=[masked] next"),
        ("https://h/?sig=abc", "https://h/?sig=[masked]"),
        ("http://ada:secret@h:8/v1", "http://[masked]@h:8/v1"),
        ("http://ada:se@cret@h/v1", "http://[masked]@h/v1"),
        ("http://ada:se/cret@h/v1", "http://[masked]@h/v1"),
        ("http://token@h/v1", "http://[masked]@h/v1"),
    ],
)
def test_shapes_are_masked(text: str, clean: str) -> None:
    """What has the shape of a secret goes, what stands around it stays; twice changes nothing
    more.
    """
    assert redacted(text) == clean
    assert redacted(clean) == clean


@pytest.mark.parametrize(
    "text",
    [
        "http://127.0.0.1:8000/v1@model", "https://h/v1?max_tokens=5&n=1", "mail a@b.c", "task-force-of-many", "see http://h/a:b",
        "tokenizer sha256:0123456789abcdef0123456789abcdef0123456789abcdef", "give --tokenizer o200k_base", "hf:org/name@train",
    ],
)  # fmt: skip
def test_what_is_no_secret_stays(text: str) -> None:
    """Addresses with ports, counts, fingerprints and names are not touched."""
    assert redacted(text) == text


def escaped(spell: Callable[[str], str], *characters: str) -> str:
    """The key with some of its characters spelled otherwise."""
    return "".join(spell(each) if each in characters else each for each in KEY)


SPELLINGS: dict[str, Callable[[str], str]] = {
    "JSON": lambda each: f"\\u{ord(each):04x}",
    "JSON in capitals": lambda each: f"\\u{ord(each):04X}",
    "JSON's slash": lambda each: "\\/" if each == "/" else f"\\u{ord(each):04x}",
    "JSON in JSON": lambda each: f"\\\\u{ord(each):04x}",
    "Python": lambda each: f"\\x{ord(each):02x}",
    "an address": lambda each: f"%{ord(each):02x}",
    "an address in an address": lambda each: f"%25{ord(each):02X}",
    "HTML": lambda each: f"&#{ord(each)};",
    "HTML in hexadecimal": lambda each: f"&#x{ord(each):X};",
    "HTML by name": lambda each: each.replace("+", "&plus;").replace("/", "&sol;"),
    "HTML in HTML": lambda each: f"&amp;#{ord(each)};",
    "HTML in JSON": lambda each: f"\\u0026#{ord(each)};",
}


@pytest.mark.parametrize("spell", SPELLINGS.values(), ids=SPELLINGS)
@pytest.mark.parametrize("characters", ["+", "+/", KEY], ids=["one", "two", "all"])
def test_a_secret_is_masked_behind_its_escapes(
    spell: Callable[[str], str], characters: str
) -> None:
    """In messages and in answers; what stands around it, escapes among it, stays as it is."""
    text = f'{{"a": "\\u00e9 50%25 &lt; x{escaped(spell, *characters)}y \\u002b é"}}'
    clean = f'{{"a": "\\u00e9 50%25 &lt; x{MASK}y \\u002b é"}}'
    assert redacted(text, [KEY]) == clean
    assert redacted(clean, [KEY]) == clean
    assert masked_answer(text.encode(), [KEY]) == clean.encode()


def test_answers_of_other_encodings() -> None:
    """A parser of JSON reads UTF-16 and UTF-32, too; without a key they stay as they are."""
    for encoding in ("utf-16", "utf-16-le", "utf-32-be"):
        content = json.dumps({"text": KEY}).encode(encoding)
        assert json.loads(masked_answer(content, [KEY])) == {"text": MASK}
        other = json.dumps({"text": "é"}).encode(encoding)
        assert masked_answer(other, [KEY]) is other


def test_a_variable_that_any_profile_names_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its own name, or because a profile, a judge or a reward names it; short values and other
    variables are not.
    """
    for name in profile_names():
        for variable in load_profile(name).connection.secret_variables:
            monkeypatch.setenv(variable, KEY)
            assert KEY in environment_secrets(), variable
            monkeypatch.delenv(variable)
    monkeypatch.setenv("BLB_TEST_ODD_NAME", KEY)
    assert KEY not in environment_secrets()
    watch(["BLB_TEST_ODD_NAME"])
    assert KEY in environment_secrets()
    named = ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "MY_PASSWORD", "GITHUB_TOKEN", "BLB_REWARD_KEY")
    for variable in named:
        monkeypatch.setenv(variable, QUERY)
        assert QUERY in environment_secrets(), variable
        monkeypatch.setenv(variable, "abc")
    assert "abc" not in environment_secrets()
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false-or-true")
    assert "false-or-true" not in environment_secrets()


def test_answers_lose_the_key_in_use_and_nothing_else() -> None:
    """An answer is data: what merely looks like a key stays, and so does a word that somebody took
    for a key.
    """
    content = b'{"text": "sk-abcdefgh1234 nothing ' + KEY.encode() + b'"}'
    assert (
        masked_answer(content, [KEY, "nothing"]) == b'{"text": "sk-abcdefgh1234 nothing [masked]"}'
    )
    assert masked_answer(content, []) is content


def test_log_records_and_chained_errors(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside ``guarded`` no record holds a key, in its message, its arguments or its traceback;
    outside nothing is changed.
    """
    monkeypatch.setenv("BLB_TEST_KEY", KEY)
    before = logging.getLogRecordFactory()
    with guarded():
        try:
            raise ValueError(f"inner {KEY}") from RuntimeError(f"outer {KEY}")
        except ValueError:
            logging.getLogger("x").exception("with %s and %d", KEY, 3)
    assert logging.getLogRecordFactory() is before
    assert KEY not in caplog.text
    assert "with [masked] and 3" in caplog.text


def test_a_chain_of_errors_is_cleaned() -> None:
    """Each link of the chain, which a traceback shows, even one that leads back to itself."""
    error = ValueError(f"a {KEY}")
    error.__cause__ = RuntimeError(f"b {KEY}", 3)
    error.__cause__.__context__ = error
    mask_error(error, [KEY])
    assert str(error) == "a [masked]"
    assert error.__cause__.args == ("b [masked]", 3)


PROFILE = """
extends = "llamacpp"
name = "echo"
[connection]
api_key_env = "PLANTED_KEY"
query_env = { api-key = "PLANTED_QUERY" }
"""


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session with the planted keys."""
    monkeypatch.setenv("PLANTED_KEY", KEY)
    monkeypatch.setenv("PLANTED_QUERY", QUERY)
    (tmp_path / "echo.toml").write_text(PROFILE)
    profile = load_profile(str(tmp_path / "echo.toml"))
    return Session(profile, base_url="http://127.0.0.1:9/v1", model="m")


def test_a_key_that_a_server_spells_otherwise_is_not_stored(session: Session) -> None:
    """The text of a completion, as it is parsed, and the words of a refusal."""
    for spell in SPELLINGS.values():
        spelled = escaped(spell, "+", "/")
        if spell is not SPELLINGS["Python"]:  # JSON knows no such escape
            assert session.channel.parsed(f'{{"text": "{spelled}"}}'.encode()) == {"text": MASK}
        for words in (f"wrong key {spelled}", f"<html><body>wrong key {spelled}</body></html>"):
            assert MASK in str(session.channel.refusal(401, words))


def test_nothing_prints_its_secrets(session: Session) -> None:
    """``repr`` and ``str`` of credentials, profiles, channels and sessions, and the attributes of
    the SDK's client.
    """
    channel = session.channel
    transport = channel._transport
    credentials = Credentials(session.profile)
    shown = [session.profile, credentials, session, channel, transport]
    assert set(credentials.secrets) == {KEY, QUERY}
    for each in (*shown, vars(transport)):
        assert KEY not in f"{each!r}{each!s}", each
        assert QUERY not in f"{each!r}{each!s}", each


@pytest.mark.parametrize(
    "row",
    [
        'query = { api-key = "pLanted" }',
        'query = { token = "x" }',
        'query = { v = "sk-abcdefgh1234" }',
    ],
)
def test_a_profile_holds_no_key(tmp_path: Path, row: str) -> None:
    """A key in a file is refused without being repeated, with the row that it belongs into."""
    (tmp_path / "mine.toml").write_text(f'extends = "vllm"\n[connection]\n{row}\n')
    with raises_naming(ProfileError, "query_env") as error:
        load_profile(str(tmp_path / "mine.toml"))
    assert "pLanted" not in str(error.value)
    assert "sk-" not in str(error.value)


def test_no_option_takes_a_key() -> None:
    """What stands on a command line stands in the process list and the shell's history: keys come
    from the environment.
    """
    secret = re.compile(r"(?:^|-)(?:api-?key|key|secret|password|auth|credentials?|token)$")
    for name in COMMANDS:
        for option in load_command(name).params:
            if isinstance(option, click.Option):
                assert not [each for each in option.opts if secret.search(each.lstrip("-"))], (
                    name,
                    option.opts,
                )


# --- A planted key


@dataclass
class Echo:
    """An exact model whose server repeats the credentials it gets: in headers, in answers, and in
    refusals where it ``refuses``.
    """

    exact: ExactServer
    refuses: int | None = None
    seen: set[str] = field(default_factory=set)
    leaked: list[str] = field(default_factory=list)

    def __call__(self, request: Request) -> Reply | Literal["drop"]:
        path, _, query = request.path.partition("?")
        told = f"{request.headers.get('authorization', '')} {query}"
        self.seen.add(told)
        self._look()
        authorization = request.headers.get("authorization", "")
        echo = {"X-Echo": authorization, "X-Query": query, "Set-Cookie": f"k={KEY}"}
        if self.refuses is not None and path.endswith("completions"):
            message = f"wrong key {KEY} {QUERY} {told}"
            error = {"message": message, "code": KEY, "param": told}
            return Reply(self.refuses, {"error": error}, echo)
        answer = self.exact._reply(replace(request, line=f"{request.method} {path} HTTP/1.1"))
        if not isinstance(answer, Reply) or not isinstance(answer.body, dict):
            return answer
        body = answer.body | {"debug": told, "x_key": KEY, "x_query": QUERY}
        for choice in body.get("choices", ()):
            choice["stop_reason"] = KEY
            if "message" in choice:
                choice["message"]["content"] += f" {KEY} {QUERY}"
        return Reply(answer.status, body, echo)

    def _look(self) -> None:
        """Which command lines on this machine hold a key now."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                line = path.read_bytes().decode(errors="replace")
            except OSError:
                continue
            if KEY in line or QUERY in line:
                self.leaked.append(line)


@pytest.fixture
def echo() -> Iterator[tuple[Echo, str]]:
    """The server and its address."""
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as exact:
        echo = Echo(exact)
        with Listener(echo) as address:
            yield echo, f"{address}/v1"


@dataclass
class Runner:
    """Runs commands in a folder with the planted keys in the environment, and keeps everything that
    they print.
    """

    folder: Path
    said: list[str] = field(default_factory=list)

    @property
    def environment(self) -> dict[str, str]:
        keys = {"PLANTED_KEY": KEY, "PLANTED_QUERY": QUERY}
        told = {"PYTHONFAULTHANDLER": "1", "OPENAI_LOG": "debug", "NO_COLOR": "1"}
        return os.environ | keys | told | {"OPENBLAS_NUM_THREADS": "1"}

    def __call__(
        self, *words: object, code: str | None = None, expect: tuple[int, ...] = (0,)
    ) -> str:
        command = ["-c", code] if code is not None else ["-m", "blackbox_lb"]
        done = subprocess.run(
            [sys.executable, *command, *map(str, words)],
            cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        self.said += [done.stdout, done.stderr]
        assert done.returncode in expect, f"{words}: {done.returncode}\n{done.stderr[-2000:]}"
        return done.stdout + done.stderr


def unpacked(path: Path) -> Iterator[bytes]:
    """Every value of a store, blobs also inflated."""
    database = sqlite3.connect(path)
    for (table,) in database.execute(
        "SELECT name FROM sqlite_master WHERE type = 'table'"
    ).fetchall():
        for row in database.execute(f'SELECT * FROM "{table}"'):
            for value in row:
                raw = value if isinstance(value, bytes) else str(value).encode()
                yield raw
                for start in range(min(len(raw), 16)) if isinstance(value, bytes) else ():
                    try:
                        yield zlib.decompress(raw[start:])
                    except zlib.error:
                        continue
    database.close()


def spellings() -> list[bytes]:
    """The keys as they are, and as an address writes them."""
    texts = [
        text for key in (KEY, QUERY) for text in (key, quote(key, safe=""), key[:20], key[-20:])
    ]
    return [text.encode() for text in texts]


CRASH = """
import os, sys, blackbox_lb.cli, blackbox_lb.cli.commands.show as show
def broken(*arguments, **options):
    try:
        raise ValueError("inner " + os.environ["PLANTED_KEY"])
    except ValueError as error:
        raise RuntimeError("GET http://h/?api-key=" + os.environ["PLANTED_QUERY"]) from error
show.show_command.callback = broken
sys.argv = ["blb", "show", "x"]
blackbox_lb.cli.main()
"""
ABORT = CRASH.replace(
    "def broken(*arguments, **options):\n",
    "def broken(*arguments, **options):\n    key = os.environ['PLANTED_KEY']; os.abort()\n",
)


@pytest.mark.slow
def test_a_planted_key_is_found_nowhere(echo: tuple[Echo, str], tmp_path: Path) -> None:
    """Fit, collect, eval, report, doctor, export, proxy against a server that repeats keys;
    refusals, debug logs, crashes.
    """
    server, address = echo
    (tmp_path / "echo.toml").write_text(PROFILE)
    rows = [{"prompt": f"question {n}", "answer": "a"} for n in range(30)]
    write_rows(tmp_path / "data.jsonl", rows)
    run = Runner(tmp_path)
    model = ("--provider", "echo.toml", "--base-url", address)
    where = (*model, *options(data="data.jsonl", reward="length", max_tokens=8, top_logprobs=5))
    run("collect", *where, "--out", "collected", "--samples-per-prompt", 2)
    run("fit", *where, "--out", "run", "--samples-per-prompt", 10)
    run("eval", "run/bias.json", *where, "--out", "judged", "--save")
    run("report", "run")
    run("doctor", *model, "--save", "saved.toml", "--yes", expect=(0, 1, 2))
    for form in ("openai", "litellm", "langchain", "curl", "json"):
        code = run(
            "export", "run/bias.json", "--format", form, *model, expect=(0, 2)
        )  # LiteLLM sends no query
        (tmp_path / f"export.{form}").write_text(code)
    for status in (400, 401, 404):
        server.refuses = status
        refused = run("collect", *where, "--out", f"refused{status}", expect=(2,))
        assert MASK in refused
    server.refuses = None
    proxied(run, address)
    assert "RuntimeError: GET http://h/?api-key=[masked]" in run(code=CRASH, expect=(1,))
    assert "Fatal Python error: Aborted" in run(code=ABORT, expect=(-signal.SIGABRT,))
    assert any(KEY in told and quote(QUERY, safe="") in told for told in server.seen), server.seen
    assert not server.leaked
    found = [
        f"printed: {text[:80]}" for text in run.said for key in spellings() if key in text.encode()
    ]
    for path in (each for each in tmp_path.rglob("*") if each.is_file()):
        raw = [path.read_bytes(), *(unpacked(path) if path.suffix == ".db" else ())]
        found += [str(path) for each in raw for key in spellings() if key in each]
    assert not found
    with RolloutStore(tmp_path / "run" / "rollouts.db") as store:
        texts = [
            each.text for name in store.requests() for each in store.completions(store.keys(name))
        ]
        assert texts
        assert all(MASK in text for text in texts if text)


def proxied(run: Runner, address: str) -> None:
    """One request with the key through ``blb proxy``, which is then stopped; what it printed is
    kept.
    """
    served = options(bias="run/bias.json", upstream=address, port="0")
    command = [sys.executable, "-m", "blackbox_lb", "proxy", *served, "--json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=run.folder, env=run.environment, **pipes) as process:
        assert process.stdout is not None
        told = ""
        while not told.endswith("\n}\n"):
            told += process.stdout.readline()
        asked = {"model": "exact", "messages": [{"role": "user", "content": "x"}]}
        body = json.dumps(asked).encode()
        url = f"{json.loads(told)['address']}/chat/completions?api-key={quote(QUERY, safe='')}"
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        with urllib.request.urlopen(urllib.request.Request(url, body, headers)) as answer:
            assert KEY in answer.read().decode(), "what the upstream says is the client's"
        process.send_signal(signal.SIGINT)
        run.said += [told, *process.communicate(timeout=60)]
