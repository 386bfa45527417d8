"""``blb export``: a bias file as code for another tool."""

from __future__ import annotations

from blackbox_lb.cli.echo import echo_code
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import AT, BiasOptions
from blackbox_lb.jobs.plan.setting import setting


class ExportOptions(BiasOptions):
    format: str = setting(
        ...,
        None,
        "What to print; json is the numbers alone.",
        choices="blackbox_lb.bias.export:FORMATS",
        required=True,
    )
    at: str | None = setting(None, None, AT, metavar="POINT")
    model: str | None = setting(None, None, "The model's name there. [default: the bias's own]")
    base_url: str | None = setting(
        None, None, "Address of the API, with its /v1. [default: the provider's]"
    )


@command("export", ExportOptions, example="blb export runs/train --format openai")
def export_command(options: ExportOptions) -> None:
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
        chosen_bias(options.bias_file),
        options.format,
        at=options.at,
        provider=options.provider,
        model=options.model,
        base_url=options.base_url,
        tokenizer=options.tokenizer,
    )
    echo_code(code, nl=False)
