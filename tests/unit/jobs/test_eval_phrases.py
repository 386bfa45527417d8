"""``blb eval`` with phrases: base, vector, phrases, both and an instruction, and what their texts
are like.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.phrases import PhraseList
from blackbox_lb.bias.records import Entry
from blackbox_lb.jobs.evaluation.document import Evaluation, TextFigure
from blackbox_lb.jobs.evaluation.texts import TextReader, text_figures
from blackbox_lb.types import Completion
from tests.support.biases import exact_bias
from tests.support.commands import asking, blb, options, refusal
from tests.support.errors import names
from tests.support.exact import ExactModel, ExactServer
from tests.support.printed import ended_well, printed
from tests.support.questions import write_rows
from tests.support.stored import token_completion

MODEL = ExactModel(5, 8, prompts=2, sharpness=0.5, seed=2)
"""Words " a" to " e", eight to a text."""
PHRASES = ("a b", "c d", "e a")
PROMPTS = 12


def bias_file(server: ExactServer, path: Path, phrases: tuple[str, ...] = PHRASES) -> Path:
    """A vector that moves " e" down, with phrases."""
    path.parent.mkdir(exist_ok=True)
    down = Entry(id=4, text=" e", bias=-1.0)
    exact_bias(server, down, reward="avoid", phrases=phrases).save(path)
    return path


def run_eval(server: ExactServer, folder: Path, *more: object, reward: str = "") -> Result:
    """``blb eval`` of texts of eight words."""
    data = folder / "test.jsonl"
    write_rows(data, [{"prompt": f"question {n}", "split": "test"} for n in range(PROMPTS)])
    reward = reward or f"avoid:{','.join(PHRASES)}"
    where = asking(server, data=data, out=folder / "run", reward=reward, seed=1)
    drawn = options(max_tokens=8, top_logprobs=5, deploy="temperature=1", test_samples=4)
    return blb("eval", *where, *drawn, "--go-on", *more)


def found(result: Result) -> Evaluation:
    """The document that ``--json`` printed."""
    return Evaluation.model_validate(printed(result))


def value(figure: TextFigure | None) -> float:
    """The mean of a figure."""
    assert figure is not None
    return figure.mean


def test_vector_phrases_both_and_an_instruction_stand_side_by_side(
    server: ExactServer, tmp_path: Path
) -> None:
    """Without phrases no text has a hit; tokens are thrown away there and nowhere else; the hits
    are the reward; the logprob of the base's texts is the model's own. The verdict that is saved is that of the file,
    not of its parts. A second run draws nothing.
    """
    both = bias_file(server, tmp_path / "both" / "bias.json")
    words = (both, "--parts", "--rival", "prompt:Be kind.", "--save", "--json")
    evaluation = found(run_eval(server, tmp_path, *words))
    of_file = [
        row for row in evaluation.comparisons if (row.against, row.policy) == ("base", "both")
    ]
    assert [row.biased for row in Bias.load(both).verdict] == [row.biased for row in of_file]
    rows = {row.name: row for row in evaluation.policies}
    instruction = 'prompt + "Be kind."'
    assert list(rows) == [
        *("base", "both", "both vector", "both phrases", instruction),
        f"{instruction} and both",
    ]
    texts = {name: row.texts for name, row in rows.items()}
    for name, row in rows.items():
        figures = texts[name]
        assert figures is not None
        keeps_out = name in ("both", "both phrases", f"{instruction} and both")
        assert row.phrases == (3 if keeps_out else 0)
        assert value(figures.hits) == pytest.approx(-row.metrics[evaluation.label].mean, abs=1e-9)
        assert (value(figures.hits) == 0.0) == keeps_out
        assert (value(figures.tokens) > 1.0) == keeps_out
        assert value(figures.words) == 8.0
        assert (figures.logprob is None) == (instruction in name)
        assert figures.hits is not None
        assert (figures.hits.low is None) == (name == "base")
    assert (rows["both vector"].entries, rows["both phrases"].entries) == (1, 0)
    entropy = -np.mean(
        [
            float((np.exp(logprobs) * logprobs).sum())
            for logprobs in (MODEL.logprobs(prompt=0), MODEL.logprobs(prompt=1))
        ]
    )
    assert texts["base"] is not None
    assert abs(value(texts["base"].logprob) + entropy) < 0.4
    asked = len(server.completions)
    again = found(run_eval(server, tmp_path, *words))
    assert again.policies == evaluation.policies
    assert len(server.completions) == asked


def test_a_rival_is_a_list_alone_and_beside_a_bias(server: ExactServer, tmp_path: Path) -> None:
    """Beside a bias that keeps others out, both are kept out. Without ``avoid`` the hits are those
    of all lists.
    """
    both = bias_file(server, tmp_path / "both" / "bias.json", phrases=PHRASES[:1])
    (tmp_path / "list.txt").write_text("c d\ne a\t2\n")
    rival = ("--rival", f"phrases:{tmp_path / 'list.txt'}")
    evaluation = found(run_eval(server, tmp_path, both, *rival, "--json", reward="length"))
    rows = {row.name: row for row in evaluation.policies}
    assert list(rows) == ["base", "both", "phrases", "phrases and both"]
    assert [row.phrases for row in rows.values()] == [0, 1, 2, 3]
    hits = {name: value(row.texts.hits) for name, row in rows.items() if row.texts is not None}
    assert hits["base"] > hits["both"] > hits["phrases and both"] == 0.0
    assert hits["base"] > hits["phrases"] > 0.0
    compared = [(row.policy, row.against) for row in evaluation.comparisons]
    assert ("phrases and both", "phrases") in compared


def test_the_texts_stand_in_a_table_and_in_the_page(server: ExactServer, tmp_path: Path) -> None:
    """Where phrases are concerned, and nowhere else."""
    both = bias_file(server, tmp_path / "both" / "bias.json")
    result = ended_well(run_eval(server, tmp_path, both))
    assert names(result.stdout, "The texts: means", "hits for 100 words", "repeated 3-grams")
    pytest.importorskip("jinja2")
    shutil.copy(both, tmp_path / "run" / "bias.json")
    ended_well(blb("report", tmp_path / "run"))
    html = (tmp_path / "run" / "report.html").read_text()
    assert "logprob a token" in html
    assert "3 phrases kept out" in html
    vector = bias_file(server, tmp_path / "vector" / "bias.json", phrases=())
    plain = run_eval(server, vector.parent, vector, "--json", reward="length")
    assert all(row.texts is None for row in found(plain).policies)
    shown = run_eval(server, vector.parent, vector, reward="length")
    assert "The texts: means" not in shown.stdout


def test_what_cannot_be_judged_is_refused_before_a_request(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that continues no token ids, by name and with those that do, also for a bias file
    that holds phrases; parts of a bias that has none; a list that cannot be read.
    """
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    both = bias_file(server, tmp_path / "both" / "bias.json")
    vector = bias_file(server, tmp_path / "vector" / "bias.json", phrases=())
    openai = ("--provider", "openai", "--model", "gpt-4o-mini")
    asked = len(server.completions)
    for words, facts in (
        (("--rival", "phrases:lamp", *openai), ("openai", "vllm", "llamacpp", "local")),
        ((both, *openai), ("openai", "vllm", "llamacpp", "local")),
        ((vector, "--parts"), ("--parts",)),
        ((both, "--rival", "phrases:none.txt"), ("none.txt",)),
        ((both, "--rival", "phrases"), ("phrases", "FILE")),
        (
            (both, "--rival", "phrases:a", "--rival", "phrases:b"),
            ("phrases", "one list of phrases"),
        ),
    ):
        assert names(refusal(run_eval(server, tmp_path, *words)), *facts)
    assert len(server.completions) == asked


def completion(text: str, *logprobs: float, generated: int | None = None) -> Completion:
    """A completion with a token for each logprob."""
    return token_completion(text, range(len(logprobs)), logprobs, generated)


def test_figures_by_eye() -> None:
    """Means over prompts; drawn over delivered; what is not known is left out, and a difference is
    that of prompts which tell both. The bound of a token that has no logprob of its own would make
    a text likelier than it is.
    """
    lamps = PhraseList.of_entries(["lamp\t2"])
    base = TextReader(lamps, steps_back=False, tells_logprobs=True)
    for one in (completion("a lamp", -1.0, -3.0, generated=3), completion("A b c, a B c")):
        base.read([((one,), one)])
    policy = TextReader(lamps, steps_back=True, tells_logprobs=True)
    for one in (completion("a lad", -2.0, -4.0, generated=5), completion("a b", -1.0, generated=1)):
        policy.read([((one,), one)])
    of_base = text_figures(base.values(), None)
    assert (value(of_base.words), value(of_base.hits)) == (4.0, 50.0)
    assert value(of_base.repeated) == 0.125  # a quarter of the 3-grams of one of two texts
    assert (value(of_base.tokens), value(of_base.logprob)) == (1.0, -2.0)
    figures = text_figures(policy.values(), base.values())
    assert (value(figures.hits), value(figures.tokens)) == (0.0, 1.75)
    assert figures.words is not None
    assert figures.words.difference == -2.0
    assert figures.logprob is not None
    assert (figures.logprob.mean, figures.logprob.difference) == (-2.0, -1.0)
    bounded = TextReader(None, steps_back=False, tells_logprobs=True)
    one = replace(completion("a b", -1.0, 0.0), bounded=np.array([False, True]))
    bounded.read([((one,), one)])
    assert value(text_figures(bounded.values(), None).logprob) == -1.0
