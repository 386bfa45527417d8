"""What holds for every cassette: it belongs to a test, says where it is from, keeps no secret, and
answers nothing else.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cassettes.construct import FOLDER, SOURCES, cassettes

if TYPE_CHECKING:
    from vcr.request import Request

FILES = sorted(FOLDER.rglob("*.yaml"))
TITLE = "# Constructed from documentation, not recorded: "
SECRETS = re.compile(
    r"\b(?:sk|fw|gsk|hf|xai|sess)[-_][A-Za-z0-9]{8,}|\bBearer\s+\S|\beyJ[\w-]{8,}|placeholder-for-|authorization|set-cookie",
    re.IGNORECASE,
)
"""Keys by the prefix of their issuer, tokens, the tests' own placeholders, and headers that hold
such things.
"""
PATHS = re.compile(r"(?<![\w.:/])/(?:home|root|work|tmp|usr|var|opt|mnt|Users|private)/|\b[A-Z]:\\")


def name_of(path: Path) -> str:
    """Folder and file."""
    return path.relative_to(FOLDER).as_posix()


every_cassette = pytest.mark.parametrize("path", FILES, ids=name_of)


def exchanges(path: Path) -> list[tuple[Request, dict[str, Any]]]:
    """Requests and answers of a cassette."""
    from vcr.persisters.filesystem import FilesystemPersister
    from vcr.serializers import yamlserializer

    requests, answers, *_ = FilesystemPersister.load_cassette(path, yamlserializer)
    return list(zip(requests, answers, strict=True))


def test_every_cassette_belongs_to_a_test() -> None:
    """A constructed one to the test of its folder and name, a recorded one to the test of its name,
    which has one.
    """
    tests = {
        kind: set(
            re.findall(
                r"^def test_(\w+)",
                Path(__file__).with_name(f"test_{kind}.py").read_text(),
                re.MULTILINE,
            )
        )
        for kind in ("constructed", "recorded")
    }
    made = {
        f"{path.parent.name}_{path.stem}".replace("-", "_")
        for path in FILES
        if path.parent.name in SOURCES
    }
    recorded = {path.stem for path in FILES if path.parent.name not in SOURCES}
    assert made <= tests["constructed"]
    assert recorded == tests["recorded"]


def test_every_cassette_says_where_it_is_from() -> None:
    """The README's table lists every folder, as recorded or constructed; in the first line of each
    file stands the same.
    """
    rows = re.findall(
        r"^\| `([\w-]+)/` \| (recorded|constructed) \|",
        (FOLDER / "README.md").read_text(),
        re.MULTILINE,
    )
    assert {folder for folder, _ in rows} == {path.parent.name for path in FILES}
    assert len(rows) == len(dict(rows))
    for path in FILES:
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        assert first.startswith(TITLE) == (dict(rows)[path.parent.name] == "constructed"), path


def test_constructed_cassettes_are_what_is_constructed() -> None:
    """None was edited, and none is left over."""
    made = cassettes()
    assert {name_of(path) for path in FILES if path.parent.name in SOURCES} == set(made)
    for name, content in made.items():
        assert (FOLDER / name).read_text(encoding="utf-8") == content, (
            f"{name}: run python -m tests.cassettes.construct"
        )


@every_cassette
def test_no_cassette_holds_a_secret(path: Path, vcr_config: dict[str, Any]) -> None:
    """No header but the allowed ones, nothing like a key, no folder of anybody's machine."""
    text = path.read_text(encoding="utf-8")
    assert not SECRETS.search(text)
    assert not PATHS.search(text)
    for request, answer in exchanges(path):
        assert set(request.headers) <= {"content-type"}
        assert vcr_config["before_record_response"](copy.deepcopy(answer)) == answer


@every_cassette
def test_no_cassette_answers_another_body(
    path: Path, vcr_config: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    """The order of fields is free; one more, one less, another number or the same number of another
    kind is another request.
    """
    from vcr import VCR
    from vcr.matchers import requests_match

    machine = VCR()
    pytestconfig.hook.pytest_recording_configure(config=pytestconfig, vcr=machine)
    match_on = machine.get_merged_config(**vcr_config)["match_on"]
    for request, _ in exchanges(path):
        if request.method != "POST":
            continue
        body = json.loads(request.body)
        assert requests_match(with_body(request, dict(reversed(body.items()))), request, match_on)
        for changed in others(body):
            assert not requests_match(with_body(request, changed), request, match_on), changed


def with_body(request: Request, body: Any) -> Request:
    """The same request but for its body."""
    return type(request)(request.method, request.uri, json.dumps(body), {})


def others(body: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Bodies that differ in one thing."""
    yield {**body, "unheard_of": 1}
    for name, value in body.items():
        yield {key: other for key, other in body.items() if key != name}
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield {**body, name: value + 1}
            yield {**body, name: float(value) if isinstance(value, int) else int(value)}
    if isinstance(bias := body.get("logit_bias"), dict):
        token, nats = next(iter(bias.items()))
        yield {**body, "logit_bias": {**bias, token: -nats}}
        yield {
            **body,
            "logit_bias": {**bias, token: float(nats) if isinstance(nats, int) else int(nats)},
        }
        yield {**body, "logit_bias": {**bias, "7": 1}}


@pytest.mark.parametrize(
    "path", [path for path in FILES if path.parent.name in SOURCES], ids=name_of
)
def test_constructed_numbers_agree(path: Path) -> None:
    """Lists run from the most likely and hold at most the whole mass, the sampled token has one
    logprob, and usage adds up.
    """
    for _, answer in exchanges(path):
        for found in objects(json.loads(answer["body"]["string"])):
            if isinstance(top := found.get("top_logprobs"), list) and "token" in found:
                logprobs = [each["logprob"] for each in top]
                assert logprobs == sorted(logprobs, reverse=True)
                assert sum(map(exp, logprobs)) < 1
                assert [each["logprob"] for each in top if each["token"] == found["token"]] in (
                    [],
                    [found["logprob"]],
                )
                assert found["logprob"] < 0
            if "total_tokens" in found:
                parts = [
                    value
                    for name, value in found.items()
                    if re.fullmatch(r"(prompt|completion|input|output)_tokens", name)
                ]
                assert found["total_tokens"] == sum(parts)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects inside a JSON value."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    if isinstance(value, dict):
        yield value
    for each in inner:
        yield from objects(each)
