"""``blb proxy`` as a process: its one line, its errors, how it stops, and that no key is ever in
its output.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

import pytest

from blackbox_lb.bias.decisions import MendedQuestion
from blackbox_lb.questions.requests import request_body
from tests.support.commands import blb
from tests.support.deciding_upstream import NOW, TEAM, deciding, mended
from tests.support.exact.listener import Request
from tests.support.proxy_upstream import (
    Origin,
    answer_of,
    bias,
    connect,
    exchange,
    plain,
    request,
)

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.fixture
def bias_file(tmp_path: Path) -> str:
    """A bias file."""
    bias().save(tmp_path / "b.json")
    return str(tmp_path / "b.json")


@contextmanager
def started(
    origin: Origin, *options: str, command: tuple[str, ...] = (sys.executable,)
) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """The real command as a process: (process, port, what it said so far)."""
    line = [*command, "-m", "blackbox_lb", "proxy", "--port", "0", *options]
    line += ["--upstream", f"{origin.address}/v1"]
    pipe = subprocess.PIPE
    # What Readline adds to the environment of pytest, COLUMNS among it, is not in os.environ.
    process = subprocess.Popen(line, stdout=pipe, stderr=pipe, text=True, env=os.environ)
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        while said.count("{") > said.count("}"):
            said += process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/v1", said)
        assert found, process.communicate()[1]
        yield process, int(found[1]), said
    finally:
        process.kill()
        process.communicate()


@contextmanager
def half_an_answer() -> Iterator[tuple[Origin, threading.Event]]:
    """An upstream that sends half of its answer, and the event after which it sends the rest."""
    go = threading.Event()

    def answer(_: Request, connection: socket.socket) -> None:
        connection.sendall(CHUNKED + b"1\r\na\r\n")
        go.wait(60)
        connection.sendall(b"1\r\nb\r\n0\r\n\r\n")

    with Origin(answer).running() as origin:
        yield origin, go
        go.set()


@contextmanager
def asking(port: int) -> Iterator[BinaryIO]:
    """An answer that has begun."""
    with connect(port) as connection, connection.makefile("rb") as reader:
        connection.sendall(request())
        assert reader.readline() == b"HTTP/1.1 200 OK\r\n"
        yield reader


def wait_until_nobody_is_taken(port: int) -> None:
    """Connect until that is refused."""
    with pytest.raises((ConnectionRefusedError, ConnectionResetError)):
        deque(iter(lambda: connect(port).close(), "never"), maxlen=0)


def test_an_interrupt_lets_a_stream_finish(bias_file: str) -> None:
    """From the signal on nobody new is taken, what is under way arrives whole, and then the process
    ends with 0. It said one line: address, upstream, each name with its number of entries and
    whether it was shown to help.
    """
    biases = ("--bias", bias_file, "--bias", f"short={bias_file}")
    with half_an_answer() as (origin, go), started(origin, *biases) as (process, port, first):
        with asking(port) as reader:
            process.send_signal(signal.SIGINT)
            wait_until_nobody_is_taken(port)
            assert process.poll() is None
            go.set()
            assert answer_of(reader)[2] == b"ab"
        rest, errors = process.communicate(timeout=60)
        assert (
            first
            == f"blb proxy at http://127.0.0.1:{port}/v1 -> {origin.address}/v1 adds: m (3 entries,"
            " UNVERIFIED); m@short (3 entries, UNVERIFIED)\n"
        )
    assert (rest, errors, process.returncode) == (
        "", "stopped; requests: 1 biased, 0 unbiased, 0 refused, 0 failed, 0 other\n", 0,
    )  # fmt: skip


def test_a_second_interrupt_ends_at_once(bias_file: str) -> None:
    """The answer under way is cut, and nothing but that it was interrupted is said."""
    with (
        half_an_answer() as (origin, _),
        started(origin, "--bias", bias_file) as (process, port, _),
        asking(port),
    ):
        process.send_signal(signal.SIGINT)
        wait_until_nobody_is_taken(port)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=120)[1].split() == ["Interrupted"]
        assert process.returncode == 130


@pytest.mark.parametrize("grace", ["0", "0.2"])
def test_a_stream_that_outlasts_the_grace_is_cut(bias_file: str, grace: str) -> None:
    """After --grace seconds the client's answer breaks off visibly, and the process ends."""
    options = ("--bias", bias_file, "--grace", grace)
    with half_an_answer() as (origin, _), started(origin, *options) as (process, port, _):
        with asking(port) as reader:
            process.send_signal(signal.SIGTERM)
            with pytest.raises((EOFError, ConnectionError)):
                answer_of(reader)
        assert process.wait(60) == 0


@pytest.mark.skipif(os.name == "nt", reason="Windows has no limit of open files")
def test_slow_clients_take_neither_the_places_nor_the_log(bias_file: str) -> None:
    """With more half requests than the process may have open files, a whole one is answered, and
    the log has a line for each kind of trouble, not for each try.
    """
    limited = ("sh", "-c", f'ulimit -n 64; exec "{sys.executable}" "$@"', "sh")
    with Origin(plain()).running() as origin, ExitStack() as stack:
        process, port, _ = stack.enter_context(
            started(origin, "--bias", bias_file, command=limited)
        )
        for _ in range(100):
            stack.enter_context(connect(port)).sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHo")
        assert exchange(port, request())[0] == "HTTP/1.1 200 OK"
        process.send_signal(signal.SIGTERM)
        errors = process.communicate(timeout=120)[1]
    assert "ulimit -n" in errors
    assert len(errors.splitlines()) < 10


def test_keys_are_in_no_output(bias_file: str) -> None:
    """Not for answers, refusals, failures, malformed requests or answers, nor at the end; nor are
    prompts.
    """
    secret = ("Authorization: Bearer sk-secret", "api-key: sk-secret", "Cookie: sk-secret")
    body = b'{"model":"m","prompt":"sk-secret"}'
    target = "/v1/completions?key=sk-secret"

    def answer(arrived: Request, connection: socket.socket) -> None:
        if arrived.headers.get("x-do") == "garble":
            connection.sendall(b"HTTP/1.1 sk-secret\r\n\r\n")
        elif arrived.headers.get("x-do") == "drop":
            connection.shutdown(socket.SHUT_RDWR)
        else:
            plain()(arrived, connection)

    with (
        Origin(answer).running() as origin,
        started(origin, "--bias", bias_file, "--access-log") as (process, port, first),
    ):
        statuses = [
            exchange(port, sent)[0].split()[1]
            for sent in (
                request(target, body, *secret),
                request(target, b"sk-secret", *secret),
                request(target, body, *secret, "X-Do: garble"),
                request(target, body, *secret, "X-Do: drop"),
                request(target, body, *secret, "sk-secret", "Author ization: sk-secret"),
                request(target, body, *secret, f"X-Long: {'sk-secret' * 10_000}"),
                request(target, body, *secret, "Content-Length: sk-secret"),
                request("/sk secret?sk-secret", body, *secret),
            )
        ]
        process.send_signal(signal.SIGTERM)
        output = first + "".join(process.communicate(timeout=120))
    assert statuses == ["200", "400", "502", "502", "400", "400", "400", "400"]
    keys = {arrived.headers.get("authorization") for arrived in origin.arrived}
    assert keys == {None, "Bearer sk-secret"}  # the proxy's own look has none
    assert "sk-secret" not in output
    assert output.count("502: no answer from") == 2
    assert output.count(" 127.0.0.1 POST /v1/completions 502 ") == 2


def test_a_port_in_use_is_told(bias_file: str) -> None:
    """With the remedy, and no traceback."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        upstream = ("--upstream", "http://127.0.0.1:1/v1")
        done = blb("proxy", "--bias", bias_file, *upstream, "--port", str(port))
    assert done.exit_code == 2
    said = rf"Error: cannot listen on 127\.0\.0\.1:{port} \(.*in use.*\); choose another --host or"
    assert re.fullmatch(rf"{said} --port\n", done.stderr)


OWN = ("--bias B --upstream http://localhost:8080/v1 --host", "own address; choose another --port")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *((f"{OWN[0]} {host}", OWN[1]) for host in ("127.0.0.1", "0.0.0.0", "localhost")),
        ("--bias none.json --upstream http://h/v1", "none.json: no such bias file"),
        ("--bias B --upstream http://h/v1 --at rate=.1 --at rate=.2", "two operating points"),
        ("--decide Q --upstream http://h/v1 --model other", "--model gives a bias another name"),
        ("--bias B --bias B --upstream http://h/v1", "two biases for 'm'; give one an alias"),
        ("--bias B --upstream http://h/v1 --model ''", "--model '' names no model"),
        ("--bias B --upstream http://h/v1 --provider openai", "openai takes whole numbers"),
        *((f"--bias B --upstream {address}", "--upstream") for address in ("h:1", "ftp://h/v1", "http:///v1", "http://h:99999/v1", "http://u:sk-secret@h/v1", "http://h/v1?key=sk-secret", "'http://h/v1 x'")),
        *((f"--bias B --upstream http://h/v1 {option}", option.split()[0]) for option in ("--grace inf", "--grace nan", "--timeout inf", "--timeout nan", "--allow-host 'a b'", "--allow-host h:80", "--allow-host ''", "--allow-origin app.example", "--allow-origin https://app.example/path", "--allow-origin https://")),
        ("--upstream http://h/v1", "no finished fit in runs"),
        ("--upstream http://h/v1 --decide B", "--decide"),
        ("--upstream http://h/v1 --decide none.json", "none.json"),
        ("--upstream http://h/v1 --decide Q --decide Q", "--decide"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_one_sentence(
    bias_file: str, tmp_path: Path, words: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, before anything listens. B is a bias file, Q one that mends a question; a key in
    an address is not shown.
    """
    monkeypatch.chdir(tmp_path)  # no run is the newest
    files = {"B": bias_file, "Q": str(mending_file(tmp_path / "q", mended(TEAM)))}
    done = blb("proxy", *[files.get(word, word) for word in shlex.split(words)])
    assert done.exit_code == 2
    assert done.stderr.startswith("Error: ")
    assert said in done.stderr
    assert "sk-secret" not in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_command_starts_light() -> None:
    """Without the estimators and without an SDK."""
    script = (
        "import json, sys, blackbox_lb.cli.commands.proxy,"
        " blackbox_lb.deploy.proxy.server;print(json.dumps([m for m in ('scipy', 'openai',"
        " 'blackbox_lb.estimate') if m in sys.modules]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []


def mending_file(folder: Path, *questions: MendedQuestion) -> Path:
    """A bias file without entries that mends these questions."""
    path = folder / "bias.json"
    folder.mkdir(exist_ok=True)
    bias(values={}).replacing(decisions=questions).save(path)
    return path


def test_the_questions_of_a_run_are_mended(tmp_path: Path) -> None:
    """By the folder of a run; the first line and ``--json`` name them, and no bias is needed."""
    mending_file(tmp_path / "run", mended(TEAM), mended(NOW))
    options = ("--decide", str(tmp_path / "run"), "--json")
    body = json.dumps(request_body("systemone", "any", "s", [TEAM])).encode()
    with (
        Origin(deciding).running() as origin,
        started(origin, *options) as (process, port, said),
    ):
        answer = json.loads(exchange(port, request("/v1/systemone", body))[2])
        process.terminate()
        _, errors = process.communicate(timeout=60)
    first = json.loads(said)
    assert [row["id"] for row in first["questions"]] == ["team", "now"]
    assert first["biases"] == []
    assert answer["answers"]["team"]["x_mended"]
    assert process.returncode == 0
    assert "decisions: 1 mended, 0 abstained, 0 passed" in errors
