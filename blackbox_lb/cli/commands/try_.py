"""``blb try``: one prompt, answered without a bias and with it."""

from __future__ import annotations

import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import argument, command
from blackbox_lb.cli.options import PrintOptions, bias_argument, provider
from blackbox_lb.cli.resources import chosen_bias, connect_to, load_bias
from blackbox_lb.jobs.plan.setting import HelpGroup, setting
from blackbox_lb.jobs.plan.shared import ModelSettings, ServerSettings
from blackbox_lb.jobs.runs.names import SAMPLING_WITH_A_BIAS
from blackbox_lb.safety.files import exists

if TYPE_CHECKING:
    from blackbox_lb.api.limits.budget import SpendLimit
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.records import PromptRecord
    from blackbox_lb.jobs.runs.answers import SideBySide

MOST_TOKENS = 128
"""Longest answer, where the bias file does not say with how many tokens it was learned."""


class TryOptions(ServerSettings, PrintOptions):
    bias_file: Path | None = bias_argument()
    prompts: tuple[str, ...] = argument(metavar="[PROMPT]...", nargs=-1)
    provider: str | None = provider(HelpGroup.FIRST, "the bias's own")
    max_tokens: int | None = setting(
        None,
        HelpGroup.FIRST,
        f"Longest answer, in tokens. [default: that of the fit, else {MOST_TOKENS}]",
        ge=1,
    )
    system: str | None = setting(
        None, HelpGroup.TASK, "A system message before each prompt. [default: that of the fit]"
    )
    raw: bool = setting(
        False,
        HelpGroup.FIRST,
        "Send each PROMPT as it is, without the template and the system message of the fit.",
    )
    temperature: float = setting(
        0.0, HelpGroup.SAMPLING, "0 is greedy.", type=click.FloatRange(0, 2)
    )


@command("try", TryOptions, example='blb try runs/train/bias.json "What is the capital of Peru?"')
def try_command(options: TryOptions) -> None:
    """Answer each PROMPT without a bias and with it, side by side; tokens that the bias moves stand
    in brackets.

    A PROMPT fills the column of the template that the fit had, if it had one. BIAS is a bias file
    or the folder of a run; without it, where the first word is a text with blanks, the newest in
    runs. Without PROMPT, prompts are read line by line until the end of input.
    """
    from blackbox_lb.api.limits.budget import SpendLimit
    from blackbox_lb.api.limits.concurrency import run_interruptible
    from blackbox_lb.bias.records import PromptRecord
    from blackbox_lb.providers.profile import load_profile
    from blackbox_lb.tasks.records.files import prompt_of_template

    options = _with_bias(options)
    bias = load_bias(chosen_bias(options.bias_file), options)
    bias.check_scopes(("prompt", "prefix"), "blb try", takes_phrases=True)
    prompts = PromptRecord()
    if bias.prompts is not None and not options.raw:
        prompts = bias.prompts
    if options.system is not None:
        prompts = prompts.replacing(system=options.system)
    if prompts.template is not None:
        prompt_of_template(prompts.template, "x")  # what is wrong with it is said before a request
    if not options.quiet:
        _say_prompting(prompts)
    name = options.provider or bias.provider
    embedded = load_profile(name).connection.embedded
    model = options.model if embedded else options.model or bias.model
    budget = SpendLimit()
    server = ModelSettings(
        provider=name,
        model=model,
        base_url=options.base_url,
        endpoint=options.endpoint,
        tokenizer=options.tokenizer,
        concurrency=options.concurrency,
    )
    main = _answer_all(options, server, bias, prompts, budget)
    rows = run_interruptible(main, budget)
    if options.as_json:
        print_json({"bias": str(options.bias_file), **prompts.model_dump(), "answers": rows})


def _with_bias(options: TryOptions) -> TryOptions:
    """The options with a bias: the newest where the first word is a prompt."""
    first = options.bias_file
    prompts = options.prompts
    if first is not None and not exists(first) and re.search(r"\s", str(first)):
        prompts = (str(first), *prompts)
        first = None
    return options.replacing(bias_file=chosen_bias(first), prompts=prompts)


def _say_prompting(prompts: PromptRecord) -> None:
    """Say what stands around each prompt."""
    if prompts.template is not None:
        echo(f"template {prompts.template!r}, that of the fit (--raw: none)", err=True)
    if prompts.system is not None:
        echo(f"system   {prompts.system!r}", err=True)


async def _answer_all(
    options: TryOptions,
    server: ModelSettings,
    bias: Bias,
    prompts: PromptRecord,
    budget: SpendLimit,
) -> list[dict[str, object]]:
    from blackbox_lb.bias.limits import check_bias
    from blackbox_lb.bias.request_bias import to_request_bias
    from blackbox_lb.jobs.runs.answers import side_by_side
    from blackbox_lb.tasks.records.files import prompt_of_template
    from blackbox_lb.types import Message, Prompt, Sampling

    longest = options.max_tokens or MOST_TOKENS
    if options.max_tokens is None and bias.sampling is not None:
        longest = bias.sampling.max_tokens
    sampling = Sampling(options.temperature, longest, 1)
    sent = to_request_bias(bias)
    around = len(prompts.template or "") + len(prompts.system or "")
    longest_prompt = around + max(map(len, options.prompts), default=0)
    rows: list[dict[str, object]] = []
    async with connect_to(
        server,
        max_tokens=longest,
        longest_prompt=longest_prompt,
        needs=SAMPLING_WITH_A_BIAS,
        budget=budget,
    ) as session:
        tokenizer = await session.tokenizer()
        bias.check_tokenizer(tokenizer.fingerprint)
        check_bias(bias, session.profile, session.highest_id)
        async for text in _prompts(options):
            prompt = Prompt.user(text)
            if prompts.template is not None:
                prompt = prompt_of_template(prompts.template, text)
            if prompts.system:
                prompt = Prompt((Message("system", prompts.system), *prompt.messages))
            answers = await side_by_side(session, sent, prompt, sampling)
            rows.append(_row(text, answers))
            if not options.as_json:
                _print(text, answers)
    return rows


async def _prompts(options: TryOptions) -> AsyncIterator[str]:
    """The prompts of the command line, else the lines of the input that are not empty."""
    import asyncio

    if options.prompts:
        for prompt in options.prompts:
            yield prompt
        return
    while True:
        if sys.stdin.isatty():
            echo("prompt> ", err=True, nl=False)
        line = await asyncio.to_thread(sys.stdin.readline)
        if not line:
            return
        if line.strip():
            yield line.strip()


def _row(prompt: str, answers: SideBySide) -> dict[str, object]:
    text = answers.biased.text
    return {
        "prompt": prompt,
        "base": answers.base.text,
        "biased": text,
        "moved": [[text[token.start : token.end], token.bias] for token in answers.moved],
    }


def _print(prompt: str, answers: SideBySide) -> None:
    text = answers.biased.text
    marked = ""
    place = 0
    for token in answers.moved:
        marked += f"{text[place : token.start]}[{text[token.start : token.end]}]"
        place = token.end
    marked += text[place:]
    moved = {text[token.start : token.end]: token.bias for token in answers.moved}
    echo(f"prompt  {prompt}")
    echo(f"base    {answers.base.text.strip() or '(nothing)'}")
    echo(f"biased  {marked.strip() or '(nothing)'}")
    if moved:
        echo(f"moved   {', '.join(f'{text!r} {value:+.2f}' for text, value in moved.items())}")
    echo()
