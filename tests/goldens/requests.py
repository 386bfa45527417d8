"""What a server was asked for, as numbers: hashes of bodies, whatever the order of arrival."""

from __future__ import annotations

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

Body = Mapping[str, Any]


COMPLETIONS = ("/v1/chat/completions", "/v1/completions")


def request_facts(
    calls: Iterable[tuple[str, Body]], *, distinct: bool = False
) -> dict[str, dict[str, Any]]:
    """Records of all requests by path, those with a bias apart.

    Completions are counted as often as they were asked for. Of all others equal requests count
    once, because two that come at the same time may ask for what neither has received yet.

    Of a bias the hash covers the token ids; the sums of the sizes of its values, and of their
    squares, are numbers of their own, because a value may move in its last digits.

    Args:
        calls: path and body of every POST.
        distinct: count equal completions once, too.
    """
    bodies: dict[str, list[str]] = defaultdict(list)
    values: dict[str, list[float]] = defaultdict(list)
    for path, body in calls:
        name = f"requests {path}"
        bias = body.get("logit_bias")
        if not bias:
            bodies[name].append(_canonical(body))
            continue
        name += " with a bias"
        pairs = sorted(bias.items() if isinstance(bias, Mapping) else bias)
        token_ids = [int(token) for token, _ in pairs]
        bodies[name].append(_canonical({**body, "logit_bias": token_ids}))
        values[name] += [float(value) for _, value in pairs]
    records: dict[str, dict[str, Any]] = {}
    for name, texts in bodies.items():
        is_completion = name.split()[1] in COMPLETIONS
        counted = texts if is_completion and not distinct else set(texts)
        hashes = sorted(hashlib.sha256(text.encode()).hexdigest() for text in counted)
        combined = hashlib.sha256("".join(hashes).encode()).hexdigest()
        records[name] = {"count": len(hashes), "sha256": combined}
        if name in values:
            records[name]["sum of sizes"] = math.fsum(abs(value) for value in values[name])
            records[name]["sum of squares"] = math.fsum(value**2 for value in values[name])
    return records


def _canonical(body: Body) -> str:
    return json.dumps(body, sort_keys=True, separators=(",", ":"))
