"""Batch files: JSON Lines with one request a line, as /v1/batches runs them, and the bias in each
of them.

The format: https://platform.openai.com/docs/api-reference/batch/request-input
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.deploy.injection import quoted, to_json
from blackbox_lb.deploy.request_policy import Others, RequestPolicy, UrlPurpose, endpoint, parsed
from blackbox_lb.errors import InputError
from blackbox_lb.literals import OnConflict
from blackbox_lb.safety.files import replacing


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Counts of ``apply_batch``: lines that carry the bias, lines passed unchanged, and bytes in
    all.

    Providers limit the bytes (OpenAI: 200 MB a file), and 300 entries add about 5 kB to a line.
    """

    biased: int
    passed: int
    size: int


def apply_batch(
    source: str | Path,
    target: str | Path,
    bias: Bias | str | Path,
    *,
    models: Iterable[str] | None = None,
    others: Others = "warn",
    on_conflict: OnConflict = "raise",
    as_pairs: bool = False,
) -> BatchCounts:
    """Write the batch file ``source`` to ``target`` with the bias in the body of each request for
    its model.

    Options as for ``apply``. The file is read and written line by line and put in place in one step
    at the end, so ``target`` may be ``source``. A line without the bias is copied byte for byte;
    "theirs" under a conflict counts as passed.

    Raises InputError: a line (named by its number) that is no batch request, a refused model,
    endpoint or conflict; or a file that cannot be read or written. BiasError: a bias file that
    cannot be read.
    """
    loaded = Bias.of(bias)
    loaded.check_scopes(("prompt",), "a line of a batch file")
    policy = RequestPolicy.of(
        loaded, models=models, others=others, on_conflict=on_conflict, as_pairs=as_pairs
    )
    target = Path(target)
    try:
        with (
            Path(source).open("rb") as lines,
            replacing(target) as draft,
            draft.open("xb") as output,
        ):
            return _copied(policy, lines, output)
    except OSError as error:
        raise InputError(
            f"{error.filename or target}: {error.strerror or error}; give a readable batch file and"
            " a writable folder"
        ) from None


def check_upload(policy: RequestPolicy, files: Any, data: Mapping[str, Any] | None) -> None:
    """Raise InputError where an upload to /files is a batch file with an unbiased line for a biased
    model.

    A file that cannot be read twice is refused too, because it cannot be checked.
    """
    if not files or not data or data.get("purpose") != "batch":
        return
    for stream in _streams(files):
        start = stream.tell()
        for number, line in enumerate(stream, 1):
            if _lacks(policy, line, number):
                raise InputError(
                    f"line {number} of the batch file is for a biased model and carries no"
                    " logit_bias, and a file is not rewritten as it is uploaded; write one with"
                    " blackbox_lb.apply_batch(source, target, bias) and upload that"
                )
        stream.seek(start)


def check_announcement(content: bytes) -> None:
    """Raise InputError where a JSON body announces a batch file that comes in parts: a part ends
    inside a line, so the lines cannot be checked.
    """
    if (parsed(content) or {}).get("purpose") == "batch":
        raise InputError(
            "a batch file that is uploaded in parts cannot be checked for its bias; upload it whole"
            " with client.files.create, or in parts with a client without a bias"
        )


def _copied(policy: RequestPolicy, lines: Iterable[bytes], output: Any) -> BatchCounts:
    biased = passed = size = 0
    for number, line in enumerate(lines, 1):
        written = line
        if line.strip():
            written = _line(policy, line, number)
        if written is not line:
            biased += 1
        elif line.strip():
            passed += 1
        size += output.write(written)
    return BatchCounts(biased, passed, size)


def _line(policy: RequestPolicy, line: bytes, number: int) -> bytes:
    """The line with the bias in its body; the same object where the line gets none."""
    document, place, body = _request(line, number)
    try:
        if not place.generates or not policy.wanted(place, body):
            return line
        content = to_json(body)
        biased = policy.injection.body(content, body)
    except InputError as error:
        raise InputError(f"line {number}: {error}") from None
    if biased is content:
        return line
    request = json.dumps(
        {**document, "body": json.loads(biased)}, ensure_ascii=False, separators=(",", ":")
    )
    # A lone surrogate, which UTF-8 cannot hold, becomes its JSON escape again.
    return request.encode(errors="backslashreplace") + line[len(line.rstrip()) :]


def _request(line: bytes, number: int) -> tuple[dict[str, Any], UrlPurpose, dict[str, Any]]:
    """A line's document, URL and body. Raises InputError: it is no batch request."""
    try:
        document = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"line {number} is not JSON in UTF-8 ({error}); a batch file has one request a line"
        ) from None
    if (
        isinstance(document, dict)
        and isinstance(document.get("url"), str)
        and isinstance(document.get("body"), dict)
    ):
        return document, endpoint(document["url"]), document["body"]
    raise InputError(
        f"line {number} is no batch request ({quoted(line[:40].decode(errors='replace'))}); it"
        ' needs "url" and an object "body"'
    )


def _lacks(policy: RequestPolicy, line: bytes, number: int) -> bool:
    """Whether a line for a biased model would run unbiased."""
    document = parsed(line) or {}
    url = document.get("url")
    body = document.get("body")
    if not isinstance(url, str) or not isinstance(body, dict) or not endpoint(url).generates:
        return False
    try:
        return (
            policy.wanted(endpoint(url), body)
            and bool(policy.injection.bias)
            and not body.get("logit_bias")
        )
    except InputError as error:
        raise InputError(f"line {number} of the batch file: {error}") from None


def _streams(files: Any) -> Iterator[Any]:
    """The files of a multipart upload, as the SDK hands them to its HTTP client, each readable from
    its present position.
    """
    for _, upload in files.items() if isinstance(files, Mapping) else files:
        content = upload
        if isinstance(upload, tuple):
            content = upload[1]
        if isinstance(content, bytes | str):
            yield BytesIO(content if isinstance(content, bytes) else content.encode())
        elif getattr(content, "seekable", lambda: False)():
            yield content
        else:
            raise InputError(
                "cannot look for the bias in a batch file that is streamed; pass its path or its"
                " bytes"
            )
