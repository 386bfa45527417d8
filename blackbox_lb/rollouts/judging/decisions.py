"""Decisions: the labels of fresh completions, with and without a bias, and the model's confidence
in them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from blackbox_lb.estimate.decisions.prediction import FirstLists
from blackbox_lb.estimate.decisions.scores import DecisionScores
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
    own = labels.of(example)
    named = labels.said(text)
    if reward.accuracy_matcher(example, text):
        return own
    return None if named == own else named


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
        (one, other) for one in labels.names for other in labels.names if one != other
    ] + longer
    wrong = [(one, other) for one, other in pairs if matcher.test((one,), other)]
    for one, other in wrong[:1]:
        words = parse_matcher("contains").test((one,), other)
        remedy = (
            "labels that share no word"
            if words
            else r"whole words, as contains and \b{answer}\b in a pattern take them"
        )
        yield (
            f"{matcher.spec} counts the answer {other!r} as right where {one!r} is: use"
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
        if (own := labels.of(example)) is not None
        and labels.said(text) not in (None, own)
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
    found = [
        await tokens.of((name, *sorted(texts)))
        for name, texts in zip(labels.names, labels.accepted, strict=True)
    ]
    return [np.array(sorted(each), np.int64) for each in found]


async def own_label_tokens(trials: Trials, labels: Labels) -> list[Ids] | None:
    """(l,) the tokens that begin a spelling of each label and of no other; None where a label has
    none.
    """
    found = await label_tokens(trials, labels)
    counts = Counter(token for ids in found for token in ids.tolist())
    own = [ids[[counts[token] == 1 for token in ids.tolist()]] for ids in found]
    return own if all(ids.size for ids in own) else None


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
    said = []
    sure = []
    texts = list[tuple[Example, str]]()
    for example, row in zip(examples, keys, strict=True):
        number = labels.of(example)
        own = bias if bias is None or isinstance(bias, Mapping) else bias.at(example.prompt)
        for completion in trials.store.completions(row) if number is not None else ():
            if not completion.readable:
                continue
            told = decision(labels, trials.reward, example, completion.text)
            right.append(number)
            said.append(-1 if told is None else told)
            texts.append((example, completion.text))
            sure.append(
                _confidence(
                    completion, told, own if trials.session.tells_base_logprobs else None, begins
                )
            )
    remark_on_others(trials, f"test at {setting.name}{', biased' if bias else ''}", labels, texts)
    return DecisionScores.of(labels.names, right, said, sure)  # type: ignore[arg-type]


def scores_of(
    labels: Labels, reward: Reward, said: Iterable[tuple[Example, str]]
) -> DecisionScores:
    """The scores of these answers as decisions; those of examples without one of the labels are
    left out.
    """
    rows = [
        (number, decision(labels, reward, each, text))
        for each, text in said
        if (number := labels.of(each)) is not None
    ]
    told = [-1 if number is None else number for _, number in rows]
    return DecisionScores.of(labels.names, [right for right, _ in rows], told)


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
