"""``blb export``: a bias file as code for another tool."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import click

from blackbox_lb.cli.completing import bias_files, known
from blackbox_lb.cli.echo import echo_code
from blackbox_lb.cli.grouped import LateChoice
from blackbox_lb.providers.packaged import profile_names


def _formats() -> Iterable[str]:
    from blackbox_lb.bias.export import FORMATS

    return FORMATS


@click.command("export")
@click.argument(
    "bias_file",
    metavar="[BIAS]",
    required=False,
    type=click.Path(path_type=Path),
    shell_complete=bias_files,
)
@click.option(
    "--format",
    type=LateChoice(_formats),
    required=True,
    help="What to print; json is the numbers alone.",
)
@click.option(
    "--provider",
    shell_complete=known(profile_names),
    help=(
        "Where requests go: an API by its name (blb providers lists all), or your own TOML."
        " [default: the bias's own]"
    ),
)
@click.option(
    "--at",
    metavar="POINT",
    help="Another operating point of BIAS, as in precision=.9, recall=.8 or rate=.2: UNVERIFIED.",
)
@click.option("--model", help="The model's name there. [default: the bias's own]")
@click.option("--base-url", help="Address of the API, with its /v1. [default: the provider's]")
@click.option(
    "--tokenizer", help="The model's vocabulary, where its name is not enough: as in blb fit."
)
def export_command(
    bias_file: Path | None,
    format: str,
    provider: str | None,
    at: str | None,
    model: str | None,
    base_url: str | None,
    tokenizer: str | None,
) -> None:
    """Print a bias as code, a command or a file that is ready to use in another tool.

    openai, litellm, langchain, pydantic-ai and dspy are Python scripts, curl, inspect, llm and
    openrouter-preset shell commands, litellm-yaml a model of the LiteLLM proxy, llamacpp flags of
    llama-server, vllm how to serve a bias of any size and ask for it, sillytavern a preset to
    import, open-webui the text of its field; json is the value of the request field logit_bias,
    koboldcpp-strings the phrases that are suppressed most. Temperature and token limit are those at
    which the bias was judged, and comments have the texts of the tokens. What a tool rounds or
    cannot take is said.

    BIAS is a bias file or the folder of a run, by default the newest in runs. One beyond the
    provider's limits is refused: blb compile makes it fit.
    """
    from blackbox_lb.bias.export import export
    from blackbox_lb.cli.resources import chosen_bias

    code = export(
        chosen_bias(bias_file),
        format,
        at=at,
        provider=provider,
        model=model,
        base_url=base_url,
        tokenizer=tokenizer,
    )
    echo_code(code, nl=False)
