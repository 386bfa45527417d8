"""The vectors of a server's biases on its device: one stacked tensor, its rows by name, and the
settings.

Settings are environment variables, because vLLM hands its plugins no options: ``BLB_BIAS_DIR`` and
``BLB_BIAS_DEFAULT``.
"""

from __future__ import annotations

import logging
import os
from array import array
from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass
from functools import cache
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.distributed.parallel_state import get_tp_group
from vllm.tokenizers import cached_tokenizer_from_config

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.request_bias import RequestBias, to_request_bias
from blackbox_lb.deploy.bias_directory import Asked, BiasDirectory, Expected
from blackbox_lb.deploy.vllm.batch_rows import NOTHING, REFUSED, Placed, Shelf
from blackbox_lb.deploy.vllm.phase_table import PhaseTable
from blackbox_lb.errors import BiasError
from blackbox_lb.vocabulary import load_vocabulary
from blackbox_lb.vocabulary.tokenizer import PROBE_TEXT, fingerprint

ROOM = 8
"""Least slots of the table, so that a few more biases need no larger one while the server runs."""
FORBIDDEN = -1e9
"""Nats; finite, so that a row whose end token is also forbidden has no NaN."""
logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows records of its own loggers only


class VectorTable:
    """The vectors, one a row of a float32 tensor on the device; row ``NOTHING`` is zero, row
    ``REFUSED`` leaves the end token.

    The first tensor-parallel rank reads the files and hands them to the others: ranks that read at
    different times would sample different tokens.
    """

    def __init__(self, config: VllmConfig, device: torch.device) -> None:
        self._device = device
        self._pin = device.type == "cuda"
        self._group = get_tp_group() if config.parallel_config.tensor_parallel_size > 1 else None
        self._shelf = Shelf()
        self._held: dict[str, _Vectors] = {}
        self._tables: dict[str, PhaseTable | None] = {}
        self._by_prompt: dict[str, RequestBias] = {}
        self._rows: dict[tuple[str, Asked], tuple[int, ...]] = {}
        self._phases: dict[PhaseTable, tuple[torch.Tensor, torch.Tensor]] = {}
        self._width = config.model_config.get_vocab_size()
        self._directory: BiasDirectory[_Vectors] | None = None
        names = self._on_first_rank(lambda: self._open(config))
        self._vectors = torch.zeros(max(ROOM, len(names) + REFUSED + 1), self._width, device=device)
        self._vectors[REFUSED] = FORBIDDEN
        end = _tokenizer(config).eos_token_id
        self._vectors[REFUSED, 0 if end is None else end] = 0.0
        self.slots([Asked(name) for name in names], frozenset())
        size = self._vectors.numel() * self._vectors.element_size() / 2**20
        logger.info(
            "LearnedBias: %s; %.1f MiB on %s", ", ".join(names) or "no bias yet", size, device
        )

    def slots(self, requests: Collection[Asked], in_use: Set[int]) -> dict[Asked, Placed]:
        """The slots of each request. A changed file is first brought to the device."""
        if not requests:
            return {}
        names = {request.name for request in requests}
        for name, vectors in self._on_first_rank(lambda: self._changed(names)).items():
            self._store(name, vectors, in_use)
        placed: dict[Asked, Placed] = {}
        occupied = set(in_use)
        for request in requests:
            if request.name in self._by_prompt:
                placed[request] = self._of_prompt(request, occupied)
            else:
                placed[request] = self._placed(request.name)
            occupied.update(placed[request].slots)
        return placed

    def _of_prompt(self, request: Asked, occupied: set[int]) -> Placed:
        """The slots of a request whose prompt has vectors of its own, one for each phase. Requests
        with equal numbers share them while any of them runs.
        """
        bias = self._by_prompt[request.name]
        places = {label: place for place, label in enumerate(bias.names_of_numbers())}
        if request.numbers is None or any(label not in places for label, _ in request.numbers):
            logger.error(
                "bias %s has other features than when the request was admitted: it ends unanswered",
                request.name,
            )
            return Placed((REFUSED,))
        key = (bias.identity, request)
        slots = self._rows.get(key, ())
        if not slots or not occupied.issuperset(slots):
            numbers = {places[label]: number for label, number in request.numbers}
            slots = self._shelf.free(bias.phases.count, occupied)
            for phase, slot in enumerate(slots):
                self._fill(slot, _vector(bias.of_numbers(numbers, phase), self._width))
            in_use = {key for key, row in self._rows.items() if occupied.issuperset(row)}
            self._rows = {key: self._rows[key] for key in in_use} | {key: slots}
        return Placed(slots, self._tables[request.name])

    def _placed(self, name: str) -> Placed:
        slots = self._shelf.find(name)
        if slots is not None:
            return Placed(slots, self._tables[name])
        logger.error(
            "bias %s was admitted but cannot be read beside the model: the request ends unanswered",
            name,
        )
        return Placed((REFUSED,))

    def on_device(self, table: PhaseTable) -> tuple[torch.Tensor, torch.Tensor]:
        """(states x tokens,) the state after each token, and (states,) the phase of the features
        with texts.
        """
        if table not in self._phases:
            rows = table.steps.astype("int64").flatten(), table.held
            self._phases[table] = (
                torch.from_numpy(rows[0]).to(self._device),
                torch.from_numpy(rows[1]).to(self._device),
            )
        return self._phases[table]

    def add_to_all(self, logits: torch.Tensor, slot: int) -> None:
        """Add one vector to every row."""
        logits[:, : self._width].add_(self._vectors[slot])

    def add(self, logits: torch.Tensor, index: torch.Tensor | None, slots: torch.Tensor) -> None:
        """Add the vector of ``slots[i]`` to row ``index[i]``, or to row i."""
        if logits.is_cpu:  # row by row: a copy of all their vectors takes longer than the sums
            for place, slot in zip(
                range(len(slots)) if index is None else index.tolist(), slots.tolist(), strict=True
            ):
                if slot != NOTHING:
                    logits[place, : self._width].add_(self._vectors[slot].to(logits.dtype))
            return
        vectors = self._vectors.index_select(0, slots).to(logits.dtype)
        if index is None:
            logits[:, : self._width].add_(vectors)
        else:
            logits[:, : self._width].index_add_(0, index, vectors)

    def integers(self, values: list[int]) -> torch.Tensor:
        """The values on the device. Fresh memory each time: an earlier copy may still be under
        way.
        """
        return torch.tensor(values, dtype=torch.int64, pin_memory=self._pin).to(
            self._device, non_blocking=True
        )

    def _open(self, config: VllmConfig) -> list[str]:
        folder = bias_folder()
        default = default_bias()
        expected = expected_of(config)
        assert folder is not None  # the processor is inert without
        raws = cache(lambda: _raws(config, expected.logits))
        self._directory = BiasDirectory(
            folder, lambda bias: _vectors(bias, expected, raws), log=logger
        )
        if default is not None:
            self._directory.get(default)
        return [name for name in self._directory.names() if self._read(name) is not None]

    def _read(self, name: str) -> _Vectors | None:
        assert self._directory is not None
        try:
            return self._directory.get(name)
        except BiasError:  # logged by the directory; the process that admits requests answers 400
            return None

    def _changed(self, names: Collection[str]) -> dict[str, _Vectors]:
        """The vectors among ``names`` that are not on the device yet."""
        assert self._directory is not None
        read = {name: self._read(name) for name in sorted(names)}
        fresh = {
            name: v for name, v in read.items() if v is not None and v is not self._held.get(name)
        }
        self._held |= fresh
        return fresh

    def _store(self, name: str, vectors: _Vectors, in_use: Set[int]) -> None:
        self._tables[name] = vectors.table
        self._by_prompt.pop(name, None)
        if vectors.by_prompt is not None:
            self._by_prompt[name] = vectors.by_prompt
        slots = self._shelf.place(name, len(vectors.of_phase), in_use)
        for slot, vector in zip(slots, vectors.of_phase, strict=True):
            self._fill(slot, vector)
            logger.info("LearnedBias: bias %s read, slot %d of %d", name, slot, len(self._vectors))

    def _fill(self, slot: int, vector: array[float]) -> None:
        """Put a vector into a slot; the table grows where it has none of that number."""
        while slot >= len(self._vectors):
            self._vectors = torch.cat([self._vectors, torch.zeros_like(self._vectors)])
        host = torch.frombuffer(vector, dtype=torch.float32)
        self._vectors[slot].copy_(host.pin_memory() if self._pin else host, non_blocking=True)

    def _on_first_rank(self, work: Callable[[], Any]) -> Any:
        """The result, or the BiasError, of ``work`` on the first tensor-parallel rank, on every
        rank.
        """
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
    """The folder of the bias files, None where the server has none. Raises BiasError: a default
    without a folder.
    """
    folder = os.environ.get("BLB_BIAS_DIR")
    if not folder and default_bias() is not None:
        raise BiasError(
            "BLB_BIAS_DEFAULT is set without BLB_BIAS_DIR; set BLB_BIAS_DIR to the folder of the"
            " bias files"
        )
    if not folder:
        return None
    return Path(folder)


def default_bias() -> str | None:
    """The name of the bias for requests that name none, None for no bias."""
    return os.environ.get("BLB_BIAS_DEFAULT") or None


@dataclass(frozen=True, eq=False)
class _Vectors:
    """of_phase: in nats for every logit, one vector without phases, none where they depend on the
    prompt. table: of the phases. by_prompt: what computes the vectors of a prompt.
    """

    of_phase: tuple[array[float], ...]
    table: PhaseTable | None
    by_prompt: RequestBias | None = None


def _vectors(bias: Bias, expected: Expected, raws: Callable[[], list[bytes]]) -> _Vectors:
    """The bias rounded to float32. Raises BiasError where it does not fit the model. raws: the
    bytes of each token.
    """
    expected.check(bias)
    sent = to_request_bias(bias)
    phases = sent.phases
    table = None
    if phases.features:
        table = PhaseTable.of(phases, raws() if phases.until else [b""] * expected.logits)
    if "prompt" in sent.scopes:
        sent.vectors = None  # requests bring their numbers; a model has a lock, which no rank sends
        return _Vectors((), table, sent)
    of_phase = [sent.of_text(None, phase) for phase in range(phases.count)]
    return _Vectors(tuple(_vector(values, expected.logits) for values in of_phase), table)


def _vector(values: Mapping[int, float], size: int) -> array[float]:
    vector = array("f", bytes(4 * size))
    for token, value in values.items():
        vector[token] = value
        if not isfinite(vector[token]):
            raise BiasError(
                f"the bias of token {token} is {value} nats, beyond float32; fit it again"
            )
    return vector


def _raws(config: VllmConfig, size: int) -> list[bytes]:
    """(size,) the bytes of each token id, none for those that are no tokens. Raises BiasError: a
    tokenizer without a vocabulary.
    """
    backend = getattr(_tokenizer(config), "backend_tokenizer", None)
    if backend is None:
        raise BiasError(
            "the server's tokenizer tells no bytes of its tokens, so that no text of a phase is"
            " found; use a fast one"
        )
    with TemporaryDirectory() as folder:
        backend.save(str(Path(folder, "tokenizer.json")))
        vocabulary = load_vocabulary(Path(folder, "tokenizer.json"))
    return [vocabulary.bytes_of(token) or b"" for token in range(size)]


def _tokenizer(config: VllmConfig) -> Any:
    tokenizer = cached_tokenizer_from_config(config.model_config)
    if tokenizer is None:
        raise BiasError(
            "the server has no tokenizer to check biases against; start it without"
            " --skip-tokenizer-init"
        )
    return tokenizer


def expected_of(config: VllmConfig) -> Expected:
    """The server's requirements for a bias. Raises BiasError: a server without a tokenizer."""
    tokenizer = _tokenizer(config)
    ids = tokenizer.encode(PROBE_TEXT, add_special_tokens=False)
    return Expected(fingerprint(ids), len(tokenizer), config.model_config.get_vocab_size())
