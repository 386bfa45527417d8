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
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from blackbox_lb.bias.records import Commonest, Verdict
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists, among
from blackbox_lb.estimate.decisions.prediction import beats_commonest, decisions_of
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.records import Decisions, SharesOfGroup
from blackbox_lb.rollouts.answers.given_answers import AnswerTokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import Setting
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.records.shares import check_alike
from blackbox_lb.tasks.rewards.forms.distribution import GROUP
from blackbox_lb.tasks.rewards.matching import Matcher, parse_matcher
from blackbox_lb.tasks.rewards.registry import judges_answers
from blackbox_lb.tasks.sets.labels import Labels, OpenLabels
from blackbox_lb.types import Completion, Example

OFTEN = 0.05
"""Share of answers that count as right and name another label first, above which it is said."""


def decision(labels: Labels, reward: Reward, example: Example, text: str) -> int | None:
    """The number of the label that a text decides for; None where it is none.

    It is the example's own exactly where the text is right, so that the accuracy of decisions is
    that of the verdict, whatever test of correctness a task has.
    """
    label = labels.of(example)
    named = labels.said(text)
    if reward.right(example, text):
        return label
    if named == label:
        return None
    return named


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


async def unshared_tokens(trials: Trials, labels: Labels) -> list[Ids]:
    """(l,) the tokens that begin a spelling of each label and of no other."""
    token_sets = await label_tokens(trials, labels)
    counts = Counter(token for ids in token_sets for token in ids.tolist())
    return [ids[[counts[token] == 1 for token in ids.tolist()]] for ids in token_sets]


async def own_label_tokens(trials: Trials, labels: Labels) -> list[Ids] | None:
    """See ``unshared_tokens``; None where a label has none."""
    unshared = await unshared_tokens(trials, labels)
    if not all(ids.size for ids in unshared):
        return None
    return unshared


def decision_scores(
    trials: Trials,
    title: str,
    examples: Sequence[Example],
    rows: Sequence[Sequence[Completion]],
    bias: RequestBias,
    labels: Labels,
    begins: Sequence[Ids],
) -> Decisions:
    """The decisions of completions; examples without one of the labels, and completions that cannot
    be read, are left out.

    Args:
        trials: the model under test.
        title: of the stage, for a remark.
        examples: (x,) the prompts, and what is right.
        rows: (x,) the completions of each.
        bias: that they were drawn with.
        labels: of the task.
        begins: (l,) the tokens that begin each label.
    """
    right = []
    decided = []
    sure = []
    texts = list[tuple[Example, str]]()
    for example, completions in zip(examples, rows, strict=True):
        number = labels.of(example)
        if number is None:
            continue
        prompt_bias = None
        if trials.session.tells_base_logprobs:
            prompt_bias = bias.at(example.prompt)
        for completion in completions:
            if not completion.readable:
                continue
            label = decision(labels, trials.reward, example, completion.text)
            right.append(number)
            decided.append(-1 if label is None else label)
            texts.append((example, completion.text))
            sure.append(_confidence(completion, label, prompt_bias, begins))
    remark_on_others(trials, title, labels, texts)
    return decisions_of(labels.names, right, decided, sure)


V = TypeVar("V", bound=Verdict)


def beside_commonest(rows: Sequence[V], decisions: Mapping[str, Decisions], reward: str) -> list[V]:
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
        if scores is not None and row.metric in counts_right and scores.accuracy is not None:
            commonest = Commonest(
                label=scores.commonest.label,
                share=scores.majority,
                accuracy=scores.accuracy,
                is_beaten=beats_commonest(scores, max(row.n_biased / max(row.n_prompts, 1), 1.0)),
            )
            row = row.replacing(commonest=commonest)
        result.append(row)
    return result


def scores_of(
    labels: Labels, reward: Reward, completions: Iterable[tuple[Example, str]]
) -> Decisions:
    """The scores of these answers as decisions; those of examples without one of the labels are
    left out.
    """
    rows = [
        (number, decision(labels, reward, example, text))
        for example, text in completions
        if (number := labels.of(example)) is not None
    ]
    decided = [-1 if number is None else number for _, number in rows]
    return decisions_of(labels.names, [right for right, _ in rows], decided)


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
    lists = FirstLists(completion.top_ids[:1], completion.top_logprobs[:1])
    return float(among(lists.shares(begins, bias)[:, :-1])[0, decided])


Array = npt.NDArray[np.float64]
NO_GROUP = "(none)"
"""The group of prompts without a text in the column, where others have one."""


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

    rows: all prompts together, then each group of the column where there are several; none without
    a completion. reward, divergence: (x,) of each prompt, one number a completion: its part of
    minus the total variation and of the Jensen-Shannon divergence, whose means over prompts are the
    means over groups, weighted by their prompts.
    """

    rows: tuple[SharesOfGroup, ...]
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
        none = len(labels.names)
        named = []
        for row in texts:
            numbers = [labels.said(text) for text in row]
            named.append(np.array([none if n is None else n for n in numbers], np.int64))
        reward: list[Array] = [np.zeros(0) for _ in examples]
        divergence: list[Array] = [np.zeros(0) for _ in examples]
        groups = []
        for name, members in wanted_by_prompt.members.items():
            places = [place for place in members if named[place].size]
            if not places:
                continue
            wanted, drawn = _mean_shares(wanted_by_prompt.shares, named, places)
            groups.append(_record(name, labels, wanted, drawn, [named[place] for place in places]))
            signs = np.sign(drawn - wanted)
            drawn_slope = _half_log(drawn, wanted)
            wanted_slope = _half_log(wanted, drawn)
            for place in places:
                shares = wanted_by_prompt.shares[place]
                reward[place] = -0.5 * (signs[named[place]] - signs @ shares)
                divergence[place] = drawn_slope[named[place]] + wanted_slope @ shares
        answered = [place for place, row in enumerate(named) if row.size]
        rows = []
        if answered:
            wanted, drawn = _mean_shares(wanted_by_prompt.shares, named, answered)
            rows.append(_record("", labels, wanted, drawn, [named[place] for place in answered]))
        if len(groups) > 1:
            rows += groups
        return cls(tuple(rows), tuple(reward), tuple(divergence))


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
            f"``reward={reward.name}`` compares by the groups in {column!r}, and no row has a text"
            f" in that column (short columns: {', '.join(names) or 'none'}); name one of them, or"
            " leave the column out to compare all rows together"
        )
    if any(setting.deterministic for setting in settings):
        raise InputError(
            "greedy decoding gives one answer a prompt, which has no distribution to compare with"
            f" wanted shares; with ``reward={reward.name}``, judge at a temperature above 0, as in"
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


def _mean_shares(
    wanted: Array, named: Sequence[npt.NDArray[np.int64]], places: Sequence[int]
) -> tuple[Array, Array]:
    """(l,) the means of the wanted shares (x, l), and of the drawn ones, over the prompts at
    ``places``.
    """
    size = wanted.shape[1]
    drawn = [np.bincount(named[place], minlength=size) / named[place].size for place in places]
    return wanted[list(places)].mean(axis=0), np.mean(drawn, axis=0)


def _record(
    name: str,
    labels: Labels,
    wanted: Array,
    drawn: Array,
    named: Sequence[npt.NDArray[np.int64]],
) -> SharesOfGroup:
    """The shares (l,) of a group and their distances.

    named: the categories of the completions of each prompt.
    """
    completions = sum(row.size for row in named)
    divergence = drawn @ _half_log(drawn, wanted) + wanted @ _half_log(wanted, drawn)
    variances = wanted * (1 - wanted) / completions
    return SharesOfGroup(
        group=name,
        prompts=len(named),
        completions=completions,
        wanted=dict(zip(labels.names, wanted.tolist(), strict=False)),
        drawn=dict(zip(labels.names, drawn.tolist(), strict=False)),
        no_label=float(drawn[-1]),
        total_variation=0.5 * float(np.abs(drawn - wanted).sum()),
        jensen_shannon=float(divergence),
        chance_level=0.5 * math.sqrt(2 / math.pi) * float(np.sqrt(variances).sum()),
    )


def _half_log(shares: Array, rivals: Array) -> Array:
    """(l,) ``1/2 log(shares / mean of both)``, 0 where a share is 0."""
    ratios = np.divide(2 * shares, shares + rivals, out=np.ones(len(shares)), where=shares > 0)
    return 0.5 * np.log(ratios)
