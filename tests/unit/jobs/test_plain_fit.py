"""What a default fit prints: few lines, minutes, one cause, and no term of the paper."""

from __future__ import annotations

import json
import math
import re
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from blackbox_lb.jobs.runs.conclusion import CAUSES, reason
from blackbox_lb.records import Finding
from blackbox_lb.rollouts.progress import Lines, Outlook
from tests.support.commands import asking, blb, options, refusal
from tests.support.exact import ExactModel, ExactServer
from tests.support.labelled import DECIDER, labelled_rows
from tests.support.printed import ended_well
from tests.support.questions import write_rows
from tests.support.stored import text_completion

PRIVATE = (
    *("V_0", "nats", "tau", "l2", "KL", "calibration", "projection", "prior", "candidates"),
    *("rollouts", "reliability", "second:", "cut to", "all else learned", "first list"),
    *("lists along", "standard error", "effective sample", "equal completions", "nats behind"),
)
"""Terms that belong to --verbose, to the record and to the report."""
BEFORE = 12
"""Lines before the verdict."""
MODEL = ExactModel(14, 4, seed=3, prompts=20, end=True)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prompts, labelled prompts, and a list of words."""
    root = tmp_path_factory.mktemp("plain")
    write_rows(root / "prompts.jsonl", [{"prompt": f"question {n}"} for n in range(60)])
    write_rows(root / "labels.jsonl", labelled_rows(DECIDER))
    (root / "words.txt").write_text("b\n")
    (root / "never.txt").write_text("zebra\n")
    return root


def terms(text: str) -> list[str]:
    """The private terms in a text, as words; options and files are none."""
    plain = re.sub(r"--[a-z0-9-]+|\S*/\S*", "", text)
    return [term for term in PRIVATE if re.search(rf"\b{re.escape(term)}", plain)]


@pytest.mark.parametrize(
    ("rows", "reward", "tokens"),
    [("labels", "accuracy", 2), ("prompts", "length", 8), ("prompts", "avoid:words.txt", 4)],
)
def test_a_default_fit_says_little_and_says_it_plainly(
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rows: str,
    reward: str,
    tokens: int,
) -> None:
    """At most 12 lines of 80 columns before the verdict, and no term of the paper anywhere; the
    record keeps every remark, and --verbose prints it.
    """
    monkeypatch.chdir(data)
    monkeypatch.setattr(Outlook, "DUE", math.inf)  # however slow this machine is
    monkeypatch.setattr("blackbox_lb.rollouts.progress.AFTER", math.inf)
    with ExactServer(DECIDER if rows == "labels" else MODEL) as server:
        task = options(data=f"{rows}.jsonl", reward=reward, max_tokens=tokens)
        words = asking(server, out=tmp_path / "run") + task
        done = ended_well(blb("fit", *words))
        result = json.loads((tmp_path / "run" / "result.json").read_text())
        if rows == "labels":
            assert "macro-F1" in done.stdout
            assert "chosen: " in blb("fit", *words, "--verbose", "--restart").stderr
    lines = [part for line in done.stderr.splitlines() for part in textwrap.wrap(line, 80)]
    assert len(lines) <= BEFORE, lines
    assert re.match(r"HELPS|NOT SHOWN TO PAY|NO EVIDENCE|HURTS", done.stdout)
    assert terms(done.output) == []
    assert any("chosen: " in remark for remark in result["provenance"]["remarks"])


def test_the_stages_of_a_slow_fit_are_named_plainly(
    data: Path, tmp_path: Path, server: ExactServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each stage that takes long says how far it is."""
    monkeypatch.setattr(Outlook, "is_due", lambda self: True)
    words = asking(server, data=data / "prompts.jsonl", reward="length", max_tokens=8)
    small = options(samples_per_prompt=4, limit=10, test_limit=4, out=tmp_path / "run")
    done = ended_well(blb("fit", *words, *small, "--go-on"))
    assert re.search(r"^validation.*, \d+ biases: \d+ of \d+ in ", done.stderr, re.MULTILINE)
    assert terms(done.stderr) == []


def test_a_list_that_the_model_hardly_uses_is_the_cause(
    data: Path, tmp_path: Path, server: ExactServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no completion has a hit, the refusal says so in plain words, before more is drawn."""
    monkeypatch.chdir(data)
    words = asking(server, data="prompts.jsonl", reward="avoid:never.txt", max_tokens=4)
    said = refusal(blb("fit", *words, "--out", tmp_path / "run"))
    assert "0 hits in 300 completions, so there is nothing to remove" in said
    assert terms(said) == []


@pytest.mark.parametrize("code", list(CAUSES))
def test_every_cause_is_plain_and_whole(code: str) -> None:
    """The sentence of a failed check is given in plain words; a check that passed is no cause."""
    failed = Finding(code=code, word="FAIL", sentence="V_0 is 0.1 nats", remedy="")
    passed = Finding(code="weights", word="PASS", sentence="the weights count as 45", remedy="")
    cause = reason([passed, failed])
    assert cause
    assert terms(cause) == []
    assert not cause.endswith("...")
    assert reason([passed]) == ""


class Watched:
    """Stages whose lines and clock the test holds."""

    def __init__(
        self, completions: int, tokens: int, shorter: Callable[..., str] = lambda *speed: ""
    ) -> None:
        self.now = 0.0
        self.lines: list[str] = []
        self._outlook = Outlook(self.lines.append, lambda: self.now)
        self._outlook.expect(completions, 0, tokens, shorter)

    def stage(self, title: str, total: int, drawn: int, *, seconds: float, tokens: int) -> Lines:
        """A stage of which so many completions came, each after so many seconds."""
        stage = Lines(title, total, self.lines.append, lambda: self.now, self._outlook, brief=True)
        for _ in range(drawn):
            self.now += seconds
            stage(text_completion("word", tokens=tokens))
        return stage


def test_the_time_of_a_command_is_said_after_the_first_completions() -> None:
    """Minutes of the whole command, by the share of the limit that completions have; where they are
    many, a shorter plan.
    """
    watched = Watched(1000, 16_000, lambda second, share: f"; shorter {second:.2f} {share:.2f}")
    watched.stage("training", 1000, 9, seconds=9.0, tokens=8)
    [sentence] = [line for line in watched.lines if "in all" in line]
    assert sentence == (
        "about 2 h 30 min in all, by the first 9 completions (1 tokens/s); shorter 1.12 0.50"
    )


def test_a_long_stage_shows_signs_of_life_that_double() -> None:
    """After 30 s, 1 min, 2 min, 4 min: an hour takes eight lines at most. What is computed between
    two stages says nothing of the completions to come.
    """
    watched = Watched(3600, 3600 * 4)
    watched.now += 3600.0
    watched.stage("training", 3600, 3600, seconds=1.0, tokens=4).end()
    shown = [line for line in watched.lines if line.startswith("training: ")]
    counts = [line.split(" of ")[0] for line in shown[:3]]
    assert counts == ["training: 30", "training: 60", "training: 120"]
    assert len(shown) <= 8
    assert shown[0].endswith("about 60 min left")


def test_a_dry_run_says_the_time_of_an_earlier_run_or_that_it_is_not_known(
    data: Path, tmp_path: Path, server: ExactServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a run it is not known; after one it takes as long as that one took, and where that is
    long, a plan with fewer completions is offered.
    """
    monkeypatch.chdir(data)
    run = tmp_path / "run"
    words = asking(server, data="prompts.jsonl", reward="length", max_tokens=8, out=run)
    assert "once a server answers" in blb("fit", *words, "--dry-run").stdout
    assert blb("fit", *words, "--quiet").exit_code == 0
    record = json.loads((run / "run.json").read_text())
    record["runs"]["fit"].update(started="2026-01-01T00:00:00Z", ended="2026-01-01T02:00:00Z")
    (run / "run.json").write_text(json.dumps(record))
    said = " ".join(blb("fit", *words, "--dry-run").stdout.split())
    assert re.search(r"about \d h \d+ min, as fast as the earlier run in", said)
    assert "--samples-per-prompt 4" in said
    judged = ended_well(blb("eval", run / "bias.json", *words, "--rival", "prompt:Be brief."))
    assert re.search(r"requests, about \d.* as fast as before", judged.stderr)
    assert np.isfinite(json.loads(blb("fit", *words, "--dry-run", "--json").stdout)["seconds"])
