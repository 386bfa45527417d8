"""``blb report``: a run folder as one page."""

from __future__ import annotations

import webbrowser
from pathlib import Path

import click

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.echo import echo


@click.command("report")
@click.argument(
    "run",
    metavar="[RUN]",
    required=False,
    type=click.Path(path_type=Path),
    shell_complete=bias_files,
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where the page goes. [default: report.html in RUN]",
)
@click.option(
    "--plots",
    type=click.Path(path_type=Path),
    help="Write every plot into this folder, too, as PNG and SVG.",
)
@click.option("--open", "is_opened", is_flag=True, help="Open the page in a browser.")
def report_command(run: Path | None, out: Path | None, plots: Path | None, is_opened: bool) -> None:
    """Make one self-contained page of a run: the verdict in words, alternatives,
    examples, plots, tokens, costs.

    RUN is the folder of a run or its bias file, by default the newest in runs. The page shows the
    results of blb fit, blb eval and blb analyze in the folder, and names the missing ones. It asks
    no network, follows light and dark, prints, and reads on a phone. Needs the extra report: pip
    install '.[report]' in the checkout.
    """
    from blackbox_lb.cli.echo import with_option_names
    from blackbox_lb.cli.resources import chosen_bias
    from blackbox_lb.extras.report.page import write_report

    folder = chosen_bias(run).parent
    written = write_report(folder, out, plots, wording=with_option_names)
    for path in written:
        echo(f"wrote {path}")
    page = written[0].resolve().as_uri()
    if is_opened and not webbrowser.open(page):
        echo(f"no browser could be started here; open {page}", err=True)
