"""The page on Python and the notebook, run from top to bottom with the embedded engine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import nbclient
import nbformat
import pytest

from tests.support.exact import ExactServer
from tests.support.labelled import DECIDER, labelled_rows
from tests.support.questions import write_rows

pytestmark = pytest.mark.live
DOCS = Path(__file__).parents[2] / "docs"
SIZES = '"limit": 40, "validation_limit": 16, "test_limit": 24, "samples_per_prompt": 6'
FEWER = '"limit": 6, "validation_limit": 2, "test_limit": 4, "samples_per_prompt": 2'
"""A page that runs with fewer prompts runs with more."""
VERDICTS = ("HELPS", "NO EVIDENCE", "NOT SHOWN TO PAY")
"""One of them is given: few prompts, and chance."""


@pytest.fixture
def server() -> Iterator[ExactServer]:
    """In place of the reader's server: the labels of the tickets are those of its model."""
    with ExactServer(DECIDER) as running:
        yield running


def test_the_page_is_one_program(
    server: ExactServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block of docs/python.md, in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    write_rows(Path("tickets.jsonl"), labelled_rows(DECIDER))
    page = (DOCS / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", page, flags=re.MULTILINE | re.DOTALL)
    assert blocks
    program = "\n".join(blocks).replace('"vllm"', '"llamacpp"')
    assert SIZES in program
    program = program.replace(SIZES, FEWER)
    program = program.replace("http://127.0.0.1:8000/v1", server.base_url)
    namespace: dict[str, object] = {"__name__": "program"}
    exec(compile(program, "python.md", "exec"), namespace)
    assert str(namespace["run"]).startswith(VERDICTS)
    assert (tmp_path / "runs" / "tickets" / "bias.json").is_file()


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cell of docs/notebook.ipynb ends without an error, in a kernel of its own, and the run
    is shown as HTML, with whatever verdict so few prompts give: ``test_fit`` has one that helps.
    """
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook = nbformat.read(DOCS / "notebook.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    fit = next(cell for cell in notebook.cells if "test_limit=40" in cell.source)
    fit.source = fit.source.replace("test_limit=40", "limit=20, validation_limit=2, test_limit=4")
    client = nbclient.NotebookClient(
        notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}
    )
    client.execute()
    outputs = [
        output.data
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
        if output.output_type == "execute_result"
    ]
    pages = [data["text/html"] for data in outputs if "text/html" in data]
    assert len(pages) == 1
    assert pages[0].startswith(tuple(f"<pre>{verdict}" for verdict in VERDICTS))
