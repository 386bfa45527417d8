"""The results of a page: every policy with its interval and its verdicts, as NAME.json holds
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel

from bench.steps import COMPLETIONS, Step

__all__ = [
    "BASE",
    "Evaluation",
    "Fit",
    "Outcome",
    "PageResults",
    "Policy",
    "Run",
    "Table",
    "evaluation_of",
    "fit_of",
    "model_name",
    "rival_name",
]

Verdict = Literal["wins", "level", "loses"]
VERDICTS: Mapping[str, Verdict] = {"HELPS": "wins", "NO EVIDENCE": "level", "HURTS": "loses"}
BASE, GREEDY = "base", "greedy"
"""Names of a policy and of a setting in a document of ``blb eval``."""
DIGITS = 4
HAND_MADE = re.compile(r"^labels only$| at [+-][\d.]+$")
"""Names of the policies that a person makes as a bias: lists, bans, boosts."""
IN_CLIENT = re.compile(r"^thresholds$|calibration$")
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


class Evaluation(Part, frozen=True):
    """An evaluation: ``reward`` is the name of the reward, ``prompts`` their number, ``labels`` the
    labelled examples that its policies had, ``learned_from`` those of each bias, which are
    ``examples``: completions, labels or prompts.
    """

    title: str
    model: str
    reward: str
    prompts: int
    policies: tuple[Policy, ...]
    labels: int | None = None
    learned_from: dict[str, int] = {}
    examples: str = COMPLETIONS

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

    def ahead(self, setting: str) -> tuple[Policy, Policy | None, str]:
        """The best bias, the best rival, and the verdict of that bias against it, "" for none.

        Raises ValueError: there is no bias.
        """
        bias = self.best(setting, "bias")
        if bias is None:
            raise ValueError(f"{self.title!r} has no bias at {setting}")
        rival = self.best(setting, "rival")
        if rival is None:
            return bias, None, ""
        return bias, rival, rival.verdicts.get(bias.name, "")


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
    labels: int | None = None,
    learned_from: Mapping[str, int] | None = None,
    examples: str = COMPLETIONS,
) -> Evaluation:
    """The evaluation in a document of ``blb eval``."""
    label = document["label"]
    verdicts = {
        (row["setting"], row["against"], row["policy"]): VERDICTS[row["verdict"]]
        for row in document["comparisons"]
        if row["metric"] == label
    }
    biases = {row["name"] for row in document["policies"] if row["bias"] == row["name"]}
    policies = []
    for row in document["policies"]:
        setting = row["setting"]
        name = row["name"]
        metrics = row["metrics"]
        against = {
            bias: verdicts[setting, name, bias]
            for bias in sorted(biases)
            if (setting, name, bias) in verdicts
        }
        if name == BASE:
            kind = "base"
        elif name in biases:
            kind = "bias"
        elif row["bias"]:
            kind = "rival and bias"
            alone = name.removesuffix(f" and {row['bias']}")
            against = {}
            if (setting, alone, name) in verdicts:
                against = {alone: verdicts[setting, alone, name]}
        else:
            kind = "rival"
        reward = {key: _rounded(value) for key, value in (metrics.get(label) or {}).items()}
        policy = {
            "setting": setting,
            "name": name,
            "kind": kind,
            "hand_made": kind == "rival" and _is_bias(name, setting),
            "tokens": _rounded(metrics.get("tokens", {}).get("mean")),
            "right": _rounded(metrics.get("accuracy", {}).get("mean")),
            "verdicts": against,
        }
        policies.append(Policy.model_validate(policy | reward))
    return Evaluation(
        title=title,
        model=model_name(document["model"]),
        reward=_reward_name(label),
        prompts=document["policies"][0]["prompts"],
        policies=tuple(policies),
        labels=labels,
        learned_from=dict(learned_from or {}),
        examples=examples,
    )


def _rounded(value: float | None) -> float | None:
    """A number with as many digits as can matter."""
    return None if value is None else round(value, DIGITS)


def model_name(name: str) -> str:
    """The name of a model without its folder, the end of its file, and its quantisation."""
    return re.sub(r"(\.Q\d\w*)?(\.gguf)?$", "", name.rpartition("/")[2])


def _is_bias(rival: str, setting: str) -> bool:
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
    elif "status" in document:
        end = _status(document["status"])
        if "--depends-on" in step.words and "slope_l2" not in document["chosen"]:
            end += "; declined to depend on the prompt"
        training = document.get("training") or {}
        if lost := training.get("incomplete", 0):
            attempts = training["rollouts"] + lost
            end += f"; {lost} of {attempts} completions were left out, their lists lack tokens"
    else:
        return None
    return Fit(name=step.name, end=end, seconds=round(outcome.seconds))


def _status(status: str) -> str:
    """The status of a fit, with the names of rewards as everywhere on the page."""
    return re.sub(r"\b[\w.]+:(?=\w)", "", status)


def rival_name(name: str) -> str:
    """A rival's name in short: an instruction without its text."""
    return re.sub('^prompt \\+ ".*"', "instruction", " ".join(name.split()))
