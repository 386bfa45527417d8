"""Bad inputs by the hundred: each ends with exit code 2 and a sentence that names what is wrong, no
traceback, and nothing written.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from blackbox_lb.store import RolloutStore
from tests.support.commands import asking, blb, options
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.server import Fault

Content = str | bytes
DEEP = 100_000
NOWHERE = "http://127.0.0.1:9/v1"
"""An address where nothing answers: what is refused here must be refused before anything is asked
for.
"""
CAPITALS = ("fit", "--task", "capitals", "--reward", "length")


SUBJECTS = {
    "long prompt": "no finished fit",
    "report missing": "bias.json",
    "no task": "task",
    "template {": "'{'",
    "same prompt in test": "train",
    "reward http://host/x?key=abcdefgh": "BLB_REWARD_KEY",
    "reward https://user:pw@host/x?token=abcdefgh": "BLB_REWARD_KEY",
    "profile nobody": "'nobody'",
    "profile number": "'3'",
    "address http://ada:secret-word@host/v1": "address",
    "address http://host/v1?key=secret-word": "address",
}
"""What is wrong where neither a file, an option nor its value is."""


@dataclass(frozen=True)
class Case:
    """A command line and the files that it meets, by path."""

    name: str
    arguments: tuple[str, ...]
    files: Mapping[str, Content] = field(default_factory=dict)

    @property
    def subjects(self) -> tuple[str, ...]:
        """What can be wrong: the files, the options and their values."""
        words = (word for argument in self.arguments for word in re.split("[=:]", argument))
        subjects = tuple(word for word in (*self.files, *words) if len(word) > 1)
        return (SUBJECTS[self.name],) if self.name in SUBJECTS else subjects


# --- Bias files

ENTRY = {"id": 1, "bias": 0.5}
GOOD = {
    "format": "blackbox-lb/bias", "version": 4, "provider": "vllm", "model": "m", "tokenizer": "t", "reward": "length",
    "estimator": "ips", "created": "2026-01-01T00:00:00Z", "blackbox_lb": "0.1", "entries": [ENTRY],
}  # fmt: skip
NOT_JSON: dict[str, Content] = {
    "empty": b"",
    "blank": b" \n",
    "words": "not json",
    "cut": json.dumps(GOOD)[:80],
    "two": json.dumps(GOOD) * 2,
    "latin": '{"format": "é"}'.encode("latin-1"),
    "utf16": json.dumps(GOOD).encode("utf-16"),
    "nul": b"\0" * 100,
    "pickle": b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00\x00cos\nsystem\n(S'true'\ntR.",
    "gzip": b"\x1f\x8b\x08\x00" + b"\0" * 20,
    "zip": b"PK\x03\x04" + b"\0" * 20,
    "html": "<html><script>alert(1)</script>",
    "arrays": "[" * DEEP + "]" * DEEP,
    "objects": '{"a":' * DEEP + "1" + "}" * DEEP,
    "just too deep": "[" * 201 + "]" * 201,
    "long number": "9" * 5000,
}
OTHER_JSON: dict[str, Any] = {
    "null": None, "number": 3, "list": [], "text": "bias", "object": {}, "true": True, "other format": {"format": "x"},
}  # fmt: skip
READERS = {
    "compile": "compile bias.json",
    "eval": f"eval bias.json --data data.jsonl --reward length --provider llamacpp --base-url {NOWHERE}",
    "export": "export bias.json --format json",
    "proxy": f"proxy --bias bias.json --upstream {NOWHERE} --port 0",
    "report": "report .",
}
DATA = (
    '{"prompt": "one", "answer": "a"}\n{"prompt": "two", "answer": "a"}\n{"prompt": "three",'
    ' "answer": "a"}\n'
)


def bias_cases() -> Iterator[Case]:
    """Every broken file through ``blb show``, one through every command that reads one; wrong
    fields are those of ``tests/unit/bias/test_bias.py``.
    """
    contents = NOT_JSON | {name: json.dumps(value) for name, value in OTHER_JSON.items()}
    contents["twice"] = json.dumps(GOOD)[:-1] + ', "model": "other"}'
    for name, content in contents.items():
        yield Case(f"show {name}", ("show", "bias.json"), {"bias.json": content})
    for command, line in READERS.items():
        arguments = tuple(line.split())
        files = {"bias.json": contents["cut"], "data.jsonl": DATA}
        yield Case(f"{command} cut", arguments, files)
        yield Case(f"{command} missing", arguments, {"data.jsonl": DATA})


BROKEN_TOML: dict[str, Content] = {
    "words": "not = = toml",
    "binary": b"\xff\xfe\0\0",
    "pickle": NOT_JSON["pickle"],
    "deep list": "a = " + "[" * DEEP,
    "deep inline": "a = " + "{b = " * 2000,
    "deep table": "[" + "a." * 5000 + "a]\n",
    "large": "a = '" + "x" * 2**21 + "'",
}


# --- Task files

ROW = {"prompt": "p", "answer": "a"}
LINES: dict[str, Content] = {
    "empty": "",
    "words": "hello\n",
    "list": '[{"prompt": "p"}]\n',
    "deep": '{"prompt": "p", "answer": ' + "[" * DEEP + "\n",
    "too deep": '{"prompt": "p", "answer": ' + "[" * 300 + "]" * 300 + "}\n",
    "latin": '{"prompt": "é"}\n'.encode("latin-1"),
    "utf16": '{"prompt": "p"}\n'.encode("utf-16"),
    "nul": b"\0\0\0\0",
    "pickle": NOT_JSON["pickle"],
    "gzip": NOT_JSON["gzip"],
    "long number": '{"prompt": "p", "answer": ' + "9" * 5000 + "}\n",
}
TABLES: dict[str, Content] = {
    "empty": "",
    "no column": "question,reply\np,a\n",
    "short row": "prompt,answer\np\n",
    "latin": "prompt,answer\né,a\n".encode("latin-1"),
    "ansi": "\x1b[31mprompt,answer\np,a\n",
    "messages": "messages,answer\nhello,a\n",
}


def collecting(*more: str, reward: str = "exact-match") -> tuple[str, ...]:
    """A collection that would ask a server that is not there."""
    where = f"collect --provider llamacpp --base-url {NOWHERE} --out run --quiet"
    return (*where.split(), "--reward", reward, *more)


def task_cases() -> Iterator[Case]:
    """Files that no prompt can be taken from; wrong rows are those of
    ``tests/unit/tasks/test_rows.py``.
    """
    for name, content in LINES.items():
        yield Case(f"jsonl {name}", collecting("--data", "d.jsonl"), {"d.jsonl": content})
    for name, content in TABLES.items():
        yield Case(f"csv {name}", collecting("--data", "d.csv"), {"d.csv": content})
    for name in ("empty", "pickle", "gzip"):
        yield Case(f"parquet {name}", collecting("--data", "d.parquet"), {"d.parquet": LINES[name]})
    rows = [ROW | {"id": 1}, ROW | {"prompt": "q", "id": 1}]
    same = "".join(json.dumps(row) + "\n" for row in rows)
    yield Case("one id twice", collecting("--data", "d.jsonl"), {"d.jsonl": same})
    yield Case("one row twice", collecting("--data", "d.jsonl"), {"d.jsonl": DATA + DATA})
    yield Case("one row", collecting("--data", "d.jsonl"), {"d.jsonl": json.dumps(ROW) + "\n"})
    yield Case("no such file", collecting("--data", "none.jsonl"))
    yield Case("suffix", collecting("--data", "d.txt"), {"d.txt": DATA})
    yield Case("pickle suffix", collecting("--data", "d.pkl"), {"d.pkl": NOT_JSON["pickle"]})
    yield Case("no task", collecting())
    yield Case(
        "task and data", collecting("--task", "capitals", "--data", "d.jsonl"), {"d.jsonl": DATA}
    )
    yield Case("unknown task", collecting("--task", "nothing"))
    yield Case("lm-eval options", collecting("--task", "capitals", "--num-fewshot", "2"))
    for template in ("{question}", "{", "{0}", "{prompt.x}", "{prompt!z}", "   "):
        more = ("--data", "d.jsonl", "--prompt-template", template)
        yield Case(f"template {template}", collecting(*more), {"d.jsonl": DATA})
    for column in ("--prompt-column", "--answer-column"):
        yield Case(column, collecting("--data", "d.jsonl", column, "other"), {"d.jsonl": DATA})
    yield Case("blank system", collecting("--data", "d.jsonl", "--system", " "), {"d.jsonl": DATA})
    said = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    own = json.dumps({"messages": said, "answer": "a"}) + "\n"
    more = ("--data", "d.jsonl", "--system", "Again.")
    yield Case("a system message of its own", collecting(*more), {"d.jsonl": own + DATA})
    yield Case(
        "test data", collecting("--data", "d.jsonl", "--test-data", "none.jsonl"), {"d.jsonl": DATA}
    )
    yield Case(
        "same prompt in test",
        collecting("--data", "d.jsonl", "--test-data", "d.jsonl"),
        {"d.jsonl": DATA},
    )


# --- Rewards, judges, schemas

JUDGE = (
    'base_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nprompt = "{completion}"\npattern = "\\\\d+"\n'
)
REWARDS = (
    "", "nothing", "exact", "regex:", "regex:(", "regex:*", "regex:(?P<a", "judge:", "judge:none.toml", "json-schema:",
    "json-schema:none.json", "http://", "https://", "http:///x", "http://host:99999/x", "http://host/x?key=abcdefgh", "ftp://host/x",
    "https://user:pw@host/x?token=abcdefgh", "no_module:f", "math:nothing", "json:loads.nothing", "os.path:sep", "json:", ":loads",
    "a b:c", "math.py:sqrt", "math:sqrt", "asyncio:sleep",
)  # fmt: skip
JUDGES: dict[str, Content] = {
    **BROKEN_TOML,
    "empty": "",
    "address": JUDGE.replace("http://127.0.0.1:9/v1", "host"),
    "query": JUDGE.replace("9/v1", "9/v1?key=k"),
    "otherwise": JUDGE + "otherwise = nan\n",
    "max_tokens": JUDGE + "max_tokens = 0\n",
    "concurrency": JUDGE + "concurrency = 0\n",
    "key in fields": JUDGE + '[fields]\napi_key = "planted"\n',
    "no key": JUDGE + 'api_key_env = "BLB_TEST_NOT_SET"\n',
}


def reward_cases() -> Iterator[Case]:
    """Rewards that nobody can compute."""
    for spec in REWARDS:
        yield Case(
            f"reward {spec}", collecting("--data", "d.jsonl", reward=spec), {"d.jsonl": DATA}
        )
    for name, content in JUDGES.items():
        yield Case(
            f"judge {name}",
            collecting("--data", "d.jsonl", reward="judge:j.toml"),
            {"d.jsonl": DATA, "j.toml": content},
        )
    for spec in ("exact", "regex:(", "regex:", "length"):
        yield Case(
            f"correct {spec}",
            collecting("--data", "d.jsonl", "--correct", spec, reward="accuracy"),
            {"d.jsonl": DATA},
        )


# --- Profiles and settings

PROFILES: dict[str, Content] = {
    **BROKEN_TOML,
    "empty": "",
    "itself": 'extends = "mine.toml"\n',
    "concurrency": 'extends = "vllm"\n[connection]\nconcurrency = 0\n',
    "header break": 'extends = "vllm"\n[connection]\napi_key_header = "X\\r\\nY"\n',
    "key in query": 'extends = "vllm"\n[connection]\nquery = { api-key = "planted" }\n',
    "token in query": 'extends = "vllm"\n[connection]\nquery = { access_token = "planted" }\n',
    "shape in query": 'extends = "vllm"\n[connection]\nquery = { v = "sk-abcdefgh12345678" }\n',
    "key in request": 'extends = "vllm"\n[request]\napi_key = "planted"\n',
    "low nan": 'extends = "vllm"\n[bias]\nlow = nan\n',
}
SETTINGS: dict[str, Content] = {
    **BROKEN_TOML,
    "outside": "provider = 'vllm'\n",
    "table": "[fitt]\ntau = 1\n",
    "unknown key": "[show]\nall_of_it = true\n",
    "unknown shared": "[defaults]\nnothing = 1\n",
    "of fit alone": "[defaults]\ntop = 'all'\n",
    "out shared": "[defaults]\nout = 'x'\n",
    "flag": "[show]\njson = 'yes'\n",
    "list": "[show]\ntop = [1]\n",
    "range": "[show]\ntop = -1\n",
    "fraction": "[show]\ntop = 1.5\n",
    "date": "[show]\ntop = 2026-01-01\n",
}
GOOD_BIAS: dict[str, Content] = {"bias.json": json.dumps(GOOD)}


def settings_cases() -> Iterator[Case]:
    """Profiles and settings files that say nothing usable."""
    for name, content in PROFILES.items():
        yield Case(f"profile {name}", ("providers", "mine.toml"), {"mine.toml": content})
    yield Case("profile missing", ("providers", "none.toml"))
    yield Case("profile folder", ("providers", "folder.toml"), {"folder.toml/file": ""})
    yield Case("profile unknown", ("providers", "nobody"))
    yield Case("profile path", ("providers", "../etc/passwd"))
    for name, content in SETTINGS.items():
        yield Case(
            f"settings {name}",
            ("--config", "my.toml", "show", "bias.json"),
            GOOD_BIAS | {"my.toml": content},
        )
    for name in ("words", "table", "range"):
        beside = GOOD_BIAS | {"blb.toml": SETTINGS[name]}
        yield Case(f"found settings {name}", ("show", "bias.json"), beside)
    yield Case("settings missing", ("--config", "none.toml", "show", "bias.json"), GOOD_BIAS)
    yield Case("settings folder", ("--config", ".", "show", "bias.json"), GOOD_BIAS)
    zero: dict[str, Content] = {"my.toml": '[fit]\ndata = "a\\u0000b"\n'}
    yield Case("settings zero byte", ("--config", "my.toml", "fit", "--reward", "length"), zero)
    asked_to_write = ("init", "--yes", "--task", "capitals", "--out", "folder.toml", "--force")
    yield Case("settings over a folder", asked_to_write, {"folder.toml/file": ""})
    asked = ("collect", "--provider", "llamacpp", "--base-url", NOWHERE, "--data", "d.jsonl")
    for name, table in (
        ("file", '[collect]\nreward = "rewards:score"\n'),
        ("default", '[defaults]\nreward = "package.rewards:Class.score"\n'),
    ):
        code: dict[str, Content] = {
            "blb.toml": table,
            "rewards.py": "raise SystemExit(0)\n",
            "d.jsonl": DATA,
        }
        yield Case(f"code in a found {name}", asked, code)


# --- Options

WORDS: tuple[tuple[str, ...], ...] = (
    ("fitt",),
    ("fit", "--api-key", "sk-planted"),
    ("fit", "--samples-per-prompt=0"),
    ("fit", "--clip=-1"),
    ("fit", "--endpoint=chats"),
    ("fit", "--tau=many"),
    ("show",),
    ("show", "a.json", "b.json"),
    ("export", "bias.json"),
    ("report",),
    ("proxy",),
    ("providers", "vllm", "sglang"),
    ("completion", "tcsh"),
    (*CAPITALS, "--provider", "local", "--base-url", NOWHERE),
    (*CAPITALS, "--provider", "local", "--model", "none.gguf"),
    (*CAPITALS, "--provider", "openai", "--model", "gpt-4.1-mini"),
    (*CAPITALS, "--provider", "azure"),
    ("eval", "bias.json", "--task", "capitals", "--reward", "length", "--provider", "azure"),
    ("compile", "bias.json", "--provider", "nobody"),
    ("export", "bias.json", "--format", "json", "--provider", "openai", "--tokenizer", "nothing"),
    ("export", "bias.json", "--format", "json", "--provider", "openai"),
    ("score", "none.db", "--task", "capitals", "--reward", "length"),
    ("analyze", "none.json"),
    ("runs", "long:" + "x" * 300),
    ("show", "long:" + "x" * 300),
    ("score", "long:" + "x" * 300, "--task", "capitals", "--reward", "length"),
    ("fit", "--data", "long:" + "x" * 300, "--reward", "length"),
    (*CAPITALS, "--max-cost", "nan"),
    ("try", "bias.json", "hello", "--temperature", "nan"),
    ("words", "lamp", "--value", "inf", "--dry-run"),
    ("check", "bia.json", *CAPITALS[1:]),
    ("doctor", "--bias", "bias.json", "--save", "mine.toml"),
)
ADDRESSES = (
    "", "host", "ftp://host", "http://", "http://host:99999", "http://[::1", "http://ada:secret-word@host/v1",
    "http://host/v1?key=secret-word", "http://ho st", "javascript:alert(1)", "file:///etc/passwd", "//host",
)  # fmt: skip
UPSTREAMS = (*ADDRESSES, "http://host/v1#x", "http://host/\x1b[31m", "http://host\r\nX: y")


def option_cases() -> Iterator[Case]:
    """Wrong words, wrong addresses and wrong names of a bias."""
    for words in WORDS:
        yield Case(" ".join(words) or "nothing", words, GOOD_BIAS)
    for address in ADDRESSES[1:]:
        asked = ("collect", "--provider", "llamacpp", "--base-url", address, *CAPITALS[1:])
        yield Case(f"address {address}", asked)
    for address in UPSTREAMS:
        yield Case(f"upstream {address!r}", proxying("bias.json", upstream=address), GOOD_BIAS)
    for alias in ("a b=bias.json", "=bias.json", "-x=bias.json", "ü=bias.json", "a\r\nb=bias.json"):
        yield Case(f"alias {alias!r}", proxying(alias), GOOD_BIAS)
    yield Case("two biases of one name", proxying("bias.json", "bias.json"), GOOD_BIAS)
    text = "many text " * 30  # a name may have 255 bytes
    yield Case("long name", ("show", text))
    yield Case("long prompt", ("try", text))
    yield Case("long question", (*CAPITALS, "--question", text))
    where = ("--provider", "llamacpp", "--base-url", NOWHERE)
    yield Case("long phrases", (*CAPITALS, *where, "--phrases", text))


def proxying(*biases: str, upstream: str = NOWHERE) -> tuple[str, ...]:
    """A proxy with these biases."""
    named = options(bias=[*biases])
    return ("proxy", *named, "--upstream", upstream, "--port", "0")


# --- Vocabularies, run folders, stores


def gguf(pairs: int, body: bytes = b"", version: int = 3) -> bytes:
    """A GGUF file of so many key-value pairs, as it says."""
    return b"GGUF" + struct.pack("<IQQ", version, 0, pairs) + body


def named(key: str, kind: int, value: bytes) -> bytes:
    """One key-value pair of a GGUF file."""
    return struct.pack("<Q", len(key)) + key.encode() + struct.pack("<I", kind) + value


VOCABULARIES: dict[str, Content] = {
    "empty": b"",
    "words": "not a vocabulary",
    "pickle": NOT_JSON["pickle"],
    "sentencepiece": b"\n\x0e\n\x05<unk>",
    "json": "{}",
    "json cut": '{"model": {"vocab": {',
    "json deep": '{"a":' * DEEP,
    "json other": '{"model": {"type": "BPE", "vocab": {}, "merges": []}, "decoder": null}',
    "json merges": '{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "b"]]}}',
    "json ids": '{"model": {"type": "BPE", "vocab": {"a": -1}, "merges": []}}',
    "gguf": b"GGUF",
    "gguf version": gguf(0, version=1),
    "gguf nothing": gguf(0),
    "gguf many": gguf(2**63),
    "gguf array": gguf(1, named("a", 9, struct.pack("<IQ", 4, 2**62))),
    "gguf nested": gguf(1, named("a", 9, struct.pack("<IQ", 9, 1) * 5000)),
}
EVALUATION = {
    "provider": "p", "model": "m", "task": "t", "reward": "r", "label": "l", "policies": [], "comparisons": [],
    "provenance": {},
}  # fmt: skip
DOCUMENTS: dict[str, Content] = {
    "evaluation.json words": "words",
    "evaluation.json deep": NOT_JSON["arrays"],
    "evaluation.json list": "[]",
    "evaluation.json empty": "{}",
    "evaluation.json version": json.dumps(EVALUATION | {"version": 1}),
    "evaluation.json policies": json.dumps(EVALUATION | {"policies": [{}]}),
    "evaluation.json twice": json.dumps(EVALUATION)[:-1] + ', "task": "u"}',
    "result.json words": "words",
    "result.json training": '{"training": {"rollouts": "many"}}',
    "result.json usage": '{"usage": {}}',
    "result.json nan": '{"kl_nats_per_completion": NaN}',
    "result.json tried": '{"validation": {"tried": [{}]}}',
    "analysis.json words": "words",
    "analysis.json empty": "{}",
}
STORES: dict[str, Content] = {
    "words": "words",
    "pickle": NOT_JSON["pickle"],
    "cut": b"SQLite format 3\0" + b"\0" * 200,
}


def file_cases() -> Iterator[Case]:
    """Vocabularies, documents of a run folder, and stores."""
    for name, content in VOCABULARIES.items():
        export = "export bias.json --format json --provider openai --tokenizer ./vocabulary"
        beside = GOOD_BIAS | {"vocabulary": content}
        yield Case(f"vocabulary {name}", tuple(export.split()), beside)
        if not name.startswith("json"):
            model = (*CAPITALS, "--provider", "local", "--model", "./m.gguf")
            if not name.startswith("gguf"):
                yield Case(f"model {name}", model, {"m.gguf": content})
    for name, content in DOCUMENTS.items():
        yield Case(
            f"report {name}",
            ("report", "run"),
            {"run/bias.json": json.dumps(GOOD), f"run/{name.split()[0]}": content},
        )
    for name, content in STORES.items():
        yield Case(
            f"compile store {name}", ("compile", "bias.json"), GOOD_BIAS | {"rollouts.db": content}
        )


CASES = [
    *bias_cases(), *task_cases(), *reward_cases(), *settings_cases(), *option_cases(), *file_cases(),
]  # fmt: skip


def check(result: Result, *subjects: str) -> None:
    """Exit code 2, no traceback, and one sentence on stderr that names at least one of the
    subjects.
    """
    said = result.stderr
    assert result.exit_code == 2, (
        f"exit code {result.exit_code}: {result.output[-500:]} {result.exception!r}"
    )
    assert isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    assert len(re.findall("^Error: ", said, re.MULTILINE)) == 1, said
    assert any(subject in said for subject in subjects), (subjects, said)
    assert re.sub(r"[\n\t]", "", said).isprintable(), repr(said)
    assert len(said) < 5_000, said[:300]


def files(folder: Path) -> dict[str, bytes]:
    """Every file in a folder, but for the empty ones that commands hold locked."""
    return {
        str(path): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "run.lock"
    }


@pytest.mark.parametrize("case", CASES, ids=lambda case: ascii(case.name)[1:-1])
def test_bad_input(case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit code 2, a sentence that names what is wrong, no traceback; nothing is written and nothing is
    changed.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    for name in os.environ:
        if name.startswith(("OPENAI_", "AZURE_OPENAI_")):
            monkeypatch.delenv(name)
    for name, content in case.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    before = files(tmp_path)
    check(blb(*case.arguments), *case.subjects)
    assert files(tmp_path) == before


# --- Answers of a server


def put(*path: str | int, value: Any) -> Fault:
    """An answer that is honest but for one place in it."""

    def fault(number: int, answer: dict[str, Any]) -> Any:
        place: Any = answer
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return answer

    return fault


def instead(answer: Any) -> Fault:
    """Another answer, or a status."""
    return lambda number, honest: answer


FIRST = ("choices", 0, "logprobs", "content", 0)
ANSWERS: dict[str, Fault] = {
    "error inside": instead({"error": {"message": "no \x1b[31m"}}),
    "no logprobs": put("choices", 0, "logprobs", value=None),
    "no id": put(*FIRST, "id", value=None),
    "logprob nan": put(*FIRST, "logprob", value=float("nan")),
    "refused": instead(400),
    "no key": instead(401),
    "no model": instead(404),
}
"""Answers that nothing can be learned from: none may end in a traceback, or count as a completion.
What else can be wrong with one is in ``tests/wire/test_choices.py``.
"""


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.parametrize("name", ANSWERS)
def test_bad_answer(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collection ends with exit code 2 and its sentence; the store that it leaves holds no
    completion.
    """
    monkeypatch.chdir(tmp_path)
    Path("d.jsonl").write_text("".join(f'{{"prompt": "question {n}"}}\n' for n in range(40)))
    with ExactServer(ExactModel(6, 4, prompts=4), faults=ANSWERS[name]) as server:
        where = asking(server, data="d.jsonl", reward="length", out="run")
        drawn = options(max_tokens=4, top_logprobs=3, concurrency=1)
        check(blb("collect", *where, *drawn, "--quiet", "--yes"), "llamacpp", "the server")
    with RolloutStore(tmp_path / "run" / "rollouts.db") as store:
        assert store.size().completions == 0
