"""``blb rewards``: what ``--reward`` takes."""

from __future__ import annotations

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import PrintOptions


@command("rewards", PrintOptions, example="blb rewards")
def rewards_command(options: PrintOptions) -> None:
    """List the rewards, with what a completion is worth by each.

    Those of installed packages stand last. docs/tasks.md has more on each.
    """
    from blackbox_lb.tasks.rewards.registry import meanings_of_forms

    meanings = meanings_of_forms()
    if options.as_json:
        print_json(meanings)
        return
    width = max(map(len, meanings))
    for spelling, meaning in meanings.items():
        echo(f"  {spelling:<{width}}  {meaning}")
