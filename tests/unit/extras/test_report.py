"""The report: what it says of each kind of run, what it names as missing, and what hostile text
cannot do to it.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.bias.records import Verdict
from blackbox_lb.cli.echo import with_option_names
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.prediction import decisions_of
from blackbox_lb.extras.report.data import read_run
from blackbox_lb.extras.report.examples import compared
from blackbox_lb.extras.report.page import render, write_report
from blackbox_lb.extras.report.page_text import tame
from blackbox_lb.extras.report.verdict_text import headline
from blackbox_lb.jobs.evaluation.document import Answer
from blackbox_lb.types import Span
from tests.support.commands import blb
from tests.support.deciding import DecidingServer
from tests.support.errors import raises_naming
from tests.support.questions import write_rows
from tests.support.report_runs import (
    HOSTILE,
    bias_of,
    entries,
    evaluation,
    result,
    verdicts,
    write_run,
)
from tests.support.tickets import QUESTION, fit, rows_of, says, says_both, write_two_questions


def text_of(page: str) -> str:
    """What a reader sees of the page, scripts and styles aside, in one line."""
    bare = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (
            verdicts("helps"),
            "Correct x T/len (temperature 1) is better than without the bias; correct x T/len"
            " (greedy) is not shown to be better than without the bias.",
        ),
        (verdicts("nothing"), "The bias changes nothing."),
        (verdicts("hurts"), "Accuracy (temperature 1, greedy) is worse than without the bias."),
        ((), "Nobody has checked yet whether this bias helps."),
    ],
    ids=["helps", "nothing", "hurts", "unverified"],
)
def test_the_verdict_is_one_sentence(rows: Sequence[Verdict], sentence: str) -> None:
    """Which setting it helps, hurts or leaves as it is reads the same way for good and bad news."""
    assert headline(rows) == sentence


def test_one_sentence_reconciles_the_fit_and_a_later_evaluation(tmp_path: Path) -> None:
    """Where the evaluation's verdict on the same comparison is another one, both stand in a
    sentence with their p-values; whom the bias loses to stands beside it.
    """
    created = datetime(2020, 1, 1, tzinfo=UTC)
    run = write_run(tmp_path / "run", "hurts", full=True, created=created)
    path = run / "evaluation.json"
    document = json.loads(path.read_text()) | {"label": "accuracy"}
    own = next(row for row in document["comparisons"] if row["metric"] == "accuracy")
    lost = {"base": 0.6, "biased": 0.4, "difference": -0.2, "low": -0.3, "high": -0.1}
    rival = {"against": "T = 0.5", "policy": "bias", "verdict": "HURTS", "family": "secondary"}
    document["comparisons"].append({**own, **lost, **rival})
    sentences = []
    for verdict, p in (("HURTS", 0.01), ("NO EVIDENCE", 0.07)):
        for row in document["comparisons"]:
            if (row["against"], row["policy"], row["metric"]) == ("base", "bias", "accuracy"):
                worse = {"base": 0.5, "biased": 0.4, "difference": -0.1, "low": -0.2, "high": 0.0}
                row.update(verdict=verdict, p=p, **worse)
        path.write_text(json.dumps(document))
        page = render(read_run(run))
        sentences.append(re.findall('<p class="callout">(.*?)</p>', page))
    agreeing, differing = sentences
    assert agreeing == ["bias loses to T = 0.5"]
    assert differing[1:] == agreeing
    assert "p 0.070" in differing[0]
    assert re.search(r"p (&lt;0\.001|0\.000)", differing[0])
    assert f"among {len(document['comparisons']) - 1}, " in differing[0]


def test_the_page_names_options_and_how_each_candidate_ended(tmp_path: Path) -> None:
    """Parameters in the library's sentences become options where the caller says so; what became of
    a candidate is read from the file.
    """
    run = read_run(write_run(tmp_path / "run", "helps", full=True))
    assert run.result is not None
    ends = [candidate.status for candidate in run.result.validation.tried]
    assert ends.count("chosen") == 1
    assert "after 6 samples a prompt" in ends
    finding = run.bias.findings[0].model_copy(
        update={"word": "FAIL", "remedy": "raise ``max_tokens``"}
    )
    bias = run.bias.model_copy(update={"findings": (finding,)})
    page = text_of(render(replace(run, bias=bias), wording=with_option_names))
    assert "raise --max-tokens" in page


def test_a_full_run_shows_everything(tmp_path: Path) -> None:
    """Every document's numbers, the commands and each count are in the page, and nothing is called
    missing. There is no address to load from and a policy that would forbid it; identities are
    unique over all pictures.
    """
    run = write_run(tmp_path / "run", "helps", full=True)
    page = render(read_run(run))
    said = text_of(page)
    for part in (
        "prompt adds “Answer in one short sentence.”",
        "cut off at the token limit",
        "ended by itself (changed)",
        "✗ incorrect",
        "34 completions left out of the fit",
        "1 values on the limit of the range",
        "2 values that became 0",
        "8,484 learned values that are not listed",
        "left out of the evaluation 5 completions",
        "a share of 0.031 of the probability, which rests on the model of the tail",
        "the correction differs between prompts",
        "blb fit --provider vllm --task capitals --reward correct-and-short",
        "numpy 2.4.6",
        "2 of 6 candidates are dropped",
        "54,000 of prompts, 61,000 of completions",
        "c9" * 32,
    ):
        assert part in said, part
    assert "Not in this report" not in said
    names = re.findall(r'id="plot-([\w-]+)"', page)
    assert names == ["rivals", "pareto"]
    assert "“part0”" in said
    assert "teaches no fact and no skill" in said
    assert not re.search(r'(src|href)="(?!#|data:)', page)
    assert "url(http" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page
    identities = re.findall(r'\bid="([^"]+)"', page)
    assert len(identities) == len(set(identities))


def test_what_is_missing_is_named_with_its_command(tmp_path: Path) -> None:
    """A folder with nothing but an unjudged bias is a page, too: UNVERIFIED, and the commands that
    would add the rest.
    """
    bias_of(None, 12, compiled=None, learned=None, censoring=None, findings=()).save(
        tmp_path / "bias.json"
    )
    said = text_of(render(read_run(tmp_path)))
    assert "UNVERIFIED" in said
    for command in (f"blb eval {tmp_path}/bias.json --save", f"blb analyze {tmp_path}/bias.json"):
        assert command in said
    assert "result.json is not in the folder" in said
    assert "neither result.json nor evaluation.json holds answers" in said.lower()


def test_a_missing_part_is_added_by_the_line_that_stands_there(tmp_path: Path) -> None:
    """The command has the task, the model and the reward of the fit, and nothing else of it."""
    run = write_run(tmp_path / "run", "helps")
    document = result("helps")
    document["provenance"]["command"] = (
        "blb fit --provider vllm --samples-per-prompt 4 --data 'my rows.jsonl' --prefill --out x"
        " --reward length"
    )
    (run / "result.json").write_text(json.dumps(document), encoding="utf-8")
    line = (
        f"blb eval {run}/bias.json --provider vllm --data 'my rows.jsonl' --prefill --reward length"
    )
    assert f"{line} --rivals" in text_of(render(read_run(run)))


def test_an_evaluation_speaks_for_a_bias_without_a_verdict(tmp_path: Path) -> None:
    """Where the bias file has no verdict, the rows are those of the bias alone against the base,
    and no alternative's.
    """
    run = write_run(tmp_path / "run", "helps", full=True, verdict=())
    page = render(read_run(run))
    assert "(temperature 1) is better than without the bias." in text_of(page).replace(
        "\N{NO-BREAK SPACE}", " "
    )
    assert page.count('<article class="card">') == 1


def test_documents_that_are_older_than_the_bias_are_named(tmp_path: Path) -> None:
    """After a second fit in the same folder, what was evaluated before may be of another bias."""
    folder = write_run(
        tmp_path / "run", "helps", full=True, created=datetime(2030, 1, 1, tzinfo=UTC)
    )
    page = text_of(render(read_run(folder)))
    assert "evaluation.json is older than this bias" in page
    assert "analysis.json is older than this bias" in page


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    """HTML, control and bidirectional characters of models and files appear by name; the only
    script is the page's own. Places of the reward cut the text before it is escaped, so that no cut
    makes an element; a screen reader gets the amounts in words.
    """
    run = write_run(tmp_path / "run", "helps", full=True, task=HOSTILE, model=HOSTILE)
    path = run / "evaluation.json"
    document = json.loads(path.read_text())
    spans = [{"start": 1, "end": 9, "amount": -2.5}, {"start": 40, "end": 43, "amount": 1}]
    completions = document["examples"][0]["completions"]
    for completion in completions:
        completion.update(text=HOSTILE + "<b>bold</b>", spans=spans)
    path.write_text(json.dumps(document))
    page = render(read_run(run))
    assert page.count("<script") == page.count("</script>") == 1
    assert "<img" not in page
    assert "<b>bold" not in page
    assert not {"\x1b", "\u202e", "\u202c", "\x00"} & set(page)
    assert "⟨U+202E⟩evil⟨U+202C⟩⟨U+0000⟩" in page
    assert page.count(" (costs 2.5)</span>") == len(completions)
    assert page.count('<span class="place earned">') == len(completions)
    inside = re.findall(r"<pre>(.*?)</pre>", page, flags=re.DOTALL)
    elements = [name for text in inside for name in re.findall(r"<([^>\s]*)[^>]*>", text)]
    assert {name.removeprefix("/") for name in elements} <= {"mark", "span"}
    assert tame("a\r\nb\tc\\d") == "a\nb\tc\\d"
    assert tame("\ud800") == "⟨U+D800⟩"


def test_hostile_text_in_a_figure_stays_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Labels, estimators and rewards are drawn by name, in the page and in the plots' files; a key
    among them is masked.
    """
    monkeypatch.setenv("GITHUB_TOKEN", "planted")
    evil = "\x1b\x07\u202eevil$x_$planted"
    run = write_run(tmp_path / "run", "helps")
    document = result("helps")
    for row in document["validation"]["tried"]:
        row |= {"estimator": evil, "accuracy": None}
    side = decisions_of((evil, "no"), [0] * 4 + [1] * 4, [0, 0, 1, 1] * 2).model_dump()
    document["decisions"] = {evil: {"base": side, "biased": side}}
    (run / "result.json").write_text(json.dumps(document), encoding="utf-8")
    (run / "bias.json").unlink()
    hostile = tuple(row.model_copy(update={"metric": evil}) for row in verdicts("hurts"))
    bias_of("hurts", verdict=hostile).save(run / "bias.json")
    write_report(run, None, tmp_path / "plots")
    pages = [run / "report.html", *(tmp_path / "plots").glob("*.svg")]
    assert len(pages) == 3
    for path in pages:
        text = path.read_text(encoding="utf-8")
        assert not {"\x1b", "\x07", "\u202e"} & set(text), path
        assert "planted" not in text, path
        assert "⟨U+001B⟩" in text, path


def test_a_decision_between_many_labels_has_tables_and_no_picture(tmp_path: Path) -> None:
    """A matrix of 400 labels would take minutes, and more pixels than a file may have."""
    names = tuple(f"label {number}" for number in range(400))
    side = decisions_of(names, range(400), range(400)).model_dump()
    run = write_run(tmp_path / "run", "hurts")
    document = json.loads((run / "result.json").read_text())
    document["decisions"] = {"greedy": {"base": side, "biased": side}}
    (run / "result.json").write_text(json.dumps(document))
    written = write_report(run, plots_folder=tmp_path / "plots")
    assert not [path for path in written.plots if path.stem == "confusion"]
    assert "label 399" in text_of(written.page.read_text())


def answer(policy: str, text: str, **fields: Any) -> Answer:
    """An answer without a reward."""
    return Answer(
        policy=policy,
        text=text,
        tokens=3,
        correct=None,
        reward=None,
        finish_reason="stop",
        **fields,
    )


def test_places_of_the_reward_stand_in_the_text() -> None:
    """The text is cut at the places, whose amounts are shown and spoken; places that touch are one;
    differences stay marked; a place that is the whole text, or outside of it, shows nothing.
    """
    spans = (Span(3, 4, -1.0), Span(4, 5, -1.5), Span(12, 12, 0.5), Span(5, 99, -7.0))
    first, second = compared(
        [
            answer("a", "So ДаЖ it is", spans=spans),
            answer("b", "So it is", spans=(Span(0, 8, -0.03),)),
        ]
    )
    told = [
        ("".join(segment.text for segment in passage.segments), passage.amount)
        for passage in first.passages
    ]
    assert told == [("So ", None), ("Да", -2.5), ("Ж it is", None), ("", 0.5)]
    assert (first.passages[1].spoken, first.passages[1].shown) == ("costs 2.5", "−2.5")
    assert (first.passages[3].spoken, first.passages[3].shown) == ("earns 0.5", "+0.5")
    assert first.passages[1].segments[0].differs
    assert [passage.amount for passage in second.passages] == [None]


def test_answers_that_repeat_themselves_are_not_compared() -> None:
    """Their words have too many equals to be told apart in time; equal ones differ nowhere, and
    1,500 words of prose are compared.
    """
    looping = ["the cat sat on " * 200, "the cat sat at " * 200]
    prose = [" ".join(f"{word}{number}" for number in range(1500)) for word in "ab"]
    for texts, different in (
        (looping, None),
        (looping[:1] * 2, ()),
        (prose, ((0, len(prose[0])),)),
        (["is it so", "it is so"], ((3, 5),)),
        (["a b", "a\nb"], ()),
    ):
        sides = compared([answer("base", text) for text in texts])
        assert sides[0].different == different, texts[0][:20]


def test_examples_are_the_answers_of_the_fit_or_of_a_newer_evaluation(tmp_path: Path) -> None:
    """An evaluation that is older than the bias may be of another one, so the fit's own answers are
    shown, with the nats of the tokens that the bias moved; without both nothing is, and the page
    says so.
    """
    run = write_run(tmp_path / "run", "hurts")
    assert len(read_run(run).examples) == 6
    page = render(read_run(run))
    assert "tokens moved: 1 up, 1 down" in text_of(page)
    for title in ("+2.50 nats", "−1.25 nats"):
        assert f'title="{title}"' in page, title
    assert "6 of the 73" in read_run(run).examples_from
    (run / "evaluation.json").write_text(json.dumps(evaluation()))
    assert read_run(run).examples[0].sides[0].answer.policy == "without the bias"
    bias_of("hurts", created=datetime(2020, 1, 1, tzinfo=UTC)).save(run / "bias.json")
    assert read_run(run).examples[0].sides[0].answer.policy == "base"
    bare = read_run(write_run(tmp_path / "bare", "helps"))
    assert bare.examples == ()
    assert "result.json" in text_of(render(bare))


def test_a_whole_vocabulary_is_cut_and_counted(tmp_path: Path) -> None:
    """Beyond 2,000 tokens the strongest stay, and the table says how many are left out and where
    they are.
    """
    weakest_first = entries(2_007)[::-1]
    said = text_of(render(read_run(write_run(tmp_path / "run", "helps", entries=weakest_first))))
    assert "7 more rows are not in this page; all are in bias.json" in said
    assert "␣word1 1 " in said
    assert "word2006" not in said


def test_the_command_writes_page_and_plots(tmp_path: Path) -> None:
    """RUN/report.html by default, every picture as PNG and SVG, and the paths on stdout with
    anchors of the page, each an id in it; no folder is an error.
    """
    run = write_run(tmp_path / "run", "hurts", full=True)
    answer = blb("report", run, "--plots", tmp_path / "plots")
    assert answer.exit_code == 0, answer.output
    page = (run / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    anchors = re.findall(r"^#(\S+)", answer.stdout, flags=re.MULTILINE)
    assert {"numbers", "examples", "broken", "tokens", "alternatives"} <= set(anchors)
    assert all(f'id="{anchor}"' in page for anchor in anchors)
    assert "\x1b" not in answer.stdout
    written = {path.name for path in (tmp_path / "plots").iterdir()}
    pictures = ("rivals", "pareto")
    assert written == {f"{name}.{kind}" for name in pictures for kind in ("png", "svg")}
    assert (tmp_path / "plots" / "pareto.png").read_bytes().startswith(b"\x89PNG")
    assert all(f"wrote {tmp_path / 'plots' / name}" in answer.stdout for name in written)
    with raises_naming(InputError, "nowhere", "bias.json"):
        write_report(tmp_path / "nowhere")
    with raises_naming(InputError, "--out"):
        write_report(run, tmp_path / "nowhere" / "page.html")


def test_a_variable_that_keeps_matplotlib_from_being_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reads some while it is imported; they are named."""
    run = write_run(tmp_path / "run", "hurts")

    def load(_: str) -> None:
        raise ValueError("Key backend: 'nonsense' is not a valid value for backend")

    monkeypatch.setattr("importlib.import_module", load)
    with raises_naming(InputError, "MPLBACKEND"):
        write_report(run)


# --- Of a run that mends decisions


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with one question."""
    folder = tmp_path_factory.mktemp("decisions")
    (folder / "team.json").write_text(json.dumps({"team": QUESTION}))
    data = write_rows(folder / "tickets.jsonl", rows_of(150))
    with DecidingServer(says) as server:
        done = fit(data, server, folder / "run")
    assert done.exit_code == 0, done.output
    return folder / "run"


def test_the_page_shows_what_mending_does(decided: Path, tmp_path: Path) -> None:
    """Both pictures with their words and numbers, what was tried, what else mends, and the rows
    whose decision changes; and no tokens, no divergence and no strength, which only a logit bias
    has.
    """
    answer = blb("report", decided, "--out", tmp_path / "page.html", "--plots", tmp_path / "plots")
    assert answer.exit_code == 0, answer.output
    written = {path.stem for path in (tmp_path / "plots").iterdir()}
    assert written == {"confusion", "reliability", "coverage"}
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    text = text_of(page)
    judged = read_run(decided).result
    assert judged is not None
    [question] = judged.decided
    assert "Accuracy (greedy) is better than without mending" in text
    assert "read by systemone, mended by the average of 5 ways, most of it " in text
    assert 'aria-label="Share of right decisions against the probability' in page
    assert 'aria-label="Share of wrong decisions against the share of answered rows' in page
    for row in question.tried:
        shares = f"{100 * row.weight:.1f} % {100 * row.accuracy:.1f} %"
        assert f"{row.mending} {shares} {row.log_loss:.3f}" in text
    assert "against temperature alone and the batch prior" in text
    assert f"{question.changed_rows} of {question.test_rows} test rows change" in text
    changed = question.changed[0]
    assert changed.place in text
    assert changed.state in text
    for group in question.reliability:
        assert f"{100 * group.confidence:.1f} % {100 * group.accuracy:.1f} %" in text

    for phrase in ("What the bias does to words", "How strong", "nats of KL", "biased token"):
        assert phrase not in text, phrase
    assert "completions with 0 tokens" not in text


def test_each_of_several_questions_has_its_part(tmp_path: Path) -> None:
    """Names of questions that are hostile stay text, and no element has the name of another."""
    hostile = "<b>danger</b>"
    data = write_two_questions(tmp_path, hostile)
    with DecidingServer(says_both) as server:
        done = fit(data, server, tmp_path / "run")
    assert done.exit_code == 0, done.output
    report = write_report(tmp_path / "run", None, tmp_path / "plots")
    page = report.page.read_text(encoding="utf-8")
    assert hostile not in page
    assert "accuracy of team" in text_of(page)
    ids = re.findall(r' id="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert {path.stem for path in report.plots} >= {"reliability", "reliability-2", "coverage-2"}


def test_a_run_without_its_result_still_says_what_it_is(decided: Path, tmp_path: Path) -> None:
    (tmp_path / "bias.json").write_bytes((decided / "bias.json").read_bytes())
    text = text_of(render(read_run(tmp_path)))
    assert "Report on decisions" in text
    assert "result.json is not in the folder" in text
