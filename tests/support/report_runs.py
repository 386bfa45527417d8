"""RunDocuments folders for the tests of ``blb report``: written by hand, with every document or with few,
for each verdict.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Literal

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Compiled, Entry, SamplingRecord, Verdict
from blackbox_lb.records import Censoring, Finding, Learned

HOSTILE = (
    '</script><script>document.title="pwned"</script><img src=x'
    ' onerror="alert(1)">\x1b[2J\u202eevil\u202c\x00'
)
"""What a model or a data file might say: HTML, a control sequence, bidirectional overrides, a NUL.
"""
Kind = Literal["helps", "nothing", "hurts", "mixed"]
Verdicts = list[tuple[str, str, float, float, float, float, float, str, str]]
ROWS: dict[str, Verdicts] = {
    "helps": [
        ("temperature 1", "correct x T/len", 0.47, 1.09, 0.36, 0.92, 0.0014, "higher", "HELPS"),
        ("temperature 1", "accuracy", 0.192, 0.251, 0.011, 0.112, 0.047, "higher", "HELPS"),
        ("temperature 1", "tokens", 33.8, 18.0, -17.7, -14.0, 0.0014, "lower", "HELPS"),
        ("greedy", "correct x T/len", 2.12, 2.35, -0.06, 0.55, 0.248, "higher", "NO EVIDENCE"),
        ("greedy", "accuracy", 0.452, 0.452, -0.068, 0.068, 1.0, "higher", "NO EVIDENCE"),
        ("greedy", "tokens", 15.8, 10.9, -7.4, -2.6, 0.0014, "lower", "HELPS"),
    ],
    "nothing": [
        ("temperature 1", "accuracy", 0.4, 0.4, 0.0, 0.0, 1.0, "higher", "NO EVIDENCE"),
        ("temperature 1", "tokens", 30.0, 30.0, 0.0, 0.0, 1.0, "lower", "NO EVIDENCE"),
    ],
    "hurts": [
        ("temperature 1", "accuracy", 0.61, 0.44, -0.23, -0.11, 0.0004, "higher", "HURTS"),
        ("temperature 1", "tokens", 120.0, 61.0, -66.0, -52.0, 0.0004, "lower", "HELPS"),
        ("greedy", "accuracy", 0.7, 0.52, -0.25, -0.1, 0.0004, "higher", "HURTS"),
        ("greedy", "tokens", 110.0, 60.0, -57.0, -43.0, 0.0004, "lower", "HELPS"),
    ],
}
PROVENANCE = {
    "command": "blb fit --provider vllm --task capitals --reward correct-and-short",
    "date": "2026-11-21T20:00:00+00:00",
    "python": "3.11.9",
    "machine": "Linux x86_64",
    "versions": {"blackbox-lb": "0.1.0", "numpy": "2.4.6"},
    "remarks": [
        "off-policy, from 144 base completions: 2 of 6 candidates are dropped",
        "chosen: projection (tau 0.5)",
    ],
}


def verdicts(kind: Kind) -> tuple[Verdict, ...]:
    """The verdict of a run of this kind, 73 prompts a row."""
    return tuple(
        Verdict(
            setting=setting, metric=metric, base=base, biased=biased, difference=biased - base, low=low, high=high, p=p,
            n_prompts=73, n_base=438, n_biased=438, better=better, verdict=word,
        )
        for setting, metric, base, biased, low, high, p, better, word in ROWS[kind]
    )  # fmt: skip


def entries(n: int) -> tuple[Entry, ...]:
    """Tokens with readable texts, the strongest first, half of them promoted."""
    return tuple(
        Entry(
            id=i,
            text=f" word{i}" if i % 3 else f"part{i}",
            bias=(-1.0) ** i * 3 * math.exp(-i / max(n / 4, 1)),
            error=0.1 + i / 1000,
            seen=7 * i % 91,
        )
        for i in range(n)
    )


def bias_of(kind: Kind | None, n: int = 300, **fields: Any) -> Bias:
    """A bias of this verdict, None for none."""
    known: dict[str, Any] = {
        "provider": "vllm", "model": "SmolLM2-135M-Instruct", "tokenizer": "sha256:abc", "vocab_size": 49_152,
        "task": "capitals", "reward": "correct-and-short", "estimator": "projection", "settings": {"tau": 0.5, "l2": 2.5},
        "data_hash": "c9" * 32, "rollouts": 766, "tokens": 26_641,
        "sampling": SamplingRecord(max_tokens=48, top_logprobs=20, endpoint="chat"),
        "censoring": Censoring(positions=26_641, outside=3_652, bounded=0, mass=0.137, unobserved=None),
        "compiled": Compiled(
            entries_limit=300, kl_lost_nats_per_token=0.00129, kept_share=0.979, clipped=1, rounded=2, dropped=8_484,
        ),
        "learned": Learned(sampled_fraction=0.092, sigma=0.055, low=-1.3, high=2.97, selected_fraction=0.18, reliability=0.84),
        "findings": (
            Finding(code="test", word="PASS", sentence="it was tested"),
            Finding(code="weights", word="INCONCLUSIVE", sentence="the reward weights count as 86", remedy="collect more"),
            Finding(
                code="context", word="FAIL", sentence="the correction differs between prompts", remedy="split the task"
            ),
        ),
        "verdict": () if kind is None else verdicts(kind),
        "entries": entries(n),
    }  # fmt: skip
    return Bias(**{**known, **fields})


def answers() -> dict[str, Any]:
    """Six test prompts with both answers: three broken, one mended, two the same; a token moved up
    and one moved down in each.
    """
    moved = [{"start": 3, "end": 9, "bias": 2.5}, {"start": 9, "end": 11, "bias": -1.25}]
    rewards = ((1, 0), (0, 1), (1, 0), (1, 1), (1, 0), (0, 0))
    shown = [
        {
            "id": f"country-{number}", "prompt": "What is the capital of France?", "answers": ["Paris"],
            "completions": [
                {"policy": policy, "text": text, "tokens": 3, "correct": bool(reward), "reward": reward,
                 "finish_reason": "stop", "moved": moved}
                for policy, text, reward in (
                    ("without the bias", "It Paris is", pair[0]), ("with the bias", "In Paris it", pair[1]),
                )
            ],
        }
        for number, pair in enumerate(rewards)
    ]  # fmt: skip
    return {"setting": "greedy", "prompts": 73, "shown": shown}


def result(kind: Kind) -> dict[str, Any]:
    """``result.json`` as the current version writes it."""
    taus = (0.1, 0.2, 0.5, 1.0, 2.0)
    sign = -1 if kind == "hurts" else 0 if kind == "nothing" else 1
    tried = [
        {
            "estimator": estimator,
            "settings": {"tau": tau, "l2": 2.5},
            "entries": 300,
            "reward": 0.48 + sign * 0.5 / (1 + tau) + 0.1 * number,
            "tokens": 33.8 - 16 / (1 + tau),
            "accuracy": 0.2 + sign * 0.06 / (1 + tau) - 0.01 * number,
            "samples": 6,
            "status": "chosen" if (tau, number) == (0.5, 0) else "after 6 samples a prompt",
        }
        for number, estimator in enumerate(("projection", "ips"))
        for tau in taus
    ]
    return {
        "status": "HELPS", "estimator": "projection", "chosen": {"tau": 0.5, "l2": 2.5}, "entries": 300, "answers": answers() if kind == "hurts" else None, "kl_nats_per_completion": 1.29, "kl_missing": None, "kl_whole": True, "uncompiled_entries": 8_784,
        "validation": {"base": {"reward": 0.48, "accuracy": 0.2, "tokens": 33.8}, "tried": tried},
        "training": {"rollouts": 766, "tokens": 26_641, "incomplete": 34, "filtered": 1},
        "usage": {"completions": 1_800, "prompt_tokens": 54_000, "completion_tokens": 61_000},
        "provenance": {**PROVENANCE},
    }  # fmt: skip


def evaluation() -> dict[str, Any]:
    """``evaluation.json``: a bias beside an instruction and a lower temperature, where the
    temperature wins.
    """
    arms: list[tuple[str, str | None, str, float, str | None, float, float]] = [
        ("base", None, "temperature 1", 1.0, None, 0.345, 35.6),
        ("bias", "bias", "temperature 1", 1.0, None, 0.427, 25.7),
        ("instruction", None, "temperature 1", 1.0, "Answer in one short sentence.", 0.353, 23.0),
        (
            "instruction and bias",
            "bias",
            "temperature 1",
            1.0,
            "Answer in one short sentence.",
            0.422,
            18.5,
        ),
        ("T = 0.5", None, "temperature 1", 0.5, None, 0.642, 19.7),
    ]
    policies = [
        {
            "name": name, "bias": bias, "entries": 300 if bias else 0, "setting": setting, "temperature": temperature,
            "max_tokens": 48, "instruction": instruction, "prompts": 58, "completions": 232, "left_out": 1,
            "metrics": {
                "correct x T/len": {"mean": 48 * right / tokens, "low": 40 * right / tokens, "high": 56 * right / tokens},
                "accuracy": {"mean": right, "low": right - 0.06, "high": right + 0.06},
                "tokens": {"mean": tokens, "low": tokens - 2, "high": tokens + 2},
            },
            "prompt_tokens": 30.0 if instruction else 23.0, "completion_tokens": tokens, "cost": 0.01 * tokens,
        }
        for name, bias, setting, temperature, instruction, right, tokens in arms
    ]  # fmt: skip
    comparisons = [
        {
            "against": "base", "policy": name, "setting": setting, "metric": metric, "better": better,
            "base": at,
            "biased": to, "n_base": 232, "n_biased": 232, "difference": to - at, "low": to - at - width, "high": to - at + width,
            "percentile_low": to - at - 0.9 * width,
            "percentile_high": to - at + 0.9 * width, "p": 0.01, "p_sign": 0.02, "sd": 0.4, "n_prompts": 58, "needed": 40,
            "verdict": "HELPS",
        }
        for name, _, setting, _, _, right, tokens in arms[1:]
        for metric, better, at, to, width in (
            ("accuracy", "higher", 0.345, right, 0.05), ("tokens", "lower", 35.6, tokens, 2.0),
        )
    ]  # fmt: skip
    texts = (
        "The capital of France is Paris, a city on the river Seine.",
        "The capital of France is Paris.",
        "Paris.",
    )
    examples = [
        {
            "id": f"country-{n}", "prompt": "What is the capital of France?" if n else f"What? {HOSTILE}",
            "answers": ["Paris"],
            "completions": [
                {"policy": name, "text": text if n else text + HOSTILE, "tokens": tokens, "correct": right, "reward": 1.5,
                 "finish_reason": reason}
                for name, text, tokens, right, reason in (
                    ("base", texts[0], 48, True, "length"), ("bias", texts[1], 8, True, "stop"),
                    ("other bias", texts[2], 2, False, "stop"),
                )
            ],
        }
        for n in range(6)
    ]  # fmt: skip
    return {
        "provider": "vllm", "model": "SmolLM2-135M-Instruct", "task": "capitals", "reward": "correct-and-short",
        "label": "correct x T/len", "policies": policies, "comparisons": comparisons,
        "examples": examples, "provenance": {**PROVENANCE, "command": "blb eval runs/capitals/bias.json"},
    }  # fmt: skip


def analysis(n: int = 1_200) -> dict[str, Any]:
    """``analysis.json`` with ``n`` generated tokens."""
    tokens = [
        {
            "id": i, "text": f" tok{i}" if i else HOSTILE, "bytes": "20", "bias": 0.5,
            "score": math.sin(i) * 2 * math.exp(-i / 300),
            "se": None if i % 7 == 0 else 0.1, "count": 1 + i % 40,
            "family": ("word start", "punctuation", "digits")[i % 3],
        }
        for i in range(n)
    ]  # fmt: skip
    return {
        "provider": "vllm", "model": "SmolLM2-135M-Instruct",
        "completions": 438, "left_out": 2, "positions": 7_884, "unlisted": 0.031, "unvisited": 47_000,
        "kl_per_token": 0.07, "kl_se": 0.004, "promoted_share": 0.41,
        "bands": [
            {"low": None, "high": -1.0, "label": "S < -1", "count": 12, "meaning": "strongly suppressed"},
            {"low": 1.0, "high": None, "label": "S >= 1", "count": 9, "meaning": "strongly promoted"},
        ],
        "families": [
            {"name": "digits", "side": "promoted", "size": 3, "count": 40, "mean_score": 0.4, "examples": ["1", " 2", "\n"]},
        ],
        "tokens": tokens, "summary": ["Most of the shift is on the end token."],
        "provenance": {**PROVENANCE, "command": "blb analyze runs/capitals/bias.json", "remarks": []},
    }  # fmt: skip


def write_run(folder: Path, kind: Kind, *, full: bool = False, **fields: Any) -> Path:
    """A folder with bias.json and result.json, and with every other document where it is
    ``full``.
    """
    folder.mkdir()
    bias_of(kind, **fields).save(folder / "bias.json")
    documents = {"result": result(kind)}
    if full:
        bias_of(None, 2_400, compiled=None).save(folder / "learned.json")
        documents |= {"evaluation": evaluation(), "analysis": analysis()}
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document), encoding="utf-8")
    return folder
