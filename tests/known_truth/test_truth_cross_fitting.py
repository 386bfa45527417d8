"""Cross-fitting: the rows that a bias is learned from choose it, each by what is learned without
it.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb import RolloutStore, Task, Trials, load_task, parse_reward
from blackbox_lb.api.session import Session
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate
from blackbox_lb.jobs.fitting.choosing.select import select
from blackbox_lb.jobs.fitting.evidence import answers, selection
from blackbox_lb.jobs.fitting.evidence.selection import Selected
from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.plan.by_data import FEW_ROWS, completed, pooled
from blackbox_lb.jobs.plan.plan import Plan
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Example, Prompt
from tests.goldens.materials import DECIDER, labelled, only
from tests.support.commands import blb
from tests.support.exact import ExactServer
from tests.support.questions import write_rows

LABELS = ("b", "c")
ROWS = only("train", labelled(DECIDER, 12, 0, 0))
OTHER = {"b": "c", "c": "b"}
FOLDS = np.arange(len(ROWS)) % 4
SOLVED = 1e-5
"""Nats within which a fit is the same: its solver stops at slopes of 1e-7, and where sums are
rounded depends on the machine's moment. Another answer moves values by hundreds of times more.
"""


def fit_of(rows: Sequence[Mapping[str, Any]], folder: Path) -> tuple[list[Candidate], Selected]:
    """All candidates of a fit of these rows, and its choice."""
    examples = tuple(
        Example(str(number), Prompt.user(row["prompt"]), (row["answer"],))
        for number, row in enumerate(rows)
    )
    task = Task("rows", examples, (), examples[:1])
    labels = Labels.named(LABELS, examples)
    reward = parse_reward("accuracy", max_tokens=2, labels=labels)
    plan = completed(Plan(reward="accuracy", labels=LABELS), task, reward)
    fields: list[list[Candidate]] = []

    async def watched(field: Iterable[Candidate], *more: Any, **options: Any) -> Any:
        candidates = [*field]
        fields.append(candidates)
        return await select(candidates, *more, **options)

    async def run(base_url: str) -> Selected:
        with RolloutStore(folder / "store.db") as store:
            async with Session(load_profile("llamacpp"), base_url=base_url) as session:
                trials = Trials(session, store, await session.tokenizer(), reward, Silent(), 14)
                job = FitJob.of(trials, task, plan)
                return await (await answers.collect(job)).choose(job)

    with pytest.MonkeyPatch.context() as patch, ExactServer(DECIDER) as server:
        patch.setattr(selection, "select", watched)
        patch.setattr(answers, "dealt", lambda numbers, seed: FOLDS)
        selected = asyncio.run(run(server.base_url))
    return fields[0], selected


def test_no_row_judges_what_was_learned_from_it(tmp_path: Path) -> None:
    """Another answer to one row changes what is learned from all rows and from the other folds, and
    nothing that judges the row.
    """
    changed = [dict(row) for row in ROWS]
    changed[5]["answer"] = OTHER[changed[5]["answer"]]
    (field, selected), (changed_field, _) = fit_of(ROWS, tmp_path), fit_of(changed, tmp_path)
    before, after = (
        {json.dumps(candidate.settings): candidate for candidate in candidates}
        for candidates in (field, changed_field)
    )
    both = before.keys() & after.keys()
    assert len(both) >= 12
    moved = 0
    for name in both:
        parts = zip(before[name].left_out, after[name].left_out, strict=True)
        for fold, (part, part_after) in enumerate(parts):
            is_same = part.logit_bias == pytest.approx(part_after.logit_bias, abs=SOLVED)
            assert is_same or fold != FOLDS[5]
            moved += not is_same
    assert moved > len(both)
    assert selected.choice.candidate.left_out


def test_the_predicted_number_is_of_what_was_learned_without_the_row(tmp_path: Path) -> None:
    """For a candidate the predicted accuracy is the share of rows that its own fold's bias decides
    right by the exact model.
    """
    field, selected = fit_of(ROWS, tmp_path)
    rows = {json.dumps(row.settings): row for row in selected.choice.tried}
    label_of = {1: "b", 2: "c"}
    compared = 0
    for candidate in field:
        tried = rows[json.dumps(candidate.settings)]
        if tried.accuracy is None:
            continue
        right = []
        for row, fold in zip(ROWS, FOLDS.tolist(), strict=True):
            logits = DECIDER.logprobs([], DECIDER.prompt_of(row["prompt"])).copy()
            for token, nats in candidate.left_out[fold].logit_bias.items():
                logits[token] += nats
            right.append(label_of.get(int(logits.argmax())) == row["answer"])
        assert tried.accuracy == pytest.approx(np.mean(right))
        compared += 1
    assert compared >= 12


def test_few_rows_are_learned_from_and_chosen_on(tmp_path: Path) -> None:
    """Ten rows of two labels beside test data all teach; ``--validation-size`` sets some apart, and
    so does a file of rows to choose on.
    """
    every = labelled(DECIDER, 12, 1, 30)
    data, test = tmp_path / "data.jsonl", tmp_path / "test.jsonl"
    write_rows(data, only("train", every))
    write_rows(test, only("test", every))
    with ExactServer(DECIDER) as server:

        def fitted(*more: str) -> tuple[str, dict[str, Any]]:
            result = blb(
                *("fit", "--provider", "llamacpp", "--base-url", server.base_url),
                *("--data", data, "--test-data", test, "--reward", "accuracy"),
                *("--max-tokens", 2, "--out", tmp_path / "run"),
                *("--json", "--restart", "--verbose", *more),
            )
            assert result.exit_code == 0, result.output
            return " ".join(result.stderr.split()), json.loads(result.stdout)

        words, result = fitted()
        assert "12 to learn and to choose by cross-fitting, 30 to judge" in words
        assert "on the same 12 prompts, each by what was learned without it" in words
        assert result["training"]["rollouts"] == 2 * 12
        assert result["usage"]["completions"] == 12 + 12 + 2 * 30 + 30
        words, result = fitted("--validation-size", "5")
        assert "7 to learn, 5 to choose, 30 to judge" in words
        assert "predicted for greedy decoding on 5 validation prompts" in words


def task_of(rows: int, *, divided: bool = True) -> Task:
    """So many rows of two labels, a quarter of them to choose on."""
    examples = tuple(
        Example(str(number), Prompt.user(f"question {number}"), (LABELS[number % 2],))
        for number in range(rows)
    )
    return Task("rows", examples[rows // 4 :], examples[: rows // 4], examples[:1], divided=divided)


@pytest.mark.parametrize(
    ("rows", "settings", "is_crossed"),
    [
        (2 * FEW_ROWS - 1, {}, True),
        (2 * FEW_ROWS, {}, False),
        (40, {"limit": 20}, False),
        (40, {"learn_from": "samples"}, False),
        (40, {"deploy": ("temperature=1",)}, False),
        (40, {"depends_on": ("words",)}, False),
        (40, {"positive": "b", "objective": "recall@precision=0.9"}, False),
        (40, {"objective": "balanced"}, True),
    ],
)
def test_rows_are_pooled_where_lists_choose_a_fixed_bias(
    rows: int, settings: dict[str, Any], is_crossed: bool
) -> None:
    """Below 100 rows a label, and nowhere that rows of their own are needed or were named."""
    task = task_of(rows)
    labels = Labels.named(LABELS, task.train)
    reward = parse_reward("accuracy", max_tokens=2, labels=labels)
    plan = completed(Plan(reward="accuracy", labels=LABELS, **settings), task, reward)
    after = pooled(plan, task, reward)
    assert (after.validation == ()) is is_crossed
    assert after.data_hash == task.data_hash
    assert pooled(plan, task_of(rows, divided=False), reward).validation


def test_rows_to_choose_on_keep_the_shares_of_labels(tmp_path: Path) -> None:
    """``validation_size`` draws exactly so many rows, as many of each label; what cannot be is
    refused.
    """
    rows = [
        {"prompt": f"question {number}", "answer": "b" if number % 4 else "c"}
        for number in range(100)
    ]
    write_rows(tmp_path / "data.jsonl", rows)
    write_rows(tmp_path / "test.jsonl", [{"prompt": "another", "answer": "b"}])
    task = load_task(data=tmp_path / "data.jsonl", test=tmp_path / "test.jsonl", validation_size=20)
    assert len(task.validation) == 20
    assert sum(example.answers == ("c",) for example in task.validation) == 5
    assert not task.divided
    with pytest.raises(InputError, match="``validation_size=99`` of the 100 rows"):
        load_task(data=tmp_path / "data.jsonl", test=tmp_path / "test.jsonl", validation_size=99)
    write_rows(
        tmp_path / "split.jsonl",
        [{**row, "split": ("train", "validation", "test")[n % 3]} for n, row in enumerate(rows)],
    )
    with pytest.raises(InputError, match="have a split of their own"):
        load_task(data=tmp_path / "split.jsonl", validation_size=9)
    with pytest.raises(InputError, match="``validation_size=9`` draws rows"):
        load_task("continents", validation_size=9)
