"""``blb serve``: the embedded engine with a bias, at one address."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import bias_argument
from blackbox_lb.cli.resources import chosen_bias, connect_to, load_bias
from blackbox_lb.cli.serving import ListenOptions, serve_biases
from blackbox_lb.jobs.plan.setting import setting
from blackbox_lb.jobs.plan.shared import ModelSettings

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias

LOCAL = "local"
SLOTS = 4
"""Requests that are answered at a time."""
CONTEXT = 4096
"""Tokens of a prompt and its answer."""


class ServeOptions(ListenOptions):
    bias_file: Path | None = bias_argument()
    model: str | None = setting(
        None, None, "A .gguf path or a hub name. [default: that of the embedded engine]"
    )
    concurrency: int = setting(SLOTS, None, "Requests that are answered at a time.", ge=1)
    context: int = setting(CONTEXT, None, "Tokens of a prompt and its answer.", ge=1)


@command("serve", ServeOptions, example="blb serve runs/train")
def serve_command(options: ServeOptions) -> None:
    """Start the embedded engine and serve its model with a bias, for people without a server: every
    tool that can set a base URL gets it at http://127.0.0.1:8080/v1.

    BIAS is a bias file or the folder of a run, by default the newest in runs. It must have been
    learned on the same model, by any server. A file that mends decisions is served at /v1/systemone
    and /v1/decisions. The rest is as in blb proxy: GET /healthz, /ready and /metrics, and Ctrl-C
    (or SIGTERM) lets answers under way finish, and then stops the engine. For a server of your own
    take blb proxy.
    """
    import asyncio

    from blackbox_lb.bias.document import Bias
    from blackbox_lb.safety.network import check_key_log

    check_key_log()  # before the server's library is imported, which reads it then
    file = chosen_bias(options.bias_file)
    bias = Bias.load(file)
    if not bias.decisions:
        bias = load_bias(file, options)
    asyncio.run(_serve(options, file, bias))


async def _serve(options: ServeOptions, file: Path, bias: Bias) -> None:
    from blackbox_lb.api.connect import PROMPT_ROOM
    from blackbox_lb.bias.limits import check_bias
    from blackbox_lb.deploy.proxy.served import load_served

    server = ModelSettings(provider=LOCAL, model=options.model, concurrency=options.concurrency)
    async with connect_to(server, max_tokens=max(options.context - PROMPT_ROOM, 1)) as session:
        tokenizer = await session.tokenizer()
        bias.check_tokenizer(tokenizer.fingerprint)
        if bias.decisions:
            await serve_biases(options, session.base_url, (), (str(file),), LOCAL)
            return
        check_bias(bias, session.profile, session.highest_id)
        served = load_served(
            [str(file)],
            models=(session.model,),
            provider=LOCAL,
            on_conflict=options.on_conflict,
        )
        await serve_biases(options, session.base_url, served, (), LOCAL)
