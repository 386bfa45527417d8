"""A fit says what it could not do and what the provider kept back: on the screen, in JSON and in
the bias file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from blackbox_lb.bias.document import Bias
from blackbox_lb.store import RolloutStore
from tests.support.commands import blb, options
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import questions, write_rows

END, TOP = 11, 4
MODEL = ExactModel(12, 8, end=True, prompts=4, sharpness=0.7)
Call = Callable[..., Result]


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """An exact model with an end token."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture
def call(server: ExactServer, tmp_path: Path) -> Call:
    """Run a command against the exact model under a profile with the given rows."""
    data, profile = tmp_path / "data.jsonl", tmp_path / "own.toml"
    write_rows(data, questions(8, 3, 4, answer="a"))

    def run(command: str, *more: object, rows: str = "", code: int = 0) -> Result:
        profile.write_text(f'extends = "llamacpp"\nname = "own"\n{rows}\n')
        where = options(provider=profile, base_url=server.base_url, out=tmp_path / "run", seed=1)
        task = options(data=data, reward="length", max_tokens=8, top_logprobs=TOP)
        result = blb(command, *where, *task, *more)
        assert result.exit_code == code, result.output
        return result

    return run


def small(*more: object) -> tuple[object, ...]:
    """Options of a fit that is over soon."""
    return (*options(samples_per_prompt=12, validation_samples=2, test_samples=2, tau=0.5), *more)


def censor(number: int, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer as OpenAI gives it: no logprob for a sampled token that is not among the
    likeliest.
    """
    for choice in answer["choices"]:
        for entry in choice["logprobs"]["content"]:
            if entry["id"] not in [other["id"] for other in entry["top_logprobs"]]:
                entry["logprob"] = -9999.0
    return answer


CENSORED = "[logprobs]\ncensored = -9999.0"


def test_censored_tokens_are_counted_everywhere(
    call: Call, server: ExactServer, tmp_path: Path
) -> None:
    """The store, the result, the remarks, the summary, the bias file and ``blb show`` agree on how
    many there were. The rule for unobserved tokens changes what ips learns.
    """
    server.faults = censor
    options = small("--estimator", "ips", "--alpha", 0.3, "--unobserved")
    call("fit", *options, "bound", "--quiet", rows=CENSORED)
    bounded = Bias.load(tmp_path / "run" / "bias.json")
    fitted = call("fit", *options, "drop", "--verbose", rows=CENSORED)
    assert Bias.load(tmp_path / "run" / "bias.json").logit_bias != bounded.logit_bias
    kept_back = Bias.load(tmp_path / "run" / "bias.json").censoring
    assert kept_back is not None
    assert kept_back.bounded == kept_back.outside > 0
    assert kept_back.unobserved == "drop"
    sentence = kept_back.sentence(TOP)
    assert f"{kept_back.bounded:,} have no logprob" in sentence
    assert sentence in " ".join(fitted.stderr.split())
    assert sentence in fitted.stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["censoring"] == kept_back.model_dump()
    shown = blb("show", tmp_path / "run" / "bias.json").output
    assert sentence in shown
    collected = json.loads(
        call("collect", "--samples-per-prompt", 12, "--json", rows=CENSORED).stdout
    )
    assert collected["censoring"] == kept_back.model_dump(exclude={"unobserved"})
    assert (collected["incomplete"], collected["filtered"]) == (0, 0)
    with RolloutStore(tmp_path / "run" / "rollouts.db") as store:
        assert store.size().bounded >= kept_back.bounded


def test_no_kl_from_logprobs_of_the_biased_policy(call: Call, tmp_path: Path) -> None:
    """The sentence names the provider and the reason; JSON has null and no NaN."""
    rows = '[logprobs]\nmeaning = "after bias"'
    fitted = call("fit", *small("--l2", 5), "--verbose", rows=rows)
    sentence = "KL to the base not computed: own returns logprobs of the biased policy"
    assert sentence in " ".join(fitted.stdout.split())
    text = (tmp_path / "run" / "result.json").read_text()
    assert "NaN" not in text
    result = json.loads(text)
    assert result["kl_nats_per_completion"] is None
    assert result["kl_missing"] == "own returns logprobs of the biased policy"


def test_forbidden_ids_are_never_sent(call: Call, server: ExactServer, tmp_path: Path) -> None:
    """Under a profile with a highest id the end token, which this reward would raise most, has no
    entry in any request.
    """
    call("fit", *small("--l2", 5, "--quiet"))
    assert END in Bias.load(tmp_path / "run" / "bias.json").logit_bias
    before = len(server.completions)
    call("fit", *small("--l2", 5, "--quiet"), rows=f"[bias]\nhighest_id = {END - 1}")
    bias = Bias.load(tmp_path / "run" / "bias.json")
    sent = [dict(body.get("logit_bias") or {}) for body in server.completions[before:]]
    assert any(sent)
    assert all(int(token) < END for each in sent for token in each)
    assert bias.logit_bias
    assert bias.compiled is not None
    assert bias.compiled.dropped >= 1
    assert (bias.compiled.kept_share or 0) < 1


def test_what_a_result_says_of_its_making(call: Call, server: ExactServer, tmp_path: Path) -> None:
    """Every completion that was drawn is counted, also by a run that resumes; remarks are there."""
    fitted = call("fit", *small("--l2", 5, "--l2", 50), "--verbose")
    document = json.loads((tmp_path / "run" / "result.json").read_text())
    asked = len(server.completions)
    assert document["usage"]["completions"] == asked
    assert 0 < document["usage"]["completion_tokens"] <= 8 * asked
    assert document["usage"]["prompt_tokens"] > 0
    said = " ".join(fitted.stderr.split())
    remarks = document["provenance"]["remarks"]
    assert remarks
    assert all(" ".join(notice.split()) in said for notice in remarks)
    call("fit", *small("--l2", 5, "--l2", 50))
    again = json.loads((tmp_path / "run" / "result.json").read_text())
    assert again["usage"] == document["usage"]


@pytest.mark.parametrize("file", ["learned.json", "bias.json", "result.json"])
def test_a_file_that_cannot_be_written_takes_no_other_with_it(
    call: Call, tmp_path: Path, file: str
) -> None:
    """The verdict is printed, the other files are written, and the end is one sentence on what is
    missing, with exit code 2.
    """
    (tmp_path / "run" / file / "in the way").mkdir(parents=True)
    ended = call("fit", *small("--l2", 5), code=2)
    assert "tokens" in ended.stdout
    assert ended.stdout.startswith(("HELPS", "NO EVIDENCE", "HURTS"))
    (sentence,) = [line for line in ended.stderr.splitlines() if "cannot be written" in line]
    assert file in sentence
    assert "Traceback" not in ended.output
    written = {"learned.json", "bias.json", "result.json"} - {file}
    assert all((tmp_path / "run" / name).is_file() for name in written)
    assert f"without {file}" in " ".join(ended.stdout.split())
