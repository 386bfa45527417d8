"""Rivals of a bias on decision tasks, on an exact model whose margin between two labels is planted,
and worked examples.
"""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from click.testing import Result

from blackbox_lb.extras.rivals import classifier as classifiers
from blackbox_lb.extras.rivals.first_lists import content_free
from blackbox_lb.jobs.evaluation.document import Evaluation, PolicyResult
from blackbox_lb.types import Example, Message, Prompt
from tests.support.commands import asking, blb, options, refusal, refused
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows

KINDS = 12
FREE = KINDS
"""The kind of a prompt without content."""
MODEL = ExactModel(
    14, 2, seed=96, prompts=KINDS + 1, unigram=[0.0, -3.0, -6.0, *[0.0] * 11], end=True
)  # " b" and " c" are the labels; neither is ever the likeliest token
MARGINS = [
    float(MODEL.logprobs([], kind)[1] - MODEL.logprobs([], kind)[2]) for kind in range(KINDS + 1)
]
"""Nats between the labels: " b" is likelier for all kinds, and right for six: where it is likelier
than without content.
"""
SPLITS = (("train", range(60)), ("validation", range(60, 64)), ("test", range(100, 160)))
DECISIONS = ("labels-only", "threshold", "calibrate:batch", "few-shot:2", "classifier:tfidf")


def prompt_of(text: str) -> int:
    """The kind of a prompt."""
    return (
        FREE
        if any(each in text for each in ("N/A", "[MASK]", "question ."))
        else zlib.crc32(text.encode()) % KINDS
    )


def asked(number: int) -> str:
    """The prompt of a row: a word that varies inside words that do not."""
    return f"question {number}."


ROWS = [
    {
        "prompt": asked(n),
        "answer": "b" if MARGINS[prompt_of(asked(n))] > MARGINS[FREE] else "c",
        "split": split,
    }
    for split, numbers in SPLITS
    for n in numbers
]


@pytest.fixture(scope="module")
def server() -> Iterator[ExactServer]:
    """The model behind a llama.cpp server."""
    with ExactServer(MODEL, prompt_of=prompt_of) as running:
        yield running


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """The rows as a file."""
    return write_rows(tmp_path / "data.jsonl", ROWS)


def small_run(command: str, server: ExactServer, data: Path, *more: object) -> Result:
    """A command in this process, with completions of at most 2 tokens."""
    where = asking(server, data=data, out=data.parent / "run", reward="contains", max_tokens=2)
    return blb(command, *where, *more)


def found(
    server: ExactServer,
    data: Path,
    *rivals: str,
    more: Sequence[object] = (),
    deploy: str = "greedy",
) -> dict[str, PolicyResult]:
    """The policies of ``blb eval`` with these rivals at one setting by name."""
    asked = options(rival=[*rivals], deploy=deploy)
    result = small_run("eval", server, data, *more, *asked, "--quiet", "--json")
    assert result.exit_code == 0, result.output
    return policies_of(result)


def policies_of(result: Result) -> dict[str, PolicyResult]:
    """The policies of a document by name."""
    return {row.name: row for row in Evaluation.model_validate_json(result.stdout).policies}


def accuracy(row: PolicyResult) -> float:
    """The share that is right, which the decisions and the reward tell alike."""
    assert row.decisions is not None
    assert row.decisions.accuracy is not None
    assert row.metrics["contains"].mean == pytest.approx(row.decisions.accuracy)
    return row.decisions.accuracy


def no_label(row: PolicyResult) -> float:
    """The share of answers that are no label."""
    assert row.decisions is not None
    assert row.decisions.no_label is not None
    return row.decisions.no_label


def sent(server: ExactServer, since: int = 0) -> list[dict[str, Any]]:
    """The bodies of the completions that were asked for."""
    return [body for path, body in server.calls[since:] if path.endswith("completions")]


def test_thresholds_reach_what_the_bias_reaches(server: ExactServer, data: Path) -> None:
    """Both are right where the margin without content decides. The base hardly says a label; among
    the labels alone the common margin hides the right one. The thresholds cost one token a training
    and a test prompt, and are a row like any other, also in the report."""
    out = data.parent / "run"
    learned = options(learn_from="answers", deploy="greedy")
    assert small_run("fit", server, data, *learned, "--quiet").exit_code == 0
    since = len(server.calls)
    rivals = ("threshold", "labels-only", "few-shot:2")
    rows = found(server, data, *rivals, more=[f"b={out / 'bias.json'}"])
    assert accuracy(rows["thresholds"]) >= accuracy(rows["b"]) - 0.02
    assert accuracy(rows["thresholds"]) > 0.95
    assert accuracy(rows["base"]) < 0.3
    assert accuracy(rows["labels only"]) < 0.7
    told = rows["thresholds"]
    assert (told.kind, told.bias, told.temperature) == ("decisions", None, 0.0)
    assert (told.max_tokens, told.completion_tokens) == (1, 1.0)
    assert told.prompt_tokens > 0
    short = [
        body
        for body in sent(server, since)
        if body["max_tokens"] == 1 and not body.get("logit_bias")
    ]
    assert len(short) == 60  # the training lists are those of the fit
    text = (out / "evaluation.json").read_text()
    names = {(row["against"], row["policy"]) for row in json.loads(text)["comparisons"]}
    assert {("base", "thresholds"), ("thresholds", "b"), ("labels only", "b")} <= names
    assert blb("report", out).exit_code == 0
    page = (out / "report.html").read_text(encoding="utf-8")
    for words in ("decided by this program", "2 biased tokens", "4 messages before the prompt"):
        assert words in page


def test_calibration_repairs_a_common_margin(server: ExactServer, data: Path) -> None:
    """What the model says of no content, or on average, is divided out: the right label is found
    without a training answer, in a token a test prompt and one for each of three inputs without
    content. Labels only: each answer is a label, of one token, under +100 on exactly the two
    labels; the base says others.
    """
    since = len(server.calls)
    rivals = ("calibrate:contextual", "calibrate:batch", "labels-only")
    rows = found(server, data, *rivals)
    assert accuracy(rows["contextual calibration"]) == 1.0
    assert accuracy(rows["batch calibration"]) > 0.95
    bodies = sent(server, since)
    asked_for = [body["messages"][-1]["content"] for body in bodies if not body.get("logit_bias")]
    free = [text for text in asked_for if prompt_of(text) == FREE]
    assert sorted(free) == ["question .", "question N/A.", "question [MASK]."]
    # The base, the lists of the test prompts, those without content.
    assert len(asked_for) == 60 + 60 + 3
    only = rows["labels only"]
    assert accuracy(only) < 0.7
    assert (no_label(only), only.completion_tokens, only.entries) == (0.0, 1.0, 2)
    assert no_label(rows["base"]) > 0.5
    biased = {
        (body["max_tokens"], *map(tuple, sorted(body["logit_bias"])))
        for body in bodies
        if body.get("logit_bias")
    }
    assert biased == {(1, (1, 100.0), (2, 100.0))}


def test_a_list_without_the_labels_bounds_them(server: ExactServer, data: Path) -> None:
    """Of three listed alternatives none is a label: the number of bounds is told, and nothing is
    better than a guess.
    """
    asked = options(deploy="greedy", rival="calibrate:batch", top_logprobs=3)
    result = small_run("eval", server, data, *asked, "--json")
    assert result.exit_code == 0, result.output
    bounds = "120 of 120 label probabilities are not in the lists of 3 tokens"
    assert bounds in " ".join(result.stderr.split())
    assert accuracy(policies_of(result)["batch calibration"]) < 0.7


def test_a_prompt_without_a_list_has_no_decision(data: Path) -> None:
    """What a content filter stopped is counted as no label, and told."""

    def filtered(_number: int, answer: dict[str, Any]) -> dict[str, Any]:
        (choice,) = answer["choices"]
        if answer["usage"]["completion_tokens"] == 1 and choice["message"]["content"] == " a":
            choice |= {"finish_reason": "content_filter", "logprobs": None}
            choice["message"]["content"] = ""
        return answer

    with ExactServer(MODEL, prompt_of=prompt_of, faults=filtered) as server:
        asked = options(deploy="greedy", rival="threshold", seed=1)
        result = small_run("eval", server, data, *asked, "--json")
    assert result.exit_code == 0, result.output
    told = policies_of(result)["thresholds"]
    assert no_label(told) > 0
    assert accuracy(told) == pytest.approx(1 - no_label(told))
    missing = round(60 * no_label(told))
    assert f"test: {missing} of 60 prompts came without a list" in " ".join(result.stderr.split())


def test_few_shot_messages_are_sent(server: ExactServer, data: Path) -> None:
    """Two training examples, one of each label, as a user's and an assistant's messages before each
    test prompt, behind the system message; twice the same, and others with another seed.
    """
    since = len(server.calls)
    rows = found(server, data, "few-shot:2", "few-shot:4")
    assert [rows[name].shots for name in ("base", "2 examples", "4 examples")] == [0, 4, 8]
    told = [body["messages"] for body in sent(server, since)]
    short, long = ([messages for messages in told if len(messages) == n] for n in (5, 9))
    assert {tuple(each["role"] for each in messages) for messages in short} == {
        ("user", "assistant", "user", "assistant", "user")
    }
    ((one, first, two, second),) = {
        tuple(each["content"] for each in messages[:-1]) for messages in short
    }
    answers = {row["prompt"]: row["answer"] for row in ROWS if row["split"] == "train"}
    assert (answers[one], answers[two]) == (first, second)
    assert {first, second} == {"b", "c"}
    test_prompts = [row["prompt"] for row in ROWS if row["split"] == "test"]
    assert sorted(messages[-1]["content"] for messages in long) == sorted(test_prompts)
    said = [each["content"] for each in long[0] if each["role"] == "assistant"]
    assert sorted(said) == ["b", "b", "c", "c"]
    since = len(server.calls)
    found(server, data, "few-shot:2", "few-shot:4")
    assert sent(server, since) == []
    found(server, data, "few-shot:4", more=["--restart", "--system", "s", "--seed", 1])
    (other,) = {
        tuple(each["content"] for each in body["messages"][:-1])
        for body in sent(server, since)
        if len(body["messages"]) == 10
    }
    assert (other[0], set(other[2::2])) == ("s", {"b", "c"})
    assert set(other[1::2]) != {each["content"] for each in long[0][:-1:2]}


def planted(path: Path) -> Path:
    """Rows whose label a word tells."""
    words = {"b": "sunny", "c": "rainy"}
    return write_rows(
        path,
        [
            {"prompt": f"day {n} was {words[answer]} again", "answer": answer, "split": split}
            for split, numbers in SPLITS
            for n in numbers
            for answer in ("bc"[n % 2],)
        ],
    )


def test_a_classifier_learns_a_planted_word(server: ExactServer, tmp_path: Path) -> None:
    """Every unseen row is right, for no token; nothing but the base's completions was asked for."""
    since = len(server.calls)
    rows = found(server, planted(tmp_path / "data.jsonl"), "classifier:tfidf")
    assert accuracy(rows["classifier tfidf"]) == 1.0
    assert (
        rows["classifier tfidf"].prompt_tokens,
        rows["classifier tfidf"].metrics["tokens"].mean,
    ) == (0, 0)
    assert len(sent(server, since)) == 60


def test_a_classifier_of_embeddings(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts go through the loader of the package; one coordinate of the vectors tells the
    label.
    """
    names = []

    def loader(name: str) -> Any:
        names.append(name)
        return lambda texts: np.array([[len(text), 5.0 * ("sunny" in text)] for text in texts])

    monkeypatch.setattr(classifiers, "load_encoder", loader)
    monkeypatch.setitem(sys.modules, "sentence_transformers", SimpleNamespace(__spec__="there"))
    rows = found(server, planted(tmp_path / "data.jsonl"), "classifier:embedding:org/name")
    assert accuracy(rows["classifier embedding org/name"]) == 1.0
    assert names == ["org/name"]


def test_a_label_with_one_row_is_classified_too(server: ExactServer, tmp_path: Path) -> None:
    """Too few for cross-validation, which is left out; prompts without a word cannot be classified,
    which is said.
    """
    data = planted(tmp_path / "data.jsonl")
    with data.open("a") as file:
        file.write(json.dumps({"prompt": "x y z", "answer": "d", "split": "train"}) + "\n")
    rows = found(server, data, "classifier:tfidf", more=["--labels", "b,c,d"])
    assert accuracy(rows["classifier tfidf"]) == 1.0
    wordless = [{**row, "prompt": "?" * (n + 1)} for n, row in enumerate(ROWS)]
    words = ("--quiet", "--restart", "--labels", "b,c", "--rival", "classifier:tfidf")
    said = refusal(small_run("eval", server, write_rows(data, wordless), *words))
    assert "no classifier can be learned from 60 training rows" in said


@pytest.mark.parametrize(
    ("rival", "more", "answers", "sentence"),
    [
        *((rival, (), None, "is for decisions between few labels") for rival in DECISIONS),
        ("few-shot:61", (), {}, "few-shot:61 is more than the 60 training rows with a label"),
        (
            *("few-shot:2", ("--endpoint", "completions"), {}),
            "the completions endpoint takes one text",
        ),
        ("classifier:words", (), {}, "--rival classifier:words is not known; give tfidf"),
        ("classifier:embedding", (), {}, "--rival classifier:embedding is not known; give tfidf"),
        ("calibrate:other", (), {}, "calibrate:other is not known; give contextual or batch"),
        ("threshold", ("--labels", "b,d"), {}, "none of the labels 'b, d'"),
        ("threshold", (), {"b": "d e", "c": "d f"}, "begins the label 'd e' and no other"),
        (
            *("threshold", ("--labels", "b,c"), {"c": "b"}),
            "all 60 training rows have the same label, b",
        ),
        (
            *("classifier:tfidf", ("--labels", "b,c"), {"c": "b"}),
            "all 60 training rows have the same label, b",
        ),
        ("labels-only", (), {"b": "北"}, "that can be biased begins the label '北'"),
    ],
)
def test_what_a_rival_refuses(
    server: ExactServer,
    tmp_path: Path,
    rival: str,
    more: tuple[str, ...],
    answers: dict[str, str] | None,
    sentence: str,
) -> None:
    """A sentence and exit code 2, before anything is drawn; also of answers that are no labels."""
    rows: list[dict[str, Any]] = [
        {**row, "answer": f"answer {number}"}
        if answers is None
        else {**row, "answer": answers.get(row["answer"], row["answer"])}
        for number, row in enumerate(ROWS)
    ]
    data = write_rows(tmp_path / "data.jsonl", rows)
    since = len(server.calls)
    said = refusal(small_run("eval", server, data, "--quiet", "--rival", rival, *more))
    assert sentence in said
    assert sent(server, since) == []


@pytest.mark.parametrize("name", ["data", "test_data"])
def test_fresh_rows_are_judged_on_alone(server: ExactServer, tmp_path: Path, name: str) -> None:
    """A later file has no training rows: all its rows are judged on, rivals that learn are refused,
    and those of --rivals leave them out and say so.
    """
    fresh = [{**row, "split": "test"} for row in ROWS]
    given = {name: write_rows(tmp_path / "fresh.jsonl", fresh), "out": tmp_path / "run"}
    drawn = options(reward="contains", max_tokens=2, deploy="greedy")
    command = ("eval", *asking(server, **given), *drawn)
    result = blb(*command, "--rivals", "--json")
    assert result.exit_code == 0, result.output
    assert f"{len(ROWS)} prompts to judge" in result.stderr
    assert "leaves out those that learn from training rows" in " ".join(result.stderr.split())
    policies = policies_of(result)
    assert policies.keys() >= {"base", "labels only", "batch calibration"}
    assert {policy.prompts for policy in policies.values()} == {len(ROWS)}
    for rival in ("threshold", "few-shot:2", "classifier:tfidf"):
        since = len(server.calls)
        said = refused(*command, "--rival", rival)
        assert f"--rival {rival.partition(':')[0]} learns from training rows" in said
        assert sent(server, since) == []


@pytest.mark.parametrize(
    ("given", "package", "said_name"),
    [
        ("tfidf", "sklearn", "sklearn"),
        ("embedding:org/name", "sentence_transformers", "sentence-transformers"),
    ],
)
def test_a_classifier_without_its_package_is_refused(
    server: ExactServer,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: str,
    package: str,
    said_name: str,
) -> None:
    """The remedy is the extra."""
    monkeypatch.setitem(sys.modules, package, None)
    said = refusal(small_run("eval", server, data, "--quiet", "--rival", f"classifier:{given}"))
    assert f"needs {said_name}, which is not installed: pip install '.[clusters]'" in said


def example(number: int, *messages: str) -> Example:
    """A prompt of messages of the user, behind one of the system."""
    return Example(
        str(number), Prompt((Message("system", "s"), *(Message("user", text) for text in messages)))
    )


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["Is Rome big?", "Is Reno big?"], ["Is N/A big?", "Is [MASK] big?", "Is  big?"]),
        (
            ["x: good\nLabel:", "x: bad\nLabel:"],
            ["x: N/A\nLabel:", "x: [MASK]\nLabel:", "x: \nLabel:"],
        ),
        (["one", "two"], ["N/A", "[MASK]"]),
        (["same", "same"], ["N/A", "[MASK]"]),
        (["a b.", "a b. c b."], ["a b.N/A", "a b.[MASK]", "a b."]),
    ],
)
def test_prompts_without_content(texts: list[str], expected: list[str]) -> None:
    """What all begin and end with stays, in whole words and once; the system message, too; no
    prompt is empty.
    """
    free = content_free([example(number, text) for number, text in enumerate(texts)])
    assert [each.prompt.messages[-1].content for each in free] == expected
    assert all(each.prompt.messages[0].content == "s" and not each.answers for each in free)
    assert content_free([]) == ()


@pytest.mark.parametrize(
    ("rules", "nats"), [("entries = 3", 100.0), ("high = 20.5\nfractions = false", 20.0)]
)
def test_of_longer_labels_all_tokens_are_allowed(
    server: ExactServer, tmp_path: Path, rules: str, nats: float
) -> None:
    """Two labels of one and of two tokens, with the provider's highest bias; one that takes fewer
    entries is refused.
    """
    rows = [{**row, "answer": {"c": "c e"}.get(row["answer"], "b")} for row in ROWS]
    data = write_rows(tmp_path / "data.jsonl", rows)
    own = tmp_path / "own.toml"

    def evaluated(rules: str) -> Result:
        own.write_text(f'extends = "llamacpp"\nname = "own"\n[bias]\n{rules}\n')
        asked = options(deploy="greedy", rival="labels-only", provider=own)
        return small_run("eval", server, data, *asked, "--quiet")

    since = len(server.calls)
    assert evaluated(rules).exit_code == 0
    biased = {
        (body["max_tokens"], *map(tuple, sorted(body["logit_bias"])))
        for body in sent(server, since)
        if body.get("logit_bias")
    }
    assert biased == {(2, (1, nats), (2, nats), (4, nats))}
    assert "2 labels need more than the 2 entries" in refusal(evaluated("entries = 2"))
