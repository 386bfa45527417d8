"""``blb proxy``: the bias for every language and tool that can set a base URL."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import provider
from blackbox_lb.cli.resources import load_bias
from blackbox_lb.deploy.proxy.limits import GRACE, MAX_BODY, TIMEOUT
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.setting import Settings, setting
from blackbox_lb.literals import OnConflict
from blackbox_lb.safety.network import is_loopback
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.deploy.proxy.server import Proxy


MIB = 2**20
"""Bytes."""


class ProxyOptions(Settings):
    biases: tuple[str, ...] = setting(
        (),
        None,
        "A bias file. Without ALIAS it applies to its model's name, with one to MODEL@ALIAS. Can be"
        " given several times.",
        "--bias",
        shell_complete=bias_files,
        metavar="[ALIAS=]FILE",
    )
    decide: tuple[str, ...] = setting(
        (),
        None,
        "A bias file, or a run's folder, with mended questions: requests to /v1/systemone and"
        " /v1/decisions get their mended answers. Can be given several times.",
        shell_complete=bias_files,
        metavar="FILE",
    )
    at: tuple[str, ...] = setting(
        (),
        None,
        "Another operating point, as in precision=.9, recall=.8 or rate=.2, of the biases with"
        " ALIAS, else of those without one: UNVERIFIED. Can be given several times.",
        metavar="[ALIAS=]POINT",
    )
    upstream: str = setting(..., None, "Address of the API, with its /v1.", required=True)
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
    models: tuple[str, ...] = setting(
        (),
        None,
        "The server's name of the model, where it is not the bias file's. Can be given several"
        " times.",
        "--model",
    )
    provider: str | None = provider(
        None,
        "no check",
        "Check the biases against this provider's limits, and send them in its format: ",
    )
    on_conflict: OnConflict = setting(
        "raise",
        None,
        "A request with a logit_bias of its own: refuse it, send ours or theirs alone, or add the"
        " two.",
    )
    others: Literal["pass", "raise"] = setting(
        "pass", None, "A request for a model without a bias: pass it on as it is, or refuse it."
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


@command(
    "proxy",
    ProxyOptions,
    example="blb proxy --bias runs/train/bias.json --upstream http://127.0.0.1:8000/v1",
)
def proxy_command(options: ProxyOptions) -> None:
    """Add the bias to every request of its model: an OpenAI-compatible reverse proxy for any
    language and tool. With --decide, mend the answers of decision endpoints.

    Clients use http://127.0.0.1:8080/v1 and their own key, which is passed on and kept nowhere.
    Chat and legacy completions get the bias, everything else passes unchanged. GET /healthz
    shows the biases, GET /metrics counts for Prometheus. Ctrl-C (or SIGTERM) lets answers under way
    finish.
    """
    import asyncio

    from blackbox_lb.safety.network import check_key_log

    check_key_log()  # before the server's library is imported, which reads it then
    from blackbox_lb.deploy.proxy.server import serve

    proxy = _proxy(options)
    host = options.host
    asyncio.run(
        serve(
            proxy,
            host,
            options.port,
            lambda address: _started(proxy, host, address, options.as_json),
        )
    )
    if not options.quiet:
        counts = proxy.metrics.counts
        stopped = "stopped; requests: "
        stopped += ", ".join(f"{number} {name}" for name, number in counts.items())
        if proxy.questions is not None:
            decisions = proxy.metrics.decisions
            stopped += "; decisions: "
            stopped += ", ".join(f"{number} {name}" for name, number in decisions.items())
        echo(stopped, err=True)


def _proxy(options: ProxyOptions) -> Proxy:
    from blackbox_lb.deploy.proxy.bodies import ServedBiases
    from blackbox_lb.deploy.proxy.decisions import load_questions
    from blackbox_lb.deploy.proxy.served import load_served, parse_bias_argument
    from blackbox_lb.deploy.proxy.server import Proxy
    from blackbox_lb.deploy.proxy.upstream import Upstream
    from blackbox_lb.providers.profile import load_profile

    if not options.biases and not options.decide:
        raise InputError("nothing to apply; give --bias with a bias file, or --decide with a run's")
    served = load_served(
        options.biases,
        at=options.at,
        models=options.models,
        provider=options.provider,
        on_conflict=options.on_conflict,
    )
    for bias_argument in options.biases:
        load_bias(parse_bias_argument(bias_argument)[1], options)
    questions = None
    if options.decide:
        questions = load_questions([Path(argument) for argument in options.decide])
    return Proxy(
        ServedBiases(served, options.others),
        Upstream(options.upstream, timeout=options.timeout),
        questions=questions,
        profile=None if options.provider is None else load_profile(options.provider),
        max_body=options.max_body * MIB,
        log_request=partial(echo, err=True) if options.logs_requests else None,
        grace=options.grace,
        hosts=options.hosts,
        origins=options.origins,
    )


def _started(proxy: Proxy, host: str, address: str, as_json: bool = False) -> None:
    biases = "; ".join(
        f"{printable(row.name)} ({len(row.bias.entries)} entries, {printable(row.bias.status)})"
        for row in proxy.biases
    )
    if not is_loopback(host):
        echo(
            f"Warning: {host} is not loopback, and blb proxy has no authentication of its own:"
            " whoever reaches this port can use the upstream with any key, or without one if it"
            " asks for none",
            err=True,
        )
    if as_json:
        applied = [
            {"name": row.name, "entries": len(row.bias.entries), "status": row.bias.status}
            for row in proxy.biases
        ]
        started = {"address": address, "upstream": str(proxy.upstream.base), "biases": applied}
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
    echo(f"blb proxy at {address} -> {proxy.upstream.base} {', '.join(deeds)}")
