"""The table of vectors beside the model, on a double of torch made of numpy: what a request of a bias
by features gets is what a client would send.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from blackbox_lb import vllm_xargs
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.features import FeatureVector, Routes, Words, bucket_of
from blackbox_lb.bias.phases import Prefix
from blackbox_lb.deploy.bias_directory import Asked
from blackbox_lb.deploy.vllm.batch_rows import REFUSED, Placed, Seat
from blackbox_lb.types import Prompt
from blackbox_lb.vocabulary.tokenizer import fingerprint
from tests.support.biases import phased_bias

IDS = [3, 1, 4]
TOKENS = 9
LETTERS = [*(bytes([97 + token]) for token in range(TOKENS))]


class Tensor(np.ndarray):
    """As much of a tensor as the table needs."""

    def copy_(self, other: Any, non_blocking: bool = False) -> None:
        """Take the values of another one."""
        del non_blocking
        self[...] = other

    def numel(self) -> int:
        """Its numbers."""
        return int(self.size)

    def element_size(self) -> int:
        """Bytes of one."""
        return int(self.itemsize)


class Tokenizer:
    """Of a model with as many tokens as logits."""

    eos_token_id = 0

    def __len__(self) -> int:
        return TOKENS

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Always the same ids."""
        del text, add_special_tokens
        return IDS


def double() -> dict[str, ModuleType]:
    """Modules that stand for torch and vLLM."""
    torch = ModuleType("torch")
    torch.__dict__.update(
        Tensor=Tensor,
        device=object,
        float32=np.float32,
        zeros=lambda *shape, device=None: np.zeros(shape, np.float32).view(Tensor),
        zeros_like=lambda tensor: np.zeros_like(tensor).view(Tensor),
        cat=lambda parts: np.concatenate(parts).view(Tensor),
        frombuffer=lambda values, dtype: np.frombuffer(values, dtype),
    )
    modules = {"torch": torch}
    for name in ("vllm", "vllm.config", "vllm.distributed", "vllm.tokenizers"):
        modules[name] = ModuleType(name)
    state = ModuleType("vllm.distributed.parallel_state")
    modules["vllm.distributed.parallel_state"] = state
    modules["vllm.config"].__dict__["VllmConfig"] = object
    state.__dict__["get_tp_group"] = None
    modules["vllm.tokenizers"].__dict__["cached_tokenizer_from_config"] = lambda _: Tokenizer()
    return modules


@pytest.fixture
def vectors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module of the table on these doubles, and a folder of biases."""
    for name, module in double().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.delitem(sys.modules, "blackbox_lb.deploy.vllm.vectors", raising=False)
    monkeypatch.setenv("BLB_BIAS_DIR", str(tmp_path))
    monkeypatch.setattr("blackbox_lb.deploy.bias_directory.CHECK_SECONDS", 0.0)
    module = importlib.import_module("blackbox_lb.deploy.vllm.vectors")
    monkeypatch.setattr(module, "_raws", lambda config, size: LETTERS)
    yield module
    sys.modules.pop("blackbox_lb.deploy.vllm.vectors", None)


def by_prompt(spec: str = "first") -> Bias:
    """A bias of two words and a route, with phases."""
    rng = np.random.default_rng(0)

    def vector(name: str, bucket: int | None = None) -> FeatureVector:
        values = tuple(rng.normal(size=TOKENS).round(3).tolist())
        return FeatureVector(name=name, bucket=bucket, values=values)

    words = Words(vectors=tuple(vector(word, bucket_of(word)) for word in ("red", "blue")))
    routes = Routes(routes=(("sum", r"\d"),), vectors=(vector("sum"),))
    wholes = [dict(enumerate(rng.normal(size=TOKENS).tolist())) for _ in range(3)]
    count = 2 if "," not in spec else 3
    return phased_bias(
        spec,
        wholes[:count],
        features=(words, routes),
        tokenizer=fingerprint(IDS),
        vocab_size=TOKENS,
    )


def table(module: Any) -> Any:
    """A table on one device."""
    config = SimpleNamespace(
        model_config=SimpleNamespace(get_vocab_size=lambda: TOKENS),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )
    return module.VectorTable(config, SimpleNamespace(type="cpu"))


def asked(bias: Bias, text: str) -> Asked:
    """What a request with this prompt asks for."""
    found = Asked.of(vllm_xargs(bias, "b", messages=text), None)
    assert found is not None
    return found


@pytest.mark.parametrize("spec", ["first", "first,after:c", "only-first"])
def test_each_request_gets_what_a_client_would_send(
    spec: str, vectors: Any, tmp_path: Path
) -> None:
    """In every phase; requests with equal numbers share their slots while one of them runs."""
    bias = by_prompt(spec)
    bias.save(tmp_path / "b.json")
    made = table(vectors)
    texts = [f"{colour} {number}" for colour in ("red", "blue", "red blue", "") for number in "a1"]
    in_use: set[int] = set()
    placed_of: dict[Asked, Placed] = {}
    for text in [*texts, *texts]:
        wanted = asked(bias, text)
        placed = made.slots([wanted], in_use)[wanted]
        if wanted in placed_of:
            assert placed == placed_of[wanted]
        else:
            assert in_use.isdisjoint(placed.slots)
        placed_of[wanted] = placed
        in_use.update(placed.slots)
        drawn: list[int] = []
        seat = Seat(placed, drawn)
        for token in (0, 2, 4):
            prefix = Prefix(len(drawn), b"".join(LETTERS[each] for each in drawn))
            sent = bias.at(Prompt.user(text), prefix)
            row = [sent.get(number, 0.0) for number in range(TOKENS)]
            np.testing.assert_allclose(made._vectors[seat.slot], row, atol=1e-6)
            drawn.append(token)
    assert len(in_use) == len(placed_of) * len(placed.slots)


def test_slots_of_requests_that_ended_are_used_again(vectors: Any, tmp_path: Path) -> None:
    """A thousand different prompts, one after the other, need no more room than one."""
    bias = by_prompt()
    bias.save(tmp_path / "b.json")
    made = table(vectors)
    for number in range(1_000):
        wanted = Asked("b", (("words:" + str(bucket_of("red")), number / 1_000),))
        made.slots([wanted], set())
    assert len(made._vectors) == vectors.ROOM
    assert len(made._rows) == 1
    both = [Asked("b", ((f"words:{bucket_of('red')}", part),)) for part in (0.25, 0.75)]
    placed = made.slots(both, set())
    assert not set(placed[both[0]].slots) & set(placed[both[1]].slots)


def test_numbers_of_another_file_end_the_request(vectors: Any, tmp_path: Path) -> None:
    """They were checked where the request was admitted; beside the model nothing raises."""
    by_prompt().save(tmp_path / "b.json")
    made = table(vectors)
    for wanted in (Asked("b"), Asked("b", (("words:1", 1.0),)), Asked("none such")):
        assert made.slots([wanted], set())[wanted] == Placed((REFUSED,))
