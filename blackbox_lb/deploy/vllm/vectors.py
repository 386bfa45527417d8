"""The vectors of a server's biases on its device: one stacked tensor, its rows by name, and the settings.

Settings are environment variables, because vLLM hands its plugins no options: ``BLB_BIAS_DIR`` and ``BLB_BIAS_DEFAULT``.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Callable, Collection, Set
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_tp_group
from vllm.tokenizers import cached_tokenizer_from_config

from blackbox_lb.bias.document import Bias
from blackbox_lb.deploy.bias_directory import BiasDirectory, Expected
from blackbox_lb.deploy.vllm.batch_rows import REFUSED, Shelf
from blackbox_lb.errors import BiasError
from blackbox_lb.vocabulary.tokenizer import PROBE_TEXT, fingerprint

ROOM = 8
"""Least slots of the table, so that a few more biases need no larger one while the server runs."""
FORBIDDEN = -1e9
"""Nats; finite, so that a row whose end token is also forbidden has no NaN."""
logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows records of its own loggers only


class VectorTable:
    """The vectors, one a row of a float32 tensor on the device; row ``NOTHING`` is zero, row ``REFUSED`` leaves the end token.

    The first tensor-parallel rank reads the files and hands them to the others: ranks that read at different times would
    sample different tokens.
    """

    def __init__(self, config: VllmConfig, device: torch.device) -> None:
        self._device, self._pin = device, device.type == "cuda"
        self._group = get_tp_group() if config.parallel_config.tensor_parallel_size > 1 else None
        self._shelf = Shelf()
        self._held: dict[str, array[float]] = {}
        self._width = config.model_config.get_vocab_size()
        self._directory: BiasDirectory[array[float]] | None = None
        names = self._on_first_rank(lambda: self._open(config))
        self._vectors = torch.zeros(max(ROOM, len(names) + REFUSED + 1), self._width, device=device)
        self._vectors[REFUSED] = FORBIDDEN
        end = _tokenizer(config).eos_token_id
        self._vectors[REFUSED, 0 if end is None else end] = 0.0
        self.slots(names, frozenset())
        size = self._vectors.numel() * self._vectors.element_size() / 2**20
        logger.info("LearnedBias: %s; %.1f MiB on %s", ", ".join(names) or "no bias yet", size, device)

    def slots(self, names: Collection[str], in_use: Set[int]) -> dict[str, int]:
        """The slot of each name. A changed file is first brought to the device."""
        if not names:
            return {}
        fresh, gone = self._on_first_rank(lambda: self._changed(names))
        for name, vector in fresh.items():
            self._store(name, vector, in_use, gone)
        found = {name: self._shelf.find(name) for name in names}
        for name in (name for name, slot in found.items() if slot is None):
            logger.error("bias %s was admitted but cannot be read beside the model: the request ends unanswered", name)
        return {name: REFUSED if slot is None else slot for name, slot in found.items()}

    def add_to_all(self, logits: torch.Tensor, slot: int) -> None:
        """Add one vector to every row."""
        logits[:, : self._width].add_(self._vectors[slot])

    def add(self, logits: torch.Tensor, index: torch.Tensor | None, slots: torch.Tensor) -> None:
        """Add the vector of ``slots[i]`` to row ``index[i]``, or to row i."""
        vectors = self._vectors.index_select(0, slots).to(logits.dtype)
        if index is None:
            logits[:, : self._width].add_(vectors)
        else:
            logits[:, : self._width].index_add_(0, index, vectors)

    def integers(self, values: list[int]) -> torch.Tensor:
        """The values on the device. Fresh memory each time: an earlier copy may still be under way."""
        return torch.tensor(values, dtype=torch.int64, pin_memory=self._pin).to(self._device, non_blocking=True)

    def _open(self, config: VllmConfig) -> list[str]:
        folder, default, expected = bias_folder(), default_bias(), expected_of(config)
        assert folder is not None  # the processor is inert without
        self._directory = BiasDirectory(folder, lambda bias: _vector(bias, expected), log=logger)
        if default is not None:
            self._directory.get(default)
        return [name for name in self._directory.names() if self._read(name) is not None]

    def _read(self, name: str) -> array[float] | None:
        assert self._directory is not None
        try:
            return self._directory.get(name)
        except BiasError:  # logged by the directory; the process that admits requests answers 400
            return None

    def _changed(self, names: Collection[str]) -> tuple[dict[str, array[float]], list[str]]:
        """The vectors among ``names`` that are not on the device yet, and the names there whose files are gone."""
        assert self._directory is not None
        read = {name: self._read(name) for name in sorted(names)}
        fresh = {name: v for name, v in read.items() if v is not None and v is not self._held.get(name)}
        if not fresh:
            return {}, []
        gone = sorted(set(self._shelf.names()) - set(self._directory.names()))
        self._held = {name: v for name, v in (self._held | fresh).items() if name not in gone}
        return fresh, gone

    def _store(self, name: str, vector: array[float], in_use: Set[int], gone: list[str]) -> None:
        slot = self._shelf.place(name, len(self._vectors), in_use, gone)
        if slot >= len(self._vectors):
            self._vectors = torch.cat([self._vectors, torch.zeros_like(self._vectors)])
        host = torch.frombuffer(vector, dtype=torch.float32)
        self._vectors[slot].copy_(host.pin_memory() if self._pin else host, non_blocking=True)
        logger.info("LearnedBias: bias %s read, slot %d of %d", name, slot, len(self._vectors))

    def _on_first_rank(self, work: Callable[[], Any]) -> Any:
        """The result, or the BiasError, of ``work`` on the first tensor-parallel rank, on every rank."""
        if self._group is None:
            return work()
        result: Any = None
        if self._group.rank_in_group == 0:
            try:
                result = work()
            except BiasError as error:
                result = error
        result = self._group.broadcast_object(result, src=0)
        if isinstance(result, BiasError):
            raise result
        return result


def bias_folder() -> Path | None:
    """The folder of the bias files, None where the server has none. Raises BiasError: a default without a folder."""
    folder = os.environ.get("BLB_BIAS_DIR")
    if not folder and default_bias() is not None:
        raise BiasError("BLB_BIAS_DEFAULT is set without BLB_BIAS_DIR; set BLB_BIAS_DIR to the folder of the bias files")
    return Path(folder) if folder else None


def default_bias() -> str | None:
    """The name of the bias for requests that name none, None for no bias."""
    return os.environ.get("BLB_BIAS_DEFAULT") or None


def _vector(bias: Bias, expected: Expected) -> array[float]:
    """The bias in nats for every logit, rounded to float32. Raises BiasError where it does not fit the model."""
    expected.check(bias.same_for_all("LearnedBias in vLLM"))
    vector = array("f", bytes(4 * expected.logits))
    for token, value in bias.logit_bias.items():
        vector[token] = value
        if not isfinite(vector[token]):
            raise BiasError(f"the bias of token {token} is {value} nats, beyond float32; fit it again")
    return vector


def _tokenizer(config: VllmConfig) -> Any:
    tokenizer = cached_tokenizer_from_config(config.model_config)
    if tokenizer is None:
        raise BiasError("the server has no tokenizer to check biases against; start it without --skip-tokenizer-init")
    return tokenizer


def expected_of(config: VllmConfig) -> Expected:
    """The server's requirements for a bias. Raises BiasError: a server without a tokenizer."""
    tokenizer = _tokenizer(config)
    ids = tokenizer.encode(PROBE_TEXT, add_special_tokens=False)
    return Expected(fingerprint(ids), len(tokenizer), config.model_config.get_vocab_size())
