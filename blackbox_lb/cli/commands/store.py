"""``blb store``: look after rollout stores."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import click

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import PATH
from blackbox_lb.errors import StoreCorrupt

LONGEST = 500
"""Characters of a sentence in the list of commands."""
TOLD = 20
"""Most problems that are printed; --json has more."""


class StoreCommands(click.Group):
    """Lists its commands with whole sentences."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Each command with its first sentence."""
        rows = [(name, self.commands[name].get_short_help_str(LONGEST)) for name in self.commands]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


@click.group("store", cls=StoreCommands)
def store_command() -> None:
    """Look after rollout stores (rollouts.db): check, merge, and exchange them as Parquet.

    Nothing is sampled and nothing is sent. Each takes --json.
    """


def _json(function: Any) -> Any:
    return click.option(
        "--json", "as_json", is_flag=True, help="Print the result as JSON on stdout."
    )(function)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {table}" for table, count in counts.items() if count) or "nothing"


def _echo_contradictory(count: int) -> None:
    if count:
        echo(
            f"{count:,} completions, as they were received, have a sampled token whose logprob is"
            " more than 1 nat from its own entry in the list of alternatives"
        )


def _echo_differing(counts: Counter[str]) -> None:
    if counts:
        echo(
            "another answer under the same key, left out because the first one stays:"
            f" {_counted(counts)}"
        )


@store_command.command("check")
@click.argument("store", type=PATH)
@_json
def check_command(store: Path, as_json: bool) -> None:
    """Check that STORE is intact: SQLite's own check, then every key, hash, checksum and packed
    array.

    Only reads. Exit code 2 where anything is wrong.
    """
    from blackbox_lb.store.database import how_to_recover
    from blackbox_lb.store.upkeep import check

    result = check(store)
    if as_json:
        counts = {
            "schema": result.schema,
            "rows": result.rows,
            "damaged": result.damaged,
            "contradictory": result.contradictory,
        }
        print_json(
            {"store": str(store), "sound": result.sound, **counts, "problems": result.problems}
        )
    else:
        echo(f"{store}: schema {result.schema}; read {_counted(result.rows)}")
        for problem in result.problems[:TOLD]:
            echo(f"  {problem}")
        if len(result.problems) > TOLD:
            echo(f"  and {len(result.problems) - TOLD:,} more; --json lists them")
        _echo_contradictory(result.contradictory)
    if not result.sound:
        damaged = ""
        if result.damaged:
            damaged = f", damaged: {_counted(result.damaged)}"
        raise StoreCorrupt(
            f"{store} is not sound ({len(result.problems):,} problems{damaged});"
            f" {how_to_recover(store)}"
        )
    if not as_json:
        echo("sound: SQLite finds nothing wrong, every key, hash, checksum and array is right")


@store_command.command("merge")
@click.argument("stores", nargs=-1, required=True, type=PATH)
@click.option(
    "--out", required=True, type=PATH, help="The store that gets everything; may be there already."
)
@_json
def merge_command(stores: tuple[Path, ...], out: Path, as_json: bool) -> None:
    """Merge STORES into one store, each response once: completions, prompts, token bytes,
    rewards.

    Where two stores hold different answers to one question, the first stays; their number is
    reported. Of a damaged store all intact rows are taken that SQLite still reaches. The same
    command again adds nothing.
    """
    from blackbox_lb.store.upkeep import merge

    done = merge(stores, out)
    if as_json:
        counts = {
            "added": done.added,
            "same": done.same,
            "differing": done.differing,
            "damaged": done.damaged,
            "broken": done.broken,
        }
        print_json({"store": str(out), **counts})
        return
    echo(f"{out}: added {_counted(done.added)}; there already: {_counted(done.same)}")
    _echo_differing(done.differing)
    if done.damaged:
        echo(f"left out because damaged: {_counted(done.damaged)}; blb store check says which")
    if done.broken:
        echo(
            f"pages that SQLite cannot read, in the table of: {', '.join(done.broken)}; rows"
            " between the first and the last of these pages are missing"
        )


@store_command.command("export")
@click.argument("store", type=PATH)
@click.argument("folder", type=PATH)
@_json
def export_command(store: Path, folder: Path, as_json: bool) -> None:
    """Write STORE into FOLDER as Parquet, which polars, duckdb, pandas and Hugging Face datasets
    read.

    docs/store.md lists the columns. Needs the extra parquet: pip install '.[parquet]' in the
    checkout.
    """
    from blackbox_lb.store.parquet import export_store

    rows = export_store(store, folder)
    if as_json:
        print_json({"store": str(store), "folder": str(folder), "rows": +rows})
    else:
        echo(f"{folder}: wrote {_counted(rows)}")


@store_command.command("import")
@click.argument("source", type=PATH)
@click.argument("store", type=PATH)
@_json
def import_command(source: Path, store: Path, as_json: bool) -> None:
    """Add an export, a folder SOURCE or one of its files, to STORE, which may exist already.

    Rows may be left out and columns added; a changed key, prompt or setting is refused. Needs the
    extra parquet.
    """
    from blackbox_lb.store.parquet import import_store

    done = import_store(source, store)
    if as_json:
        print_json(
            {
                "store": str(store),
                "added": +done.added,
                "there": +done.same,
                "differing": done.differing,
                "undated": done.undated,
                "contradictory": done.contradictory,
                "ignored_columns": list(done.ignored),
            }
        )
        return
    echo(f"{store}: added {_counted(done.added)}; there already: {_counted(done.same)}")
    _echo_differing(done.differing)
    if done.undated:
        echo(f"{done.undated:,} rows have no time of receipt, which is stored as 0")
    _echo_contradictory(done.contradictory)
    if done.ignored:
        echo(f"columns of no use here: {', '.join(done.ignored)}")
