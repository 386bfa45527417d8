"""``blb trust``: say that a settings file may run code, send keys, and write elsewhere."""

from __future__ import annotations

from pathlib import Path

from blackbox_lb.cli.grouped import PATH, argument, command, option, options


@options
class TrustOptions:
    file: Path | None = argument(metavar="[FILE]", type=PATH, required=False)
    forget: bool = option(None, "Trust the file no longer.")


@command("trust", TrustOptions)
def trust_command(options: TrustOptions) -> None:
    """Trust FILE, the nearest blb.toml by default, as it is now.

    A blb.toml that is merely found may not run code, name keys or hosts, or write outside its
    folder. Prints what of this the file does, and remembers its path and contents: after a change
    it is asked for again. One that blb init has written is trusted.
    """
    from blackbox_lb.cli.actions.trust import execute

    execute(options)
