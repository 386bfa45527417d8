"""``python -m bench.mutation``: how many wrong versions of a room the tests notice.

mutmut makes the wrong versions (mutants) of every function of a room; of these a sample fixed by
its seed is tried, each against the shortest tests that execute the mutated function. The score of a
room is the share of its mutants that a test notices. It takes more than an hour on one core:

    nice -n 10 uv run --with mutmut python -m bench.mutation --out before.json
    nice -n 10 uv run --with mutmut python -m bench.mutation --out after.json --before before.json
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click

__all__ = ["ROOMS", "TESTS", "Mutant", "main", "mutants_of", "shortest_tests"]

ROOMS = {
    "estimate": "blackbox_lb/estimate",
    "wire": "blackbox_lb/api/wire",
    "judging": "blackbox_lb/rollouts/judging",
    "injection": "blackbox_lb/deploy/injection.py",
}
"""Room -> its modules."""
TESTS = [
    "tests/laws",
    "tests/wire",
    "tests/cassettes",
    "tests/unit/api",
    "tests/unit/deploy",
    "tests/unit/estimate",
    "tests/unit/jobs",
    "tests/unit/rollouts",
    "tests/known_truth",
    "tests/goldens",
]
"""The folders whose tests are run."""
SEED = 0
REPORT = "BLB_MUTATION_REPORT"
"""The environment variable with the file for what the tests execute."""
STARTUP = 60.0
"""Seconds that a run may take beyond five times those of its tests, until it counts as endless."""


@dataclass(frozen=True)
class Mutant:
    """One wrong version of a function.

    Attributes:
        path: the module, relative to the checkout.
        function: the function or method, ``Class.method``.
        line: where the function begins.
        change: the replaced code and its replacement.
        text: the whole module with the replacement.
    """

    path: str
    function: str
    line: int
    change: str
    text: str

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"{self.path}:{self.line} {self.function}: {self.change}"


def mutants_of(root: Path, room: str, size: int) -> list[Mutant]:
    """``size`` mutants of a room, drawn from all that mutmut makes of it.

    Args:
        root: the checkout.
        room: a name of ``ROOMS``.
        size: how many at most; those of a class and of none of its functions are left out.
    """
    from mutmut.mutation.file_mutation import create_mutations

    location = root / ROOMS[room]
    modules = [location] if location.is_file() else sorted(location.rglob("*.py"))
    candidates = []
    for module in modules:
        text = module.read_text(encoding="utf-8")
        tree, mutations, _, _ = create_mutations(str(module), text)
        candidates += [
            (module, tree, mutation)
            for mutation in mutations
            if mutation.contained_by_top_level_function is not None
        ]
    chosen = random.Random(SEED).sample(candidates, min(size, len(candidates)))
    mutants = [_mutant(root, module, tree, mutation) for module, tree, mutation in chosen]
    return [mutant for mutant in mutants if mutant is not None]


def _mutant(root: Path, module: Path, tree: Any, mutation: Any) -> Mutant | None:
    """One mutation of mutmut as a ``Mutant``; None where it is of a class and of none of its
    functions.
    """
    place = _function_names(tree).get(id(mutation.contained_by_top_level_function))
    if place is None:
        return None
    function, line = place
    before = " ".join(tree.code_for_node(mutation.original_node).split())
    after = " ".join(tree.code_for_node(mutation.mutated_node).split())
    return Mutant(
        path=str(module.relative_to(root)),
        function=function,
        line=line,
        change=f"{before[:70]} -> {after[:70]}",
        text=tree.deep_replace(mutation.original_node, mutation.mutated_node).code,
    )


def _function_names(tree: Any) -> dict[int, tuple[str, int]]:
    """Id of a node -> the qualified name of the function, and its line."""
    import libcst
    from libcst.metadata import MetadataWrapper, PositionProvider

    positions = MetadataWrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider)
    names = {}
    for node in tree.body:
        if isinstance(node, libcst.FunctionDef):
            names[id(node)] = (node.name.value, positions[node].start.line)
        elif isinstance(node, libcst.ClassDef):
            for member in node.body.body:
                if isinstance(member, libcst.FunctionDef):
                    name = f"{node.name.value}.{member.name.value}"
                    names[id(member)] = (name, positions[member].start.line)
    return names


def copy_checkout(root: Path, target: Path) -> None:
    """Copy what git knows or would add: mutants are written into the copy."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=root,
        check=True,
        capture_output=True,
    )
    for name in listed.stdout.decode().split("\0"):
        source = root / name
        if name and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)


def run_pytest(copy: Path, arguments: list[str], limit: float, report: Path | None = None) -> bool:
    """Run pytest in the copy; whether it passed within ``limit`` seconds.

    report: where to write which functions each test executes.
    """
    command = [sys.executable, "-m", "pytest", "-n", "0", "-q", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    if report is not None:
        command += ["-p", "bench.mutation"]
        environment[REPORT] = str(report)
    with subprocess.Popen(
        [*command, *arguments],
        cwd=copy,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            return process.wait(limit) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return False


def pytest_configure(config: Any) -> None:
    """Where this module is a plugin of pytest (``-p``), tests are traced."""
    config.pluginmanager.register(_ExecutedFunctions(Path.cwd(), Path(os.environ[REPORT])))


class _ExecutedFunctions:
    """A plugin of pytest that writes which functions of the rooms each passing test executes."""

    def __init__(self, copy: Path, report: Path) -> None:
        self.prefix = f"{copy}/"
        self.rooms = tuple(f"{copy}/{location}" for location in ROOMS.values())
        self.report = report
        self.executed: set[Any] = set()
        self.tests: list[dict[str, Any]] = []

    def trace(self, frame: Any, event: str, argument: object) -> None:
        """Note the code of each call; no line of it is traced."""
        self.executed.add(frame.f_code)

    def pytest_runtest_logstart(self) -> None:
        import threading

        self.executed = set()
        sys.settrace(self.trace)
        threading.settrace(self.trace)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when != "call" or not report.passed:
            return
        functions = {
            f"{code.co_filename.removeprefix(self.prefix)}:{outermost(code.co_qualname)}"
            for code in set(self.executed)
            if code.co_filename.startswith(self.rooms)
        }
        if functions:
            self.tests.append(
                {
                    "test": report.nodeid,
                    "seconds": report.duration,
                    "functions": sorted(functions),
                }
            )

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        self.report.write_text(json.dumps(self.tests), encoding="utf-8")


def outermost(qualified_name: str) -> str:
    """The function that stands in a module or class, of what may stand inside it."""
    return qualified_name.split(".<locals>", 1)[0]


def shortest_tests(
    tests: list[dict[str, Any]], mutant: Mutant, seconds: float
) -> tuple[list[str], float]:
    """The shortest tests that execute a mutant's function, ``seconds`` of them, and how long they
    take.
    """
    function = f"{mutant.path}:{mutant.function}"
    chosen: list[str] = []
    spent = 0.0
    for test in sorted(tests, key=lambda test: float(test["seconds"])):
        if function in test["functions"] and (not chosen or spent + test["seconds"] < seconds):
            chosen.append(test["test"])
            spent += test["seconds"]
    return chosen, spent


def outcomes(
    root: Path,
    copy: Path,
    rooms: list[str],
    size: int,
    seconds: float,
    before: dict[str, str],
) -> Iterator[tuple[str, Mutant, str]]:
    """Try the mutants of each room; gives the room, the mutant and what became of it.

    Args:
        root: the checkout.
        copy: its copy, which is changed and restored.
        rooms: names of ``ROOMS``.
        size: mutants a room.
        seconds: of tests a mutant.
        before: name of a mutant -> its outcome with more tests: one that survived those survives.
    """
    report = copy / "executed.json"
    run_pytest(copy, TESTS, limit=7200, report=report)
    if not report.exists():
        raise click.ClickException(f"pytest did not finish {' '.join(TESTS)} in two hours")
    tests = json.loads(report.read_text(encoding="utf-8"))
    stamp = time.time()
    for room in rooms:
        for mutant in mutants_of(root, room, size):
            chosen, spent = shortest_tests(tests, mutant, seconds)
            if before.get(mutant.name, "killed") != "killed":
                yield room, mutant, before[mutant.name]
                continue
            if not chosen:
                yield room, mutant, "not executed"
                continue
            module = copy / mutant.path
            original = module.read_text(encoding="utf-8")
            for text in (mutant.text, original):
                module.write_text(text, encoding="utf-8")
                # Bytecode is looked up by whole seconds and size: each version gets its own.
                stamp += 1
                os.utime(module, (stamp, stamp))
                if text is mutant.text:
                    passed = run_pytest(copy, ["-x", *chosen], limit=STARTUP + 5 * spent)
            yield room, mutant, "survived" if passed else "killed"


@click.command()
@click.option("--room", "rooms", multiple=True, type=click.Choice(list(ROOMS)), help="[all]")
@click.option("--size", default=40, show_default=True, help="Mutants a room.")
@click.option("--seconds", default=30.0, show_default=True, help="Seconds of tests a mutant.")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path))
@click.option(
    "--before",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Outcomes of more tests: names the mutants that only those notice.",
)
def main(
    rooms: tuple[str, ...],
    size: int,
    seconds: float,
    out: Path,
    before: Path | None,
) -> None:
    """Score the tests of four rooms by mutants; writes each mutant's outcome to OUT."""
    root = Path.cwd()
    earlier = {}
    if before is not None:
        for row in json.loads(before.read_text(encoding="utf-8")):
            earlier[row["name"]] = row["outcome"]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder).resolve()
        copy_checkout(root, copy)
        chosen_rooms = list(rooms or ROOMS)
        for room, mutant, outcome in outcomes(root, copy, chosen_rooms, size, seconds, earlier):
            rows.append({**asdict(mutant), "room": room, "name": mutant.name, "outcome": outcome})
            rows[-1].pop("text")
            out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
            if outcome != earlier.get(mutant.name):
                click.echo(f"{outcome:>12}  {mutant.name}")
    for room in chosen_rooms:
        results = [row["outcome"] for row in rows if row["room"] == room]
        killed = results.count("killed")
        click.echo(f"{room}: {killed} of {len(results)} mutants noticed")


if __name__ == "__main__":
    main()
