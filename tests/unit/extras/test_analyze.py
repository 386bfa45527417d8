"""``blb analyze``: from a bias and its store to analysis.json, without a request; and surface
classes, by example.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.extras.analysis.document import Analysis
from blackbox_lb.extras.analysis.interpret import bands
from blackbox_lb.extras.analysis.token_classes import surface_class
from blackbox_lb.store import RolloutStore
from tests.support.commands import asking, blb, options, refused
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import questions, write_rows

V, TOP = 30, 8
MODEL = ExactModel(V, 6, end=True, prompts=4, sharpness=0.7)


def analyzed(*arguments: object) -> Analysis:
    """Run ``blb analyze ... --json``: what it printed, read back."""
    result = blb("analyze", *arguments, "--json", "--quiet")
    assert result.exit_code == 0, result.output
    return Analysis.model_validate_json(result.stdout)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ExactServer]]:
    """The folder of a small fit, with its data, and the server that it asked."""
    folder = tmp_path_factory.mktemp("fit")
    data = folder / "data.jsonl"
    write_rows(data, questions(8, 3, 4))
    with ExactServer(MODEL) as server:
        where = asking(server, out=folder, data=data, seed=1)
        task = options(reward="length", max_tokens=6, top_logprobs=TOP, l2=2, entries=8)
        drawn = options(samples_per_prompt=30, validation_samples=10, test_samples=10)
        result = blb("fit", *where, *task, *drawn, "--quiet")
        assert result.exit_code == 0, result.output
        yield folder, server


def test_it_reads_what_a_fit_left_and_asks_for_nothing(fitted: tuple[Path, ExactServer]) -> None:
    """Every completion with the bias at temperature 1 counts; the file is what was printed; the
    sums are those of the counts.
    """
    folder, server = fitted
    before = len(server.calls)
    found = analyzed(folder / "bias.json")
    assert len(server.calls) == before
    assert found == Analysis.model_validate_json((folder / "analysis.json").read_text())
    with RolloutStore(folder / "rollouts.db") as store:
        drawn = [
            len(store.keys(name))
            for name, settings in store.requests().items()
            if dict(settings["bias"]) == Bias.load(folder / "bias.json").logit_bias
            and settings["sampling"]["temperature"] == 1
        ]
    assert sum(drawn) >= 4 * 10  # of the test prompts at least
    assert (found.completions, found.left_out) == (sum(drawn), 0)
    assert 0 < found.unlisted < 0.5
    assert (
        found.positions
        == sum(each.count for each in found.tokens)
        == sum(row.count for row in found.families)
    )
    assert (
        sum(row.count for row in found.bands)
        == len(found.tokens)
        == sum(row.size for row in found.families)
    )
    assert found.unvisited == V - len(found.tokens)
    for row in found.families:
        sign = {"promoted": 1, "suppressed": -1, "unmoved": 0}[row.side]
        members = [
            each for each in found.tokens if each.family == row.name and np.sign(each.score) == sign
        ]
        assert row.mean_score == pytest.approx(np.mean([each.score for each in members]))
        assert (row.size, row.count) == (len(members), sum(each.count for each in members))
    promoted = [row.mean_score for row in found.families if row.side == "promoted"]
    assert promoted == sorted(promoted, reverse=True)
    mean = sum(each.score * each.count for each in found.tokens) / found.positions
    assert found.kl_per_token == pytest.approx(mean)
    end = next(each for each in found.tokens if each.id == V - 1)
    assert (end.family, end.bytes, end.text) == ("special", "", f"<token {V - 1}>")
    # Short completions were rewarded.
    assert end.score == max(each.score for each in found.tokens) > 0
    tables = blb("analyze", folder / "bias.json", "--top", 2).stdout
    for title in (
        "Tokens by score band",
        "Families of tokens, by what they look like",
        "Promoted tokens, by S times use: ",
        "Suppressed tokens, by S times use: 2 of",
    ):
        assert title in tables


def test_whole_lists_are_exact_and_read_alone(
    fitted: tuple[Path, ExactServer], tmp_path: Path
) -> None:
    """An evaluation with lists of the whole vocabulary leaves nothing to the tail model, and the KL
    by shorter lists is within 3 errors of it; the shorter ones are not mixed in.
    """
    folder, server = fitted
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    listed = analyzed(tmp_path / "bias.json")
    where = asking(server, out=tmp_path, data=tmp_path / "data.jsonl")
    drawn = options(reward="length", max_tokens=6, top_logprobs=V, test_samples=40, seed=9)
    result = blb(
        *("eval", tmp_path / "bias.json", *where, *drawn, "--deploy", "temperature=1", "--go-on")
    )
    assert result.exit_code == 0, result.output
    whole = analyzed(tmp_path / "bias.json")
    assert (whole.completions, whole.left_out) == (4 * 40, 0)
    assert whole.unlisted < 1e-6 < listed.unlisted
    assert whole.kl_se is not None
    assert listed.kl_se is not None
    apart = abs(whole.kl_per_token - listed.kl_per_token)
    assert apart < 3 * np.hypot(whole.kl_se, listed.kl_se)


def test_a_bias_that_nobody_sampled_is_refused(
    fitted: tuple[Path, ExactServer], tmp_path: Path
) -> None:
    """Another bias than the one that was drawn, an empty one, and folders that are not there."""
    folder, _ = fitted
    sentence = refused("analyze", folder / "learned.json")
    assert "blb eval draws some, with --deploy temperature=1" in sentence
    store = tmp_path / "new.db"
    assert f"no rollout store {store}" in refused("analyze", folder / "bias.json", "--store", store)
    bias = Bias.load(folder / "bias.json")
    bias.replacing(entries=()).save(tmp_path / "empty.json")
    assert "no entries" in refused(
        "analyze", tmp_path / "empty.json", "--store", folder / "rollouts.db"
    )
    assert "there is no folder" in refused(
        "analyze", folder / "bias.json", "--out", tmp_path / "no"
    )
    (tmp_path / "analysis.json").mkdir()
    assert "cannot write" in refused("analyze", folder / "bias.json", "--out", tmp_path)
    own = tmp_path / "own.toml"
    own.write_text(
        'extends = "llamacpp"\nname = "llamacpp"\n[logprobs]\nmeaning = "unknown"\nend_token_listed'
        " = true"
    )
    assert "let blb doctor find out" in refused("analyze", folder / "bias.json", "--provider", own)


def test_bands_are_the_papers() -> None:
    """Lower ends are included, 0 is in none, and every other score is in exactly one."""
    least = [1.0, 0.999, 0.1, 0.0999, 0.01, 0.0099, 0.0]
    scores = np.array([*least, -0.001, -0.0011, -0.01, -0.1, -0.11, -1.0, -1.01])
    assert [row.count for row in bands(scores)] == [1, 2, 2, 1, 1, 2, 1, 2, 1]


TABLE = {
    "special": ["<|im_end|>", "</s>", "<end_of_turn>", "[INST]"],
    "whitespace": [" ", "\n\n", "\t", "\u00a0"],
    "digits": ["7", " 42", "453", "٣"],
    "other script": [" мир", "中文", "α", " β", "한"],
    "LaTeX": ["\\frac", " $", "$$", "\\", " $\\"],
    "punctuation": [".", " ##", "](", " **", "…", "😀", "`\n"],
    "code": [".sqrt", "](http", "x_1", "_name", "3D", "</div", "e.g"],
    "word start": [" the", " We", " don't", "\nThe", " naïve"],
    "capitalised": ["The", "Final", "TH", "J"],
    "fragment": ["ing", "frac", "'s", "ß"],
}


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name, texts in TABLE.items() for text in texts]
)
def test_surface_classes(name: str, text: str) -> None:
    """Each text belongs to the class that its definition says."""
    assert surface_class(text.encode(), text) == name


def test_what_the_text_does_not_tell() -> None:
    """Half a character is known by its bytes, a special token that is written like a word by the
    vocabulary.
    """
    assert surface_class(b"\xe4\xb8", "\ufffd") == "part of a character"
    assert surface_class(None, "endoftext", special=True) == "special"
    assert surface_class(None, "", special=True) == "special"
    assert surface_class(None, "") == "not known"
    assert surface_class(None, " answer") == "word start"
