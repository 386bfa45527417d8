"""Commands that are printed to be copied: a shell reads back the very paths that they are about."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest

from blackbox_lb.store import RolloutStore
from tests.support.commands import asking, blb, options, refused
from tests.support.exact import ExactModel, ExactServer

NAME = 'Anna\'s $(touch PWN); b & `c` "d" * of the customer tickets of the third quarter'
"""A name that no shell leaves as it is, longer than a line holds beside a command."""
MODEL = ExactModel(4, 1, seed=3, prompts=512)
"""Of four labels, whose every probability is known."""


def row(number: int) -> dict[str, str]:
    """A question whose right answer is what the model says with 4 nats more on the last label."""
    prompt = f"question {number}"
    logits = MODEL.logprobs([], MODEL.prompt_of(prompt)) + np.array([0.0, 0.0, 0.0, 4.0])
    return {"prompt": prompt, "answer": "abcd"[int(logits.argmax())]}


ROWS = "".join(json.dumps(row(number)) + "\n" for number in range(60))


def printed_words(output: str) -> set[str]:
    """All words of the conclusion's commands, as a shell reads them: a line that ends in a
    backslash goes on, and two spaces part a command from its purpose.
    """
    words: set[str] = set()
    for line in output.replace("\\\n", " ").splitlines():
        for part in (line, line.partition("next ")[2]):
            if part.strip().startswith("blb "):
                words |= set(shlex.split(part))
    return words


def test_fit_and_eval_quote_their_next_commands(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder stands in every next command as one word, and a fit that was paid for ends well
    whatever its folder is called. A settings file that was found is found again.
    """
    monkeypatch.chdir(tmp_path)
    data = Path(f"{NAME}.jsonl")
    data.write_text(ROWS)
    Path("blb.toml").write_text('[defaults]\nreward = "accuracy"\n')
    shared = asking(server, data=data, max_tokens=1, top_logprobs=4)
    fitted = blb("fit", *shared)
    assert fitted.exit_code == 0, fitted.output
    assert {"eval", f"runs/{NAME}"} <= printed_words(fitted.stdout)
    assert "--config" not in printed_words(fitted.stdout)
    judged = blb("eval", f"runs/{NAME}/bias.json", *shared, "--deploy", "greedy")
    assert judged.exit_code == 0, judged.output
    assert f"runs/{NAME}" in printed_words(judged.stdout)


def test_next_commands_name_the_settings_file_again(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What only a named file may set is missing from a command that does not name it."""
    monkeypatch.chdir(tmp_path)
    Path("d.jsonl").write_text(ROWS)
    Path("my settings.toml").write_text(
        f'[fit]\nprovider = "llamacpp"\nbase_url = "{server.base_url}"\ndata = "d.jsonl"\n'
        'reward = "accuracy"\nmax_tokens = 1\ntop_logprobs = 4\n'
    )
    named = blb("--config", "my settings.toml", "fit", "--out", "named")
    assert named.exit_code == 0, named.output
    assert {"--config", "my settings.toml", "eval"} <= printed_words(named.stdout)


def test_remedies_quote_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A settings file elsewhere is named so that the next line finds it; the command that makes a
    file UTF-8 reads that file, and what saves the rest of a damaged store reads that store.
    """
    monkeypatch.chdir(tmp_path)
    chosen = options(provider="llamacpp", model="m", task="capitals", reward="contains")
    made = blb("init", "--yes", *chosen, "--out", f"{NAME}.toml")
    assert made.exit_code == 0, made.output
    command = made.stdout.partition("next: ")[2].strip()
    assert shlex.split(command) == ["blb", "--config", f"{NAME}.toml", "fit"]
    data = tmp_path / f"{NAME}.csv"
    data.write_bytes("prompt,answer\nWie hei\u00dft das?,x\n".encode("utf-16"))
    said = refused("fit", *options(provider="llamacpp", data=data, reward="contains"))
    assert shlex.quote(str(data)) in said
    store = tmp_path / f"{NAME}.db"
    with RolloutStore(store):
        pass
    content = bytearray(store.read_bytes())
    content[4096:8192] = bytes(4096)
    store.write_bytes(content)
    command = shlex.join(["blb", "store", "merge", str(store), "--out", "NEW"])
    assert command in refused("store", "check", store)
