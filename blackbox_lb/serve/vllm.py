"""A vLLM logits processor that adds whole learned vectors, kept on the device, to the rows of the requests that name them.

Start the server with ``BLB_BIAS_DIR`` set to a folder of bias files; a request names one by ``vllm_xargs: {"blb_bias": "name"}``,
all others get ``BLB_BIAS_DEFAULT``. Without ``BLB_BIAS_DIR`` it does nothing. It serves both model
runners of vLLM (interfaces: ``vllm.v1.sample.logits_processor`` and ``vllm.v1.worker.gpu.sample.logits_processor``).
"""

import logging
import sys
from collections.abc import Collection
from importlib.metadata import entry_points
from itertools import count
from typing import Any

import torch
from vllm import SamplingParams
from vllm.config import VllmConfig
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality
from vllm.v1.sample.logits_processor import LogitsProcessor as RunnerV1

from blackbox_lb.deploy.bias_directory import BiasDirectory, wanted
from blackbox_lb.deploy.vllm.batch_rows import NOTHING, Rows
from blackbox_lb.deploy.vllm.vectors import VectorTable, bias_folder, default_bias, expected_of
from blackbox_lb.errors import BiasError

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as RunnerV2
except ImportError:  # a vLLM whose second model runner takes no logits processors yet
    RunnerV2 = object

__all__ = ["LearnedBias"]

NAME = "blackbox_lb.serve.vllm:LearnedBias"
GROUP = "vllm.logits_processors"
logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows records of its own loggers only


class LearnedBias(RunnerV1, RunnerV2):  # type: ignore[misc]
    """Adds ``bias`` nats to the logits before temperature, as ``logit_bias`` does: ``softmax((logits + bias) / temperature)``.

    A request keeps the vector that it started with; one that was preempted takes the current one when it resumes.
    Raises BiasError at start: a folder, a default or a tokenizer that cannot be used.
    """

    def __init__(self, vllm_config: VllmConfig, place: Any, is_pin_memory: bool = False) -> None:
        self._runner: _RunnerV1 | _RunnerV2 | None = None
        if bias_folder() is None or not _is_first(vllm_config):
            return
        if isinstance(place, str | torch.device):
            self._runner = _RunnerV1(VectorTable(vllm_config, torch.device(place)))
        else:
            self._runner = _RunnerV2(VectorTable(vllm_config, torch.device(place.device)), place.max_num_reqs)

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise BiasError, which the server answers with 400, where a request cannot have the bias that it names."""
        name = _wanted(sampling_params)
        if name is not None:
            _admissible(_caller_config()).get(name)

    def is_argmax_invariant(self) -> bool:
        """False: a bias changes the likeliest token."""
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Runner V1, before each step: apply the changes of the batch, None for none."""
        if isinstance(self._runner, _RunnerV1) and batch_update is not None:
            self._runner.update(batch_update)

    def add_request(self, req_idx: int, sampling_params: SamplingParams) -> bool:
        """Runner V2: take the request now in this slot; return whether it is biased."""
        return isinstance(self._runner, _RunnerV2) and self._runner.add(req_idx, sampling_params)

    def apply_staged_writes(self) -> None:
        """Runner V2: run before each step."""
        if isinstance(self._runner, _RunnerV2):
            self._runner.flush()

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Add the vectors to ``logits`` (rows, vocabulary) in place."""
        if self._runner is not None:
            self._runner.apply(logits, ctx)
        return logits


class _RunnerV1:
    """The biased rows under vLLM's first runner, which reports rows added, removed and moved, at most once a step."""

    def __init__(self, table: VectorTable) -> None:
        self._table, self._rows = table, Rows()
        self._size = 0
        self._all: int | None = None
        self._index = self._slots = table.integers([])

    def update(self, change: BatchUpdate) -> None:
        names = {row: _named(params) for row, params, _, _ in change.added}
        slots = self._table.slots({name for name in names.values() if name}, set(self._rows.slot_of.values()))
        changed = self._rows.update(
            change.removed,
            [(row, slots[name] if name else NOTHING) for row, name in names.items()],
            [(source, target, way is MoveDirectionality.SWAP) for source, target, way in change.moved],
        )
        if changed or change.batch_size != self._size:
            self._prepare(change.batch_size)

    def _prepare(self, size: int) -> None:
        slot_of = self._rows.slot_of
        self._size = size
        self._all = _common(slot_of.values()) if len(slot_of) == size else None
        if self._all is None:
            self._index = self._table.integers(list(slot_of))
            self._slots = self._table.integers(list(slot_of.values()))

    def apply(self, logits: torch.Tensor, _: object) -> None:
        if not self._rows.slot_of:
            return
        if self._all is not None and len(logits) == self._size:
            self._table.add_to_all(logits, self._all)
        else:
            self._table.add(logits, self._index, self._slots)


class _RunnerV2:
    """The biased slots under vLLM's second runner, which reports new requests only, and at each step the slot of each row."""

    def __init__(self, table: VectorTable, requests: int) -> None:
        self._table = table
        self._slot_of = torch.zeros(requests, dtype=torch.int64).numpy()
        self._on_device = table.integers([NOTHING] * requests)
        self._stale = False

    def add(self, request: int, params: SamplingParams) -> bool:
        name = _named(params)
        slot = self._table.slots({name}, set(self._slot_of.tolist()))[name] if name else NOTHING
        self._stale |= bool(self._slot_of[request] != slot)
        self._slot_of[request] = slot
        return slot != NOTHING

    def flush(self) -> None:
        if self._stale:
            self._on_device = self._table.integers(self._slot_of.tolist())
            self._stale = False

    def apply(self, logits: torch.Tensor, context: Any) -> None:
        here = self._slot_of[context.idx_mapping_np]
        if not here.any():
            return
        if (here == here[0]).all():
            self._table.add_to_all(logits, int(here[0]))
        else:
            self._table.add(logits, None, self._on_device[context.expanded_idx_mapping])


def _wanted(params: SamplingParams) -> str | None:
    return wanted(params.extra_args, default_bias())


def _named(params: SamplingParams) -> str | None:
    """The requested name, beside the model, where an error would end the engine: an invalid name becomes one without a file."""
    try:
        return _wanted(params)
    except BiasError as error:
        return f"({error})"


_instances = count()


def _is_first(config: VllmConfig) -> bool:
    """Whether this is the first of the equal processors that vLLM makes when one is both installed and named."""
    installed = sum(point.value == NAME for point in entry_points(group=GROUP))
    named = sum(each in (NAME, LearnedBias) for each in config.model_config.logits_processors or ())
    return next(_instances) % max(1, installed + named) == 0


def _common(slots: Collection[int]) -> int | None:
    """The common value of all slots, None where they differ."""
    distinct = set(slots)
    return distinct.pop() if len(distinct) == 1 else None


_admissions: dict[int, tuple[VllmConfig, BiasDirectory[None]]] = {}
"""By identity of the configuration, which is kept so that no other takes its address."""


def _admissible(config: VllmConfig) -> BiasDirectory[None]:
    """The directory in the process that admits requests: it checks whether a bias fits, and builds no vector."""
    if id(config) not in _admissions:
        folder = bias_folder()
        if folder is None:
            raise BiasError("this server serves no biases; start it with BLB_BIAS_DIR set to the folder of the bias files")
        if config.speculative_config is not None and not config.use_v2_model_runner:
            raise BiasError(
                "this server cannot add a bias: vLLM's model runner V1 runs no logits processors under speculative decoding; "
                "start it without speculative decoding or with VLLM_USE_V2_MODEL_RUNNER=1"
            )
        _admissions[id(config)] = (config, BiasDirectory(folder, expected_of(config).check, log=logger))
    return _admissions[id(config)][1]


def _caller_config() -> VllmConfig:
    """The configuration of the server that validates a request: vLLM 0.32 does not pass it, but its input processor holds it."""
    frame = sys._getframe(1)
    while frame is not None:
        config = getattr(frame.f_locals.get("self"), "vllm_config", None)
        if isinstance(config, VllmConfig):
            return config
        frame = frame.f_back  # type: ignore[assignment]
    raise BiasError(
        "this vLLM validates requests in a way unknown to this version of blackbox-lb, so the bias cannot be checked "
        "against the served model; use vLLM 0.32 or upgrade blackbox-lb"
    )
