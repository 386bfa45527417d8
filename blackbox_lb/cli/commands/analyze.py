"""``blb analyze``: the effect of a bias on each token that is generated under it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from blackbox_lb.cli.echo import echo, preset_options, print_json
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import StoredBiasOptions
from blackbox_lb.cli.resources import check_folder, chosen_bias, load_bias
from blackbox_lb.cli.tables import print_facts, print_page_table
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.jobs.plan.setting import setting
from blackbox_lb.jobs.runs.names import ANALYSIS, STORE

if TYPE_CHECKING:
    from blackbox_lb.extras.analysis.document import Analysis, TokenScore


class AnalyzeOptions(StoredBiasOptions):
    """Options of ``blb analyze``, which sends no request."""

    top: int = setting(15, None, "Rows of each table of tokens.", ge=1)
    out: Path | None = setting(
        None, None, f"Folder that gets {ANALYSIS}. [default: the folder of BIAS]"
    )


@command("analyze", AnalyzeOptions, example="blb analyze runs/train/bias.json")
def analyze_command(options: AnalyzeOptions) -> None:
    """Show the effect of the bias file BIAS on each token: its intervention score.

    S is the mean of log p(token | with the bias) - log p(token | without it), in nats, over the
    places where completions drawn with the bias have the token. It is read from the base model's
    lists along the completions at temperature 1 that blb fit and blb eval left in the store; no
    server is asked. Where the server listed its whole vocabulary (vLLM with --max-logprobs -1), the
    scores are exact.
    """
    from blackbox_lb.bias.limits import profile_of, vocabulary_of
    from blackbox_lb.extras.analysis.run import analyze
    from blackbox_lb.jobs.records.run_record import provenance
    from blackbox_lb.safety.files import explained, write_whole

    bias_file = chosen_bias(options.bias_file)
    file = (options.out or bias_file.parent) / ANALYSIS
    check_folder(file)
    bias = load_bias(bias_file, options)
    profile = profile_of(bias, options.provider)
    vocabulary = vocabulary_of(bias, [profile], options.tokenizer)
    store = options.store or bias_file.with_name(STORE)
    origin = provenance(settings=preset_options())
    analysis = analyze(bias, store, profile, vocabulary, origin)
    with explained(f"write {file}", "make room there, or give another ``out``"):
        write_whole(file, (analysis.model_dump_json(indent=1) + "\n").encode())
    if options.as_json:
        print_json(analysis.model_dump(mode="json"))
    else:
        _print(analysis, options.top)
        echo(f"wrote {file}")


def _print(analysis: Analysis, top: int) -> None:
    from blackbox_lb.extras.report.notes import analysed
    from blackbox_lb.extras.report.tables import bands_table, families_table

    for sentence in analysis.summary:
        echo(sentence)
    print_facts(analysed(analysis))
    unknown = sum(token.family == "not known" for token in analysis.tokens)
    if unknown:
        echo(
            f"no stored answer has the text of {unknown:,} tokens; --tokenizer with the model's"
            " vocabulary gives it"
        )
    for table in (bands_table(analysis), families_table(analysis)):
        print_page_table(table)
    by_share = sorted(analysis.tokens, key=lambda token: -abs(token.score) * token.count)
    _print_tokens("Promoted tokens", [token for token in by_share if token.score > 0], top)
    _print_tokens("Suppressed tokens", [token for token in by_share if token.score < 0], top)


def _print_tokens(title: str, tokens: Sequence[TokenScore], top: int) -> None:
    print_table(
        f"{title}, by S times use: {min(top, len(tokens)):,} of {len(tokens):,}",
        ("token", "S (nats)", "standard error", "bias", "used"),
        (
            (
                f"'{token.text}'",
                f"{token.score:+.3f}",
                "" if token.se is None else f"{token.se:.3f}",
                f"{token.bias:+.2f}" if token.bias else "",
                f"{token.count:,}",
            )
            for token in tokens[:top]
        ),
    )
