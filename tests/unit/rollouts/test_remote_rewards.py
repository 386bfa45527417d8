"""Remote rewards: what is sent and taken, that nothing is asked twice or lost, and that no
credentials get out.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest

from blackbox_lb.api.limits.budget import SpendingLimits, SpendLimit
from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import (
    AuthenticationFailed,
    BlbError,
    BudgetExhausted,
    ConnectionFailed,
    CorruptResponse,
    InputError,
    RateLimited,
    RequestRejected,
)
from blackbox_lb.jobs.records.run_record import Remembering
from blackbox_lb.rollouts.progress import Reporter, Silent
from blackbox_lb.rollouts.remote_rewards import fetch_rewards
from blackbox_lb.safety.http import retries
from blackbox_lb.safety.http.retries import ATTEMPTS
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward, parse_reward
from blackbox_lb.tasks.rewards.forms.endpoint import BATCH
from blackbox_lb.types import Completion, Example, Message, Prompt, Span
from tests.support.commands import asking, blb, options
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.listener import Listener, Reply, Request
from tests.support.questions import questions, write_rows
from tests.support.stored import text_completion as completion

EXAMPLE = Example("q1", Prompt.user("Capital of Norway?"), ("Oslo",))
Answer = Callable[[int, Any], Reply | Literal["drop"]]


class Scorer:
    """An endpoint on loopback that gives a completion its length in characters, unless told to
    answer otherwise.
    """

    def __init__(self) -> None:
        self.seen: list[Request] = []
        self.answer: Answer = lambda _number, body: Reply(200, {"rewards": lengths(body)})
        self._lock = threading.Lock()
        self.listener = Listener(self._reply)

    def _reply(self, request: Request) -> Reply | Literal["drop"]:
        with self._lock:
            number = len(self.seen)
            self.seen.append(request)
        return self.answer(number, json.loads(request.body))

    @property
    def url(self) -> str:
        """Its address."""
        return f"{self.listener.url}/score"

    @property
    def items(self) -> list[Any]:
        """Every item that it was asked about."""
        return [item for request in self.seen for item in json.loads(request.body)["items"]]


def lengths(body: Any) -> list[float]:
    """Characters of each completion."""
    return [float(len(item["completion"])) for item in body["items"]]


@pytest.fixture
def scorer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scorer]:
    """An endpoint; retries do not wait."""
    monkeypatch.setattr(retries, "retry_pause", lambda state: 0.001)
    monkeypatch.delenv("BLB_REWARD_KEY", raising=False)
    running = Scorer()
    running.listener.start()
    yield running
    running.listener.stop()


def texts(count: int) -> list[tuple[Example, Completion]]:
    """That many different completions of one example."""
    return [(EXAMPLE, completion("x" * (n + 1))) for n in range(count)]


def fetch(
    reward: Reward,
    path: Path,
    pairs: list[tuple[Example, Completion]],
    report: Reporter | None = None,
) -> int:
    """Fetch into the store at ``path``; how many were asked for."""
    with RolloutStore(path) as store:
        return asyncio.run(fetch_rewards(store, reward, pairs, report or Silent(), "training"))


def test_an_endless_answer_is_read_no_further(
    scorer: Scorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the bound, and nothing is stored."""
    monkeypatch.setattr("blackbox_lb.safety.http.clients.LIMIT", ContextVar("LIMIT", default=1000))
    scorer.answer = lambda _number, body: Reply(200, {"rewards": lengths(body), "more": "x" * 2000})
    with raises_naming(CorruptResponse, "1,000"):
        fetch(parse_reward(scorer.url, max_tokens=48), tmp_path / "s.db", texts(3))
    with RolloutStore(tmp_path / "s.db") as store:
        assert not list(store.rows("rewards"))


def test_what_an_endpoint_is_told(scorer: Scorer, tmp_path: Path) -> None:
    """One object a completion, with exactly the documented fields; what comes back is the reward in
    nats. What a filter stopped, and what nobody could read, is not sent; an empty completion is.
    """
    prompt = Prompt((Message("system", "Be brief."), Message("user", "Capital of Norway?")))
    example = Example("q1", prompt, ("Oslo", "Christiania"))
    reward = parse_reward(scorer.url, max_tokens=48)
    assert (reward.name, reward.needs_answer) == (scorer.url, False)
    with raises_naming(InputError, "'q1'", "Trials.collect"):
        reward.score(example, completion("Oslo.", 4))
    unread = [Completion.empty("content_filter"), Completion.empty("stop")]
    pairs = [(example, one) for one in (*unread, completion("Oslo.", 4))]
    assert fetch(reward, tmp_path / "s.db", pairs) == 1
    [request] = scorer.seen
    assert (request.method, request.path) == ("POST", "/score")
    assert json.loads(request.body) == {
        "items": [
            {
                "id": "q1",
                "prompt": [message.as_json for message in prompt.messages],
                "answers": ["Oslo", "Christiania"],
                "completion": "Oslo.",
                "finish_reason": "stop",
                "tokens": 4,
            }
        ]
    }
    assert reward.score(example, completion("Oslo.", 4)).value == 5.0
    assert fetch(reward, tmp_path / "s.db", [(example, completion("", 0))]) == 1


def test_nothing_is_asked_twice(scorer: Scorer, tmp_path: Path) -> None:
    """Not what is repeated or known, and after a restart not what is stored; whatever else is told
    makes it another item. Each completion has the reward of its own text, whichever batch it is in.
    """
    pairs = texts(2 * BATCH + 6)
    reward, again = (parse_reward(scorer.url, max_tokens=48) for _ in range(2))
    assert fetch(reward, tmp_path / "s.db", pairs + pairs) == len(pairs)
    sizes = [len(json.loads(request.body)["items"]) for request in scorer.seen]
    assert sorted(sizes) == [6, BATCH, BATCH]
    for known in (reward, again):
        assert fetch(known, tmp_path / "s.db", pairs) == 0
        assert [known.score(*pair).value for pair in pairs] == [n + 1 for n in range(len(pairs))]
    changed = [
        (replace(EXAMPLE, answers=("Bergen",)), pairs[0][1]),
        (EXAMPLE, completion("x", 9)),
        (EXAMPLE, replace(pairs[0][1], finish_reason="length")),
    ]
    assert fetch(again, tmp_path / "s.db", changed) == 3
    assert len(scorer.items) == len(pairs) + 3


@pytest.mark.parametrize(
    ("reply", "kind", "tries", "facts"),
    [
        (Reply(429, {"detail": "slow down"}), RateLimited, retries.RATE_LIMIT_ATTEMPTS, ("429", "slow down", "same command")),
        ("drop", ConnectionFailed, ATTEMPTS, ("same command",)),
        (Reply(401, {}), AuthenticationFailed, 1, ("401", "credentials")),
        (Reply(302, {}, {"location": "http://127.0.0.1:9/"}), RequestRejected, 1, ("302", "http://127.0.0.1:9/")),
        (Reply(200, b'{"rewards": [-1e999]}'), CorruptResponse, 1, ("'q1'", "-inf")),
        (Reply(200, b'{"rewards": [-Infinity]}'), CorruptResponse, 1, ("'q1'", "-inf")),
        (Reply(200, b'{"rewards": [1e999]}'), CorruptResponse, 1, ("'q1'", "answered inf")),
        (Reply(200, b'{"rewards": [1], "rewards": [2]}'), CorruptResponse, 1 + retries.FIRST_SLIPS, ("two values",)),
    ],
)  # fmt: skip
def test_a_fault_that_stays_is_explained(
    scorer: Scorer,
    tmp_path: Path,
    reply: Reply | Literal["drop"],
    kind: type[BlbError],
    tries: int,
    facts: tuple[str, ...],
) -> None:
    """What retrying cannot cure is tried once, and the message says who answered what and what is
    kept. Minus infinity is the text "-inf"; of a repeated key no value counts.
    """
    scorer.answer = lambda _number, _body: reply
    with raises_naming(kind, scorer.url, *facts):
        fetch(parse_reward(scorer.url, max_tokens=48), tmp_path / "s.db", texts(1))
    assert len(scorer.seen) == tries


def test_an_interrupted_fetch_loses_nothing(scorer: Scorer, tmp_path: Path) -> None:
    """When a batch is refused for good, those that were answered are stored, and the next run asks
    for the rest alone.
    """
    honest, full = scorer.answer, Reply(400, {"detail": "full"})
    scorer.answer = lambda number, body: full if number == 5 else honest(number, body)
    pairs = texts(60 * BATCH)
    with raises_naming(RequestRejected, "400", "full"):
        fetch(parse_reward(scorer.url, max_tokens=48), tmp_path / "s.db", pairs)
    assert len(scorer.seen) < 60
    rest = len(pairs) - (len(scorer.seen) - 1) * BATCH
    scorer.answer = honest
    assert fetch(parse_reward(scorer.url, max_tokens=48), tmp_path / "s.db", pairs) == rest


@pytest.mark.parametrize(
    ("rewards", "facts"),
    [
        ([float("nan"), 1], ("answered nan", "'q1'")),
        ([10**400, 1], ("'q1'", f"answered {10**58}…")),
        (["-inf", 1], ("answered '-inf'", "'q1'", "finite")),
        ([True, 1], ("True", "'q1'")),
        (["0.5", 1], ("'0.5'", "'q1'")),
        ([1], ("1 rewards", "2 items")),
        ({"q1": 1}, ("{'rewards': {'q1': 1}}", '{"rewards": [...]}')),
        (None, ("{'rewards': None}", '{"rewards": [...]}')),
    ],
)
def test_an_answer_that_is_no_reward_is_refused(
    scorer: Scorer, tmp_path: Path, rewards: Any, facts: tuple[str, ...]
) -> None:
    """Not a number, infinite, missing, too many: the message says what came; what came beside it is
    kept and not asked again.
    """
    scorer.answer = lambda _number, _body: Reply(200, {"rewards": rewards})
    reward = parse_reward(scorer.url, max_tokens=48)
    with raises_naming(CorruptResponse, scorer.url, *facts):
        fetch(reward, tmp_path / "s.db", texts(2))
    scorer.answer = lambda _number, body: Reply(200, {"rewards": [0.5] * len(body["items"])})
    kept = isinstance(rewards, list) and len(rewards) == 2
    assert fetch(reward, tmp_path / "s.db", texts(2)) == (1 if kept else 2)
    assert [reward.score(*pair).value for pair in texts(2)] == [0.5, 1 if kept else 0.5]


def test_a_key_comes_from_the_environment(
    scorer: Scorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BLB_REWARD_KEY is sent as a bearer token, and is not in a message, a representation, or any
    byte of the store; another one costs nothing anew.
    """
    key = "k3y-of-the-endpoint"
    monkeypatch.setenv("BLB_REWARD_KEY", key)
    reward = parse_reward(scorer.url, max_tokens=48)
    fetch(reward, tmp_path / "s.db", texts(1))
    assert scorer.seen[0].headers["authorization"] == f"Bearer {key}"
    scorer.answer = lambda _number, _body: Reply(400, {"detail": key})
    with pytest.raises(RequestRejected) as caught:
        fetch(reward, tmp_path / "s.db", [(EXAMPLE, completion("new"))])
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert key.encode() not in f"{caught.value} {reward!r}".encode() + stored
    monkeypatch.delenv("BLB_REWARD_KEY")
    assert fetch(parse_reward(scorer.url, max_tokens=48), tmp_path / "s.db", texts(1)) == 0


@pytest.mark.parametrize(
    ("spec", "facts"),
    [
        ("https://", ("'https://'", "https://HOST/PATH")),
        ("http://u:secret@host:port/x", ("'host:port/x'", "https://HOST/PATH")),
        ("http://u:secret@host/x", ("password", "BLB_REWARD_KEY")),
        ("http://host/x?key=secret", ("query", "BLB_REWARD_KEY")),
        ("htps://u:secret@host/x", ("'...host/x'", "exact-match")),
    ],
)
def test_a_broken_address_is_refused_without_its_password(
    spec: str, facts: tuple[str, ...]
) -> None:
    """The message says what is wrong and not what is secret."""
    with raises_naming(InputError, *facts) as caught:
        parse_reward(spec, max_tokens=48)
    assert "secret" not in str(caught.value)


# A language model as judge

TEMPLATE = 'Q: {prompt}\nA: {completion}\nRight: {answer}\nReply {"score": N}'


@pytest.fixture
def judge(scorer: Scorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Reward]:
    """Write a judge's file with other rows and return the reward; the judge says what ``words`` say
    in turn.
    """
    monkeypatch.setenv("JUDGE_KEY", "k3y-of-the-judge")

    def make(*words: str, fields: str = "", **rows: object) -> Reward:
        def say(number: int, _body: Any) -> Reply:
            return Reply(200, says(words[min(number, len(words) - 1)]))

        scorer.answer = say
        known: dict[str, object] = {
            "base_url": f"{scorer.listener.url}/v1",
            "model": "m",
            "prompt": TEMPLATE,
            "api_key_env": "JUDGE_KEY",
            "pattern": "score: (.+)",
            "concurrency": 1,
        }
        values = {name: value for name, value in {**known, **rows}.items() if value is not None}
        lines = [f"{name} = {json.dumps(value)}" for name, value in values.items()]
        lines += [f"fields = {{{fields}}}"] * bool(fields)
        (tmp_path / "judge.toml").write_text("\n".join(lines))
        return parse_reward(f"judge:{tmp_path / 'judge.toml'}", max_tokens=48)

    return make


def says(content: Any = "score: 8", finish: Any = "stop", **more: Any) -> dict[str, Any]:
    """A judge's chat completion."""
    message = {"role": "assistant", "content": content, **more}
    usage = {"prompt_tokens": 9, "completion_tokens": 5}
    return {"choices": [{"index": 0, "message": message, "finish_reason": finish}], "usage": usage}


def test_a_judge_reads_a_completion(
    scorer: Scorer, judge: Callable[..., Reward], tmp_path: Path
) -> None:
    """The filled prompt goes to the chat API, greedily; the last number that the pattern finds,
    scaled, is the reward.
    """
    reward = judge("score: 2? No, better.\nscore: 8", scale=0.1)
    assert (reward.name, reward.needs_answer) == (f"judge:{tmp_path / 'judge.toml'}", True)
    sly = completion("{answer} is Oslo")
    fetch(reward, tmp_path / "s.db", [(EXAMPLE, sly)])
    [request] = scorer.seen
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == "Bearer k3y-of-the-judge"
    filled = 'Q: Capital of Norway?\nA: {answer} is Oslo\nRight: Oslo\nReply {"score": N}'
    assert json.loads(request.body) == {
        "model": "m",
        "messages": [{"role": "user", "content": filled}],
        "temperature": 0,
        "max_tokens": 256,
    }
    assert reward.score(EXAMPLE, sly).value == pytest.approx(0.8)


def test_the_words_are_read_again_for_another_scale(
    judge: Callable[..., Reward], tmp_path: Path
) -> None:
    """How words become a number may change for free; what the judge is asked may not."""
    without_answer = "Rate {completion}"
    assert not judge("score: 4", prompt=without_answer).needs_answer
    for rows, asked in (
        ({}, 1),
        ({"pattern": "[0-9]+"}, 0),
        ({"scale": 2.0}, 0),
        ({"max_tokens": 9}, 1),
        ({"model": "n"}, 1),
        ({"prompt": without_answer}, 1),
    ):
        reward = judge("score: 4", **rows)
        assert fetch(reward, tmp_path / "s.db", texts(1)) == asked, rows
        assert reward.score(*texts(1)[0]).value == (8.0 if "scale" in rows else 4.0)


def test_a_judge_may_quote(judge: Callable[..., Reward], tmp_path: Path) -> None:
    """The passages that a judge quotes share its number; where none of them stands in the text the
    end of the text has it, and a notice counts those that do not.
    """
    rows = {"quotes": '> "(.*?)"', "scale": 0.5}
    reward = judge(
        '> "old lamp"\n> "the sea"\n> "OLD LAMP"\n> "its SEA"\nscore: -4',
        "score: 0",
        '> "a boat"\nscore: -3',
        **rows,
    )
    assert reward.has_spans
    texts = ("An old lamp by the sea", "Fine.", "Her ship")
    pairs = [(EXAMPLE, completion(text)) for text in texts]
    notices = Remembering(Silent())
    fetch(reward, tmp_path / "s.db", pairs, notices)
    assert reward.score(*pairs[0]).spans == (Span(3, 11, -1.0), Span(15, 22, -1.0))
    assert reward.score(*pairs[1]).spans == ()
    assert reward.score(*pairs[2]).spans == (Span(8, 8, -1.5),)
    assert [reward.score(*pair).value for pair in pairs] == [-2.0, 0.0, -1.5]
    assert any("2 passages" in notice for notice in notices.notices)
    assert not judge("score: 1").has_spans


@pytest.mark.parametrize(
    ("rows", "facts"),
    [
        ({"pattern": "("}, ("pattern", "missing )")),
        ({"pattern": "a{99999999999}"}, ("pattern", "too large")),
        ({"prompt": "Rate it"}, ("prompt", "{completion}")),
        ({"model": None}, ("model", "base_url")),
        ({"modell": "m"}, ("modell", "base_url")),
        ({"base_url": "judge.example"}, ("'judge.example'", "https://HOST/v1")),
        ({"base_url": "http://u:pw@judge.example/v1"}, ("base_url", "password", "api_key_env")),
        ({"quotes": "("}, ("quotes", "missing )")),
        ({"scale": "x"}, ("scale", "number")),
        # Fields would pass the limits on tokens; so would several answers, of which one is read.
        ({"fields": "max_tokens = 4000"}, ("fields", "max_tokens")),
        ({"fields": "n_predict = 4000"}, ("fields", "n_predict", "max_tokens")),
        ({"fields": "model = 'other'"}, ("fields", "model")),
        ({"fields": "messages = []"}, ("fields", "messages", "prompt")),
        ({"fields": "n = 20"}, ("fields", "n = 20")),
        ({"fields": "best_of = 4"}, ("fields", "best_of")),
        ({"fields": "stream = true"}, ("fields", "stream")),
        ({"fields": "max_completion_tokens = 'many'"}, ("max_completion_tokens", "'many'")),
    ],
)
def test_a_broken_judge_is_refused(
    judge: Callable[..., Reward], rows: dict[str, Any], facts: tuple[str, ...]
) -> None:
    """What is wrong with the file is said before anything is sampled."""
    with raises_naming(InputError, "judge.toml", *facts) as caught:
        judge("score: 1", **rows)
    assert "pw" not in str(caught.value)


RIGHT = says()
PARTS = says([{"type": "thinking", "thinking": "score: 1"}, {"type": "text", "text": "score: 8"}])
BROKEN = {**RIGHT, "choices": [{**RIGHT["choices"][0], "error": {"message": "the host went away"}}]}


@pytest.mark.parametrize(
    "slip",
    [
        {"error": {"code": 429, "message": "Rate limit exceeded: requests per minute"}},
        {"error": {"code": 502, "message": "the host went away"}},
        says("score: 1", "error"),
        says("score: 1", None),
        BROKEN,
        says(None, reasoning_content="score: 8"),
        says([{"type": "image"}]),
        {"choices": []},
        [],
    ],
    ids=str,
)
def test_a_slip_of_a_judge_is_asked_again_as_a_models_is(
    scorer: Scorer, judge: Callable[..., Reward], tmp_path: Path, slip: Any
) -> None:
    """What its host broke off, an error inside an answer of status 200, what cannot be read; the
    number of unreadable ones is said with their reason. One that never is readable ends the run
    after as many tries as a model's.
    """
    reward, notices = judge("score: 8"), Remembering(Silent())
    scorer.answer = lambda number, _body: Reply(200, slip if number == 1 else PARTS)
    assert fetch(reward, tmp_path / "s.db", texts(3), notices) == 3
    assert [reward.score(*pair).value for pair in texts(3)] == [8.0] * 3
    assert len(scorer.seen) == 4
    is_refused = isinstance(slip, dict) and "error" in slip
    assert len([said for said in notices.notices if "asked for again" in said]) == (not is_refused)
    other = judge("score: 8", model="n")
    scorer.answer = lambda _number, _body: Reply(200, slip)
    with raises_naming(BlbError, "judge.toml"):
        fetch(other, tmp_path / "s.db", texts(1))
    if not is_refused:
        assert len(scorer.seen) == 4 + 1 + retries.FIRST_SLIPS


@pytest.mark.parametrize(
    ("reply", "facts"),
    [
        (says("Clear and polite. score: 1", "length"), ("max_tokens = 256", "'q1'", "otherwise")),
        (says("score: 10, because", "max_tokens"), ("max_tokens = 256", "otherwise")),
        (says(None, "length", reasoning_content="Let me see"), ("max_tokens = 256", "otherwise")),
        (says("score: 1", "content_filter"), ("content filter", "otherwise")),
        (says("I would rather not."), ("'I would rather not.'", "'q1'", "pattern")),
    ],
)
def test_what_holds_no_number_is_paid_once(
    scorer: Scorer, judge: Callable[..., Reward], tmp_path: Path, reply: Any, facts: tuple[str, ...]
) -> None:
    """Cut by a limit or a filter, "score: 1" may be the beginning of "score: 10". The error names
    the remedy; the words are kept with their end, so that ``otherwise`` reads them, and counts
    them, without another request.
    """
    reward = judge("score: 8")
    scorer.answer = lambda _number, _body: Reply(200, reply)
    with raises_naming(CorruptResponse, *facts):
        fetch(reward, tmp_path / "s.db", texts(1))
    reward, notices = judge("score: 8", otherwise=-2.0, scale=0.5), Remembering(Silent())
    assert fetch(reward, tmp_path / "s.db", texts(1), notices) == 0
    assert reward.score(*texts(1)[0]).value == -1.0
    assert notices.notices == [
        f"training: 1 of 1 answers of {reward.name} hold no number and count as -1"
    ]
    assert len(scorer.seen) == 1
    scorer.answer = lambda _number, _body: Reply(200, reply)
    assert fetch(reward, tmp_path / "s.db", texts(2), notices) == 1
    assert "1 of 1 answers" in notices.notices[-1]


DOCUMENTED = r"Score:\s*(-?[0-9.]+)"


@pytest.mark.parametrize(
    ("words", "pattern", "number"),
    [
        ("Score: 7", DOCUMENTED, 7.0),
        ("Score: -7.5", DOCUMENTED, -7.5),
        ("Score: 7.5.", DOCUMENTED, 7.5),
        ("Score: 8/10", DOCUMENTED, 8.0),
        ("Score: 1e2", r"Score: (\S+)", 100.0),
        ("Score: 7-10", "Score: ([0-9]+)-[0-9]+", 7.0),
        ("Score: 7,5", DOCUMENTED, None),
        ("Score: 1,000", DOCUMENTED, None),
        ("Score: 1,000", "([0-9.]+)$", None),
        ("Score: 1e2", DOCUMENTED, None),
        ("Score: 10", "Score: ([0-9])", None),
        ("Score: -3", "([0-9]+)", None),
        ("Score: 7-8", DOCUMENTED, None),
        ("Score: \u0667", r"Score: (\d+)", None),
        ("Score: 1e999", r"Score: (\S+)", None),
        ("Score: 1.2.3", DOCUMENTED, None),
    ],
)
def test_a_number_is_read_without_doubt_or_not_at_all(
    judge: Callable[..., Reward], tmp_path: Path, words: str, pattern: str, number: float | None
) -> None:
    """A part of a number is another number: the error quotes the answer instead."""
    reward = judge(words, pattern=pattern)
    if number is None:
        with raises_naming(CorruptResponse, "'q1'", "pattern"):
            fetch(reward, tmp_path / "s.db", texts(1))
        return
    fetch(reward, tmp_path / "s.db", texts(1))
    assert reward.score(*texts(1)[0]).value == number


def test_a_number_beyond_the_largest_is_none(judge: Callable[..., Reward], tmp_path: Path) -> None:
    """Not when it is multiplied, either; that of ``otherwise`` is refused with the file."""
    with raises_naming(CorruptResponse, "1e308"):
        fetch(judge("score: 1e308", scale=10.0), tmp_path / "s.db", texts(1))
    with raises_naming(InputError, "judge.toml", "otherwise", "scale"):
        judge("score: 1", scale=1e300, otherwise=-1e300)


def test_the_larger_limit_of_an_answer_is_reserved(
    scorer: Scorer, judge: Callable[..., Reward], tmp_path: Path
) -> None:
    """Whichever of its two names a server goes by, the budget is not passed."""
    reward = judge("score: 1", fields="max_completion_tokens = 4000")
    answer = {**RIGHT, "usage": {"prompt_tokens": 50, "completion_tokens": 4000}}
    scorer.answer = lambda _number, _body: Reply(200, answer)
    budget = SpendLimit(SpendingLimits(tokens=9000))
    with RolloutStore(tmp_path / "s.db") as store, pytest.raises(BudgetExhausted):
        asyncio.run(fetch_rewards(store, reward, texts(8), Silent(), "training", budget))
    assert len(scorer.seen) == 2
    assert budget.spent.tokens == 8100


# The whole way


def test_a_fit_with_an_endpoint(
    scorer: Scorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every completion of a fit is scored by the endpoint once; a second fit asks it nothing, and
    no file holds its key.
    """
    monkeypatch.setenv("BLB_REWARD_KEY", "s3cret-of-the-endpoint")
    write_rows(tmp_path / "data.jsonl", questions(8, 3, 4))
    scorer.answer = lambda _number, body: Reply(
        200, {"rewards": [-0.3 * item["tokens"] for item in body["items"]]}
    )
    size = options(samples_per_prompt=4, validation_samples=2, test_samples=2, tau=[0.5, 0.3])
    more = ("--rival", "prompt:Be brief.", "--rival", "best-of:2", "--go-on")
    again = ("eval", tmp_path / "run" / "bias.json", "--test-samples", 2, *more)
    with ExactServer(ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)) as server:
        for command in (("fit", *size), ("fit", *size), again):
            where = asking(server, out=tmp_path / "run", data=tmp_path / "data.jsonl")
            task = options(reward=scorer.url, max_tokens=8, top_logprobs=5, seed=1)
            result = blb(*command, *where, *task)
            assert result.exit_code == 0, result.output
            asked = Counter(json.dumps(item, sort_keys=True) for item in scorer.items)
            assert set(asked.values()) == {1}
            prompts = {item["prompt"][0]["content"] for item in scorer.items}
            assert prompts == {f"question {n}" for n in range(15)}
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert bias.reward == scorer.url
    assert {row.metric for row in bias.verdict} == {f"reward of {scorer.url}", "tokens"}
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if b"s3cret" in path.read_bytes()]
    assert "Be brief." not in json.dumps(scorer.items), (
        "an instruction is not part of what is judged"
    )
