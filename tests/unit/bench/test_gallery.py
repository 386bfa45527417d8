"""The gallery: every command is one that ``blb`` takes, pages say who won, and its rewards count
what they say.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.gallery import optimiser, page
from bench.gallery.page import curves, index, points, write_page
from bench.gallery.pairs import first_letter, judged, question, shuffled, verdicts
from bench.gallery.rewards import (
    DASHES,
    FAMILIES,
    PHRASES,
    STOCK,
    little_slop,
    one_script,
    quoted,
    record,
    slop,
    stripped_record,
    words_of,
)
from bench.gallery.uses import LAST, USES, Place, Step
from bench.gallery.variants import meant, variants
from bench.gallery.writing import compared, judgement, repetition, stored
from blackbox_lb import RolloutStore, Trials
from blackbox_lb.api.session import Session
from blackbox_lb.cli import main
from blackbox_lb.errors import CorruptResponse, InputError
from blackbox_lb.jobs.evaluation.arms import Alternative, arms_at, draw
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.tasks import parse_reward
from blackbox_lb.tasks.rewards.avoid import count_words
from blackbox_lb.tasks.rewards.spans import LocatedReward
from blackbox_lb.types import Completion, Example, Prompt, Span
from tests.support.exact import ExactModel, ExactServer

LINES = {"train": 40, "validation": 5, "test": 6}
OBJECT = '{"name": "Anna", "age": 30, "city": "Oslo"}'


def completion(text: str) -> Completion:
    """One with this text."""
    none = np.zeros(0)
    table = np.zeros((0, 0))
    return Completion(
        text,
        "stop",
        none.astype(np.int32),
        none.astype(np.float32),
        table.astype(np.int32),
        table.astype(np.float32),
    )


def place(folder: Path) -> Place:
    """Where the embedded engine is asked, with tasks of one row."""
    data = folder / "data"
    data.mkdir()
    for name in ("agnews", "rte", "sst2", "trec"):
        rows = (
            {"prompt": f"{split} {number}", "answer": "a", "split": split}
            for split in LINES
            for number in range(LINES[split])
        )
        (data / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (data / "gsm8k").mkdir()
    for name in ("train", "test"):
        (data / "gsm8k" / f"{name}.jsonl").write_text(
            json.dumps({"question": "How many?", "answer": "It is #### 1,001"}) + "\n"
        )
    model = folder / "second.gguf"
    model.write_bytes(b"")
    return Place(("--provider", "local"), folder / "out", data, model)


@pytest.mark.parametrize("name", USES)
def test_every_command_is_taken(name: str, tmp_path: Path) -> None:
    """Its options are parsed as ``blb`` parses them, its results have names of their own, and one
    of them is shown.
    """
    steps = USES[name].steps(place(tmp_path))
    above = click.Context(
        main, **main.context_settings
    )  # a command keeps the help option of its first context
    for step in steps:
        if step.program:
            for word in step.words:
                if word.endswith("store.db"):
                    Path(word).touch()
            importlib.import_module(step.program[-1]).main.make_context(step.name, list(step.words))
            continue
        command = main.get_command(above, step.words[0])
        assert command is not None
        made = [
            str(word).partition("=")[2] or word
            for word in step.words
            if word.endswith(("bias.json", "learned.json"))
        ]
        for path in made:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text("{}")
        command.make_context(step.words[0], list(step.words[1:]), parent=above)
    assert len({step.name for step in steps}) == len(steps)
    assert any(step.judges for step in steps)


@pytest.mark.parametrize(
    ("text", "strict", "stripped"),
    [
        (OBJECT, 1, 1),
        (f"```json\n{OBJECT}\n```", 0, 1),
        ("```json\n{}\n```", 0, 0),
        (f"Here it is: {OBJECT}", 0, 0),
        ("", 0, 0),
    ],
)
def test_a_record_is_parsed_as_a_client_would(text: str, strict: float, stripped: float) -> None:
    """Strictly, and by one that takes fences off."""
    example = Example("1", Prompt.user("p"), (OBJECT,))
    assert (record(example, completion(text)), stripped_record(example, completion(text))) == (
        strict,
        stripped,
    )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Whispers and a whispering shadow, nestling.", ["word"] * 4),
        ("Once upon a time there was a sense of loss.", ["phrase"] * 2),
        ("He left — she stayed -- both – no one - all --- gone", ["dash"] * 5),
        ("A well-known gentleman, lonely.\n- one\n  - two", []),
        ("golden—lush", ["word", "dash", "word"]),
    ],
)
def test_slop_is_found_in_all_its_forms(text: str, found: list[str]) -> None:
    """Forms of a word, phrases and dashes; neither hyphens nor the signs of a list."""
    assert [stock.kind for stock in slop(text)] == found


def test_slop_is_counted_for_each_hundred_words() -> None:
    """A text of fewer than twenty words is as bad as one with ten."""
    example = Example("1", Prompt.user("p"), ())
    stock = little_slop(example, completion("word " * 48 + "— bustling serenity"))
    assert stock.reward == pytest.approx(-6)
    assert little_slop(example, completion("word " * 20)) == LocatedReward(0, ())
    short = "word " * 19
    assert little_slop(example, completion(short)) == LocatedReward(-10, (Span(95, 95, -10),))
    reward = parse_reward("bench.gallery.rewards:little_slop", max_tokens=60)
    assert reward.score(example, completion(short)) == -10
    assert reward.rule is STOCK


def test_every_listed_word_is_one_of_its_forms() -> None:
    """What is on the hand list counts, and under its own name."""
    for word in FAMILIES:
        assert slop(f"the {word} thing") == [("word", word, 4)]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.sampled_from([*FAMILIES, *PHRASES, "—", "--", " - ", "the", "scent of", "sun", "\n- "]),
        max_size=30,
    )
)
def test_the_list_counts_what_one_pattern_of_all_counts(words: list[str]) -> None:
    """The numbers of the page before the list, and of the page since."""
    parts = rf"\b(?:{'|'.join(FAMILIES.values())})\b|\b(?:{'|'.join(PHRASES)})\b|{DASHES}"
    text = " ".join(words)
    passages = [match.group() for match in re.finditer(parts, text, re.IGNORECASE)]
    assert [stock.text for stock in slop(text)] == passages
    assert count_words(text) == len(words_of(text))


def test_a_repeated_trigram_counts_from_its_second_time() -> None:
    """Three of eight; a text of two words has none."""
    five = "one two Three four five"
    assert repetition(f"{five}, {five}.") == 3 / 8
    assert repetition(five) == repetition("one two") == 0
    assert repetition("no no no no no") == 2 / 3


def test_the_measures_are_means_with_the_difference_marked() -> None:
    """Per hundred words, over prompts; the mark is of a difference beyond chance."""
    plain, rich = (
        [[completion("word " * 50)] for _ in range(12)],
        [[completion("lush " * 50)] for _ in range(12)],
    )
    table = compared({"base": plain, "bias": rich}, ("stock words and phrases", "words"))
    assert table["head"] == ["policy", "stock words and phrases", "words"]
    assert table["rows"][0] == ["base", "0.00 (0.00 to 0.00)", "50.00 (50.00 to 50.00)"]
    assert table["rows"][1] == ["**bias**", "100.00 (100.00 to 100.00) *", "50.00 (50.00 to 50.00)"]


def test_a_preference_for_a_place_cancels() -> None:
    """A judge that goes by the place alone prefers nobody, and all of its pairs flip."""

    async def places(text: str) -> float:
        return 0.75

    found = verdicts([asyncio.run(judged(places, "p", "one", "other")) for _ in range(5)])
    assert (found.preference.mean, found.preference.low, found.preference.high) == (0.5, 0.5, 0.5)
    assert (found.wins, found.losses, found.flips, found.first) == (0, 0, 1, 0.75)
    assert not found.tells


def test_a_judge_whose_answers_all_flip_is_not_believed() -> None:
    """However sure its small preference is."""

    async def hardly(text: str) -> float:
        return 0.75 if text.index("good") < text.index("bad") else 0.7

    found = verdicts([asyncio.run(judged(hardly, "p", "good", "bad")) for _ in range(5)])
    assert found.preference.low == pytest.approx(0.525)
    assert (found.flips, found.tells) == (1, False)


def test_a_judge_that_reads_is_believed() -> None:
    """It names the better text in either place, and does not learn whose it is."""
    asked = []

    async def reads(text: str) -> float:
        asked.append(text)
        return 0.9 if text.index("good") < text.index("bad") else 0.2

    better = [asyncio.run(judged(reads, "p", "good", "bad")) for _ in range(5)]
    worse = [asyncio.run(judged(reads, "p", "bad", "good")) for _ in range(5)]
    assert verdicts(better).preference.mean == pytest.approx(0.85)
    assert (verdicts(better).wins, verdicts(worse).losses, verdicts(better).tells) == (1, 1, True)
    assert set(asked) == {question("p", "good", "bad"), question("p", "bad", "good")}
    table = judgement("judge", {"known": verdicts(worse), "bias": verdicts(better)})
    assert "does not tell even these apart" in table["notes"][0]
    assert table["rows"][1] == ["bias", "0.85 (0.85 to 0.85)", "1.00", "0.00", "0.00"]
    assert sorted(shuffled("a b c d e f", 1).split()) == list("abcdef")
    assert shuffled("a b c d e f", 1) != "a b c d e f"


def test_the_first_letter_is_one_of_two() -> None:
    """Its probability among both, spellings with a space counted; a judge that says neither is
    refused.
    """
    ids, logprobs = (
        np.array([[1, 2, 3]], dtype=np.int32),
        np.log(np.array([[0.3, 0.2, 0.1]], dtype=np.float32)),
    )
    told = Completion(
        "A",
        "length",
        ids[0, :1],
        logprobs[0, :1],
        ids,
        logprobs,
        token_bytes={1: b"A", 2: b"B", 3: b" A"},
    )
    assert first_letter(told) == pytest.approx(4 / 6)
    with pytest.raises(CorruptResponse, match="neither A nor B"):
        first_letter(
            Completion(
                "x", "length", ids[0, :1], logprobs[0, :1], ids, logprobs, token_bytes={1: b"x"}
            )
        )


def test_learned_tokens_are_told_from_the_hand_list() -> None:
    """By what they stood in; a token that mostly stands elsewhere is no part of it."""
    raw = {
        1: b" lush",
        2: b" whisper",
        3: b"ing",
        4: b" the",
        5: " —".encode(),
        6: b"Lush",
        7: b" once",
        8: b" upon",
        9: b" a",
    }
    raw |= {10: b" time", 11: b" serene", 12: b" gold", 13: b"en"}
    drawn = [[6, 1, 4, 2, 3, 4, 5, 4, 7, 8, 9, 10, 9, 4, 9, 3, 4, 3, 4, 3, 4, 12, 13]] * 3
    counted = meant(([(token, raw[token]) for token in row] for row in drawn), slop)
    assert (counted[3].seen, counted[3].counted, counted[3].mostly) == (12, 3, False)
    assert counted[2].inside == {("word", "whispering"): 3}
    bias = {1: -3.0, 2: -2.5, 3: -2.2, 5: -2.0, 6: -1.5, 7: -1.0, 12: -0.8, 11: -0.5, 4: 1.0}
    found, others = variants(
        bias, {token: text.decode() for token, text in raw.items()}, counted, [1], FAMILIES
    )
    assert [(each.text, each.hand_list) for each in found] == [
        (" lush", "on it"),
        (" whisper", "missing: a form of 'whispers'"),
        (" —", "missing: a dash"),
        ("Lush", "missing: another spelling of 'lush'"),
        (" once", "missing: a phrase"),
        (" gold", "missing: a piece of 'golden'"),
    ]
    assert others == ["ing", " serene"]


def test_completions_of_an_evaluation_are_read_back(tmp_path: Path) -> None:
    """Those that were drawn, for each policy, without a request; an evaluation that was not run is
    refused.
    """
    examples = [Example(str(number), Prompt.user(f"question {number}"), ()) for number in range(3)]
    arms = arms_at(SAMPLED, {"bias": {1: -2.0}}, [Alternative("said", instruction="Be brief.")])

    async def read(base_url: str) -> int:
        async with Session(load_profile("llamacpp"), base_url=base_url) as session:
            with RolloutStore(tmp_path / "store.db") as store:
                reward = parse_reward("length", max_tokens=4)
                trials = Trials(session, store, await session.tokenizer(), reward, Silent(), 5)
                with pytest.raises(InputError, match="run blb eval"):
                    await stored(trials, arms[0], examples, 2)
                first = {arm.name: (await draw(trials, examples, arm, 2)).first for arm in arms}
                before = len(server.requests)
                for arm in arms:
                    texts = await stored(trials, arm, examples, 2)
                    assert [len(row) for row in texts] == [2, 2, 2]
                    assert [row[0].text for row in texts] == [
                        each and each.text for each in first[arm.name]
                    ]
                return len(server.requests) - before

    with ExactServer(ExactModel(12, 6, end=True, prompts=3)) as server:
        assert asyncio.run(read(server.base_url)) == 0
    assert [arm.name for arm in arms] == ["base", "bias", "said", "said and bias"]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("봄은 따뜻하고 꽃이 많이 피는 계절입니다.", 1),
        ("봄은 따뜻하고 꽃이 많이 피는 季节입니다.", 0),
        ("Spring is warm.", 0),
        ("", 0),
    ],
)
def test_an_answer_in_one_script(text: str, right: float) -> None:
    """Korean without Chinese characters; an English one is none."""
    assert one_script(Example("1", Prompt.user("p"), ()), completion(text)) == right


def test_a_quote_is_held() -> None:
    """As it was asked for."""
    example = Example("1", Prompt.user("p"), ("你好",))
    assert (quoted(example, completion("네: 你好!")), quoted(example, completion("네: 好你"))) == (
        1,
        0,
    )


def test_a_prompt_optimiser_pays_once_for_an_answer() -> None:
    """Its instruction goes where ``blb eval`` puts one, and what was asked before is not asked
    again.
    """
    loop = asyncio.new_event_loop()
    examples = [
        Example(str(number), Prompt.user(f"question {number}"), ("a",)) for number in range(3)
    ]
    with ExactServer(ExactModel(12, 6, end=True, prompts=3)) as server:
        opened = Session(load_profile("llamacpp"), base_url=server.base_url)
        session = loop.run_until_complete(opened.__aenter__())
        asker = optimiser.Asker(loop, session, parse_reward("contains", max_tokens=4))
        first = asker.answers("Be brief.", examples)
        assert asker.answers("Be brief.", examples[:2]) == first[:2]
        asker.answers("Be long.", examples[:1])
        loop.run_until_complete(opened.__aexit__(None, None, None))
        said = [
            body["messages"][-1]["content"]
            for path, body in server.calls
            if path == "/v1/chat/completions"
        ]
    loop.close()
    assert asker.calls == 4
    assert sorted(said) == [
        *(
            f"question {number} Be {how}."
            for number, how in ((0, "brief"), (0, "long"), (1, "brief"), (2, "brief"))
        )
    ]
    assert asker.score(examples[0], completion("an a")) == 1


def _policy(name: str, bias: str | None, mean: float) -> dict[str, Any]:
    metrics = {"accuracy": {"mean": mean, "low": mean - 0.1, "high": mean + 0.1}}
    return {"name": name, "bias": bias, "setting": "greedy", "prompts": 40, "metrics": metrics}


def _compared(base: str, verdict: str) -> dict[str, Any]:
    return {
        "setting": "greedy",
        "metric": "accuracy",
        "base": base,
        "other": "bias",
        "verdict": verdict,
    }


def test_a_long_instruction_is_cut() -> None:
    """Within its quotes: what is sent with it stays; a picture names one in other letters."""
    name = f'prompt + "{"x" * 70}\n"y"" and bias'
    assert page._named(name) == f'prompt + "{"x" * 60}…" and bias'
    assert page._named('prompt + "short" and bias') == 'prompt + "short" and bias'
    assert page._drawn('prompt + "한국어로만" and bias') == "prompt + an instruction and bias"
    assert page._drawn(name) == f'prompt + "{"x" * 30}…" and bias'


def test_a_reward_is_named_in_short() -> None:
    """A function without its module, another label whole."""
    assert page._measure("bench.gallery.rewards:record") == "record"
    assert page._measure("correct x T/len (len: thinking)") == "correct x T/len (len: thinking)"


def test_right_answers_stand_beside_another_reward() -> None:
    """In a column of their own, unless they are the reward or nobody knows them."""
    short: dict[str, Any] = {"label": "short", "summary": [], "comparisons": []}
    policies = [_policy(name, None, mean) for name, mean in (("base", 0.2), ("rival", 0.5))]
    for each, reward in zip(policies, (3.0, 4.0), strict=True):
        each["metrics"]["short"] = {"mean": reward, "low": reward, "high": reward}
    text = page._section("T", short | {"policies": policies})
    assert "| short | right | tokens | learned bias against it |\n|---|---|---|---|---|\n" in text
    assert "| rival | 4.00 (4.00 to 4.00) | 0.50 |  |  |" in text
    assert "| right |" not in page._section(
        "T", short | {"label": "accuracy", "policies": policies}
    )
    del policies[0]["metrics"]["accuracy"]
    assert "| right |" not in page._section("T", short | {"policies": policies})


def test_a_page_says_who_won_and_what_failed(tmp_path: Path) -> None:
    """The table of one evaluation, a picture, a command without this machine's folders, and the row
    of the index.
    """
    pytest.importorskip("matplotlib")
    at = place(tmp_path)
    document = {
        "model": "/models/tiny.gguf",
        "label": "accuracy",
        "policies": [
            _policy("base", None, 0.2),
            _policy("bias", "bias", 0.6),
            _policy("labels only", None, 0.7),
        ],
        "comparisons": [_compared("base", "HELPS"), _compared("labels only", "HURTS")],
        "summary": ["Greedy, labels only alone WINS over bias."],
    }
    done = [
        (
            Step(
                "eval", ("eval", f"{at.out}/bias.json", "--data", f"{at.data}/rte.jsonl"), "Topics"
            ),
            {"code": 0, "seconds": 60, "document": document},
        ),
        (
            Step("broken", ("fit", "--model", "/models/tiny.gguf")),
            {"code": 2, "seconds": 1, "error": ["Error: no such model"]},
        ),
        (
            Step("texts", ("--data", f"{at.data}/rte.jsonl"), program=("python", "-m", "counting")),
            {
                "code": 0,
                "seconds": 1,
                "document": {
                    "tables": [
                        {
                            "title": "Texts",
                            "head": ["policy", "words"],
                            "rows": [["a|b", "3"]],
                            "notes": ["Few."],
                        }
                    ]
                },
            },
        ),
    ]
    write_page("decisions", USES["decisions"], done, tmp_path / "pages", at, "2026-11-24, 2 cores")
    text = (tmp_path / "pages" / "decisions.md").read_text()
    assert "| labels only | 0.70 (0.60 to 0.80) |  | loses |" in text
    assert "- `broken` ended with exit code 2: Error: no such model" in text
    assert "$ blb eval OUT/bias.json --data DATA/rte.jsonl\n$ blb fit --model tiny.gguf" in text
    assert "$ python -m counting --data DATA/rte.jsonl\n" in text
    assert "## Texts\n\n| policy | words |\n| --- | --- |\n| a\\|b | 3 |\n\n- Few.\n" in text
    assert (tmp_path / "pages" / "decisions.svg").read_text().count("labels only")
    row = index(tmp_path / "pages").splitlines()[-1]
    assert (
        row
        == "| [Topics](decisions.md) | greedy | tiny | 0.20 | 0.60 (0.50 to 0.70) |  |  | labels"
        " only |"
    )


def _evaluation(
    *policies: dict[str, Any], compared: tuple[dict[str, Any], ...] = (), said: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {
        "model": "tiny",
        "label": "accuracy",
        "policies": list(policies),
        "comparisons": list(compared),
        "summary": list(said),
    }


def test_labels_are_counted_in_all(tmp_path: Path) -> None:
    """Two thirds are learned from and a third chooses; rivals have them all; the test prompts are
    the same.
    """
    at = place(tmp_path)
    steps = {step.name: step for step in USES["labels"].steps(at)}
    for number, learned in ((10, 7), (30, 20)):
        asked = [
            json.loads(line) for line in (at.out / f"trec_{number}.jsonl").read_text().splitlines()
        ]
        whole = [
            json.loads(line)
            for line in (at.out / f"trec_{number}_all.jsonl").read_text().splitlines()
        ]
        sizes = {split: sum(row["split"] == split for row in asked) for split in LINES}
        assert sizes == {"train": learned, "validation": number - learned, "test": LINES["test"]}
        assert [row["prompt"] for row in whole if row["split"] == "train"] == [
            row["prompt"] for row in asked[:number]
        ]
        assert [row for row in whole if row["split"] == "test"] == asked[number:]
        judged = steps[f"trec_{number}_eval"]
        assert (judged.labels, str(at.out / f"trec_{number}_all.jsonl") in judged.words) == (
            number,
            True,
        )


def test_a_curve_has_a_point_for_each_number_of_labels(tmp_path: Path) -> None:
    """Evaluations of one title make one, smallest number first; a policy has points where it was
    judged.
    """
    pytest.importorskip("matplotlib")
    at, fixed = place(tmp_path), [_policy("fixed", "fixed", mean) for mean in (0.4, 0.6)]
    few = _evaluation(
        _policy("base", None, 0.2),
        fixed[0],
        _policy("rival", None, 0.5),
        said=("Greedy, rival alone WINS over fixed.",),
    )
    many = _evaluation(
        _policy("base", None, 0.2),
        fixed[1],
        _policy("words", "words", 0.7),
        _policy("rival", None, 0.5),
        _policy("late", None, 0.3),
        compared=(
            {
                "setting": "greedy",
                "metric": "accuracy",
                "base": "rival",
                "other": "fixed",
                "verdict": "NO EVIDENCE",
            },
            {
                "setting": "greedy",
                "metric": "accuracy",
                "base": "rival",
                "other": "words",
                "verdict": "HELPS",
            },
        ),
        said=("Greedy, fixed is not shown to change the reward.",),
    )
    done: list[tuple[Step, dict[str, Any]]] = [
        (Step("many", (), "Kinds", labels=300), {"code": 0, "seconds": 1, "document": many}),
        (Step("few", (), "Kinds", labels=10), {"code": 0, "seconds": 1, "document": few}),
        (
            Step("failed", (), "Kinds", labels=30),
            {"code": 2, "seconds": 1, "error": ["Error: none"]},
        ),
        (
            Step("declined", ("fit", "--depends-on", "words")),
            {"code": 0, "seconds": 1, "document": {"status": "HELPS", "chosen": {"l2": 1.0}}},
        ),
    ]
    found = points(curves(done)["Kinds"], "greedy")
    means = {
        name: {number: mean["mean"] for number, mean in each.items()}
        for name, each in found.items()
    }
    assert means == {
        "base": {10: 0.2, 300: 0.2},
        "fixed": {10: 0.4, 300: 0.6},
        "rival": {10: 0.5, 300: 0.5},
        "words": {300: 0.7},
        "late": {300: 0.3},
    }
    assert list(found["fixed"]) == [10, 300]
    write_page("labels", USES["labels"], done, tmp_path / "pages", at, "2026-11-24, 2 cores")
    text = (tmp_path / "pages" / "labels.md").read_text()
    assert (
        "## Kinds\n\n- 10 labels: Greedy, rival alone WINS over fixed.\n\n| greedy, 40 test"
        " prompts, accuracy | 10 labels | 300" in text
    )
    assert "| **words** |  | 0.70 (0.60 to 0.80) |\n" in text
    assert "| rival |  | fixed level, words wins |\n" in text
    assert "not shown to change" not in text
    assert (
        "- Fit `declined`: HELPS; declined to depend on the prompt, the bias is a fixed one (1 s)."
        in text
    )
    drawn = (tmp_path / "pages" / "labels-curve.svg").read_text()
    assert all(
        word in drawn
        for word in ("Kinds, greedy", "labelled examples", "<!-- words -->", "<!-- rival -->")
    )
    rows = [row["title"] for row in json.loads((tmp_path / "pages" / "labels.json").read_text())]
    assert rows == ["Kinds, 10 labels", "Kinds, 300 labels", "Kinds, 300 labels"]


def test_school_problems_are_right_with_a_comma_or_without(tmp_path: Path) -> None:
    """In their number; they are asked as the generated ones are."""
    USES["school"].steps(place(tmp_path))
    rows = [
        json.loads(line) for line in (tmp_path / "out" / "problems.jsonl").read_text().splitlines()
    ]
    assert [(row["answer"], row["split"]) for row in rows] == [
        (["1001", "1,001"], split) for split in ("train", "test")
    ]
    right = parse_reward("correct-and-short", max_tokens=9, correct=LAST)
    example = Example("1", Prompt.user(rows[0]["prompt"]), tuple(rows[0]["answer"]))
    texts = {
        "2 of \\boxed{1,001} eggs.": True,
        "It is 1001.": True,
        "$1001.00": True,
        "1,0012": False,
        "11,001": False,
        "1001 of 2": False,
    }
    assert {
        text: right.value(right.score(example, completion(text))) > 0 for text in texts
    } == texts
    assert rows[0]["prompt"].endswith("then write 'Answer:' and the number.")
