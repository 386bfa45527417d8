"""``blb eval``: what it says and saves, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import Result

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.jobs.evaluation.compare import unresolvable
from blackbox_lb.jobs.evaluation.policies import BestOf, Policy
from blackbox_lb.jobs.evaluation.run import unranked
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.judging.verdict import SAMPLED, Setting
from tests.support.biases import exact_bias
from tests.support.commands import asking, blb, options
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well
from tests.support.questions import questions, write_rows

MODEL = ExactModel(6, 1, prompts=2, sharpness=0.8, seed=2)
"""One token a completion."""
GOOD = int(MODEL.logprobs(prompt=0).argmax())
PROMPTS = 30


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """The model behind HTTP."""
    with ExactServer(MODEL, prompt_of=lambda text: 0) as running:
        yield running


def made(server: ExactServer, path: Path, value: float, **fields: str) -> Path:
    """A bias file with one entry: the right token's."""
    path.parent.mkdir(exist_ok=True)
    exact_bias(server, Entry(id=GOOD, text=server.texts[GOOD], bias=value), **fields).save(path)
    return path


def blb_eval(server: ExactServer, folder: Path, *more: object) -> Result:
    """``blb eval`` on 30 questions whose answer is the right token. A seed of its own for each
    completion: the requests of all policies arrive in any order.
    """
    data = folder / "test.jsonl"
    write_rows(data, questions(1, 1, PROMPTS, answer=server.texts[GOOD].strip()))
    where = asking(server, data=data, out=folder / "run", reward="contains", seed=1)
    return blb("eval", *where, "--max-tokens", 4, "--top-logprobs", 3, "--quiet", *more)


def test_what_a_person_reads_and_what_is_saved(server: ExactServer, tmp_path: Path) -> None:
    """At the default settings: a table of policies for each, the differences; each bias file keeps its rows against the base, with the p-values of the whole table. A bias against the
    right token HURTS."""
    good, bad = made(server, tmp_path / "good.json", 4.0), made(server, tmp_path / "bad.json", -4.0)
    limits = options(test_limit=20, test_samples=2)
    result = ended_well(
        blb_eval(server, tmp_path, good, f"worse={bad}", "--save", "--verbose", *limits)
    )
    said = " ".join(result.stdout.split())
    assert said.startswith("Temperature 1, 20 test prompts, 95 % intervals")
    assert "Each pair that was compared, prompt by prompt" in said
    assert f"saved {tmp_path / 'run' / 'evaluation.json'}" in said
    for path, verdict in ((good, "HELPS"), (bad, "HURTS")):
        rows = Bias.load(path).verdict
        assert [(row.setting, row.metric) for row in rows] == [
            (setting, metric)
            for setting in ("temperature 1", "greedy")
            for metric in ("contains", "accuracy", "tokens")
        ]
        counts = (rows[0].n_prompts, rows[0].n_base, rows[3].n_base)
        assert (rows[0].verdict, *counts) == (verdict, 20, 40, 20)


def test_a_gain_by_ending_in_time_is_named(tmp_path: Path) -> None:
    """Where the limit cuts the base alone, the conclusion says what was not shown; a higher limit
    is a rival that shows it. Cut alike, nothing is said.
    """
    model = ExactModel(6, 12, end=True, prompts=2, sharpness=0.8, seed=11)
    assert model.end is not None
    with ExactServer(model) as server:
        path = made(server, tmp_path / "short.json", 8.0)
        bias = Bias.load(path)
        ending = Entry(id=model.end, text="", bias=7.5)
        bias.replacing(entries=(*bias.entries, ending)).save(path)
        drawn = ("--deploy", "temperature=1", "--test-samples", 4)
        result = ended_well(blb_eval(server, tmp_path, path, *drawn, "--rival", "max-tokens:12"))
        said = " ".join(result.stdout.split())
        document = json.loads((tmp_path / "run" / "evaluation.json").read_text())
        rows = {row["name"]: row for row in document["policies"]}
        assert rows["short"]["cut"] < rows["base"]["cut"] - 0.1, rows
        share = f"{rows['base']['cut']:.0%}"
        assert f"but the token limit cuts {share} of base, " in said
        longer = rows["max_tokens 12"]
        assert longer["max_tokens"] == 12
        assert longer["cut"] < rows["base"]["cut"]
        assert longer["metrics"]["tokens"]["mean"] > rows["base"]["metrics"]["tokens"]["mean"]
        (tmp_path / "alike").mkdir()
        alike = blb_eval(server, tmp_path / "alike", path, *drawn, "--max-tokens", 60)
    assert "HELPS" in alike.stdout
    assert "token limit" not in alike.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--save",), "none was given"),
        (
            ("FOLDER/a.json", "FOLDER/other.json"),
            "other: this bias was learned under tokenizer probe:0",
        ),
        (
            ("FOLDER/a/bias.json", "FOLDER/a.json"),
            "are both called 'a' here; tell them apart with NAME=FILE",
        ),
        (("base=FOLDER/a.json",), "a bias cannot be called 'base'"),
        (("--price", "3"), "give two prices"),
        (("--price", "3,x"), "give two prices"),
        (("--rival", "temperature:1"), "not below the highest temperature that is judged, 1"),
        (("--rival", "temperature:nan"), "not below the highest"),
        (("--rival", "max-tokens:4"), "no other limit than the 4 tokens of all"),
        (("--rival", "max-tokens:0"), "no other limit than the 4 tokens of all"),
        (("--rival", "prompt:  "), "--rival prompt: is empty"),
        (("--rival", "best-of:1"), "give 2 or more"),
        (("--rival", "best-of:4", "--deploy", "greedy"), "at a temperature above 0"),
        (
            ("--rival", "best-of:4", "--top-logprobs", "0"),
            "no logprobs are returned on the chat endpoint",
        ),
    ],
)
def test_what_cannot_be_judged_is_refused(
    server: ExactServer, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    """One sentence, exit code 2, and nothing was drawn."""
    for path in (tmp_path / "a" / "bias.json", tmp_path / "a.json"):
        made(server, path, 1.0)
    made(server, tmp_path / "other.json", 1.0, tokenizer="probe:0")
    given = [part.replace("FOLDER", str(tmp_path)) for part in arguments]
    result = blb_eval(server, tmp_path, *given)
    assert (result.exit_code, len(server.completions)) == (2, 0)
    assert said in result.stderr


@pytest.mark.parametrize(
    ("provider", "bias", "temperature", "why"),
    [
        ("vllm", {1: 1.0}, 1.0, None),
        ("sglang", {}, 1.0, None),
        ("sglang", {}, 0.5, "does not return"),
        ("sglang", {1: 1.0}, 1.0, "does not return"),
        ("azure", {1: 1.0}, 1.0, "is not known to return"),
    ],
)
def test_the_best_is_told_by_the_base_model_only(
    provider: str, bias: Mapping[int, float], temperature: float, why: str | None
) -> None:
    """Logprobs after bias and temperature are the base's only without either."""
    session = SimpleNamespace(profile=load_profile(provider), biased_endpoint="chat")
    trials = cast(Any, SimpleNamespace(session=session, top_logprobs=5))
    setting = Setting(f"temperature {temperature}", temperature)
    policy = BestOf(rival="x", judged="b" if bias else None, sent=RequestBias(bias), size=2)
    told = unranked(trials, setting, policy)
    assert (told is None) == (why is None)
    assert (why or "") in (told or "")


def test_enough_prompts_are_named_where_any_number_is() -> None:
    """Ten show the clearest difference among eight comparisons; among more than 500 none do."""
    remedies = {8: "give 10 test prompts or more", 600: "judge fewer biases at a time"}
    for rows, remedy in remedies.items():
        assert remedy in next(unresolvable(5, [(SAMPLED, Policy())], {"primary": rows}))
