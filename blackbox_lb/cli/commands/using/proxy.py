"""``blb proxy``: the bias for every language and tool that can set a base URL."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import click

from blackbox_lb.cli.completers import bias_files, known
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.json_output import print_json
from blackbox_lb.deploy.injection import OnConflict
from blackbox_lb.errors import InputError
from blackbox_lb.providers.names import profile_names
from blackbox_lb.safety.hosts import is_loopback
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.deploy.proxy.server import Proxy

EXTRA = "pip install 'blackbox-lb[proxy]'"


@dataclass(frozen=True, kw_only=True)
class ProxyOptions:
    """Options of ``blb proxy``.

    biases: files, each as FILE or ALIAS=FILE.
    upstream: address of the API.
    host, port: where to listen; port 0: a free one.
    hosts: names that clients may call a loopback proxy by.
    models: the server's names of the biases' models.
    provider: limits that the biases are checked against; None: none.
    on_conflict: a request with a logit_bias of its own.
    others: a request for a model without a bias.
    max_body: largest request body, in MiB.
    timeout: seconds of the upstream's silence.
    grace: seconds to finish answers.
    as_json: print the address as JSON.
    quiet: say nothing at the end.
    """

    biases: tuple[str, ...]
    upstream: str
    host: str
    hosts: tuple[str, ...]
    port: int
    models: tuple[str, ...]
    provider: str | None
    on_conflict: OnConflict
    others: Literal["pass", "raise"]
    max_body: int
    timeout: float
    grace: float
    as_json: bool
    quiet: bool


@command("proxy", ProxyOptions)
@click.option(
    "--bias",
    "biases",
    shell_complete=bias_files,
    metavar="[ALIAS=]FILE",
    multiple=True,
    required=True,
    help="A bias file. Without ALIAS it applies to its model's name, with one to MODEL@ALIAS. Can be given several times.",
)
@click.option("--upstream", required=True, help="Address of the API, with its /v1.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen; 0.0.0.0 for every network.")
@click.option(
    "--allow-host",
    "hosts",
    metavar="NAME",
    multiple=True,
    help="A name besides localhost that clients call a loopback proxy by, as host.docker.internal. Can be given several times.",
)
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="0 takes a free one.")
@click.option(
    "--model",
    "models",
    multiple=True,
    help="The server's name of the model, where it is not the bias file's. Can be given several times.",
)
@click.option(
    "--provider",
    shell_complete=known(profile_names),
    help=f"Check the biases against this provider's limits, and send them in its format: {', '.join(profile_names())}, or a path.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(get_args(OnConflict)),
    default="raise",
    show_default=True,
    help="A request with a logit_bias of its own: refuse it, send ours or theirs alone, or add the two.",
)
@click.option(
    "--others",
    type=click.Choice(("pass", "raise")),
    default="pass",
    show_default=True,
    help="A request for a model without a bias: pass it on as it is, or refuse it.",
)
@click.option("--max-body", type=click.IntRange(1), default=16, show_default=True, help="Largest request body, in MiB.")
@click.option(
    "--timeout",
    type=click.FloatRange(0.001),
    default=600.0,
    show_default=True,
    help="Seconds of the upstream's silence.",
)
@click.option(
    "--grace", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds to finish answers when stopped."
)
@click.option("--json", "as_json", is_flag=True, help="Print the address and what is applied as JSON on stdout.")
@click.option("--quiet", is_flag=True, help="Say nothing at the end.")
def proxy_command(options: ProxyOptions) -> None:
    """Add the bias to every request of its model: an OpenAI-compatible reverse proxy for any language and tool.

    Clients use http://127.0.0.1:8080/v1 and their own key, which is passed on and kept nowhere. Chat and legacy completions
    get the bias, everything else passes as it is. GET /health says what is applied. Ctrl-C (or SIGTERM) lets answers under
    way finish.
    """
    if importlib.util.find_spec("aiohttp") is None:
        raise InputError(f"blb proxy needs the package aiohttp; install it: {EXTRA}")
    import asyncio

    from blackbox_lb.deploy.proxy.server import serve

    proxy, host = _proxy(options), options.host
    asyncio.run(serve(proxy, host, options.port, lambda address: _started(proxy, host, address, options.as_json)))
    if not options.quiet:
        _stopped(proxy)


def _proxy(options: ProxyOptions) -> Proxy:
    from blackbox_lb.deploy.proxy.names import ServedNames, load_served
    from blackbox_lb.deploy.proxy.requests import Rule, Upstream
    from blackbox_lb.deploy.proxy.server import Proxy

    served = load_served(
        options.biases, models=options.models, provider=options.provider, on_conflict=options.on_conflict
    )
    return Proxy(
        Rule(ServedNames(served), options.others),
        Upstream.parse(options.upstream),
        max_body=options.max_body * 2**20,
        timeout=options.timeout,
        grace=options.grace,
        hosts=options.hosts,
    )


def _started(proxy: Proxy, host: str, address: str, as_json: bool = False) -> None:
    biases = "; ".join(
        f"{printable(row.name)} ({len(row.bias.entries)} entries, {printable(row.bias.status)})"
        for row in proxy.rule.names
    )
    if not is_loopback(host):
        click.echo(
            f"Warning: {host} is not loopback, and blb proxy has no authentication of its own: whoever reaches this port can "
            "use the upstream with any key, or without one if it asks for none",
            err=True,
        )
    if as_json:
        applied = [
            {"name": row.name, "entries": len(row.bias.entries), "status": row.bias.status} for row in proxy.rule.names
        ]
        print_json({"address": address, "upstream": str(proxy.upstream.base), "biases": applied})
        return
    click.echo(f"blb proxy at {address} -> {proxy.upstream.base} adds: {biases}")


def _stopped(proxy: Proxy) -> None:
    counts = proxy.health["requests"]
    click.echo("stopped; requests: " + ", ".join(f"{number} {name}" for name, number in counts.items()), err=True)
