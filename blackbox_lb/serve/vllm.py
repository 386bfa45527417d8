"""A vLLM logits processor that adds whole learned vectors, kept on the device, to the rows of the
requests that name them.

Start the server with ``BLB_BIAS_DIR`` set to a folder of bias files; a request names one by
``vllm_xargs: {"blb_bias": "name"}``, all others get ``BLB_BIAS_DEFAULT``. Where the bias depends on
the prompt, a request brings its numbers as ``blb_features``. Without ``BLB_BIAS_DIR``
it does nothing. It serves both model runners of vLLM (interfaces:
``vllm.v1.sample.logits_processor`` and ``vllm.v1.worker.gpu.sample.logits_processor``).
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

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.request_bias import phases_of_features, to_request_bias
from blackbox_lb.deploy.bias_directory import Asked, BiasDirectory, Expected
from blackbox_lb.deploy.vllm.batch_rows import NOTHING, Placed, Rows, Seat
from blackbox_lb.deploy.vllm.phase_table import PhaseTable
from blackbox_lb.deploy.vllm.vectors import VectorTable, bias_folder, default_bias, expected_of
from blackbox_lb.errors import BiasError

try:
    from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as RunnerV2
except ImportError:  # a vLLM whose second model runner takes no logits processors yet
    RunnerV2 = object

__all__ = ["LearnedBias"]

NAME = "blackbox_lb.serve.vllm:LearnedBias"
GROUP = "vllm.logits_processors"
MOST_OF_A_REQUEST = 1024
"""Entries of a request's own ``logit_bias`` under model runner V2 (vLLM 0.32,
MAX_NUM_LOGIT_BIAS_TOKENS).
"""
NO_BIAS = Placed((NOTHING,))
logger = logging.getLogger(f"vllm.{__name__}")  # vLLM shows records of its own loggers only


class LearnedBias(RunnerV1, RunnerV2):  # type: ignore[misc]
    """Adds ``bias`` nats to the logits before temperature, as ``logit_bias`` does:
    ``softmax((logits + bias) / temperature)``.

    A request keeps the vector that it started with; one that was preempted takes the current one
    when it resumes. Raises BiasError at start: a folder, a default or a tokenizer that cannot be
    used.
    """

    def __init__(self, vllm_config: VllmConfig, place: Any, is_pin_memory: bool = False) -> None:
        self._runner: _RunnerV1 | _RunnerV2 | None = None
        if bias_folder() is None or not _is_first(vllm_config):
            return
        if isinstance(place, str | torch.device):
            self._runner = _RunnerV1(VectorTable(vllm_config, torch.device(place)))
        else:
            drafts = getattr(vllm_config.speculative_config, "num_speculative_tokens", None) or 0
            self._runner = _RunnerV2(
                VectorTable(vllm_config, torch.device(place.device)), place, drafts
            )

    @classmethod
    def validate_params(cls, sampling_params: SamplingParams) -> None:
        """Raise BiasError, which the server answers with 400, where a request cannot have the bias
        that it names.
        """
        if (
            len(sampling_params.logit_bias or ()) > MOST_OF_A_REQUEST
            and _caller_config().use_v2_model_runner
        ):
            raise BiasError(
                f"a logit_bias of {len(sampling_params.logit_bias):,} entries would end the engine:"
                f" vLLM's model runner V2 takes {MOST_OF_A_REQUEST:,}; send fewer, or serve the"
                " bias as a file"
            )
        request = Asked.of(sampling_params.extra_args, default_bias())
        if request is not None:
            request.check(_admissible(_caller_config()).get(request.name))

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
    """The biased rows under vLLM's first runner, which reports rows added, removed and moved, at
    most once a step.
    """

    def __init__(self, table: VectorTable) -> None:
        self._table = table
        self._rows = Rows()
        self._size = 0
        self._slots: list[int] = []
        self._all: int | None = None
        self._index = self._of_index = table.integers([])

    def update(self, change: BatchUpdate) -> None:
        joined = {row: (_asked(params), tokens) for row, params, _, tokens in change.added}
        requests = {request for request, _ in joined.values() if request is not None}
        placed = self._table.slots(requests, self._rows.in_use)
        changed = self._rows.update(
            change.removed,
            [
                (row, None if request is None else Seat(placed[request], tokens))
                for row, (request, tokens) in joined.items()
            ],
            [
                (source, target, way is MoveDirectionality.SWAP)
                for source, target, way in change.moved
            ],
        )
        if changed or change.batch_size != self._size:
            self._size = change.batch_size
            self._slots = []

    def apply(self, logits: torch.Tensor, _: object) -> None:
        seats = self._rows.seat_of
        if not seats:
            return
        slots = [seat.slot for seat in seats.values()]
        if slots != self._slots:  # the batch changed, or the phase of a row
            self._slots = slots
            self._all = None
            if len(seats) == self._size:
                self._all = _common(slots)
            if self._all is None:
                self._index = self._table.integers(list(seats))
                self._of_index = self._table.integers(slots)
        if self._all is not None and len(logits) == self._size:
            self._table.add_to_all(logits, self._all)
        else:
            self._table.add(logits, self._index, self._of_index)


class _RunnerV2:
    """The biased slots under vLLM's second runner, which reports new requests only, and at each
    step the slot of each row.

    The phase of a row is computed on the device, where its tokens are: no step waits for them.
    """

    def __init__(self, table: VectorTable, requests: Any, drafts: int) -> None:
        self._table = table
        self._requests = requests
        self._drafts = drafts
        size = requests.max_num_reqs
        self._placed = [NO_BIAS] * size
        self._fresh = set[int]()
        self._stale = set[int]()
        self._slots = table.integers([NOTHING] * size).view(size, 1)
        self._tables: list[PhaseTable] = []
        self._table_of = self._state = self._read = table.integers([0] * size)

    def add(self, request: int, params: SamplingParams) -> bool:
        bias_request = _asked(params)
        placed = NO_BIAS
        if bias_request is not None:
            in_use = {slot for seated in self._placed for slot in seated.slots}
            placed = self._table.slots([bias_request], in_use)[bias_request]
        if placed != self._placed[request]:
            self._stale.add(request)
        self._placed[request] = placed
        if placed.table is not None:
            self._fresh.add(request)
            self._stale.add(request)
        return placed is not NO_BIAS

    def flush(self) -> None:
        if not self._stale:
            return
        self._tables = list(
            dict.fromkeys(placed.table for placed in self._placed if placed.table is not None)
        )
        width = max(len(placed.slots) for placed in self._placed)
        slots = [
            slot
            for placed in self._placed
            for slot in (*placed.slots, *[NOTHING] * (width - len(placed.slots)))
        ]
        self._slots = self._table.integers(slots).view(-1, width)
        self._table_of = self._table.integers(
            [0 if p.table is None else 1 + self._tables.index(p.table) for p in self._placed]
        )
        unchanged = self._table.integers(
            [number not in self._stale for number in range(len(self._placed))]
        )
        self._state = self._state * unchanged
        self._read = self._read * unchanged
        self._stale.clear()

    def apply(self, logits: torch.Tensor, context: Any) -> None:
        batch = context.idx_mapping_np.tolist()
        placements = {self._placed[request] for request in batch}
        if placements == {NO_BIAS}:
            return
        if len(placements) == 1 and not self._tables:
            self._table.add_to_all(logits, placements.pop().slots[0])
            return
        rows = context.expanded_idx_mapping
        slots = self._slots[rows, 0]
        for number, table in enumerate(self._tables, 1):
            if any(placed.table is table for placed in placements):
                phases = self._phases(number, table, batch, context)
                slots = torch.where(
                    self._table_of[rows] == number, self._slots[rows, phases], slots
                )
        self._table.add(logits, None, slots)

    def _phases(
        self, number: int, table: PhaseTable, batch: list[int], context: Any
    ) -> torch.Tensor:
        """(rows,) the number of the phase of each row, by this table."""
        requests = self._requests
        at = context.idx_mapping.long()
        (steps, phase_of_state) = self._table.on_device(table)
        width = table.steps.shape[1]
        fresh = [
            place
            for place, request in enumerate(batch)
            if request in self._fresh and self._placed[request].table is table
        ]
        most = (
            1 + self._drafts
        )  # tokens since the step before; after a preemption all, of which the host knows a bound
        for place in fresh:
            most = max(
                most,
                int(context.seq_lens_upper_bound_np[place])
                - int(requests.prompt_len.np[batch[place]]),
            )
        self._fresh.difference_update(batch[place] for place in fresh)
        start = requests.prompt_len.gpu[at].long()
        tokens = requests.all_token_ids.gpu
        mine = self._table_of[at] == number
        completion_tokens = torch.where(mine, requests.total_len.gpu[at].long() - start, 0)
        state = self._state[at]
        read = self._read[at]
        for _ in range(most):
            token = (
                tokens[at, torch.clamp(start + read, max=tokens.shape[1] - 1)]
                .long()
                .clamp(0, width - 1)
            )
            more = read < completion_tokens
            state = torch.where(more, steps[torch.where(more, state, 0) * width + token], state)
            read = read + more.long()
        self._state[at] = state
        self._read[at] = read
        rows = context.expanded_idx_mapping
        local = context.expanded_local_pos
        of_row = torch.where(self._table_of[rows] == number, self._state[rows], 0)
        for draft in range(1, self._drafts + 1):  # the row of a draft follows the row before it
            after = steps[
                torch.roll(of_row, 1) * width + context.input_ids.long().clamp(0, width - 1)
            ]
            of_row = torch.where(local == draft, after, of_row)
        in_first = self._read[rows] + local < table.phases.first
        return phase_of_state[of_row] + torch.where(in_first, table.phases.held_first, 0)


def _asked(params: SamplingParams) -> Asked | None:
    """The requested bias, beside the model, where an error would end the engine: an invalid request
    becomes one for a name without a file.
    """
    try:
        return Asked.of(params.extra_args, default_bias())
    except BiasError as error:
        return Asked(f"({error})")


_instances = count()


def _is_first(config: VllmConfig) -> bool:
    """Whether this is the first of the equal processors that vLLM makes when one is both installed
    and named.
    """
    installed = sum(point.value == NAME for point in entry_points(group=GROUP))
    named = sum(
        processor in (NAME, LearnedBias)
        for processor in config.model_config.logits_processors or ()
    )
    return next(_instances) % max(1, installed + named) == 0


def _common(slots: Collection[int]) -> int | None:
    """The common value of all slots, None where they differ."""
    distinct = set(slots)
    if len(distinct) != 1:
        return None
    return distinct.pop()


_admissions: dict[int, tuple[VllmConfig, BiasDirectory[frozenset[str] | None]]] = {}
"""By identity of the configuration, which is kept so that no other takes its address."""


def _admissible(config: VllmConfig) -> BiasDirectory[frozenset[str] | None]:
    """The directory in the process that admits requests: it checks whether a bias fits, and builds
    no vector.
    """
    if id(config) not in _admissions:
        folder = bias_folder()
        if folder is None:
            raise BiasError(
                "this server serves no biases; start it with BLB_BIAS_DIR set to the folder of the"
                " bias files"
            )
        if config.speculative_config is not None and not config.use_v2_model_runner:
            raise BiasError(
                "this server cannot add a bias: vLLM's model runner V1 runs no logits processors"
                " under speculative decoding; start it without speculative decoding or with"
                " VLLM_USE_V2_MODEL_RUNNER=1"
            )
        expected = expected_of(config)
        _admissions[id(config)] = (
            config,
            BiasDirectory(folder, lambda bias: _check(bias, config, expected), log=logger),
        )
    return _admissions[id(config)][1]


def _check(bias: Bias, config: VllmConfig, expected: Expected) -> frozenset[str] | None:
    """The names of the numbers that a request brings of its prompt, None where it brings none.
    Raises BiasError where the server cannot add this bias.
    """
    expected.check(bias)
    bias.check_scopes(("prompt", "prefix"), "vLLM's logits processor")
    late = config.scheduler_config.async_scheduling and NAME not in (
        config.model_config.logits_processors or ()
    )
    if late and not config.use_v2_model_runner and phases_of_features(bias.features).until:
        raise BiasError(
            "the phases of this bias depend on the drawn tokens, and model runner V1 keeps these"
            " from a processor that is not named on the command line; start it with"
            f" --logits-processors {NAME}, or with --no-async-scheduling"
        )
    sent = to_request_bias(bias)
    if "prompt" in sent.scopes:
        return frozenset(sent.names_of_numbers())
    return None


def _caller_config() -> VllmConfig:
    """The configuration of the server that validates a request: vLLM 0.32 does not pass it, but its
    input processor holds it.
    """
    frame = sys._getframe(1)
    while frame is not None:
        config = getattr(frame.f_locals.get("self"), "vllm_config", None)
        if isinstance(config, VllmConfig):
            return config
        frame = frame.f_back  # type: ignore[assignment]
    raise BiasError(
        "this vLLM validates requests in a way unknown to this version of blackbox-lb, so the bias"
        " cannot be checked against the served model; use vLLM 0.32 or upgrade blackbox-lb"
    )
