"""Collection by batch: the store is that of live requests, nothing is submitted twice, nothing that
was answered is lost.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from blackbox_lb.errors import InputError, ServerFailed
from blackbox_lb.extras.batches import ingest, lines, plan, run
from blackbox_lb.extras.batches.provider_api import BatchApi
from blackbox_lb.extras.batches.record import Jobs
from blackbox_lb.store import RolloutStore
from tests.encodings import register_encoding
from tests.support.commands import blb, options, refusal
from tests.support.errors import raises_naming
from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway
from tests.support.gateway.batches import BatchDesk
from tests.support.hosted_keys import set_keys
from tests.support.questions import questions, write_rows

MODEL = ExactModel(40, 8, end=True, prompts=4, sharpness=0.7)
END = 39
KEY = "sk-gateway-0123456789abcdefghijklmnop"
KEYS = {"openai": "OPENAI_API_KEY", "azure": "AZURE_OPENAI_API_KEY"}
PROMPTS, SAMPLES = 5, 3
RECORDED = Path(__file__).parent / "run_batch.jsonl"
Collect = Callable[..., Result]


@pytest.fixture(scope="module")
def engine() -> Iterator[ExactServer]:
    """The exact model that stands behind every provider here."""
    with ExactServer(MODEL) as running:
        yield running


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch, engine: ExactServer) -> None:
    """Keys in the environment, no pauses, and the exact model's vocabulary as an encoding of
    tiktoken.
    """
    set_keys(monkeypatch, KEYS.values(), KEY)
    monkeypatch.setattr(run, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(run, "SETTLING", 0.0)
    monkeypatch.setattr("openai._base_client.MAX_RETRY_DELAY", 0.0)
    monkeypatch.setattr("blackbox_lb.extras.batches.provider_api.READY_PAUSE", 0.0)
    monkeypatch.setattr("blackbox_lb.safety.http.retries.retry_pause", lambda state: 0.0)
    register_encoding(monkeypatch, "batches", engine.texts, END)


@pytest.fixture
def gateway(engine: ExactServer) -> Iterator[RulesGateway]:
    """OpenAI's rules."""
    with RulesGateway("openai", engine, key=KEY) as running:
        yield running


def arguments(
    gateway: RulesGateway,
    folder: Path,
    *more: object,
    provider: str = "openai",
    seed: int | None = 3,
) -> tuple[object, ...]:
    """A small collection through a gateway; with a seed each sample is a request of its own."""
    data = write_rows(folder.parent / "data.jsonl", questions(PROMPTS, 1, 1, answer="a"))
    address = gateway.url + "/openai" if provider == "azure-classic" else gateway.base_url
    where = options(provider=provider, model="gpt-4o-mini", base_url=address, tokenizer="batches")
    task = options(data=data, reward="length", max_tokens=8, samples_per_prompt=SAMPLES)
    drawn = () if seed is None else ("--seed", seed)
    return ("collect", *where, *task, *drawn, "--out", folder, *more)


@pytest.fixture
def collect(gateway: RulesGateway, tmp_path: Path) -> Collect:
    """``blb collect --batch`` through the gateway, in this process."""

    def call(*more: object, batch: bool = True, out: str = "run", seed: int | None = 3) -> Result:
        how = ["--batch"] if batch else []
        result = blb(*arguments(gateway, tmp_path / out, *how, *more, seed=seed))
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        return result

    return call


@pytest.fixture
def desk(gateway: RulesGateway) -> BatchDesk:
    """The gateway's files and batches."""
    assert gateway.batches is not None
    return gateway.batches


def done(result: Result) -> str:
    """The output of a command that must succeed."""
    assert result.exit_code == 0, result.output
    return result.output


def contents(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Everything a store holds, in an order of its own, times of receipt and the checksums over
    them aside.
    """
    with RolloutStore(path, read_only=True) as store:
        return {
            table: sorted(
                (
                    tuple(v for k, v in row.items() if k not in ("received", "checksum"))
                    for row in store.rows(table)
                ),
                key=repr,
            )
            for table in ("prompts", "requests", "completions", "token_bytes")
        }


# --- The whole way


@pytest.mark.parametrize("provider", ["openai", "azure", "azure-classic"])
def test_a_store_by_batch_is_that_of_live_requests(
    engine: ExactServer, tmp_path: Path, provider: str
) -> None:
    """The lines of the file have the bodies of live requests, every one is valid, and the stores
    are equal bit for bit; live, nothing more is asked for.
    """
    rules, settings = provider.split("-")[0], {"live": [], "batch": ["--batch"]}
    bodies: dict[str, list[str]] = {}
    for how, more in settings.items():
        with RulesGateway(rules, engine, key=KEY) as gateway:
            result = blb(*arguments(gateway, tmp_path / how, *more, provider=provider))
            assert result.exit_code == 0, result.output
            assert gateway.invalid_requests == []
            assert gateway.batches is not None
            sent = [line["body"] for job in gateway.batches.jobs for line in job.lines]
            asked = (
                sent
                if how == "batch"
                else [body for body in gateway.requests if "messages" in body]
            )
            bodies[how] = sorted(json.dumps(body, sort_keys=True) for body in asked)
    assert bodies["batch"] == bodies["live"] != []
    assert contents(tmp_path / "batch" / "rollouts.db") == contents(
        tmp_path / "live" / "rollouts.db"
    )
    left = {path.suffix for path in (tmp_path / "batch" / "rollouts.batches").iterdir()}
    assert left == {".json", ""}
    with RulesGateway(rules, engine, key=KEY) as gateway:
        again = blb(*arguments(gateway, tmp_path / "batch", provider=provider))
        assert "15 completions" in done(again)
        assert not [call for call in gateway.calls if call.path.endswith("completions")]


def test_without_waiting_each_call_looks_once(collect: Collect, tmp_path: Path) -> None:
    """It says how to go on; the run counts as finished only when all is there, and until then other
    settings are refused. No file beside the store holds the key.
    """

    def finished() -> bool:
        record = json.loads((tmp_path / "run" / "run.json").read_text())
        return bool(record["runs"]["collect"]["finished"])

    told = json.loads(done(collect("--no-wait", "--json", "--quiet")))
    assert told["missing"] == PROMPTS * SAMPLES
    assert [job["status"] for job in told["jobs"]] == ["in_progress"]
    (again,) = told["next"]
    assert again.startswith("blb collect --provider openai")
    assert "--no-wait" not in again
    assert not finished()
    for path in (path for path in tmp_path.rglob("*") if path.is_file()):
        assert KEY.encode() not in path.read_bytes(), path
    assert "max_tokens 8 -> 7" in refusal(collect("--max-tokens", 7))
    assert "finalizing, 15 of 15 requests answered" in done(collect("--no-wait"))
    assert "15 completions" in done(collect("--no-wait"))
    assert finished()


def test_samples_of_a_prompt_share_a_line(collect: Collect, desk: BatchDesk) -> None:
    """Where no seed belongs to one of them, as in live requests; more samples ask for those that
    are missing only.
    """
    assert "15 completions" in done(collect(seed=None))
    assert [line["body"]["n"] for line in desk.jobs[0].lines] == [SAMPLES] * PROMPTS
    assert "25 completions" in done(collect("--samples-per-prompt", SAMPLES + 2, seed=None))
    assert [line["body"]["n"] for line in desk.jobs[1].lines] == [2] * PROMPTS


# --- Stopped at any moment


class Killed(BaseException):
    """The process ends here."""


def killing(monkeypatch: pytest.MonkeyPatch, at: int) -> list[int]:
    """Kill the process at tick number ``at``: before everything that outlasts it, and so after what
    was before that. Each answer is stored by itself.
    """
    monkeypatch.setattr(ingest, "TOGETHER", 1)
    ticks = [0]

    def tick() -> None:
        ticks[0] += 1
        if ticks[0] == at:
            raise Killed

    def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
        def sync(*given: Any, **more: Any) -> Any:
            tick()
            return function(*given, **more)

        async def waited(*given: Any, **more: Any) -> Any:
            tick()
            return await function(*given, **more)

        return waited if asyncio.iscoroutinefunction(function) else sync

    owners: list[tuple[Any, str]] = [
        (plan, "write_input"),
        (Jobs, "save"),
        (RolloutStore, "add_answers"),
    ]
    owners += [(BatchApi, name) for name in ("upload", "create", "download")]
    for owner, name in owners:
        monkeypatch.setattr(owner, name, wrapped(getattr(owner, name)))
    return ticks


def test_killed_at_any_moment(engine: ExactServer, tmp_path: Path) -> None:
    """The same command goes on: one batch in all, every line run once, every completion stored,
    whichever step was the last.
    """
    at, reached = 1, False
    while not reached:
        folder = tmp_path / str(at)
        with RulesGateway("openai", engine, key=KEY) as gateway:
            assert gateway.batches is not None
            small = ("--batch", "--quiet", "--limit", 2, "--samples-per-prompt", 1)
            words = arguments(gateway, folder, *small)
            with pytest.MonkeyPatch.context() as patch:
                ticks = killing(patch, at)
                reached = not _killed(words)
            assert not _killed(words)
            assert [job.done for job in gateway.batches.jobs] == [2], at
        with RolloutStore(folder / "rollouts.db") as store:
            assert store.size().completions == 2
        shutil.rmtree(folder)
        at += 1
    assert at > 10, ticks


def _killed(words: tuple[object, ...]) -> bool:
    """Whether a command was killed; one that was not must succeed."""
    try:
        result = blb(*words)
    except Killed:
        return True
    assert result.exit_code == 0, result.output
    return False


def test_a_creation_that_was_not_heard_of_is_found(collect: Collect, desk: BatchDesk) -> None:
    """The batch whose creation broke the connection is recognised by its file."""
    desk.lost_creations = 1
    done(collect())
    assert len(desk.jobs) == 1


def test_another_process_waits_its_turn(collect: Collect, tmp_path: Path) -> None:
    """Two commands never work on the jobs of one store at once."""
    folder = tmp_path / "run"
    folder.mkdir()
    with Jobs(folder / "rollouts.db").locked():
        assert "another command is at work on the batch jobs" in refusal(collect())
    done(collect())


@pytest.mark.skipif(sys.platform == "win32", reason="a signal cannot be sent to one process there")
@pytest.mark.usefixtures("tiktoken_cache")
@pytest.mark.parametrize("kills", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_ctrl_c_while_waiting(
    gateway: RulesGateway, desk: BatchDesk, tmp_path: Path, kills: int
) -> None:
    """It tells that the job goes on, and how to end it; after a kill the same command takes over,
    and there is one batch.
    """
    words = arguments(gateway, tmp_path / "run", "--batch", "--tokenizer", "cl100k_base")
    for number, code in [(signal.SIGKILL, -signal.SIGKILL)] * kills + [(signal.SIGINT, 130)]:
        command = [sys.executable, "-m", "blackbox_lb", *map(str, words)]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if " requests answered" in line:  # it was looked at, and the pause begins
                    break
            process.send_signal(number)
            _, said = process.communicate(timeout=120)
        assert process.returncode == code, said
    interrupted = "batch_gateway0000 goes on at openai and is paid for; --cancel ends it"
    assert interrupted in " ".join(said.split())
    assert len(desk.jobs) == 1


# --- What the provider makes of it


def test_what_expired_is_asked_for_again(collect: Collect, desk: BatchDesk) -> None:
    """Partial results are kept; the same command asks for the rest, and for nothing else."""
    desk.pace, desk.lifetime = 4, 2
    assert "7 completions are missing (8 requests answered, 7 requests undone)" in refusal(
        collect()
    )
    desk.lifetime = None
    done(collect())
    assert [len(job.lines) for job in desk.jobs] == [15, 7]
    first, second = ({line["custom_id"] for line in job.lines} for job in desk.jobs)
    assert second < first


def test_failed_requests_are_asked_for_again(engine: ExactServer, tmp_path: Path) -> None:
    """The error file's server errors pass; answers in any order, and twice, are stored once."""
    with RulesGateway(
        "openai", engine, key=KEY, faults=lambda number: 500 if number in (2, 5) else None
    ) as gateway:
        assert gateway.batches is not None
        gateway.batches.twice = 3
        words = arguments(gateway, tmp_path / "run", "--batch")
        first = blb(*words)
        assert "2 completions are missing" in refusal(first)
        assert "3 requests stored before" in first.stderr
        done(blb(*words))
        assert [len(job.lines) for job in gateway.batches.jobs] == [15, 2]


def test_a_prompt_that_the_filter_refuses_is_done_with(engine: ExactServer, tmp_path: Path) -> None:
    """It is stored as filtered, as of a live request, and not asked for again."""
    with RulesGateway("azure", engine, key=KEY, filter_prompts="question 3") as gateway:
        assert gateway.batches is not None
        words = arguments(gateway, tmp_path / "run", "--batch", provider="azure", seed=None)
        assert f"{SAMPLES} completions are left out: the provider's content" in done(blb(*words))
        done(blb(*words))
        assert len(gateway.batches.jobs) == 1


def test_a_file_that_is_refused_says_why(collect: Collect, desk: BatchDesk) -> None:
    """The provider's words; nothing was run, and after a remedy the same command submits anew."""
    desk.requests = 10
    assert "has more requests than the maximum of 10" in refusal(collect())
    done(collect("--batch-requests", 10))
    assert [len(job.lines) for job in desk.jobs] == [15, 10, 5]


def test_more_files_than_the_queue_takes_go_one_after_the_other(
    collect: Collect, desk: BatchDesk
) -> None:
    """A batch that was not begun for want of room is created again when another has ended; its file
    is uploaded once.
    """
    desk.enqueued = 35
    result = collect("--batch-requests", 5)
    assert "waits for the batches before it" in result.output
    assert "15 completions" in done(result)
    assert sum(job.status == "completed" for job in desk.jobs) == 3
    assert len({job.input_file for job in desk.jobs}) == 3


def test_a_batch_that_never_fits_the_queue(collect: Collect, desk: BatchDesk) -> None:
    """The provider's words and a remedy; the same command goes on with the same file."""
    desk.enqueued = 5
    assert "Enqueued token limit reached for gpt-4o-mini" in refusal(collect())
    desk.enqueued = None
    done(collect())
    assert len({job.input_file for job in desk.jobs}) == 1


def test_cancelling_keeps_what_was_answered(
    collect: Collect, desk: BatchDesk, tmp_path: Path
) -> None:
    """The job is ended at the provider; what it answered is stored; cancelling again finds
    nothing.
    """
    desk.pace = 4
    done(collect("--no-wait"))
    done(collect("--no-wait"))
    assert "4 requests answered" in done(collect("--cancel"))
    assert desk.jobs[0].status == "cancelled"
    assert "No batch job is open any more; " in done(collect("--cancel"))
    with RolloutStore(tmp_path / "run" / "rollouts.db") as store:
        assert store.size().completions == 4


def test_a_server_that_fails_now_and_then_is_waited_for(
    collect: Collect, desk: BatchDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that fails is no end of the job."""
    look, failures = BatchApi.look, iter([True, False, True])

    async def failing(api: BatchApi, batch: str) -> dict[str, Any]:
        if next(failures, False):
            raise ServerFailed("openai answered 502: bad gateway")
        return await look(api, batch)

    monkeypatch.setattr(BatchApi, "look", failing)
    assert "bad gateway; looking again in 0 s" in done(collect())
    assert len(desk.jobs) == 1


def test_damaged_and_foreign_lines(collect: Collect, desk: BatchDesk, tmp_path: Path) -> None:
    """What cannot be read is counted, its files stay for a look, and the rest is stored; the same
    command asks again.
    """
    original = desk._finish

    def damaged(job: Any, status: str) -> None:
        original(job, status)
        name = job.files["output"]
        first, second, third, *rest = desk._files[name].splitlines(keepends=True)
        foreign = (
            json.dumps({**json.loads(second), "custom_id": "somebody-else's"}).encode() + b"\n"
        )
        counted = json.loads(third)
        counted["response"]["body"]["usage"]["completion_tokens"] = 3 * 10**9
        impossible = json.dumps(counted).encode() + b"\n"
        desk._files[name] = b"".join([first[: len(first) // 2] + b"\n", foreign, impossible, *rest])

    desk._finish = damaged  # type: ignore[method-assign]
    said = refusal(collect())
    assert "something that is not JSON" in said
    assert "3 completions are missing (" in said
    assert all(
        f"{number} requests {what}" in said
        for number, what in ((2, "unreadable"), (1, "foreign"), (12, "answered"))
    )
    beside = Jobs(tmp_path / "run" / "rollouts.db")
    (job,) = beside.all()
    assert beside.output(job).exists()
    desk._finish = original  # type: ignore[method-assign]
    done(collect())
    assert len(desk.jobs[1].lines) == 3


def test_a_removed_file_of_answers_is_given_up_by_cancelling(
    collect: Collect, desk: BatchDesk
) -> None:
    """A job whose answers the provider has removed names the way out; nothing is submitted again
    before the user took it.
    """
    finish = desk._finish

    def removed(job: Any, status: str) -> None:
        finish(job, status)
        del desk._files[job.files["output"]]

    desk._finish = removed  # type: ignore[method-assign]
    for _ in range(2):
        said = refusal(collect())
        assert "openai answered 404" in said
        assert "--cancel" in said
    desk._finish = finish  # type: ignore[method-assign]
    done(collect("--cancel"))
    assert len(desk.jobs) == 1
    done(collect())
    assert len(desk.jobs) == 2


def test_a_removed_file_of_requests_is_no_traceback(
    collect: Collect, desk: BatchDesk, tmp_path: Path
) -> None:
    """Nothing is asked for again while nobody knows what a job asks for; cancelling ends it."""
    done(collect("--no-wait"))
    for path in (tmp_path / "run" / "rollouts.batches").glob("*.jsonl"):
        path.unlink()
    assert "--cancel" in refusal(collect())
    assert len(desk.jobs) == 1
    done(collect("--cancel"))


# --- Limits, prices, options


@pytest.mark.parametrize(
    "limit",
    [("--max-requests", 14), ("--max-tokens-total", 500), ("--max-cost", 1e-6)],
    ids=lambda limit: limit[0],
)
def test_limits_hold_before_anything_is_submitted(
    collect: Collect, desk: BatchDesk, limit: tuple[str, float]
) -> None:
    """What the batch could take, the option and the remedy; nothing reaches the provider."""
    said = refusal(collect(*limit))
    assert limit[0] in said
    assert "15 requests" in said
    assert "nothing was submitted" in said
    assert not desk.jobs
    done(collect())


def test_the_price_is_that_of_batches(collect: Collect, tmp_path: Path) -> None:
    """Half of the price of a live request, or the share that a row of one's own table tells; it is
    what run.json counts.
    """
    output = collect("--price", "1000,1000").output
    spent = json.loads((tmp_path / "run" / "run.json").read_text())["runs"]["collect"]["spent"]
    tokens = spent["prompt_tokens"] + spent["completion_tokens"]
    assert (
        "$500 and $500 a million prompt and completion tokens, --price, in a batch 0.5 of the price"
        in output
    )
    assert spent["requests"] == 15
    assert spent["dollars"] == pytest.approx(tokens * 5e-4)
    table = tmp_path / "prices.toml"
    table.write_text(
        '[[price]]\nprovider = "openai"\nmodels = ["*"]\nprompt = 8\ncompletion = 16\nbatch ='
        " 0.25\n"
    )
    assert "$2 and $4 a million" in collect("--prices", table, out="other").output


@pytest.mark.parametrize(
    ("rules", "words", "said"),
    [
        ("openai", "--no-wait", "--no-wait says something of batches"),
        ("openai", "--cancel", "--cancel says something of batches"),
        ("openai", "--batch-requests 3", "--batch-requests says something of batches"),
        ("fireworks", "--batch", "fireworks takes no batches"),
        ("fireworks", "--batch --provider local", "local takes no batches"),
        ("azure", "--batch --endpoint completions", "azure takes batches for chat only"),
    ],
)
def test_what_takes_no_batches_is_refused(
    engine: ExactServer, tmp_path: Path, rules: str, words: str, said: str
) -> None:
    """Options of batches without --batch, other providers and endpoints: before anything is sent,
    an embedded engine before it is started.
    """
    with RulesGateway(rules, engine, key=KEY) as gateway:
        command = arguments(gateway, tmp_path / "run", *words.split(), provider=rules)
        assert said in refusal(blb(*command))
        assert not gateway.requests


@pytest.mark.usefixtures("tiktoken_cache")
def test_a_job_is_adopted_under_the_right_tokenizer(collect: Collect, desk: BatchDesk) -> None:
    """No request tells the tokenizer: one that was named wrongly costs no second batch."""
    done(collect("--no-wait", "--tokenizer", "cl100k_base"))
    assert "15 completions" in done(collect("--restart"))
    assert len(desk.jobs) == 1


# --- A program of the user's own


def tokenizer_json(path: Path) -> Path:
    """A vocabulary of single bytes, in the format of Hugging Face's library."""
    tokenizers = pytest.importorskip("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: n for n, letter in enumerate(letters)}, [])
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(path))
    return path


@pytest.fixture
def offline(tmp_path: Path) -> Callable[..., Result]:
    """``blb collect --provider vllm --batch`` of two prompts, with a model's folder and no server
    anywhere.
    """
    data = write_rows(tmp_path / "data.jsonl", questions(2, 1, 1, answer="a"))
    model = tmp_path / "model"
    model.mkdir()
    tokenizer_json(model / "tokenizer.json")

    def call(*more: object) -> Result:
        task = options(data=data, reward="length", max_tokens=12, top_logprobs=5)
        words = ("collect", "--provider", "vllm", "--batch", "--model", model, *task)
        return blb(*words, "--samples-per-prompt", 2, "--out", tmp_path / "run", *more)

    return call


def answer(folder: Path, rows: list[dict[str, Any]]) -> None:
    """What vllm run-batch would write for the job in ``folder``: recorded rows under the names that
    are asked for.
    """
    places = Jobs(folder / "rollouts.db")
    (job,) = (each for each in places.all() if each.open)
    names = lines.names_in(places.input(job.name))
    text = "".join(
        json.dumps({**row, "custom_id": name}) + "\n"
        for name, row in zip(names, rows, strict=False)
    )
    places.output(job).write_text(text)


def test_what_vllm_run_batch_wrote_is_stored(
    offline: Callable[..., Result], tmp_path: Path
) -> None:
    """Recorded from vLLM 0.32: its command is told, an output that is not whole is waited for, a
    refusal is told in its words.
    """
    recorded = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    told = json.loads(done(offline("--json", "--quiet")))
    command, again = told["next"]
    assert command.startswith("vllm run-batch -i ")
    assert command.endswith(f"--model {tmp_path / 'model'}")
    assert again.startswith("blb collect --provider vllm")
    answer(tmp_path / "run", recorded[:3])
    assert "is not whole: 3 answered, of 4" in offline().stderr
    words = {
        "message": "a reason of vLLM's.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    refused = {"status_code": 400, "request_id": "r", "body": None}
    bad = {**recorded[3], "response": refused, "error": {"error": words}}
    answer(tmp_path / "run", [*recorded[:3], bad])
    assert "vllm answered 400: a reason of vLLM's; 1 completions are missing" in refusal(offline())
    done(offline())
    answer(tmp_path / "run", recorded[3:])
    assert "4 completions" in done(offline())
    with RolloutStore(tmp_path / "run" / "rollouts.db") as store:
        (request,) = store.requests()
        found = list(store.completions(sorted(store.keys(request))))
    told_ids = []
    for row in recorded:
        entries = row["response"]["body"]["choices"][0]["logprobs"]["content"]
        told_ids.append([int(entry["token"].removeprefix("token_id:")) for entry in entries])
    assert sorted(each.token_ids.tolist() for each in found) == sorted(told_ids)
    assert all(each.whole and each.top_ids.shape[1] >= 4 for each in found)


def test_without_a_server_the_tokenizer_must_be_told(offline: Callable[..., Result]) -> None:
    """A model that is no folder has none beside it; completions are none of run-batch's endpoints;
    a job can be dropped.
    """
    assert "give --model, and its vocabulary with --tokenizer" in refusal(
        offline("--model", "a-name")
    )
    assert "vllm takes batches for chat only" in refusal(offline("--endpoint", "completions"))
    done(offline())
    assert "No batch job is open any more" in done(offline("--cancel"))


def test_other_braces_of_a_command_stay(offline: Callable[..., Result], tmp_path: Path) -> None:
    """Only {input}, {output} and {model} are places."""
    profile = tmp_path / "own.toml"
    command = """run -i {input} -o {output} --model {model} --opts '{"a": {}}'"""
    profile.write_text(f'extends = "vllm"\n[batch]\ncommand = {json.dumps(command)}\n')
    told = json.loads(done(offline("--provider", profile, "--json", "--quiet")))
    assert told["next"][0].endswith(f"""--model {tmp_path / "model"} --opts '{{"a": {{}}}}'""")


# --- Lines


def test_files_hold_what_a_provider_takes() -> None:
    """Neither more lines nor more bytes; a line that fits no file is refused."""
    line = lines.Line(b"x" * 10, 1, 1, 1)
    assert [len(group) for group in lines.split([line] * 7, 3, None)] == [3, 3, 1]
    assert [len(group) for group in lines.split([line] * 7, None, 25)] == [2, 2, 2, 1]
    with raises_naming(InputError, "10", "9"):
        list(lines.split([line], None, 9))
