"""``blb fit --phrases``: the list goes into the bias file, and is checked before anything is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from blackbox_lb.bias.document import Bias
from tests.support.commands import asking, blb, options, refused
from tests.support.errors import names
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well
from tests.support.questions import questions, write_rows

PHRASES = ("a lone lamp", "lan*\t2", "re:not .{1,9}but")
DRAWN = options(
    max_tokens=4, top_logprobs=8, l2=2, samples_per_prompt=20, validation_samples=4, test_samples=4
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ExactServer]:
    """One that was asked nothing yet, beside data and a list."""
    write_rows(tmp_path / "data.jsonl", questions(8, 3, 4))
    (tmp_path / "list.txt").write_text("\n".join(PHRASES))
    with ExactServer(ExactModel(30, 6, end=True, prompts=4, sharpness=0.7)) as server:
        yield server


def test_a_fit_writes_its_phrases(server: ExactServer, tmp_path: Path) -> None:
    """Into bias.json and learned.json; compile keeps them, show names them, and the verdict is said
    to be that of the vector. A second run asks for nothing.
    """
    where = asking(server, out=tmp_path / "run", data=tmp_path / "data.jsonl", seed=1)
    phrases = options(reward="length", phrases=tmp_path / "list.txt")
    result = ended_well(blb("fit", *where, *phrases, *DRAWN))
    assert names(result.stderr, "3 phrases", "judged without")
    bias_file = tmp_path / "run" / "bias.json"
    assert Bias.load(bias_file).phrases == PHRASES
    assert Bias.load(bias_file.with_name("learned.json")).phrases == PHRASES
    asked = len(server.requests)
    ended_well(blb("fit", *where, *phrases, *DRAWN))
    assert [body for body in server.requests[asked:] if "messages" in body] == []
    shown = blb("show", bias_file)
    assert names(shown.stdout, "3, which apply() and blb proxy keep out", "a lone lamp")
    compiled = tmp_path / "compiled.json"
    result = ended_well(
        blb("compile", bias_file, "--provider", "vllm", "--entries", 3, "--out", compiled)
    )
    assert names(result.output, "3 phrases kept")
    assert Bias.load(compiled).phrases == PHRASES


def test_phrases_are_checked_before_anything_is_asked(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A list that cannot be read, a wrong pattern, a server that cannot step back, and a question, of
    which no completion is drawn.
    """
    monkeypatch.setattr("blackbox_lb.bias.phrases.SECONDS", 0.2)
    where = asking(server, out=tmp_path / "run", data=tmp_path / "data.jsonl", reward="length")
    long_list = tmp_path / "long.txt"
    long_list.write_text("\n".join(f"word{number}" for number in range(20_001)))
    for phrases, facts in (
        (tmp_path / "none.txt", ("none.txt",)),
        ("re:lan(", ("entry 1", "not valid")),
        ("lamp,re:(a|aa)+!", ("entry 2", "exponential")),
        ("re:a*", ("entry 1", "empty text")),
        (long_list, ("20,001", "20,000")),
    ):
        assert names(refused("fit", *where, *options(phrases=phrases)), *facts)
    data = options(data=tmp_path / "data.jsonl", reward="length", phrases="lamp", model="m")
    for extra in ((), ("--dry-run",)):
        message = refused("fit", *data, *extra, "--provider", "openai")
        assert names(message, "openai", "vllm (chat and completions)", "llamacpp")
    question = options(
        data=tmp_path / "data.jsonl", reward="accuracy", phrases="lamp", labels="a,b"
    )
    assert names(refused("fit", *question, "--question", "Which?"), "--phrases", "completions")
    assert server.requests == []
