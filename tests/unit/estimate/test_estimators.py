"""The table of estimators: one row more, and everything that fits knows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice import table
from blackbox_lb.estimate.choice.estimator import EstimatorFacts, Logged, Proposal
from blackbox_lb.estimate.inputs.sweep import Sweep
from tests.support.commands import asking, blb, options
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import write_rows


class Toy:
    """Every sampled token at alpha."""

    facts = EstimatorFacts(swept=("alpha",))

    def learn(self, data: Logged, sweep: Sweep, priors: object = ()) -> Iterator[Proposal]:
        """At each tau and alpha."""
        ids = np.unique(data.rollouts.token_ids)[::2].astype(np.int64)
        for tau in sweep.tau:
            for alpha in sweep.alpha:
                yield Proposal({"tau": tau, "alpha": alpha}, ids, np.full(len(ids), alpha))


TOY = Toy()


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A table with one row more."""
    with monkeypatch.context() as patch:
        patch.setitem(table.ROWS, "toy", f"{__name__}:TOY")
        yield


def test_a_row_is_all_that_a_new_estimator_needs(toy: None, tmp_path: Path) -> None:
    """It is among the CLI's choices, a fit learns with it, judges it and writes it down; what it
    cannot do is refused.
    """
    assert "toy" in blb("fit", "--help-all").output
    data = tmp_path / "data.jsonl"
    rows = [
        {"prompt": f"question {letter}", "answer": "a", "split": split}
        for split, letters in (("train", "abcd"), ("validation", "ef"), ("test", "gh"))
        for letter in letters
    ]
    write_rows(data, rows)
    model = ExactModel(30, 6, end=True, prompts=8)
    with ExactServer(model, prompt_of=lambda text: ord(text.strip()[-1]) - ord("a")) as server:
        where = asking(server, out=tmp_path / "run", seed=1)
        size = options(samples_per_prompt=6, validation_samples=1, test_samples=1, max_tokens=8)
        call = (
            "fit",
            *where,
            *size,
            *options(data=data, reward="length", top_logprobs=5, estimator="toy"),
        )

        def run(*more: object) -> tuple[int, str]:
            done = blb(*call, *more)
            return done.exit_code, " ".join(done.output.split())

        code, said = run("--learn-from", "answers", "--reward", "contains")
        assert (code, "and not by toy" in said) == (2, True)
        code, said = run("--alpha", 0.5)
    assert code == 0, said
    bias = Bias.load(tmp_path / "run" / "bias.json")
    assert (bias.estimator, bias.settings) == ("toy", {"tau": 0.5, "alpha": 0.5})
    assert bias.verdict
    assert bias.censoring is not None
    assert bias.censoring.unobserved is None
    assert set(bias.logit_bias.values()) <= {0.5, -0.5}
    assert "which toy does not read" in " ".join(finding.sentence for finding in bias.findings)


def test_a_name_without_a_row_is_refused() -> None:
    """The message lists the names that there are."""
    with raises_naming(InputError, "'none'", "projection", "ips"):
        table.estimator("none")
