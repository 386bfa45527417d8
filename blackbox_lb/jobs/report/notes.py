"""Lists of facts beside the tables: what it cost, what was counted, what is missing, and where everything comes from."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from blackbox_lb.jobs.report.data import Result, Run, settings_of
from blackbox_lb.jobs.report.verdict_text import rows_of
from blackbox_lb.rollouts.progress import short

Facts = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Missing:
    """What a report would show besides, and the command that would add it."""

    text: str
    command: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """How one document came to be."""

    name: str
    command: str
    rest: str


def _blb(command: str, run: Run) -> str:
    return f"blb {command} {shlex.quote(str(run.folder / 'bias.json'))}"


def eval_command(run: Run) -> str:
    """What judges the bias."""
    return _blb("eval", run)


def costs(run: Run) -> Facts:
    """What was drawn and what it is worth in tokens."""
    facts: Facts = []
    result, evaluation = run.result, run.evaluation
    if result is not None and result.usage is not None:
        used = result.usage
        facts.append(("drawn for this fit", f"{used.completions:,} completions"))
        facts.append(("tokens paid", f"{used.prompt_tokens:,} of prompts, {used.completion_tokens:,} of completions"))
        if used.requests is not None:
            facts.append(("requests", f"{used.requests:,}"))
    facts.append(("learned from", f"{run.bias.rollouts:,} completions with {run.bias.tokens:,} tokens"))
    for row in rows_of(run):
        if row.metric == "tokens" and row.base > 0:
            share = row.difference / row.base
            facts.append(
                (
                    f"completion tokens, {row.setting}",
                    f"{row.base:,.1f} → {row.other:,.1f} ({share:+.0%})".replace("-", "−"),
                )
            )
    if evaluation is not None:
        priced = [policy for policy in evaluation.policies if policy.cost is not None]
        facts += [
            (f"1,000 answers, {each.name}, {each.setting}", f"{short(each.cost or 0.0)} US dollars") for each in priced
        ]
        if not priced:
            facts.append(("money", "not known: no prices were given to blb eval (--price)"))
    facts.append(("distance from the base", _kl(result)))
    return facts


def _kl(result: Result | None) -> str:
    if result is None:
        return "not known without result.json"
    if result.kl_nats_per_completion is None:
        return f"not computed: {result.kl_missing or 'no reason recorded'}"
    given = "" if result.kl_whole else ", given where each completion ends"
    return f"{short(result.kl_nats_per_completion)} nats of KL a completion at temperature 1{given}"


def counts(run: Run) -> Facts:
    """Everything that was dropped, clipped, rounded, bounded or left out, zeros included."""
    bias, result = run.bias, run.result
    facts: Facts = []
    if result is not None and result.training is not None:
        found = result.training
        facts.append(
            ("incomplete", f"{found.incomplete:,} completions left out of the fit, whose tokens were not all listed")
        )
        facts.append(("filtered", f"{found.filtered:,} completions left out of the fit, stopped by a content filter"))
        facts.append(("encoded", f"{found.encoded:,} completions whose tokens are not the provider’s own list"))
    listed = bias.sampling.top_logprobs if bias.sampling else None
    facts.append(("kept back by the provider", bias.censoring.sentence(listed) if bias.censoring else "not recorded"))
    facts += _compiled(run)
    if run.evaluation is not None:
        facts.append(
            ("left out of the evaluation", f"{sum(each.left_out for each in run.evaluation.policies):,} completions")
        )
    if run.analysis is not None:
        facts += _analysed(run)
    return facts


def _compiled(run: Run) -> Facts:
    found, entries = run.bias.compiled, len(run.bias.entries)
    if found is None:
        return [("biased tokens", f"{entries:,}; what a compile kept and lost is not recorded")]
    limit = "no limit" if found.entries_limit is None else f"at most {found.entries_limit:,}"
    whole = ", whole numbers only" if found.integers else ""
    facts = [("biased tokens", f"{entries:,} ({limit}{whole})")]
    facts.append(("clipped", f"{found.clipped:,} values on the limit of the range"))
    facts.append(("rounded", f"{found.rounded:,} values that became 0 as whole numbers"))
    facts.append(("dropped", f"{found.dropped:,} learned values that are not listed"))
    if found.kept_share is not None:
        facts.append(("kept", f"{found.kept_share:.1%} of the estimated gain".replace("%", " %")))
    if found.kl_lost_nats_per_token is not None:
        facts.append(("lost by the compile", f"{found.kl_lost_nats_per_token:.5f} nats of KL a token"))
    if found.exact is not None:
        facts.append(
            (
                "checked exactly",
                f"{found.exact.kept_share:.1%} kept and {found.exact.kl_lost_nats_per_token:.5f} nats a token lost, from all "
                f"logprobs at {found.exact.positions:,} positions".replace("%", " %"),
            )
        )
    return facts


def _analysed(run: Run) -> Facts:
    found = run.analysis
    if found is None:
        return []
    facts: Facts = [
        ("analysed", f"{found.positions:,} positions of {found.completions:,} completions ({found.rollouts})"),
        ("scores come from", found.source),
        ("not analysed", f"{found.left_out:,} completions left out, {found.unscored:,} positions without a score"),
    ]
    if found.outside:
        facts.append(("outside the lists", f"{found.outside:,} positions whose score rests on the model of the tail"))
    unvisited = "not known" if found.unvisited is None else f"{found.unvisited:,} tokens of the vocabulary"
    facts.append(("never generated", unvisited))
    return facts


def chosen_by(run: Run) -> str:
    """How the strength and size were chosen; empty without the numbers."""
    if run.result is None or not run.result.validation.tried:
        return ""
    tried = run.result.validation.tried
    chosen = f"{run.bias.estimator}, {settings_of(run.bias.settings)}"
    if len(tried) == 1:
        return f"There was one candidate, {chosen}, so nothing was chosen."
    sampled = sum(each.samples > 0 for each in tried)
    return (
        f"{len(tried)} candidates were tried on the validation prompts, {sampled} with fresh completions. Chosen: {chosen}. The "
        "numbers here chose, so they flatter what was chosen; the verdict above comes from other prompts."
    )


def learned(run: Run) -> str:
    """The learned vector in words."""
    bias = run.bias
    up, down = sum(entry.bias > 0 for entry in bias.entries), sum(entry.bias < 0 for entry in bias.entries)
    told = f"The bias promotes {up:,} tokens and suppresses {down:,}, in every context alike."
    if bias.learned is not None:
        found = bias.learned
        whole = (
            f" Over the whole vocabulary, before the compile and centred: {found.sampled_fraction:.1%} of tokens sampled, "
            f"standard deviation {short(found.sigma)} nats, least {short(found.low)}, largest {short(found.high)}, "
            f"{found.selected_fraction:.2%} above 5 medians."
        )
        told += whole.replace("%", " %").replace(" -", " −")
        if found.reliability is not None:
            told += f" Other prompts of the same kind would bring back {max(found.reliability, 0):.0%} of it.".replace(
                "%", " %"
            )
    return told


def missing(run: Run) -> list[tuple[str, Missing]]:
    """What is not shown, and how to get it."""
    same = "with the options of the fit (provider, model, task, reward)"
    rows: list[tuple[str, Missing]] = []
    if not rows_of(run):
        rows.append(
            ("a verdict", Missing(f"Fresh completions of unseen prompts, {same}:", f"{_blb('eval', run)} --save"))
        )
    if run.evaluation is None:
        what = f"Instructions, lower temperatures and token limits beside the bias, {same}:"
        rows.append(
            (
                "what you could do instead",
                Missing(what, f"{_blb('eval', run)} --baseline-prompt 'Answer in one short sentence.'"),
            )
        )
    if run.analysis is None:
        what = f"How far each token moves, score bands, families and minimal pairs, {same}:"
        rows.append(("scores of tokens", Missing(what, _blb("analyze", run))))
    if not run.examples:
        rows.append(
            (
                "examples before and after",
                Missing(f"{run.examples_from[0].upper()}{run.examples_from[1:]}.", _blb("eval", run)),
            )
        )
    if run.learned is None:
        rows.append(("the whole learned vector", Missing("learned.json is not in the folder: blb fit writes it.")))
    return rows + _missing_of_result(run)


def _missing_of_result(run: Run) -> list[tuple[str, Missing]]:
    result = run.result
    if result is None:
        return [("how the bias was chosen", Missing("result.json is not in the folder: blb fit writes it."))]
    parts = {
        "the candidates": bool(result.validation.tried),
        "the base model’s length on the validation prompts": result.validation.base.tokens is not None,
        "the gain kept against entries": bool(result.entries_curve),
        "what the fit drew": result.usage is not None,
        "the command and versions": result.provenance is not None,
    }
    absent = [name for name, there in parts.items() if not there]
    if not absent:
        return []
    text = (
        f"result.json does not hold {', '.join(absent)}; the same blb fit again adds what it can, without new requests."
    )
    return [("details of the fit", Missing(text))]


def origin(run: Run) -> Facts:
    """Model, data and date."""
    bias = run.bias
    facts: Facts = [
        ("model", bias.model), ("provider", bias.provider), ("tokenizer", bias.tokenizer), ("task", bias.task or "not recorded"),
        ("reward", bias.reward), ("data (SHA-256)", bias.data_hash or "not recorded"),
        ("estimator", f"{bias.estimator}: {settings_of(bias.settings)}" if bias.settings else bias.estimator),
    ]  # fmt: skip
    if bias.vocab_size is not None:
        facts.append(("vocabulary", f"{bias.vocab_size:,} tokens"))
    if bias.sampling is not None:
        drawn = bias.sampling
        facts.append(
            (
                "training completions",
                f"at most {drawn.max_tokens:,} tokens, {drawn.top_logprobs} logprobs a token, {drawn.endpoint} endpoint",
            )
        )
    facts.append(("bias made", f"{bias.created:%Y-%m-%d %H:%M} UTC by blackbox_lb {bias.blackbox_lb}"))
    return facts


def origins(run: Run) -> list[Origin]:
    """The command, date and versions of each document that records them."""
    return [_origin(name, each) for name, each in run.provenances.items()]


def _origin(name: str, found: Mapping[str, Any]) -> Origin:
    versions = found.get("versions")
    named = ", ".join(f"{key} {value}" for key, value in versions.items()) if isinstance(versions, dict) else ""
    parts = (found.get("date"), f"Python {found['python']}" if "python" in found else None, found.get("machine"), named)
    settings = found.get("settings")
    given = ", ".join(f"{key} = {value}" for key, value in settings.items()) if isinstance(settings, dict) else ""
    rest = (*parts, f"from blb.toml or the environment: {given}" if given else None)
    return Origin(name, str(found.get("command", "not recorded")), " · ".join(str(part) for part in rest if part))
