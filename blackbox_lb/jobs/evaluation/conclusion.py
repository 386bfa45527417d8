"""The conclusion of an evaluation: what the first bias, or the first rival, is against the base and
against the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from blackbox_lb.bias.records import BETTER_PROBABILITIES, NOT_THE_TASK, Verdict, headline
from blackbox_lb.jobs.evaluation.compare import verdicts
from blackbox_lb.jobs.evaluation.document import Evaluation, PolicyResult, TextFigure
from blackbox_lb.jobs.evaluation.policies import BASE, CLASSIFIER
from blackbox_lb.jobs.fitting.document import BothDecisions
from blackbox_lb.jobs.runs.answers import BeforeAfter
from blackbox_lb.jobs.runs.conclusion import (
    Conclusion,
    NextStep,
    chosen_rows,
    cut_caveat,
    decision_lines,
    effect_lines,
    headline_lines,
    is_share,
    words_steps,
)
from blackbox_lb.rollouts.progress import chance, number
from blackbox_lb.safety.printable import printable

LONGEST_NAME = 20
"""Characters of a policy's name in the table; a longer one stands in the legend."""
OPPOSITE = {"HELPS": "worse", "HURTS": "better", "NO EVIDENCE": "level"}
"""Verdict on the reference against a policy -> what the policy is against the reference."""
SAME_SIDE = {"HELPS": "better", "HURTS": "worse", "NO EVIDENCE": "level"}


def short_names(policies: Sequence[PolicyResult]) -> dict[str, str]:
    """Name of a policy -> a name of at most ``LONGEST_NAME`` characters: itself where it is short
    enough, else its kind with a number. A single bias beside an alternative is "bias".
    """
    names: dict[str, str] = {}
    instructions: dict[str, str] = {}
    biases = {row.bias for row in policies if row.bias is not None}
    for row in policies:
        if row.name in names:
            continue
        short = printable(row.name)
        if row.instruction is not None:
            place = len(instructions) + 1
            short = instructions.setdefault(row.instruction, f"prompt {place}")
        if row.bias is not None and row.bias != row.name:
            kind = short.removesuffix(f" and {printable(row.bias)}")
            bias = printable(row.bias)
            if len(f"{kind} + {bias}") > LONGEST_NAME and len(biases) == 1:
                bias = "bias"
            short = f"{kind} + {bias}"
        if len(short) > LONGEST_NAME:
            short = f"policy {len(names) + 1}"
        names[row.name] = short
    return names


def reference_of(evaluation: Evaluation) -> str:
    """The policy that the others are compared with: the first bias alone, else the base."""
    biases = [row.name for row in evaluation.policies if row.bias == row.name]
    if biases:
        return biases[0]
    return BASE


def against(evaluation: Evaluation, policy: PolicyResult, reference: str) -> tuple[str, str]:
    """The policy's reward less that of the reference with its interval, and better, level or
    worse; empty where the two were not compared.
    """
    for row in evaluation.comparisons:
        if row.metric != evaluation.label or row.setting != policy.setting:
            continue
        if (row.against, row.policy) == (reference, policy.name):
            difference = with_interval(row.metric, row.difference, row.low, row.high, sign=True)
            return difference, SAME_SIDE[row.verdict]
        if (row.against, row.policy) == (policy.name, reference):
            difference = with_interval(row.metric, -row.difference, -row.high, -row.low, sign=True)
            return difference, OPPOSITE[row.verdict]
    return "", ""


def with_interval(metric: str, mean: float, low: float, high: float, *, sign: bool = False) -> str:
    """A mean or a difference with its interval, in per cent or points where the metric is a
    share.
    """
    if is_share(metric):
        form = ".0f"
        unit = " %"
        if sign:
            form = "+.0f"
            unit = ""
        return f"{100 * mean:{form}}{unit} ({100 * low:{form}} to {100 * high:{form}})"
    values = [number(value, sign=sign) for value in (mean, low, high)]
    return f"{values[0]} ({values[1]} to {values[2]})"


def eval_conclusion(
    evaluation: Evaluation,
    saved: Path,
    spent: str,
    if_helps: Sequence[NextStep],
    otherwise: Sequence[NextStep],
    before: Sequence[Verdict] = (),
    by_words: str = "",
) -> Conclusion:
    """The conclusion of an evaluation: the first bias against the base and against its rivals.

    if_helps, otherwise: what to do next, by the verdict. before: the verdict in the bias file.
    by_words: the command that learns a bias that depends on the words of the prompt; "" where such
    a bias takes part, or none could.
    """
    label = evaluation.label
    subject = reference_of(evaluation)
    if subject == BASE:
        rival_names = [row.name for row in evaluation.policies if row.name != BASE]
        subject = rival_names[0] if rival_names else BASE
    verdict_rows = verdicts(evaluation, subject)
    rows = chosen_rows(verdict_rows, label)
    rewards = [row for row in rows if row.metric == label]
    verdict, sentence = headline(rewards)
    decisions = decisions_of(evaluation, subject)
    if decisions:
        rows = [row for row in rows if row.metric != "tokens"]
    statements = [
        *headline_lines(rewards, sentence),
        *effect_lines(rows, label),
        *decision_lines(decisions),
    ]
    names = short_names(evaluation.policies)
    prompts = evaluation.policies[0].prompts
    settings = ", ".join(dict.fromkeys(row.setting for row in evaluation.policies))
    statements.append(f"{names[subject]} against the base: {prompts:,} test prompts, {settings}")
    statements += rival_lines(evaluation, names)
    why = ""
    helps = verdict in ("HELPS", BETTER_PROBABILITIES)
    if not helps and verdict != NOT_THE_TASK:
        why = prompts_needed(evaluation, subject)
    steps = list(if_helps if helps else otherwise)
    if by_words and classifier_wins(evaluation):
        reason = f"{CLASSIFIER} is better than {names[subject]}, and both are joined"
        steps = [*words_steps(reason, by_words), *steps]
    caveats = [cut_caveat(rows, label), reconciled(evaluation, subject, before)]
    return Conclusion(
        verdict,
        tuple(statements),
        why=why,
        caveat="; ".join(filter(None, caveats)),
        examples=_examples(evaluation, subject),
        spent=spent,
        saved=str(saved),
        steps=tuple(steps),
    )


def prompts_needed(evaluation: Evaluation, name: str) -> str:
    """How many prompts would show the difference of the policy ``name`` from the base; "" where it
    is shown.
    """
    for row in evaluation.comparisons:
        is_effect = (row.against, row.policy, row.metric) == (BASE, name, evaluation.label)
        if not is_effect or row.verdict != "NO EVIDENCE":
            continue
        sentence = f"not significant with {row.n_prompts} prompts"
        if row.needed is None:
            return sentence
        return f"{sentence}; if the difference is really that large, about {row.needed:,} show it"
    return ""


def reconciled(evaluation: Evaluation, name: str, rows: Sequence[Verdict]) -> str:
    """One sentence on an evaluation whose verdict on a comparison is another one than before; ""
    where there is none, or both agree.

    name: of the bias among the policies. rows: of the verdict in its file.
    """
    clauses = []
    for setting in dict.fromkeys(row.setting for row in rows):
        before = next(row for row in rows if row.setting == setting)
        for row in evaluation.comparisons:
            same = (row.setting, row.metric, row.against) == (setting, before.metric, BASE)
            if not same or row.policy != name or row.verdict == before.verdict:
                continue
            count = sum(comparison.family == row.family for comparison in evaluation.comparisons)
            clauses.append(
                f"{setting}: the fit {_SHOWS[before.verdict]} (p {chance(before.p)} among"
                f" {len(rows)} comparisons, {before.n_prompts} prompts), the evaluation"
                f" {_SHOWS[row.verdict]} (p {chance(row.p)} among {count}, {row.n_prompts} prompts)"
            )
    if not clauses:
        return ""
    return (
        f"{'; '.join(clauses)}. The more comparisons are judged together, the clearer each must be"
    )


TEXT_COLUMNS = {
    "words": "words",
    "hits": "hits for 100 words",
    "tokens": "drawn for a token",
    "logprob": "logprob a token",
    "repeated": "repeated 3-grams",
}
"""Field of ``TextFigures`` -> its name in a table."""
_DECIMALS = {"words": 0, "repeated": 3}


def text_number(column: str, value: float, *, sign: bool = False) -> str:
    """A figure of texts in words: words without decimals, shares with three, others with two."""
    text = f"{value:{'+' * sign}.{_DECIMALS.get(column, 2)}f}"
    if not float(text):
        return text.lstrip("+-")
    return text


def text_cell(column: str, figure: TextFigure | None) -> str:
    """A figure of texts with the interval of its difference from the base, where it has one; empty
    where it is not known.
    """
    if figure is None:
        return ""
    cell = text_number(column, figure.mean)
    if figure.low is not None and figure.high is not None:
        low = text_number(column, figure.low, sign=True)
        high = text_number(column, figure.high, sign=True)
        cell += f" ({low} to {high})"
    return cell


_SHOWS = {
    "HELPS": "shows that it helps",
    "HURTS": "shows that it hurts",
    "NO EVIDENCE": "shows no effect",
}
"""Verdict -> what it says, after its subject."""


def decisions_of(evaluation: Evaluation, subject: str) -> dict[str, BothDecisions]:
    """Setting -> the decisions of the base and of ``subject``, where the task has labels."""
    scores = {
        (row.setting, row.name): row.decisions
        for row in evaluation.policies
        if row.decisions is not None
    }
    settings = dict.fromkeys(row.setting for row in evaluation.policies)
    return {
        setting: BothDecisions(base=scores[setting, BASE], biased=scores[setting, subject])
        for setting in settings
        if (setting, BASE) in scores and (setting, subject) in scores
    }


def rival_lines(evaluation: Evaluation, names: Mapping[str, str]) -> list[str]:
    """Whom the first bias wins over, is level with and loses to, at the last setting."""
    reference = reference_of(evaluation)
    last = evaluation.policies[-1].setting
    groups: dict[str, list[str]] = {"loses to": [], "level with": [], "wins over": []}
    words = {"better": "loses to", "level": "level with", "worse": "wins over"}
    for row in evaluation.policies:
        if row.setting != last or row.bias is not None or row.name == BASE:
            continue
        _, word = against(evaluation, row, reference)
        if word and reference != BASE:
            groups[words[word]].append(names[row.name])
    parts = [f"{verb} {', '.join(members)}" for verb, members in groups.items() if members]
    if parts:
        return ["; ".join(parts)]
    return []


def classifier_wins(evaluation: Evaluation) -> bool:
    """Whether a classifier by words is better than the first bias, at the last setting."""
    reference = reference_of(evaluation)
    last = evaluation.policies[-1].setting
    return reference != BASE and any(
        against(evaluation, row, reference)[1] == "better"
        for row in evaluation.policies
        if row.setting == last and row.name == CLASSIFIER
    )


def _examples(evaluation: Evaluation, subject: str) -> tuple[BeforeAfter, ...]:
    """Two prompts with the base's answer and the subject's, different ones first."""
    examples = []
    for answered in evaluation.examples:
        texts = {completion.policy: completion.text for completion in answered.completions}
        if BASE in texts and subject in texts:
            examples.append(BeforeAfter(answered.prompt, texts[BASE], texts[subject]))
    examples.sort(key=lambda example: example.before == example.after)
    return tuple(examples[:2])
