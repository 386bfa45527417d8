"""``python -m bench.gallery NAME``: a use of a learned bias beside its rivals, from its commands to
its page in ``docs/gallery``.

Every completion stays in OUT, so that a run that was cut off goes on, and a page is written again
without a request. The settings stand in ``uses.py``, before the run; a command that fails is on the
page with what it said.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
from click.testing import CliRunner

from bench.gallery.page import index, write_page
from bench.gallery.uses import USES, Place, Step
from bench.measuring import machine, today
from blackbox_lb.cli import main as blb

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]


def run(step: Step, out: Path) -> dict[str, Any]:
    """What a command printed: as ``document`` where that is JSON; it is not run again where that is
    known for the same words.
    """
    path = out / f"{step.name}.step.json"
    if path.exists():
        known: dict[str, Any] = json.loads(path.read_text())
        if known["words"] == list(step.words) and known["code"] == 0:
            return known
    click.echo(f"$ {' '.join(step.program or ('blb',))} {' '.join(step.words)}", err=True)
    started = time.monotonic()
    code, output, error = (_program if step.program else _blb)(step)
    took = {"words": list(step.words), "code": code, "seconds": time.monotonic() - started}
    told = (
        {"document": json.loads(output)}
        if code == 0
        else {"error": error.strip().splitlines()[-1:]}
    )
    path.write_text(json.dumps(took | told))
    click.echo(f"  {took['seconds']:.0f} s, exit code {code} {told.get('error', '')}", err=True)
    return took | told


def _blb(step: Step) -> tuple[int, str, str]:
    """Exit code, JSON and errors of ``blb``."""
    words = [
        Path(word[1:]).read_text(encoding="utf-8").strip() if word.startswith("@") else word
        for word in step.words
    ]
    result = CliRunner().invoke(blb, [*words, "--json"])
    if result.exit_code == 130:
        raise SystemExit(130)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def _program(step: Step) -> tuple[int, str, str]:
    """The same of another program, whose last line is its JSON: a library may print before it."""
    done = subprocess.run(
        [*step.program, *step.words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    return done.returncode, "".join(done.stdout.splitlines()[-1:]), done.stderr


@click.command(help=__doc__)
@click.argument("names", nargs=-1, required=True, type=click.Choice(list(USES)))
@click.option("--provider", default="local", show_default=True)
@click.option(
    "--model", help="A GGUF file, or a name on the server. [default: SmolLM2-135M-Instruct]"
)
@click.option("--base-url", help="A server instead of the embedded engine.")
@click.option(
    "--data",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder with agnews.jsonl, rte.jsonl and others.",
)
@click.option(
    "--reflector",
    type=click.Path(exists=True, path_type=Path),
    help="GGUF file of a second model, that rewrites prompts for GEPA and judges texts.",
)
@click.option("--small", is_flag=True, help="Fewer samples and prompts where a use takes long.")
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("runs/gallery"),
    show_default=True,
)
@click.option(
    "--pages",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("docs/gallery"),
    show_default=True,
)
def main(
    names: tuple[str, ...],
    provider: str,
    model: str | None,
    base_url: str | None,
    data: Path | None,
    reflector: Path | None,
    small: bool,
    out: Path,
    pages: Path,
) -> None:
    """Run the uses one after the other; exit code 1 where one of their commands failed."""
    where: tuple[str, ...] = ("--provider", provider)
    where += ("--model", model) if model else ()
    where += ("--base-url", base_url) if base_url else ()
    failed = False
    for name in names:
        at = Place(where, out / name, data, reflector, small)
        at.out.mkdir(parents=True, exist_ok=True)
        done = [(step, run(step, at.out)) for step in USES[name].steps(at)]
        failed |= any(found["code"] for _, found in done)
        write_page(name, USES[name], done, pages, at, f"{today()}, {machine()['cores']} cores")
    (pages / "index.md").write_text(index(pages), encoding="utf-8")
    sys.exit(int(failed))


if __name__ == "__main__":
    main()
