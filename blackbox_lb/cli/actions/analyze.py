"""The action of ``blb analyze``: draw where asked, score, write analysis.json, print."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeVar

from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import profile_of, vocabulary_of
from blackbox_lb.cli.commands.learning.analyze import ANALYSIS, AnalyzeOptions
from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import default_of, picked
from blackbox_lb.cli.keys import tell_host_of_bias
from blackbox_lb.cli.options import PARSE_REWARD, ModelOptions, TaskOptions, TrialOptions
from blackbox_lb.cli.resources import connect_to, load, open_trials, run
from blackbox_lb.cli.terminal import print_table, reporter
from blackbox_lb.errors import BlbError, InputError
from blackbox_lb.extras.analysis.biased_completions import (
    Biased,
    Shifts,
    ask_shifts,
    biased_completions,
    draw,
    shifts_by_lists,
)
from blackbox_lb.extras.analysis.document import (
    Analysis,
    Band,
    DeltaRow,
    Family,
    MinimalPair,
    TokenScore,
)
from blackbox_lb.extras.analysis.run import TokenNames, analyze
from blackbox_lb.jobs.forecast import ForecastStage
from blackbox_lb.jobs.records.run_record import Remembering, provenance
from blackbox_lb.jobs.runs.names import STORE
from blackbox_lb.safety.files import write_whole
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Task, parse_reward
from blackbox_lb.types import Example

T = TypeVar("T")
Columns: TypeAlias = Sequence[tuple[str, Callable[[T], str]]]
"""The columns of a table: heading, and the value of a row."""

BANDS: Columns[Band] = (
    ("band", lambda row: row.label),
    ("what they are", lambda row: row.meaning),
    ("tokens", lambda row: f"{row.count:,}"),
)
FAMILIES: Columns[Family] = (
    ("side", lambda row: row.side),
    ("family", lambda row: row.name),
    ("examples", lambda row: " ".join(f"'{example}'" for example in row.examples[:6])),
    ("tokens", lambda row: f"{row.size:,}"),
    ("used", lambda row: f"{row.count:,}"),
    ("mean S", lambda row: f"{row.mean_score:+.3f}"),
)
DELTA: Columns[DeltaRow] = (
    ("bias", lambda row: row.of),
    ("entries", lambda row: "" if row.entries is None else f"{row.entries:,}"),
    ("sampled", lambda row: "" if row.sampled_fraction is None else f"{row.sampled_fraction:.1%}"),
    ("sigma", lambda row: f"{row.sigma:.2e}"),
    ("min", lambda row: f"{row.min:.2e}"),
    ("max", lambda row: f"{row.max:.3f}"),
    ("above 5 medians", lambda row: f"{row.selected_fraction:.2%}"),
)
TOKENS: Columns[TokenScore] = (
    ("token", lambda row: f"'{row.text}'"),
    ("context", lambda row: row.contexts[0] if row.contexts else ""),
    ("S (nats)", lambda row: f"{row.score:+.3f}"),
    ("standard error", lambda row: "" if row.se is None else f"{row.se:.3f}"),
    ("bias", lambda row: f"{row.bias:+.2f}" if row.bias else ""),
    ("used", lambda row: f"{row.count:,}"),
)
PAIRS: Columns[MinimalPair] = (
    ("promoted", lambda row: f"'{row.promoted_text}'"),
    ("suppressed", lambda row: f"'{row.suppressed_text}'"),
    ("equal but for", lambda row: row.relation),
    ("S", lambda row: f"{row.promoted_score:+.3f}"),
    ("S", lambda row: f"{row.suppressed_score:+.3f}"),
    ("used", lambda row: f"{row.promoted_count:,}"),
    ("used", lambda row: f"{row.suppressed_count:,}"),
)


def execute(options: AnalyzeOptions) -> None:
    bias = Bias.load(options.bias_file)
    folder = options.out or options.bias_file.parent
    if not folder.is_dir():
        raise InputError(
            f"there is no folder {folder} for the result; make it, or give another --out"
        )
    tell_host_of_bias(options.bias_file, bias, options)
    listener = Remembering(reporter(quiet=options.quiet))
    analysis = run(options, lambda budget: _run(bias, options, listener, budget))
    write_whole(folder / ANALYSIS, (analysis.model_dump_json(indent=1) + "\n").encode())
    if options.as_json:
        print_json(analysis.model_dump(mode="json"))
    else:
        _print(analysis, options.top)
        echo(f"wrote {folder / ANALYSIS}")


async def _run(
    bias: Bias, options: AnalyzeOptions, listener: Remembering, budget: SpendLimit
) -> Analysis:
    profile = profile_of(bias, options.provider)
    store_path = options.store or options.bias_file.with_name(STORE)
    trial_options = picked(
        TrialOptions, options, provider=options.provider or profile.name, store=store_path
    )
    vocabulary = vocabulary_of(bias, [profile], options.tokenizer)
    rows: Sequence[Example] = ()
    if options.task or options.data:
        rows = await _draw(bias, options, trial_options, listener, budget)
    biased = biased_completions(store_path, bias, profile, vocabulary, listener, rows)
    if options.full_vocab:
        shifts = await _exact(bias, biased, options.full_vocab, trial_options, listener, budget)
    else:
        shifts = shifts_by_lists(store_path, biased, bias, profile, vocabulary)
    # The file was checked when its completions were read.
    with RolloutStore(store_path, read_only=True, check_file=False) as store:
        token_bytes = store.token_bytes(bias.tokenizer)
    generated = {token for token in biased.rollouts.token_ids.tolist() if token >= 0}
    nameless: list[int] = []
    if vocabulary is None:
        nameless = sorted(generated - token_bytes.keys())
    names: dict[int, str] = {}
    if options.base_url and nameless:
        names = await _texts(bias, nameless, trial_options, listener)
    token_names = TokenNames(token_bytes, vocabulary, names)
    return analyze(bias, biased, shifts, token_names, provenance(listener.notices))


async def _texts(
    bias: Bias, tokens: Sequence[int], options: ModelOptions, listener: Remembering
) -> dict[int, str]:
    """The texts of tokens from the server at --base-url; empty where it does not answer, which is
    no reason to fail.
    """
    try:
        async with connect_to(options) as session:
            bias.check_tokenizer((await session.tokenizer()).fingerprint)
            texts = await session.texts_of(tokens)
    except BlbError as error:
        listener.notice(f"the texts of {len(tokens):,} tokens are not known: {error}")
        return {}
    return {token: text for token, text in zip(tokens, texts, strict=True) if text}


async def _draw(
    bias: Bias,
    options: AnalyzeOptions,
    trial_options: TrialOptions,
    listener: Remembering,
    budget: SpendLimit,
) -> Sequence[Example]:
    task, reward = load(
        picked(
            TaskOptions,
            options,
            reward="length",
            correct=None,
            thinking=None,
            count=default_of(PARSE_REWARD, "count"),
        ),
        learns=False,
    )
    stages = [ForecastStage(task.test, 2 * options.samples)]
    async with open_trials(
        trial_options, task, reward, budget, bias, stages=lambda trials: stages
    ) as trials:
        if task.note:
            listener.notice(task.note)
        await draw(replace(trials, report=listener), task.test, bias, options.samples)
    return (*task.test, *task.validation, *task.train)


async def _exact(
    bias: Bias,
    biased: Biased,
    positions: int,
    options: TrialOptions,
    listener: Remembering,
    budget: SpendLimit,
) -> Shifts:
    task = Task("stored", (), (), biased.examples)
    reward = parse_reward("length", max_tokens=1)
    exact_options = replace(options, endpoint=options.endpoint or biased.endpoint)
    stages = [ForecastStage(biased.examples[:1], positions)]
    async with open_trials(
        exact_options, task, reward, budget, bias, stages=lambda trials: stages, part="--full-vocab"
    ) as trials:
        return await ask_shifts(
            replace(trials, report=listener), biased, bias, positions, options.seed or 0
        )


def _print(analysis: Analysis, top: int) -> None:
    for sentence in analysis.summary:
        echo(sentence)
    echo(_source(analysis))
    unknown = sum(token.surface == "not known" for token in analysis.tokens)
    if unknown:
        echo(
            f"no stored answer has the text of {unknown:,} tokens; --tokenizer with the model's"
            " vocabulary gives it, or --base-url of a server that is up"
        )
    _print_delta(analysis)
    _print_table("Intervention scores S by band (nats)", BANDS, analysis.bands, left_aligned=2)
    moved = [row for row in analysis.families if row.side != "unmoved"]
    _print_table(f"Families of tokens by {analysis.grouping}", FAMILIES, moved, left_aligned=3)
    by_share = sorted(analysis.tokens, key=lambda row: -abs(row.score) * row.count)
    _print_tokens("Promoted tokens", [row for row in by_share if row.score > 0], top)
    _print_tokens("Suppressed tokens", [row for row in by_share if row.score < 0], top)
    if analysis.pairs:
        pairs = len(analysis.pairs)
        title = f"Nearly equal tokens pushed apart: {min(top, pairs)} of {pairs}"
        _print_table(title, PAIRS, analysis.pairs[:top], left_aligned=3)


def _print_table(
    title: str, columns: Columns[T], rows: Sequence[T], *, left_aligned: int = 1
) -> None:
    cells = [[cell(row) for _, cell in columns] for row in rows]
    print_table(title, [name for name, _ in columns], cells, left_aligned=left_aligned)


def _source(analysis: Analysis) -> str:
    basis = {
        "exact": "exact, from all logprobs",
        "tail model": (
            "from the base model's lists at biased positions, what they leave out by the tail model"
        ),
        "logprobs after the bias": "from lists of the biased policy, the bias taken off",
    }[analysis.source]
    rest = ""
    if analysis.unscored:
        rest = f", {analysis.unscored:,} positions without a score"
    outside = ""
    if analysis.outside and analysis.source != "exact":
        outside = f", {analysis.outside:,} tokens outside their lists"
    return (
        f"scores {basis}: {analysis.positions:,} positions of {analysis.completions:,}"
        f" completions{outside}{rest}"
    )


def _print_delta(analysis: Analysis) -> None:
    if not analysis.delta:
        echo(
            "no statistics over the vocabulary: its size is not known; --tokenizer with the model's"
            " vocabulary gives it"
        )
        return
    _print_table("The bias over the whole vocabulary, centred (nats)", DELTA, analysis.delta)


def _print_tokens(title: str, rows: Sequence[TokenScore], top: int) -> None:
    _print_table(
        f"{title}, by S times use: {min(top, len(rows)):,} of {len(rows):,}",
        TOKENS,
        rows[:top],
        left_aligned=2,
    )
