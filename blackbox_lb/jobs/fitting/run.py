"""The main job: collect, reward, estimate, choose the strength on validation prompts, and judge on
unseen test prompts.
"""

import asyncio
import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from typing import cast

import numpy as np

from blackbox_lb.api.session import Session
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import most_entries
from blackbox_lb.bias.operating import OperatingCurve, point_sentence
from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.records import Calibration, Comparison, Compiled, SamplingRecord, Verdict
from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias, SentRange, embedding_model
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import Candidate, CompileLimits, compiled
from blackbox_lb.estimate.choice.table import ROWS, rule
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.diagnosis.truncation import Truncation
from blackbox_lb.estimate.inputs.checks import Ids
from blackbox_lb.estimate.inputs.recipe import Sweep
from blackbox_lb.estimate.projection.projection import Prior
from blackbox_lb.estimate.reweighting import censoring_of
from blackbox_lb.jobs.compiling.compile import compile_report
from blackbox_lb.jobs.fitting.choosing.from_lists import FromLists, SharesFromLists
from blackbox_lb.jobs.fitting.choosing.operating import LabelledLists, PointChoice, checked_point
from blackbox_lb.jobs.fitting.choosing.proposing import (
    Knowledge,
    calibration_of,
    knowledge,
    label_priors,
    proposals,
    with_knowledge,
)
from blackbox_lb.jobs.fitting.choosing.scorers import (
    Challengers,
    Choice,
    FromSamples,
    Scorer,
)
from blackbox_lb.jobs.fitting.choosing.select import Search, select
from blackbox_lb.jobs.fitting.document import BothDecisions, BothShares, Measured, Validation
from blackbox_lb.jobs.fitting.explain import Explanation, explain, explain_test
from blackbox_lb.jobs.fitting.opening import (
    opening_lists,
    opening_point,
    shifted,
    training_of,
)
from blackbox_lb.jobs.fitting.plan import FitPlan
from blackbox_lb.jobs.fitting.plan_check import PlanCheck
from blackbox_lb.jobs.fitting.result import Fitted, recorded, sent_entries, uncompiled_of
from blackbox_lb.jobs.fitting.training_rollouts import AnswersToLearn, TrainingData
from blackbox_lb.jobs.fitting.unlabelled import calibrated
from blackbox_lb.jobs.fitting.varying.by_lists import ByLists, against_others
from blackbox_lb.jobs.fitting.varying.by_samples import BySamples
from blackbox_lb.jobs.fitting.varying.feature_matrix import PromptFeatures
from blackbox_lb.records import Censoring, Scalar
from blackbox_lb.rollouts.answers.given_answers import first_completions
from blackbox_lb.rollouts.answers.openings import Opening, opening_of
from blackbox_lb.rollouts.judging.decisions import (
    about_labels,
    beside_commonest,
    decision_scores,
)
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.rollouts.phased import phases_of
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.rollouts.reading import CUT
from blackbox_lb.tasks import Task
from blackbox_lb.tasks.sets.labels import OpenLabels

LEAST_HELD = 100
"""Positions with and without a feature of the answer so far that its vector is learned from."""
KL_PROMPTS = 40
"""Test prompts answered at temperature 1 for the KL alone, where the verdict is at other settings.
"""


async def fit(trials: Trials, task: Task, plan: FitPlan) -> Fitted:
    """Learn a bias and judge it on fresh completions. The trials' store keeps everything received:
    the same call resumes.

    Raises:
        ProviderError: the API failed; what was received is kept.
        InputError: nothing can be learned, for instance because no completion earned a reward.
    """
    kind = _Fit
    if plan.learn_from == "unlabelled":
        kind = _Calibration
    elif isinstance(plan.labels, OpenLabels):
        kind = _OpenDecision
    job = kind(replace(trials, used=set()), task, plan)
    await job.check()
    await job.first_look()
    await job.collect()
    await job.choose()
    await job.judge()
    job.explain()
    await job.write()
    return await job.result()


class _Fit:
    """One fit under way; each step reads what those before it left.

    limits: the provider's, on a bias. data: the training completions during collection, read and
    scored once. training: their rollouts, with the table of next tokens. given: the answers of the
    training rows, None where nothing is learned from them. truncation: of the completions of the
    first prompts, None where the reward is not by length. choice: the candidate that won on the
    validation prompts; fixed: its bias as it is sent. verdict: a row a metric and setting, on the
    test prompts. decisions: setting -> what the decisions of the base and of the biased model are
    worth, where the task has labels. shares: setting -> the labels that both draw, where the reward
    compares these with wanted shares. features: those of the prompt that the plan names. operating:
    the curve of a decision with a positive label, None without one. calibration: the probabilities
    of the labels, None where no list shows them. beside: what the chosen one was compared with.
    why: what explains the verdict. bias: the
    result, as its file holds it.
    """

    data: TrainingData
    training: Positions
    given: AnswersToLearn | None
    truncation: Truncation | None
    choice: Choice
    fixed: dict[int, float]
    verdict: list[Verdict]
    why: Explanation
    bias: Bias
    decisions: dict[str, BothDecisions]
    shares: dict[str, BothShares]
    features: list[PromptFeatures]
    operating: OperatingCurve | None = None
    calibration: Calibration | None = None
    calibrated: Candidate
    beside: tuple[Comparison, ...]

    def __init__(self, trials: Trials, task: Task, plan: FitPlan) -> None:
        self.trials = trials
        self.task = task
        self.plan = plan
        self.examples = task.train[: plan.limit]
        self.limits = limits_of(trials.session, plan)  # before anything is paid for
        self.decisions = {}
        self.shares = {}
        self.features = []
        self.beside = ()

    async def check(self) -> None:
        """Refuse an impossible plan before training completions cost anything."""
        PlanCheck(self.trials, self.task, self.plan).check()
        labels = self.plan.labels
        notices = [] if labels is None else list(about_labels(labels, self.trials.reward))
        for sentence in [
            *self.plan.notices,
            *notices,
            *([self.task.note] if self.task.note else []),
        ]:
            self.trials.report.notice(sentence)

    async def first_look(self) -> None:
        """Draw completions of the first prompts, and stop where they show nothing to learn."""
        self.data = TrainingData(self.trials, self.examples, self.plan)
        await self.data.first_look()

    async def collect(self) -> None:
        """Draw, read and score all other completions of the plan."""
        self.training = await self.data.collect()
        self.given = self.data.given
        self.truncation = self.data.truncation
        del self.data  # its memory of each completion is not needed any more

    async def choose(self) -> None:
        """Learn a candidate for each setting of the sweep, and choose one on the validation
        prompts.
        """
        plan = self.plan
        trials = self.trials
        if plan.learn_from != "answers":
            trials.report.notice(self._censored(plan.sweep).sentence(trials.top_logprobs))
        scorer = await self._scorer()
        point = self._read_labels(scorer)
        facts = Knowledge()
        if plan.searches != "named":
            labels = await self._calibrations(scorer)
            facts = await knowledge(trials, self.training, self.limits, labels)
            self.training = with_knowledge(self.training, facts)
        search = Search.of(plan)
        limits = search.limits(self.limits)
        field: Iterable[Candidate] = proposals(self.training, plan.sweep, limits, facts)
        if plan.goal.is_promise:
            # A promise on fresh prompts: the validation answers choose the point and nothing else.
            field = islice(field, 1)
            search = Search(plan.validation_samples)
        self.choice = await select(
            field,
            scorer,
            plan.goal,
            search,
            self.training.next_token,
            self.limits,
            trials.report,
            trials.reward.label,
            await self._challengers(scorer),
        )
        if point is not None:
            self._choose_point(point)
        self.fixed = self.choice.candidate.logit_bias

    async def _scorer(self) -> Scorer:
        """Lists, where they alone give the effects; else fresh completions."""
        validation = self.task.validation
        shares = await SharesFromLists.suiting(self.trials, validation, self.plan)
        if shares is not None:
            return shares
        if self.plan.selects_offline and self.given is not None:
            return await FromLists.of(self.trials, validation, self.plan, self.given)
        return FromSamples(
            self.trials, validation, self.training.next_token, self.plan.goal, self.plan.settings
        )

    @property
    def _label_tokens(self) -> list[Ids] | None:
        if self.given is None:
            return None
        return self.given.label_tokens

    def _read_labels(self, scorer: Scorer) -> PointChoice | None:
        """Learn the probabilities of the labels from their first lists; return the decision whose
        point is to be chosen, None where no positive label is named.

        Raises InputError: no point can be better than chance, or labels begin alike.
        """
        labels = self.plan.labels
        if labels is None or self.given is None or not isinstance(scorer, FromLists):
            return None
        tokens = self._label_tokens
        goal = self.plan.goal
        if tokens is None:
            if goal.positive is None:
                return None
            raise InputError(
                f"``positive={goal.positive}`` has no operating point: two of the labels begin with"
                " the same tokens, so that a shift moves both; rename one in the prompts and in"
                " ``labels``"
            )
        training, validation = [
            LabelledLists.of(first.whole, first.labels_of(labels))
            for first in (self.given.first, scorer.first)
        ]
        self.calibration = calibration_of(labels.names, tokens, training, validation)
        if goal.positive is None:
            return None
        point = PointChoice.of(goal, labels, tokens, self.given.first, scorer.first)
        self.trials.report.notice(point.check_ranking(go_on=self.plan.go_on))
        return point

    def _choose_point(self, point: PointChoice) -> None:
        """Move the chosen candidate to the operating point of the goal."""
        candidate, self.operating = point.choose(
            self.choice.candidate, self.training.next_token, self.limits
        )
        self.trials.report.notice(point_sentence(self.operating))
        self.choice = replace(
            self.choice,
            candidate=candidate,
            sentence=f"{candidate.origin}; {candidate.sparse.entries:,} entries",
        )

    async def _calibrations(self, scorer: Scorer) -> tuple[Prior, ...]:
        """The calibration by the answers and batch calibration, where the model decides between
        labels. The latter reads the prompts of training, validation and rows without an answer.
        """
        answers = self.given
        labels = self.plan.labels
        if not isinstance(scorer, FromLists) or answers is None or labels is None:
            return ()
        others = [scorer.first.whole]
        if self.task.unlabelled:
            unlabelled, _ = await first_completions(
                self.trials, self.task.unlabelled, "unlabelled", self.plan.listed
            )
            others.append(FirstLists.of(unlabelled))
        return label_priors(answers, labels, others)

    async def _challengers(self, scorer: Scorer) -> list[Challengers]:
        """What proposes biases with features: those of the prompt that the plan names, the phases
        of completions, and each of the former with the latter.
        """
        plan = self.plan
        phases, phase_of = await self._phases()
        for feature in plan.depends_on:
            model = embedding_model([feature], self.trials.store)
            features = await asyncio.to_thread(PromptFeatures.of, feature, self.examples, model)
            self.features.append(features)
            if model is not None and model.tokens:
                self.trials.report.notice(
                    f"{model.tokens:,} tokens of prompts were embedded by {model.name}"
                )
        if isinstance(scorer, FromLists) and self.given is not None:
            answers = self.given
            return [
                ByLists(
                    features,
                    len(self.examples),
                    answers,
                    scorer.first,
                    self.limits,
                    plan.sweep.seed,
                )
                for features in self.features
            ]
        label_tokens: frozenset[int] = frozenset()
        if isinstance(scorer, SharesFromLists):
            label_tokens = frozenset(scorer.label_tokens)

        def by_samples(of_prompt: PromptFeatures | None, of_prefix: Phases) -> Challengers:
            return BySamples(
                of_prompt,
                of_prefix,
                self.training,
                phase_of if of_prefix.features else np.zeros_like(phase_of),
                len(self.examples),
                self.limits,
                plan.sweep.seed,
                label_tokens,
            )

        challengers = [by_samples(features, Phases()) for features in self.features]
        if phases.features:
            challengers.append(by_samples(None, phases))
            challengers += [by_samples(features, phases) for features in self.features]
        return challengers

    async def _phases(self) -> tuple[Phases, Ids]:
        """The phases of the plan that enough positions are in, and (m,) that of each training
        position.
        """
        rollouts = self.training.rollouts
        nowhere = np.zeros(len(rollouts.token_ids), np.int64)
        if self.plan.phases is None or self.plan.confined_to is not None:
            return Phases(), nowhere
        trials = self.trials
        token_bytes = trials.store.token_bytes(trials.tokenizer.fingerprint)
        phase_of = await phases_of(trials.session, self.plan.phases, rollouts, token_bytes)
        features_kept = []
        for j, feature in enumerate(self.plan.phases.features):
            positions = int(((phase_of >> j) & 1).sum())
            if LEAST_HELD <= positions <= len(phase_of) - LEAST_HELD:
                features_kept.append(feature)
                continue
            trials.report.notice(
                f"phase {feature.spec}: it holds at {positions:,} of {len(phase_of):,} positions,"
                f" and {LEAST_HELD} with and without it are needed: it is left out"
            )
        phases = Phases(tuple(features_kept))
        if not features_kept:
            return phases, nowhere
        return phases, await phases_of(trials.session, phases, rollouts, token_bytes)

    @property
    def sent(self) -> RequestBias:
        """The bias that is judged."""
        richer = self.choice.richer
        if richer is None:
            return self._confined(RequestBias(self.fixed))
        return self._confined(richer.bias)

    def _confined(self, bias: RequestBias) -> RequestBias:
        """The bias at the first tokens alone, where the plan confines it to these."""
        phases = self.plan.confined_to
        if phases is None:
            return bias
        limits = self.limits
        sent = SentRange.within(limits.low, limits.high, integers=limits.integers)
        common = dict(sorted(bias.common.items()))
        features = (*bias.features, *phases.features)
        return RequestBias(common, features, sent, vectors=bias.vectors)

    async def judge(self) -> None:
        """Compare fresh completions of the test prompts, with the chosen bias and without."""
        bias = self.sent
        plan = self.plan
        labels = self.plan.labels
        self.verdict = await self.trials.judge(
            self.task.test, plan.settings, plan.test_samples, bias
        )
        for setting in plan.settings:
            count = 1
            if not setting.deterministic:
                count = plan.test_samples
            if labels is None:
                continue
            pair = [
                await decision_scores(
                    self.trials, self.task.test, setting, count, candidate, labels
                )
                for candidate in (NO_BIAS, bias)
            ]
            self.decisions[setting.name] = BothDecisions(base=pair[0], biased=pair[1])
            if self.operating is not None:
                checked = checked_point(self.operating, pair[1])
                self.operating = self.operating.replacing(checked=checked)
        biased = {setting: both.biased for setting, both in self.decisions.items()}
        self.verdict = beside_commonest(self.verdict, biased, self.trials.reward.spec)
        await self._compare_shares(bias)
        if plan.depends_on or self.choice.richer is not None:
            fixed = bias
            if self.choice.richer is not None:
                fixed = self._confined(RequestBias(self.fixed))
            self.beside = await against_others(
                self.trials,
                self.task,
                fixed,
                bias,
                self._features_sent,
                plan,
            )

    @property
    def _features_sent(self) -> list[PromptFeatures]:
        """The features of the prompt that the judged bias has; all that were tried where it has
        none.
        """
        specs = [feature.spec for feature in self.sent.features]
        chosen = [features for features in self.features if features.feature.spec in specs]
        return chosen or self.features

    async def _compare_shares(self, bias: RequestBias) -> None:
        """Keep the labels that were judged, with and without ``bias``; nothing is drawn for it."""
        if not self.trials.reward.of_shares:
            return
        silent = replace(self.trials, report=Silent())
        samples = self.plan.test_samples
        for setting in self.plan.settings:
            base = await silent.scores("test", self.task.test, setting, samples)
            biased = await silent.scores("test, biased", self.task.test, setting, samples, bias)
            if base.shares is not None and biased.shares is not None:
                self.shares[setting.name] = BothShares(
                    base=base.shares.rows, biased=biased.shares.rows
                )

    def explain(self) -> None:
        """Find out why the bias helped or did not."""
        self.why = explain(
            self.training,
            self.choice.candidate,
            self.trials.reward,
            self.verdict,
            sweep=self.plan.sweep,
            vocab_size=self.trials.tokenizer.vocabulary_size,
            top_logprobs=self.trials.top_logprobs,
            truncation=self.truncation,
        )

    async def write(self) -> None:
        """Build the bias for its file."""
        trials = self.trials
        chosen = self.choice.candidate
        why = self.why
        sent = self.sent
        compiled: Compiled | None = compile_report(
            chosen.sparse, self.limits.entries, integers=self.limits.integers
        )
        errors = why.errors
        richer = self.choice.richer
        if richer is not None:
            chosen = richer.candidate
            compiled = None
            errors = richer.errors
        censoring = None
        if self.plan.learn_from not in ("answers", "unlabelled"):
            censoring = self._censored(_sweep_of(chosen.estimator, self.plan.sweep))
        self.bias = Bias(
            features=sent.features,
            sent=sent.sent,
            provider=trials.session.profile.name,
            model=trials.session.model,
            tokenizer=trials.tokenizer.fingerprint,
            vocab_size=trials.tokenizer.vocabulary_size,
            task=self.task.name,
            reward=trials.reward.spec,
            estimator=chosen.estimator,
            settings=chosen.settings | self._settings,
            data_hash=self.task.data_hash,
            rollouts=len(self.training.learned_from.keys),
            tokens=len(self.training.learned_from.token_ids),
            sampling=SamplingRecord(
                max_tokens=trials.reward.max_tokens,
                top_logprobs=trials.top_logprobs,
                endpoint=trials.session.endpoint,
            ),
            censoring=censoring,
            compiled=compiled,
            learned=why.learned,
            findings=why.findings,
            verdict=tuple(self.verdict),
            operating=self.operating,
            calibration=self.calibration,
            entries=await sent_entries(trials, self.training, chosen, errors.tolist()),
        )

    @property
    def _settings(self) -> dict[str, Scalar]:
        """What the plan adds to the settings of the chosen candidate."""
        settings: dict[str, Scalar] = {}
        if self.plan.learn_from != "samples":
            settings["learn_from"] = self.plan.learn_from
        if self.plan.confined_to is not None:
            settings["phases"] = self.plan.confined_to.spec
        return settings

    async def result(self) -> Fitted:
        """Measure the KL of the chosen policy, and report everything."""
        trials = self.trials
        training = self.training
        choice = self.choice
        # The KL at temperature 1 is of the judged completions, else of a few drawn for it.
        judged = SAMPLED in self.plan.settings
        if judged:
            examples = self.task.test
            samples = self.plan.test_samples
        else:
            examples = self.task.test[:KL_PROMPTS]
            samples = 1
        kl = await trials.kl(examples, samples, self.sent, training.next_token)
        why_no_kl = None
        if math.isnan(kl):
            why_no_kl = _why_no_kl(trials.session)
        return recorded(
            self.bias,
            uncompiled_of(trials, self.bias, choice.candidate, training),
            training,
            kl=kl,
            usage=trials.store.spent(trials.used),
            kl_missing=why_no_kl,
            kl_whole=trials.session.end_tokens.listed is True
            and not (trials.may_cut_stops and training.tally[CUT]),
            validation=Validation(
                base=choice.base, base_by_setting=choice.base_by_setting, tried=choice.tried
            ),
            decisions=self.decisions,
            beside=self.beside,
            origin=choice.sentence,
            shares=self.shares,
        )

    def _censored(self, sweep: Sweep) -> Censoring:
        """The tokens that the provider withheld, with the rule that ``sweep`` uses for them."""
        return censoring_of(self.training.rollouts, self.training.next_token, rule(sweep))


class _Calibration(_Fit):
    """A fit of a decision without any answer. It is judged where test rows have answers, and
    UNVERIFIED elsewhere.
    """

    async def check(self) -> None:
        """Refuse an impossible plan before anything is asked for."""
        PlanCheck(self.trials, self.task, self.plan).check_unlabelled()
        for sentence in self.plan.notices:
            self.trials.report.notice(sentence)

    async def first_look(self) -> None:
        """Nothing: there is no reward to look at."""

    async def collect(self) -> None:
        """Read the lists at the place of the answer."""
        examples = (*self.examples, *self.task.unlabelled)
        self.training, self.calibrated = await calibrated(
            self.trials, examples, self.plan.labels, self.plan.listed, self.limits
        )
        self.given = None
        self.truncation = None

    async def choose(self) -> None:
        """Nothing is chosen by an answer that nobody knows."""
        candidate = self.calibrated
        self.choice = Choice(
            candidate,
            (),
            Measured(),
            sentence=f"{candidate.origin}, from {len(self.training.rollouts.keys):,} prompts"
            f" without answers; {candidate.sparse.entries} entries",
        )
        self.fixed = candidate.logit_bias

    async def judge(self) -> None:
        """Judge the bias on the test rows that have answers."""
        answered = tuple(example for example in self.task.test if example.answers)
        self.verdict = []
        if answered:
            self.task = replace(self.task, test=answered)
            await super().judge()

    def explain(self) -> None:
        """Say what the test shows: nothing was estimated that could be unsure."""
        self.why = explain_test(self.calibrated, self.trials.reward, self.verdict)


class _OpenDecision(_Fit):
    """A fit of a decision between an opening and everything else, from first lists alone.

    lists, validation_lists: at the first position of the prompts. opening: its tokens.
    """

    labels: OpenLabels
    lists: LabelledLists
    validation_lists: LabelledLists
    opening: Opening

    async def check(self) -> None:
        """Refuse an impossible plan before anything is asked for."""
        self.labels = cast(OpenLabels, self.plan.labels)
        PlanCheck(self.trials, self.task, self.plan).check_opening(self.labels)
        for sentence in self.plan.notices:
            self.trials.report.notice(sentence)

    async def first_look(self) -> None:
        """Nothing: one token a prompt is all that is asked for."""

    async def collect(self) -> None:
        """Read the first lists, and find the tokens that begin the opening."""
        trials = self.trials
        listed = self.plan.listed
        completions, self.lists = await opening_lists(
            trials, self.examples, "training", listed, self.labels
        )
        _, self.validation_lists = await opening_lists(
            trials, self.task.validation, "validation", listed, self.labels
        )
        self.opening = await opening_of(
            trials, self.labels, [self.lists.lists, self.validation_lists.lists]
        )
        trials.report.notice(self.opening.sentence)
        self.training = training_of(trials, completions, self.opening)
        self.given = None
        self.truncation = None

    async def choose(self) -> None:
        """Choose the point of the goal on the validation prompts."""
        point = opening_point(
            self.plan.goal, self.labels, self.opening, self.lists, self.validation_lists
        )
        self.trials.report.notice(point.check_ranking(go_on=self.plan.go_on))
        self.calibration = calibration_of(
            self.labels.names,
            point.label_tokens,
            self.lists,
            self.validation_lists,
        )
        shift = shifted(self.labels, self.opening, self.lists, self.plan.goal)
        candidate = compiled(shift, self.training.next_token, self.limits)
        self.choice = Choice(candidate, (), Measured(), sentence=candidate.origin)
        self._choose_point(point)
        self.fixed = self.choice.candidate.logit_bias

    def explain(self) -> None:
        """Say what the test shows: the curve has the intervals of what was estimated."""
        self.why = explain_test(self.choice.candidate, self.trials.reward, self.verdict)


def _sweep_of(estimator: str, sweep: Sweep) -> Sweep:
    """``sweep`` with the estimator of the chosen bias alone, where an estimator made it."""
    if estimator in ROWS:
        return replace(sweep, estimators=(estimator,))
    return sweep


def limits_of(session: Session, plan: FitPlan) -> CompileLimits:
    """The provider's limits on a bias, and the plan's."""
    rules = session.profile.bias
    entries = most_entries(session.profile, plan.entries)
    return CompileLimits(
        entries, rules.low, rules.high, plan.integers or not rules.fractions, session.highest_id
    )


def _why_no_kl(session: Session) -> str:
    name = session.profile.name
    where = session.biased_endpoint
    if session.tells_base_logprobs:
        return "no biased completion of the test prompts lists all of its tokens"
    if where != session.endpoint:
        return (
            f"{name} takes a bias at its {where} endpoint and returns logprobs at"
            f" {session.endpoint}"
        )
    if session.profile.logprobs.meaning == "after bias":
        return f"{name} returns logprobs of the biased policy"
    return f"it is not known whether {name} returns logprobs of the base or of the biased policy"
