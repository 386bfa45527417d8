"""The rules gateway's files and batches refuse what the real services refuse, and go through the
states that they document.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest

from tests.support.exact import ExactModel, ExactServer
from tests.support.gateway import RulesGateway
from tests.support.gateway.batches import BatchDesk

URLS = {"openai": "/v1/chat/completions", "azure": "/chat/completions"}
BODY = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}


@pytest.fixture(scope="module")
def engine() -> Iterator[ExactServer]:
    """One exact engine for the whole module."""
    with ExactServer(ExactModel(40, 3, seed=5, end=True)) as running:
        yield running


@pytest.fixture(params=URLS)
def provider(request: pytest.FixtureRequest) -> str:
    """Whose rules."""
    return str(request.param)


@pytest.fixture
def gateway(engine: ExactServer, provider: str) -> Iterator[RulesGateway]:
    """A gateway of one's own."""
    with RulesGateway(provider, engine) as running:
        yield running


@pytest.fixture
def desk(gateway: RulesGateway) -> BatchDesk:
    """Its files and batches."""
    assert gateway.batches is not None
    return gateway.batches


@pytest.fixture
def client(gateway: RulesGateway) -> Iterator[openai.OpenAI]:
    """The official client."""
    http = httpx2.Client(trust_env=False)
    with openai.OpenAI(
        base_url=gateway.base_url, api_key=gateway.key, max_retries=0, http_client=http
    ) as made:
        yield made


def content(provider: str, *changes: Any, names: str = "abcd") -> bytes:
    """A file of requests; ``changes`` replace fields of the first ones."""
    rows: list[Any] = [
        {"custom_id": n, "method": "POST", "url": URLS[provider], "body": BODY} for n in names
    ]
    for place, change in enumerate(changes):
        rows[place] = {**rows[place], **change} if isinstance(change, dict) else change
    return "".join(
        (row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows
    ).encode()


def create(client: openai.OpenAI, provider: str, file: bytes, **more: Any) -> Any:
    """Upload a file, wait until it is processed, create its batch."""
    uploaded = client.files.create(file=("in.jsonl", file), purpose="batch")
    while client.files.retrieve(uploaded.id).status != "processed":
        pass
    asked: Any = {"endpoint": URLS[provider], "completion_window": "24h", **more}
    return client.batches.create(input_file_id=uploaded.id, **asked)


def states(client: openai.OpenAI, batch: Any) -> list[str]:
    """The states that a batch goes through until it ends."""
    found = [batch.status]
    while found[-1] not in ("completed", "failed", "expired", "cancelled"):
        found.append(client.batches.retrieve(batch.id).status)
    return found


def rows(client: openai.OpenAI, name: str | None) -> list[dict[str, Any]]:
    """The lines of a file."""
    return (
        []
        if name is None
        else [json.loads(line) for line in client.files.content(name).text.splitlines()]
    )


def test_a_batch_from_file_to_answers(client: openai.OpenAI, provider: str) -> None:
    """The states in the documented order; every request is answered once, as a live one; metadata
    comes back; newest first.
    """
    bad = {"body": {**BODY, "top_k": 1}}
    first = create(client, provider, content(provider, bad), metadata={"a": "b"})
    assert states(client, first) == ["validating", "in_progress", "finalizing", "completed"]
    ended = client.batches.retrieve(first.id)
    assert (ended.metadata, ended.request_counts and ended.request_counts.total) == ({"a": "b"}, 4)
    answered, failed = rows(client, ended.output_file_id), rows(client, ended.error_file_id)
    assert sorted(row["custom_id"] for row in answered) == ["b", "c", "d"]
    assert all(row["response"]["body"]["choices"] and row["error"] is None for row in answered)
    assert [(row["custom_id"], row["response"]["status_code"]) for row in failed] == [("a", 400)]
    assert "Unrecognized request argument supplied: top_k" in json.dumps(failed)
    second = create(client, provider, content(provider))
    assert [batch.id for batch in client.batches.list(limit=1)] == [second.id, first.id]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        (["no JSON"], "invalid_json_line"),
        ([{"custom_id": "b"}], "duplicate_custom_id"),
        ([{"url": "/v1/embeddings"}], "url_mismatch"),
        ([{"body": {**BODY, "model": "gpt-4o"}}], "model_mismatch"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_with_wrong_lines_fails_as_a_whole(
    client: openai.OpenAI, provider: str, changes: list[Any], code: str
) -> None:
    """With the documented code; nothing of it is run."""
    batch = create(client, provider, content(provider, *changes))
    assert states(client, batch) == ["validating", "failed"]
    ended = client.batches.retrieve(batch.id)
    assert code in [each.code for each in (ended.errors and ended.errors.data) or []]
    assert ended.output_file_id is None


def test_limits_of_files(client: openai.OpenAI, provider: str, desk: BatchDesk) -> None:
    """Lines, bytes and the prompt tokens that may wait; an empty file."""
    desk.requests = 3
    assert states(client, create(client, provider, content(provider)))[-1] == "failed"
    assert states(client, create(client, provider, b"\n"))[-1] == "failed"
    desk.requests, desk.enqueued = 4, 20
    first, second = (create(client, provider, content(provider)) for _ in range(2))
    assert client.batches.retrieve(first.id).status == "in_progress"
    assert client.batches.retrieve(second.id).status == "failed"
    told = client.batches.retrieve(second.id).errors
    assert told is not None
    assert told.data is not None
    assert "Enqueued token limit reached for gpt-4o-mini" in str(told.data[0].message)
    desk.size = 10
    with pytest.raises(openai.BadRequestError, match=r"File is too large\."):
        create(client, provider, content(provider))


def test_what_is_refused_at_once(
    client: openai.OpenAI, provider: str, gateway: RulesGateway
) -> None:
    """Other kinds of files, other windows and endpoints, names that nobody has, the end of what has
    ended.
    """
    with pytest.raises(openai.BadRequestError, match=r"Must be \.jsonl"):
        client.files.create(file=("in.txt", b"x"), purpose="batch")
    with pytest.raises(openai.BadRequestError, match="Supported values are: '24h'"):
        create(client, provider, content(provider), completion_window="1h")
    with pytest.raises(openai.BadRequestError, match="Invalid value: '/v1/images'"):
        create(client, provider, content(provider), endpoint="/v1/images")
    with pytest.raises(openai.NotFoundError, match="No such File object: file-x"):
        client.files.content("file-x")
    with pytest.raises(openai.NotFoundError, match="No batch found with id 'batch_x'"):
        client.batches.retrieve("batch_x")
    batch = create(client, provider, content(provider))
    states(client, batch)
    with pytest.raises(openai.ConflictError, match="Cannot cancel a batch with status 'completed'"):
        client.batches.cancel(batch.id)
    assert gateway.calls[-1].rule == "batch cancel"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").files.create(file=("in.jsonl", b"x"), purpose="batch")


def test_cancelling_and_expiring_keep_what_was_answered(
    client: openai.OpenAI, provider: str, desk: BatchDesk
) -> None:
    """A cancelled batch has the answers so far; one that expires names each request that was too
    late; Azure's do not expire.
    """
    desk.pace = 1
    batch = create(client, provider, content(provider))
    for _ in range(3):
        client.batches.retrieve(batch.id)
    assert states(client, client.batches.cancel(batch.id)) == ["cancelling", "cancelled"]
    assert len(rows(client, client.batches.retrieve(batch.id).output_file_id)) == 2
    desk.lifetime = 1
    other = create(client, provider, content(provider))
    assert states(client, other)[-1] == ("expired" if provider == "openai" else "completed")
    late = rows(client, client.batches.retrieve(other.id).error_file_id)
    assert [row["error"]["code"] for row in late] == ["batch_expired"] * (
        3 if provider == "openai" else 0
    )


def test_a_file_of_azures_is_pending_first(engine: ExactServer) -> None:
    """A batch of it is refused until it is processed."""
    with RulesGateway("azure", engine) as gateway, httpx2.Client(trust_env=False) as http:
        client = openai.OpenAI(
            base_url=gateway.base_url, api_key=gateway.key, max_retries=0, http_client=http
        )
        uploaded = client.files.create(file=("in.jsonl", content("azure")), purpose="batch")
        assert str(client.files.retrieve(uploaded.id).status) == "pending"
        endpoint: Any = URLS["azure"]
        with pytest.raises(openai.BadRequestError, match="is not processed yet"):
            client.batches.create(
                input_file_id=uploaded.id, endpoint=endpoint, completion_window="24h"
            )
