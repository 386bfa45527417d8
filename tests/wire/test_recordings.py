"""Every recorded answer of a real server is read to the last number, or refused by name; what was
expected comes from the raw JSON.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiktoken
import yaml  # type: ignore[import-untyped]

from blackbox_lb.api.wire import parse_response
from blackbox_lb.errors import BlbError, CorruptResponse, NoLogprobs, ProfileError
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.types import Completion, Sampling
from blackbox_lb.vocabulary import load_vocabulary
from tests.support.errors import raises_naming

FOLDER = Path(
    os.environ.get("BLB_RECORDINGS") or Path(__file__).parents[2].parent / "shared" / "recordings"
)
"""The recordings are others' and not part of this repository."""
FILES = [
    path
    for path in sorted(FOLDER.rglob("*"))
    if path.suffix in (".json", ".yaml") and path.parent.name not in ("decisions", "errors")
]

CENSORED = -9999.0
UNNAMED = -2


@dataclass(frozen=True)
class Read:
    """An answer that is read. ``encoding``: tiktoken's name of the vocabulary, None where ids are
    given. ``k``: alternatives asked for. ``bounded``: positions without a logprob. ``whole``:
    whether every generated token is listed."""

    provider: str
    endpoint: Endpoint
    encoding: str | None
    k: int
    tokens: int
    bounded: int = 0
    whole: bool = True


@dataclass(frozen=True)
class Refused:
    """An answer that is refused, with which error and which facts in it."""

    provider: str
    endpoint: Endpoint
    error: type[BlbError]
    facts: tuple[str, ...]
    encoding: str | None = None


O200K, CL100K = "o200k_base", "cl100k_base"
UNASKED = Refused("azure", "chat", NoLogprobs, ("chat", "``top_logprobs=0``"), O200K)
TABLE: dict[str, list[Read | Refused]] = {
    "azure/chat_logprobs_k3_gpt35.json": [Read("azure-classic", "chat", CL100K, 3, 5)],
    "azure/openllmetry_test_chat_content_filtering.yaml": [
        Read("azure-classic", "chat", CL100K, 0, 0, whole=False),
        *[UNASKED] * 3,
    ],
    "azure/openllmetry_test_prompt_content_filtering.yaml": [UNASKED] * 3,
    "deepseek/rig_lp_blocking_low_stop_top_two.yaml": [
        Refused("openai", "chat", ProfileError, ("``tokenizer``",))
    ],
    "llamacpp/rig_logprobs.yaml": [Read("llamacpp", "chat", None, 2, 16)],
    "openai/completions_davinci002_logitbias_echo_k1.json": [
        Refused("openai", "completions", CorruptResponse, ("null", "token 0 of 59", "echo"), CL100K)
    ],
    "openai/dotnet_ChatTests_TokenLogProbabilities_True_.json": [
        Read("openai", "chat", O200K, 3, 844, bounded=1)
    ],
    "openai/lmeval_gpt3_echo_endoftext_k5.json": [
        Refused("openai", "completions", CorruptResponse, ("null", "token 0 of 18", "echo"), CL100K)
    ],
    # Its own vocabulary, r50k_base, comes with no package: the strings are read under another, to
    # ids of that one.
    "openai/lmeval_gpt3_greedy_stop_tokens_after_stop.json": [
        Read("openai", "completions", CL100K, 5, 8)
    ],
    "openai/logprobe_domain_creative.json": [Read("openai", "chat", O200K, 20, 150, bounded=1)],
    "openai/logprobe_lang_japanese.json": [Read("openai", "chat", O200K, 20, 100)],
    "openai/logprobe_temp_0.0.json": [Read("openai", "chat", O200K, 20, 100)],
    "openai/logprobe_temp_1.0.json": [Read("openai", "chat", O200K, 20, 100)],
    "openai/rig_lp_blocking_gpt_4o_mini_length_top_two.yaml": [Read("openai", "chat", O200K, 2, 1)],
    "openai/rig_lp_blocking_gpt_4o_mini_stop_top_two.yaml": [Read("openai", "chat", O200K, 2, 2)],
    "openrouter/rig_lp_blocking_gpt_4o_mini_stop_top_two.yaml": [
        Read("openai", "chat", O200K, 2, 2)
    ],
    "vllm/llamastack_compl_lp1_Qwen-Qwen3-0.6B_kNone_b_1.json": [
        Refused("vllm", "completions", CorruptResponse, ("'1'", "token_id:N"))
    ],
}
"""For each file that holds answers, what becomes of them, in their order. Token counts are those of
the raw files.
"""

pytestmark = pytest.mark.skipif(
    not FILES, reason=f"no recordings in {FOLDER}; BLB_RECORDINGS may name another folder"
)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_recorded_answers(path: Path, tiktoken_cache: Path) -> None:
    """Each answer in the file has its row in the table and is read, or refused, as that says."""
    text = path.read_text(encoding="utf-8")
    documents = [json.loads(text)] if path.suffix == ".json" else list(yaml.safe_load_all(text))
    found, rows = list(answers(documents)), TABLE.get(path.relative_to(FOLDER).as_posix(), [])
    assert len(found) == len(rows), "a file with answers needs a row for each"
    for answer, row in zip(found, rows, strict=True):
        vocabulary = None if row.encoding is None else load_vocabulary(row.encoding)
        profile, sampling = (
            load_profile(row.provider),
            Sampling(top_logprobs=row.k if isinstance(row, Read) else 20),
        )
        if isinstance(row, Refused):
            with raises_naming(row.error, row.provider, *row.facts):
                parse_response(profile, row.endpoint, answer, sampling, vocabulary)
        else:
            (completion,) = parse_response(profile, row.endpoint, answer, sampling, vocabulary)
            check(completion, row, answer)


def test_every_row_of_the_table_has_its_file() -> None:
    """None is left over."""
    assert set(TABLE) <= {path.relative_to(FOLDER).as_posix() for path in FILES}


def check(completion: Completion, row: Read, answer: dict[str, Any]) -> None:
    """Counts, ids, logprobs, bounds, alternatives and the finish reason, each from the raw
    answer.
    """
    (choice,) = answer["choices"]
    raw = list(positions(choice, row))
    assert len(raw) == len(completion.token_ids) == row.tokens
    assert completion.finish_reason == (choice.get("finish_reason") or "")
    assert completion.whole == row.whole
    assert completion.token_ids.tolist() == [token for token, _, _ in raw]
    bounded = [value == CENSORED for _, value, _ in raw]
    assert sum(bounded) == row.bounded
    assert (completion.bounded is None) == (not row.bounded)
    if completion.bounded is not None:
        assert completion.bounded.tolist() == bounded
    for t, (_, value, top) in enumerate(raw):
        expected = min(least for _, least in top) if bounded[t] else value
        assert completion.logprobs[t] == pytest.approx(expected, abs=1e-6, rel=1e-6)
        kept = completion.top_ids[t] != -1
        assert sorted(
            zip(
                completion.top_ids[t][kept].tolist(),
                rounded(completion.top_logprobs[t][kept]),
                strict=True,
            )
        ) == (sorted((token, *rounded([least])) for token, least in top))
        assert np.all(np.diff(completion.top_logprobs[t][kept]) <= 0)
    observed = [value for _, value, _ in raw if value != CENSORED]
    ours = [
        float(value)
        for value, hidden in zip(completion.logprobs, bounded, strict=True)
        if not hidden
    ]
    assert math.fsum(ours) == pytest.approx(math.fsum(observed), rel=1e-5, abs=1e-5)


def rounded(values: Iterable[float]) -> list[float]:
    """As single precision keeps them."""
    return [float(np.float32(value)) for value in values]


def positions(
    choice: dict[str, Any], row: Read
) -> Iterator[tuple[int, float, list[tuple[int, float]]]]:
    """(id, logprob, alternatives) of each position, by tiktoken and the field names of the provider
    alone.
    """
    lists = choice["logprobs"] or {}
    if "tokens" in lists:
        tops = lists.get("top_logprobs") or [{}] * len(lists["tokens"])
        for token, value, top in zip(lists["tokens"], lists["token_logprobs"], tops, strict=True):
            yield (
                by_text(token, row),
                value,
                [(by_text(other, row), least) for other, least in top.items()],
            )
    for entry in [*(lists.get("content") or []), *(lists.get("refusal") or [])]:
        top = [(by_entry(other, row), other["logprob"]) for other in entry.get("top_logprobs", [])]
        # Fireworks may put the sampled token in the place of the last, so that the last is not sure
        # to be the next most likely.
        yield (
            by_entry(entry, row),
            entry["logprob"],
            top[:-1] if row.provider == "fireworks" else top,
        )


def by_entry(entry: dict[str, Any], row: Read) -> int:
    """The id of an entry with bytes, or with a field for it."""
    if row.encoding is None:
        return int(entry["token_id" if row.provider == "fireworks" else "id"])
    return by_bytes(
        entry["token"].encode() if entry["bytes"] is None else bytes(entry["bytes"]), row.encoding
    )


def by_text(text: str, row: Read) -> int:
    """The id of a legacy string, which escapes what is no UTF-8."""
    raw = text.removeprefix("bytes:").encode().decode("unicode_escape").encode("latin-1")
    return by_bytes(raw if text.startswith("bytes:") else text.encode(), str(row.encoding))


def by_bytes(raw: bytes, encoding: str) -> int:
    """The id of tiktoken; a special token of another encoding has none."""
    try:
        return tiktoken.get_encoding(encoding).encode_single_token(raw)
    except KeyError:
        return UNNAMED


def answers(value: Any) -> Iterator[dict[str, Any]]:
    """Every answer inside a recording, however it was wrapped; streams and packed bodies are left
    out.
    """
    if isinstance(value, str) and value.startswith("{"):
        value = json.loads(value)
    if isinstance(value, dict) and "choices" in value:
        if value["choices"] and "delta" not in value["choices"][0]:
            yield value
    elif isinstance(value, dict):
        for name, part in value.items():
            if name != "request":
                yield from answers(part)
    elif isinstance(value, list):
        for part in value:
            yield from answers(part)
