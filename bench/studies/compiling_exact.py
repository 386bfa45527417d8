"""What a limit costs where the truth is known: exact rewards of full, compiled and cut biases on
models of thousands of tokens.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context

import numpy as np

from bench.studies.bigram import Bigram, Bools
from bench.studies.compiled import Learning, Row, rows
from blackbox_lb.estimate.next_token.next_token import NextToken

__all__ = ["PROBLEMS", "Case", "Plan", "Problem", "measure"]

HORIZON, TRAIN, TEST = 12, 40, 24
SHARPNESS, STEADY = 1.3, 0.3
RARE, ANSWERS = 157, 3
TOP = 20
"""Listed tokens a position: OpenAI's limit."""


@dataclass(frozen=True, slots=True)
class Problem:
    """score: nats that are fitted; value: what a user reads, of (holds a wanted token, tokens).
    by_prompt: wanted tokens differ.
    """

    name: str
    title: str
    tau: float
    score: Callable[[bool, int], float]
    value: Callable[[bool, int], float]
    by_prompt: bool

    def wanted(self, model: Bigram) -> Bools:
        """(p, v): one rare token, or for each prompt the few among common tokens that it makes
        likelier than other prompts do.
        """
        found = np.zeros((model.prompts, model.vocab_size), dtype=np.bool_)
        if not self.by_prompt:
            found[:, RARE] = True
            return found
        first = np.array([model.logprobs((), prompt) for prompt in range(model.prompts)])
        preference = (first - first.mean(axis=0))[:, 10:100]
        np.put_along_axis(found, 10 + np.argsort(-preference, axis=1)[:, :ANSWERS], True, axis=1)
        return found


def _short(wanted: bool, tokens: int) -> float:
    return math.log(HORIZON / tokens)


def _rare(wanted: bool, tokens: int) -> float:
    return float(wanted)


def _answer(wanted: bool, tokens: int) -> float:
    return float(wanted) - tokens / HORIZON


def _gated(wanted: bool, tokens: int) -> float:
    return wanted * HORIZON / tokens


def _log_gated(wanted: bool, tokens: int) -> float:
    return math.log(HORIZON / tokens) if wanted else -math.inf


PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("rare", "contains a rare good token", 0.25, _rare, _rare, False),
        Problem("answer", "1{correct} - length / T", 0.25, _answer, _answer, True),
        Problem("gated", "correct x T / length", 0.5, _log_gated, _gated, True),
        Problem("length", "ln(T / length)", 0.5, _short, _short, False),
    )
}


@dataclass(frozen=True, slots=True)
class Plan:
    """Every problem on models of these sizes and seeds; a full vector each from ``rollouts``
    completions.
    """

    problems: tuple[str, ...] = tuple(PROBLEMS)
    vocabularies: tuple[int, ...] = (1000, 2000)
    seeds: tuple[int, ...] = (1, 2, 3)
    rollouts: int = 2000
    l2: float = 5.0
    entries: tuple[int, ...] = (10, 30, 100, 300, 1024)


@dataclass(frozen=True, slots=True)
class Case:
    """One full vector: every row with its exact mean reward on prompts that it was not learned
    from.
    """

    problem: str
    vocabulary: int
    seed: int
    rows: tuple[Row, ...]
    rewards: tuple[float, ...]

    def kept(self, index: int) -> float:
        """The exact share of the full vector's gain (row 1 over row 0)."""
        base, full = self.rewards[:2]
        return (self.rewards[index] - base) / (full - base)


def measure(plan: Plan, processes: int = 1) -> list[Case]:
    """All cases of the plan. A limit that a vocabulary does not reach is left out."""
    jobs = list(itertools.product(plan.problems, plan.vocabularies, plan.seeds))
    work = partial(_case, plan=plan)
    if processes > 1:
        with get_context("spawn").Pool(processes) as pool:
            return pool.map(work, jobs, chunksize=1)
    return [work(job) for job in jobs]


def model_of(vocabulary: int, seed: int) -> Bigram:
    """A rank-frequency law, strong dependence on prompt, position and the last token, and an end
    token.
    """
    unigram = -1.35 * np.log(np.arange(1.0, vocabulary + 1))
    unigram[RARE] += 3.4
    unigram[-1] = 1.65
    return Bigram(
        vocabulary,
        HORIZON,
        seed=seed,
        prompts=TRAIN + TEST,
        sharpness=SHARPNESS,
        unigram=unigram,
        end=STEADY,
    )


def _case(job: tuple[str, int, int], plan: Plan) -> Case:
    problem, (name, vocabulary, seed) = PROBLEMS[job[0]], job
    model = model_of(vocabulary, seed)
    wanted = problem.wanted(model)

    def reward(tokens: tuple[int, ...], prompt: int) -> float:
        return problem.score(bool(wanted[prompt, list(tokens)].any()), len(tokens))

    rollouts = model.rollouts(plan.rollouts, reward, 100 + seed, top=TOP, prompts=range(TRAIN))
    entries = tuple(limit for limit in plan.entries if limit < vocabulary)
    found = rows(
        rollouts, NextToken.of(rollouts), vocabulary, Learning(problem.tau, plan.l2, entries)
    )
    exact = tuple(_reward(model, row, problem, wanted) for row in found)
    return Case(name, vocabulary, seed, tuple(found), exact)


def _reward(model: Bigram, row: Row, problem: Problem, wanted: Bools) -> float:
    delta, unseen = np.zeros(model.vocab_size), np.arange(TRAIN, TRAIN + TEST)
    delta[list(row.bias)] = list(row.bias.values())
    return model.exactly(delta, wanted[unseen], unseen).mean(problem.value)
