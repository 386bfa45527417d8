"""What a vector has left of the words to avoid: hits that no vector of tokens reaches alone."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from blackbox_lb.jobs.fitting.job import FitJob
from blackbox_lb.jobs.fitting.judge import Judgement
from blackbox_lb.jobs.fitting.scored_policies import BIASED
from blackbox_lb.providers.stepping_back import endpoints_that_step_back, profiles_that_step_back
from blackbox_lb.rollouts.reading import token_spans, tokens_within
from blackbox_lb.tasks.rewards.forms.avoid import AvoidList
from blackbox_lb.types import Completion

MOST_OF_THEM = 0.5
"""Share of the hits from which on phrases are advised: above a half, even a vector that removed all
it can reach would leave more than the list of phrases does.
"""
FEWEST = 10
"""Hits below which their share says nothing: one text more could turn it."""


def phrases_left(
    reward: AvoidList, completions: Sequence[Completion], spelled: Mapping[int, bytes]
) -> tuple[int, int]:
    """The hits in completions, and how many of them are no part of one token: phrases, and words of
    several tokens. A vector moves each token wherever it stands, and so other words with it.

    spelled: token id -> bytes. Where these do not tell the tokens of a hit, it is a phrase if it
    has several words.
    """
    hits = 0
    phrases = 0
    for completion in completions:
        spans = token_spans(completion, spelled)
        for hit in reward.phrases.hits(completion.text):
            hits += 1
            parts = len(tokens_within(spans, hit.start, hit.end))
            if not parts:
                parts = len(completion.text[hit.start : hit.end].split())
            phrases += parts > 1
    return hits, phrases


def advice(job: FitJob, test: Judgement) -> str:
    """One sentence where phrases would remove more than the vector has left to remove; "" where
    they would not, where the bias keeps phrases out already, and for other rewards.
    """
    trials = job.trials
    reward = trials.reward
    if not isinstance(reward, AvoidList) or job.plan.parsed_phrases is not None:
        return ""
    completions = [
        completion
        for setting in test.tests
        for row in setting.policies[BIASED].completions
        for completion in row
        if completion.readable
    ]
    spelled = trials.store.token_bytes(trials.tokenizer.fingerprint)
    hits, phrases = phrases_left(reward, completions, spelled)
    if hits < FEWEST or phrases <= MOST_OF_THEM * hits:
        return ""
    sentence = (
        f"{100 * phrases / hits:.0f} % of the {hits:,} hits that are left are phrases or words of"
        " several tokens, which a vector moves only in part"
    )
    listed = shlex.quote(reward.name.partition(":")[2])
    profile = trials.session.profile
    if trials.session.biased_endpoint in endpoints_that_step_back(profile):
        return f"{sentence}: ``phrases={listed}`` keeps them out (docs/phrases.md)"
    return (
        f"{sentence}: ``phrases={listed}`` keeps them out (docs/phrases.md), which"
        f" {profile.name} does not take and these do: {', '.join(profiles_that_step_back())}"
    )
