"""Labels of fresh completions, with and without a bias: decisions with the model's confidence, and
shares beside those wanted.

Index letters: ``x`` prompts, ``l`` labels and one more category for completions that name none, of
which the wanted share is 0.

A distribution belongs to many completions, so no completion has a reward of its own. Within a group
of prompts, ``p`` is the mean over prompts of the drawn shares and ``q`` that of the wanted ones:

    TV(p, q) = 1/2 sum_l |p_l - q_l|,
    JS(p, q) = 1/2 sum_l p_l log(p_l / m_l) + 1/2 sum_l q_l log(q_l / m_l),    m = (p + q) / 2.

Both are homogeneous of degree 1 in (p, q) together, so by Euler's theorem each is exactly the mean
over prompts of its linearisation at (p, q): for TV, with ``s_l = sign(p_l - q_l)``, of
``1/2 sum_l s_l (p_xl - q_xl)``. These parts are the influence of each prompt. Resampling them is
resampling prompts, with the point of linearisation kept: the error of a difference of two policies
is that of paired differences of parts, as for any other reward.

The distance of few completions is larger than that of many, most where the match is best: a policy
that matches has ``chance_level`` on average. Policies are compared at as many completions, so this
works against the better one; nothing is subtracted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from blackbox_lb.bias.records import Commonest, Verdict
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.prediction import DecisionScores, FirstLists
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.rollouts.answers.given_answers import AnswerTokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import Setting
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.records.shares import check_alike
from blackbox_lb.tasks.rewards.matching import Matcher, parse_matcher
from blackbox_lb.tasks.rewards.reward import GROUP, judges_answers
from blackbox_lb.tasks.sets.labels import FIRST_NAMED, Labels, OpenLabels
from blackbox_lb.types import AnyBias, Completion, Example

OFTEN = 0.05
"""Share of answers that count as right and name another label first, above which it is said."""


def decision(labels: Labels, reward: Reward, example: Example, text: str) -> int | None:
    """The number of the label that a text decides for; None where it is none.

    It is the example's own exactly where the text is right, so that the accuracy of decisions is
    that of the verdict, whatever test of correctness a task has.
    """
    label = labels.of(example)
    named = labels.said(text)
    if reward.accuracy_matcher(example, text):
        return label
    if named == label:
        return None
    return named


def about_labels(labels: Labels, reward: Reward) -> Iterator[str]:
    """A sentence on what counts as right where that is the first label named, and those of
    ``confusable`` on the reward's own test.
    """
    if reward.accuracy_matcher.spec == FIRST_NAMED:
        yield (
            f"accuracy: an answer is right where the first of the {len(labels.names)} labels that"
            " it names is"
        )
    yield from confusable(labels, reward.matcher)


def confusable(labels: Labels, matcher: Matcher) -> Iterator[str]:
    """A sentence where ``matcher`` accepts one label as another, or finds it inside of a longer
    number.
    """
    if not matcher.needs_answer or (
        matcher.spec != "contains" and not matcher.spec.startswith("regex:")
    ):
        return
    longer = [(name, f"{name}0") for name in labels.names if name.isdecimal()]
    pairs = [
        (label, second_label)
        for label in labels.names
        for second_label in labels.names
        if label != second_label
    ] + longer
    wrong = [
        (label, second_label)
        for label, second_label in pairs
        if matcher.test((label,), second_label)
    ]
    for label, second_label in wrong[:1]:
        words = parse_matcher("contains").test((label,), second_label)
        remedy = r"whole words, as contains and \b{answer}\b in a pattern take them"
        if words:
            remedy = "labels that share no word"
        yield (
            f"{matcher.spec} counts the answer {second_label!r} as right where {label!r} is: use"
            f" exact-match, or {remedy}"
        )


def remark_on_others(
    trials: Trials, title: str, labels: Labels, completions: Sequence[tuple[Example, str]]
) -> None:
    """Remark on answers that count as right although the label that they name first is another."""
    matcher = trials.reward.matcher
    if not matcher.needs_answer:
        return
    unlabelled = [
        text
        for example, text in completions
        if (label := labels.of(example)) is not None
        and labels.said(text) not in (None, label)
        and matcher(example, text)
    ]
    if len(unlabelled) > OFTEN * len(completions):
        trials.report.notice(
            f"{title}: {matcher.spec} counts {len(unlabelled)} of {len(completions)} answers"
            " as right that"
            f" name another label first, such as {shorten(unlabelled[0])}: exact-match does"
            " not, nor"
            " does ``reward=accuracy`` without ``correct``, which counts the label that is named"
            " first"
        )


async def label_tokens(trials: Trials, labels: Labels) -> list[Ids]:
    """(l,) the tokens that begin the spellings of each label; none of open labels, which have no
    spellings.
    """
    if isinstance(labels, OpenLabels):
        return [np.zeros(0, np.int64) for _ in labels.names]
    tokens = AnswerTokens(trials)
    token_sets = [
        await tokens.of((name, *sorted(texts)))
        for name, texts in zip(labels.names, labels.accepted, strict=True)
    ]
    return [np.array(sorted(ids), np.int64) for ids in token_sets]


async def own_label_tokens(trials: Trials, labels: Labels) -> list[Ids] | None:
    """(l,) the tokens that begin a spelling of each label and of no other; None where a label has
    none.
    """
    token_sets = await label_tokens(trials, labels)
    counts = Counter(token for ids in token_sets for token in ids.tolist())
    unshared = [ids[[counts[token] == 1 for token in ids.tolist()]] for ids in token_sets]
    if not all(ids.size for ids in unshared):
        return None
    return unshared


async def decision_scores(
    trials: Trials,
    examples: Sequence[Example],
    setting: Setting,
    samples: int,
    bias: AnyBias | None,
    labels: Labels,
) -> DecisionScores:
    """The decisions of such completions, drawn unless they are in the store; examples without one
    of the labels, and completions that cannot be read, are left out.
    """
    draw = trials.draw(setting, bias, trials.session.biased_endpoint)
    policy = "base" if bias is None else "biased"
    title = f"test at {setting.name}, decisions, {policy}"
    keys = await trials.collect(title, examples, draw, samples, scored=False)
    begins = await label_tokens(trials, labels)
    right = []
    decided = []
    sure = []
    texts = list[tuple[Example, str]]()
    for example, row in zip(examples, keys, strict=True):
        number = labels.of(example)
        if number is None:
            continue
        prompt_bias = None
        if trials.session.tells_base_logprobs and bias is not None:
            prompt_bias = bias if isinstance(bias, Mapping) else bias.at(example.prompt)
        for completion in trials.store.completions(row):
            if not completion.readable:
                continue
            label = decision(labels, trials.reward, example, completion.text)
            right.append(number)
            decided.append(-1 if label is None else label)
            texts.append((example, completion.text))
            sure.append(
                _confidence(
                    completion,
                    label,
                    prompt_bias,
                    begins,
                )
            )
    test = f"test at {setting.name}"
    if bias:
        test += ", biased"
    remark_on_others(trials, test, labels, texts)
    return DecisionScores.of(labels.names, right, decided, sure)


def beside_commonest(
    rows: Sequence[Verdict], decisions: Mapping[str, DecisionScores], reward: str
) -> list[Verdict]:
    """The rows, those about right answers with what always giving the commonest label gets.

    decisions: setting -> those of the biased model; settings without one are left as they are.
    reward: as a user writes it; a reward that knows no right answer is no matter of labels.
    """
    counts_right = {"accuracy"}
    if judges_answers(reward):
        counts_right |= {row.metric for row in rows[:1]}
    result = []
    for row in rows:
        scores = decisions.get(row.setting)
        if scores is not None and row.metric in counts_right and scores.confusion.any():
            commonest = Commonest(
                label=scores.commonest,
                share=scores.majority,
                accuracy=scores.accuracy,
                is_beaten=scores.beats_commonest(max(row.n_biased / max(row.n_prompts, 1), 1.0)),
            )
            row = row.replacing(commonest=commonest)
        result.append(row)
    return result


def scores_of(
    labels: Labels, reward: Reward, completions: Iterable[tuple[Example, str]]
) -> DecisionScores:
    """The scores of these answers as decisions; those of examples without one of the labels are
    left out.
    """
    rows = [
        (number, decision(labels, reward, example, text))
        for example, text in completions
        if (number := labels.of(example)) is not None
    ]
    decided = [-1 if number is None else number for _, number in rows]
    return DecisionScores.of(labels.names, [right for right, _ in rows], decided)


def completion_of(text: str, tokens: int) -> Completion:
    """A stand-in for a decision that no model wrote: ``text``, counted as so many tokens."""
    return replace(Completion.empty("stop"), text=text, whole=True, generated=tokens)


def _confidence(
    completion: Completion,
    decided: int | None,
    bias: Mapping[int, float] | None,
    begins: Sequence[Ids],
) -> float:
    """The probability of the decided label among all labels, at the first position; NaN where no
    list shows it.
    """
    if decided is None or not len(completion.top_ids):
        return float("nan")
    shares: Vector = FirstLists(completion.top_ids[:1], completion.top_logprobs[:1]).share(
        bias or {}, begins
    )
    return float(shares[0, decided])


Array = npt.NDArray[np.float64]
NO_GROUP = "(none)"
"""The group of prompts without a text in the column, where others have one."""


@dataclass(frozen=True, slots=True, eq=False)
class GroupShares:
    """The labels of one group of prompts.

    group: the text of its column, "" for all prompts. wanted: (l,) the mean of the wanted shares,
    the last for no label, 0. drawn: (l,) the mean over prompts of the shares of their completions.
    prompts, completions: behind ``drawn``.
    """

    group: str
    labels: tuple[str, ...]
    wanted: Array
    drawn: Array
    prompts: int
    completions: int

    @property
    def total_variation(self) -> float:
        """TV, from 0 to 1."""
        return 0.5 * float(np.abs(self.drawn - self.wanted).sum())

    @property
    def divergence(self) -> float:
        """JS in nats, from 0 to ln 2."""
        return float(self.drawn @ _half_log(self.drawn, self.wanted)) + float(
            self.wanted @ _half_log(self.wanted, self.drawn)
        )

    @property
    def chance_level(self) -> float:
        """The total variation that as many independent draws from the wanted shares have on
        average, by the normal approximation.
        """
        variances = self.wanted * (1 - self.wanted) / max(self.completions, 1)
        return 0.5 * math.sqrt(2 / math.pi) * float(np.sqrt(variances).sum())

    def as_json(self) -> dict[str, Any]:
        """The shares by label, and the distances."""
        return {
            "group": self.group,
            "prompts": self.prompts,
            "completions": self.completions,
            "wanted": dict(zip(self.labels, self.wanted.tolist(), strict=False)),
            "drawn": dict(zip(self.labels, self.drawn.tolist(), strict=False)),
            "no_label": float(self.drawn[-1]),
            "total_variation": self.total_variation,
            "jensen_shannon": self.divergence,
            "chance_level": self.chance_level,
        }


@dataclass(frozen=True, slots=True, eq=False)
class WantedByPrompt:
    """The wanted shares of prompts.

    shares: (x, l) of each prompt, the last for no label, 0. members: group -> the places of its
    prompts; one group of all where no prompt has a text in the column.
    """

    labels: Labels
    shares: Array
    members: Mapping[str, list[int]]

    @classmethod
    def of(cls, examples: Sequence[Example], column: str) -> WantedByPrompt:
        """Those of ``examples``, by the groups in ``column``. InputError: one has no shares."""
        labels = Labels.of_shares(examples)
        shares = np.array([[*labels.shares(example), 0.0] for example in examples])
        return cls(labels, shares, _members(examples, column))

    def reward_parts(self, sampled: Array) -> Array:
        """(x,) the part of each prompt in minus the total variation, from its shares ``sampled``
        (x, l) themselves; their mean is that of the groups, weighted by their prompts.
        """
        parts = np.zeros(len(sampled))
        for places in self.members.values():
            differences = sampled[places] - self.shares[places]
            parts[places] = -0.5 * differences @ np.sign(differences.mean(axis=0))
        return parts


@dataclass(frozen=True, slots=True, eq=False)
class DrawnShares:
    """The labels of a policy's completions.

    overall: of all prompts together. groups: those of the column, one where no prompt has a text
    there. reward, divergence: (x,) of each prompt, one number a completion: its part of minus the
    total variation and of the Jensen-Shannon divergence, whose means over prompts are the means
    over groups, weighted by their prompts.
    """

    overall: GroupShares
    groups: tuple[GroupShares, ...]
    reward: tuple[Array, ...]
    divergence: tuple[Array, ...]

    @classmethod
    def of(
        cls, examples: Sequence[Example], texts: Sequence[Sequence[str]], column: str
    ) -> DrawnShares:
        """The first label named in each of ``texts`` (x, completions) beside the shares of
        ``examples``; prompts without a completion are left out.

        Raises InputError: an example has no wanted shares.
        """
        wanted_by_prompt = WantedByPrompt.of(examples, column)
        labels = wanted_by_prompt.labels
        target = wanted_by_prompt.shares
        members = wanted_by_prompt.members
        none = len(labels.names)
        named = []
        for row in texts:
            numbers = [labels.said(text) for text in row]
            named.append(np.array([none if n is None else n for n in numbers], np.int64))
        overall = _group("", labels, target, named)
        groups = {
            name: _group(name, labels, target[places], [named[place] for place in places])
            for name, places in members.items()
        }
        reward: list[Array] = [np.zeros(0) for _ in examples]
        divergence: list[Array] = [np.zeros(0) for _ in examples]
        for name, places in members.items():
            group = groups[name]
            signs = np.sign(group.drawn - group.wanted)
            drawn_slope = _half_log(group.drawn, group.wanted)
            wanted_slope = _half_log(group.wanted, group.drawn)
            for place in places:
                shares = target[place]
                reward[place] = -0.5 * (signs[named[place]] - signs @ shares)
                divergence[place] = drawn_slope[named[place]] + wanted_slope @ shares
        judged = tuple(group for group in groups.values() if group.prompts)
        return cls(overall, judged, tuple(reward), tuple(divergence))

    @property
    def rows(self) -> tuple[GroupShares, ...]:
        """All prompts together, then each group where there are several."""
        if len(self.groups) > 1:
            return (self.overall, *self.groups)
        return (self.overall,)


def check_wanted(reward: Reward, examples: Sequence[Example], settings: Sequence[Setting]) -> None:
    """Refuse what no distribution can be judged by, before anything is asked for; nothing where
    the reward compares with no shares.

    examples: of all splits. settings: to judge at.

    Raises:
        InputError: an example has no wanted shares, none has the column of the groups, or a
            setting is greedy.
        DataError: the labels differ between rows.
    """
    if reward.grouped_by is None:
        return
    Labels.of_shares(examples)
    check_alike(examples)
    column = reward.grouped_by
    has_column = any(example.prompt.columns.get(column) for example in examples)
    if column != GROUP and not has_column:
        names = dict.fromkeys(name for example in examples for name in example.prompt.columns)
        raise InputError(
            f"``reward={reward.spec}`` compares by the groups in {column!r}, and no row has a text"
            f" in that column (short columns: {', '.join(names) or 'none'}); name one of them, or"
            " leave the column out to compare all rows together"
        )
    if any(setting.deterministic for setting in settings):
        raise InputError(
            "greedy decoding gives one answer a prompt, which has no distribution to compare with"
            f" wanted shares; with ``reward={reward.spec}``, judge at a temperature above 0, as in"
            " ``deploy=temperature=1``"
        )


def _members(examples: Sequence[Example], column: str) -> Mapping[str, list[int]]:
    """Group -> the places of its prompts, in the order of their names; "" -> all of them where no
    prompt has a text in the column.
    """
    names = [example.prompt.columns.get(column, "") for example in examples]
    if not any(names):
        return {"": list(range(len(examples)))}
    members: dict[str, list[int]] = {}
    for place, name in sorted(enumerate(names), key=lambda pair: pair[1]):
        members.setdefault(name or NO_GROUP, []).append(place)
    return members


def _group(
    name: str, labels: Labels, target: Array, named: Sequence[npt.NDArray[np.int64]]
) -> GroupShares:
    """The means over the prompts that have a completion; NaN where none has.

    target: (x, l) shares of the prompts. named: (x,) the categories of their completions.
    """
    size = len(labels.names) + 1
    answered = [place for place, row in enumerate(named) if row.size]
    shares = [np.bincount(named[place], minlength=size) / named[place].size for place in answered]
    nothing = np.full(size, math.nan)
    return GroupShares(
        group=name,
        labels=labels.names,
        wanted=target[answered].mean(axis=0) if answered else nothing,
        drawn=np.mean(shares, axis=0) if answered else nothing,
        prompts=len(answered),
        completions=sum(row.size for row in named),
    )


def _half_log(shares: Array, rivals: Array) -> Array:
    """(l,) ``1/2 log(shares / mean of both)``, 0 where a share is 0."""
    ratios = np.divide(2 * shares, shares + rivals, out=np.ones(len(shares)), where=shares > 0)
    return 0.5 * np.log(ratios)
