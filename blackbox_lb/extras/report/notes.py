"""Lists of facts beside the tables: costs, counts, missing parts, and origins."""

import shlex
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from blackbox_lb.bias.records import Entry, settings_text
from blackbox_lb.estimate.diagnosis.diagnose import DOES_NOT_ARISE
from blackbox_lb.extras.analysis.document import Analysis
from blackbox_lb.extras.report.data import RunDocuments
from blackbox_lb.extras.report.decided import decided_counts, question_count
from blackbox_lb.extras.report.verdict_text import as_title, rows_of, setting_words
from blackbox_lb.jobs.plan.shared import DecisionSettings, ModelSettings, TaskSettings
from blackbox_lb.jobs.runs.names import LEARNED
from blackbox_lb.records import Finding
from blackbox_lb.rollouts.progress import short
from blackbox_lb.safety.printable import shell_line

Facts = Iterator[tuple[str, str]]
"""Names and their facts."""
MOST_PHRASES = 6
"""Phrases that are named."""


def eval_command(run: RunDocuments, *more: str) -> str:
    """``blb eval`` of the bias with the task and the model of the fit, as its command line named
    them, then ``more``.
    """
    provenance = run.result.provenance if run.result is not None else {}
    words = shlex.split(str(provenance.get("command", "")))
    kinds = (TaskSettings, DecisionSettings, ModelSettings)
    names = {f"--{name.replace('_', '-')}" for kind in kinds for name in kind.model_fields}
    same = []
    is_kept = False
    for word in words[2:] if words[:2] == ["blb", "fit"] else []:
        if word.startswith("--"):
            is_kept = word.partition("=")[0] in names
        if is_kept:
            same.append(word)
    return shell_line("blb", "eval", run.folder / "bias.json", *same, *more)


def costs(run: RunDocuments) -> Facts:
    """The completions drawn and their tokens."""
    result = run.result
    evaluation = run.evaluation
    if result is not None and result.usage is not None:
        used = result.usage
        yield "drawn for this fit", f"{used.completions:,} completions"
        yield (
            "tokens paid",
            f"{used.prompt_tokens:,} of prompts, {used.completion_tokens:,} of completions",
        )
    if run.bias.decisions:
        yield "learned from", f"{run.bias.rollouts:,} rows"
        return
    yield "learned from", f"{run.bias.rollouts:,} completions with {run.bias.tokens:,} tokens"
    for row in rows_of(run):
        if row.metric == "tokens" and row.base > 0:
            change = f"{row.base:,.1f} → {row.biased:,.1f} ({row.difference / row.base:+.0%})"
            yield f"completion tokens, {row.setting}", change.replace("-", "−")
    if evaluation is not None:
        priced = [
            (policy, policy.cost) for policy in evaluation.policies if policy.cost is not None
        ]
        for priced_policy, cost in priced:
            yield (
                f"1,000 answers, {priced_policy.name}, {priced_policy.setting}",
                f"{short(cost)} US dollars",
            )
        if not priced:
            yield "money", "not known: no prices were given to blb eval (--price)"
    if result is not None:
        yield "distance from the base", result.kl_sentence


def counts(run: RunDocuments) -> Facts:
    """Everything dropped, clipped, rounded, bounded or left out, zeros included."""
    bias = run.bias
    result = run.result
    if bias.decisions:
        yield from decided_counts(run)
        return
    if result is not None and result.training is not None:
        training = result.training
        yield (
            "incomplete",
            (
                f"{training.incomplete:,} completions left out of the fit, whose tokens were not"
                " all listed"
            ),
        )
        yield (
            "filtered",
            f"{training.filtered:,} completions left out of the fit, stopped by a content filter",
        )
    listed = None
    if bias.sampling:
        listed = bias.sampling.top_logprobs
    censoring = "not recorded"
    if bias.censoring:
        censoring = bias.censoring.sentence(listed)
    yield "kept back by the provider", censoring
    yield from _compiled(run)
    if run.evaluation is not None:
        left_out = sum(policy.left_out for policy in run.evaluation.policies)
        yield "left out of the evaluation", f"{left_out:,} completions"
    if run.analysis is not None:
        yield from analysed(run.analysis)


def _compiled(run: RunDocuments) -> Facts:
    compiled = run.bias.compiled
    if run.result is not None:
        yield "learned", f"{run.result.uncompiled_entries:,} values, in {LEARNED}, for blb compile"
    if run.bias.phrases:
        yield "phrases", _phrases(run.bias.phrases)
    entries = len(run.bias.entries)
    if compiled is None:
        yield "biased tokens", f"{entries:,}; what a compile kept and lost is not recorded"
        return
    limit = "no limit"
    if compiled.entries_limit is not None:
        limit = f"at most {compiled.entries_limit:,}"
    if compiled.integers:
        limit += ", whole numbers only"
    yield "biased tokens", f"{entries:,} ({limit})"
    yield "clipped", f"{compiled.clipped:,} values on the limit of the range"
    yield "rounded", f"{compiled.rounded:,} values that became 0 as whole numbers"
    yield "dropped", f"{compiled.dropped:,} learned values that are not listed"
    if compiled.kept_share is not None:
        yield "kept", f"{compiled.kept_share:.1%} of the estimated gain".replace("%", " %")
    if compiled.kl_lost_nats_per_token is not None:
        yield "lost by the compile", f"{compiled.kl_lost_nats_per_token:.5f} nats of KL a token"


def _phrases(phrases: Sequence[str]) -> str:
    """How many a file keeps out, and the first of them."""
    names = list(phrases[:MOST_PHRASES])
    if len(phrases) > MOST_PHRASES:
        names.append("...")
    return f"{len(phrases):,}, which apply() and blb proxy keep out: {', '.join(names)}"


def analysed(analysis: Analysis) -> Facts:
    """What an analysis read, and what it did not."""
    yield (
        "analysed",
        f"{analysis.positions:,} positions of {analysis.completions:,} completions",
    )
    yield (
        "not analysed",
        f"{analysis.left_out:,} completions left out: filtered, broken off by the host, or not all"
        " of their tokens are listed",
    )
    yield (
        "outside the lists",
        f"a share of {short(analysis.unlisted)} of the probability, which rests on the model of the"
        " tail",
    )
    unvisited = "not known"
    if analysis.unvisited is not None:
        unvisited = f"{analysis.unvisited:,} tokens of the vocabulary"
    yield "never generated", unvisited


def chosen_by(run: RunDocuments) -> str:
    """The method of choosing the strength and size; empty without the numbers."""
    if run.result is None or not run.result.validation.tried:
        return ""
    tried = run.result.validation.tried
    chosen = run.result.origin or f"{run.bias.estimator}, {settings_text(run.bias.settings)}"
    if len(tried) == 1:
        return f"There was one candidate, {chosen}, so nothing was chosen."
    sampled = sum(candidate.samples > 0 for candidate in tried)
    return (
        f"{len(tried)} candidates were tried on the validation prompts, {sampled} with fresh"
        f" completions. Chosen: {chosen}. The numbers here chose, so they flatter what was chosen;"
        " the verdict above comes from other prompts."
    )


MOST_NAMED = 3
"""Tokens that the first sentence names in each direction."""
LONGEST_PROMPT = 120
"""Characters of a prompt that the second sentence quotes."""


def in_short(run: RunDocuments) -> tuple[str, str]:
    """What was learned, and for whom, in a sentence each."""
    model = run.bias.model
    prompts = f"prompts like those of {run.bias.task or 'the fit'}"
    if run.bias.decisions:
        what = (
            f"Requests stay as they are: the probabilities that {model} gives to the options of"
            f" {question_count(run)} are mended after they arrive."
        )
        whom = f"It is for {model} and {prompts}, asked in the same words."
        return what, whom
    entries = sorted(run.bias.entries, key=lambda entry: -abs(entry.bias))
    directions = (
        ("likelier", [entry for entry in entries if entry.bias > 0]),
        ("less likely", [entry for entry in entries if entry.bias < 0]),
    )
    moves = [f"{_tokens(moved)} {word}" for word, moved in directions if moved]
    condition = ", by what the prompt is" if run.bias.depends_on else ""
    what = f"The bias moves no token{condition}."
    if moves:
        what = f"The bias makes {' and '.join(moves)}{condition}, in every answer."
    if run.examples:
        prompts = f"prompts like “{_cut(run.examples[0].row.prompt)}”"
    settings = dict.fromkeys(setting_words(row.setting) for row in rows_of(run))
    tested = f", tested {' and '.join(settings)}" if settings else ""
    whom = (
        f"It is for {model} and {prompts}{tested}; it teaches no fact and no skill, and another"
        " model needs a bias of its own."
    )
    return what, whom


def _cut(prompt: str) -> str:
    return textwrap.shorten(prompt, LONGEST_PROMPT, placeholder=" …")


def _tokens(entries: Sequence[Entry]) -> str:
    """The first tokens, and the number of the others."""
    names = [f"“{entry.readable.strip() or entry.readable}”" for entry in entries[:MOST_NAMED]]
    further = len(entries) - len(names)
    if further:
        names.append(f"{further:,} more tokens" if further > 1 else "1 more token")
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def checks(run: RunDocuments) -> tuple[list[Finding], list[Finding]]:
    """The checks of the fit that say something, and those that do not arise."""
    arise: list[Finding] = []
    moot: list[Finding] = []
    for finding in run.bias.findings:
        moot_or_not = moot if finding.sentence.startswith(DOES_NOT_ARISE) else arise
        moot_or_not.append(finding)
    return arise, moot


def learned(run: RunDocuments) -> str:
    bias = run.bias
    up = sum(entry.bias > 0 for entry in bias.entries)
    down = sum(entry.bias < 0 for entry in bias.entries)
    text = f"The bias promotes {up:,} tokens and suppresses {down:,}, in every context alike."
    if bias.learned is not None:
        text += f" {as_title(bias.learned.sentence)}".replace(" -", " −")
    return text.replace("%", " %")


def missing(run: RunDocuments) -> Iterator[tuple[str, str, str]]:
    """The missing parts, their use, and the command that adds each, "" where there is none."""
    if run.bias.decisions:
        yield from _missing_of_decisions(run)
        return
    if not rows_of(run):
        yield "a verdict", "Fresh completions of unseen prompts:", eval_command(run, "--save")
    if run.evaluation is None:
        purpose = "What one would do instead of a bias, on the same prompts:"
        yield "what you could do instead", purpose, eval_command(run, "--rivals")
    if run.analysis is None:
        purpose = "How far each token moves, score bands and families:"
        command = shell_line("blb", "analyze", run.folder / "bias.json")
        yield "scores of tokens", purpose, command
    if not run.examples:
        yield (
            "examples before and after",
            f"{run.examples_from[0].upper()}{run.examples_from[1:]}.",
            eval_command(run),
        )
    if not (run.folder / LEARNED).exists():
        yield (
            "the whole learned vector",
            f"{LEARNED} is not in the folder: blb fit writes it.",
            "",
        )
    if run.result is None:
        yield "how the bias was chosen", "result.json is not in the folder: blb fit writes it.", ""


def _missing_of_decisions(run: RunDocuments) -> Iterator[tuple[str, str, str]]:
    if not rows_of(run):
        yield "a verdict", "Test rows with an answer: blb fit judges by them.", ""
    if run.result is None:
        yield "what was tried", "result.json is not in the folder: blb fit writes it.", ""


def origin(run: RunDocuments) -> Facts:
    """Model, data and date."""
    bias = run.bias
    yield "model", bias.model
    yield "provider", bias.provider
    yield "tokenizer", bias.tokenizer
    yield "task", bias.task or "not recorded"
    yield "reward", bias.reward
    yield "data (SHA-256)", bias.data_hash or "not recorded"
    estimator: str = bias.estimator
    if bias.settings:
        estimator = f"{estimator}: {settings_text(bias.settings)}"
    yield "estimator", estimator
    if bias.vocab_size is not None:
        yield "vocabulary", f"{bias.vocab_size:,} tokens"
    if sampling := bias.sampling:
        limits = (
            f"at most {sampling.max_tokens:,} tokens, {sampling.top_logprobs} logprobs a token,"
            f" {sampling.endpoint} endpoint"
        )
        yield "training completions", limits
    yield "bias made", f"{bias.created:%Y-%m-%d %H:%M} UTC by blackbox_lb {bias.blackbox_lb}"


def written(measured: Mapping[str, Any]) -> str:
    """Date, machine and versions of a document, where it records them."""
    versions = measured.get("versions")
    named = ""
    if isinstance(versions, dict):
        named = ", ".join(f"{key} {value}" for key, value in versions.items())
    parts = [measured.get("date")]
    if "python" in measured:
        parts.append(f"Python {measured['python']}")
    parts += [measured.get("machine"), named]
    settings = measured.get("settings")
    if isinstance(settings, dict) and settings:
        values = ", ".join(f"{key} = {value}" for key, value in settings.items())
        parts.append(f"from blb.toml or the environment: {values}")
    return " · ".join(str(part) for part in parts if part)
