"""``blb report``: a run folder as one page."""

from __future__ import annotations

from pathlib import Path

import click

from blackbox_lb.cli.echo import echo, echo_linked


@click.command("report")
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
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
def report_command(run: Path, out: Path | None, plots: Path | None) -> None:
    """Make one self-contained page of the run folder RUN: the verdict in words, alternatives,
    examples, plots, tokens, costs.

    Shows the results of blb fit, blb eval and blb analyze in the folder, and names the missing
    ones. The page asks no network, follows light and dark, prints, and reads on a phone. Prints
    what stands where in it, as report.html#examples. Needs the extra report: pip install
    '.[report]' in the checkout.
    """
    from blackbox_lb.cli.echo import with_option_names
    from blackbox_lb.extras.report.page import write_report

    written = write_report(run, out, plots, wording=with_option_names)
    for path in (written.page, *written.plots):
        echo(f"wrote {path}")
    page = written.page.resolve().as_uri()
    width = max(len(place.anchor) for place in written.places)
    for place in written.places:
        anchor = f"#{place.anchor}"
        echo_linked(f"{anchor:<{width + 1}}  {place.text}", len(anchor), f"{page}{anchor}")
