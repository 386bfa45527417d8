"""The report: what it says of each kind of run, what it names as missing, and what hostile text
cannot do to it.
"""

from __future__ import annotations

import html
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.bias.records import Verdict
from blackbox_lb.cli.echo import with_option_names
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.prediction import decisions_of
from blackbox_lb.extras.report import drawing
from blackbox_lb.extras.report.data import read_run
from blackbox_lb.extras.report.examples import compared
from blackbox_lb.extras.report.page import render, write_report
from blackbox_lb.extras.report.page_table import MOST_ROWS, token
from blackbox_lb.extras.report.page_text import tame
from blackbox_lb.extras.report.tables import entries_table
from blackbox_lb.extras.report.verdict_text import (
    headline,
    of_evaluation,
)
from blackbox_lb.jobs.evaluation.document import Answer, MovedToken
from blackbox_lb.types import Span
from tests.support.commands import blb, refused
from tests.support.errors import raises_naming
from tests.support.report_runs import (
    HOSTILE,
    Kind,
    bias_of,
    entries,
    evaluation,
    result,
    verdicts,
    write_run,
)


def text_of(page: str) -> str:
    """What a reader sees of the page, scripts and styles aside, in one line."""
    bare = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", bare)).split())


HELPS = Verdict(
    setting="greedy", metric="accuracy", base=0.4, biased=0.5, difference=0.1, low=0.05, high=0.15, p=0.001,
    n_prompts=73, n_base=73, n_biased=73, better="higher", verdict="HELPS",
)  # fmt: skip


def row(**fields: Any) -> Verdict:
    """An accuracy row that helps, with some fields changed."""
    return HELPS.model_copy(update=fields)


@pytest.mark.parametrize(
    ("kind", "sentence"),
    [
        (
            "helps",
            "Correct x T/len (temperature 1) is better than without the bias; correct x T/len"
            " (greedy) is not shown to be better than without the bias.",
        ),
        ("nothing", "The bias changes nothing."),
        ("hurts", "Accuracy (temperature 1, greedy) is worse than without the bias."),
    ],
)
def test_the_verdict_is_one_sentence(kind: Kind, sentence: str) -> None:
    """Which setting it helps, hurts or leaves as it is reads the same way for good and bad news."""
    assert headline(verdicts(kind)) == sentence
    assert headline(()) == "Nobody has checked yet whether this bias helps."


def test_a_better_reward_does_not_hide_a_worse_metric() -> None:
    """Where the reward helps and accuracy hurts, the headline says both; where only the length
    helps, it says only.
    """
    worse = [row(metric="reward"), row(difference=-0.1, low=-0.2, high=-0.05, verdict="HURTS")]
    assert headline(worse) == "Reward (greedy) is better than without the bias; worse: accuracy."
    shorter = [row(verdict="NO EVIDENCE", low=-0.1), row(metric="tokens", verdict="HELPS")]
    assert headline(shorter).endswith("without the bias; only better: tokens.")


def test_one_sentence_reconciles_the_fit_and_a_later_evaluation(tmp_path: Path) -> None:
    """Where the evaluation's verdict on the same comparison is another one, both stand in a
    sentence with their p-values; whom the bias loses to stands beside it.
    """
    run = write_run(tmp_path / "run", "hurts", full=True)
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
        documents = read_run(run)
        sentences.append(of_evaluation(documents))
    agreeing, differing = sentences
    assert agreeing == ["bias loses to T = 0.5"]
    assert differing[1:] == agreeing
    assert "p 0.070" in differing[0]
    assert "p <0.001" in differing[0] or "p 0.000" in differing[0]
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


def test_moved_tokens_stand_in_the_text() -> None:
    """Each is a stretch of its own with its nats, without the white space that it begins with; a
    place of the reward may begin inside a token; differences stay marked.
    """
    moved = (MovedToken(start=2, end=7, bias=2.5), MovedToken(start=7, end=8, bias=-1.25))
    _, side = compared(
        [
            answer("a", "In Lima."),
            answer("b", "In Rome.", spans=(Span(4, 7, 1.0),), moved=moved),
        ]
    )
    tokens = [
        (segment.text, segment.bias) for passage in side.passages for segment in passage.segments
    ]
    assert tokens == [("In ", None), ("R", 2.5), ("ome", 2.5), (".", -1.25)]
    assert [segment.shown for segment in side.passages[2].segments] == ["−1.25 nats"]
    assert side.passages[1].segments[0].direction == "up"
    assert side.passages[1].segments[0].differs
    assert side.moves == "tokens moved: 1 up, 1 down"


def test_examples_are_the_answers_of_the_fit_or_of_a_newer_evaluation(tmp_path: Path) -> None:
    """An evaluation that is older than the bias may be of another one, so the fit's own answers are
    shown; without both nothing is, and the page says so.
    """
    run = write_run(tmp_path / "run", "hurts")
    assert len(read_run(run).examples) == 6
    assert "6 of the 73" in read_run(run).examples_from
    (run / "evaluation.json").write_text(json.dumps(evaluation()))
    assert read_run(run).examples[0].sides[0].answer.policy == "without the bias"
    bias_of("hurts", created=datetime(2020, 1, 1, tzinfo=UTC)).save(run / "bias.json")
    assert read_run(run).examples[0].sides[0].answer.policy == "base"
    bare = read_run(write_run(tmp_path / "bare", "helps"))
    assert bare.examples == ()
    assert "result.json" in text_of(render(bare))


def test_a_whole_vocabulary_is_cut_and_counted() -> None:
    """Beyond MOST_ROWS tokens the strongest stay, and the table says how many are left out and
    where they are.
    """
    table = entries_table(bias_of("helps", MOST_ROWS + 7))
    assert (len(table.rows), table.left_out, table.where) == (MOST_ROWS, 7, "bias.json")
    sizes = [abs(float(cells[2].value or 0)) for cells in table.rows]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) == max(abs(entry.bias) for entry in entries(MOST_ROWS + 7))
    assert token(" a b\n ").text == "␣a b⏎␣"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("result.json", "{", "not JSON"),
        ("result.json", '{"validation": {"tried": [{}]}}', "write it again with blb fit"),
        ("evaluation.json", "{}", "write it again with blb eval"),
        ("analysis.json", "[]", "write it again with blb analyze"),
    ],
)
def test_damaged_documents_are_named(tmp_path: Path, name: str, content: str, said: str) -> None:
    """The command ends with 2 and one sentence: the file, what is wrong, what to do."""
    run = write_run(tmp_path / "run", "helps")
    (run / name).write_text(content)
    sentence = refused("report", run)
    assert said in sentence
    assert name in sentence


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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It reads some while it is imported; they are named."""

    def load(_: str) -> None:
        raise ValueError("Key backend: 'nonsense' is not a valid value for backend")

    monkeypatch.setattr("importlib.import_module", load)
    with raises_naming(InputError, "MPLBACKEND"):
        drawing.empty_figure()
