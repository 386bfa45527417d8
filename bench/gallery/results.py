"""The results of a page: every policy with its interval and its verdicts, as NAME.json holds
them.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, model_validator

from bench.steps import COMPLETIONS, Step

# What ``blb fit`` counts with before it asks.
from blackbox_lb.jobs.runs.conclusion import POWER_FACTOR

__all__ = [
    "BASE",
    "FEWEST_PROMPTS",
    "JUDGEMENTS",
    "Difference",
    "Evaluation",
    "Fit",
    "Judgement",
    "Outcome",
    "PageResults",
    "Policy",
    "Run",
    "Table",
    "cut_name",
    "evaluation_of",
    "fit_of",
    "is_hand_made",
    "model_name",
    "reading_table",
    "rival_name",
]

Verdict = Literal["wins", "level", "loses"]
VERDICTS: Mapping[str, Verdict] = {"HELPS": "wins", "NO EVIDENCE": "level", "HURTS": "loses"}
Judgement = Literal["wins", "equal", "open", "loses"]
JUDGEMENTS: tuple[Judgement, ...] = ("wins", "equal", "open", "loses")
BASE, GREEDY, LOG_LOSS = "base", "greedy", "log loss"
"""Names of a policy, of a setting and of a metric in a document of ``blb eval``."""
Comparisons = Mapping[tuple[str, str, str], Mapping[str, Any]]
"""(setting, a policy, the one compared with it) -> the comparison in such a document."""
DIGITS = 4
MARGIN = 0.05
"""A smaller difference of shares counts as none."""
PART_OF_BASE = 0.1
"""Of what the base earns: a smaller difference of other rewards counts as none. No rival moves it,
and it does not depend on the unit of the reward.
"""
FEWEST_PROMPTS = 60
"""On fewer nothing counts as equal: what none of n prompts shows may still hold for 3 in n (95 %),
which is 5 points for 60.
"""
ERRORS_OF_INTERVAL = 3.92
"""Standard errors from one end of a 95 % interval to the other."""
HAND_MADE = re.compile(r"^labels only$| at [+-][\d.]+$")
"""Names of the policies that a person makes as a bias: lists, bans, boosts."""
IN_CLIENT = re.compile(r"^(thresholds|RBCorr)$|calibration$")
"""Policies that decide in the client, by the highest shifted logprob: greedy decoding under a bias
decides the same, sampling does not.
"""


class Part(BaseModel, frozen=True, extra="forbid"):
    """A part of the results."""


class Outcome(Part, frozen=True):
    """What a command printed.

    words: the command's, with the folders of the run replaced by OUT and DATA.
    code: its exit code.
    seconds: wall-clock time.
    document: its JSON; None where it failed.
    error: the last line of what it said where it failed.
    """

    words: tuple[str, ...]
    code: int
    seconds: float
    document: dict[str, Any] | None = None
    error: tuple[str, ...] = ()


class Difference(Part, frozen=True):
    """The reward of one policy less that of another, paired by prompt, with its 95 % interval; not
    adjusted for several comparisons.
    """

    difference: float
    low: float
    high: float

    @property
    def standard_error(self) -> float:
        """Of the difference, by the width of its interval."""
        return (self.high - self.low) / ERRORS_OF_INTERVAL


class Policy(Part, frozen=True):
    """A policy of an evaluation at one setting.

    kind: the base, a learned bias, a rival, or a rival with a learned bias.
    hand_made: a rival is itself a bias, made by hand: a list, a ban, a boost, or a calibration at
        greedy decoding.
    mean, low, high: its reward with the 95 % interval; None where it has none.
    tokens: mean of an answer.
    right: share of right answers, where that is known.
    verdicts: learned bias -> whether that one wins over this policy, is level with it, or loses to
        it. Of a rival with a bias: the rival alone -> whether the bias adds to it.
    differences: the same names -> that bias less this policy; of a rival with a bias, this policy
        less the rival alone. None in pages of an older form.
    spread: standard deviation of its reward over draws of the labelled rows; None where there was
        one draw.
    log_loss: nats a row, where probabilities are judged. by_log_loss: the verdicts by it.
    """

    setting: str
    name: str
    kind: Literal["base", "bias", "rival", "rival and bias"]
    hand_made: bool = False
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    tokens: float | None = None
    right: float | None = None
    verdicts: dict[str, Verdict] = {}
    differences: dict[str, Difference] = {}
    spread: float | None = None
    log_loss: float | None = None
    by_log_loss: dict[str, Verdict] = {}


class Evaluation(Part, frozen=True):
    """An evaluation: ``reward`` is the name of the reward, ``prompts`` their number, ``labels`` the
    labelled examples that its policies had, ``learned_from`` those of each bias, which are
    ``examples``: completions, labels or prompts. ``draws`` of the labelled rows, over which the
    rewards are means; None where there was one. Each setting has a base.
    """

    title: str
    model: str
    reward: str
    prompts: int
    policies: tuple[Policy, ...]
    labels: int | None = None
    learned_from: dict[str, int] = {}
    examples: str = COMPLETIONS
    draws: int | None = None

    @model_validator(mode="after")
    def _with_a_base(self) -> Evaluation:
        for setting in self.settings:
            if not self.at(setting, "base"):
                raise ValueError(
                    f"{self.title!r} has no policy of the kind base at {setting}; add the model"
                    " without a bias"
                )
        return self

    @property
    def is_share(self) -> bool:
        """Whether the reward is a share: every reward and every end of an interval is one of 0 to
        1.
        """
        values = [
            value
            for policy in self.policies
            for value in (policy.mean, policy.low, policy.high)
            if value is not None
        ]
        return all(0 <= value <= 1 for value in values)

    @property
    def settings(self) -> list[str]:
        """The settings in their order."""
        return list(dict.fromkeys(policy.setting for policy in self.policies))

    def at(self, setting: str, *kinds: str) -> list[Policy]:
        """The policies at a setting, of these kinds where some are named."""
        return [
            policy
            for policy in self.policies
            if policy.setting == setting and (not kinds or policy.kind in kinds)
        ]

    def base(self, setting: str) -> Policy:
        """The policy without a bias."""
        return self.at(setting, "base")[0]

    def best(self, setting: str, kind: str) -> Policy | None:
        """The policy of a kind with the highest reward; None where there is none."""
        scored = [policy for policy in self.at(setting, kind) if policy.mean is not None]
        return max(scored, key=_mean, default=None)

    def margin(self, setting: str) -> float:
        """A difference that does not matter: 5 points of a share, else a tenth of what the base
        earns, without its sign.
        """
        if self.is_share:
            return MARGIN
        return PART_OF_BASE * abs(self.base(setting).mean or 0.0)

    def judgement(self, policy: Policy, name: str) -> Judgement | Literal[""]:
        """The verdict of ``name`` against a policy for a reader, "" where they were not compared.

        Level is "equal" where the interval of the difference lies within the margin, on at least
        ``FEWEST_PROMPTS`` prompts; else, and without a stored difference, it is "open": these
        prompts do not tell the two apart.
        """
        if name not in policy.verdicts:
            return ""
        verdict = policy.verdicts[name]
        if verdict != "level":
            return verdict
        found = policy.differences.get(name)
        if found is None or self.prompts < FEWEST_PROMPTS:
            return "open"
        margin = self.margin(policy.setting)
        is_within = -margin <= found.low and found.high <= margin
        return "equal" if is_within else "open"

    def smallest_difference(self, setting: str) -> float | None:
        """The difference between a bias and a rival that these prompts show in four of five cases
        at a level of 5 %, two-sided and not adjusted for several comparisons: 2.8 standard errors,
        the median of all such pairs.

        Without rivals it is that of the biases against the base. Pairs that earned the same on
        every prompt have no spread and do not count; None where no other pair is left.
        """
        biases = {bias.name for bias in self.at(setting, "bias")}
        against = self.at(setting, "rival") or self.at(setting, "base")
        errors = [
            found.standard_error
            for policy in against
            for name, found in policy.differences.items()
            if name in biases and found.standard_error > 0
        ]
        if not errors:
            return None
        return POWER_FACTOR * statistics.median(errors)

    def joined(self, pair: Policy) -> tuple[Policy, ...]:
        """The rival and the bias that a policy of both consists of; empty where one of them was not
        tried alone.
        """
        for rival in self.at(pair.setting, "rival"):
            for bias in self.at(pair.setting, "bias"):
                if pair.name == f"{rival.name} and {bias.name}":
                    return rival, bias
        return ()

    def ahead(self, setting: str) -> tuple[Policy, Policy | None, Judgement | Literal[""]]:
        """The best bias, the best rival, and the verdict of that bias against it, "" for none.

        Raises ValueError: there is no bias.
        """
        bias = self.best(setting, "bias")
        if bias is None:
            raise ValueError(f"{self.title!r} has no bias at {setting}")
        rival = self.best(setting, "rival")
        if rival is None:
            return bias, None, ""
        return bias, rival, self.judgement(rival, bias.name)


class Fit(Part, frozen=True):
    """How a fit or a check ended, in words."""

    name: str
    end: str
    seconds: float


class Table(Part, frozen=True):
    """A table that a program of the gallery printed. model: its name, "" where an evaluation has
    it.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]
    model: str = ""

    @property
    def first_column(self) -> list[str]:
        """Its head, and the names of the rows."""
        return [self.head[0], *(row[0] for row in self.rows)]

    def beside(self, table: Table) -> Table | None:
        """Both as one table; None where their titles or their first columns differ."""
        if self.title != table.title or self.first_column != table.first_column:
            return None
        return Table(
            title=self.title,
            head=(*self.head, *table.head[1:]),
            rows=tuple(
                (*left, *right[1:]) for left, right in zip(self.rows, table.rows, strict=True)
            ),
            notes=tuple(dict.fromkeys([*self.notes, *table.notes])),
            model=self.model,
        )


class Run(Part, frozen=True):
    """When and where a page was made. minutes: of its commands. requests, prompt_tokens,
    completion_tokens: what these sent and received, 0 where it was not recorded.
    """

    date: str
    cores: int
    minutes: float
    small: bool
    requests: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0


class PageResults(Part, frozen=True):
    """Everything on a page that was measured."""

    use: str
    title: str
    run: Run
    evaluations: tuple[Evaluation, ...]
    fits: tuple[Fit, ...] = ()
    tables: tuple[Table, ...] = ()

    @property
    def models(self) -> list[str]:
        """The names of the models."""
        names = {evaluation.model for evaluation in self.evaluations}
        names |= {table.model for table in self.tables if table.model}
        return sorted(names)

    @property
    def judged(self) -> list[Evaluation]:
        """The evaluations with rivals that are no part of a curve."""
        return [
            evaluation
            for evaluation in self.evaluations
            if evaluation.labels is None and not evaluation.learned_from
        ]

    @property
    def labelled(self) -> dict[str, list[Evaluation]]:
        """The evaluations by number of labels, smallest first, under their title."""
        curves: dict[str, list[Evaluation]] = {}
        for evaluation in sorted(self.evaluations, key=lambda part: part.labels or 0):
            if evaluation.labels is not None:
                curves.setdefault(evaluation.title, []).append(evaluation)
        titles = dict.fromkeys(evaluation.title for evaluation in self.evaluations)
        return {title: curves[title] for title in titles if title in curves}

    @property
    def last(self) -> list[Evaluation]:
        """One for each title: that with most labels."""
        judged = {evaluation.title: evaluation for evaluation in self.judged}
        most = {title: curve[-1] for title, curve in self.labelled.items()}
        return list((judged | most).values())

    def by_examples(self, curve: Evaluation, setting: str) -> dict[int, Policy]:
        """The biases of a curve by the number of their examples, those of the evaluation of the
        same title among them.
        """
        points: dict[int, Policy] = {}
        for evaluation in self.evaluations:
            if evaluation.title == curve.title:
                for policy in evaluation.at(setting, "bias"):
                    if policy.name in curve.learned_from:
                        points[curve.learned_from[policy.name]] = policy
        return dict(sorted(points.items()))


def _mean(policy: Policy) -> float:
    return float("-inf") if policy.mean is None else policy.mean


def reading_table(document: Mapping[str, Any]) -> Table | None:
    """How a fit of a question read and mended it, where it wished for no promise: cross-validated
    accuracy and log loss of each way to mend, by layout.
    """
    asked = [question for question in document.get("decided", ()) if not question["promise"]]
    if not asked:
        return None
    question = asked[0]
    cells: dict[str, dict[str, str]] = {}
    for row in question["tried"]:
        cell = f"{row['accuracy']:.2f} / {row['log_loss']:.2f}"
        if row["is_chosen"]:
            cell = f"**{cell}**"
        cells.setdefault(row["mending"], {})[row["way"]] = cell
    ways = list(dict.fromkeys(row["way"] for row in question["tried"]))
    named = f"{question['options'][0]} ...:"
    notes = ["Right decisions / log loss in nats. **Chosen.**"]
    if question["flip_rows"]:
        notes.append("Other with the options in reverse:")
        notes.append(f"{named} {question['flipped']} of {question['flip_rows']}.")
    return Table(
        title="Read and mended",
        head=(f"{question['rows']} rows, cross-validated", f"{named} {ways[0]}", *ways[1:]),
        rows=tuple(
            (mending, *(by_way.get(way, "") for way in ways)) for mending, by_way in cells.items()
        ),
        notes=tuple(notes),
    )


FIGURES = {
    "hits": "hits for 100 words",
    "words": "words",
    "tokens": "tokens drawn, a token delivered",
    "repeated": "repeated 3-grams",
    "logprob": "logprob a token",
}
"""Figures of texts in an evaluation -> their names."""
TEXTS_NOTE = (
    "* beyond chance against the base, paired by prompt, without adjustment for several"
    " comparisons. Repeated 3-grams as a share of a text's 3-grams of words. Logprob a token, in"
    " nats, by the model without a bias; of answers to another prompt it is not told."
)


def texts_table(document: Mapping[str, Any]) -> Table | None:
    """What the texts of each policy are like, where the evaluation tells it."""
    policies = [row for row in document.get("policies", ()) if row.get("texts")]
    if not policies:
        return None
    rows = []
    for policy in policies:
        cells = [rival_name(policy["name"])]
        for name in FIGURES:
            figure = policy["texts"].get(name)
            cells.append("" if figure is None else _figure(figure))
        rows.append(tuple(cells))
    return Table(
        title=f"The texts on {policies[0]['prompts']} test prompts",
        head=("policy", *FIGURES.values()),
        rows=tuple(rows),
        notes=(TEXTS_NOTE,),
    )


def _figure(figure: Mapping[str, Any]) -> str:
    low = figure.get("low")
    is_beyond = low is not None and (low > 0 or figure["high"] < 0)
    return f"{figure['mean']:.3f}{' *' if is_beyond else ''}"


def evaluation_of(
    document: Mapping[str, Any],
    title: str,
    *,
    learned_from: Mapping[str, int] | None = None,
    examples: str = COMPLETIONS,
) -> Evaluation:
    """The evaluation in a document of ``blb eval``."""
    label = document["label"]
    comparisons = _comparisons(document, label)
    by_log_loss = _comparisons(document, LOG_LOSS)
    biases = {row["name"] for row in document["policies"] if row["bias"] == row["name"]}
    policies = []
    for row in document["policies"]:
        setting = row["setting"]
        name = row["name"]
        metrics = row["metrics"]
        against = _against(comparisons, setting, name, biases)
        if name == BASE:
            kind = "base"
        elif name in biases:
            kind = "bias"
        elif row["bias"]:
            kind = "rival and bias"
            alone = name.removesuffix(f" and {row['bias']}")
            added = comparisons.get((setting, alone, name))
            against = {} if added is None else {alone: added}
        else:
            kind = "rival"
        reward = {key: _rounded(value) for key, value in (metrics.get(label) or {}).items()}
        policy = {
            "setting": setting,
            "name": name,
            "kind": kind,
            "hand_made": kind == "rival" and is_hand_made(name, setting),
            "tokens": _rounded(metrics.get("tokens", {}).get("mean")),
            "right": _rounded(metrics.get("accuracy", {}).get("mean")),
            "verdicts": _verdicts(against),
            "differences": {other: _difference(found) for other, found in against.items()},
            "log_loss": _rounded(metrics.get(LOG_LOSS, {}).get("mean")),
            "by_log_loss": _verdicts(_against(by_log_loss, setting, name, biases)),
        }
        policies.append(Policy.model_validate(policy | reward))
    return Evaluation(
        title=title,
        model=model_name(document["model"]),
        reward=_reward_name(label),
        prompts=document["policies"][0]["prompts"],
        policies=tuple(policies),
        learned_from=dict(learned_from or {}),
        examples=examples,
    )


def _comparisons(document: Mapping[str, Any], metric: str) -> Comparisons:
    """The comparisons by a metric."""
    return {
        (row["setting"], row["against"], row["policy"]): row
        for row in document["comparisons"]
        if row["metric"] == metric
    }


def _against(
    comparisons: Comparisons, setting: str, name: str, others: Iterable[str]
) -> dict[str, Mapping[str, Any]]:
    """The comparisons of ``others`` with a policy."""
    return {
        other: comparisons[setting, name, other]
        for other in sorted(others)
        if (setting, name, other) in comparisons
    }


def _verdicts(found: Mapping[str, Mapping[str, Any]]) -> dict[str, Verdict]:
    """The verdicts of comparisons."""
    return {other: VERDICTS[row["verdict"]] for other, row in found.items()}


def _difference(comparison: Mapping[str, Any]) -> dict[str, float | None]:
    """The difference in a comparison."""
    return {name: _rounded(comparison[name]) for name in Difference.model_fields}


def _rounded(value: float | None) -> float | None:
    """A number with as many digits as can matter."""
    return None if value is None else round(value, DIGITS)


def model_name(name: str) -> str:
    """The name of a model without its folder, the end of its file, and its quantisation."""
    return re.sub(r"(\.Q\d\w*)?(\.gguf)?$", "", name.rpartition("/")[2])


def is_hand_made(rival: str, setting: str) -> bool:
    """Whether one bias does at this setting what the rival of this name does."""
    if IN_CLIENT.search(rival):
        return setting == GREEDY
    return HAND_MADE.search(rival) is not None


def _reward_name(label: str) -> str:
    """The name of a reward; of a function without its module."""
    return label if " " in label else label.rpartition(":")[2]


def fit_of(step: Step, outcome: Outcome) -> Fit | None:
    """How a fit or a check ended; None for other commands that ended well."""
    document = outcome.document or {}
    if outcome.code:
        end = f"exit code {outcome.code}: {' '.join(outcome.error)}"
    elif "sentence" in document:
        end = f"`blb check`: {document['sentence'].rstrip('.')}"
    elif "questions" in document:
        end = f"`blb check`: {'; '.join(map(_checked, document['questions']))}"
    elif "status" in document:
        promises = [question["promise"] for question in document.get("decided", ())]
        end = "; ".join([_status(document["status"]), *filter(None, promises)])
        if "--depends-on" in step.words and "slope_l2" not in document["chosen"]:
            end += "; declined to depend on the prompt"
        training = document.get("training") or {}
        if lost := training.get("incomplete", 0):
            attempts = training["rollouts"] + lost
            end += f"; {lost} of {attempts} completions were left out, their lists lack tokens"
    else:
        return None
    return Fit(name=step.name, end=end, seconds=round(outcome.seconds))


def _checked(question: Mapping[str, Any]) -> str:
    """What ``blb check`` found of a question that is mended."""
    errors = question["errors"]
    if errors is None or not errors["is_promised"]:
        return "no promise to test"
    return (
        f"{question['verdict']}, {errors['wrong']} of {errors['decided']} decisions are wrong,"
        f" {errors['rows'] - errors['decided']} abstain; promised: at most {errors['limit']:.0%}"
    )


def _status(status: str) -> str:
    """The status of a fit, with the names of rewards as everywhere on the page."""
    return re.sub(r"\b[\w.]+:(?=\w)", "", status)


def cut_name(name: str, longest: int) -> str:
    """A policy's name with an instruction, of which at most so many characters."""
    name = re.sub('^prompt \\+ (?=")', "instruction ", " ".join(name.split()))
    return re.sub(f'"(.{{{longest}}}).*"', r'"\1…"', name)


def rival_name(name: str) -> str:
    """A rival's name in short: an instruction without its text."""
    return re.sub('^prompt \\+ ".*"', "instruction", " ".join(name.split()))
