"""``labels_only``: all tokens but the labels' are suppressed, by a bias without training."""

from collections.abc import Mapping
from functools import partial
from itertools import zip_longest

from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.jobs.evaluation.arms import Alternative
from blackbox_lb.rollouts.answers.given_answers import AnswerTokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.tasks.sets.labels import Labels


def labels_only(case: Case, _given: object) -> Alternative:
    """The provider's highest bias on the tokens of the labels."""
    return Alternative(
        "labels only",
        own_bias=partial(lifted, labels=case.labels),
        cost="a completion a test prompt and sample",
    )


async def lifted(trials: Trials, labels: Labels) -> tuple[Mapping[int, float], int]:
    """Token id -> the provider's highest bias in nats, and the tokens of the longest label.

    For labels of one token these are the tokens that begin a spelling. A fixed bias acts alike at
    every position, so for longer ones all tokens are allowed: the model may then mix them. Where
    the provider takes fewer entries than there are spellings, each label keeps its first ones.

    Raises InputError: no tokens that can be biased spell a label, or there are fewer entries than
    labels.
    """
    tokens = AnswerTokens(trials)
    rules = trials.session.profile.bias
    highest = trials.session.highest_id
    found = []
    for name, texts in zip(labels.names, labels.accepted, strict=True):
        spelled = await tokens.of((name, *sorted(texts)))
        sendable = [ids for ids in spelled.values() if highest is None or max(ids) <= highest]
        if not sendable:
            raise InputError(
                f"no token of {trials.session.model} that can be biased begins the label {name!r};"
                " rename it, or drop ``labels_only``"
            )
        found.append(sendable)
    turns = [ids for turn in zip_longest(*found) for ids in turn if ids is not None]
    kept: dict[int, None] = {}
    for place, ids in enumerate(turns):
        grown = kept | dict.fromkeys(ids)
        if rules.entries is not None and len(grown) > rules.entries:
            if place < len(found):
                raise InputError(
                    f"{len(found)} labels need more than the {rules.entries} entries that"
                    f" {trials.session.profile.name} takes; drop ``labels_only``"
                )
            break
        kept = grown
    high = rules.high if rules.fractions else float(int(rules.high))
    return dict.fromkeys(kept, high), max(len(spelled[0]) for spelled in found)
