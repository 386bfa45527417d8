"""``blb analyze --full-vocab``: whole next-token distributions are asked for, stored, and checked
against the log.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from click.testing import Result

from blackbox_lb.api.session import Session
from blackbox_lb.api.transport.channel import Channel
from blackbox_lb.api.wire import build_request
from blackbox_lb.errors import InputError, ProfileError
from blackbox_lb.extras.analysis.document import Analysis
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.rollouts.reference import check_reference
from blackbox_lb.safety.http import retries
from blackbox_lb.store import RolloutStore, next_token_key
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import Completion, Draw, Example, Message, Prompt, Sampling
from blackbox_lb.vocabulary.tokenizer import Tokenizer
from tests.support.commands import blb, options
from tests.support.errors import names, raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import JSON
from tests.support.exact.server import Answer
from tests.support.questions import write_rows

V, TOP, ASKED = 60, 5, 40
MODEL = ExactModel(V, 8, end=True, prompts=15, sharpness=0.9)
SPLITS = (("train", range(8)), ("validation", range(8, 11)), ("test", range(11, 15)))
Call = Callable[..., Result]


class Server(ExactServer):
    """An exact server of which ``before`` may change the body of a request, or answer it."""

    before: Callable[[str, JSON], Answer | None] | None = None

    def post(self, path: str, body: JSON) -> Answer:
        """What ``before`` says, else the honest answer."""
        said = self.before(path, body) if self.before is not None else None
        return super().post(path, body) if said is None else said

    @property
    def wholes(self) -> list[JSON]:
        """The requests for whole distributions so far."""
        return [body for body in self.requests if isinstance(body.get("prompt"), list)]


@pytest.fixture
def server() -> Iterator[Server]:
    """An exact model with 15 prompts."""
    running = Server(MODEL, prompt_of=lambda text: ord(text.strip()[-1]) - ord("a"))
    with running:
        yield running


@pytest.fixture
def call(server: Server, tmp_path: Path) -> Call:
    """Analyze the bias of a short fit against the exact model; the fit is made at the first
    call.
    """
    data, folder = tmp_path / "data.jsonl", tmp_path / "run"
    rows = [
        {"prompt": f"question {chr(97 + n)}", "answer": "a", "split": split}
        for split, ns in SPLITS
        for n in ns
    ]
    write_rows(data, rows)

    def run(*more: object, provider: object = "llamacpp") -> Result:
        where = ("--base-url", server.base_url, "--provider", provider)
        if not (folder / "bias.json").exists():
            size = options(
                samples_per_prompt=8, validation_samples=1, test_samples=4, l2=5, entries=20
            )
            goal = options(data=data, reward="length", max_tokens=8, top_logprobs=TOP, seed=1)
            made = blb("fit", *where, *goal, *size, "--out", folder)
            assert made.exit_code == 0, made.output
        server.requests.clear()
        server.calls.clear()
        return blb("analyze", folder / "bias.json", *where, *more)

    return run


def found_in(tmp_path: Path) -> Analysis:
    """What the command wrote."""
    return Analysis.model_validate_json((tmp_path / "run" / "analysis.json").read_text())


def plain(text: str) -> str:
    """Text as one line."""
    return " ".join(text.split())


def test_scores_are_printed_stored_and_not_asked_for_again(
    call: Call, server: Server, tmp_path: Path
) -> None:
    """The log agrees to float32; the file says that the scores are exact; a second run asks for no
    distribution.
    """
    first = call("--full-vocab", ASKED)
    assert first.exit_code == 0, first.output
    found = found_in(tmp_path)
    assert (found.source, found.positions) == ("exact", ASKED)
    assert names(plain(first.stdout), "exact", f"{ASKED} positions")
    said = plain(first.stderr)
    assert f"{ASKED} reference positions with all {V} logprobs" in said
    assert "they agree with the logged lists" in said
    assert "more came without a list" not in said
    numbers = re.search(r"total variation (\S+) on average .* at most (\S+) nats apart", said)
    assert numbers is not None
    assert float(numbers[1]) < 1e-6
    assert float(numbers[2]) < 1e-5
    assert 0 < len(server.wholes) <= ASKED + 1
    again = call("--full-vocab", ASKED)
    assert not server.wholes
    assert again.stdout == first.stdout
    assert found_in(tmp_path).tokens == found.tokens


def test_every_request_is_a_prompt_of_ids_and_asks_for_all(call: Call, server: Server) -> None:
    """One token at temperature 1 after the ids of the templated prompt and of the completion so
    far, all alternatives, no bias.
    """
    assert call("--full-vocab", 10, "--quiet").exit_code == 0
    prompts = [
        server.tokenize(f"question {chr(97 + n)}") for _, numbers in SPLITS[1:] for n in numbers
    ]
    for body in server.wholes:
        assert (body["max_tokens"], body["temperature"], body["logprobs"]) == (1, 1.0, V)
        assert "logit_bias" not in body
        assert any(body["prompt"][: len(ids)] == ids for ids in prompts)
    assert len({len(body["prompt"]) for body in server.wholes}) > 1


def test_whole_distributions_are_paid_from_the_budget(call: Call, server: Server) -> None:
    """With all completions stored, a limit of three requests lets three distributions through and
    no more.
    """
    stopped = call("--full-vocab", 10, "--max-requests", 3)
    assert stopped.exit_code == 2, stopped.output
    assert names(plain(stopped.stderr), "--max-requests 3", "3 requests")
    assert len(server.wholes) == 3


def test_prefixes_put_together_wrongly_are_not_believed(
    call: Call, server: Server, tmp_path: Path
) -> None:
    """Where the template gives another prompt than chat has, nothing is called exact."""
    assert call().exit_code == 0
    before = found_in(tmp_path)

    def other(path: str, body: JSON) -> Answer | None:
        return {"prompt": "question o"} if path == "/apply-template" else None

    server.before = other
    done = call("--full-vocab", ASKED)
    assert done.exit_code == 2, done.output
    said = plain(done.stderr)
    assert "they DO NOT AGREE with the logged lists" in said
    distance = re.search(r"drawn from \(total variation (\S+) on average\)", said)
    assert distance is not None
    assert float(distance[1]) > 0.1
    assert found_in(tmp_path) == before


@pytest.mark.parametrize("nothing", [{"content": []}, None], ids=["an empty list", "no list"])
def test_positions_without_a_list_are_counted(
    nothing: Any, call: Call, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer that lists no token, as llama.cpp gives for a part of a character, is left out and
    said.
    """
    monkeypatch.setattr(retries, "retry_pause", lambda state: 0.0)

    def some(number: int, answer: JSON) -> Answer:
        asked = server.requests[-1]
        if (
            len(server.wholes) > 1 and sum(asked["prompt"]) % 4 >= 2
        ):  # the first one tells whether there are any
            answer["choices"][0]["logprobs"] = nothing
        return answer

    server.faults = some
    done = call("--full-vocab", ASKED, "--concurrency", 1)
    assert done.exit_code == 0, done.output
    said = re.search(r"(\d+) more came without a list", plain(done.stderr))
    assert said is not None
    assert int(said[1]) > 5
    assert found_in(tmp_path).positions == ASKED - int(said[1])


def test_ids_that_name_no_token_are_left_out(call: Call, server: Server, tmp_path: Path) -> None:
    """A model's matrix may have more rows than its tokenizer has tokens: they are counted, and no
    token is added to the scores.
    """
    own = tmp_path / "whole.toml"
    own.write_text('extends = "llamacpp"\nname = "whole"\n[reference]\nwhole = -1\n')

    def whole(path: str, body: JSON) -> Answer | None:
        if body.get("logprobs") == -1:
            body["logprobs"] = V
        return None

    def padded(number: int, answer: JSON) -> Answer:
        if isinstance(server.requests[-1].get("prompt"), list):
            (position,) = answer["choices"][0]["logprobs"]["content"]
            row = position["top_logprobs"][-1]
            position["top_logprobs"] += [
                {**row, "id": V + n, "token": f"pad{n}", "logprob": -60.0} for n in range(3)
            ]
        return answer

    server.before, server.faults = whole, padded
    done = call("--full-vocab", ASKED, "--concurrency", 1, provider=own)
    assert done.exit_code == 0, done.output
    said = plain(done.stderr)
    assert f"with all {V} logprobs" in said
    assert "they agree with the logged lists" in said
    assert "3 more ids name no token" in said
    assert max(each.id for each in found_in(tmp_path).tokens) < V


def refuse(path: str, body: JSON) -> Answer | None:
    """Like vLLM without --max-logprobs -1."""
    return 400 if isinstance(body.get("prompt"), list) else None


def cut(path: str, body: JSON) -> Answer | None:
    """Like a server that gives fewer alternatives than were asked for, and says nothing."""
    if isinstance(body.get("prompt"), list):
        body["logprobs"] = 7
    return None


@pytest.mark.parametrize(
    ("before", "said"),
    [(refuse, "--full-vocab needs all logprobs of a position"), (cut, "listed 7 tokens")],
    ids=["refused", "cut"],
)
def test_a_server_that_does_not_list_all_is_known_from_the_first_answer(
    call: Call, server: Server, before: Callable[[str, JSON], Answer | None], said: str
) -> None:
    """One sentence, exit code 2, and nothing more is asked for."""
    server.before = before
    done = call("--full-vocab")
    assert done.exit_code == 2
    assert said in plain(done.output)
    assert "Traceback" not in done.output
    assert len(server.wholes) <= 1
    assert not [path for path, _ in server.calls if path == "/v1/chat/completions"]


def test_more_than_memory_holds_is_refused_at_once(call: Call, server: Server) -> None:
    """The sentence has the size, the limit and the number that fits."""
    done = call("--full-vocab", 10**8)
    assert done.exit_code == 2
    assert names(plain(done.output), "22 GiB", "4 GiB", f"{2**32 // (4 * V):,} positions")
    assert len(server.wholes) == 1


def trials(
    server: ExactServer, store: RolloutStore, profile: Profile, size: int | None, top: int = TOP
) -> Trials:
    """Trials under a profile with other rows."""
    session = Session(profile, base_url=server.base_url, model="exact")
    return Trials(
        session, store, Tokenizer("t", size), parse_reward("length", max_tokens=8), Silent(), top
    )


def test_where_no_whole_distribution_can_be_had(server: Server, tmp_path: Path) -> None:
    """A profile without the rows, lists that nothing can be compared with, and an unknown
    vocabulary are refused by name.
    """
    full, example = load_profile("llamacpp"), Example("1", Prompt.user("question a"))
    none = full.model_copy(
        update={"reference": None, "logprobs": full.logprobs.model_copy(update={"limit": 20})}
    )
    with RolloutStore(tmp_path / "s.db") as store:
        for profile, size, top, error, facts in (
            (none, V, TOP, ProfileError, ("llamacpp", "20 tokens", "``provider=vllm``")),
            (load_profile("sglang"), V, TOP, ProfileError, ("sglang", "``provider=vllm``")),
            (full, V, 0, InputError, ("``top_logprobs=0``", "``top_logprobs`` from 1")),
            (full, None, TOP, InputError, ("exact", "``tokenizer``")),
        ):
            with raises_naming(error, *facts):
                asyncio.run(
                    check_reference(trials(server, store, profile, size, top), [example], 200)
                )
    assert server.requests == []


def test_the_store_keeps_every_bit(tmp_path: Path) -> None:
    """A distribution comes back as it went in, also from a file opened again; every other question
    has another key.
    """
    row = np.random.default_rng(0).standard_normal(50_000).astype(np.float32)
    key = next_token_key({"a": 1}, "p", [1, 2])
    with RolloutStore(tmp_path / "s.db") as store:
        assert store.next_token(key) is None
        assert 0 < store.add_next_token(key, row) < 5 * row.size
        store.add_next_token(key, row + 1)
    with RolloutStore(tmp_path / "s.db") as store:
        kept = store.next_token(key)
        assert kept is not None
        assert kept.tobytes() == row.tobytes()
    others = [next_token_key({"a": 2}, "p", [1, 2]), next_token_key({"a": 1}, "q", [1, 2])]
    assert (
        len({key, *others, next_token_key({"a": 1}, "p", [12]), next_token_key({"a": 1}, "p", [])})
        == 5
    )


@pytest.mark.parametrize("name", ["vllm", "llamacpp", "local"])
def test_a_prompt_of_ids_goes_to_the_completions_endpoint_only(name: str) -> None:
    """The ids go out as they are; chat has no field for them."""
    profile, sampling = load_profile(name), Sampling(max_tokens=1, top_logprobs=-1)
    body = build_request(
        profile, Draw(sampling, endpoint="completions"), model="m", prompt=[3, 1, 2]
    )
    assert (body["prompt"], body["logprobs"]) == ([3, 1, 2], -1)
    with raises_naming(InputError, "chat", "``endpoint=completions``"):
        build_request(profile, Draw(sampling, endpoint="chat"), model="m", prompt=[3, 1, 2])


def vllm(request: httpx2.Request) -> httpx2.Response:
    """What vLLM 0.32 answers, as seen: /tokenize with messages or a text, and legacy completions
    with logprobs -1.
    """
    body: dict[str, Any] = json.loads(request.content)
    if request.url.path == "/tokenize":
        ids = [1, 9, 2] if "messages" in body else [9]
        said = (
            body.get("add_generation_prompt")
            if "messages" in body
            else body.get("add_special_tokens")
        )
        return httpx2.Response(
            200, json={"count": len(ids), "max_model_len": 2048, "tokens": ids} if said else {}
        )
    table = {
        f"token_id:{token}": float(value)
        for token, value in enumerate(np.log([0.1, 0.2, 0.3, 0.4]))
    }
    lists = {
        "tokens": ["token_id:1"],
        "token_logprobs": [table["token_id:1"]],
        "top_logprobs": [table],
    }
    assert (body["prompt"], body["logprobs"], body["max_tokens"]) == ([1, 9, 2, 7], -1, 1)
    choice = {
        "index": 0,
        "text": "x",
        "finish_reason": "length",
        "logprobs": lists,
        "token_ids": [1],
    }
    return httpx2.Response(
        200, json={"model": "m", "choices": [choice], "usage": {"completion_tokens": 1}}
    )


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_vllm_tells_prompt_ids_and_whole_lists(endpoint: Any) -> None:
    """Chat goes through the template, a text through the tokenizer with special tokens; -1 lists
    all, by id.
    """
    session = Session(
        load_profile("vllm"), base_url="https://host.example", model="m", endpoint=endpoint
    )
    session.channel = Channel(
        session.profile, "https://host.example", transport=httpx2.MockTransport(vllm)
    )

    async def ask() -> tuple[list[int], Completion]:
        found = await session.prompt_ids(Prompt((Message("user", "hi"),)))
        return found, await session.complete(
            [1, 9, 2, 7], Sampling(1.0, 1, -1), endpoint="completions"
        )

    ids, completion = asyncio.run(ask())
    assert ids == ([1, 9, 2] if endpoint == "chat" else [9])
    assert completion.top_ids[0].tolist() == [3, 2, 1, 0]
    np.testing.assert_allclose(np.exp(completion.top_logprobs[0]), [0.4, 0.3, 0.2, 0.1], rtol=1e-6)


@pytest.mark.parametrize(
    ("provider", "path"), [("llamacpp", "/apply-template"), ("vllm", "/tokenize")]
)
def test_the_template_gets_the_tools(provider: str, path: str) -> None:
    """The ids of a chat prompt are those with its tools: servers put them into the prompt."""
    bodies: dict[str, Any] = {}

    def answer(request: httpx2.Request) -> httpx2.Response:
        bodies[request.url.path] = json.loads(request.content)
        found = {"prompt": "p"} if request.url.path == "/apply-template" else {"tokens": [1, 9]}
        return httpx2.Response(200, json=found)

    session = Session(
        load_profile(provider), base_url="https://host.example/v1", model="m", endpoint="chat"
    )
    session.channel = Channel(
        session.profile, "https://host.example/v1", transport=httpx2.MockTransport(answer)
    )
    tools = [{"type": "function", "function": {"name": "weather"}}]
    prompt = Prompt((Message("user", "hi"),), tools=json.dumps(tools))
    assert asyncio.run(session.prompt_ids(prompt)) == [1, 9]
    assert bodies[path]["tools"] == tools
