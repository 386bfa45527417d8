"""``blb check``: whether a bias can correct a decision, from a few greedy answers and first lists,
before a collection.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from blackbox_lb.estimate.decisions.feasibility import (
    AfterLabel,
    Feasibility,
    OpeningFeasibility,
    opening_feasibility,
)
from blackbox_lb.jobs.fitting.evidence.answers_to_learn import judged
from blackbox_lb.jobs.fitting.evidence.opening import opening_lists
from blackbox_lb.rollouts.answers.given_answers import first_tokens
from blackbox_lb.rollouts.answers.openings import Opening, opening_of
from blackbox_lb.rollouts.judging.decisions import confusable, remark_on_others
from blackbox_lb.rollouts.judging.trials import Trials, stage_part
from blackbox_lb.rollouts.judging.verdict import GREEDY
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.sets.labels import OPENING, Labels, OpenLabels
from blackbox_lb.types import Example

LOOKED_AT = 60
"""Prompts that a check looks at: they give a share of right decisions to about 6 %, for 120 short
requests.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Checked:
    """The findings of a check, with a sentence on its lists.

    commonest: the label that most prompts have.
    answers: prompt, greedy answer and right label of each prompt that was looked at and decided
    wrong, in their order.
    """

    found: Feasibility
    read: str
    commonest: str
    answers: tuple[tuple[str, str, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The findings for JSON; null for a margin of an unlisted answer."""
        margins = [
            round(float(margin), 4) if np.isfinite(margin) else None
            for margin in self.found.margins
        ]
        return {
            **asdict(self.found),
            "margins": margins,
            "commonest": self.commonest,
            "sentence": self.found.sentence,
            "lists": self.read,
        }


@dataclass(frozen=True, slots=True)
class CheckedOpening:
    """The findings of a check of open labels, and the tokens that begin the opening."""

    found: OpeningFeasibility
    opening: Opening

    def as_json(self) -> dict[str, Any]:
        """The findings for JSON."""
        return {
            **asdict(self.found),
            "tokens": self.opening.tokens.tolist(),
            "lists": self.opening.sentence,
        }


async def check_opening(
    trials: Trials, examples: Sequence[Example], labels: OpenLabels, listed: int | None
) -> CheckedOpening:
    """Look at the first ``LOOKED_AT`` of ``examples``, one first list each; drawn unless stored.

    Raises InputError: all of them want the same, or no token begins the opening. NoLogprobs: no
    list at all. ProviderError: the API failed.
    """
    _, prompts = await opening_lists(trials, examples[:LOOKED_AT], "check", listed, labels)
    opening = await opening_of(trials, labels, [prompts.lists])
    trials.report.detail(opening.sentence)
    lists = prompts.lists.with_tokens(opening.tokens)
    feasible = opening_feasibility(lists, opening.tokens, prompts.labels == OPENING)
    return CheckedOpening(feasible, opening)


async def check(
    trials: Trials, examples: Sequence[Example], labels: Labels, listed: int | None
) -> Checked:
    """Look at the first ``LOOKED_AT`` of ``examples``: their greedy answers, and one first list
    each; drawn unless stored.

    Raises InputError: fewer than two labels among them. NoLogprobs: no list at all. ProviderError:
    the API failed.
    """
    looked = examples[:LOOKED_AT]
    title = "check, greedy answers"
    for sentence in confusable(labels, trials.reward.matcher):
        trials.report.notice(sentence)
    part = stage_part(
        trials.draw, title, looked, GREEDY, 1, endpoint=trials.session.biased_endpoint
    )
    [keys] = await trials.collect_all(title, [part])
    completions = list(trials.store.by_prompt(keys))
    scores = trials.scored(title, looked, completions)
    answers = [
        (example, completion.text)
        for example, row in zip(looked, completions, strict=True)
        for completion in row
        if completion.readable
    ]
    remark_on_others(trials, title, labels, answers)
    lists = await first_tokens(trials, looked, "check", listed)
    right = None
    if scores.correct is not None:
        is_right = np.array([bool(row.size and row[0]) for row in scores.correct], np.bool_)
        right = is_right[lists.places]
    after = after_label(trials.reward, labels, answers, max(map(len, lists.spelled)))
    wrong = tuple(
        (example.prompt.messages[-1].content, text, ", ".join(example.answers[:1]))
        for example, text in answers
        if not trials.reward.right(example, text)
    )
    feasible = replace(judged(lists, labels, right), after=after)
    for sentence in (lists.sentence, feasible.sentence):
        trials.report.detail(sentence)
    return Checked(feasible, lists.sentence, labels.names[feasible.commonest], wrong)


def after_label(
    reward: Reward, labels: Labels, completions: Sequence[tuple[Example, str]], longest: int
) -> AfterLabel | None:
    """Test the greedy answers ``completions`` that begin with a label as if it were the right one;
    None where one token is all there is.

    A task's own test of correctness reads more of a row than its answer: there only right labels
    are looked at. longest: tokens of the longest label.
    """
    matcher = reward.matcher
    if reward.max_tokens == 1:
        return None
    answers = {labels.of(example): example.answers for example, _ in completions}
    begun = [
        (example, text, number)
        for example, text in completions
        if (number := labels.begun(text)) is not None
    ]
    begun = [
        labelled
        for labelled in begun
        if matcher.judge is None or labelled[2] == labels.of(labelled[0])
    ]
    tested = [
        (replace(labelled, answers=answers.get(number) or (labels.names[number],)), text)
        for labelled, text, number in begun
    ]
    refused = [text for example, text in tested if not matcher(example, text)]
    if longest < reward.max_tokens:
        remedies = [f"``max_tokens={longest}`` leaves no room for more than the longest label"]
    else:
        remedies = []
    if matcher.spec == "exact-match":
        option = "``reward`` accuracy" if reward.name == matcher.spec else "leaving out ``correct``"
        remedies.append(f"{option} accepts an answer by the first label that it names")
    remedy = ", or ".join(remedies) or "let the prompt ask for the label alone"
    example_text = ""
    if refused:
        example_text = refused[0]
    return AfterLabel(len(tested), len(tested) - len(refused), matcher.spec, example_text, remedy)
