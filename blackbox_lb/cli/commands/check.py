"""``blb check``: whether a bias can help, before anything costs money, or whether the operating
point of a bias still holds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from blackbox_lb.cli.echo import print_json
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import TrialOptions, VerboseOptions, bias_argument
from blackbox_lb.cli.resources import chosen_bias, load, open_trials, run
from blackbox_lb.cli.terminal import command_with_same, print_conclusion, reporter
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.shared import DecisionSettings, TaskSettings
from blackbox_lb.safety.printable import printable

if TYPE_CHECKING:
    from blackbox_lb.api.limits.budget import SpendLimit
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.estimate.decisions.feasibility import Answer, OpeningAnswer
    from blackbox_lb.jobs.check import Checked, CheckedOpening
    from blackbox_lb.jobs.decisions.recheck import MendingCheck
    from blackbox_lb.jobs.forecast import Forecast
    from blackbox_lb.jobs.point_check import PointCheck
    from blackbox_lb.jobs.runs.conclusion import Conclusion
    from blackbox_lb.rollouts.judging.trials import Trials
    from blackbox_lb.tasks import Reward, Task
    from blackbox_lb.tasks.sets.labels import Labels


class CheckOptions(TaskSettings, DecisionSettings, TrialOptions, VerboseOptions):
    bias: Path | None = bias_argument()


@command(
    "check",
    CheckOptions,
    example="blb check --provider vllm --data train.jsonl --reward accuracy --max-tokens 4",
)
def check_command(options: CheckOptions) -> None:
    """Say whether a bias can mend a decision, before a fit is paid for.

    Looks at the greedy answers of at most 60 training prompts and at one list of next tokens each,
    120 short requests at most. It says YES where a fixed bias can, with the share of right answers
    to expect; BY PROMPT where only one that depends on the prompt can; PERHAPS where a bias can
    begin the answers right; NOT SHOWN TO PAY where always giving the commonest label is as good;
    NOT NEEDED where the answers are right already; else NO, and why (the right answer is not
    listed, the model does not distinguish the labels). Lists tell of the first token: where greedy
    answers that begin with a label are wrong by what follows it, it says so, and what to do. blb
    fit --learn-from answers reads the same lists from the store of --out.

    With --decide only the lists are asked for, and the answers are: one shift of the opening's
    tokens can mend the decision; it can choose another point by a --goal, but is not shown to be
    right more often; or the model does not rank the prompts (its AUC).

    With BIAS, a file with an operating point: whether that still holds on these prompts, one token
    each, 400 at most. It compares the margins with those that the point was chosen on (DRIFTED or
    STEADY), and rows with an answer check its promise (HOLDS, NOT SHOWN or BROKEN). Rows without
    an answer will do, with a --reward that needs none, such as tokens. Of the data of the fit
    itself only the test prompts are asked.

    With BIAS, a file that mends decisions: at most 400 rows are read as the fit read them. Without
    answers it compares the probabilities with those of the fit (DRIFTED or STEADY); rows with an
    answer test the promise, or else the accuracy that the fit had on its test rows (HOLDS, NOT
    SHOWN or BROKEN), by a sequential test that may be looked at after every row. Another model
    than the file's is refused.
    """
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.jobs.check import CheckedOpening
    from blackbox_lb.jobs.plan.by_data import CORRECTNESS, has_few_rows
    from blackbox_lb.jobs.runs.conclusion import understood
    from blackbox_lb.jobs.runs.loading import labels_of, naming_advice

    if options.bias is not None:
        bias = Bias.load(chosen_bias(options.bias))
        if bias.decisions:
            _check_decisions(options, bias)
        else:
            _check_bias(options, bias)
        return
    task, reward = load(options)
    labels = labels_of(options, task)
    if labels is None:
        if reward.of_shares:
            raise InputError(
                "blb check looks at decisions with a right label, and rows with wanted shares have"
                " none; blb fit predicts the shares from one token a prompt before it draws"
            )
        raise InputError(
            "blb check looks at decisions between few labels, and the answers of this data are not;"
            " name the labels with --labels"
        )
    if reward.name in CORRECTNESS and has_few_rows(task, labels):
        task = task.pooled()  # as the fit does, which learns from and chooses on the same rows
    notice = reporter(quiet=options.quiet).notice
    notice(understood(task, reward, labels))
    for advice in naming_advice(options, task, labels):
        notice(advice)
    checked, spent = run(options, lambda budget: _run(options, task, reward, labels, budget))
    if isinstance(checked, CheckedOpening):
        _tell(options, checked, opening_conclusion(checked, spent))
    else:
        _tell(options, checked, check_conclusion(checked, spent))


def _tell(
    options: CheckOptions,
    checked: Checked | CheckedOpening | PointCheck | MendingCheck,
    conclusion: Conclusion,
) -> None:
    """Print a check for a program, or its conclusion."""
    if options.as_json:
        print_json(checked.as_json())
    else:
        print_conclusion(conclusion)


def _check_decisions(options: CheckOptions, bias: Bias) -> None:
    """Check a file of mended decisions on other rows."""
    from blackbox_lb.jobs.decisions.applying import endpoint_of, with_system

    task, reward = load(options, mends=True)
    task = with_system(bias, task)
    if options.endpoint is None:
        options = options.replacing(endpoint=endpoint_of(bias))
    checked, spent = run(options, lambda budget: _run_mended(options, task, reward, bias, budget))
    _tell(options, checked, mending_conclusion(checked, spent))


def mending_conclusion(checked: MendingCheck, spent: str) -> Conclusion:
    """The conclusion of a check of mended decisions."""
    from blackbox_lb.jobs.runs.conclusion import Conclusion, NextStep

    lines = []
    for question in checked.questions:
        name = ""
        if len(checked.questions) > 1:
            name = f"{printable(question.question)}: "
        lines += [f"{name}{line}" for line in question.lines]
    lines.append(f"{checked.questions[0].rows:,} rows looked at")
    steps = []
    if checked.verdict == "BROKEN" or checked.has_drifted:
        steps.append(NextStep("fit again on such rows, with blb fit --question"))
    return Conclusion(
        checked.verdict, tuple(lines), why=checked.shortage, spent=spent, steps=tuple(steps)
    )


async def _run_mended(
    options: CheckOptions, task: Task, reward: Reward, bias: Bias, budget: SpendLimit
) -> MendingCheck:
    from blackbox_lb.jobs.decisions.recheck import check_mended, check_parts, fresh_rows
    from blackbox_lb.jobs.forecast import RequestSettings, forecast

    examples = fresh_rows(task, bias)

    def expected(trials: Trials) -> Forecast:
        return forecast(RequestSettings.of(trials), check_parts(trials, examples, bias))

    async with open_trials(options, task, reward, budget, needs=(), expected=expected) as trials:
        _note_other_rows(trials, task, bias)
        return await check_mended(trials, examples, bias)


def _check_bias(options: CheckOptions, bias: Bias) -> None:
    """Check the operating point of a bias file on other prompts."""
    from blackbox_lb.jobs.point_check import curve_of

    curve_of(bias)
    task, reward = load(options)
    checked, spent = run(options, lambda budget: _run_point(options, task, reward, bias, budget))
    _tell(options, checked, point_conclusion(checked, spent))


def point_conclusion(checked: PointCheck, spent: str) -> Conclusion:
    """The conclusion of a check of an operating point."""
    from blackbox_lb.jobs.runs.answers import cut
    from blackbox_lb.jobs.runs.conclusion import Conclusion, NextStep

    curve = checked.curve
    promise = checked.promise
    lines = []
    if promise is not None:
        lines.append(promise.sentence)
    drift = "no drift is shown"
    if checked.has_drifted:
        drift = "they have drifted"
    lines.append(f"margins: {drift} (Kolmogorov-Smirnov {checked.distance:.2f}, p {checked.p:.2g})")
    lines.append(
        f"decides for {cut(printable(curve.positive), 12)}: {checked.rate_then.text} then,"
        f" {checked.rate_now.text} now"
    )
    if checked.area is not None:
        area = checked.area
        lines.append(
            f"AUC {curve.auc:.2f} then, {area.value:.2f} (95 %: {area.low:.2f} to"
            f" {area.high:.2f}) now"
        )
    lines.append(f"{checked.prompts} prompts looked at, one token each; goal {curve.goal}")
    why = ""
    if promise is not None:
        why = promise.shortage
    steps = []
    if checked.verdict in ("BROKEN", "DRIFTED"):
        again = command_with_same(["blb", "fit"])
        steps.append(NextStep(again, "learn the point again on such rows"))
    return Conclusion(checked.verdict, tuple(lines), why=why, spent=spent, steps=tuple(steps))


async def _run_point(
    options: CheckOptions, task: Task, reward: Reward, bias: Bias, budget: SpendLimit
) -> PointCheck:
    from blackbox_lb.jobs.decisions.recheck import fresh_rows
    from blackbox_lb.jobs.forecast import RequestSettings, forecast
    from blackbox_lb.jobs.point_check import check_point
    from blackbox_lb.rollouts.answers.given_answers import first_part

    examples = fresh_rows(task, bias)

    def expected(trials: Trials) -> Forecast:
        settings = RequestSettings.of(trials)
        width = settings.width(options.top_logprobs)
        return forecast(settings, [first_part(settings.draw, "check", examples, width)])

    async with open_trials(options, task, reward, budget, bias, expected=expected) as trials:
        _note_other_rows(trials, task, bias)
        return await check_point(trials, examples, bias, options.top_logprobs)


def _note_other_rows(trials: Trials, task: Task, bias: Bias) -> None:
    """Say that rows of data of the fit's name are not those of the fit, by which a bias would be
    judged by what it was learned from.
    """
    if task.data_hash != bias.data_hash and task.name == bias.task:
        trials.report.notice(
            f"the bias was learned on other rows of {task.name}, or on another division of them:"
            " make sure that none of these is one that it was learned from or chosen on"
        )


VERDICTS: dict[Answer, tuple[str, str]] = {
    "fixed": ("YES", "a fixed bias can mend this decision"),
    "not above the commonest": ("NOT SHOWN TO PAY", ""),
    "depends on the prompt": ("BY PROMPT", "only a bias that depends on the prompt can mend it"),
    "already right": ("NOT NEEDED", "there is little left to mend"),
    "not listed": ("NO", "the lists hardly hold the right answers, so none can be learned"),
    "no skill": ("NO", "the model separates the labels no better than the commonest label alone"),
}
"""Answer of the check -> its verdict and what it means."""


def check_conclusion(checked: Checked, spent: str) -> Conclusion:
    """The conclusion of a check: whether a bias can mend the decision, by how much, and what then.

    The two examples are wrong greedy answers with their right labels.
    """
    from blackbox_lb.bias.records import LONGEST_LABEL
    from blackbox_lb.jobs.runs.answers import BeforeAfter, cut
    from blackbox_lb.jobs.runs.conclusion import HELP_PAGE, Conclusion, NextStep

    decision = checked.found
    verdict, meaning = VERDICTS[decision.answer]
    commonest = f'always saying "{cut(printable(checked.commonest), LONGEST_LABEL)}"'
    if decision.answer == "not above the commonest":
        meaning = (
            f"a bias would reach {100 * decision.predicted:.0f} % ({100 * decision.low:.0f} to"
            f" {100 * decision.high:.0f}), {commonest} has {100 * decision.majority:.0f} %"
        )
    lines = [meaning, f"right now {decision.base:.0%}, {commonest} {decision.majority:.0%}"]
    harms = decision.after is not None and decision.after.harms
    if harms and decision.answer == "fixed":
        verdict = "PERHAPS"
        lines.append(
            f"a bias can begin {decision.predicted:.0%} of the answers right; whether it ends them"
            " is not predicted"
        )
    elif decision.answer == "fixed":
        lines.append(
            f"predicted with a bias {decision.predicted:.0%} (standard error {decision.error:.0%})"
        )
        lines.append(
            f"it mends {decision.repaired:.0%} of the wrong ones and breaks {decision.broken:.0%}"
            " of the right ones"
        )
    if decision.answer == "no skill":
        lines.append(f"best decision from its lists: {decision.informed:.0%} right")
    lines.append(
        f"{len(decision.margins)} training prompts looked at; wrong answers -> right ones:"
    )
    caveat = ""
    if decision.after is not None:
        caveat = decision.after.sentence.removeprefix("; ")
    if verdict in ("NO", "NOT NEEDED"):
        steps = [NextStep(HELP_PAGE, "what helps, by kind of task")]
    elif decision.answer == "not above the commonest":
        steps = [
            NextStep("give more labelled rows, or name the labels in the prompt"),
            NextStep(HELP_PAGE, "what helps, by kind of task"),
        ]
    else:
        options = []
        if decision.answer == "depends on the prompt":
            options = ["--depends-on", "words"]
        steps = [NextStep(command_with_same(["blb", "fit"], options), "learn it and judge it")]
    if harms and decision.after is not None:
        steps.insert(0, NextStep(decision.after.remedy))
    examples = tuple(BeforeAfter(*answer) for answer in checked.answers[:2])
    return Conclusion(
        verdict, tuple(lines), caveat=caveat, examples=examples, spent=spent, steps=tuple(steps)
    )


OPENING_VERDICTS: dict[OpeningAnswer, tuple[str, str]] = {
    "shift": ("YES", "one shift of the opening's tokens can mend this decision"),
    "another point": (
        "BY GOAL",
        "no shift is shown to be right more often than now and than always the commoner; one can"
        " trade missed openings for needless ones",
    ),
    "already right": VERDICTS["already right"],
    "no skill": ("NO", "the model is not shown to rank the prompts better than chance"),
}
"""Answer of the check of open labels -> its verdict and what it means."""


def opening_conclusion(checked: CheckedOpening, spent: str) -> Conclusion:
    """The conclusion of a check of open labels."""
    from blackbox_lb.jobs.runs.conclusion import HELP_PAGE, Conclusion, NextStep

    found = checked.found
    verdict, meaning = OPENING_VERDICTS[found.answer]
    area = found.area
    lines = [
        meaning,
        f"right now {found.base:.0%}, always deciding for the commoner {found.majority:.0%}",
        f"begins with the opening on {found.begun_wanted:.0%} of the prompts that want it, and on"
        f" {found.begun_unwanted:.0%} of the others",
        f"AUC {area.value:.2f} (95 %: {area.low:.2f} to {area.high:.2f})",
    ]
    if found.answer in ("shift", "another point"):
        lines.append(
            f"predicted with a shift {found.predicted:.0%} (standard error {found.error:.0%})"
        )
    lines.append(f"{found.prompts} training prompts looked at, one token each")
    caveat = ""
    if checked.opening.cut:
        caveat = checked.opening.sentence
    more = []
    if found.answer == "another point":
        more = ["--goal", "recall@precision=.9"]
    steps = [NextStep(command_with_same(["blb", "fit"], more), "learn it and judge it")]
    if verdict in ("NO", "NOT NEEDED"):
        steps = [NextStep(HELP_PAGE, "what helps, by kind of task")]
    return Conclusion(verdict, tuple(lines), caveat=caveat, spent=spent, steps=tuple(steps))


async def _run(
    options: CheckOptions, task: Task, reward: Reward, labels: Labels, budget: SpendLimit
) -> Checked | CheckedOpening:
    from blackbox_lb.jobs.check import LOOKED_AT, check, check_opening
    from blackbox_lb.jobs.forecast import RequestSettings, forecast
    from blackbox_lb.rollouts.answers.given_answers import first_part
    from blackbox_lb.rollouts.judging.trials import stage_part
    from blackbox_lb.rollouts.judging.verdict import GREEDY
    from blackbox_lb.tasks.sets.labels import OpenLabels

    looked = task.train[:LOOKED_AT]

    def expected(trials: Trials) -> Forecast:
        settings = RequestSettings.of(trials)
        width = settings.width(options.top_logprobs)
        parts = [first_part(settings.draw, "check", looked, width)]
        if not isinstance(labels, OpenLabels):
            where = settings.biased_endpoint
            parts.append(stage_part(settings.draw, "check", looked, GREEDY, 1, endpoint=where))
        return forecast(settings, parts)

    async with open_trials(options, task, reward, budget, expected=expected) as trials:
        if task.note:
            trials.report.notice(task.note)
        if isinstance(labels, OpenLabels):
            return await check_opening(trials, task.train, labels, options.top_logprobs)
        return await check(trials, task.train, labels, options.top_logprobs)
