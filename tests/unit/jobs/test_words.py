"""``blb words``: a bias from a list, without a fit, and what it would cost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from blackbox_lb.api.limits.concurrency import run_all
from blackbox_lb.api.session import Session
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.phrases import PhraseList
from blackbox_lb.jobs.words import Cost, WordTokens, estimated_cost
from tests.support.commands import asking, blb, options, refused
from tests.support.errors import names
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well, printed
from tests.support.stored import token_completion

MODEL = ExactModel(30, 6, end=True, prompts=4, sharpness=0.7)
WORDS = ("b", "c\t3", "d", "a b", "re:e f")


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """A model whose tokens are " a", " b", ..., asked for the spellings of words."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A list of words, a phrase and a pattern."""
    path = tmp_path / "list.txt"
    path.write_text("\n".join(WORDS))
    return path


def written(server: ExactServer, words: Path, *more: object) -> tuple[Bias, dict[str, Any]]:
    """The file that the command wrote, and what it printed."""
    out = words.with_name("bias.json")
    document: dict[str, Any] = printed(
        blb("words", words, *asking(server, out=out, seed=1), *more, "--json")
    )
    return Bias.load(out), document


def test_whole_words_are_banned_and_all_is_stepped_back_from(
    server: ExactServer, words: Path
) -> None:
    """Tokens that are a whole word get the provider's lowest value, and the whole list stands in the
    file, which nothing has verified; the cost is estimated from one completion a prompt, without a
    bias.
    """
    bias, document = written(server, words)
    banned = {entry.text: entry.bias for entry in bias.entries}
    assert banned == dict.fromkeys((" b", " c", " d"), -100.0)
    assert bias.phrases == WORDS
    assert bias.status == "UNVERIFIED"
    assert bias.prompted_endpoint == "chat"
    assert len(server.completions) == 20
    assert not any(body.get("logit_bias") for body in server.completions)
    cost = document["cost"]
    assert cost["completions"] == 20
    assert cost["hits"] == cost["banned"] + cost["stepped"] > 0


def test_the_weightiest_words_find_room(server: ExactServer, words: Path, tmp_path: Path) -> None:
    """Within the entries that are asked for; those without are named. Prompts may be those of a
    file.
    """
    bias, document = written(server, words, "--entries", 2, "--value", -3, "--prompts", 0)
    assert {entry.text: entry.bias for entry in bias.entries} == {" b": -3.0, " c": -3.0}
    assert (document["words"], document["left_out"]) == (["c", "b"], ["d"])
    assert document["cost"] is None
    assert server.completions == []
    data = tmp_path / "prompts.csv"
    data.write_text("text\n" + "".join(f"Tell me of {number}.\n" for number in range(30)))
    where = asking(server, out=words.with_name("b.json"), data=data, prompts=3)
    assert names(refused("words", words, *where), "--prompt-column text")
    where = (*where, "--prompt-column", "text")
    result = ended_well(blb("words", words, *where))
    assert names(result.stdout, "UNVERIFIED", "3 tokens at -100", "all 5 lines", "blb eval")
    asked = [body["messages"][-1]["content"] for body in server.completions]
    assert sorted(asked) == [f"Tell me of {number}." for number in range(3)]


def test_tokens_alone_need_no_stepping_back(server: ExactServer, words: Path) -> None:
    """The lines that are no token are named; a list without any is refused."""
    only = ("--only-tokens", "--prompts", 0)
    bias, _ = written(server, words, *only)
    assert bias.phrases == ()
    assert len(bias.entries) == 3
    where = asking(server, out=words.with_name("bias.json"))
    assert names(blb("words", words, *only, *where).stdout, "no token is 2 lines: a b, e f")
    assert names(refused("words", "a b", *only, *where), "no token to ban", "--only-tokens")


def test_bad_input_is_refused_before_a_request(server: ExactServer, words: Path) -> None:
    """A wrong list, value or folder, and a server that cannot step back, with those that can. A dry
    run asks nothing either.
    """
    out = words.with_name("bias.json")
    where = asking(server, out=out)
    for arguments, facts in (
        (("none.txt",), ("none.txt",)),
        (("re:(",), ("entry 1",)),
        ((words, "--value", 2), ("--value", "2", "-100")),
        ((words, "--value", -1e9), ("--value", "-100")),
        ((words, "--out", "nowhere/bias.json"), ("nowhere",)),
    ):
        assert names(refused("words", *where, *arguments), *facts)
    message = refused("words", words, *options(provider="openai", model="gpt-4o", prompts=0))
    assert names(message, "openai", "vllm (chat and completions)", "--only-tokens")
    dry = ended_well(blb("words", words, *where, "--dry-run"))
    assert names(dry.stdout, "5 lines", "about 20 requests")
    assert server.requests == []
    assert not out.exists()


def test_requests_in_flight_are_those_that_were_asked_for(
    server: ExactServer, words: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the provider's number."""
    numbers: list[int] = []

    async def run_some(items: Any, one: Any, in_flight: int, *more: Any) -> None:
        numbers.append(in_flight)
        await run_all(items, one, in_flight, *more)

    monkeypatch.setattr("blackbox_lb.jobs.words.run_all", run_some)
    written(server, words, "--concurrency", 3, "--prompts", 4)
    assert numbers == [3]


def test_the_cost_counts_from_the_first_token_of_a_hit() -> None:
    """A hit that is one banned token costs nothing; of another its tokens, the one that shows its
    end, and the one that is drawn instead, each beside those that are delivered.
    """
    phrases = PhraseList.of_entries(["lamp", "a lone ship"])
    texts = {1: b"The", 2: b" lamp", 3: b" a", 4: b" lone", 5: b" ship", 6: " é".encode(), 7: b"."}
    tokens = WordTokens(banned={2: " lamp"}, words=(), left_out=())
    session = cast(Session, SimpleNamespace(texts_of_vocabulary=lambda: texts))
    completion = token_completion("The lamp é a lone ship.", [1, 2, 6, 3, 4, 5, 7])
    found = estimated_cost(session, [completion], phrases, tokens)
    assert found == Cost(completions=1, tokens=7, words=6, hits=2, banned=1, redrawn=5)
    assert found.stepped == 1
