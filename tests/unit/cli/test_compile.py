"""``blb compile``: from what a fit left behind to a bias for another limit or provider, without any
request.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.store import RolloutStore
from tests.support.commands import asking, blb, options, refused
from tests.support.exact import ExactModel, ExactServer
from tests.support.questions import questions, write_rows


def compiled(*arguments: object) -> dict[str, Any]:
    """Run ``blb compile ... --json``: what it printed."""
    result = blb("compile", *arguments, "--json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ExactServer]]:
    """The folder of a fit of 30 tokens in at most five, and the server that it asked."""
    folder = tmp_path_factory.mktemp("fit")
    data = folder / "data.jsonl"
    write_rows(data, questions(8, 3, 4))
    with ExactServer(ExactModel(30, 6, end=True, prompts=4, sharpness=0.7)) as server:
        where = asking(server, out=folder, data=data, seed=1)
        task = options(reward="length", max_tokens=6, top_logprobs=8, l2=2, entries=5)
        drawn = options(samples_per_prompt=30, validation_samples=4, test_samples=4)
        result = blb("fit", *where, *task, *drawn, "--verbose")
        assert result.exit_code == 0, result.output
        (folder / "output.txt").write_text(result.stdout)
        yield folder, server


def test_a_fit_leaves_the_whole_learned_vector(fitted: tuple[Path, ExactServer]) -> None:
    """Before the compile, without a verdict, with what each token reads as; the output and the
    result name the file.
    """
    folder, server = fitted
    learned, sent = Bias.load(folder / "learned.json"), Bias.load(folder / "bias.json")
    assert len(sent.entries) <= 5 < len(learned.entries)
    assert (learned.compiled, learned.status) == (None, "UNVERIFIED")
    assert sent.verdict
    assert not [each for each in learned.findings if each.code == "test"]
    texts = {entry.id: entry.text for entry in learned.entries}
    assert texts == {token: server.texts[token] or texts[token] for token in texts}
    assert {entry.id: entry.text for entry in sent.entries}.items() <= texts.items()
    assert (learned.tokenizer, learned.settings) == (sent.tokenizer, sent.settings)
    result = json.loads((folder / "result.json").read_text())
    assert (result["uncompiled"], result["uncompiled_entries"]) == (
        str(folder / "learned.json"),
        len(learned.entries),
    )
    said = (folder / "output.txt").read_text()
    assert f"learned: {len(learned.entries)} values, in learned.json, for blb compile" in said


def test_it_asks_for_nothing_and_tells_what_was_lost(fitted: tuple[Path, ExactServer]) -> None:
    """The file keeps to the limits, and its record is what was printed; no request is sent."""
    folder, server = fitted
    before = len(server.calls)
    told = compiled(folder / "learned.json", "--provider", "vllm", "--entries", 3, "--integers")
    made = Bias.load(told["bias"])
    assert told["bias"] == str(folder / "learned-vllm-3-integers.json")
    assert len(server.calls) == before
    assert made.compiled is not None
    assert made.compiled.model_dump(mode="json") == {
        name: told[name] for name in made.compiled.model_dump()
    }
    assert 0 < len(made.entries) == told["entries"] <= 3
    assert all(value == int(value) for value in made.logit_bias.values())
    assert told["dropped"] == told["learned_entries"] - told["entries"]
    assert (made.provider, made.status) == ("vllm", "UNVERIFIED")
    assert told["completions"] > 8 * 30  # those of validation and test prompts count too


def test_everything_that_fits_is_the_learned_vector(fitted: tuple[Path, ExactServer]) -> None:
    """Without a limit nothing is lost, and the values are the learned ones to the last bit. A person
    reads the losses, the file, and the command that judges it, which is one.
    """
    folder, _ = fitted
    learned = folder / "learned.json"
    told = compiled(learned, "--out", folder / "all.json")
    assert Bias.load(folder / "all.json").logit_bias == Bias.load(learned).logit_bias
    assert (told["kept_share"], told["dropped"]) == (1, 0)
    result = blb("compile", learned, "--provider", "vllm", "--entries", 4)
    said = " ".join(result.stdout.split())
    assert "entries for vllm: values from -100 to 100" in said
    assert "UNVERIFIED" in said
    words = shlex.split(result.stdout.partition("\nnext ")[2].replace("\\\n", ""))
    judged = options(provider="vllm", model="exact", data="DATA.jsonl", reward="length")
    made = str(folder / "learned-vllm-4.json")
    assert words == ["blb", "eval", made, *judged, "--max-tokens", "6", "--save"]


def test_a_bias_that_was_compiled_before_says_so(fitted: tuple[Path, ExactServer]) -> None:
    """What is kept is a share of what the first compile left; the file with everything is named;
    more room is no error.
    """
    folder, _ = fitted
    said = " ".join(
        blb(
            "compile", folder / "bias.json", "--entries", 50, "--out", folder / "b50.json"
        ).stderr.split()
    )
    assert "compiled before, so what follows is a share of what that left" in said
    assert f"{folder / 'learned.json'} holds the whole learned vector" in said
    assert "it has fewer entries than the 50 that may be used" in said
    assert Bias.load(folder / "b50.json").logit_bias == Bias.load(folder / "bias.json").logit_bias


def test_errors_name_the_remedy(fitted: tuple[Path, ExactServer], tmp_path: Path) -> None:
    """Too many entries, no store, the wrong file to write, a provider that is no name, one of which
    too little is known.
    """
    folder, _ = fitted
    learned = folder / "learned.json"
    assert "1025 entries are wanted, vllm takes at most 1024; lower --entries" in refused(
        "compile", learned, "--provider", "vllm", "--entries", 1025
    )
    assert "no rollout store" in refused("compile", learned, "--store", tmp_path / "none.db")
    assert "BIAS itself" in refused("compile", learned, "--out", learned)
    store = (folder / "rollouts.db").read_bytes()
    assert "is the rollout store, which would be lost" in refused(
        "compile", learned, "--out", folder / "rollouts.db"
    )
    assert (folder / "rollouts.db").read_bytes() == store
    assert "there is no folder" in refused("compile", learned, "--out", tmp_path / "no" / "b.json")
    Bias.load(learned).replacing(provider="mine").save(tmp_path / "mine.json")
    said = refused("compile", tmp_path / "mine.json", "--store", folder / "rollouts.db")
    assert "for mine, which is no provider that comes with the package; give --provider" in said
    said = refused("compile", learned, "--provider", "lmstudio")
    assert "compiling needs to know bias of lmstudio" in said
    assert "blb doctor --provider lmstudio" in said
    assert "cannot be told from its name; give --tokenizer" in refused(
        "compile", learned, "--provider", "openai"
    )


def test_a_profile_of_ones_own(fitted: tuple[Path, ExactServer], tmp_path: Path) -> None:
    """The command that judges names its file; completions through it are left out, and said, where
    nobody tells their end token.
    """
    folder, server = fitted
    own, learned, store = tmp_path / "own.toml", tmp_path / "learned.json", tmp_path / "rollouts.db"
    own.write_text('extends = "llamacpp"\nname = "own"\n[bias]\nentries = 4\n')
    learned.write_bytes((folder / "learned.json").read_bytes())
    store.write_bytes((folder / "rollouts.db").read_bytes())
    told = compiled(learned, "--provider", own)
    words = shlex.split(told["judge"])
    assert words[2:5] == [told["bias"], "--provider", str(own)]
    words[words.index("DATA.jsonl")] = str(folder / "data.jsonl")
    judged = blb(
        *(*words[1:], "--base-url", server.base_url, "--test-samples", 2, "--store", store),
        *("--quiet", "--go-on"),
    )
    assert judged.exit_code == 0, judged.output
    assert Bias.load(told["bias"]).verdict
    after = compiled(learned, "--provider", "vllm", "--entries", 3)
    assert after["completions"] == told["completions"]
    assert [notice.partition(" lists the token")[0] for notice in after["remarks"]] == [
        "8 completions are left out: it is not known whether own"
    ]


def test_names_of_any_kind(fitted: tuple[Path, ExactServer], tmp_path: Path) -> None:
    """Backslashes stay in the command, and no file can send a terminal anything."""
    folder, _ = fitted
    learned, store = tmp_path / "learned.json", tmp_path / "rollouts.db"
    for model, reward, shown in (
        ("a$_{b", r"regex:\d", r"'regex:\d'"),
        ("\x1b[2Jm", "\x9b2J", "REWARD"),
    ):
        bias = Bias.load(folder / "learned.json").replacing(model=model, reward=reward)
        bias.save(learned)
        with (
            RolloutStore(folder / "rollouts.db", read_only=True) as old,
            RolloutStore(store) as new,
        ):
            for request, settings in old.requests().items():
                for sample, (key, prompt) in enumerate([*old.prompts(request).items()][:8]):
                    new.add(settings | {"model": model}, prompt, sample, *old.completions([key]))
        result = blb("compile", learned, "--entries", 3)
        assert result.exit_code == 0, result.output
        assert f"--reward {shown} " in re.sub(r"\\?\s+", " ", result.stdout)
        assert not {"\x1b", "\x9b"} & set(result.stdout)


def test_tokens_that_no_list_holds_are_told(
    fitted: tuple[Path, ExactServer], tmp_path: Path
) -> None:
    """Sent where there is room and said to be unknown, else dropped; where no other tokens are,
    nothing is known of a loss.
    """
    folder, _ = fitted
    where = ("--store", folder / "rollouts.db", "--out", tmp_path / "made.json")
    bias = Bias.load(folder / "bias.json")
    unseen = (Entry(id=900, bias=3.5), Entry(id=901, bias=-3.5))

    def said(entries: tuple[Entry, ...], *more: object) -> str:
        wide = bias.verified(()).replacing(vocab_size=None, compiled=None, entries=entries)
        wide.save(tmp_path / "wide.json")
        return " ".join(blb("compile", tmp_path / "wide.json", *where, *more).output.split())

    everything = said((*bias.entries, *unseen))
    assert "0 dropped 2 are sent whose effect is unknown" in everything
    assert "(2 of them on no logged prefix listed, or sampled)" in said(
        (*bias.entries, *unseen), "--entries", 2
    )
    own = tmp_path / "own.toml"
    rules = "[bias]\nhighest_id = 899\nfractions = false\n"
    own.write_text(f'extends = "llamacpp"\nname = "own"\n{rules}')
    refused_ids = said((*bias.entries, *unseen), "--provider", own)
    assert "(2 of them above the highest id that own takes" in refused_ids
    made = Bias.load(tmp_path / "made.json").logit_bias
    assert made
    assert all(value == int(value) for value in made.values())
    assert "nothing is known of what it does" in said(unseen)
    empty = said(())
    assert "nothing is known of what it does" in empty
    assert "0 of 0 entries for llamacpp: values" in empty
