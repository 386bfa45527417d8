"""The action of ``blb try``: both answers to each prompt, the moved tokens in brackets."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.limits.concurrency import run_interruptible
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import check_bias
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.cli.commands.using.try_ import MOST_TOKENS, TryOptions
from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import picked
from blackbox_lb.cli.keys import tell_host_of_bias
from blackbox_lb.cli.resources import SAMPLING_WITH_A_BIAS, connect_to
from blackbox_lb.jobs.plan.shared import ModelSettings
from blackbox_lb.jobs.runs.answers import SideBySide, side_by_side
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.types import Message, Prompt, Sampling


def execute(options: TryOptions) -> None:
    """Answer the prompts, and print each pair as it comes."""
    bias = Bias.load(options.bias_file)
    tell_host_of_bias(options.bias_file, bias, options)
    name = options.provider or bias.provider
    embedded = load_profile(name).connection.embedded
    model = options.model if embedded else options.model or bias.model
    budget = SpendLimit()
    server = picked(ModelSettings, options, provider=name, model=model)
    main = _answer_all(options, server, bias, budget)
    rows = run_interruptible(main, budget)
    if options.as_json:
        print_json({"bias": str(options.bias_file), "answers": rows})


async def _answer_all(
    options: TryOptions, server: ModelSettings, bias: Bias, budget: SpendLimit
) -> list[dict[str, object]]:
    longest = options.max_tokens or MOST_TOKENS
    if options.max_tokens is None and bias.sampling is not None:
        longest = bias.sampling.max_tokens
    sampling = Sampling(options.temperature, longest, 1)
    sent = to_request_bias(bias)
    rows: list[dict[str, object]] = []
    async with connect_to(
        server,
        concurrency=options.concurrency,
        max_tokens=longest,
        longest_prompt=max(map(len, options.prompts), default=0),
        needs=SAMPLING_WITH_A_BIAS,
        budget=budget,
    ) as session:
        tokenizer = await session.tokenizer()
        bias.check_tokenizer(tokenizer.fingerprint)
        check_bias(bias, session.profile, session.highest_id)
        async for text in _prompts(options):
            prompt = Prompt.user(text)
            if options.system:
                prompt = Prompt((Message("system", options.system), *prompt.messages))
            answers = await side_by_side(session, sent, prompt, sampling)
            rows.append(_row(text, answers))
            if not options.as_json:
                _print(text, answers)
    return rows


async def _prompts(options: TryOptions) -> AsyncIterator[str]:
    """The prompts of the command line, else the lines of the input that are not empty."""
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
    return {
        "prompt": prompt,
        "base": answers.base.text,
        "biased": answers.biased.text,
        "moved": [[piece.text, piece.bias] for piece in answers.pieces if piece.bias is not None],
    }


def _print(prompt: str, answers: SideBySide) -> None:
    marked = "".join(
        piece.text if piece.bias is None else f"[{piece.text}]" for piece in answers.pieces
    )
    moved = {piece.text: piece.bias for piece in answers.pieces if piece.bias is not None}
    echo(f"prompt  {prompt}")
    echo(f"base    {answers.base.text.strip() or '(nothing)'}")
    echo(f"biased  {marked.strip() or '(nothing)'}")
    if moved:
        echo(f"moved   {', '.join(f'{text!r} {value:+.2f}' for text, value in moved.items())}")
    echo()
