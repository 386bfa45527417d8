"""Lists along given answers: every way that a profile allows gives the same bias, and the doctor
proves or disproves each.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from click.testing import Result

from blackbox_lb.api.session import Session
from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import ProfileError
from blackbox_lb.extras.doctor.findings import Report, RowFinding
from blackbox_lb.extras.doctor.run import CHECKS, examine
from blackbox_lb.extras.doctor.save import save_profile
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.rollouts.answers.continued import lists_along
from blackbox_lb.rollouts.answers.given_answers import first_completions
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import parse_reward
from blackbox_lb.types import Completion, Example, Prompt
from blackbox_lb.vocabulary.tokenizer import Tokenizer
from tests.support.chaos.dialects import MODEL as CHAOS
from tests.support.chaos.dialects import SglangServer, VllmServer, register
from tests.support.commands import blb, options
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.llamacpp_answers import RefusedRequest
from tests.support.given_server import WAYS, GivenLie, GivenServer, profile
from tests.support.printed import ended_well
from tests.support.questions import write_rows

KINDS = 6
MODEL = ExactModel(
    14,
    6,
    seed=5,
    prompts=KINDS,
    unigram=np.where(np.isin(np.arange(14), (1, 2, 4)), -3.0, 0.0),
    end=True,
)
ANSWERS = ("b", "c d", "e f g")
"""One, two and three tokens; the model hardly begins with any of them."""


def prompt_of(text: str) -> int:
    """The kind of a prompt."""
    return zlib.crc32(text.encode()) % KINDS


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows whose answer depends on their kind."""
    rows = []
    for split, count in (("train", 36), ("validation", 12), ("test", 12)):
        for number in range(count):
            prompt = f"{split} {number:02d}"  # none is the beginning of another
            rows.append(
                {"prompt": prompt, "answer": ANSWERS[prompt_of(prompt) % 3], "split": split}
            )
    return write_rows(tmp_path_factory.mktemp("data") / "data.jsonl", rows)


def fitted(way: str, server: ExactServer, data: Path, out: Path) -> tuple[Bias, Result]:
    """A fit with the rows of one way."""
    rows = out.with_suffix(".toml")
    rows.write_text(tomli_w.dumps(profile(way).model_dump(exclude={"evidence"}, exclude_none=True)))
    where = options(provider=rows, base_url=server.base_url, data=data, out=out, top_logprobs=14)
    more = options(
        reward="exact-match", max_tokens=5, learn_from="answers", l2=1.5, deploy="greedy"
    )
    result = ended_well(blb("fit", *where, *more, "--verbose"))
    return Bias.load(out / "bias.json"), result


def trials_of(session: Session, store: RolloutStore, tokenizer: Tokenizer, top: int) -> Trials:
    """What lists are asked for with."""
    return Trials(session, store, tokenizer, parse_reward("length", max_tokens=4), Silent(), top)


SAID = {
    "prompt logprobs": "prompt logprobs, one request each",
    "token ids": "prompts of token ids",
    "assistant message": "a trailing assistant message that is continued",
    "unproven message": "unproven, because llamacpp does not tell",
}
"""Way -> what a fit says of it."""


def test_every_way_gives_the_same_bias(data: Path, tmp_path: Path) -> None:
    """For answers of one, two and three tokens; prompt logprobs take one request an answer, the
    others one a token; a second run asks for nothing.
    """
    training = [json.loads(line)["answer"].split() for line in data.read_text().splitlines()[:36]]
    biases = {}
    for way in WAYS:
        out = tmp_path / way.replace(" ", "-")
        with GivenServer(MODEL, prompt_of=prompt_of) as server:
            bias, result = fitted(way, server, data, out)
            assert SAID[way] in " ".join(result.stderr.split())
            asked = server.completions
            again, _ = fitted(way, server, data, out)
            assert len(server.completions) == len(asked)
            assert again.logit_bias == bias.logit_bias
        along = [
            body
            for body in asked
            if isinstance(body.get("prompt"), list) or len(body.get("messages", [])) > 1
        ]
        is_whole = way == "prompt logprobs"
        assert len(along) == (len(training) if is_whole else sum(map(len, training)))
        biases[way] = bias.logit_bias
    for bias_of_way in biases.values():
        assert bias_of_way == pytest.approx(biases["token ids"], abs=1e-4)


def test_a_prefix_that_is_read_as_other_tokens_is_left_out(data: Path, tmp_path: Path) -> None:
    """Where the server tells the prompt's ids: nothing is learned from such a list, and they are
    counted.
    """
    with GivenServer(MODEL, prompt_of=prompt_of, lie="other tokens") as server:
        _, result = fitted("assistant message", server, data, tmp_path / "run")
    said = " ".join(result.stderr.split())
    assert "are left out: not whole, or read after other tokens than the answer's" in said


@pytest.mark.parametrize(
    ("given", "facts"),
    [
        ({"prompt_logprobs": "p"}, ("answers.prompt_logprobs", "[reference]")),
        ({"continues": {}}, ("answers.continues", "chat endpoint")),
    ],
)
def test_rows_that_lack_what_they_need_are_refused(
    given: dict[str, Any], facts: tuple[str, ...], tmp_path: Path
) -> None:
    """Prompt logprobs without prompts of ids, a continued message without the chat endpoint."""
    rows = load_profile("llamacpp").model_dump(
        exclude={"evidence", "reference", "answers"}, exclude_none=True
    )
    del rows["endpoints"]["chat"]
    path = tmp_path / "mine.toml"
    path.write_text(tomli_w.dumps({**rows, "answers": given}))
    with raises_naming(ProfileError, *facts):
        load_profile(str(path))


def self_test(of: Profile, lie: GivenLie | None = None) -> tuple[Report, dict[str, RowFinding]]:
    """The checks of given answers, with what they lean on, one request at a time; also their
    findings.
    """
    model = ExactModel(26, 20, end=True, prompts=16, sharpness=0.9)
    titles = {
        "tokenizer",
        "lists of alternatives",
        "token identity",
        "end token",
        "neutral sampling",
        "continued answers",
        "prompt logprobs",
    }

    async def run() -> Report:
        async with Session(of, base_url=server.base_url, attempts=1) as session:
            return await examine(
                session, checks=[each for each in CHECKS if each.title in titles], concurrency=1
            )

    with GivenServer(model, lie=lie) as server:
        report = asyncio.run(run())
    rows = {each.row: each for each in report.findings}
    return report, {row: each for row, each in rows.items() if row.startswith("answers.")}


def test_the_doctor_confirms_what_is_true(tmp_path: Path) -> None:
    """No false alarm, and a host that nobody knows of is found to continue, which is saved."""
    _, findings = self_test(profile())
    assert {row: each.status for row, each in findings.items()} == dict.fromkeys(
        ("answers.continues", "answers.repeats", "answers.prompt_logprobs"), "CONFIRMED"
    )
    report, findings = self_test(profile("token ids"))
    assert {row: (each.status, each.found) for row, each in findings.items()} == {
        "answers.continues": ("MEASURED", {}),
        "answers.repeats": ("MEASURED", True),
    }
    save_profile(report, tmp_path / "mine.toml", "llamacpp")
    assert load_profile(str(tmp_path / "mine.toml")).evidence["answers"].grade == "L"


@pytest.mark.parametrize(
    ("lie", "row"), [("starts anew", "continues"), ("one place on", "prompt_logprobs")]
)
def test_the_doctor_contradicts_every_lie(lie: GivenLie, row: str, tmp_path: Path) -> None:
    """Each lie in the row that it is about, which is then False, also in a saved profile, and no
    other row.
    """
    report, _ = self_test(profile(), lie)
    assert [(each.row, each.found) for each in report.contradicted] == [(f"answers.{row}", False)]
    save_profile(report, tmp_path / "mine.toml", "llamacpp")
    assert getattr(load_profile(str(tmp_path / "mine.toml")).answers, row) is False
    if lie == "starts anew":
        _, findings = self_test(profile("token ids"), lie)
        assert findings["answers.continues"].found is None


class Vllm(GivenServer, VllmServer):
    """A vLLM server."""


class Sglang(GivenServer, SglangServer):
    """An SGLang server."""


ENGINES: dict[str, tuple[type[GivenServer], Profile, str | None, list[str]]] = {
    "vLLM, prompt logprobs": (Vllm, load_profile("vllm"), None, ["/v1/completions"]),
    "vLLM, message": (
        Vllm,
        load_profile("vllm").model_copy(update=WAYS["assistant message"]),
        None,
        ["/v1/chat/completions"] * 3,
    ),
    "SGLang, token ids": (Sglang, load_profile("sglang"), "exact", ["/v1/completions"] * 3),
}
"""A server in the engine's shapes, the shipped profile or a part of it, the vocabulary, and the
requests that it takes.
"""


@pytest.mark.parametrize("engine", ENGINES)
def test_the_shipped_rows_read_each_engine(
    engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every list after a token of the answer is the model's own, in the shapes of vLLM and
    SGLang.
    """
    kind, of, tokenizer, requests = ENGINES[engine]
    register(monkeypatch)
    ids, prompt = (3, 1, 2), Prompt.user("question")

    async def ask() -> list[Completion]:
        async with Session(
            of, base_url=server.base_url, tokenizer=tokenizer, attempts=1
        ) as session:
            with RolloutStore(tmp_path / "rollouts.db") as store:
                trials = trials_of(session, store, Tokenizer("t", 40), 20)
                rows = await lists_along(trials, "along", [(prompt, ids)])
        assert rows is not None
        return rows[0]

    with kind(CHAOS, prompt_of=lambda text: len(text) % 4) as server:
        said = asyncio.run(ask())
        assert [path for path, _ in server.calls if path.endswith("completions")] == requests
    for size, each in enumerate(said, 1):
        truth = CHAOS.logprobs(ids[:size], len("question") % 4)
        listed = {
            token: value
            for token, value in zip(each.top_ids[0], each.top_logprobs[0], strict=True)
            if token >= 0
        }
        assert each.whole
        assert len(listed) >= 18
        np.testing.assert_allclose(list(listed.values()), truth[list(listed)], atol=1e-4)


@pytest.mark.usefixtures("quick_retries")
def test_prompt_logprobs_of_another_shape_are_named(data: Path, tmp_path: Path) -> None:
    """Fewer lists than tokens is an error of the answer, which is said; a fit then takes the next
    way.
    """

    class Short(GivenServer):
        """A server that leaves the first list out."""

        def post(self, path: str, body: dict[str, Any]) -> Any:
            answer = super().post(path, body)
            if isinstance(answer, dict) and body.get("prompt_logprobs"):
                del answer["choices"][0]["prompt_logprobs"][0]
            return answer

    with Short(MODEL, prompt_of=prompt_of) as server:
        _, result = fitted("prompt logprobs", server, data, tmp_path / "run")
    said = " ".join(result.stderr.split())
    assert "prompt logprobs cannot be had: llamacpp returned" in said
    assert "lists along the answers come from prompts of token ids" in said


@pytest.mark.parametrize("most", [1000, 5])
def test_lists_are_as_long_as_the_server_was_started_for(most: int, tmp_path: Path) -> None:
    """Where the limit is the server's own setting, one request for long lists finds out; a refusal
    leaves the usual length.
    """

    class Set(GivenServer):
        """A server that was started to list so many."""

        def post(self, path: str, body: dict[str, Any]) -> Any:
            if body.get("top_logprobs", 0) > most:
                said = f"Requested sample logprobs of {body['top_logprobs']}, greater than {most}"
                raise RefusedRequest(400, said)
            return super().post(path, body)

    shipped = profile()
    rules = shipped.logprobs.model_copy(update={"limit": 5, "limit_is_setting": True})
    examples = [
        Example(str(number), Prompt.user(f"question {number}"), ("b",)) for number in range(3)
    ]

    async def ask() -> int:
        async with Session(
            shipped.model_copy(update={"logprobs": rules}), base_url=server.base_url, attempts=1
        ) as session:
            with RolloutStore(tmp_path / "rollouts.db") as store:
                trials = trials_of(session, store, await session.tokenizer(), 5)
                return (await first_completions(trials, examples, "training", None))[1]

    with Set(MODEL, prompt_of=prompt_of) as server:
        assert asyncio.run(ask()) == most
        asked = [body["top_logprobs"] for body in server.completions]
        assert asked == [most] * 3  # less the one that was refused
