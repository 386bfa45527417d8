"""``blb proxy``: the bias for every language and tool that can set a base URL."""

from __future__ import annotations

from blackbox_lb.cli.completing import bias_files
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import provider
from blackbox_lb.cli.resources import chosen_bias, load_bias
from blackbox_lb.cli.serving import ListenOptions, serve_biases
from blackbox_lb.jobs.plan.setting import setting


class ProxyOptions(ListenOptions):
    biases: tuple[str, ...] = setting(
        (),
        None,
        "A bias file or the folder of a run. Without ALIAS it applies to its model's name, with one"
        " to MODEL@ALIAS. Can be given several times.",
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
        "Check the biases against this provider's limits, and send them in its format. ",
    )


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
    shows the biases, GET /ready says whether the upstream answers (503 where not), GET /metrics
    counts for Prometheus. What will go wrong with the upstream is said at the start. Without --bias
    and --decide, the newest run in runs is served. Ctrl-C (or SIGTERM) lets answers under way
    finish.
    """
    import asyncio

    from blackbox_lb.bias.document import Bias
    from blackbox_lb.safety.network import check_key_log

    check_key_log()  # before the server's library is imported, which reads it then
    from blackbox_lb.deploy.proxy.served import load_served, parse_bias_argument

    biases = options.biases
    decide = options.decide
    if not biases and not decide:
        chosen = chosen_bias(None)
        if Bias.load(chosen).decisions:
            decide = (str(chosen),)
        else:
            biases = (str(chosen),)
    served = load_served(
        biases,
        at=options.at,
        models=options.models,
        provider=options.provider,
        on_conflict=options.on_conflict,
    )
    for bias_argument in biases:
        load_bias(parse_bias_argument(bias_argument)[1], options)
    asyncio.run(serve_biases(options, options.upstream, served, decide, options.provider))
