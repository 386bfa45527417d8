"""``blb show``: read a bias file."""

from __future__ import annotations

from pathlib import Path

import click

from blackbox_lb.cli.completing import bias_files


@click.command("show")
@click.argument(
    "bias_file", metavar="BIAS", type=click.Path(path_type=Path), shell_complete=bias_files
)
@click.option(
    "--top", type=click.IntRange(1), default=20, show_default=True, help="Tokens of each kind."
)
@click.option("--json", "as_json", is_flag=True, help="Print the bias file as JSON on stdout.")
def show_command(bias_file: Path, top: int, as_json: bool) -> None:
    """Show the bias file BIAS: where it comes from, whether it helps, which tokens it promotes and
    suppresses.
    """
    from blackbox_lb.cli.actions.show import execute

    execute(bias_file, top, as_json)
