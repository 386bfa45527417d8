"""Phases: what the tokens so far say of them, drawing by them, learning them, and what is
refused.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice, product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import Result
from hypothesis import given
from hypothesis import strategies as st

from blackbox_lb import logit_bias
from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.features import FeatureVector, Words, bucket_of
from blackbox_lb.bias.phases import Phases, Prefix
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.phased import check_continues, complete_by_phase
from blackbox_lb.types import Completion, Prompt, Sampling
from tests.support.biases import in_phase, phased_bias
from tests.support.commands import asking, blb, options
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.exact.model import log_softmax
from tests.support.questions import questions, write_rows
from tests.support.statistics import fits as fits

TEXTS = ("a", "b", "ab", "ba", "aab", "", "<")


def named(phases: Phases, tokens: list[str]) -> list[str]:
    """The phase of each token."""
    along = phases.along(token.encode() for token in tokens)
    return [
        " + ".join(name for j, name in enumerate(phases.names) if phase & 1 << j) or "rest"
        for phase in islice(along, len(tokens))
    ]


@given(st.lists(st.sampled_from(TEXTS), max_size=12), st.sampled_from(["aab", "ab", "aa", "b<a"]))
def test_a_text_is_found_however_its_bytes_are_split(tokens: list[str], text: str) -> None:
    """``until`` lasts while the text of the tokens before does not hold it."""
    before = [text not in "".join(tokens[:place]) for place in range(len(tokens))]
    assert named(Phases.parse([f"until:{text}"]), tokens) == [
        f"until:{text}" if each else "rest" for each in before
    ]
    assert named(Phases.parse([f"after:{text}"]), tokens) == [
        "rest" if each else f"after:{text}" for each in before
    ]


@given(
    st.lists(st.sampled_from(TEXTS), max_size=14),
    st.sampled_from([("ab", "ba"), ("<", "b"), ("a", "a"), ("aa", "ab")]),
)
def test_inside_begins_and_ends_again_and_again(tokens: list[str], texts: tuple[str, str]) -> None:
    """Against a search in the text, from where the last one was found."""
    name, expected = f"inside:{texts[0]}..{texts[1]}", []
    inside, held = False, ""
    for token in tokens:
        expected.append(name if inside else "rest")
        for letter in token:
            held += letter
            if held.endswith(texts[inside]):
                inside, held = not inside, ""
    assert named(Phases.parse([name]), tokens) == expected


def test_counted_phases_come_first() -> None:
    """Beside a text, too."""
    assert named(Phases.parse(["first"]), ["a", "b"]) == ["first", "rest"]
    assert named(Phases.parse(["opening:2", "rest"]), ["a", "b", "c"]) == [
        "opening:2",
        "opening:2",
        "rest",
    ]
    assert named(Phases.parse(["only-opening:1"]), ["a", "b"]) == ["only-first", "rest"]
    assert named(Phases.parse(["until:b,only-opening:2"]), ["a", "b", "c"]) == [
        "until:b + only-opening:2",
        "until:b + only-opening:2",
        "rest",
    ]
    assert named(Phases.parse(["after:a,b,first"]), ["a,b", "c"]) == ["first", "after:a,b"]
    assert Phases.parse(["inside:<x>..</x>,rest"]).names == ("inside:<x>..</x>",)
    assert named(Phases.parse(["opening:2,until:b"]), ["a", "b", "c"]) == [
        "opening:2 + until:b",
        "opening:2 + until:b",
        "rest",
    ]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("second", "is not known"),
        ("opening:0", "is not known"),
        ("only-opening:0", "is not known"),
        ("only-until:b", "is not known"),
        ("only-", "is not known"),
        ("opening:1001", "is not known"),
        ("until:", "is not known"),
        ("inside:<a>", "is not known"),
        ("inside:..b", "is not known"),
        ("after:" + "x" * 101, "is not known"),
        ("rest", "names none"),
        ("until:\udc80", "is not known"),
        ("first,first", "names one twice"),
        ("first,opening:3", "overlap"),
        ("first,only-first", "overlap"),
        ("until:x,after:y", "overlap"),
    ],
)
def test_what_is_no_phase(spec: str, said: str) -> None:
    """Each with its value and the remedy."""
    with pytest.raises(InputError, match=said) as raised:
        Phases.parse([spec])
    assert "give" in str(raised.value)


def test_first_tokens_that_confine_a_bias_have_no_vector() -> None:
    """The entries hold there, with what other features add, and nothing holds behind."""
    bias = phased_bias("only-first", [{1: 0.5, 2: 0.0}, {}])
    (only,) = bias.features
    prompt = Prompt.user("x")
    assert bias.at(prompt) == {1: 0.5}
    assert bias.at(prompt, Prefix(1, b" b")) == {}
    assert bias.next_boundary() == (1, "")
    assert Bias.model_validate_json(bias.model_dump_json()) == bias
    with_vector = only.model_dump() | {"vectors": [{"name": "x", "values": [1.0, 1.0]}]}
    with raises_naming(BiasError, "vectors"):
        Bias(**(dict(bias) | {"features": (with_vector,)}))


def test_a_file_has_one_vector_of_a_feature_with_one_value_of_an_entry() -> None:
    """What is listed twice, or has another length, is refused."""
    bias = phased_bias("first", [{1: 0.5}, {1: 1.0}])
    (first,) = bias.features
    with pytest.raises(BiasError, match="listed twice"):
        bias.replacing(features=(first, first))
    with raises_naming(BiasError, "1"):
        bias.replacing(features=(first.with_values([[]]),))
    with raises_naming(BiasError, "``phases='first,opening:2'``"):
        bias.replacing(features=(first, *phased_bias("opening:2", [{1: 0.5}, {1: 1.0}]).features))


MODEL = ExactModel(5, 3, seed=7, end=True, sharpness=0.7)
"""Tokens " a" to " d" and the end."""
RNG = np.random.default_rng(3)
VECTORS = tuple(
    {token: float(value) for token, value in enumerate(RNG.normal(0, 1, 5))} for _ in range(3)
)


MOVED = {token: float(value) for token, value in enumerate(RNG.normal(0, 1.5, 5))}
"""What the word of a prompt adds, in every phase."""


def bias_with_word(spec: str, word: str) -> Bias:
    """A bias with phases, to which ``word`` of a prompt adds ``MOVED``; "" for none."""
    wholes = VECTORS[: len(Phases.parse([spec]).names) + 1]
    if not word:
        return phased_bias(spec, wholes)
    vector = FeatureVector(name=word, bucket=bucket_of(word), values=tuple(MOVED.values()))
    return phased_bias(spec, wholes, features=(Words(vectors=(vector,)),))


def chances(phases: Phases, with_word: bool = False) -> dict[tuple[int, ...], float]:
    """Completion -> its exact probability under the bias that changes inside the model."""
    found = {}
    for size in range(1, MODEL.horizon + 1):
        for tokens in product(range(5), repeat=size):
            if (4 in tokens[:-1]) or (tokens[-1] != 4 and size < MODEL.horizon):
                continue
            texts = [b"" if token == 4 else b" " + b"abcd"[token : token + 1] for token in tokens]
            total = 0.0
            for place, phase in enumerate(islice(phases.along(texts), size)):
                if phases.confined:
                    values = VECTORS[0]
                else:
                    values = in_phase(VECTORS[: len(phases.names) + 1], phase)
                bias = np.array([values[token] + with_word * MOVED[token] for token in range(5)])
                if phases.is_unbiased(phase):
                    bias = np.zeros(5)
                total += log_softmax(MODEL.logprobs(tokens[:place]) + bias)[tokens[place]]
            found[tokens] = float(np.exp(total))
    return found


WORDS = (" a", " b", " c", " d", "")


class Listing:
    """A session with a server that lists the tokens of a stop text and cuts the text before it, as
    vLLM does.
    """

    profile = SimpleNamespace(
        reference=SimpleNamespace(endpoint="completions"),
        logprobs=SimpleNamespace(stop_text_listed=True),
        follows_ids=bool,
    )

    def __init__(self) -> None:
        self._rng = np.random.default_rng(8)

    async def prompt_ids(self, prompt: Prompt) -> list[int]:
        """The prompt is one token."""
        return [0]

    async def decode(self, tokens: Sequence[int]) -> str:
        """The text of tokens."""
        return "".join(WORDS[token] for token in tokens)

    async def bytes_of(self, tokens: Sequence[int]) -> list[bytes]:
        """The bytes of each."""
        return [WORDS[token].encode() for token in tokens]

    async def complete_many(self, prompt: Sequence[int], draw: Draw) -> list[Completion]:
        """One completion."""
        before, tokens, rows, reason = list(prompt[1:]), list[int](), list[np.ndarray](), "length"
        stop = draw.sampling.stop[0] if draw.sampling.stop else None
        while reason == "length" and len(tokens) < draw.sampling.max_tokens:
            rows.append(MODEL.logprobs([*before, *tokens]))
            bias = np.array([draw.bias.common.get(token, 0.0) for token in range(5)])
            tokens.append(int((rows[-1] + bias + self._rng.gumbel(size=5)).argmax()))
            text = await self.decode(tokens)
            reason = "stop" if tokens[-1] == 4 or (stop and stop in text) else "length"
        text = text.partition(stop)[0] if stop else text
        ids, own = (
            np.array(tokens, np.int32),
            np.array([row[t] for row, t in zip(rows, tokens, strict=True)], np.float32),
        )
        table = np.array(rows, np.float32)
        return [
            Completion(
                text,
                reason,
                ids,
                own,
                np.tile(np.arange(5, dtype=np.int32), (len(ids), 1)),
                table,
                generated=len(ids),
            )
        ]


@pytest.mark.parametrize(
    ("spec", "word", "listed"),
    [
        ("first,inside: a..c", "", True),
        ("only-opening:2", "", True),
        ("opening:2,until:b", "thing", True),
        ("first,after:d", "thing", False),
    ],
)
def test_drawn_in_parts_is_the_bias_that_changes_inside(spec: str, word: str, listed: bool) -> None:
    """By chi-square over whole completions, with a word of the prompt beside the phases, too;
    logprobs stay those of the model without a bias, and no text is lost.
    """
    phases, draws = Phases.parse([spec]), 400
    sent_bias, exact = to_request_bias(bias_with_word(spec, word)), chances(phases, bool(word))
    assert sum(exact.values()) == pytest.approx(1.0)
    prompt, sent = Prompt.user("thing"), Draw(Sampling(1.0, MODEL.horizon, 5), sent_bias)

    async def draw() -> list[Completion]:
        if listed:
            return await many(Listing())
        with ExactServer(MODEL, seed=5) as server:
            async with Session(load_profile("llamacpp"), base_url=server.base_url) as session:
                return await many(session)

    async def many(session: Any) -> list[Completion]:
        return [await complete_by_phase(session, prompt, sent) for _ in range(draws)]

    found = asyncio.run(draw())
    for one in found:
        tokens = one.token_ids.tolist()
        own = [MODEL.logprobs(tokens[:place])[token] for place, token in enumerate(tokens)]
        assert one.logprobs == pytest.approx(own, abs=1e-5)
        assert (one.whole, one.n_tokens, one.text) == (
            True,
            len(tokens),
            "".join(WORDS[token] for token in tokens),
        )
        assert one.finish_reason == ("stop" if tokens[-1] == 4 else "length")
    assert fits(Counter(tuple(each.token_ids.tolist()) for each in found), exact) > 1e-4


def test_the_parts_of_a_completion_have_seeds_of_their_own() -> None:
    """With the random numbers of the first part, the first token of the second would be tied to it:
    a server may begin its generator anew for each request.
    """
    sent_bias = to_request_bias(bias_with_word("opening:2", ""))
    draw = Draw(Sampling(1.0, MODEL.horizon, 5, seed=7), sent_bias)

    async def complete(server: ExactServer) -> Completion:
        async with Session(load_profile("llamacpp"), base_url=server.base_url) as session:
            return await complete_by_phase(session, Prompt.user("thing"), draw)

    with ExactServer(MODEL) as server:
        asyncio.run(complete(server))
        seeds = [body["seed"] for path, body in server.calls if path.endswith("completions")]
    assert seeds == [7, 8]


OPENER = ExactModel(8, 4, seed=2, sharpness=0.5)
"""Tokens " a" to " h". Wanted is " a" at the beginning and nowhere else, which no single vector can
say.
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts of three splits."""
    rows = enumerate(questions(30, 20, 25))
    things = [{**row, "prompt": f"thing {number}"} for number, row in rows]
    return write_rows(tmp_path_factory.mktemp("data") / "data.jsonl", things)


@pytest.fixture(scope="module")
def server() -> Iterator[ExactServer]:
    """The model behind a llama.cpp server."""
    with ExactServer(OPENER) as running:
        yield running


def fit(server: ExactServer, data: Path, out: Path, *more: object) -> Result:
    """A fit at temperature 1."""
    where = asking(server, data=data, out=out, reward="regex:^ a[^a]*$")
    drawn = ("--samples-per-prompt", 10, "--validation-samples", 3, "--test-samples", 3)
    return blb(
        "fit", *where, *drawn, *options(max_tokens=4, l2=5, deploy="temperature=1", seed=1), *more
    )


def test_a_vector_for_the_first_token_says_what_one_for_all_cannot(
    server: ExactServer, data: Path, tmp_path: Path
) -> None:
    """A fit of it can be judged again, shown, analyzed and compiled, and is refused where one vector
    is wanted. A phase without positions is left out, and that is said.
    """
    out = tmp_path / "run"
    result = fit(server, data, out, "--phases", "after:zzz,first", "--tau", 0.1, "--json")
    assert result.exit_code == 0, result.output
    assert "phase after:zzz: it holds at 0 of 1,200 positions" in result.stderr
    found = json.loads(result.stdout)
    bias = Bias.load(out / "bias.json")
    (first,) = bias.features
    assert (first.spec, bias.settings["phases"]) == ("first", "first")
    sent_later = logit_bias(bias, prefix=Prefix(1, b" a"))["0"]
    assert sent_later < 0 < logit_bias(bias, prefix=Prefix())["0"]
    where = asking(server, data=data, reward="regex:^ a[^a]*$", max_tokens=4)
    again = ("--deploy", "temperature=1", "--out", out, "--seed", 1, "--quiet")
    told = blb("eval", out / "bias.json", *where, *again)
    assert (told.exit_code, "HELPS" in told.output) == (0, True), told.output
    told = blb("show", out / "bias.json")
    assert "What each feature moves (depends on first)" in told.output
    assert "first (300 positions)" in told.output
    assert "Promoted tokens of the rest" in told.output
    told = blb("analyze", out / "bias.json", "--json", "--quiet")
    assert told.exit_code == 0, told.output
    kl = found["kl_nats_per_completion"] / 4
    assert json.loads(told.stdout)["kl_per_token"] == pytest.approx(kl, rel=0.1)
    small = out / "small.json"
    told = blb("compile", out / "bias.json", *options(provider="fireworks", entries=3, out=small))
    assert told.exit_code == 0, told.output
    assert len(Bias.load(small).entries) == 3
    table = json.loads(blb("export", out / "bias.json", "--format", "json").stdout)
    assert [row["feature"] for row in table["features"]] == ["first"]
    refused = blb("export", out / "bias.json", "--format", "curl")
    assert (refused.exit_code, "takes one vector" in refused.output) == (2, True)
    with raises_naming(BiasError, "messages=", "prefix=", "first", "apply()"):
        logit_bias(bias)


def test_what_cannot_be_learned_by_phase(
    server: ExactServer, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each refusal is a sentence and exit code 2, before anything is asked for."""
    for more, sentence in (
        (("--phases", "second"), "is not known"),
        (("--phases", "first", "--estimator", "ips"), "leave out --engine and --estimator"),
        (("--phases", "first", "--learn-from", "answers"), "--learn-from"),
        (("--phases", "only-first"), "--learn-from answers"),
    ):
        result = fit(server, data, tmp_path / "none", *more)
        assert (result.exit_code, sentence in result.output) == (2, True), result.output
    monkeypatch.setenv("FIREWORKS_API_KEY", "made-up")
    with raises_naming(InputError, "fireworks", "``phases``"):
        check_continues(Session(load_profile("fireworks"), model="m"), Phases.parse(["first"]))
    session = Session(load_profile("vllm"), model="m")
    check_continues(session, Phases.parse(["until:x"]))
    with raises_naming(InputError, "``tokenizer``"):
        check_continues(session, Phases.parse(["until:\u00e9"]))
