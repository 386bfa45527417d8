"""``blb report``: a run folder as one page."""

from __future__ import annotations

import webbrowser
from pathlib import Path

from blackbox_lb.cli.echo import echo, echo_linked
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import bias_argument
from blackbox_lb.jobs.plan.setting import Settings, setting


class ReportOptions(Settings):
    run: Path | None = bias_argument("[RUN]")
    out: Path | None = setting(None, None, "Where the page goes. [default: report.html in RUN]")
    plots: Path | None = setting(
        None, None, "Write every plot into this folder, too, as PNG and SVG."
    )
    is_opened: bool = setting(False, None, "Open the page in a browser.", "--open")


@command("report", ReportOptions, example="blb report runs/train")
def report_command(options: ReportOptions) -> None:
    """Make one self-contained page of a run: the verdict in words, alternatives,
    examples, plots, tokens, costs.

    RUN is the folder of a run or its bias file, by default the newest in runs. The page shows the
    results of blb fit, blb eval and blb analyze in the folder, and names the missing ones. It asks
    no network, follows light and dark, prints, and reads on a phone. Prints what stands where in
    it, as report.html#examples. Needs the extra report: pip install '.[report]' in the checkout.
    """
    from blackbox_lb.cli.echo import with_option_names
    from blackbox_lb.cli.resources import chosen_bias
    from blackbox_lb.extras.report.page import write_report

    folder = chosen_bias(options.run).parent
    written = write_report(folder, options.out, options.plots, wording=with_option_names)
    for path in (written.page, *written.plots):
        echo(f"wrote {path}")
    page = written.page.resolve().as_uri()
    width = max(len(anchor) for anchor, _ in written.places)
    for anchor, number in written.places:
        link = f"#{anchor}"
        echo_linked(f"{link:<{width + 1}}  {number}", len(link), f"{page}{link}")
    if options.is_opened and not webbrowser.open(page):
        echo(f"no browser could be started here; open {page}", err=True)
