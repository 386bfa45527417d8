"""The action of ``blb trust``: print what a settings file reaches, and remember that it may."""

from __future__ import annotations

from pathlib import Path

from blackbox_lb.cli.commands.setup.trust import TrustOptions
from blackbox_lb.cli.echo import echo
from blackbox_lb.cli.settings import FILE, find_settings, nearest_file
from blackbox_lb.errors import InputError
from blackbox_lb.safety.files import forget, trust


def execute(options: TrustOptions) -> None:
    """Run the command."""
    path = options.file or nearest_file(Path.cwd())
    if path is None:
        raise InputError(f"there is no {FILE} here or in a folder above; name the file")
    if options.forget:
        was_trusted = forget(path)
        if was_trusted:
            echo(f"{path} is trusted no longer")
        else:
            echo(f"{path} was not trusted")
        return
    settings = find_settings(path)
    reaching = list(settings.reaching())
    trust(path, settings.tables)
    for line in reaching:
        echo(f"  {line}")
    if not reaching:
        echo("  it sets nothing that needs trust")
    echo(f"{path} is trusted as it is now")
