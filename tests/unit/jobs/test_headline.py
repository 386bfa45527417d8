"""One headline: every output says of a judged bias the same word and the same sentence."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path

import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Commonest, Verdict
from blackbox_lb.jobs.evaluation.document import Evaluation
from blackbox_lb.jobs.fitting.document import FitResult
from blackbox_lb.jobs.runs.conclusion import fit_conclusion
from blackbox_lb.jobs.runs.run import Run
from tests.support.commands import blb
from tests.support.proxy_upstream import bias as served_bias
from tests.support.proxy_upstream import exchange, plain, proxied, request
from tests.support.report_runs import evaluation, result, write_run

ALWAYS = 'always saying "Technical" (55 %)'
CASES: dict[str, tuple[float, float, str, str, str]] = {
    "beats both": (
        *(0.2, 0.9, "HELPS", "HELPS"),
        f"accuracy (greedy) is better than without the bias and than {ALWAYS}",
    ),
    "beats the base alone": (
        *(0.2, 0.5, "HELPS", "NOT SHOWN TO PAY"),
        f"accuracy (greedy) is better than without the bias; not better than {ALWAYS}",
    ),
    "no evidence": (
        *(0.4, 0.45, "NO EVIDENCE", "NO EVIDENCE"),
        f"accuracy (greedy) is not shown to be better than without the bias, nor than {ALWAYS}",
    ),
    "hurts": (
        *(0.5, 0.2, "HURTS", "HURTS"),
        "accuracy (greedy) is worse than without the bias",
    ),
}
"""Case -> base, biased, the verdict against the base, the word and the sentence of the headline."""
PROMPTS = 100


def verdict(case: str) -> Verdict:
    """The row of a decision judged at greedy."""
    base, biased, word, _, _ = CASES[case]
    p = 0.5 if word == "NO EVIDENCE" else 0.001
    commonest = Commonest(
        label="Technical", share=0.55, accuracy=biased, is_beaten=case == "beats both"
    )
    difference = biased - base
    return Verdict(
        setting="greedy",
        metric="accuracy",
        base=base,
        biased=biased,
        difference=difference,
        low=difference - 0.1,
        high=difference + 0.1,
        p=p,
        n_prompts=PROMPTS,
        n_base=PROMPTS,
        n_biased=PROMPTS,
        better="higher",
        verdict=word,
        commonest=commonest,
    )


def written(folder: Path, case: str) -> Path:
    """A run of a decision with this verdict."""
    run = write_run(folder, "nothing", verdict=(verdict(case),))
    document = json.loads((run / "result.json").read_text())
    document["verdict"] = [verdict(case).model_dump(mode="json")]
    (run / "result.json").write_text(json.dumps(document))
    return run


@pytest.mark.parametrize("case", list(CASES))
def test_a_fit_its_run_the_list_and_the_page(case: str, tmp_path: Path) -> None:
    """The first lines of the terminal, the texts of Run and Bias, ``blb runs``, ``blb show``, and
    the title and the cards of the page: one word for one run.
    """
    *_, word, sentence = CASES[case]
    folder = written(tmp_path / "run", case)
    bias = Bias.load(folder / "bias.json")
    fit_result = FitResult.model_validate(result("nothing"))
    conclusion = fit_conclusion(bias, fit_result, "accuracy", (), folder, "")
    assert " ".join(str(conclusion).split()).startswith(f"{word} {sentence}")
    assert all(len(line) <= 80 for line in conclusion.lines()[:3])
    run = Run(folder, bias, fit_result, None, None, (), (), conclusion)  # type: ignore[arg-type]
    assert repr(run) == f"<Run {word}: {sentence}, {folder}>"
    assert f"{word}: {sentence}" in repr(bias)
    assert html.escape(sentence)[:40] in run._repr_html_()
    listed = blb("runs", tmp_path).stdout
    assert f"{word} " in " ".join(listed.split())
    assert sentence in listed
    assert f"{word}: {sentence}" in blb("show", folder / "bias.json").stdout
    assert blb("report", folder).exit_code == 0
    page = (folder / "report.html").read_text()
    hero = page[page.index('id="verdict"') : page.index('id="numbers"')]
    title = re.sub("<[^>]+>", "", hero[hero.index("<h2") : hero.index("</h2>")])
    assert f"{sentence[1:]}." in html.unescape(title)
    assert set(re.findall(r'class="badge[^>]*>([^<]+)<', hero)) == {word}


def test_the_proxy_says_it_of_better_probabilities() -> None:
    """The status of a served bias at /healthz. Where log loss falls and accuracy is not shown to
    change, the word is about probabilities.
    """
    changes = {"metric": "log loss", "better": "lower", "commonest": None, "base": 1.0}
    numbers = {"biased": 0.5, "difference": -0.5, "low": -0.6, "high": -0.4}
    loss = verdict("beats both").replacing(**changes, **numbers)
    bias = served_bias("m").verified([verdict("no evidence"), loss])
    with proxied(plain(), bias) as (_, port, _):
        health = json.loads(exchange(port, request("/healthz", None, method="GET"))[2])
    [served] = health["biases"]
    assert served["status"] == ": ".join(bias.headline)
    assert served["status"].startswith("BETTER PROBABILITIES: ")
    assert served["status"].endswith("only better: log loss")


def test_files_of_earlier_versions_are_read() -> None:
    """Numbers that are no longer written are left out."""
    document = evaluation()
    rows = [{**row, "needed_for_effect": 90} for row in document["comparisons"]]
    earlier = {**document, "summary": ["a"], "notes": ["b"], "effect": 0.1, "comparisons": rows}
    assert Evaluation.model_validate(earlier) == Evaluation.model_validate(document)
    fit = result("helps")
    tried = [{**row, "by_setting": [], "setting": None} for row in fit["validation"]["tried"]]
    validation = {**fit["validation"], "base_by_setting": [], "tried": tried}
    earlier = {**fit, "validation": validation}
    assert FitResult.model_validate(earlier) == FitResult.model_validate(fit)
