"""Lists of facts beside the tables: costs, counts, missing parts, and origins."""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.prompt_text import PromptText
from blackbox_lb.bias.records import settings_text
from blackbox_lb.bias.request_bias import RequestBias, to_request_bias
from blackbox_lb.extras.analysis.document import Analysis
from blackbox_lb.extras.report.data import Result, RunDocuments
from blackbox_lb.extras.report.verdict_text import rows_of
from blackbox_lb.rollouts.progress import short

EXPLAINED = 4
"""Prompts that are shown with their own biases."""
Facts = Iterator[tuple[str, str]]
"""Names and their facts."""


def _blb(command: str, run: RunDocuments) -> str:
    return f"blb {command} {shlex.quote(str(run.folder / 'bias.json'))}"


def eval_command(run: RunDocuments) -> str:
    return _blb("eval", run)


def own_biases(run: RunDocuments) -> list[str]:
    """A sentence on the bias of each of the first prompts shown, where it depends on them; none
    where it does not, and for an embedding, whose model takes seconds to load."""
    sent = to_request_bias(run.bias)
    if not isinstance(sent, RequestBias) or "prompt" not in sent.scopes or sent.vectors is not None:
        return []
    return [
        _own_bias(run.bias, sent.of_text(PromptText(example.prompt)))
        for example in run.examples[:EXPLAINED]
    ]


def _own_bias(bias: Bias, values: Mapping[int, float]) -> str:
    common = bias.logit_bias
    moved = sorted(
        bias.entries, key=lambda entry: -abs(values.get(entry.id, 0.0) - common[entry.id])
    )[:4]
    told = ", ".join(
        f"'{each.readable}' {values.get(each.id, 0.0):+.2f} (of all prompts {each.bias:+.2f})"
        for each in moved
    )
    return f"its own bias: {told}".replace("-", "−")


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
        if used.requests is not None:
            yield "requests", f"{used.requests:,}"
    yield "learned from", f"{run.bias.rollouts:,} completions with {run.bias.tokens:,} tokens"
    for row in rows_of(run):
        if row.metric == "tokens" and row.base > 0:
            told = f"{row.base:,.1f} → {row.biased:,.1f} ({row.difference / row.base:+.0%})"
            yield f"completion tokens, {row.setting}", told.replace("-", "−")
    if evaluation is not None:
        priced = [
            (policy, policy.cost) for policy in evaluation.policies if policy.cost is not None
        ]
        for each, cost in priced:
            yield f"1,000 answers, {each.name}, {each.setting}", f"{short(cost)} US dollars"
        if not priced:
            yield "money", "not known: no prices were given to blb eval (--price)"
    yield "distance from the base", _kl(result)


def _kl(result: Result | None) -> str:
    if result is None:
        return "not known without result.json"
    if result.kl_nats_per_completion is None:
        return f"not computed: {result.kl_missing or 'no reason recorded'}"
    given = "" if result.kl_whole else ", given where each completion ends"
    return f"{short(result.kl_nats_per_completion)} nats of KL a completion at temperature 1{given}"


def counts(run: RunDocuments) -> Facts:
    """Everything dropped, clipped, rounded, bounded or left out, zeros included."""
    bias = run.bias
    result = run.result
    if result is not None and result.training is not None:
        found = result.training
        yield (
            "incomplete",
            (
                f"{found.incomplete:,} completions left out of the fit, whose tokens were not all"
                " listed"
            ),
        )
        yield (
            "filtered",
            f"{found.filtered:,} completions left out of the fit, stopped by a content filter",
        )
        yield (
            "encoded",
            f"{found.encoded:,} completions whose tokens are not the provider’s own list",
        )
    listed = bias.sampling.top_logprobs if bias.sampling else None
    yield (
        "kept back by the provider",
        bias.censoring.sentence(listed) if bias.censoring else "not recorded",
    )
    yield from _compiled(run)
    if run.evaluation is not None:
        left_out = sum(policy.left_out for policy in run.evaluation.policies)
        yield "left out of the evaluation", f"{left_out:,} completions"
    if run.analysis is not None:
        yield from _analysed(run.analysis)


def _compiled(run: RunDocuments) -> Facts:
    found = run.bias.compiled
    entries = len(run.bias.entries)
    if found is None:
        yield "biased tokens", f"{entries:,}; what a compile kept and lost is not recorded"
        return
    limit = "no limit" if found.entries_limit is None else f"at most {found.entries_limit:,}"
    yield (
        "biased tokens",
        f"{entries:,} ({limit}{', whole numbers only' if found.integers else ''})",
    )
    yield "clipped", f"{found.clipped:,} values on the limit of the range"
    yield "rounded", f"{found.rounded:,} values that became 0 as whole numbers"
    yield "dropped", f"{found.dropped:,} learned values that are not listed"
    if found.kept_share is not None:
        yield "kept", f"{found.kept_share:.1%} of the estimated gain".replace("%", " %")
    if found.kl_lost_nats_per_token is not None:
        yield "lost by the compile", f"{found.kl_lost_nats_per_token:.5f} nats of KL a token"
    if found.exact is not None:
        kept = f"{found.exact.kept_share:.1%}".replace("%", " %")
        lost = found.exact.kl_lost_nats_per_token
        positions = found.exact.positions
        yield (
            "checked exactly",
            (
                f"{kept} kept and {lost:.5f} nats a token lost, from all logprobs at {positions:,}"
                " positions"
            ),
        )


def _analysed(found: Analysis) -> Facts:
    yield (
        "analysed",
        f"{found.positions:,} positions of {found.completions:,} completions ({found.rollouts})",
    )
    yield "scores come from", found.source
    yield (
        "not analysed",
        f"{found.left_out:,} completions left out, {found.unscored:,} positions without a score",
    )
    if found.outside:
        yield (
            "outside the lists",
            f"{found.outside:,} positions whose score rests on the model of the tail",
        )
    unvisited = (
        "not known" if found.unvisited is None else f"{found.unvisited:,} tokens of the vocabulary"
    )
    yield "never generated", unvisited


def chosen_by(run: RunDocuments) -> str:
    """The method of choosing the strength and size; empty without the numbers."""
    if run.result is None or not run.result.validation.tried:
        return ""
    tried = run.result.validation.tried
    chosen = f"{run.bias.estimator}, {settings_text(run.bias.settings)}"
    if run.result.origin:
        chosen = f"{chosen} ({run.result.origin})"
    if len(tried) == 1:
        return f"There was one candidate, {chosen}, so nothing was chosen."
    sampled = sum(each.samples > 0 for each in tried)
    return (
        f"{len(tried)} candidates were tried on the validation prompts, {sampled} with fresh"
        f" completions. Chosen: {chosen}. The numbers here chose, so they flatter what was chosen;"
        " the verdict above comes from other prompts."
    )


def learned(run: RunDocuments) -> str:
    bias = run.bias
    up = sum(entry.bias > 0 for entry in bias.entries)
    down = sum(entry.bias < 0 for entry in bias.entries)
    told = f"The bias promotes {up:,} tokens and suppresses {down:,}, in every context alike."
    if bias.learned is not None:
        found = bias.learned
        whole = (
            " Over the whole vocabulary, before the compile and centred:"
            f" {found.sampled_fraction:.1%} of tokens sampled, standard deviation"
            f" {short(found.sigma)} nats, least {short(found.low)}, largest {short(found.high)},"
            f" {found.selected_fraction:.2%} above 5 medians."
        )
        told += whole.replace(" -", " −")
        if found.reliability is not None:
            told += (
                f" Other prompts of the same kind would bring back {max(found.reliability, 0):.0%}"
                " of it."
            )
    return told.replace("%", " %")


def missing(run: RunDocuments) -> Iterator[tuple[str, str, str]]:
    """The missing parts, their use, and the command that adds each, "" where there is none."""
    same = "with the options of the fit (provider, model, task, reward)"
    judge = _blb("eval", run)
    if not rows_of(run):
        yield "a verdict", f"Fresh completions of unseen prompts, {same}:", f"{judge} --save"
    if run.evaluation is None:
        what = f"Instructions, lower temperatures and token limits beside the bias, {same}:"
        yield (
            "what you could do instead",
            what,
            f"{judge} --baseline-prompt 'Answer in one short sentence.'",
        )
    if run.analysis is None:
        what = f"How far each token moves, score bands, families and minimal pairs, {same}:"
        yield "scores of tokens", what, _blb("analyze", run)
    if not run.examples:
        yield (
            "examples before and after",
            f"{run.examples_from[0].upper()}{run.examples_from[1:]}.",
            judge,
        )
    if run.learned is None:
        yield (
            "the whole learned vector",
            "learned.json is not in the folder: blb fit writes it.",
            "",
        )
    if run.result is None:
        yield "how the bias was chosen", "result.json is not in the folder: blb fit writes it.", ""


def origin(run: RunDocuments) -> Facts:
    """Model, data and date."""
    bias = run.bias
    yield "model", bias.model
    yield "provider", bias.provider
    yield "tokenizer", bias.tokenizer
    yield "task", bias.task or "not recorded"
    yield "reward", bias.reward
    yield "data (SHA-256)", bias.data_hash or "not recorded"
    yield (
        "estimator",
        f"{bias.estimator}: {settings_text(bias.settings)}" if bias.settings else bias.estimator,
    )
    if bias.vocab_size is not None:
        yield "vocabulary", f"{bias.vocab_size:,} tokens"
    if drawn := bias.sampling:
        told = (
            f"at most {drawn.max_tokens:,} tokens, {drawn.top_logprobs} logprobs a token,"
            f" {drawn.endpoint} endpoint"
        )
        yield "training completions", told
    yield "bias made", f"{bias.created:%Y-%m-%d %H:%M} UTC by blackbox_lb {bias.blackbox_lb}"


def written(found: Mapping[str, Any]) -> str:
    """Date, machine and versions of a document, where it records them."""
    versions = found.get("versions")
    named = (
        ", ".join(f"{key} {value}" for key, value in versions.items())
        if isinstance(versions, dict)
        else ""
    )
    parts = (
        found.get("date"),
        f"Python {found['python']}" if "python" in found else None,
        found.get("machine"),
        named,
    )
    settings = found.get("settings")
    given = (
        ", ".join(f"{key} = {value}" for key, value in settings.items())
        if isinstance(settings, dict)
        else ""
    )
    rest = (*parts, f"from blb.toml or the environment: {given}" if given else None)
    return " · ".join(str(part) for part in rest if part)
