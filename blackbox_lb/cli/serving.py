"""What ``blb proxy`` and ``blb serve`` share: how they listen, what they say, how they stop."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.deploy.proxy.limits import GRACE, MAX_BODY, TIMEOUT
from blackbox_lb.jobs.plan.setting import Settings, setting
from blackbox_lb.literals import OnConflict
from blackbox_lb.safety.network import is_loopback
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.deploy.proxy.served import ServedBias
    from blackbox_lb.deploy.proxy.server import Proxy

MIB = 2**20
"""Bytes."""


class ListenOptions(Settings):
    """Where a proxy listens, for whom, and what it says."""

    host: str = setting("127.0.0.1", None, "Where to listen; 0.0.0.0 for every network.")
    hosts: tuple[str, ...] = setting(
        (),
        None,
        "A name besides localhost that clients call a loopback proxy by, as host.docker.internal."
        " Can be given several times.",
        "--allow-host",
        metavar="NAME",
    )
    origins: tuple[str, ...] = setting(
        (),
        None,
        "A web page's origin that may call the proxy, besides pages of this machine, as"
        " https://app.example; * for all. Can be given several times.",
        "--allow-origin",
        metavar="ORIGIN",
    )
    port: int = setting(8080, None, "0 takes a free one.", type=click.IntRange(0, 65535))
    on_conflict: OnConflict = setting(
        "raise",
        None,
        "A request with a logit_bias of its own: refuse it, send ours or theirs alone, or add the"
        " two.",
    )
    others: Literal["warn", "pass", "raise"] = setting(
        "warn",
        None,
        "A request for a model without a bias: pass it on as it is and say so once a model, pass it"
        " on silently, or refuse it.",
    )
    max_body: int = setting(MAX_BODY // MIB, None, "Largest request body, in MiB.", ge=1)
    timeout: float = setting(
        TIMEOUT, None, "Seconds of the upstream's silence.", type=click.FloatRange(0.001)
    )
    grace: float = setting(
        GRACE, None, "Seconds to finish answers when stopped.", type=click.FloatRange(0)
    )
    logs_requests: bool = setting(
        False,
        None,
        "Write a line for each request to stderr: time, client, method, path, status, seconds; no"
        " query, key or prompt.",
        "--access-log",
    )
    as_json: bool = setting(
        False, None, "Print the address and what is applied as JSON on stdout.", "--json"
    )
    quiet: bool = setting(False, None, "Say nothing at the end.")


async def serve_biases(
    options: ListenOptions,
    upstream: str,
    biases: Sequence[ServedBias],
    decide: Sequence[str],
    provider: str | None,
) -> None:
    """Serve until Ctrl-C or SIGTERM; say what is applied at the start, and at the end the counts.

    Args:
        upstream: the address that requests go to.
        biases: by model names.
        decide: files with mended questions.
        provider: the profile of the upstream.
    """
    from blackbox_lb.deploy.proxy.bodies import ServedBiases
    from blackbox_lb.deploy.proxy.decisions import load_questions
    from blackbox_lb.deploy.proxy.server import Proxy, serve
    from blackbox_lb.deploy.proxy.upstream import Upstream
    from blackbox_lb.providers.profile import load_profile

    questions = None
    if decide:
        questions = load_questions([Path(argument) for argument in decide])
    proxy = Proxy(
        ServedBiases(biases, options.others),
        Upstream(upstream, timeout=options.timeout),
        questions=questions,
        profile=None if provider is None else load_profile(provider),
        max_body=options.max_body * MIB,
        log_request=partial(echo, err=True) if options.logs_requests else None,
        grace=options.grace,
        hosts=options.hosts,
        origins=options.origins,
    )
    await serve(proxy, options.host, options.port, partial(_say_start, proxy, options))
    if not options.quiet:
        counts = proxy.metrics.counts
        stopped = "stopped; requests: "
        stopped += ", ".join(f"{number} {name}" for name, number in counts.items())
        if proxy.questions is not None:
            decisions = proxy.metrics.decisions
            stopped += "; decisions: "
            stopped += ", ".join(f"{number} {name}" for name, number in decisions.items())
        echo(stopped, err=True)


def _say_start(proxy: Proxy, options: ListenOptions, address: str) -> None:
    command = click.get_current_context().info_name
    biases = "; ".join(
        f"{printable(row.name)} ({len(row.bias.entries)} entries, {printable(row.bias.status)})"
        for row in proxy.biases
    )
    if not is_loopback(options.host):
        echo(
            f"Warning: {options.host} is not loopback, and blb {command} has no authentication of"
            " its own: whoever reaches this port can use the upstream with any key, or without one"
            " if it asks for none",
            err=True,
        )
    for prompts in {row.bias.prompts for row in proxy.biases if row.bias.prompts is not None}:
        echo(f"{prompts.sentence} Send prompts in that form.", err=True)
    if options.as_json:
        applied = [
            {"name": row.name, "entries": len(row.bias.entries), "status": row.bias.status}
            for row in proxy.biases
        ]
        started: dict[str, Any] = {
            "address": address,
            "upstream": str(proxy.upstream.base),
            "biases": applied,
        }
        if proxy.questions is not None:
            started["questions"] = proxy.health["questions"]
        print_json(started)
        return
    deeds = [f"adds: {biases}"] if biases else []
    if proxy.questions is not None:
        mended = "; ".join(
            f"{printable(row.question.id)} ({printable(row.model)}, {row.reading})"
            for row in proxy.questions
        )
        deeds.append(f"mends: {mended}")
    echo(f"blb {command} at {address} -> {proxy.upstream.base} {', '.join(deeds)}")
