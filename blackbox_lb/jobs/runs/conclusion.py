"""The conclusion of a command: verdict, two examples, spent, saved, next, in a few short lines.

The terminal and ``print(run)`` show the same lines.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from blackbox_lb.api.limits.budget import Spent
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.operating import OperatingCurve
from blackbox_lb.bias.records import NOT_THE_TASK, Comparison, Verdict, headline, overall
from blackbox_lb.jobs.decisions.conclusion import (
    before_and_after,
    question_lines,
    shown_rows,
    verdict_word,
)
from blackbox_lb.jobs.fitting.document import BothDecisions, FitResult
from blackbox_lb.jobs.runs.answers import AnswerPair, BeforeAfter, cut, example_lines, telling
from blackbox_lb.records import Finding
from blackbox_lb.rollouts.judging.verdict import DIVERGENCE
from blackbox_lb.rollouts.progress import duration, number
from blackbox_lb.safety.printable import printable, shell_line, wrapped
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.tasks.rewards.forms.formulas import LENGTH, TOKENS
from blackbox_lb.tasks.rewards.registry import find
from blackbox_lb.tasks.sets.labels import FIRST_NAMED, Labels

POWER_FACTOR = 2.8
"""Standard errors of a difference that a test at 5 % shows in 80 % of experiments: 1.96 + 0.84."""
SPREAD_OF_SHARES = 0.5
"""Standard deviation of the difference of a prompt, where a quarter of the answers change between
right and wrong.
"""
MOST_LABELS = 6
"""Labels that are counted by name."""


def understood(
    task: Task, reward: Reward, labels: Labels | None, *, limit: int | None = None
) -> str:
    """Rows by their use, the smallest effect that the test prompts show, labels, and the reward.

    limit: training rows that are used, None for all.
    """
    learned = len(task.train[:limit])
    rows = learned + len(task.validation) + len(task.test)
    uses = f"{len(task.test):,} prompts to judge"
    if task.train or task.validation:
        chosen_on = f"{learned:,} to learn, {len(task.validation):,} to choose"
        if not task.validation:
            chosen_on = f"{learned:,} to learn and to choose by cross-fitting"
        uses = f"{rows:,} prompts: {chosen_on}, {len(task.test):,} to judge"
    effect = smallest_effect(len(task.test), is_share=is_share(reward.label))
    parts = [f"{uses} (shows effects above about {effect})"]
    if labels is not None:
        examples = [*task.train[:limit], *task.validation, *task.test]
        parts.append(f"labels: {_counted(labels.counts(examples))}")
    elif reward.needs_answer and not reward.of_shares:
        examples = [*task.train[:limit], *task.validation, *task.test]
        answers = {answer for example in examples for answer in example.answers[:1]}
        if answers:  # of several questions each has a column of its own
            parts.append(
                f"answers: {len(answers):,} different ones, taken as texts and not as labels"
            )
    if reward.of_shares:
        parts.append(
            f"labels with wanted shares: {', '.join((task.train or task.test)[0].answers)}"
        )
    parts.append(f"reward: {_meaning(reward)}")
    return "; ".join(parts)


def smallest_effect(prompts: int, *, is_share: bool) -> str:
    """The difference that so many test prompts show in four of five experiments: in points where
    the reward is a share, else in standard deviations of a prompt's difference.
    """
    errors = POWER_FACTOR / math.sqrt(max(prompts, 1))
    if is_share:
        return f"{min(100 * SPREAD_OF_SHARES * errors, 100):.0f} points"
    return f"{errors:.2f} standard deviations"


def _counted(counts: dict[str, int]) -> str:
    names = [f"{name} {count}" for name, count in counts.items()]
    if len(names) > MOST_LABELS:
        names = [*names[:MOST_LABELS], f"and {len(names) - MOST_LABELS} more"]
    return ", ".join(names)


def _meaning(reward: Reward) -> str:
    """The reward's name with its meaning, and what counts as right."""
    words = reward.name
    named = find(reward.name)
    if named is not None and named[0].reaches != "code":
        words = f"{reward.name} ({reward.summary or named[0].meaning})"
    if not reward.needs_answer or reward.of_shares:
        return words
    right = reward.right.spec
    rule = "the first label named is the right one"
    if right != FIRST_NAMED:
        rule = right
    return f"{words}; right: {rule}"


WIDTH = 80
"""Columns that the lines keep to; only a path or a command may be longer."""
MOST_LINES = 12
SHARES = frozenset({"accuracy", "exact-match", "contains", "valid JSON", "macro-F1"})
"""Metrics that are shares of prompts, shown in per cent."""
INDENT = 8
LONGEST_BESIDE = 12
"""Characters of a verdict beside which the lines stand; below a longer one they are indented as
everywhere.
"""
LEAST_NAME = 8
"""Characters of a metric's name that are shown at least."""
LEAST_CUT = 0.1
"""Share of completions: where the limit of tokens cuts so many fewer of the bias's than of the
base's, a gain may be that they end.
"""
HELP_PAGE = "docs/no-evidence.md"
"""The page that says what to do without evidence, by kind of task."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """A command, or a sentence without one, and what it is for."""

    command: str
    purpose: str = ""


@dataclass(frozen=True, slots=True)
class Conclusion:
    """What a command found.

    verdict: one of a few capitals, "" where there is none. statements: lines, the first beside the
    verdict. why: the likeliest reason where there is no effect, "" elsewhere. caveat: what the
    verdict does not cover.
    """

    verdict: str
    statements: tuple[str, ...]
    why: str = ""
    caveat: str = ""
    examples: tuple[BeforeAfter, ...] = ()
    spent: str = ""
    saved: str = ""
    steps: tuple[NextStep, ...] = ()

    def lines(self, width: int = WIDTH) -> list[str]:
        """The lines of ``width`` columns, each sentence whole; examples where there is room for
        them in ``MOST_LINES``.
        """
        indent = _indent(self.verdict)
        room = width - indent
        statements = list(self.statements)
        if len(self.verdict) > LONGEST_BESIDE:
            headline = f"{self.verdict}  {statements.pop(0)}"
            lines = wrapped(headline, width, indent=indent).split("\n")
            parts = [part for line in statements for part in _wrapped(line, room)]
            lines += _labelled("", parts, indent)
        else:
            parts = [part for line in statements for part in _wrapped(line, room)]
            lines = _labelled(self.verdict, parts, indent)
        lines += _labelled("why", _sentence_lines(self.why, room), indent)
        lines += _labelled("but", _sentence_lines(self.caveat, room), indent)
        tail = []
        if self.spent:
            tail += _labelled("spent", [self.spent], indent)
        if self.saved:
            tail += _labelled("saved", [self.saved], indent)
        tail += _labelled("next", _step_lines(self.steps, room), indent)
        examples = [f"{'':{indent}}{line}" for line in example_lines(self.examples, room)]
        free = MOST_LINES - len(lines) - len(tail)
        if len(examples) + 2 > free:
            return [*lines, *examples[: max(free, 0)], *tail]
        if examples:
            lines += ["", *examples]
        return [*lines, "", *tail]

    def __str__(self) -> str:
        return "\n".join(self.lines())


def _indent(verdict: str) -> int:
    """Columns before the lines of a conclusion."""
    if len(verdict) > LONGEST_BESIDE:
        return INDENT
    return max(INDENT, len(verdict) + 2)


def _sentence_lines(text: str, room: int) -> list[str]:
    """A whole sentence, broken between words."""
    return wrapped(text, room, indent=0).split("\n") if text else []


def _wrapped(line: str, room: int) -> list[str]:
    """The line, broken between words where it is too long."""
    return wrapped(line, room, indent=2).split("\n")


def _labelled(label: str, texts: Sequence[str], indent: int) -> list[str]:
    return [f"{label if place == 0 else '':<{indent}}{text}" for place, text in enumerate(texts)]


def _step_lines(steps: Sequence[NextStep], room: int) -> list[str]:
    """A line for each step, its purpose behind it where there is room; a long command goes on in
    the next line as a shell reads it, a long sentence as text.
    """
    short = [len(step.command) for step in steps if step.purpose and len(step.command) < room // 2]
    widest = max(short, default=0)
    lines = []
    for step in steps:
        line = f"{step.command:<{widest}}  {step.purpose}".rstrip()
        if len(line) <= room:
            lines.append(line)
        elif step.command.startswith("blb "):
            lines += _command_lines(step.command, room)
        else:
            lines += _sentence_lines(step.command, room)
    return lines


def _command_lines(command: str, room: int) -> list[str]:
    """A command on lines that end in a backslash, broken before its options, and within an option
    only where that is longer than a line.
    """
    parts: list[str] = []
    for word in shlex.split(command):
        quoted = shlex.quote(word)
        if parts and not word.startswith("--") and len(parts[-1]) + len(quoted) + 5 <= room:
            parts[-1] += f" {quoted}"
        else:
            parts.append(quoted)
    lines = parts[:1]
    for part in parts[1:]:
        if len(lines[-1]) + len(part) + 3 > room:
            lines[-1] += " \\"
            lines.append(f"  {part}")
        else:
            lines[-1] += f" {part}"
    return lines


def fit_conclusion(
    bias: Bias,
    result: FitResult,
    label: str,
    pairs: Sequence[AnswerPair],
    folder: Path,
    spent: str,
    steps: Sequence[NextStep] = (),
    by_words: str = "",
) -> Conclusion:
    """The conclusion of a fit: the one place that reads a ``FitResult`` for people.

    Args:
        label: the reward's name among the metrics.
        steps: what to do next where the bias helps.
        by_words: the command that learns a bias that depends on the words of the prompt; "" for
            the parameter in its place.
    """
    if result.decided:
        return _decision_conclusion(bias, result, folder, spent, steps)
    check = None
    if bias.operating is not None:
        check = bias.operating.check
    rows = chosen_rows(bias.verdict, label)
    if result.decisions:
        rows = [row for row in rows if row.metric != "tokens"]
    rewards = [row for row in rows if row.metric == label]
    verdict, sentence = headline(rewards)
    statements = effect_lines(rows, label)
    prompts = "not judged"
    if bias.verdict:
        prompts = f"{bias.verdict[0].n_prompts:,} unseen prompts"
    if len({row.setting for row in rows}) == 1:
        prompts += f", {rows[0].setting}"
    if bias.operating is not None:
        statements = [*point_lines(bias.operating), *statements]
    if check is None:
        statements = [
            *headline_lines(rewards, sentence),
            *statements,
            *decision_lines(result.decisions),
        ]
    statements.append(prompts)
    why = ""
    if check is not None:
        # The goal was a promise on one label, which may well cost accuracy.
        verdict = check.word
        why = check.shortage
    elif verdict == NOT_THE_TASK:
        why = reason((), rewards)
        steps = [*steps, NextStep(HELP_PAGE, "what helps, by kind of task")]
    elif not _helps(rewards):
        why = reason(bias.findings, rewards)
        steps = _steps_without_evidence(bias.findings, folder)
    if result.by_words is not None and result.by_words.verdict == "HELPS":
        steps = [*words_steps(_more_right(result.by_words), by_words), *steps]
    saved = f"{folder}/  (bias.json: {len(bias.entries):,} entries)"
    examples = tuple(BeforeAfter.of(pair) for pair in telling(pairs, 2))
    return Conclusion(
        verdict,
        tuple(statements),
        why=why,
        caveat=cut_caveat(rows, label),
        examples=examples,
        spent=spent,
        saved=saved,
        steps=tuple(steps),
    )


BY_WORDS = (
    "by a bias that depends on the words of the prompt (``depends_on=words``): apply(), blb proxy"
    " and vLLM's processor send it, a fixed one goes everywhere"
)
"""The remedy where words decide better than a fixed bias, the end of a sentence."""


def words_steps(reason: str, command: str) -> list[NextStep]:
    """The remedy behind its ``reason``, then the ``command`` for it where there is one."""
    steps = [NextStep(f"{reason} {BY_WORDS}")]
    if command:
        steps.append(NextStep(command))
    return steps


def _more_right(compared: Comparison) -> str:
    """How many more prompts are decided right than by the fixed bias, without the end of the
    sentence.
    """
    interval = f"{change(compared, compared.low)} to {change(compared, compared.high)}"
    return (
        f"{100 * compared.difference:.0f} points more of {compared.n_prompts:,} left-out prompts"
        f" are decided right (95 %: {interval})"
    )


def decision_steps(folder: Path) -> list[NextStep]:
    """What to do next with a file that mends decisions."""
    return [
        NextStep(shell_line("blb", "report", folder), "look at every changed decision"),
        NextStep(
            shell_line("blb", "proxy", "--decide", folder, "--upstream", "URL"),
            "mend an endpoint's answers",
        ),
    ]


def _decision_conclusion(
    bias: Bias, result: FitResult, folder: Path, spent: str, steps: Sequence[NextStep]
) -> Conclusion:
    """The conclusion of a fit that mends decisions."""
    rows = shown_rows(bias.verdict)
    is_alone = len(result.decided) == 1
    statements = ["not judged"]
    if rows:
        statements = [
            *headline_lines(rows, bias.headline[1]),
            *effect_lines(rows, rows[0].metric),
            f"{rows[0].n_prompts:,} unseen rows; {before_and_after(result.decided)}",
        ]
    for question in result.decided:
        statements += question_lines(question, is_alone=is_alone)
    noun = "1 question" if is_alone else f"{len(result.decided)} questions"
    return Conclusion(
        verdict_word(bias, result.decided),
        tuple(statements),
        spent=spent,
        saved=f"{folder}/  (bias.json: {noun})",
        steps=tuple(steps),
    )


def _helps(rows: Sequence[Verdict]) -> bool:
    """Whether the base is beaten at a setting, and beats the bias at none."""
    verdicts = {row.verdict for row in rows}
    return "HELPS" in verdicts and "HURTS" not in verdicts


def headline_lines(rewards: Sequence[Verdict], sentence: str) -> list[str]:
    """The sentence of the headline where a commonest label is compared with; elsewhere the word and
    the numbers beside it say the same.
    """
    if any(row.commonest is not None for row in rewards):
        return [sentence]
    return []


def cut_caveat(rows: Sequence[Verdict], label: str) -> str:
    """What a reward that is helped does not show: whether the base would earn it with more tokens;
    "" where it needs no such doubt.
    """
    for row in rows:
        if row.metric == label and limit_may_explain(row):
            return (
                f"the token limit cuts {row.cut_base:.0%} of base, {row.cut_biased:.0%} of biased"
                " answers; try more"
            )
    return ""


def limit_may_explain(row: Verdict) -> bool:
    """Whether a gain may be that the token limit cuts fewer answers; never where nothing but the
    length counts.
    """
    of_length = row.metric in (LENGTH, TOKENS)
    cuts_more = row.cut_base - row.cut_biased >= LEAST_CUT
    return row.verdict == "HELPS" and cuts_more and not of_length


def chosen_rows(verdict: Sequence[Verdict], label: str) -> list[Verdict]:
    """The reward at every setting, then accuracy, the divergence from wanted shares and tokens at
    the last one; accuracy not twice.

    Three rows, or two where there is a reason to tell.
    """
    rewards = [row for row in verdict if row.metric == label]
    shown = [(row.setting, row.base, row.biased) for row in rewards]
    most = 3 if _helps(rewards) else 2
    last = ""
    if verdict:
        last = verdict[-1].setting
    rest = [
        row
        for row in verdict
        if row.setting == last
        and row.metric in ("accuracy", DIVERGENCE, "tokens")
        and not (row.metric == "accuracy" and (row.setting, row.base, row.biased) in shown)
        and row.metric != label
    ]
    return [*rewards, *rest][: max(most, len(rewards))]


def effect_lines(rows: Sequence[Verdict], label: str) -> list[str]:
    """A line for each row: metric, base -> biased, difference with its interval; the setting where
    there are several, and the verdict where it is not that of all.
    """
    several = len({row.setting for row in rows}) > 1
    verdict = overall([row for row in rows if row.metric == label])
    values = [f"{level(row, row.base)} -> {level(row, row.biased)}" for row in rows]
    value_width = max(map(len, values), default=0)
    numbers = []
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        unit = " points" if is_share(row.metric) else ""
        interval = f"{change(row, row.low)} to {change(row, row.high)}"
        if place == 0:
            interval = f"95 %: {interval}"
        words = f"{value:<{value_width}}  {change(row, row.difference)}{unit} ({interval})"
        if several:
            words += f"  {row.setting.replace('temperature ', 'T = ')}"
        if row.word != verdict and (several or row.verdict == "HURTS"):
            words += f"  {row.word}"
        numbers.append(words)
    room = WIDTH - _indent(verdict) - 2
    longest = max(map(len, numbers), default=0)
    names = [cut(printable(row.metric), max(LEAST_NAME, room - longest)) for row in rows]
    name_width = max(map(len, names), default=0)
    return [f"{name:<{name_width}}  {words}" for name, words in zip(names, numbers, strict=True)]


def is_share(metric: str) -> bool:
    """Whether a metric is a share of prompts; of several questions each has its own accuracy."""
    return metric in SHARES or metric.startswith("accuracy of ")


def level(row: Verdict, value: float) -> str:
    """A mean for display."""
    if is_share(row.metric):
        return f"{100 * value:.0f} %"
    return f"{value:{_form(row)}}"


def change(row: Verdict, value: float) -> str:
    """A difference of means for display."""
    if is_share(row.metric):
        return f"{100 * value:+.0f}"
    return f"{value:+{_form(row)}}"


def _form(row: Verdict) -> str:
    """Two decimals, or three digits where all numbers of the row are too small or too large."""
    largest = max(map(abs, (row.base, row.biased, row.difference, row.low, row.high)))
    if largest == 0 or 0.1 <= largest < 100_000:
        return ".2f"
    return ".3g"


def point_lines(curve: OperatingCurve) -> list[str]:
    """The chosen operating point, and what became of its promise on the test prompts."""
    lines = []
    if curve.check is not None:
        lines.append(curve.check.sentence)
    shares = [
        f"{share.name} {share.value:.2f}"
        for share in curve.measured(curve.chosen)
        if share.value is not None
    ]
    label = cut(printable(curve.positive), 12)
    lines.append(f"{label} {curve.shift:+.2f} nats; validation {', '.join(shares)}")
    return lines


def decision_lines(decisions: Mapping[str, BothDecisions]) -> list[str]:
    """Macro-F1 at the last setting; nothing where there are no labels."""
    if not decisions:
        return []
    both = list(decisions.values())[-1]
    if both.base.macro_f1 is None or both.biased.macro_f1 is None:
        return []
    return [f"macro-F1  {number(both.base.macro_f1)} -> {number(both.biased.macro_f1)}"]


CAUSES = {
    "saturated": "the base model already earns nearly the most that any of its completions earns",
    "tau": "the fit keeps the model too close to the base to change much",
    "censoring": "too many sampled tokens came without a probability",
    "tail": "the server's lists of likely tokens leave out too much of the probability",
    "samples": "so few completions were learned from that the bias is mostly chance",
    "weights": "too few completions earned more than the others to learn from them",
    "already": "the model already does what a bias could make it do",
    "touched": "the tokens of the bias hardly occur in what the model writes",
}
"""Code of a failed check -> the cause in plain words, where its sentence has terms of its own."""
ALL_EQUAL = "completions of one prompt earn the same, so none is there to prefer"
FOR_EXPERTS = (" for a reliability", ", or raise tau")
"""What begins the part of a remedy that only an expert reads."""
PLAINER = {"rollouts": "completions", "lower tau": "lower ``tau``"}
"""Words of a remedy -> plainer ones."""


def reason(findings: Sequence[Finding], rewards: Sequence[Verdict] = ()) -> str:
    """The likeliest reason why there is no effect: the first check that failed; of a decision that
    the model cannot make, that; else what the test lacks, whose difference and interval stand
    beside the verdict already. A check that passed, or was not made, is none.
    """
    causes = [finding for finding in findings if finding.word == "FAIL" and finding.code != "test"]
    if causes:
        sentence = CAUSES.get(causes[0].code, printable(causes[0].sentence))
        return ALL_EQUAL if "V_0" in sentence else sentence
    for row in rewards:
        if row.commonest is not None and row.commonest.accuracy <= row.commonest.share:
            return (
                "the model does not tell the labels apart:"
                f" {100 * row.commonest.accuracy:.0f} % right with the bias,"
                f" {row.commonest.always} {100 * row.commonest.share:.0f} %"
            )
    for finding in findings:
        if _lacks_prompts(finding):
            return f"too few test prompts for this difference: {printable(finding.remedy)}"
        if finding.code == "test" and finding.word in ("FAIL", "INCONCLUSIVE"):
            return printable(finding.sentence)
    return ""


def plain_remedy(remedy: str) -> str:
    """A remedy without the terms of the paper."""
    for term in FOR_EXPERTS:
        remedy = remedy.partition(term)[0]
    for term, plainer in PLAINER.items():
        remedy = remedy.replace(term, plainer)
    return remedy


def _lacks_prompts(finding: Finding) -> bool:
    """Whether more test prompts would tell what the test does not."""
    return finding.code == "test" and finding.word == "INCONCLUSIVE" and finding.remedy != ""


def _steps_without_evidence(findings: Sequence[Finding], folder: Path) -> list[NextStep]:
    remedies = [
        finding.remedy
        for finding in findings
        if finding.remedy
        and finding.word in ("FAIL", "INCONCLUSIVE")
        and not _lacks_prompts(finding)
    ]
    return [
        *(NextStep(printable(plain_remedy(remedy))) for remedy in remedies[:1]),
        NextStep(shell_line("blb", "report", folder), "look at every answer"),
        NextStep(HELP_PAGE, "what helps, by kind of task"),
    ]


def spent_words(spent: Spent, seconds: float, priced: bool) -> str:
    """Requests, prompt + completion tokens, time and price of a command."""
    if spent.requests == 0:
        return f"no request: every completion was stored, {duration(seconds)}"
    price = ""
    if priced:
        price = f", ${spent.dollars:.2f}"
    return (
        f"{spent.requests:,} requests, {spent.prompt_tokens:,} + {spent.completion_tokens:,}"
        f" tokens, {duration(seconds)}{price}"
    )
