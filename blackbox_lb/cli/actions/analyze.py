"""The action of ``blb analyze``: score the stored completions, write analysis.json, print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import profile_of, vocabulary_of
from blackbox_lb.cli.commands.learning.analyze import ANALYSIS, AnalyzeOptions
from blackbox_lb.cli.echo import echo, preset_options, print_json
from blackbox_lb.cli.keys import tell_host_of_bias
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.errors import InputError
from blackbox_lb.extras.analysis.document import Analysis, Band, Family, TokenScore
from blackbox_lb.extras.analysis.run import analyze
from blackbox_lb.jobs.records.run_record import provenance
from blackbox_lb.jobs.runs.names import STORE
from blackbox_lb.rollouts.progress import short
from blackbox_lb.safety.files import write_whole

T = TypeVar("T")
Columns: TypeAlias = Sequence[tuple[str, Callable[[T], str]]]
"""The columns of a table: heading, and the value of a row."""

BANDS: Columns[Band] = (
    ("band", lambda row: row.label),
    ("what they are", lambda row: row.meaning),
    ("tokens", lambda row: f"{row.count:,}"),
)
FAMILIES: Columns[Family] = (
    ("side", lambda row: row.side),
    ("family", lambda row: row.name),
    ("examples", lambda row: " ".join(f"'{example}'" for example in row.examples[:6])),
    ("tokens", lambda row: f"{row.size:,}"),
    ("used", lambda row: f"{row.count:,}"),
    ("mean S", lambda row: f"{row.mean_score:+.3f}"),
)
TOKENS: Columns[TokenScore] = (
    ("token", lambda row: f"'{row.text}'"),
    ("context", lambda row: row.contexts[0] if row.contexts else ""),
    ("S (nats)", lambda row: f"{row.score:+.3f}"),
    ("standard error", lambda row: "" if row.se is None else f"{row.se:.3f}"),
    ("bias", lambda row: f"{row.bias:+.2f}" if row.bias else ""),
    ("used", lambda row: f"{row.count:,}"),
)


def execute(options: AnalyzeOptions) -> None:
    bias = Bias.load(options.bias_file)
    folder = options.out or options.bias_file.parent
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder} for the result; make it, or give another --out"
        )
    tell_host_of_bias(options.bias_file, bias, options)
    profile = profile_of(bias, options.provider)
    vocabulary = vocabulary_of(bias, [profile], options.tokenizer)
    store = options.store or options.bias_file.with_name(STORE)
    origin = provenance(settings=preset_options())
    analysis = analyze(bias, store, profile, vocabulary, origin)
    write_whole(folder / ANALYSIS, (analysis.model_dump_json(indent=1) + "\n").encode())
    if not options.quiet and analysis.left_out:
        echo(
            f"{analysis.left_out} completions are left out: filtered, broken off by the host, or"
            " not all of their tokens are listed",
            err=True,
        )
    if options.as_json:
        print_json(analysis.model_dump(mode="json"))
    else:
        _print(analysis, options.top)
        echo(f"wrote {folder / ANALYSIS}")


def _print(analysis: Analysis, top: int) -> None:
    for sentence in analysis.summary:
        echo(sentence)
    echo(
        f"scores from the base model's lists at {analysis.positions:,} positions of"
        f" {analysis.completions:,} completions; a share of {short(analysis.unlisted)} of the"
        " probability is in no list, and spread as base completions have it"
    )
    unknown = sum(token.family == "not known" for token in analysis.tokens)
    if unknown:
        echo(
            f"no stored answer has the text of {unknown:,} tokens; --tokenizer with the model's"
            " vocabulary gives it"
        )
    _print_table("Intervention scores S by band (nats)", BANDS, analysis.bands, left_aligned=2)
    moved = [row for row in analysis.families if row.side != "unmoved"]
    _print_table("Families of tokens by what they look like", FAMILIES, moved, left_aligned=3)
    by_share = sorted(analysis.tokens, key=lambda row: -abs(row.score) * row.count)
    _print_tokens("Promoted tokens", [row for row in by_share if row.score > 0], top)
    _print_tokens("Suppressed tokens", [row for row in by_share if row.score < 0], top)


def _print_table(
    title: str, columns: Columns[T], rows: Sequence[T], *, left_aligned: int = 1
) -> None:
    cells = [[cell(row) for _, cell in columns] for row in rows]
    print_table(title, [name for name, _ in columns], cells, left_aligned=left_aligned)


def _print_tokens(title: str, rows: Sequence[TokenScore], top: int) -> None:
    _print_table(
        f"{title}, by S times use: {min(top, len(rows)):,} of {len(rows):,}",
        TOKENS,
        rows[:top],
        left_aligned=2,
    )
