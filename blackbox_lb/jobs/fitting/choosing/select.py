"""The selector: everything that may be the bias races on the validation prompts, by the goal.

First all proposals (estimators at their settings, rules, boosts, calibrations), then the
neighbours of the winner (half and twice its strength, its sum with the best of another origin),
then the winner cut to fewer entries: of these the smallest that is not shown to be worse. What is
richer than a vector, a bias with features, must then prove to be better than the winner.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np
from scipy.special import stdtrit

from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.choice.candidates import (
    FACTORS,
    SIZES,
    Candidate,
    CompileLimits,
    added,
    distinct,
    rescaled,
    smaller,
)
from blackbox_lb.estimate.choice.goal import ByPrompt, Goal, Objective, Rung, race_cost, rungs
from blackbox_lb.estimate.inputs.checks import Bools
from blackbox_lb.estimate.next_token.next_token import NextToken
from blackbox_lb.jobs.fitting.choosing.scorers import (
    Challenger,
    Challengers,
    Choice,
    Scored,
    Scorer,
    check_base,
)
from blackbox_lb.jobs.fitting.document import Measured, TriedCandidate
from blackbox_lb.jobs.plan.plan import BUDGETS, Plan
from blackbox_lb.rollouts.judging.trials import NamedBias
from blackbox_lb.rollouts.progress import Reporter, short

_OBJECTIVES: dict[Objective, str] = {
    "reward": "reward",
    "pareto": "tokens at the same accuracy",
    "accuracy": "accuracy",
    "balanced": "balanced accuracy",
    "cost": "cost",
    "recall@precision": "accuracy",
    "precision@recall": "accuracy",
    "rate": "accuracy",
}

SHARES = (0.5, 0.25, 0.25)
"""Parts of the budget: for all proposals, for the neighbours of the winner, for few entries."""
MOST_NEIGHBOURS = len(FACTORS) + 1
"""The winner at each of the other strengths, and its sum with the second."""
MOST_LOST = 0.1
"""Share of the winner's gain that fewer entries may lose on the validation prompts, where that is
within one standard error."""
PROVEN = 0.977
"""One-sided confidence that another candidate must have to be better than the one that stands: two
standard errors. With one, a single validation prompt that it has right and the other has not was
enough: 1 / p, with a standard error of 1 / p. A candidate with features has the left-out training
prompts as well, and is the best of 18 settings on them: noise passed in 3 of 100 draws."""
FEWEST_PROMPTS = 10
"""Prompts with which fewer entries are tried: with less, a cut that loses a label passes unseen."""
LESS_LIKELY = 0.1
"""Nats by which fewer entries may make the right answers less likely, where that is known."""
FORESEEN = 4
"""Candidates that race where the completions of the base tell what to expect of each."""
LEVEL = 2.0
"""Standard errors of the paired difference within which two candidates are called level."""


@dataclass(frozen=True, slots=True)
class Search:
    """How much is searched.

    Attributes:
        samples: completions a prompt of the base.
        budget: completions a prompt of all candidates together, at each setting with randomness;
            None for ``samples`` of each candidate.
        neighbours: whether half, twice and sums of the best are tried.
        sizes: numbers of entries that the winner is cut to, none for all of its entries.
    """

    samples: int
    budget: float | None = None
    neighbours: bool = False
    sizes: tuple[int, ...] = ()

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """That of a fit."""
        samples = plan.validation_samples
        extent = plan.searches
        if extent == "named":
            return cls(samples)
        sizes = SIZES if plan.few else ()
        return cls(samples, samples * BUDGETS[extent], neighbours=True, sizes=sizes)

    @property
    def refines(self) -> bool:
        """Whether anything follows the race of all proposals."""
        return self.neighbours or bool(self.sizes)

    def race(self, candidates: int, prompts: int, cost: Callable[[int], int]) -> tuple[Rung, ...]:
        """The plan of the race of so many proposals: one rung where a second sample would tell
        nothing new.

        cost: completions a prompt for a policy with so many samples.
        """
        if cost(2) == cost(1):
            return (Rung(candidates, 1, prompts),)
        if self.budget is None:
            return rungs(candidates, self.samples * candidates, prompts)
        parts = [SHARES[0]]
        if not self.neighbours:
            parts.append(SHARES[1])
        if not self.sizes:
            parts.append(SHARES[2])
        return rungs(candidates, self.budget * sum(parts), prompts)

    def later(self, prompts: int, cost: Callable[[int], int]) -> tuple[Rung, ...]:
        """The most that follows the race: the neighbours of the winner, then its cuts. Fewer of
        them may get more samples.
        """
        rounds: list[Rung] = []
        if self.neighbours:
            counts = range(1, MOST_NEIGHBOURS + 1)
            most = max(counts, key=lambda count: count * cost(self.neighbour_samples(count)))
            rounds.append(Rung(most, self.neighbour_samples(most), prompts))
        if self.tries_cuts(prompts):
            counts = range(1, len(self.sizes) + 1)
            most = max(counts, key=lambda count: count * cost(self.cut_samples(count)))
            rounds.append(Rung(most, self.cut_samples(most), prompts))
        return tuple(rounds)

    def tries_cuts(self, prompts: int) -> bool:
        """Whether the winner is cut to fewer entries: with few prompts, a cut that loses a label
        passes unseen.
        """
        return bool(self.sizes) and prompts >= FEWEST_PROMPTS

    def neighbour_samples(self, count: int) -> int:
        """Completions a prompt of each of so many neighbours."""
        return max(math.floor((self.budget or 0) * SHARES[1] / count), 1)

    def cut_samples(self, count: int) -> int:
        """Completions a prompt of each of so many cuts."""
        return max(math.floor((self.budget or 0) * SHARES[2] / count), 1)

    def most(self, candidates: int, prompts: int, cost: Callable[[int], int]) -> int:
        """The most completions that a search among so many proposals asks for.

        cost: completions a prompt for a policy with so many samples.
        """
        total = race_cost(self.race(candidates, prompts, cost), cost)
        for rung in self.later(prompts, cost):
            total += rung.candidates * rung.prompts * cost(rung.samples)
        return total


async def select(
    proposals: Iterable[Candidate],
    scorer: Scorer,
    goal: Goal,
    search: Search,
    next_token: NextToken,
    limits: CompileLimits,
    report: Reporter,
    label: str = "reward",
    challengers: Sequence[Challengers] = (),
) -> Choice:
    """Return the best bias on the prompts of ``scorer``, none of which decides about a bias that
    was learned from it.

    Args:
        proposals: all within ``limits``; of equally good ones the first wins.
        scorer: scores them.
        goal: decides.
        search: how much is searched.
        next_token: of the training rollouts, to cut and to add candidates.
        limits: the provider's, on every candidate.
        report: gets a sentence for each step.
        label: of the reward, for these sentences.
        challengers: of richer candidates, which must prove themselves.

    Raises:
        InputError: no proposal, no completion that passed a content filter, rewards that are not
        finite, or a goal that cannot be measured with this data or provider. ProviderError: the API
        failed; what was received is kept.
    """
    candidates, repeated = distinct(proposals)
    if not candidates:
        raise InputError(
            "the sweep is empty: give at least one ``tau``, and one ``l2`` or ``alpha``"
        )
    race = _Race(scorer, goal, search, report, label)
    for candidate in candidates:
        race.add(candidate)
    for number, first in repeated.items():
        race.entrants[number].status = f"the same bias as {candidates[first].label}"
    if len(race.racing) == 1 and not search.refines and not scorer.exact and not challengers:
        return race.unopposed()
    await race.start()
    await race.foresee()
    best = race.kept(await race.halve(race.racing))
    all_ids = [part.token_ids for entrant in candidates for part in (entrant, *entrant.left_out)]
    wide = next_token.with_tokens(np.concatenate(all_ids))
    if search.neighbours:
        best = race.kept(await race.neighbours(best, wide, limits))
    uncut = best.candidate
    if search.tries_cuts(scorer.prompts):
        best = await race.fewer_entries(best, wide, limits)
    choice = replace(race.conclude(best), uncut=uncut)
    if not challengers:
        return choice
    return await race.richer(challengers, choice)


@dataclass(slots=True, eq=False)
class _Entrant:
    """A candidate in the race. bias: as requests get it. scored: None before its first sample."""

    candidate: Candidate
    bias: RequestBias
    scored: Scored | None = None
    status: str = ""

    @property
    def row(self) -> TriedCandidate:
        """Its row in the table of all that were tried."""
        candidate = self.candidate
        mean = Measured()
        samples = 0
        if self.scored is not None:
            mean = self.scored.measured()
            samples = self.scored.samples
        return TriedCandidate(
            **dict(mean),
            estimator=candidate.estimator,
            settings=candidate.settings,
            entries=candidate.sparse.entries,
            samples=samples,
            status=self.status,
            origin=candidate.origin,
        )


@dataclass(slots=True, eq=False)
class _Race:
    """A selection under way. base: of the model without a bias, after ``start``."""

    scorer: Scorer
    goal: Goal
    search: Search
    report: Reporter
    label: str
    entrants: list[_Entrant] = field(default_factory=list)
    base: Scored = field(init=False)

    def add(self, candidate: Candidate) -> _Entrant:
        """Let one more take part."""
        entrant = _Entrant(candidate, RequestBias(candidate.logit_bias))
        self.entrants.append(entrant)
        return entrant

    @property
    def racing(self) -> list[_Entrant]:
        """Those that were not dropped."""
        return [entrant for entrant in self.entrants if not entrant.status]

    def unopposed(self) -> Choice:
        """Choose the only candidate, without a sample."""
        winner = self.racing[0]
        winner.status = "chosen"
        self.report.detail(
            f"chosen: {winner.candidate.label}, the only candidate: with nothing to choose"
            " between, nothing is drawn on the validation prompts"
        )
        return Choice(winner.candidate, self._rows(), Measured())

    async def start(self) -> None:
        """Announce the search, and score the base."""
        if not self.scorer.exact:
            self._announce()
        [self.base] = await self.scorer.score([NamedBias("base", NO_BIAS)], self.search.samples)
        check_base(self.base, self.goal)

    async def foresee(self) -> None:
        """Drop all but the ``FORESEEN`` candidates of which most is expected, where the completions
        of the base alone tell that. The one that stands stays.
        """
        racing = self.racing
        if not self.search.neighbours or len(racing) <= FORESEEN:
            return
        foresight = await self.scorer.foresight(self.search.samples)
        if foresight is None:
            return
        changes = [foresight.change(entrant.candidate.logit_bias) for entrant in racing]
        order = np.argsort(-np.array(changes), kind="stable")
        for place in order[FORESEEN:].tolist():
            if not racing[place].candidate.stands:
                racing[place].status = (
                    f"expected to change the reward by {changes[place]:+.3g}, from completions of"
                    " the base"
                )
        self.report.detail(
            f"{len(self.racing)} candidates race, of which most is expected from the base's own"
            " completions"
        )

    def _announce(self) -> None:
        count = len(self.racing)
        prompts = self.scorer.prompts
        rungs = self.search.race(count, prompts, self.scorer.cost)
        steps = ", ".join(_rung_text(rung, prompts) for rung in rungs)
        then = "; then the best at other strengths and with fewer entries"
        if not self.search.refines:
            then = ""
        most = self.search.most(count, prompts, self.scorer.cost)
        base = self.scorer.cost(self.search.samples) * prompts
        self.report.detail(
            f"{count} candidates race on {prompts} validation prompts ({steps}){then}: at most"
            f" {most:,} completions beside {base:,} of the base"
        )

    async def halve(self, racing: Sequence[_Entrant]) -> _Entrant:
        """Halve ``racing`` successively over fresh samples; return the winner."""
        rungs = self.search.race(len(racing), self.scorer.prompts, self.scorer.cost)
        order = list(racing)
        for number, rung in enumerate(rungs):
            among = self._some(rung.prompts)
            await self._score(order, rung.samples, among)
            order = self._ranked(order)
            survivors = 1
            if number + 1 < len(rungs):
                survivors = rungs[number + 1].candidates
            for entrant in order[survivors:]:
                self._drop(entrant, order[0], rung)
            order = order[:survivors]
        self._tell(order[0])
        return order[0]

    def kept(self, winner: _Entrant) -> _Entrant:
        """The candidate that stands, unless the winner is better with confidence ``PROVEN``."""
        standing = next((entrant for entrant in self.entrants if entrant.candidate.stands), None)
        if standing is None or standing is winner or standing.scored is None:
            return winner
        if is_proven(self._gain(winner).minus(self._gain(standing))):
            return winner
        winner.status = f"not shown to be better than {standing.candidate.label}"
        standing.status = ""
        return standing

    def _some(self, count: int) -> Bools | None:
        """(p,) the same ``count`` of all prompts for every candidate; None for all."""
        prompts = self.scorer.prompts
        if count >= prompts:
            return None
        among = np.zeros(prompts, np.bool_)
        among[np.random.default_rng(0).permutation(prompts)[:count]] = True
        return among

    async def _score(
        self, entrants: Sequence[_Entrant], samples: int, among: Bools | None = None
    ) -> None:
        """Score them with ``samples`` completions a prompt, drawn together."""
        policies = [
            NamedBias(
                entrant.candidate.label,
                entrant.bias,
                tuple(part.logit_bias for part in entrant.candidate.left_out),
            )
            for entrant in entrants
        ]
        scores = await self.scorer.score(policies, samples, among)
        for entrant, scored in zip(entrants, scores, strict=True):
            entrant.scored = scored

    def _ranked(self, racing: Sequence[_Entrant]) -> list[_Entrant]:
        """The best by the goal first; among equals the one whose answers are likelier."""
        by_tie = sorted(racing, key=lambda entrant: -_scored(entrant).tie)
        places = self.goal.ranking(
            self.base.outcome, [_scored(entrant).outcome for entrant in by_tie]
        )
        return [by_tie[place] for place in places]

    async def neighbours(
        self, winner: _Entrant, next_token: NextToken, limits: CompileLimits
    ) -> _Entrant:
        """Try the winner at other strengths, and its sum with the best of another origin."""
        tried = list(rescaled(winner.candidate, next_token, limits))
        second = self._second(winner)
        if second is not None and self._gain(second).value > 0:
            tried.append(added(winner.candidate, second.candidate, next_token, limits))
        biases = [entrant.candidate.logit_bias for entrant in self.entrants]
        new = [
            self.add(candidate)
            for candidate in tried
            if candidate.sparse.entries and candidate.logit_bias not in biases
        ]
        if not new:
            return winner
        winner.status = ""
        racing = [winner, *new]
        rung = Rung(len(racing), self.search.neighbour_samples(len(new)), self.scorer.prompts)
        await self._score(new, rung.samples)
        order = self._ranked(racing)
        for entrant in order[1:]:
            self._drop(entrant, order[0], rung)
        if order[0] is not winner:
            self._tell(order[0])
        return order[0]

    async def fewer_entries(
        self, winner: _Entrant, next_token: NextToken, limits: CompileLimits
    ) -> _Entrant:
        """The smallest cut of the winner that is not shown to be worse, the largest tried first."""
        cuts = list(smaller(winner.candidate, next_token, limits, self.search.sizes))
        if not cuts:
            return winner
        samples = self.search.cut_samples(len(cuts))
        smallest = winner
        entrants = [self.add(candidate) for candidate in cuts]
        await self._score(entrants, samples)
        for entrant in entrants:
            if not self._is_as_good(entrant, winner):
                entrant.status = "fewer entries earn less"
                continue
            smallest.status = f"fewer entries earn as much: {entrant.candidate.sparse.entries}"
            smallest = entrant
        return smallest

    def _is_as_good(self, entrant: _Entrant, winner: _Entrant) -> bool:
        """Whether it loses at most one standard error of the paired difference, and at most
        ``MOST_LOST`` of the winner's gain.
        """
        if not self.goal.keeps(self.base.outcome, _scored(entrant).outcome):
            return False
        if _scored(entrant).tie < _scored(winner).tie - LESS_LIKELY:
            return False
        theirs = self._gain(winner)
        lost = theirs.minus(self._gain(entrant))
        allowed = min(lost.standard_error, MOST_LOST * max(theirs.value, 0.0))
        return lost.value <= allowed + 1e-12

    def _second(self, winner: _Entrant) -> _Entrant | None:
        """The best scored candidate of another origin than the winner."""
        rivals = [
            entrant
            for entrant in self.entrants
            if entrant.scored is not None
            and _family(entrant.candidate) != _family(winner.candidate)
            and entrant.candidate.estimator != "sum"
        ]
        if not rivals:
            return None
        most = max(_scored(entrant).samples for entrant in rivals)
        return self._ranked(
            [entrant for entrant in rivals if _scored(entrant).samples == most] or rivals
        )[0]

    def _gain(self, entrant: _Entrant) -> ByPrompt:
        return self.goal.gain(self.base.outcome, _scored(entrant).outcome)

    async def richer(self, challengers: Sequence[Challengers], choice: Choice) -> Choice:
        """``choice`` with the best of the richer candidates that are better than its uncut one."""
        candidate = choice.uncut or choice.candidate
        standing = _Entrant(candidate, RequestBias(candidate.logit_bias))
        await self._score([standing], self.search.samples)
        proven: list[tuple[_Entrant, Challenger, str]] = []
        for source in challengers:
            rivals = await source.challenge(candidate.learned_from or candidate)
            if isinstance(rivals, str):
                self.report.detail(f"declined, {source.name}: {rivals}")
                continue
            entrants = [_Entrant(rival.candidate, rival.bias) for rival in rivals]
            await self._score(entrants, self.search.samples)
            best = self._ranked(entrants)[0]
            challenger = rivals[entrants.index(best)]
            self.entrants.append(best)
            passed, sentence = self._proof(best, standing, challenger)
            if passed:
                best.status = "proven to be better"
                self.report.detail(f"{best.candidate.origin}; {sentence}")
                proven.append((best, challenger, source.name))
                continue
            best.status = "not proven to be better"
            self.report.detail(f"declined, {best.candidate.origin}; {sentence}")
        if not proven:
            self.report.detail("the bias is the same for all prompts and positions")
            return replace(choice, tried=self._rows())
        first = self._ranked([entrant for entrant, _, _ in proven])[0]
        winner, name = next((rival, name) for entrant, rival, name in proven if entrant is first)
        if len(proven) > 1:
            self.report.detail(f"of these the best is the one that depends on {name}")
        return replace(choice, tried=self._rows(), richer=winner)

    def _proof(
        self, entrant: _Entrant, standing: _Entrant, challenger: Challenger
    ) -> tuple[bool, str]:
        """Whether a richer candidate is proven to be better than the standing one, and a sentence
        on it.
        """
        richer = _scored(entrant)
        before = _scored(standing)
        gains = self._gain(entrant).minus(self._gain(standing)).parts
        if richer.sure is not None and before.sure is not None:
            gains = richer.sure - before.sure
        gains = gains[~np.isnan(gains)]
        if not gains.size:
            raise InputError(
                "nothing to compare: no validation prompt has completions with both biases"
            )
        if not self.goal.keeps(before.outcome, richer.outcome):
            return False, f"on {len(gains)} validation prompts it loses accuracy"
        pooled = ByPrompt(np.concatenate([challenger.left_out, gains]))
        passed = float(gains.mean()) > 0 and is_proven(pooled)
        where = f"{len(gains)} validation prompts"
        if len(challenger.left_out):
            where = f"{where} and {len(challenger.left_out)} training prompts that were left out"
        how = "is predicted to earn" if self.scorer.exact else "earns"
        sentence = (
            f"on {where} it {how} {pooled.value:+.3f} more than the fixed bias (standard error"
            f" {pooled.standard_error:.3f})"
        )
        if passed:
            return True, sentence
        return False, f"{sentence}, which may be chance"

    def conclude(self, winner: _Entrant) -> Choice:
        """Mark the winner, say where it comes from, and hand over the table."""
        winner.status = "chosen"
        scored = _scored(winner)
        if not self.goal.beats(self.base.outcome, scored.outcome):
            how = "is predicted to beat" if self.scorer.exact else "beat"
            self.report.notice(
                f"no candidate {how} the base on the validation prompts by"
                f" {_OBJECTIVES[self.goal.objective]}; the best of them is judged all the same, and"
                " no bias may well be better"
            )
        sentence = self._sentence(winner)
        more = self.scorer.described(scored, self.base)
        compared = sum(entrant.scored is not None for entrant in self.entrants)
        if compared > 1 and not self.scorer.exact:
            more += (
                f"; as the best of {compared} its validation number is too good: the test prompts"
                " say what it is worth"
            )
        name = f"{winner.candidate.label}; "
        if winner.candidate.label == winner.candidate.origin:
            name = ""
        self.report.detail(f"chosen: {name}{sentence}{more}")
        return Choice(winner.candidate, self._rows(), self.base.measured(), sentence)

    def _sentence(self, winner: _Entrant) -> str:
        """Where the winner comes from, and what came second."""
        entries = winner.candidate.sparse.entries
        text = winner.candidate.origin
        if "entries" not in text:
            text += f"; {entries:,} entries" if entries != 1 else "; 1 entry"
        second = self._second(winner)
        if second is None:
            return text
        ahead = self._gain(winner).minus(self._gain(second))
        is_level = not ahead.value > LEVEL * ahead.standard_error
        rank = "level" if is_level else "behind"
        return f"{text}; second: {second.candidate.origin}, {rank}"

    def _rows(self) -> tuple[TriedCandidate, ...]:
        return tuple(entrant.row for entrant in self.entrants)

    def _drop(self, entrant: _Entrant, first: _Entrant, rung: Rung) -> None:
        """Let a candidate take no further part, behind ``first``."""
        self._tell(entrant)
        if self.scorer.exact:
            entrant.status = f"predicted to be no better than {first.candidate.label}"
            return
        entrant.status = f"after {_rung_text(rung, self.scorer.prompts)}"

    def _tell(self, entrant: _Entrant) -> None:
        """Report what a candidate earned."""
        if self.scorer.exact:
            return
        scored = _scored(entrant)
        mean = scored.outcome
        base = self.base.outcome
        text = (
            f"{self.label} {short(mean.reward.value)} (base {short(base.reward.value)};"
            f" {scored.samples}"
            f" samples a prompt{self.scorer.where})"
        )
        if self.goal.objective == "pareto":
            text += f", tokens {short(mean.tokens.value)} (base {short(base.tokens.value)})"
            if mean.accuracy is not None and base.accuracy is not None:
                accuracy = short(mean.accuracy.value)
                text += f", accuracy {accuracy} (base {short(base.accuracy.value)})"
        self.report.detail(f"validation, {entrant.candidate.label}: {text}")


def is_proven(difference: ByPrompt) -> bool:
    """Whether a difference is above 0 with the one-sided confidence ``PROVEN``, by Student's t: few
    prompts tell little of their own spread, so more is asked of them.
    """
    prompts = int((~np.isnan(difference.parts)).sum())
    if prompts < 2:
        return False
    needed = float(stdtrit(prompts - 1, PROVEN)) * difference.standard_error
    return difference.value > 0 and difference.value >= needed


def _scored(entrant: _Entrant) -> Scored:
    if entrant.scored is None:
        raise RuntimeError(f"{entrant.candidate.label} was ranked before it was scored")
    return entrant.scored


def _family(candidate: Candidate) -> str:
    """What a candidate is of; one family differs by strength and size alone."""
    settings = candidate.settings
    kinds = (settings.get(kind) for kind in ("rule", "boost", "calibration"))
    name = next((name for name in kinds if name), "")
    return f"{candidate.estimator} {name}"


def _rung_text(rung: Rung, prompts: int) -> str:
    """A rung in words."""
    samples = "1 sample"
    if rung.samples != 1:
        samples = f"{rung.samples} samples"
    if rung.prompts < prompts:
        return f"{samples} on {rung.prompts} of the prompts for {rung.candidates}"
    return f"{samples} a prompt for {rung.candidates}"
