"""The results of policies on the test prompts: their answers, drawn or decided here, and scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from blackbox_lb.bias.phrases import PhraseList
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.jobs.evaluation.document import Answer
from blackbox_lb.jobs.evaluation.policies import BASE, Decides, Policy, PromptDraw
from blackbox_lb.jobs.evaluation.texts import TextReader
from blackbox_lb.jobs.runs.answers import scored_answers
from blackbox_lb.literals import Endpoint
from blackbox_lb.records import Decisions
from blackbox_lb.rollouts.judging.decisions import completion_of, remark_on_others, scores_of
from blackbox_lb.rollouts.judging.trials import Draws, StagePart, Trials
from blackbox_lb.rollouts.judging.verdict import Array, PolicyScores, Setting, truncation_of
from blackbox_lb.rollouts.remote_rewards import fetch_rewards
from blackbox_lb.tasks import Reward
from blackbox_lb.tasks.rewards.forms.avoid import AvoidList
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Completion, Example

Judged: TypeAlias = tuple[Setting, Policy]
"""A policy at one of the judged settings."""


@dataclass(frozen=True, slots=True)
class PolicyAnswers:
    """What a policy answered at a setting.

    Attributes:
        setting, policy: of the answers.
        scores: of all answers.
        prompt_tokens, completion_tokens: means over prompts of the tokens paid for an answer.
        first: the first answer of each prompt, None for an unreadable one.
        answers: their number.
        decisions: the labels chosen, None where the task has no labels.
        texts: figure -> (x,) of (answers,) of each prompt, see ``TextReader``; None where no
            phrases are concerned.
    """

    setting: Setting
    policy: Policy
    scores: PolicyScores
    prompt_tokens: float
    completion_tokens: float
    first: tuple[Answer | None, ...]
    answers: int
    decisions: Decisions | None = None
    texts: Mapping[str, tuple[Array, ...]] | None = None


def concerned(reward: Reward, judged: Sequence[Judged]) -> PhraseList | None:
    """The phrases that are counted in all texts: those of the reward, else all that a policy keeps
    out; None where there are none.
    """
    if isinstance(reward, AvoidList):
        return reward.phrases
    entries = dict.fromkeys(entry for _, policy in judged for entry in policy.bias.phrase_entries)
    if not entries:
        return None
    return PhraseList.of_entries(entries)


def draws_of(
    policy: Policy, setting: Setting, examples: Sequence[Example], samples: int
) -> dict[int, list[tuple[int, PromptDraw]]]:
    """Number of completions -> the requests for so many, each with the place of its example.

    Greedy takes one completion a prompt; an answer of several gets as many as fill its last group.
    """
    count = 1
    if not policy.drawn_at(setting).deterministic:
        count = samples + -samples % policy.group
    by_count: dict[int, list[tuple[int, PromptDraw]]] = {}
    for place, example in enumerate(examples):
        for draw in policy.requests(example, count):
            by_count.setdefault(draw.samples, []).append((place, draw))
    return by_count


def answer_parts(
    draws: Draws,
    examples: Sequence[Example],
    judged: Sequence[Judged],
    samples: int,
    endpoint: Endpoint,
) -> Iterator[tuple[int, list[int], StagePart]]:
    """What every policy asks for, with the number of the policy and the places of the examples.

    endpoint: that takes a bias.
    """
    for number, (setting, policy) in enumerate(judged):
        draw_with = draws(policy.drawn_at(setting), policy.bias, endpoint, policy.max_tokens)
        for count, rows in draws_of(policy, setting, examples, samples).items():
            part = StagePart(
                _title(setting, policy),
                [draw.example for _, draw in rows],
                draw_with,
                count,
                scored_as=[examples[place] for place, _ in rows],
            )
            yield number, [place for place, _ in rows], part


async def collect_answers(
    trials: Trials, examples: Sequence[Example], judged: Sequence[Judged], samples: int
) -> list[list[list[str]]]:
    """(x, samples) the keys of the completions of each example, of every policy; the requests of
    all policies are in flight together.
    """
    parts = list(
        answer_parts(trials.draw, examples, judged, samples, trials.session.biased_endpoint)
    )
    title = f"test prompts, {len(judged)} policies"
    if len(judged) == 1:
        title = _title(*judged[0])
    tables: list[list[list[str]]] = [[[] for _ in examples] for _ in judged]
    if not judged:
        return tables
    collected = await trials.collect_all(title, [part for _, _, part in parts])
    for (number, of_part, _), keys in zip(parts, collected, strict=True):
        for place, of_example in zip(of_part, keys, strict=True):
            tables[number][place] += of_example
    return tables


def answers_of(
    trials: Trials,
    examples: Sequence[Example],
    judged: Judged,
    table: Sequence[Sequence[str]],
    labels: Labels | None,
    marked: RequestBias,
    phrases: PhraseList | None = None,
) -> PolicyAnswers:
    """The answers of a policy from its completions, scored on the plain examples, without an
    instruction.

    table: (x, samples) the keys of the completions of each example. marked: the bias whose tokens
    are marked in the answers. phrases: see ``concerned``.

    Raises InputError: a score is not finite. NoLogprobs: completions that should be ranked came
    without.
    """
    setting, policy = judged
    title = _title(setting, policy)
    paid: list[tuple[float, float]] = []
    best_completions: list[Completion | None] = []
    decided: list[tuple[Example, str]] = []
    bounded = 0
    texts = None
    counts_hits = isinstance(trials.reward, AvoidList)
    if phrases is not None:
        texts = TextReader(
            phrases=None if counts_hits else phrases,
            steps_back=policy.bias.phrases is not None,
            tells_logprobs=trials.session.tells_base_logprobs and _is_plain(policy, examples),
        )

    def answered() -> Iterator[list[Completion]]:
        nonlocal bounded
        for example, completions in zip(examples, trials.store.by_prompt(table), strict=True):
            bounded += sum(
                int(completion.bounded.sum())
                for completion in completions
                if completion.bounded is not None
            )
            groups = [
                completions[start : start + policy.group]
                for start in range(0, len(completions), policy.group)
            ]
            answers = [policy.answer(group) for group in groups]
            readable = [
                (group, best) for group, best in zip(groups, answers, strict=True) if best.readable
            ]
            if readable:
                paid.append(
                    _paid(
                        [group for group, _ in readable],
                        trials.session.profile.sampling.shares_prompt,
                    )
                )
            if texts is not None:
                texts.read(readable)
            first = None
            if readable:
                first = readable[0][1].without_lists()
            best_completions.append(first)
            decided.extend((example, best.text) for _, best in readable if labels is not None)
            yield answers

    scores = trials.scored(title, examples, answered())
    if bounded and policy.group > 1:
        trials.report.notice(
            f"{title}: {bounded} tokens have no logprob, only an upper bound, which ranks their"
            " completions"
        )
    cut = truncation_of(
        trials.reward, (completion for completion in best_completions if completion is not None)
    )
    if cut is not None and cut.hides_lengths and policy.name == BASE:
        trials.report.notice(f"{title}: {cut.warning}")
    prompt_tokens, completion_tokens = np.mean(paid, axis=0).tolist() if paid else (0.0, 0.0)
    answers = sum(row.size for row in scores.tokens)
    decisions = None
    if labels is not None:
        remark_on_others(trials, title, labels, decided)
        decisions = scores_of(labels, trials.reward, decided)
    figures = None
    if texts is not None:
        hits = None
        if counts_hits:
            hits = [np.abs(row) for row in scores.reward]
        figures = texts.values(hits)
    return PolicyAnswers(
        setting,
        policy,
        scores,
        prompt_tokens,
        completion_tokens,
        _first(trials, examples, policy.name, best_completions, scores, marked),
        answers,
        decisions,
        figures,
    )


def _is_plain(policy: Policy, examples: Sequence[Example]) -> bool:
    """Whether a policy sends the prompts as they are."""
    return all(
        draw.example.prompt == example.prompt
        for example in examples
        for draw in policy.requests(example, policy.group)
    )


async def decide(
    trials: Trials,
    examples: Sequence[Example],
    setting: Setting,
    policy: Decides,
    labels: Labels,
    marked: RequestBias,
) -> PolicyAnswers:
    """Decide for every example, and score each decision like a completion with its label's text.

    Raises InputError: the labels begin alike, or a score is not finite. ProviderError: the API
    failed.
    """
    decision = await policy.decision.decide(trials)
    paid = round(decision.completion_tokens)
    texts = ["" if number < 0 else labels.names[number] for number in decision.labels]
    answers = [completion_of(text, paid) for text in texts]
    await fetch_rewards(
        trials.store,
        trials.reward,
        zip(examples, answers, strict=True),
        trials.report,
        policy.name,
        trials.budget,
    )
    scores = trials.scored(policy.name, examples, ([answer] for answer in answers))
    first_answers = _first(trials, examples, policy.name, answers, scores, marked)
    decisions = scores_of(labels, trials.reward, zip(examples, texts, strict=True))
    return PolicyAnswers(
        setting,
        policy,
        scores,
        decision.prompt_tokens,
        decision.completion_tokens,
        first_answers,
        len(answers),
        decisions,
    )


def _title(setting: Setting, policy: Policy) -> str:
    return f"{setting.name}: {policy.name}"


def _paid(groups: Sequence[Sequence[Completion]], shared: bool) -> tuple[float, float]:
    """Mean prompt and completion tokens of an answer; ``shared``: the completions of one request
    pay for its prompt once.
    """
    prompts = [
        sum(completion.prompt_tokens for completion in group) / (len(group) if shared else 1)
        for group in groups
    ]
    tokens = [sum(completion.n_tokens for completion in group) for group in groups]
    return float(np.mean(prompts)), float(np.mean(tokens))


def _first(
    trials: Trials,
    examples: Sequence[Example],
    name: str,
    completions: Sequence[Completion | None],
    scores: PolicyScores,
    marked: RequestBias,
) -> tuple[Answer | None, ...]:
    """The first answer of each example; None for an unreadable one."""
    rows = [[] if completion is None else [completion] for completion in completions]
    answers = scored_answers(trials, name, examples, rows, scores, marked)
    return tuple(row[0] if row else None for row in answers)
