"""Trials: completions of policies at one setting, drawn unless they are in the store and scored."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

import numpy as np

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.drift import DriftWatch
from blackbox_lb.api.limits.budget import SpendLimit
from blackbox_lb.api.limits.concurrency import AdaptiveConcurrency
from blackbox_lb.api.session import Session
from blackbox_lb.bias.request_bias import AnyBias, RequestBias, to_request_bias
from blackbox_lb.errors import ConnectionFailed, Drifted, ServerFailed
from blackbox_lb.estimate.inputs.checks import Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.estimate.reweighting import divergence
from blackbox_lb.literals import Endpoint
from blackbox_lb.rollouts.collect import Series, collect_all
from blackbox_lb.rollouts.columns import columns, sampled_ids, stop_prefix_ids
from blackbox_lb.rollouts.judging.verdict import (
    SAMPLED,
    PolicyScores,
    Setting,
    Watch,
    check_values,
    score,
)
from blackbox_lb.rollouts.phased import bias_at_positions, phases_of
from blackbox_lb.rollouts.positions import FitEngine
from blackbox_lb.rollouts.progress import Reporter, Silent
from blackbox_lb.rollouts.remote_rewards import fetch_rewards
from blackbox_lb.rollouts.stepped import check_parts
from blackbox_lb.safety.http.retries import asked_again
from blackbox_lb.safety.printable import counted
from blackbox_lb.store import RolloutStore
from blackbox_lb.tasks import Reward
from blackbox_lb.types import Completion, EndTokens, Example, Sampling
from blackbox_lb.vocabulary.tokenizer import Tokenizer

DROPPED = 4.0
"""Standard errors below 0 of the log ratio of both policies over biased completions, whose mean is
their KL: from there on they are taken for completions of the model without a bias, which chance
does once in 30,000 runs. A bias from which the lists let expect less than as many above 0 is too
weak for this test: then nothing is said."""


@dataclass(frozen=True, slots=True)
class StagePart:
    """A part of a stage: completions that are drawn alike.

    name: for remarks on them.
    examples: the prompts.
    samples: completions of each.
    scored_as: what they are scored on, where that is not ``examples``.
    """

    name: str
    examples: Sequence[Example]
    draw: Draw
    samples: int
    scored_as: Sequence[Example] | None = None


Draws: TypeAlias = Callable[..., Draw]
"""``Trials.draw``, or the same before there is a session."""


class NamedBias(NamedTuple):
    """A bias and its name in messages.

    left_out: token id -> nats of what it would be without each fold of the rows, in their order;
    none where other rows choose.
    """

    name: str
    bias: RequestBias
    left_out: tuple[Mapping[int, float], ...] = ()


def stage_part(
    draws: Draws,
    name: str,
    examples: Sequence[Example],
    setting: Setting,
    samples: int,
    bias: AnyBias = None,
    endpoint: Endpoint | None = None,
) -> StagePart:
    """``samples`` completions of each example at a setting; greedy takes one."""
    draw = draws(setting, bias, endpoint)
    return StagePart(name, examples, draw, setting.samples_of(samples))


def policy_parts(
    draws: Draws,
    examples: Sequence[Example],
    setting: Setting,
    samples: int,
    biases: Sequence[NamedBias],
    endpoint: Endpoint,
) -> list[StagePart]:
    """The completions of each policy at one setting, from an ``endpoint`` that takes a bias."""
    return [
        stage_part(draws, policy.name, examples, setting, samples, policy.bias, endpoint)
        for policy in biases
    ]


def draw_at(
    setting: Setting,
    max_tokens: int,
    top_logprobs: int,
    seed: int | None,
    stop: tuple[str, ...],
    bias: AnyBias,
    endpoint: Endpoint | None,
) -> Draw:
    """Completions of at most ``max_tokens`` tokens at ``setting``, each with ``top_logprobs``
    alternatives. bias: token id -> nats, or None.
    """
    sampling = Sampling(setting.temperature, max_tokens, top_logprobs, seed, stop)
    return Draw(sampling, to_request_bias(bias), endpoint)


def checked_scores(
    reward: Reward,
    examples: Sequence[Example],
    completions: Iterable[Sequence[Completion]],
    title: str,
    report: Reporter,
    watch: Watch = lambda completion, score, correct: None,
) -> PolicyScores:
    """Scores of the completions of each example; a remark counts those without a score.

    Raises InputError: a score is not finite, so no policy has a mean.
    """
    scores = score(reward, examples, completions, watch)
    check_values(f"{title}: {reward.label}", np.concatenate([np.zeros(0), *scores.reward]))
    if scores.left_out:
        report.notice(f"{title}: {scores.unscored}")
    return scores


TRIED = 3
"""Prompts whose completions are scored before others are drawn, where a reward may fail."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}".encode()


@dataclass(frozen=True, slots=True)
class Trials:
    """One model under test, with everything for drawing and scoring its completions.

    top_logprobs: alternatives that each position lists. seed: of the draws, None for none.
    concurrency: requests in flight, None for the provider's number and more while that is faster.
    engine: reads and sums the training rollouts, None for this process. used: keys of the
    completions that were asked for through it, drawn now or found in the store. budget: the
    session's own; drift: the answering systems so far; pace: the number of requests in flight.
    """

    session: Session
    store: RolloutStore
    tokenizer: Tokenizer
    reward: Reward
    report: Reporter
    top_logprobs: int
    seed: int | None = None
    concurrency: int | None = None
    stop: tuple[str, ...] = ()
    engine: FitEngine | None = None
    used: set[str] = field(default_factory=set, compare=False, repr=False)
    budget: SpendLimit = field(default_factory=SpendLimit)
    drift: DriftWatch = field(default_factory=DriftWatch)
    pace: AdaptiveConcurrency = field(default_factory=AdaptiveConcurrency)

    @property
    def may_cut_stops(self) -> bool:
        """Whether the tokens of the stop text that ended a completion may be counted and not
        listed.
        """
        return bool(self.stop) and not self.session.profile.logprobs.stop_text_listed

    @property
    def end_tokens(self) -> EndTokens:
        """The listing of end tokens: the provider's own, and the tokens that may begin a stop
        text.
        """
        ends = self.session.end_tokens
        if not self.may_cut_stops:
            return ends
        return replace(
            ends,
            stop_prefix_ids=stop_prefix_ids(
                self.store.token_bytes(self.tokenizer.fingerprint), self.stop
            ),
        )

    def draw(
        self,
        setting: Setting,
        bias: AnyBias = None,
        endpoint: Endpoint | None = None,
        max_tokens: int | None = None,
        top_logprobs: int | None = None,
    ) -> Draw:
        """Completions at ``setting``, of at most ``max_tokens`` tokens (default: the reward's own
        limit), with ``top_logprobs`` alternatives (default: those of all). bias: token id -> nats,
        or None.
        """
        longest = max_tokens or self.reward.max_tokens
        listed = top_logprobs or self.top_logprobs
        draw = draw_at(setting, longest, listed, self.seed, self.stop, bias, endpoint)
        check_parts(self.session, draw.bias)
        return draw

    async def collect(
        self,
        title: str,
        examples: Sequence[Example],
        draw: Draw,
        samples: int,
        *,
        scored: bool = True,
        only_stored: bool = False,
    ) -> tuple[tuple[str, ...], ...]:
        """Keys of ``samples`` completions of every example: one part of ``collect_all``."""
        part = StagePart(title, examples, draw, samples)
        [keys] = await self.collect_all(title, [part], scored=scored, only_stored=only_stored)
        return keys

    async def collect_all(
        self,
        title: str,
        parts: Sequence[StagePart],
        *,
        scored: bool = True,
        only_stored: bool = False,
    ) -> list[tuple[tuple[str, ...], ...]]:
        """Keys of the completions of every example of each part, found in the store or drawn now
        unless ``only_stored``. The requests of all parts are in flight together.

        A remote reward is fetched for them, unless they are not to be ``scored``.

        Raises InputError: the reward knows stored completions alone, and others would be drawn.
        """
        if scored and not only_stored:
            self.reward.check_fresh(title)
            if self.reward.is_untried:
                await self._try_reward(title, parts[0])
        malformed = self.session.channel.malformed
        before = Counter(malformed.faults)
        series = [
            Series([example.prompt for example in part.examples], part.draw, part.samples)
            for part in parts
        ]
        total = sum(len(part.examples) * part.samples for part in parts)
        with (Silent() if only_stored else self.report).stage(title, total) as watch:
            collections = await collect_all(
                self.session,
                self.store,
                self.tokenizer,
                series,
                concurrency=self.concurrency,
                watch=watch,
                budget=self.budget,
                drift=self.drift,
                pace=self.pace,
                only_stored=only_stored,
            )
        if again := malformed.faults - before:
            self.report.notice(f"{title}: {asked_again(again)}")
        for part, done in zip(parts, collections, strict=True):
            self.used.update(*done.keys)
            for note, number in done.notes.items():
                ending = note if number > 1 else note.replace("are ", "is ", 1)
                self.report.notice(f"{part.name}: {counted(number, 'completion')} {ending}")
        await self._look_for_drift(sum(done.received for done in collections))
        if scored:
            pairs = (
                (example, completion)
                for part, done in zip(parts, collections, strict=True)
                for example, completions in zip(
                    part.scored_as or part.examples, self.store.by_prompt(done.keys), strict=True
                )
                for completion in completions
            )
            await fetch_rewards(self.store, self.reward, pairs, self.report, title, self.budget)
        return [done.keys for done in collections]

    async def _try_reward(self, title: str, part: StagePart) -> None:
        """Score the completions of the first prompts before the others are drawn and paid for:
        code that is not this package's may fail, or give what is no reward.
        """
        if len(part.examples) <= TRIED:
            return
        examples = (part.scored_as or part.examples)[:TRIED]
        first = replace(part, examples=part.examples[:TRIED], scored_as=examples)
        title = f"{title}, first {TRIED} of them"
        [keys] = await self.collect_all(title, [first], scored=False)
        completions = list(self.store.by_prompt(keys))
        pairs = (
            (example, completion)
            for example, row in zip(examples, completions, strict=True)
            for completion in row
        )
        await fetch_rewards(self.store, self.reward, pairs, self.report, title, self.budget)
        self.scored(title, examples, completions)

    async def _look_for_drift(self, received: int) -> None:
        """Report the noted changes, and check that the server still splits texts as before the
        stage.
        """
        while self.drift.notices:
            self.report.notice(self.drift.notices.pop(0))
        if not received or self.session.profile.tokenizer.source != "server":
            return
        try:
            now = await self.session.tokenizer()
        except (ConnectionFailed, ServerFailed) as error:
            self.report.notice(f"the tokenizer was not asked for again after this stage: {error}")
            return
        if now.fingerprint != self.tokenizer.fingerprint:
            self.drift.mixed = True
            raise Drifted(
                f"the tokenizer of {self.session.model} changed from {self.tokenizer.fingerprint}"
                f" to {now.fingerprint} while completions were drawn, so that nobody knows whose"
                " ids the last ones have; they are kept, and nothing is to be learned from them:"
                " start anew with another ``out``"
            )

    async def scores_of_all(
        self,
        title: str,
        examples: Sequence[Example],
        setting: Setting,
        samples: int,
        biases: Sequence[NamedBias],
    ) -> list[PolicyScores]:
        """Scores of ``samples`` completions a prompt of each policy, drawn together from an
        endpoint that takes a bias, so that base and biased differ in nothing else.

        Args:
            title: of the stage.
            examples: the prompts, and what is right.
            setting: of all policies.
            samples: completions a prompt.
            biases: of the policies.

        Raises:
            InputError: a score is not finite, so no policy has a mean.
        """
        where = self.session.biased_endpoint
        parts = policy_parts(self.draw, examples, setting, samples, biases, where)
        collected = await self.collect_all(title, parts)
        return [
            self.scored(policy.name, examples, self.store.by_prompt(keys))
            for policy, keys in zip(biases, collected, strict=True)
        ]

    def scored(
        self, title: str, examples: Sequence[Example], completions: Iterable[Sequence[Completion]]
    ) -> PolicyScores:
        """See ``checked_scores``."""
        return checked_scores(self.reward, examples, completions, title, self.report)

    async def spell_tokens(
        self, examples: Sequence[Example], keys: Sequence[Sequence[str]]
    ) -> None:
        """Store the bytes of every token of the completions ``keys[p]`` of ``examples[p]``, so that
        places in their texts can be mapped to tokens.

        Nothing is done for a reward without places in the text; a function of the user's own is
        asked about one completion, where it has not answered yet. Answers show the bytes of what
        they list, where a provider's bytes are exact; the others are those of the vocabulary, else
        what the server prints. A part of a character, which it cannot print, stays unknown.
        """
        has_places = self.reward.credit == "places"
        if self.reward.credit == "open":
            readable = (
                (example, completion)
                for example, row in zip(examples, self.store.by_prompt(keys), strict=True)
                for completion in row
                if completion.readable
            )
            first = next(readable, None)
            has_places = first is not None and self.reward.score(*first).spans is not None
        if not has_places:
            return
        fingerprint = self.tokenizer.fingerprint
        flat = [key for row in keys for key in row]
        sampled = sampled_ids(zip(flat, self.store.completions(flat), strict=True))
        stored = self.store.token_bytes(fingerprint)
        missing = sorted(token for token in sampled if token >= 0 and token not in stored)
        spelled = zip(missing, await self.session.bytes_of(missing), strict=True)
        are_exact = self.session.vocabulary is not None
        self.store.add_token_bytes(
            fingerprint,
            {token: raw for token, raw in spelled if raw and (are_exact or REPLACEMENT not in raw)},
        )

    async def kl(
        self, examples: Sequence[Example], samples: int, bias: AnyBias, tail: NextToken
    ) -> float:
        """Mean KL of the biased policy to the base over whole completions at temperature 1, in
        nats, from ``samples`` completions a prompt.

        ``bias`` is token id -> nats, ``tail`` of the unbiased training rollouts. NaN where no
        completion has a complete list of tokens, and where the provider does not return the base
        model's logprobs with a bias. A remark says where the bias seems to be dropped on the way.
        """
        if not self.session.tells_base_logprobs:
            return float("nan")
        part = stage_part(self.draw, "KL to the base", examples, SAMPLED, samples, bias)
        [keys] = await self.collect_all(part.name, [part], scored=False)
        rows = self.store.by_prompt(keys)
        return await self.kl_of(examples, keys, rows, part.draw.bias, tail)

    async def kl_of(
        self,
        examples: Sequence[Example],
        keys: Sequence[Sequence[str]],
        rows: Iterable[Sequence[Completion]],
        bias: RequestBias,
        tail: NextToken,
    ) -> float:
        """See ``kl``: of completions at temperature 1 that were drawn with ``bias``.

        keys, rows: (x, samples) of each example.
        """
        if not self.session.tells_base_logprobs:
            return float("nan")
        owner = {key: p for p, row in enumerate(keys) for key in row}
        completions = {
            key: completion
            for row_keys, row in zip(keys, rows, strict=True)
            for key, completion in zip(row_keys, row, strict=True)
        }
        complete = {key: completion for key, completion in completions.items() if completion.whole}
        nonempty = {
            key: completion for key, completion in complete.items() if len(completion.token_ids)
        }
        if not nonempty:
            return float("nan")
        prompts = [owner[key] for key in nonempty]
        rewards = [0.0] * len(nonempty)
        rollouts = columns(nonempty, prompts, rewards, self.end_tokens)
        ratios, expected = await self._log_ratios(rollouts, bias, examples, tail)
        if seems_dropped(ratios, expected):
            self.report.notice(
                "WARNING: completions drawn with the bias are those of a model without it (log"
                f" ratio {ratios.mean():+.2f} nats, where a bias that acts has more than 0):"
                f" {self.session.profile.name} or a gateway before it drops logit_bias; blb doctor"
                " shows it"
            )
        return max(float(ratios.sum()), 0.0) / len(
            complete
        )  # a completion that ended at once shows no token, and no distance

    async def _log_ratios(
        self, rollouts: Rollouts, bias: RequestBias, examples: Sequence[Example], tail: NextToken
    ) -> tuple[Vector, Vector]:
        """(n,) the log ratio of both policies of each completion of ``examples``, and (n,) what is
        expected of it under the bias.
        """

        phase_of = np.zeros(len(rollouts.token_ids), np.int64)
        if "prefix" in bias.scopes:
            token_bytes = self.store.token_bytes(self.tokenizer.fingerprint)
            phase_of = await phases_of(self.session, bias.phases, rollouts, token_bytes)
        prompts = [example.prompt for example in examples]
        prompt_of = rollouts.prompts[rollouts.rollout_of]
        both = np.zeros((2, len(rollouts.keys)))
        for at_rows, sent in bias_at_positions(bias, prompts, prompt_of, phase_of):
            rows, part = rollouts.with_positions(at_rows)
            ratios = divergence(part, list(sent), list(sent.values()), tail)
            both[:, rows] += np.stack([ratios.per_completion, ratios.expected])
        return both[0], both[1]


def seems_dropped(ratios: Vector, expected: Vector) -> bool:
    """Whether completions that were asked for with a bias are those of a model without it.

    ratios: (n,) nats, the log ratio of the biased policy to the base of each completion. expected:
    (n,) nats, its mean if the bias acts. False where the bias is too weak to tell.
    """
    error = float(ratios.std()) / math.sqrt(len(ratios))
    gain = float(expected.mean())
    mean = float(ratios.mean())
    has_power = gain > DROPPED * error
    return has_power and mean < -DROPPED * error and mean < -gain / 2
