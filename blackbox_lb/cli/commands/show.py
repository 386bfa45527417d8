"""``blb show``: read a bias file."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import JsonOptions, bias_argument
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.jobs.plan.setting import setting
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.records import Entry


class ShowOptions(JsonOptions):
    bias_file: Path | None = bias_argument()
    top: int = setting(20, None, "Tokens of each kind.", ge=1)


@command("show", ShowOptions, example="blb show runs/train")
def show_command(options: ShowOptions) -> None:
    """Show a bias: where it comes from, whether it helps, which tokens it promotes and suppresses,
    or how it mends decisions.

    BIAS is a bias file or the folder of a run, by default the newest in runs.
    """
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.request_bias import phases_of_features
    from blackbox_lb.cli.resources import chosen_bias
    from blackbox_lb.cli.tables import findings_list, print_curve, print_facts, print_page_table
    from blackbox_lb.extras.report.contents import facts_of
    from blackbox_lb.extras.report.data import RunDocuments
    from blackbox_lb.extras.report.tables import verdict_table

    file = chosen_bias(options.bias_file)
    bias = Bias.load(file)
    if options.as_json:
        print_json(bias.model_dump(mode="json"))
        return
    print_facts(facts_of(RunDocuments(file.parent, bias)))
    if bias.learned is not None:
        echo(f"bias: {bias.learned.sentence}")
    if bias.verdict:
        print_page_table(verdict_table(bias.verdict))
        echo(printable(bias.status))
    else:
        echo("UNVERIFIED: no fresh completions were compared; run blb eval with --save")
    findings_list(bias.findings)
    if bias.operating is not None:
        if bias.operating.check is not None:
            check = bias.operating.check
            echo(f"{check.word}: {check.sentence}")
        print_curve(bias.operating)
    if bias.decisions:
        _decisions(bias)
    if bias.decisions and not bias.entries:
        return
    ranked = sorted(bias.entries, key=lambda entry: entry.bias)
    _parts(bias, options.top)
    where = ""
    if phases_of_features(bias.features).confined:
        where = " where it acts"
    elif bias.features:
        where = " of the rest"
    promoted = [entry for entry in reversed(ranked) if entry.bias > 0]
    suppressed = [entry for entry in ranked if entry.bias < 0]
    _tokens(f"Promoted tokens{where}", promoted, options.top)
    _tokens(f"Suppressed tokens{where}", suppressed, options.top)


def _decisions(bias: Bias) -> None:
    """Print how each question is read and mended."""
    for mended in bias.decisions:
        question = mended.question
        orders = ", both orders" if mended.both_orders else ""
        print_table(
            f"{printable(question.id)}, a {question.kind} read by {mended.reading}{orders} of"
            f" {printable(mended.model)}: {mended.mending}, slope {mended.slope:.3f}, from"
            f" {mended.rows:,} rows",
            ("option", "center (nats)", "offset (nats)"),
            (
                (printable(name), f"{center:+.3f}", f"{offset:+.3f}")
                for name, center, offset in zip(
                    question.names, mended.center, mended.offsets, strict=True
                )
            ),
        )
        if mended.promise is not None:
            echo(f"promise    {mended.promise.sentence}")


def _parts(bias: Bias, top: int) -> None:
    """Print the vectors of the features that move tokens most, each with its most moved tokens."""
    from blackbox_lb.bias.request_bias import phases_of_features
    from blackbox_lb.cli.tables import print_page_table
    from blackbox_lb.extras.report.tables import features_table

    phases = phases_of_features(bias.features)
    if phases.confined:
        echo(f"acts at    the first tokens alone, {phases.first:,} of them")
    vectors = features_table(bias)
    if vectors.rows:
        print_page_table(vectors, top)


def _tokens(title: str, entries: Iterable[Entry], top: int) -> None:
    rows = [
        (
            f"'{entry.readable}'",
            str(entry.id),
            f"{entry.bias:+.3f}",
            "" if entry.error is None else f"{entry.error:.3f}",
            str(entry.seen),
        )
        for entry in entries
    ]
    columns = ("token", "id", "bias (nats)", "standard error", "seen")
    print_table(f"{title}: {min(top, len(rows))} of {len(rows)}", columns, rows[:top])
