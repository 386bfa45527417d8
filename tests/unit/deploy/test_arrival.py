"""Whether a bias arrives, told through doubles of what stands between: by ``apply`` and by the
doctor.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import openai
import pytest

from blackbox_lb import apply
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry, SamplingRecord
from blackbox_lb.errors import InputError
from tests.support.biases import FIELDS
from tests.support.commands import blb
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import RefusedRequest
from tests.support.proxy_upstream import proxy_for, running

JSON: TypeAlias = dict[str, Any]
REFUSAL = "Unsupported parameter: logit_bias"


def passes(body: JSON) -> JSON:
    """The bias as it is."""
    return body


def drops(body: JSON) -> JSON:
    """Silently without."""
    return {name: value for name, value in body.items() if name != "logit_bias"}


def converted(body: JSON, convert: Callable[[float], float]) -> JSON:
    """With other values, as whole numbers by ``int`` or ``round``."""
    if "logit_bias" not in body:
        return body
    sent = {token: convert(value) for token, value in body["logit_bias"].items()}
    return body | {"logit_bias": sent}


def refuses(body: JSON) -> JSON:
    """With the words of a host that takes none."""
    if "logit_bias" in body:
        raise RefusedRequest(400, REFUSAL)
    return body


class Gateway(ExactServer):
    """An exact model behind something that edits requests."""

    def __init__(self, edit: Callable[[JSON], JSON]) -> None:
        super().__init__(ExactModel(12, 8, end=True))
        self.edit = edit

    def post(self, path: str, body: JSON) -> Any:
        """The answer to the edited request."""
        return super().post(path, self.edit(body))


def bias(**fields: Any) -> Bias:
    """Of tokens with texts, one of them unseen."""
    values = {1: 1.5, 3: 0.75, 5: -2.0, 7: 1.0}
    texts = ExactServer(ExactModel(12, 8, end=True)).texts
    entries = tuple(
        Entry(id=token, bias=value, text=texts[token]) for token, value in values.items()
    )
    made = {"provider": "llamacpp", "model": "exact", "entries": entries}
    return Bias(**FIELDS | made | fields)


WHOLE = ("become whole numbers", "blb compile --integers")
CASES: dict[str, tuple[Callable[[JSON], JSON], str, tuple[str, ...]]] = {
    "passes": (passes, "ARRIVES", ("fractions of a nat arrive",)),
    "cuts": (partial(converted, convert=int), "ARRIVES", WHOLE),
    "rounds": (partial(converted, convert=round), "ARRIVES", WHOLE),
    "drops": (drops, "DROPPED", ("as it does without a bias", "drop_params")),
    "refuses": (refuses, "REFUSED", (REFUSAL,)),
}


@pytest.mark.parametrize(("edit", "word", "words"), CASES.values(), ids=CASES)
@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_apply_proves_that_the_bias_arrives(
    edit: Callable[[JSON], JSON],
    word: str,
    words: tuple[str, ...],
    endpoint: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At once, and loudly where it does not; what is only rounded is a warning."""
    drawn = SamplingRecord(max_tokens=8, top_logprobs=5, endpoint=endpoint)
    with (
        Gateway(edit) as gateway,
        caplog.at_level(logging.INFO, "blackbox_lb.deploy.client"),
        openai.OpenAI(base_url=gateway.base_url, api_key="none", max_retries=0) as client,
    ):
        if word == "ARRIVES":
            apply(client, bias(sampling=drawn), verify=True)
            (record,) = caplog.records
            said = record.getMessage()
            assert (record.levelno == logging.WARNING) is ("become whole numbers" in said)
        else:
            with pytest.raises(InputError) as error:
                apply(client, bias(sampling=drawn), verify=True)
            said = str(error.value)
        assert word in said
        for part in words:
            assert part in said
        generating = [path for path, _ in gateway.calls if "completions" in path]
        assert 0 < len(generating) <= 10
        assert all(body.get("max_tokens") == 1 for path, body in gateway.calls if "compl" in path)


def nothing(body: JSON) -> JSON:
    """With the words of a host that knows no such model."""
    raise RefusedRequest(400, "no such model")


BARE = tuple(entry.replacing(text=None) for entry in bias().entries)
PHRASES = ("a testament to", "her emerald eyes")


UNTOLD = "CANNOT BE TOLD"
EXITS = {"ARRIVES": 0, "DROPPED": 1, "REFUSED": 1, UNTOLD: 2}


@pytest.mark.parametrize(
    ("edit", "file", "word", "words"),
    [
        *(pytest.param(edit, bias(), *rest, id=name) for name, (edit, *rest) in CASES.items()),
        pytest.param(passes, bias(entries=BARE), UNTOLD, ("no texts",), id="no texts"),
        pytest.param(nothing, bias(), UNTOLD, ("no such model",), id="no model"),
        pytest.param(passes, bias(phrases=PHRASES), "ARRIVES", ("2 phrases",), id="phrases too"),
        pytest.param(
            passes, bias(entries=(), phrases=PHRASES), UNTOLD, ("2 phrases",), id="phrases alone"
        ),
    ],
)
def test_the_doctor_says_the_same(
    edit: Callable[[JSON], JSON], file: Bias, word: str, words: tuple[str, ...], tmp_path: Path
) -> None:
    """In a line that begins with the word; exit code 1 where requests go without the bias, 2 where
    that cannot be told. Phrases are named and not asked for.
    """
    file.save(tmp_path / "bias.json")
    with Gateway(edit) as gateway:
        where = ("--bias", tmp_path, "--base-url", gateway.base_url)
        result = blb("doctor", *where)
        document = json.loads(blb("doctor", *where, "--json").stdout)
    assert result.stdout.startswith(f"{word}  "), result.output
    for part in words:
        assert part in result.stdout
    assert document["word"] == word
    assert result.exit_code == EXITS[word]


def test_a_proxy_that_adds_the_bias_is_recognised(tmp_path: Path) -> None:
    """It refuses a bias of the request's own, which says nothing of its upstream."""
    file = tmp_path / "bias.json"
    bias().save(file)
    with Gateway(passes) as gateway, running(proxy_for(gateway.base_url, bias())) as port:
        result = blb("doctor", "--bias", file, "--base-url", f"http://127.0.0.1:{port}/v1")
    assert result.exit_code == 2
    assert "this address is a blb proxy" in result.stdout


def test_an_async_client_is_not_asked() -> None:
    """Nothing is awaited in ``apply``."""
    client = openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="none")
    with raises_naming(InputError, "``verify``", "AsyncOpenAI", "blb doctor --bias"):
        apply(client, bias(), verify=True)
