"""Documents do not drift: snippets run, tables and layout match the code, the command reference is
the help.
"""

from __future__ import annotations

import pkgutil
import re
import runpy
from pathlib import Path

import pytest

from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks.rewards.registry import ENTRY_POINTS, FORMS
from tests.unit.test_layers import ROOMS, SENTENCES

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = {
    page.stem: page.read_text(encoding="utf-8") for page in sorted((ROOT / "docs").glob("*.md"))
}
BENCH = {"bench/README.md": (ROOT / "bench" / "README.md").read_text(encoding="utf-8")}
PAGES = {"README.md": README} | BENCH | {f"docs/{name}.md": text for name, text in DOCS.items()}
LINES, WIDTH = 160, 150
"""What a reader in a hurry gets through: lines of the README, and characters of each."""


def snippets(language: str, text: str = README) -> list[str]:
    """A page's code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """What a link may name behind its #: the headings, as GitHub and the site write them."""
    headings = re.findall(
        r"^#+ (.+)$",
        re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE),
        flags=re.MULTILINE,
    )
    return {
        re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
    }


def test_the_readme_is_short() -> None:
    """A stranger reads it whole; the rest is in docs/."""
    lines = README.splitlines()
    assert len(lines) <= LINES
    assert [line for line in lines if len(line) > WIDTH] == []


def test_links_of_the_readme_lead_somewhere() -> None:
    """Each names a file that is there, and a heading in it. The pages of docs/ are checked by the
    site's own build.
    """
    links = re.findall(r"\]\(((?!https?://)[^)#]*)#?([^)]*)\)", README)
    assert links
    for path, anchor in links:
        target = ROOT / (path or "README.md")
        assert target.is_file(), path
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), (path, anchor)


@pytest.mark.parametrize("page", PAGES)
def test_programs_that_a_page_names_exist(page: str) -> None:
    """Tests, benchmarks and modules are found under the names that the pages give them."""
    for path in re.findall(r"\b(?:tests|bench|blackbox_lb)/[\w/]+\.py\b", PAGES[page]):
        assert (ROOT / path).is_file(), path
    for module in re.findall(r"python -m (bench[\w.]*)", PAGES[page]):
        path = ROOT.joinpath(*module.split("."))
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module
    for name in set(re.findall(r"\bblackbox_lb(?:\.\w+)+", PAGES[page])) - {ENTRY_POINTS}:
        path = ROOT.joinpath(*name.split(".")).with_suffix(
            ".py"
        )  # one of them needs vLLM to be imported
        assert path.is_file() or pkgutil.resolve_name(name) is not None


def test_the_architecture_page_is_true() -> None:
    """It has the rooms in their order, which are the folders and modules of the package, and the
    sentences of the test of layers; and every file and folder that it names exists.
    """
    page = DOCS["architecture"]
    rooms = re.findall(r"^\| `(\w+)` \|", page.split("## Reading")[0], flags=re.MULTILINE)
    assert rooms == [room for room in ROOMS if not room.startswith("_")]
    package = ROOT / "blackbox_lb"
    assert set(rooms) == {
        path.stem
        for path in package.iterdir()
        if not path.name.startswith("_") and (path.is_dir() or path.suffix == ".py")
    }
    assert re.findall(r"^- (.+)$", page, flags=re.MULTILINE) == [
        sentence for sentence, *_ in SENTENCES
    ]
    parts = re.findall(r"^\| `(\w+)` \|", page.split("## Reading")[1], flags=re.MULTILINE)
    assert sorted(parts) == sorted(
        path.stem for path in (package / "estimate").iterdir() if not path.name.startswith("_")
    )
    for path in re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", page):
        assert any((base / path).exists() for base in (ROOT, package, package / "estimate")), path


def test_the_command_reference_is_the_help() -> None:
    """docs/cli.md, docs/files.md, docs/tasks.md and llms.txt are what docs/generate.py writes."""
    generate = runpy.run_path(str(ROOT / "docs" / "generate.py"))
    remedy = "run: uv run python docs/generate.py"
    assert (ROOT / "docs" / "cli.md").read_text(encoding="utf-8") == generate["reference"](), remedy
    assert (ROOT / "docs" / "files.md").read_text(encoding="utf-8") == generate["files"](), remedy
    assert (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8") == generate["tasks"](), remedy
    assert (ROOT / "llms.txt").read_text(encoding="utf-8") == generate["llms"](), remedy


def test_toml_snippets_are_profiles(tmp_path: Path) -> None:
    """Each loads as a user's own profile, and the one of a foreign host is the one that the tests
    send requests with.
    """
    found = snippets("toml", README) + snippets("toml", DOCS["providers"])
    for snippet in found:
        path = tmp_path / "mine.toml"
        path.write_text(snippet)
        assert load_profile(str(path)).name not in profile_names()
    assert (ROOT / "tests" / "unit" / "providers" / "acme.toml").read_text() in found


def test_the_store_tables_are_documented() -> None:
    """Every table and column of the schema stands in the table of the page on stores; the SQL in
    the file itself explains its columns to whoever opens it with sqlite3.
    """
    store = RolloutStore(":memory:")
    tables = store._db.connection.execute(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table'"
    ).fetchall()
    assert "see blackbox_lb.store.rows" in dict(tables)["completions"]
    for table, _ in tables:
        (row,) = [line for line in DOCS["store"].splitlines() if line.startswith(f"| `{table}` |")]
        columns = [
            column[1] for column in store._db.connection.execute(f"PRAGMA table_info({table})")
        ]
        assert re.findall(r"`(\w+)`", row) == [table, *columns]
    store.close()


def test_providers_and_rewards_are_documented() -> None:
    """Each provider begins a row of README, alone or with others, and its row of the page; each
    reward is in its page.
    """
    first_cells = "\n".join(re.findall(r"^\|([^|]*)\|", README, flags=re.MULTILINE))
    for name in profile_names():
        assert f"`{name}`" in first_cells
        assert f"| `{name}` |" in DOCS["providers"]
    for form in FORMS.values():
        assert f"`{form.spelling}`" in DOCS["tasks"]


def test_pins_are_the_same_for_uv_and_pip() -> None:
    """constraints.txt and uv's constraints in pyproject.toml list the same versions, without any
    address.
    """
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("#")
    ]
    project = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'^  "([\w.\-]+==[^"]+)",$', project, flags=re.MULTILINE) == pins
    assert "://" not in "\n".join(pins)
