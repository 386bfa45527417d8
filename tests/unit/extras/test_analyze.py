"""``blb analyze``: from a bias and its store to analysis.json, with no request more than is
needed.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.extras.analysis.biased_completions import instructed
from blackbox_lb.extras.analysis.document import Analysis
from blackbox_lb.store import RolloutStore
from blackbox_lb.types import Completion, Prompt
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
    assert (found.source, found.completions, found.left_out, found.unscored) == (
        "tail model",
        sum(drawn),
        0,
        0,
    )
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
    mean = sum(each.score * each.count for each in found.tokens) / found.positions
    assert found.usage.kl_per_token == pytest.approx(mean)
    end = next(each for each in found.tokens if each.id == V - 1)
    assert (end.surface, end.bytes, end.text) == ("special", "", f"<token {V - 1}>")
    assert (
        end.score == max(each.score for each in found.tokens) > 0
    )  # short completions were rewarded
    assert all("«" in context for each in found.tokens for context in each.contexts)
    assert found.provenance["remarks"][0].startswith(
        f"{sum(drawn)} completions with this bias at temperature 1, of"
    )


def test_what_an_evaluation_tried_beside_is_not_read(
    fitted: tuple[Path, ExactServer], tmp_path: Path
) -> None:
    """An instruction makes other prompts, and a lower limit other completions: the scores stay what
    they were.
    """
    folder, server = fitted
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    before = analyzed(tmp_path / "bias.json")
    where = asking(server, out=tmp_path, data=tmp_path / "data.jsonl")
    tried = options(baseline_prompt="Be brief.", baseline_max_tokens=3, test_samples=5, seed=9)
    small = options(reward="length", max_tokens=6, top_logprobs=TOP, deploy="temperature=1")
    result = blb("eval", tmp_path / "bias.json", *where, *small, *tried)
    assert result.exit_code == 0, result.output
    after = analyzed(tmp_path / "bias.json")
    assert after.completions > before.completions  # the same prompts without any of it count
    assert after.provenance["remarks"][1].startswith(f"{2 * 4 * 5} more are not read")


def test_an_instruction_is_what_several_prompts_have_more_than_others() -> None:
    """One prompt that goes on where another ends is another question."""
    texts = (
        "the capital of Guinea",
        "the capital of Guinea Bissau",
        "two and two",
        "lines\nof text",
    )
    plain = [Prompt.user(text) for text in texts]
    told = [
        Prompt.user(f"{texts[0]} Be brief."),
        Prompt.user(f"{texts[2]} Be brief."),
        Prompt.user(f"{texts[3]}\n\nBe brief."),
    ]
    assert set(instructed([*plain, *told])) == set(told)


def test_the_tables(fitted: tuple[Path, ExactServer]) -> None:
    """Bands, families and both lists are printed."""
    folder, _ = fitted
    result = blb("analyze", folder / "bias.json", "--top", 2)
    assert result.exit_code == 0, result.output
    for title in (
        "Intervention scores S by band",
        "Families of tokens by surface",
        "Promoted tokens, by S times use: ",
        "Suppressed tokens, by S times use: 2 of",
    ):
        assert title in result.stdout


def test_whole_distributions_agree_with_the_lists(fitted: tuple[Path, ExactServer]) -> None:
    """Asked at every position, the exact KL is that of the tail model within 3 errors; at some, the
    others have no score.
    """
    folder, server = fitted
    listed = analyzed(folder / "bias.json")
    asked = ("--base-url", server.base_url, "--full-vocab")
    some = analyzed(folder / "bias.json", *asked, 20)
    assert (some.source, some.positions, some.unscored) == ("exact", 20, listed.positions - 20)
    exact = analyzed(folder / "bias.json", *asked, 10_000)
    assert (exact.positions, exact.unscored) == (listed.positions, 0)
    assert exact.usage.se is not None
    assert abs(exact.usage.kl_per_token - listed.usage.kl_per_token) < 3 * exact.usage.se
    before = len(server.calls)
    again = analyzed(folder / "bias.json", *asked, 10_000)
    assert again.tokens == exact.tokens
    wholes = [body for path, body in server.calls[before:] if isinstance(body.get("prompt"), list)]
    assert len(wholes) <= 1  # the stored ones are not asked for again


def test_what_is_missing_is_drawn(fitted: tuple[Path, ExactServer], tmp_path: Path) -> None:
    """An empty store is refused with the remedy; with a task, biased and base completions of its
    test prompts are drawn.
    """
    folder, server = fitted
    store = tmp_path / "new.db"
    arguments = (
        folder / "bias.json",
        "--store",
        store,
        "--out",
        tmp_path,
        "--base-url",
        server.base_url,
    )
    assert f"no rollout store {store}" in refused("analyze", *arguments)
    task = options(data=folder / "data.jsonl", samples=6, max_tokens=6, top_logprobs=TOP)
    found = analyzed(*arguments, *task)
    assert (found.completions, found.source) == (4 * 6, "tail model")
    with RolloutStore(store) as kept:
        assert kept.size().completions == 2 * 4 * 6


def test_a_bias_that_nobody_sampled_is_refused(
    fitted: tuple[Path, ExactServer], tmp_path: Path
) -> None:
    """Another bias than the one that was drawn, an empty one, and folders that are not there."""
    folder, _ = fitted
    sentence = refused("analyze", folder / "learned.json")
    assert "with this bias at temperature 1 and with logprobs; give --task or --data" in sentence
    bias = Bias.load(folder / "bias.json")
    bias.replacing(entries=()).save(tmp_path / "empty.json")
    assert "no entries" in refused(
        "analyze", tmp_path / "empty.json", "--store", folder / "rollouts.db"
    )
    assert "there is no folder" in refused(
        "analyze", folder / "bias.json", "--out", tmp_path / "no"
    )
    own = tmp_path / "own.toml"
    own.write_text(
        'extends = "llamacpp"\nname = "llamacpp"\n[logprobs]\nmeaning = "unknown"\nend_token_listed'
        " = true"
    )
    assert "let blb doctor find out" in refused("analyze", folder / "bias.json", "--provider", own)


def stored(path: Path, provider: str, delta: np.ndarray[Any, Any], *, after: bool) -> None:
    """Completions of an exact model, with the bias and without, as a provider of this meaning lists
    them.
    """
    settings = {
        "provider": provider,
        "model": "m",
        "tokenizer": "t",
        "endpoint": "chat",
        "sampling": {"temperature": 1.0, "max_tokens": 3, "top_logprobs": V, "seed": None},
    }
    model = ExactModel(V, 3, seed=4)
    biased = ExactModel(V, 3, seed=4, unigram=delta) if after else model
    drawn = biased.rollouts(100, lambda *_: 0.0, 1, delta=None if after else delta)
    base = model.rollouts(100, lambda *_: 0.0, 2)
    with RolloutStore(path) as store:
        for rollouts, bias in (
            (drawn, sorted([n, float(value)] for n, value in enumerate(delta))),
            (base, []),
        ):
            for n in range(100):
                rows = slice(3 * n, 3 * n + 3)
                ids = rollouts.token_ids[rows]
                completion = Completion(
                    text="x",
                    finish_reason="length",
                    token_ids=ids,
                    logprobs=rollouts.logprobs[rows],
                    top_ids=rollouts.top_ids[rows],
                    top_logprobs=rollouts.top_logprobs[rows],
                    token_bytes={int(token): f" w{token}".encode() for token in ids},
                )
                store.add({**settings, "bias": bias}, Prompt.user("question"), n, completion)


def test_lists_after_the_bias_tell_the_same(tmp_path: Path) -> None:
    """SGLang's lists of the biased policy and vLLM's of the base, of the very same completions: the
    same scores.
    """
    delta = np.random.default_rng(3).normal(size=V)
    entries = tuple(Entry(id=n, bias=float(value), text=f" w{n}") for n, value in enumerate(delta))
    found = {}
    for provider, source in (("vllm", "tail model"), ("sglang", "logprobs after the bias")):
        folder = tmp_path / provider
        stored(folder / "rollouts.db", provider, delta, after=provider == "sglang")
        Bias(
            provider=provider,
            model="m",
            tokenizer="t",
            vocab_size=V,
            reward="length",
            estimator="projection",
            entries=entries,
        ).save(folder / "bias.json")
        found[provider] = analyzed(folder / "bias.json")
        assert found[provider].source == source
        assert found[provider].unvisited == V - len(found[provider].tokens)
        assert found[provider].delta[0].max == pytest.approx(delta.max() - delta.mean())
    one, other = found["vllm"].tokens, {each.id: each for each in found["sglang"].tokens}
    assert len(one) == len(other)
    for each in one:
        assert each.score == pytest.approx(other[each.id].score, abs=1e-5)
        assert (each.count, each.contexts) == (other[each.id].count, other[each.id].contexts)


def test_the_store_tells_what_was_asked(tmp_path: Path) -> None:
    """Key to prompt, the samples of a prompt together."""
    settings = {"provider": "vllm"}
    with RolloutStore(tmp_path / "s.db") as store:
        prompts = [Prompt.user("a"), Prompt.user("b")]
        keys = {
            store.add(settings, prompt, n, Completion.empty("stop")): prompt
            for n in (0, 1)
            for prompt in prompts
        }
        (request,) = store.requests()
        found = store.prompts(request)
        assert found == keys
        assert list(found.values()) in (
            [prompts[0]] * 2 + [prompts[1]] * 2,
            [prompts[1]] * 2 + [prompts[0]] * 2,
        )
