"""Decisions: the labels of fresh completions, with and without a bias, and the model's confidence
in them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from blackbox_lb.estimate.decisions.prediction import DecisionScores, FirstLists
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.rollouts.answers.given_answers import AnswerTokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import Setting
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.rewards.matching import Matcher, parse_matcher
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
    trials: Trials, title: str, labels: Labels, said: Sequence[tuple[Example, str]]
) -> None:
    """Remark on answers that count as right although the label that they name first is another."""
    matcher = trials.reward.matcher
    if not matcher.needs_answer:
        return
    others = [
        text
        for example, text in said
        if (label := labels.of(example)) is not None
        and labels.said(text) not in (None, label)
        and matcher(example, text)
    ]
    if len(others) > OFTEN * len(said):
        trials.report.notice(
            f"{title}: {matcher.spec} counts {len(others)} of {len(said)} answers as right that"
            f" name another label first, such as {shorten(others[0])}: exact-match does not, nor"
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


def scores_of(
    labels: Labels, reward: Reward, said: Iterable[tuple[Example, str]]
) -> DecisionScores:
    """The scores of these answers as decisions; those of examples without one of the labels are
    left out.
    """
    rows = [
        (number, decision(labels, reward, example, text))
        for example, text in said
        if (number := labels.of(example)) is not None
    ]
    decided = [-1 if number is None else number for _, number in rows]
    return DecisionScores.of(labels.names, [right for right, _ in rows], decided)


def completion_of(text: str, tokens: int) -> Completion:
    """A stand-in for a decision that no model wrote: ``text``, counted as so many tokens."""
    return replace(Completion.empty("stop"), text=text, whole=True, generated=tokens)


def _confidence(
    completion: Completion,
    told: int | None,
    bias: Mapping[int, float] | None,
    begins: Sequence[Ids],
) -> float:
    """The probability of the decided label among all labels, at the first position; NaN where no
    list shows it.
    """
    if told is None or not len(completion.top_ids):
        return float("nan")
    shares: Vector = FirstLists(completion.top_ids[:1], completion.top_logprobs[:1]).share(
        bias or {}, begins
    )
    return float(shares[0, told])
