"""The logits processor against a reference, through vLLM's own types; needs torch and vLLM, not an
engine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.records import Entry
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import BiasError
from blackbox_lb.vocabulary.tokenizer import fingerprint
from tests.support.biases import phased_bias
from tests.support.errors import raises_naming

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from vllm import SamplingParams  # noqa: E402
from vllm.v1.sample import logits_processor as v1  # noqa: E402

from blackbox_lb.deploy.vllm import vectors as table  # noqa: E402
from blackbox_lb.serve import vllm as served  # noqa: E402

IDS = [3, 1, 4, 1, 5]
TOKENS, LOGITS, END = 11, 12, 2
REQUESTS = 6
ORDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def values(seed: int) -> np.ndarray:
    """A dense bias (tokens,), exact in float32."""
    return np.random.default_rng(seed).normal(0, 1, TOKENS).astype(np.float32)


def save(folder: Path, name: str, bias: np.ndarray, ids: list[int] = IDS) -> None:
    """A bias file for the tokenizer that makes ``ids`` of the probe text."""
    entries = tuple(Entry(id=token, bias=float(value)) for token, value in enumerate(bias))
    Bias(
        provider="vllm",
        model="m",
        tokenizer=fingerprint(ids),
        vocab_size=TOKENS,
        reward="r",
        estimator="e",
        entries=entries,
    ).save(folder / f"{name}.json")


class Tokenizer:
    """Of a model with 11 tokens and 12 logits."""

    eos_token_id = END

    def __len__(self) -> int:
        return TOKENS

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        """Always the same ids."""
        assert not add_special_tokens
        return IDS


def config(**changes: Any) -> SimpleNamespace:
    """What the processor reads of vLLM's configuration."""
    model = SimpleNamespace(
        get_vocab_size=lambda: LOGITS, logits_processors=changes.pop("logits_processors", None)
    )
    parallel = SimpleNamespace(tensor_parallel_size=changes.pop("ranks", 1))
    scheduler = SimpleNamespace(async_scheduling=changes.pop("async_scheduling", False))
    fields = {
        "speculative_config": None,
        "use_v2_model_runner": False,
        "scheduler_config": scheduler,
    } | changes
    return SimpleNamespace(model_config=model, parallel_config=parallel, **fields)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The server's folder with biases a and b, found through the environment; files are looked at
    whenever asked.
    """
    for seed, name in enumerate(("a", "b")):
        save(tmp_path, name, values(seed))
    monkeypatch.setenv("BLB_BIAS_DIR", str(tmp_path))
    monkeypatch.delenv("BLB_BIAS_DEFAULT", raising=False)
    monkeypatch.setattr(table, "cached_tokenizer_from_config", lambda _: Tokenizer())
    monkeypatch.setattr(served, "VllmConfig", SimpleNamespace)
    monkeypatch.setattr("blackbox_lb.deploy.bias_directory.CHECK_SECONDS", 0.0)
    return tmp_path


def params(name: str | None) -> SamplingParams:
    """The parameters of a request that names a bias."""
    return SamplingParams(extra_args=None if name is None else {"blb_bias": name})


def change(
    size: int,
    added: dict[int, str | None],
    removed: tuple[int, ...] = (),
    moved: tuple[Any, ...] = (),
) -> v1.BatchUpdate:
    """One change of the first runner's batch."""
    rows: list[Any] = [(row, params(name), [1], []) for row, name in added.items()]
    return v1.BatchUpdate(batch_size=size, removed=list(removed), added=rows, moved=list(moved))


def first(**changes: Any) -> served.LearnedBias:
    """The processor as the first runner makes it."""
    return served.LearnedBias(config(**changes), torch.device("cpu"), False)


def second() -> served.LearnedBias:
    """The processor as the second runner makes it."""
    state = SimpleNamespace(device=torch.device("cpu"), max_num_reqs=REQUESTS, vocab_size=LOGITS)
    return served.LearnedBias(config(use_v2_model_runner=True), state)


def expected(logits: Any, names: Sequence[str | None]) -> Any:
    """The logits with each row's bias, row by row."""
    vectors = {"a": values(0), "b": values(1)}
    result = logits.clone()
    for row, name in enumerate(names):
        if name in vectors:
            result[row, :TOKENS] += torch.from_numpy(vectors[name])
    return result


NAMES = st.sampled_from([None, "none", "a", "b"])


@ORDER
@given(
    st.lists(
        st.tuples(st.lists(st.integers(0, REQUESTS - 1), unique=True), st.lists(NAMES, max_size=4)),
        max_size=8,
    )
)
def test_the_first_runner_adds_each_row_its_vector(
    steps: list[tuple[list[int], list[str | None]]],
) -> None:
    """Through departures, arrivals in freed rows and at the end, condensing moves and swaps, as
    vLLM's batch makes them.
    """
    processor, batch = first(), list[str | None]()
    for leaving, coming in steps:
        empty = sorted({row for row in leaving if row < len(batch)})
        added: dict[int, str | None] = {}
        for name in coming[: REQUESTS - len(batch) + len(empty)]:
            row = empty.pop(0) if empty else len(batch)
            batch[row : row + 1] = [name]
            added[row] = name
        removed, moved = tuple(reversed(empty)), []
        for row in reversed(removed):
            while len(batch) - 1 in empty and len(batch) - 1 > row:
                batch.pop()
            if row < len(batch):
                last = batch.pop()
                if row < len(batch):
                    batch[row] = last
                    moved.append((len(batch), row, v1.MoveDirectionality.UNIDIRECTIONAL))
        if len(batch) > 1:
            batch[0], batch[-1] = batch[-1], batch[0]
            moved.append((0, len(batch) - 1, v1.MoveDirectionality.SWAP))
        processor.update_state(change(len(batch), added, removed, tuple(moved)))
        logits = torch.randn(len(batch), LOGITS)
        for _ in range(2):
            assert torch.equal(processor.apply(logits.clone()), expected(logits, batch))
            processor.update_state(None)


@ORDER
@given(st.lists(st.tuples(st.integers(0, REQUESTS - 1), NAMES), min_size=1, max_size=12), st.data())
def test_the_second_runner_adds_each_row_its_vector(
    joins: list[tuple[int, str | None]], data: st.DataObject
) -> None:
    """Slots are taken again, batches are any of them in any order, and drafts give a request
    several rows.
    """
    processor, slots = second(), dict[int, str | None]()
    for slot, name in joins:
        assert processor.add_request(slot, params(name)) == (name in ("a", "b"))
        slots[slot] = name
        processor.apply_staged_writes()
        order = data.draw(st.permutations(sorted(slots)))
        rows = [each for each in order for _ in range(data.draw(st.integers(1, 3)))]
        context = SimpleNamespace(
            idx_mapping_np=np.array(order), expanded_idx_mapping=torch.tensor(rows)
        )
        logits = torch.randn(len(rows), LOGITS)
        assert torch.equal(
            processor.apply(logits.clone(), context),
            expected(logits, [slots[each] for each in rows]),
        )


def test_loaded_twice_it_adds_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed and named on the command line, vLLM makes two processors, also when it builds its
    batch again.
    """
    monkeypatch.setattr(served, "entry_points", lambda group: [SimpleNamespace(value=served.NAME)])
    logits = torch.zeros(1, LOGITS)
    for _ in range(2):
        result = logits.clone()
        for processor in [first(logits_processors=[served.NAME]) for _ in range(2)]:
            processor.update_state(change(1, {0: "a"}))
            processor.apply(result)
        assert torch.equal(result, expected(logits, ["a"]))


def test_forbidden_tokens_stay_forbidden_and_padding_stays() -> None:
    """What another rule has set to minus infinity stays there, and logits past the vocabulary are
    not touched. Rows of bfloat16 get the bias within its rounding.
    """
    processor = first()
    processor.update_state(change(2, {0: "a", 1: None}))
    logits = torch.full((2, LOGITS + 4), -torch.inf)
    logits[:, 5], logits[:, TOKENS:] = 1.0, 7.0
    result = processor.apply(logits.clone())
    assert result[0, 5] == 1.0 + values(0)[5]
    assert torch.equal(result[:, TOKENS:], logits[:, TOKENS:])
    assert torch.isneginf(result[0, :5]).all()
    assert torch.equal(result[1], logits[1])
    for names in (["a", "a"], ["a", "b"]):
        processor.update_state(change(2, dict(enumerate(names))))
        logits = torch.randn(2, LOGITS)
        result = processor.apply(logits.to(torch.bfloat16))
        assert result.dtype == torch.bfloat16
        assert torch.allclose(result.float(), expected(logits, names), atol=0.05)


def test_a_running_request_keeps_its_vector(folder: Path) -> None:
    """After the file changed the rows that run stay as they are, and those that come take the new
    version, also where the table grows for more biases than it has room for.
    """
    processor = first()
    processor.update_state(change(1, {0: "a"}))
    for seed in range(7, 20):
        save(folder, "a", values(seed))
        save(folder, f"n{seed}", values(seed))
        processor.update_state(change(3, {1: "a", 2: f"n{seed}"}))
        result = processor.apply(torch.zeros(3, LOGITS))
        for row, wanted in enumerate((0, seed, seed)):
            assert torch.equal(result[row, :TOKENS], torch.from_numpy(values(wanted)))


@pytest.mark.parametrize("name", ["vanished", 3], ids=["no file", "no name"])
@pytest.mark.parametrize("runner", [1, 2])
def test_what_was_not_checked_at_admission_ends_the_request(
    runner: int, name: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not answered as if it had asked for none: only the end token is left, and the log says
    so; nothing raises, which would end the engine.
    """
    if runner == 1:
        processor, context = first(), None
        processor.update_state(change(2, {0: name, 1: None}))
    else:
        processor, rows = second(), np.arange(2)
        context = SimpleNamespace(idx_mapping_np=rows, expanded_idx_mapping=torch.from_numpy(rows))
        assert processor.add_request(0, params(name))
        assert not processor.add_request(1, params(None))
        processor.apply_staged_writes()
    probability = torch.softmax(processor.apply(torch.randn(2, LOGITS), context), dim=-1)
    assert probability[0, END] == 1.0
    assert probability[1, END] < 1.0
    assert str(name) in caplog.text


def test_a_default_is_for_requests_that_name_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name replaces it, and "none" declines it. One without a file, or of another tokenizer, stops
    the start.
    """
    monkeypatch.setenv("BLB_BIAS_DEFAULT", "b")
    processor = first()
    processor.update_state(change(3, {0: None, 1: "a", 2: "none"}))
    logits = torch.randn(3, LOGITS)
    assert torch.equal(processor.apply(logits.clone()), expected(logits, ["b", "a", None]))
    save(folder, "foreign", values(0), ids=[9, 9])
    for default in ("absent", "foreign"):
        monkeypatch.setenv("BLB_BIAS_DEFAULT", default)
        with pytest.raises(BiasError):
            first()


class Caller:
    """Stands for vLLM's input processor, which holds the configuration while it validates."""

    def __init__(self, **changes: Any) -> None:
        self.vllm_config = config(**changes)

    def validate(self, name: Any, **more: Any) -> None:
        """What vLLM does with each request."""
        arguments = None if name is None else {"blb_bias": name}
        served.LearnedBias.validate_params(SamplingParams(extra_args=arguments, **more))


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("absent", ("'absent'", "a, b, foreign")),
        ("foreign", (fingerprint([9, 9]), fingerprint(IDS))),
        (3, ("blb_bias", "3", '"none"')),
    ],
)
def test_a_request_for_what_cannot_be_had_is_refused(
    name: object, facts: tuple[str, ...], folder: Path
) -> None:
    """vLLM answers 400 to a ValueError here; what can be had passes."""
    save(folder, "foreign", values(0), ids=[9, 9])
    caller = Caller()
    for good in (None, "none", "a", "b"):
        caller.validate(good)
    with raises_naming(ValueError, *facts):
        caller.validate(name)


V2 = {"use_v2_model_runner": True}
NAMED = {"logits_processors": [served.NAME]}


def test_servers_that_cannot_add_a_bias_refuse_it(folder: Path) -> None:
    """Before the engine sees the request: under speculative decoding of the first runner, which
    would leave every processor out; 1,025 entries of ``logit_bias`` under the second one, which they
    would end; phases of texts under asynchronous scheduling, where the first runner shows the drawn
    tokens to processors named on its command line alone; and where no configuration can be found.
    """
    speculative = {"speculative_config": object()}
    with raises_naming(BiasError, "V1", "speculative", "VLLM_USE_V2_MODEL_RUNNER=1"):
        Caller(**speculative).validate("a")
    Caller(**speculative, **V2).validate("a")
    many = dict.fromkeys(range(1025), 1.0)
    Caller().validate(None, logit_bias=many)
    with raises_naming(BiasError, "1,025", "1,024"):
        Caller(**V2).validate(None, logit_bias=many)
    phased(folder, "until:ab")
    with raises_naming(BiasError, "--logits-processors"):
        Caller(async_scheduling=True).validate("p")
    Caller().validate("p")
    for fields in (NAMED, V2):
        Caller(async_scheduling=True, **fields).validate("p")
    phased(folder, "first")
    Caller(async_scheduling=True).validate("p")
    with raises_naming(BiasError, "0.32"):
        served.LearnedBias.validate_params(params("a"))


def test_without_a_folder_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Installed beside a vLLM that serves no bias it costs nothing, and a request that names one is
    refused.
    """
    monkeypatch.delenv("BLB_BIAS_DIR")
    monkeypatch.setattr(table, "cached_tokenizer_from_config", None)
    logits = torch.randn(1, LOGITS)
    processor = first()
    processor.update_state(change(1, {0: "a"}))
    assert torch.equal(processor.apply(logits.clone()), logits)
    Caller().validate(None)
    with raises_naming(BiasError, "BLB_BIAS_DIR"):
        Caller().validate("a")


class Group:
    """Two tensor-parallel ranks in one thread: what the first sends, the second receives in
    order.
    """

    def __init__(self, rank: int, sent: list[Any]) -> None:
        self.rank_in_group, self.sent = rank, sent

    def broadcast_object(self, message: Any, src: int) -> Any:
        """As vLLM's ``GroupCoordinator``."""
        if self.rank_in_group == src:
            self.sent.append(message)
            return message
        return self.sent.pop(0)


def test_ranks_that_see_other_files_add_the_same(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the first rank reads, so that a file changed in between cannot split the ranks."""
    sent: list[Any] = []

    def rank(number: int) -> served.LearnedBias:
        monkeypatch.setattr(table, "get_tp_group", lambda: Group(number, sent))
        return first(ranks=2)

    ranks: list[served.LearnedBias] = [rank(0)]
    opened: list[Callable[..., Any]] = []
    monkeypatch.setattr(table, "BiasDirectory", opened.append)
    ranks.append(rank(1))
    assert not opened
    results = []
    for processor in ranks:
        processor.update_state(change(2, {0: "a", 1: "vanished"}))
        save(folder, "a", values(5))
        results.append(processor.apply(torch.zeros(2, LOGITS)))
    assert torch.equal(*results)
    assert torch.equal(results[0][0, :TOKENS], torch.from_numpy(values(0)))
    assert not sent


def test_a_bad_start_is_the_same_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason why the first rank cannot start reaches the others, which would wait for it
    otherwise.
    """
    monkeypatch.setenv("BLB_BIAS_DEFAULT", "absent")
    sent: list[Any] = []
    for number in (0, 1):
        monkeypatch.setattr(table, "get_tp_group", lambda number=number: Group(number, sent))
        with raises_naming(BiasError, "absent"):
            first(ranks=2)


RAWS = [b"a", b"b", b"ab", b"", b"<a", b">", b"<", b"c", b"d", b"ba", b"x", b""]
"""The bytes of the 12 logits' tokens."""
SPECS = (
    *("first", "opening:3", "only-opening:3", "until:ab", "first,after:ab", "inside:<..>"),
    "opening:3,until:ab",
)


def phased(folder: Path, spec: str) -> dict[int, np.ndarray]:
    """A bias with phases, saved as "p": the vector of each phase by its number."""
    phases = Phases.parse([spec])
    wholes = [dict(enumerate(values(20 + j).tolist())) for j in range(len(phases.names) + 1)]
    bias = phased_bias(spec, wholes, tokenizer=fingerprint(IDS), vocab_size=TOKENS)
    bias.save(folder / "p.json")
    sent = to_request_bias(bias)
    vectors = {}
    for phase in range(phases.count):
        of_phase = sent.of_text(None, phase)
        vectors[phase] = np.array([of_phase.get(token, 0.0) for token in range(TOKENS)], np.float32)
    return vectors


def at_each(spec: str, vectors: dict[int, np.ndarray], tokens: Sequence[int]) -> np.ndarray:
    """The vector of the token after ``tokens``."""
    return vectors[[*Phases.parse([spec]).along(RAWS[token] for token in tokens)][-1]]


@pytest.mark.parametrize("spec", SPECS)
def test_the_first_runner_follows_the_phase_of_each_row(
    spec: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows with phases beside a plain and an unbiased one; tokens come as placeholders first; rows
    swap in between.
    """
    monkeypatch.setattr(table, "_raws", lambda config, size: RAWS)
    vectors, processor, rng = phased(folder, spec), first(), np.random.default_rng(1)
    names, drawn = ["p", "a", "p", None], [list[int]() for _ in range(4)]
    rows: list[Any] = [(row, params(name), [1], drawn[row]) for row, name in enumerate(names)]
    processor.update_state(v1.BatchUpdate(batch_size=4, removed=[], added=rows, moved=[]))
    order = [0, 1, 2, 3]
    for step in range(25):
        logits = torch.randn(4, LOGITS)
        wanted = expected(logits, [names[each] if names[each] != "p" else None for each in order])
        for row, each in enumerate(order):
            if names[each] == "p":
                wanted[row, :TOKENS] += torch.from_numpy(at_each(spec, vectors, drawn[each]))
        assert torch.equal(processor.apply(logits.clone()), wanted)
        for tokens in drawn:
            tokens.append(-1)
        for tokens in drawn:
            tokens[-1] = int(rng.integers(0, 10))
        if step % 5 == 0:
            order[0], order[2] = order[2], order[0]
            processor.update_state(change(4, {}, moved=((0, 2, v1.MoveDirectionality.SWAP),)))
    processor.update_state(change(4, {2: "a"}))
    assert torch.equal(processor.apply(logits.clone())[2], expected(logits, ["a"] * 4)[2])


class Requests:
    """What the second runner shares of its requests: their tokens, on the device, and how many
    these are.
    """

    def __init__(self) -> None:
        self.device, self.max_num_reqs, self.vocab_size = torch.device("cpu"), REQUESTS, LOGITS
        self.tokens, self.prompt, self.total = (
            torch.zeros(REQUESTS, 80).int(),
            torch.zeros(REQUESTS).int(),
            torch.zeros(REQUESTS).int(),
        )
        self.all_token_ids, self.total_len = (
            SimpleNamespace(gpu=self.tokens),
            SimpleNamespace(gpu=self.total),
        )
        self.prompt_len = SimpleNamespace(gpu=self.prompt, np=self.prompt.numpy())

    def drawn(self, slot: int) -> list[int]:
        """The tokens of a request after its prompt."""
        return list(self.tokens[slot, self.prompt[slot] : self.total[slot]].tolist())


@pytest.mark.parametrize("drafts", [0, 2])
@pytest.mark.parametrize("spec", SPECS)
def test_the_second_runner_follows_the_phase_of_each_row(
    spec: str, drafts: int, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests join, are preempted and come back to another slot with what they had drawn; drafts
    have rows of their own.
    """
    monkeypatch.setattr(table, "_raws", lambda config, size: RAWS)
    vectors, requests, rng = phased(folder, spec), Requests(), np.random.default_rng(2)
    speculative = SimpleNamespace(num_speculative_tokens=drafts) if drafts else None
    processor = served.LearnedBias(
        config(use_v2_model_runner=True, speculative_config=speculative), requests
    )
    names: dict[int, str | None] = {}

    def join(slot: int, name: str | None, prompt: int, drawn: list[int]) -> None:
        requests.prompt[slot], requests.total[slot] = prompt, prompt + len(drawn)
        requests.tokens[slot, : prompt + len(drawn)] = torch.tensor([7] * prompt + drawn)
        processor.add_request(slot, params(name))
        names[slot] = name

    for slot, name in enumerate(["p", "a", None, "p"]):
        join(slot, name, 2 + slot, [])
    for step in range(20):
        if step in (6, 12):  # slot 0 is left, and its request goes on in slot 4, then back
            source, target = (0, 4) if step == 6 else (4, 0)
            names.pop(source)
            join(target, "p", int(requests.prompt[source]), requests.drawn(source))
        processor.apply_staged_writes()
        order = rng.permutation(sorted(names)).tolist()
        draft = {
            slot: [int(each) for each in rng.integers(0, 10, rng.integers(0, drafts + 1))]
            for slot in order
        }
        rows = [(slot, place) for slot in order for place in range(len(draft[slot]) + 1)]
        last = {slot: int(requests.tokens[slot, requests.total[slot] - 1]) for slot in order}
        context = SimpleNamespace(
            idx_mapping_np=np.array(order),
            idx_mapping=torch.tensor(order).int(),
            expanded_idx_mapping=torch.tensor([slot for slot, _ in rows]).int(),
            expanded_local_pos=torch.tensor([place for _, place in rows]).int(),
            input_ids=torch.tensor(
                [draft[slot][place - 1] if place else last[slot] for slot, place in rows]
            ).int(),
            seq_lens_upper_bound_np=np.array(
                [int(requests.total[slot]) + len(draft[slot]) for slot in order]
            ),
        )
        logits = torch.randn(len(rows), LOGITS)
        wanted = expected(logits, [names[slot] if names[slot] != "p" else None for slot, _ in rows])
        for row, (slot, place) in enumerate(rows):
            if names[slot] == "p":
                wanted[row, :TOKENS] += torch.from_numpy(
                    at_each(spec, vectors, [*requests.drawn(slot), *draft[slot][:place]])
                )
        assert torch.equal(processor.apply(logits.clone(), context), wanted)
        for slot in order:  # some drafts are accepted, and one more token is drawn
            taken = [
                *draft[slot][: int(rng.integers(0, len(draft[slot]) + 1))],
                int(rng.integers(0, 10)),
            ]
            at = int(requests.total[slot])
            requests.tokens[slot, at : at + len(taken)] = torch.tensor(taken).int()
            requests.total[slot] += len(taken)
