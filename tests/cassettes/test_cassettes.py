"""What holds for every cassette: it belongs to a test, says where it is from, keeps no secret, and
answers no other request.
"""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.cassettes.conftest import FOLDER

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


def exchanges(path: Path) -> list[tuple[Request, dict[str, Any]]]:
    """Requests and answers of a cassette."""
    from vcr.persisters.filesystem import FilesystemPersister
    from vcr.serializers import yamlserializer

    requests, answers, *_ = FilesystemPersister.load_cassette(path, yamlserializer)
    return list(zip(requests, answers, strict=True))


def is_constructed(path: Path) -> bool:
    """As its first line says."""
    return path.read_text(encoding="utf-8").startswith(TITLE)


def test_every_cassette_belongs_to_a_test() -> None:
    """A constructed one to the test of its folder and name, a recorded one to the test of its name."""
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    tests = set(re.findall(r"^def test_(\w+)", source, re.MULTILINE))
    for path in FILES:
        name = f"{path.parent.name}_{path.stem}" if is_constructed(path) else path.stem
        assert name.replace("-", "_") in tests, path


def test_every_cassette_says_where_it_is_from() -> None:
    """The README's table lists every folder, as recorded or constructed, as its files say."""
    rows = re.findall(
        r"^\| `([\w-]+)/` \| (recorded|constructed) \|",
        (FOLDER / "README.md").read_text(),
        re.MULTILINE,
    )
    assert {folder for folder, _ in rows} == {path.parent.name for path in FILES}
    for path in FILES:
        assert is_constructed(path) == (dict(rows)[path.parent.name] == "constructed"), path


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_cassette_holds_a_secret(path: Path, vcr_config: dict[str, Any]) -> None:
    """No header but the allowed ones, nothing like a key, no folder of anybody's machine."""
    text = path.read_text(encoding="utf-8")
    assert not SECRETS.search(text)
    assert not PATHS.search(text)
    for request, answer in exchanges(path):
        assert set(request.headers) <= {"content-type"}
        assert vcr_config["before_record_response"](copy.deepcopy(answer)) == answer


def test_no_cassette_answers_another_body(
    vcr_config: dict[str, Any], pytestconfig: pytest.Config
) -> None:
    """The order of fields is free; one more, one less, another number or the same number of another
    kind is another request.
    """
    from vcr import VCR
    from vcr.matchers import requests_match
    from vcr.request import Request

    machine = VCR()
    pytestconfig.hook.pytest_recording_configure(config=pytestconfig, vcr=machine)
    match_on = machine.get_merged_config(**vcr_config)["match_on"]

    def request(body: dict[str, Any]) -> Request:
        return Request("POST", "http://host.example/v1", json.dumps(body), {})

    asked = request({"top_k": 0, "logit_bias": {"5": 2}})
    assert requests_match(request({"logit_bias": {"5": 2}, "top_k": 0}), asked, match_on)
    others: list[dict[str, Any]] = [
        {"top_k": 0},
        {"top_k": 0, "logit_bias": {"5": 2}, "seed": 1},
        {"top_k": 1, "logit_bias": {"5": 2}},
        {"top_k": 0.0, "logit_bias": {"5": 2}},
        {"top_k": 0, "logit_bias": {"5": 2.0}},
        {"top_k": 0, "logit_bias": {"5": -2}},
    ]
    for other in others:
        assert not requests_match(request(other), asked, match_on), other
