"""The scenes: small fits and evaluations through the command line, each against an exact model.

A scene says what there is (a model behind a server, rows of data, other files), which commands run
in its folder, one after the other, and which facts of it are kept (see ``facts``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.goldens.clients import wrapped_clients
from tests.goldens.materials import (
    BEGINNER,
    CALLER,
    CHATTERER,
    COLOURLESS,
    DECIDER,
    EMBEDDINGS,
    OPENER,
    RANKER,
    SHARER,
    SPELLER,
    TALKER,
    THINKER,
    WRITER,
    EmbeddingServer,
    Rows,
    begun_records,
    behind,
    call_odds,
    coloured,
    in_cities,
    label_odds,
    labelled,
    numbered,
    only,
    opening_odds,
    ranked,
    some_without_answers,
    spelled,
    with_labels,
)
from tests.support.exact import ExactServer


@dataclass(frozen=True)
class Scene:
    """One scene.

    Attributes:
        server: makes the server that its commands ask.
        rows: of ``rows.jsonl``.
        commands: words of ``blb``; who is asked, the seed and ``--quiet`` are added (see ``play``).
        facts: names of ``facts.FACTS``, all of which its folder must hold afterwards.
        files: name -> text of further files in its folder.
        afterwards: what a program does with the run, given the folder and the server.
        killed_after: completions that are answered before the first command is killed, and begun
            again; 0 where it is not.
    """

    server: Callable[[], ExactServer]
    rows: Rows
    commands: tuple[str, ...]
    facts: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    afterwards: Callable[[Path, ExactServer], None] | None = None
    killed_after: int = 0


TOOL = {"type": "function", "function": {"name": "weather"}}


def lines(rows: Rows) -> str:
    """The rows as the text of a file."""
    return "".join(json.dumps(row) + "\n" for row in rows)


PLAIN = numbered(12, 6, 12)
LABELLED = labelled(DECIDER, 40, 20, 40)
NINE_LABELLED = labelled(DECIDER, 9, 1, 40)

# --- Words of commands

DATA = "--data rows.jsonl"
DRAWN = "--samples-per-prompt 10 --validation-samples 2 --test-samples 2"
LENGTH = f"fit {DATA} --out run --reward length --max-tokens 8 --top-logprobs 5 {DRAWN}"
ANSWERS = f"fit {DATA} --out run --reward accuracy --max-tokens 2"
COLOUR = f"fit {DATA} --out run --reward exact-match --max-tokens 1 --l2 1"
OPENING = f"{DATA} --decide begins-with:b,e --reward accuracy --max-tokens 1"
CALLS = f"{DATA} --decide calls-tool --reward accuracy --max-tokens 2"
SHARES = f"{DATA} --out run --max-tokens 2"
PHASED = f"fit {DATA} --out run --max-tokens 4 --deploy temperature=1 {DRAWN}"

SAMPLED = ("bias", "fit", "verdict", "tried")
DECIDED = (*SAMPLED, "decisions", "calibration")

SCENES: Mapping[str, Scene] = {
    # From samples
    "samples": Scene(behind(WRITER), PLAIN, (f"{LENGTH} --l2 10 --l2 5 --l2 2.5",), SAMPLED),
    "samples-killed": Scene(
        behind(WRITER), PLAIN, (f"{LENGTH} --l2 10 --l2 5 --l2 2.5",), SAMPLED, killed_after=60
    ),
    "samples-searched": Scene(
        behind(WRITER), PLAIN, (f"{LENGTH} --deploy temperature=0.5",), SAMPLED
    ),
    "samples-two-estimators": Scene(
        behind(WRITER),
        PLAIN,
        (
            f"{LENGTH} --estimator projection --estimator ips --tau 0.3 --l2 5 --alpha 0.3"
            " --clip 50",
        ),
        SAMPLED,
    ),
    "samples-ips": Scene(
        behind(WRITER),
        PLAIN,
        (f"{LENGTH} --estimator ips --tau 0.3 --alpha 0.05 --alpha 0.3 --clip 50",),
        SAMPLED,
    ),
    "samples-by-prompt": Scene(
        behind(WRITER),
        numbered(12, 6, 12, answer="a"),
        (
            f"{LENGTH} --weights prompt --positions 4 --correct contains --objective pareto"
            " --l2 5 --l2 20",
        ),
        SAMPLED,
    ),
    "spans": Scene(
        behind(WRITER),
        PLAIN,
        (
            f"fit {DATA} --out run --reward avoid:list.txt --max-tokens 8 --top-logprobs 5"
            f" {DRAWN} --l2 1",
            f"eval run/bias.json {DATA} --out run --reward avoid:list.txt --max-tokens 8"
            " --test-samples 2 --deploy temperature=1",
        ),
        (*SAMPLED, "policies", "comparisons"),
        files={"list.txt": "a\nh 2\n"},
    ),
    "few-entries": Scene(
        behind(WRITER),
        PLAIN,
        (
            f"{LENGTH} --provider own.toml --entries all --l2 2",
            "compile run/learned.json --provider own.toml --entries 3 --out three.json --json",
            "compile run/learned.json --provider own.toml --integers --out whole.json --json",
        ),
        (*SAMPLED, "compiled"),
        files={"own.toml": 'extends = "llamacpp"\nname = "own"\n[bias]\nentries = 5\n'},
    ),
    "earned-entries": Scene(
        behind(WRITER), PLAIN, (f"{LENGTH} --entries few --l2 5 --integers",), SAMPLED
    ),
    # From answers, and without them
    "answers": Scene(behind(DECIDER), LABELLED, (f"{ANSWERS} --l2 1 --l2 10",), DECIDED),
    "answers-searched": Scene(behind(DECIDER), LABELLED, (ANSWERS,), DECIDED),
    "answers-of-several-tokens": Scene(
        behind(SPELLER),
        spelled(),
        (
            f"fit {DATA} --out run --reward exact-match --max-tokens 5 --learn-from answers"
            " --l2 1.5",
        ),
        SAMPLED,
    ),
    "answers-few": Scene(
        behind(DECIDER), some_without_answers(6), (f"{ANSWERS} --labels b,c",), DECIDED
    ),
    "answers-crossed": Scene(
        behind(DECIDER),
        only("train", NINE_LABELLED),
        (f"{ANSWERS} --test-data test.jsonl --labels b,c",),
        DECIDED,
        files={"test.jsonl": lines(only("test", NINE_LABELLED))},
    ),
    "unlabelled": Scene(
        behind(DECIDER),
        some_without_answers(0),
        (f"{ANSWERS} --learn-from unlabelled --labels b,c",),
        ("bias", "fit", "verdict", "decisions"),
    ),
    "record": Scene(
        behind(with_labels(-4.0, 4, 12)),
        begun_records(),
        (
            f"fit {DATA} --out run --prefill --reward contains --max-tokens 1 --l2 0.3 --l2 3"
            " --entries 50",
        ),
        DECIDED,
    ),
    # Decisions with a goal
    "operating-point": Scene(
        behind(RANKER),
        ranked(label_odds, "answer", ("b", "c")),
        (
            f"fit {DATA} --out run --reward exact-match --max-tokens 1 --l2 1"
            " --goal recall@precision=.8 --positive b",
            "export run/bias.json --format json --at recall=.8",
        ),
        (*DECIDED, "operating", "exported"),
    ),
    "costs": Scene(
        behind(RANKER),
        ranked(label_odds, "answer", ("b", "c")),
        (
            f"fit {DATA} --out run --reward exact-match --max-tokens 1 --l2 1 --l2 10"
            " --goal cost:costs.json",
        ),
        DECIDED,
        files={"costs.json": json.dumps({"b": {"c": 20}, "c": {"b": 1}})},
    ),
    "opening": Scene(
        behind(BEGINNER),
        ranked(opening_odds, "want", ("begins", "other")),
        (
            f"check {OPENING} --out check --json",
            f"fit {OPENING} --out run --goal recall@precision=.7",
            f"check run/bias.json {OPENING} --out drift --json",
            f"score run {OPENING} --decisions --json",
        ),
        (
            *("bias", "fit", "verdict", "decisions", "calibration", "operating"),
            *("opening check", "point check", "probabilities"),
        ),
    ),
    "tools": Scene(
        behind(CALLER, call_token=1),
        [{**row, "tools": [TOOL]} for row in ranked(call_odds, "want", ("call", "answer"))],
        (
            f"fit {CALLS} --out run",
            f"eval run/bias.json {CALLS} --out run --rivals --test-samples 1 --deploy greedy",
        ),
        (
            *("bias", "fit", "verdict", "decisions", "calibration", "operating"),
            *("policies", "comparisons"),
        ),
    ),
    "shares": Scene(
        behind(SHARER),
        in_cities(all={"b": 0.2, "c": 0.8}),
        (f"fit {SHARES} --reward distribution --test-samples 4",),
        (*SAMPLED, "shares"),
    ),
    # A bias that depends on the prompt, or on the completion so far
    "words": Scene(
        behind(COLOURLESS),
        coloured(60, 50, 60),
        (f"{COLOUR} --depends-on words",),
        (*DECIDED, "features", "beside"),
        afterwards=wrapped_clients,
    ),
    "embedding": Scene(
        lambda: EmbeddingServer(COLOURLESS),
        coloured(60, 50, 60),
        (f"{COLOUR} --depends-on embedding:colours@{EMBEDDINGS}",),
        (*DECIDED, "features", "beside"),
    ),
    "groups-from-samples": Scene(
        behind(TALKER),
        coloured(100, 30, 40),
        (
            f"fit {DATA} --out run --reward exact-match --max-tokens 1 --learn-from samples"
            " --depends-on groups:colour --deploy temperature=1 --tau 0.3 --l2 1.25"
            f" {DRAWN}",
        ),
        (*SAMPLED, "features", "beside"),
    ),
    "shares-by-group": Scene(
        behind(SHARER),
        in_cities(north={"b": 0.2, "c": 0.8}, south={"b": 9, "c": 1}),
        (
            f"fit {SHARES} --reward distribution:city --depends-on groups:city"
            " --phases only-first --test-samples 4",
        ),
        (*SAMPLED, "features", "shares"),
    ),
    "first-tokens-only": Scene(
        behind(DECIDER),
        LABELLED,
        (f"{ANSWERS} --l2 1 --phases only-first",),
        (*DECIDED, "features"),
        afterwards=wrapped_clients,
    ),
    "phases": Scene(
        behind(OPENER),
        numbered(40, 30, 40),
        (f"{PHASED} --reward 'regex:^ a[^a]*$' --phases first --tau 0.3 --l2 5",),
        (*SAMPLED, "features", "beside"),
        afterwards=wrapped_clients,
    ),
    "route-and-phase": Scene(
        behind(OPENER),
        coloured(48, 20, 12),
        (
            f"{PHASED} --reward golden_opening:wanted --depends-on route:red=red --phases first"
            " --tau 0.1 --l2 5",
        ),
        (*SAMPLED, "features", "beside"),
        files={
            "golden_opening.py": (
                "def wanted(example, completion):\n"
                "    letter = ' a' if 'red' in example.prompt.text else ' b'\n"
                "    begins = completion.text.startswith(letter)\n"
                "    return float(begins and letter not in completion.text[len(letter):])\n"
            )
        },
    ),
    # Evaluations and checks
    "eval-labels": Scene(
        behind(DECIDER),
        LABELLED,
        (
            f"{ANSWERS} --l2 1",
            f"eval run/bias.json {DATA} --out run --reward accuracy --max-tokens 2"
            " --deploy greedy --rival labels-only --rival threshold --rival few-shot:2 --save",
        ),
        ("verdict", "policies", "policy decisions", "comparisons"),
    ),
    "eval-labels-without-bias": Scene(
        behind(DECIDER),
        LABELLED,
        (
            f"eval {DATA} --out run --reward accuracy --max-tokens 2 --deploy greedy"
            " --rival 'prompt:Say b or c.' --rival labels-only --rival threshold"
            " --rival calibrate:contextual --rival calibrate:batch --rival few-shot:2"
            " --rival classifier:tfidf --price 1,2",
        ),
        ("policies", "policy decisions", "comparisons"),
    ),
    "eval-shares": Scene(
        behind(SHARER),
        in_cities(north={"b": 0.2, "c": 0.8}, south={"b": 9, "c": 1}),
        (
            f"eval {SHARES} --reward distribution:city --rivals --test-samples 4"
            " --deploy temperature=1",
        ),
        ("policies", "policy shares", "comparisons"),
    ),
    "eval-text": Scene(
        behind(WRITER),
        PLAIN,
        (
            f"{LENGTH} --l2 5",
            f"eval run/bias.json {DATA} --out run --reward length --max-tokens 8"
            " --deploy temperature=1 --test-samples 2 --rival prompt:Briefly. --rival best-of:2",
        ),
        ("verdict", "policies", "comparisons"),
    ),
    "eval-text-without-bias": Scene(
        behind(WRITER),
        PLAIN,
        (
            f"eval {DATA} --out run --reward length --max-tokens 8 --test-samples 2 --rivals"
            " --rival max-tokens:5 --rival words:list.txt:-4",
        ),
        ("policies", "comparisons"),
        files={"list.txt": "a\nf\n"},
    ),
    "eval-thinking": Scene(
        behind(THINKER),
        numbered(1, 1, 10, answer="b"),
        (
            f"eval {DATA} --out run --reward correct-and-short --max-tokens 8"
            " --thinking 'until: f' --count thinking --deploy greedy --rival words:list.txt:-4"
            " --rival close:5 --go-on",
        ),
        ("policies", "comparisons"),
        files={"list.txt": "a\nc\n"},
    ),
    "check": Scene(
        behind(DECIDER),
        LABELLED,
        (f"check {DATA} --out run --reward accuracy --max-tokens 2 --json",),
        ("check",),
    ),
    "check-of-whole-answers": Scene(
        behind(CHATTERER),
        labelled(CHATTERER, 60, 10, 10),
        (f"check {DATA} --out run --reward exact-match --max-tokens 2 --json",),
        ("check", "check after label"),
    ),
}
