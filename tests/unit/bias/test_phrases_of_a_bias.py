"""Phrases that a bias file keeps out: in the file, in requests, and for those who send a vector alone."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pytest

from blackbox_lb import logit_bias
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.export import FORMATS, export
from blackbox_lb.bias.records import Entry
from blackbox_lb.bias.request_bias import RequestBias, to_request_bias
from blackbox_lb.deploy.batch_files import apply_batch
from blackbox_lb.errors import BiasError
from tests.support.biases import FIELDS
from tests.support.errors import names, raises_naming

ENTRIES = (Entry(id=5, bias=-9.0, text=" lamp"),)
PHRASES = ("a lone lamp", "lan*\t2", "re:not .{1,9}but")


def bias(phrases: tuple[str, ...] = PHRASES, entries: tuple[Entry, ...] = ENTRIES) -> Bias:
    """A bias of one token that keeps phrases out."""
    return Bias(**FIELDS, entries=entries, phrases=phrases)


def test_requests_carry_the_list() -> None:
    """It is part of what a store tells biases by, where there is one, and of nothing else."""
    sent = to_request_bias(bias())
    plain = to_request_bias(bias(()))
    assert sent.phrases is not None
    assert sent.phrases.entries == PHRASES
    assert plain.phrases is None
    assert plain.store_key == RequestBias({5: -9.0}).store_key
    assert sent.store_key == RequestBias({5: -9.0}, phrase_entries=list(PHRASES)).store_key
    for vector, phrases in (({5: -9.0}, PHRASES[:1]), ({}, PHRASES), ({5: -9.0}, ())):
        assert sent.store_key != RequestBias(vector, phrase_entries=phrases).store_key
    assert sent.identity != plain.identity


@pytest.mark.parametrize(
    "user", [*sorted(FORMATS.keys() - {"koboldcpp-strings"}), "logit_bias", "batch"]
)
def test_who_sends_a_vector_says_that_phrases_stay_in(
    user: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning with their number; a file without a vector is refused."""

    def send(sent: Bias) -> None:
        if user == "logit_bias":
            assert logit_bias(sent) == {"5": -9}
        elif user == "batch":
            body = {"model": "m", "messages": []}
            line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": body}
            (tmp_path / "in.jsonl").write_text(json.dumps(line) + "\n")
            apply_batch(tmp_path / "in.jsonl", tmp_path / "out.jsonl", sent)
        else:
            export(sent, user)

    with caplog.at_level(logging.WARNING):
        send(bias())
    told = [row.getMessage() for row in caplog.records if "phrases" in row.getMessage()]
    assert len(told) == 1
    assert names(told[0], "3 phrases", "apply()", "blb proxy")
    with raises_naming(BiasError, "3 phrases", "apply()", "blb proxy"):
        send(bias(entries=()))
