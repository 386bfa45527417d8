"""``blb words``: a bias for words and phrases, without a fit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from blackbox_lb.cli.echo import echo, print_json, with_option_names
from blackbox_lb.cli.grouped import argument, command
from blackbox_lb.cli.options import LimitOptions, PrintOptions
from blackbox_lb.cli.resources import (
    announce,
    check_folder,
    connect_to,
    known_prices,
    run,
)
from blackbox_lb.cli.terminal import print_conclusion, reporter
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.setting import HelpGroup, setting
from blackbox_lb.jobs.plan.shared import ModelSettings
from blackbox_lb.jobs.runs.names import SAMPLING_WITH_A_BIAS
from blackbox_lb.safety.printable import counted, printable, shell_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blackbox_lb.api.limits.budget import SpendLimit
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.phrases import PhraseLine, PhraseList
    from blackbox_lb.jobs.runs.conclusion import Conclusion
    from blackbox_lb.jobs.words import Cost, WordTokens
    from blackbox_lb.providers.profile import Profile
    from blackbox_lb.types import Prompt

MOST_TOKENS = 200
"""Longest completion, in tokens."""
MOST_NAMED = 6
"""Lines of a list that are named."""


class WordsOptions(ModelSettings, LimitOptions, PrintOptions):
    words: str = argument(metavar="LIST")
    out: Path = setting(Path("bias.json"), HelpGroup.FIRST, "Where to write.")
    value: float | None = setting(
        None,
        HelpGroup.FIRST,
        "Bias of a token that is a whole word, in nats: -2 makes it rarer. [default: a ban, the"
        " lowest that the provider takes]",
    )
    entries: int | None = setting(
        None, HelpGroup.FIRST, "Most tokens in the bias. [default: the provider's limit]", ge=1
    )
    only_tokens: bool = setting(
        False,
        HelpGroup.FIRST,
        "Ban tokens alone, without stepping back: for servers that cannot, and tools that send a"
        " vector.",
    )
    data: Path | None = setting(
        None,
        HelpGroup.TASK,
        "File of prompts to estimate the cost on, as in blb fit. [default: 20 stories and"
        " paragraphs]",
    )
    prompt_column: str = setting("prompt", HelpGroup.TASK, "Column of --data with the prompt.")
    prompts: int = setting(
        20,
        HelpGroup.FIRST,
        "Prompts that are answered once, without a bias, to say what the list would cost; 0 for no"
        " such estimate.",
        ge=0,
    )
    max_tokens: int = setting(MOST_TOKENS, HelpGroup.FIRST, "Longest completion, in tokens.", ge=1)
    seed: int | None = setting(None, HelpGroup.SAMPLING, "Sent with every request.", ge=0)
    dry_run: bool = setting(
        False, HelpGroup.FIRST, "Read the list and print what would be asked for; ask nothing."
    )


@command(
    "words",
    WordsOptions,
    example="blb words list.txt --provider vllm --model MODEL --out bias.json",
)
def words_command(options: WordsOptions) -> None:
    """Write a bias that keeps words and phrases out, without a fit, and say what it would cost.

    LIST is a file with a word, a phrase or a /pattern/ a line, a list of a public sampler (JSON),
    or the words themselves with commas between them, as in --reward avoid:LIST. Every token that
    is the whole of a word, in any spelling, gets a ban, the weightiest words first, as many as the
    provider takes. The list stands in the file, too: apply() and blb proxy step back from what no
    token can ban, which are phrases, patterns and words of several tokens.

    The bias is UNVERIFIED: blb eval judges it. What it costs is estimated from completions of the
    base, one a prompt; they are not kept.
    """
    from blackbox_lb.bias.phrases import PhraseList
    from blackbox_lb.jobs.words import checked_value
    from blackbox_lb.providers.profile import load_profile
    from blackbox_lb.providers.stepping_back import check_steps_back

    phrases = PhraseList.load(options.words)
    profile = load_profile(options.provider)
    profile.require(["bias"], "banning words", options.model)
    endpoint = options.endpoint or profile.first_endpoint
    if not options.only_tokens:
        try:
            check_steps_back(profile, endpoint)
        except InputError as error:
            raise InputError(
                f"{error}; or ban the tokens of single words alone, with ``only_tokens``"
            ) from None
    value = checked_value(profile, options.value)
    check_folder(options.out)
    prompts = _prompts(options)
    if options.dry_run:
        _dry_run(options, profile, phrases, prompts)
        return
    (bias, tokens, cost), spent = run(
        options, lambda budget: _run(options, phrases, prompts, value, budget)
    )
    bias.save(options.out)
    if options.as_json:
        print_json(_document(options, phrases, bias, tokens, cost))
        return
    spent = spent if cost is not None else ""
    print_conclusion(words_conclusion(options, phrases, bias, tokens, cost, spent))


def _prompts(options: WordsOptions) -> Sequence[Prompt]:
    """The prompts of the estimate."""
    from blackbox_lb.jobs.words import PROMPTS
    from blackbox_lb.tasks.records.files import load_examples

    prompts: Sequence[Prompt] = PROMPTS
    if options.data is not None:
        column = options.prompt_column
        examples = load_examples(options.data, prompt_column=column, require_answers=False)
        prompts = [example.prompt for example in examples]
    return prompts[: options.prompts]


def _dry_run(
    options: WordsOptions, profile: Profile, phrases: PhraseList, prompts: Sequence[Prompt]
) -> None:
    """Print what the command would ask for; no server is asked, and nothing is written."""
    from dataclasses import asdict

    from blackbox_lb.jobs.words import words_forecast

    total = words_forecast(prompts, options.max_tokens)
    prices = known_prices(profile, options.model, options)
    if options.as_json:
        print_json({"lines": len(phrases.lines), **asdict(total)})
        return
    echo(f"{counted(len(phrases.lines), 'line')} in {printable(str(phrases.path))}")
    echo(total.sentence(prices, stored=0, mean=0.0))
    if prices is None and profile.connection.api_key_required:
        echo(with_option_names("the price is not known; give it with ``price=PROMPT,COMPLETION``"))


async def _run(
    options: WordsOptions,
    phrases: PhraseList,
    prompts: Sequence[Prompt],
    value: float,
    budget: SpendLimit,
) -> tuple[Bias, WordTokens, Cost | None]:
    from blackbox_lb.jobs.runs.opening import price_model
    from blackbox_lb.jobs.words import (
        estimated_cost,
        plain_completions,
        word_tokens,
        words_bias,
        words_forecast,
    )

    longest = max((sum(map(len, prompt.sent_texts)) for prompt in prompts), default=0)
    async with connect_to(
        options,
        max_tokens=options.max_tokens,
        longest_prompt=longest,
        needs=SAMPLING_WITH_A_BIAS,
        budget=budget,
    ) as session:
        in_flight = options.concurrency or session.profile.connection.concurrency
        tokens = await word_tokens(session, phrases, options.entries, in_flight)
        bias = await words_bias(
            session,
            phrases,
            tokens,
            value,
            name=f"avoid:{options.words}",
            max_tokens=options.max_tokens,
            keeps_phrases=not options.only_tokens,
        )
        if not prompts:
            return bias, tokens, None
        price_model(budget, session, options.price, options.price_table)
        total = words_forecast(prompts, options.max_tokens)
        sentence = f"{session.model}: {total.sentence(budget.prices, stored=0, mean=0.0)}"
        announce(session, options, reporter(quiet=options.quiet), sentence)
        completions = await plain_completions(
            session, prompts, options.max_tokens, options.seed, budget, in_flight
        )
        return bias, tokens, estimated_cost(session, completions, phrases, tokens)


def words_conclusion(
    options: WordsOptions,
    phrases: PhraseList,
    bias: Bias,
    tokens: WordTokens,
    cost: Cost | None,
    spent: str,
) -> Conclusion:
    """What the file holds, what found no room, and what it would cost."""
    from blackbox_lb.jobs.runs.conclusion import Conclusion, NextStep

    value = bias.settings["value"]
    statements = [
        f"{counted(len(bias.entries), 'token')} at {value:g} nats, for"
        f" {counted(len(tokens.words), 'line')} of {len(phrases.lines):,}"
    ]
    if bias.phrases:
        statements.append(
            f"all {counted(len(bias.phrases), 'line')} by stepping back, which apply() and blb"
            " proxy do"
        )
    else:
        rest = [line for line in phrases.lines if line not in set(tokens.words)]
        if rest:
            statements.append(f"no token is {_named(rest)}")
    if tokens.left_out:
        statements.append(f"no room for all tokens of {_named(tokens.left_out)}")
    if cost is not None:
        statements += cost.lines
    judge = ["blb", "eval", str(options.out), "--provider", options.provider]
    if options.model is not None:
        judge += ["--model", options.model]
    if options.base_url is not None:
        judge += ["--base-url", options.base_url]
    judge += ["--data", str(options.data or "prompts.txt")]
    if options.prompt_column != "prompt":
        judge += ["--prompt-column", options.prompt_column]
    judge += ["--reward", f"avoid:{options.words}"]
    entries = "1 entry" if len(bias.entries) == 1 else f"{len(bias.entries):,} entries"
    return Conclusion(
        "UNVERIFIED",
        tuple(statements),
        spent=spent,
        saved=f"{options.out}  ({entries}, {counted(len(bias.phrases), 'phrase')})",
        steps=(NextStep(shell_line(*judge), "judge it"),),
    )


def _named(lines: Sequence[PhraseLine]) -> str:
    """The number of lines and the first of them."""
    names = [printable(line.entry) for line in lines[:MOST_NAMED]]
    if len(lines) > MOST_NAMED:
        names.append("...")
    return f"{counted(len(lines), 'line')}: {', '.join(names)}"


def _document(
    options: WordsOptions,
    phrases: PhraseList,
    bias: Bias,
    tokens: WordTokens,
    cost: Cost | None,
) -> dict[str, Any]:
    """What the command found, for a program."""
    return {
        "bias": str(options.out),
        "lines": len(phrases.lines),
        "entries": len(bias.entries),
        "phrases": len(bias.phrases),
        "value": bias.settings["value"],
        "words": [line.entry for line in tokens.words],
        "left_out": [line.entry for line in tokens.left_out],
        "cost": None if cost is None else cost.as_json(),
    }
