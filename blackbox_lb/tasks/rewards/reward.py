"""Rewards of completions in nats: by name, by a schema, from the user's own function, an HTTP
endpoint or a judge.

A reward is finite. One by a logarithm may be minus infinity, too: the completion is never imitated.
Logarithmic rewards are displayed as their exponentials: ``correct-and-short`` as correct x T/len,
not as its logarithm. T is the token limit and len the tokens of the completion, or of its thinking
or answer alone, by the provider's count, never below 1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from blackbox_lb.errors import DataError, InputError
from blackbox_lb.safety.printable import did_you_mean, shorten
from blackbox_lb.tasks.rewards.endpoint import EndpointReward, Judge, Remote
from blackbox_lb.tasks.rewards.json_schema import (
    VALID,
    arguments_valid,
    calls_reward,
    json_schema,
    problem_of_tools,
)
from blackbox_lb.tasks.rewards.matching import Matcher, parse_matcher
from blackbox_lb.tasks.rewards.spans import LocatedReward, Marks, TextRule, sum_of
from blackbox_lb.tasks.rewards.text_rules import TEXT_RULES, NamedRule
from blackbox_lb.tasks.rewards.thinking import Thinking
from blackbox_lb.tasks.rewards.user_function import checked_function, load_function
from blackbox_lb.tasks.sets.labels import Labels
from blackbox_lb.types import Completion, Example, Span

if TYPE_CHECKING:
    from blackbox_lb.tasks.sets.task import Task

REWARDS = {
    "exact-match": "1 if the whole completion is an accepted answer, else 0",
    "contains": "1 if an accepted answer occurs in the completion as whole words, else 0",
    "regex:PATTERN": (
        "1 if the pattern is found in the completion, else 0; {answer} in it stands for the"
        " accepted answers"
    ),
    "json-schema:FILE": (
        "1 if the completion, or its first fenced block, is JSON that the schema in the file"
        " accepts, else 0"
    ),
    "calls[:NAME]": "1 if the completion calls a function, or the one of that name, else 0",
    "arguments-valid": (
        "1 if the completion calls functions that its prompt offers, with arguments that their JSON"
        " Schema accepts, else 0"
    ),
    "accuracy": "1 if correct, else 0",
    "log-accuracy": "0 if correct, else minus infinity: imitate correct completions only",
    "length": "ln(T/len): shorter is better",
    "tokens": "-len/100: every token costs the same",
    "correct-and-short": (
        "ln(1{correct} T/len): the shorter among the correct, minus infinity if wrong"
    ),
    "accuracy-gated-length": "1{correct} T/len: the same without the logarithm",
    "accuracy-minus-length": "1{correct} - len/T",
    **{f"{name}:{form.takes}": form.meaning for name, form in TEXT_RULES.items()},
    "marks:FILE": "the sum of the marks that people made in stored completions",
    "distribution[:COLUMN]": (
        "minus the total variation between the labels that the completions name and the wanted"
        " shares in the data, by group where the column (group) has some"
    ),
    "module:function": (
        "your own: function(example, completion) -> nats, or (nats, spans), from the working"
        " directory or an installed package"
    ),
    "https://HOST/PATH": "what an HTTP endpoint of yours answers, in nats (http:// too)",
    "judge:FILE.toml": "what a language model says, asked as the file describes",
}
"""Every form of a reward, with its meaning in one line."""

RewardFunction: TypeAlias = Callable[[Example, Completion], Any]
"""A reward of the user's own, in nats."""
RewardKind: TypeAlias = Literal[
    "formula",
    "match",
    "json-schema",
    "calls",
    "arguments-valid",
    "text rule",
    "marks",
    "distribution",
    "judge",
    "endpoint",
    "function",
    "unknown",
]
GROUP = "group"
"""The column of the groups of ``distribution``, by default."""
TOTAL_VARIATION = "-total variation"
"""The displayed name of that reward."""
REMOTE = frozenset({"judge", "endpoint"})
"""Kinds whose values another program computes; its answers are stored."""


@dataclass(frozen=True, slots=True)
class Formula:
    """``label``: the displayed name, of exp of the value where ``scale`` is log. ``gated``: whether
    correctness enters; ``by_length``: whether length does.
    """

    label: str
    scale: Literal["linear", "log"]
    gated: bool
    value: Callable[[bool, int, int], float]
    by_length: bool = True


TOKEN_COST = 0.01
"""Nats that a token costs in ``tokens``."""

FORMULAS = {
    # 1{correct} (the paper, section "Preliminaries", r_accuracy; its GRPO baseline's reward for
    # accuracy).
    "accuracy": Formula(
        "accuracy",
        "linear",
        True,
        lambda correct, length, horizon: float(correct),
        by_length=False,
    ),
    # ln 1{correct}: 0 or -inf (the paper, section "Experimental setup", r_log-accuracy). The
    # strength tau then has no effect.
    "log-accuracy": Formula(
        "accuracy",
        "log",
        True,
        lambda correct, length, horizon: 0.0 if correct else -math.inf,
        by_length=False,
    ),
    # ln(T/len) (the paper, section "Experimental setup", r_length; its reward for compression).
    "length": Formula(
        "T/len", "log", False, lambda correct, length, horizon: math.log(horizon / length)
    ),
    # -len/100: a sum over tokens, each of which costs the same.
    "tokens": Formula(
        "-len/100", "linear", False, lambda correct, length, horizon: -length * TOKEN_COST
    ),
    # 1{correct} - len/L_max, from -1 to 1 (the paper, "Reward normalization and the role of R": a
    # range of 2 keeps the bound).
    "accuracy-minus-length": Formula(
        "accuracy - len/T",
        "linear",
        True,
        lambda correct, length, horizon: float(correct) - length / horizon,
    ),
    # ln(1{correct} T/len): the logarithm of the next, whose exponential at tau 1 is that reward.
    "correct-and-short": Formula(
        "correct x T/len",
        "log",
        True,
        lambda correct, length, horizon: math.log(horizon / length) if correct else -math.inf,
    ),
    # 1{correct} T/len (the paper, section "Experimental setup", r_length of its GRPO baseline):
    # from 0 to T.
    "accuracy-gated-length": Formula(
        "correct x T/len",
        "linear",
        True,
        lambda correct, length, horizon: horizon / length if correct else 0.0,
    ),
}
"""Name -> formula, of the paper or its baseline, in nats. ``correct`` is 1{m_x(y) = m*}, whether
the completion's answer is the accepted one; ``length`` its tokens, from 1; ``horizon`` the token
limit, which the paper calls T or L_max."""


@dataclass(slots=True)
class SpanCount:
    """How many answers of a reward had spans, and how many had none, so far."""

    with_spans: int = 0
    without_spans: int = 0


@dataclass(frozen=True, slots=True)
class Reward:
    """One way to score completions.

    ``scale``: "log" where ``exp(score)`` is displayed and "linear" where the score is; ``label``:
    the displayed name.
    ``needs_answer``: whether an example without answers cannot be scored. ``max_tokens``: of a
    completion. ``matcher``: its own test
    of correctness. ``right``: the test behind the accuracy beside it, None for ``matcher``.
    ``remote``: the service that computes it; its scores are fetched before they are read (see
    ``fetch_rewards``).
    ``thinking``: measured beside the reward, None where it is not named.
    ``function``: nats, or those with their spans.
    ``rule``: the rule about the text, where the reward is one or has one: it can be asked about any
    text, such as that of a token. ``token_cost``: nats of each token, where all cost the same.
    ``is_sum``: whether it is a sum over places; None where its answers tell. ``answers``: those so
    far. ``stored_only``: it knows completions that are stored, and no fresh ones.
    ``grouped_by``: the column of the groups within which the labels of all completions together are
    compared with wanted shares; None where each completion has a reward of its own.
    """

    name: str
    spec: str
    label: str
    scale: Literal["linear", "log"]
    needs_answer: bool
    max_tokens: int
    matcher: Matcher
    function: Callable[[Example, Completion], float | LocatedReward] = field(
        repr=False, compare=False
    )
    remote: Remote | None = field(default=None, repr=False, compare=False)
    thinking: Thinking | None = field(default=None, repr=False, compare=False)
    right: Matcher | None = field(default=None, repr=False, compare=False)
    rule: TextRule | None = field(default=None, repr=False, compare=False)
    token_cost: float | None = None
    is_sum: bool | None = False
    answers: SpanCount = field(default_factory=SpanCount, repr=False, compare=False)
    stored_only: bool = False
    grouped_by: str | None = None

    @property
    def of_shares(self) -> bool:
        """Whether it compares with wanted shares, so that no completion alone has a reward."""
        return self.grouped_by is not None

    @property
    def has_spans(self) -> bool:
        """Whether it is a sum over places, so that ``spans`` gives some. Of a user's own function,
        whether all its answers so far had spans, and at least one.
        """
        if self.is_sum is not None:
            return self.is_sum
        return self.answers.with_spans > 0 and self.answers.without_spans == 0

    @property
    def by_length(self) -> bool:
        """Whether the length of a completion enters, by a formula of this package."""
        return self.spec in FORMULAS and FORMULAS[self.spec].by_length

    @property
    def accuracy_matcher(self) -> Matcher:
        """The test that says which completions are correct."""
        return self.matcher if self.right is None else self.right

    def score(self, example: Example, completion: Completion) -> float:
        """Nats, possibly -inf. DataError: no answer where one is needed; InputError: the user's
        function failed, or a remote reward was not fetched.
        """
        return self.measure(example, completion).reward

    def spans(self, example: Example, completion: Completion) -> tuple[Span, ...] | None:
        """The places of the text where the reward is earned, which add up to it; None where it is
        no sum over places. Raises what ``score`` raises.
        """
        return self.measure(example, completion).spans

    def measure(self, example: Example, completion: Completion) -> LocatedReward:
        """``score`` and ``spans`` at once, with one call of the user's function."""
        result = self.function(example, completion)
        located = result if isinstance(result, LocatedReward) else LocatedReward(result)
        if self.scale == "linear" and located.reward == -math.inf:
            raise InputError(
                f"the reward {self.spec} is minus infinity for {example.place}, and policies are"
                " compared by their mean reward; give a finite number: with 20 times ``tau`` below"
                " the others a completion is as good as never imitated"
            )
        if located.spans is None:
            self.answers.without_spans += 1
        else:
            self.answers.with_spans += 1
        return located

    @property
    def is_untried(self) -> bool:
        """Whether it is computed by somebody else's code, and has not been computed so far."""
        tries = self.answers.with_spans + self.answers.without_spans
        return tries == 0 and (self.is_sum is None or self.remote is not None)

    def problem(self, example: Example) -> str | None:
        """What keeps completions of ``example`` from being scored, but for a missing answer; None
        where nothing does.
        """
        if self.spec == VALID:
            problem = problem_of_tools(example.prompt.tools)
            if problem is not None:
                return problem
        return self.matcher.problem(example) or self.accuracy_matcher.problem(example)

    def check(self, task: Task, *, needs_answers: bool = True) -> None:
        """Check that all rows of a task can be scored, before anything is paid for.

        Args:
            task: of whichever source.
            needs_answers: False where rows without one are left out of what is scored.

        Raises:
            DataError: some cannot; the message counts them and names the first.
        """
        places: defaultdict[str, list[str]] = defaultdict(list)
        for example in (*task.train, *task.validation, *task.test):
            problem = self.problem(example)
            if needs_answers and self.needs_answer and not example.answers:
                problem = f"no answer, and the reward {self.spec} compares with one"
            if problem is not None:
                places[problem].append(example.place)
        if not places:
            return
        listed = [_problem_with_places(*row) for row in list(places.items())[:MOST_NAMED]]
        if len(places) > MOST_NAMED:
            listed.append("...")
        count = sum(map(len, places.values()))
        rows = "1 row" if count == 1 else f"{count} rows"
        raise DataError(
            f"{rows} of the data cannot be scored: {'; '.join(listed)}; correct the data, or choose"
            " another reward or matcher (``reward``, ``correct``)"
        )

    def correct(self, example: Example, completion: Completion) -> bool | None:
        """Whether the completion is correct; None where the example has no answer, and where it
        has wanted shares, of which no label is the right one.
        """
        if self.of_shares:
            return None
        if self.accuracy_matcher.needs_answer and not example.answers:
            return None
        return self.accuracy_matcher(example, completion.text)

    def value(self, reward: float) -> float:
        """The displayed value of a reward in nats: exp(reward) on the log scale (0 for -inf),
        itself on the linear one.

        Raises:
            InputError: the exponential is no finite number.
        """
        if self.scale == "linear":
            return reward
        try:
            return math.exp(reward)
        except OverflowError as error:
            raise InputError(
                f"reward {reward} nats of {self.name} has no finite exponential; it must be"
                " below 709"
            ) from error


MOST_NAMED = 3
"""Problems of rows, and rows of each, that a message names."""


def _problem_with_places(problem: str, places: list[str]) -> str:
    named = ", ".join(places[:MOST_NAMED])
    if len(places) > MOST_NAMED:
        named = f"{named} and {len(places) - MOST_NAMED} more"
    return f"{problem} ({named})"


def parse_reward(
    spec: str | RewardFunction,
    *,
    max_tokens: int,
    correct: str | Matcher | None = None,
    thinking: str | None = None,
    count: str = "all",
    labels: Labels | None = None,
) -> Reward:
    """Make the reward ``spec`` (see REWARDS, or a function); ``max_tokens`` is T, in tokens.

    A function is recorded under its module and name. ``reward_kind`` tells the forms apart. The
    ``spec`` of the result holds no user and password of an address.
    ``correct``: the test of correctness where the reward has none itself: exact-match, contains,
    regex:PATTERN, or a matcher, such as a task's own; by default whether the first label named is
    right where the answers are ``labels``, else contains. ``thinking``: the stretch to measure (see
    ``Thinking``); ``count``: rewards by length count all tokens, or those of the thinking or the
    answer. InputError: unknown name, broken pattern, schema, judge or address, a function that
    cannot be imported or called with two arguments.
    """
    if max_tokens < 1:
        raise InputError(
            f"max_tokens is {max_tokens}; rewards compare lengths with it, so it must be at least 1"
            " token"
        )
    first_named = None
    if labels is not None and correct is None:
        first_named = labels.matcher
    if isinstance(correct, Matcher):
        matcher = correct
    else:
        matcher = first_named or parse_matcher(correct or "contains")
    measured = None
    if thinking is not None:
        measured = Thinking.parse(thinking)
    by_formula = isinstance(spec, str) and spec in FORMULAS
    if count != "all" and (measured is None or not by_formula):
        raise InputError(
            f"``count={count}`` needs ``thinking``, as in ``thinking='inside:<think>..</think>'``,"
            " and a reward by length"
            f" ({', '.join(name for name, formula in FORMULAS.items() if formula.by_length)});"
            " leave it out, or name them"
        )
    if not isinstance(spec, str):
        reward = _of_function(spec, max_tokens, matcher)
        return replace(reward, thinking=measured, right=first_named)
    kind = reward_kind(spec)
    head, _, rest = spec.partition(":")
    match kind:
        case "formula":
            reward = _formula(spec, max_tokens, matcher, measured, count)
        case "match":
            reward = _match_reward(spec, max_tokens)
        case "endpoint":
            reward = _remote(kind, EndpointReward.parse(spec), max_tokens, matcher)
        case "judge":
            reward = _remote(kind, Judge.load(rest), max_tokens, matcher)
        case "json-schema":
            scored = json_schema(rest)
            reward = Reward(kind, spec, "valid JSON", "linear", False, max_tokens, matcher, scored)
        case "calls":
            label = f"calls {rest}" if rest else "calls"
            scored = calls_reward(rest)
            reward = Reward(kind, spec, label, "linear", False, max_tokens, matcher, scored)
        case "arguments-valid":
            scored = arguments_valid()
            reward = Reward(kind, spec, "valid call", "linear", False, max_tokens, matcher, scored)
        case "distribution":
            reward = _distribution(spec, rest or GROUP, max_tokens, matcher)
        case "function":
            user_function = load_function(head, rest)
            reward = Reward(
                spec,
                spec,
                spec,
                "linear",
                False,
                max_tokens,
                matcher,
                user_function.score,
                rule=user_function.rule,
                is_sum=None,
            )
        case "text rule":
            reward = _rule_reward(spec, TEXT_RULES[head].make(rest), max_tokens, matcher)
        case "marks":
            marks = Marks.load(rest)
            reward = Reward(
                kind,
                spec,
                "sum of marks",
                "linear",
                False,
                max_tokens,
                matcher,
                marks.score,
                is_sum=True,
                stored_only=True,
            )
        case "unknown":
            raise _unknown(spec)
    return replace(reward, thinking=measured, right=first_named)


def reward_kind(spec: str) -> RewardKind:
    """The kind of reward that a spec names: the one place where the forms are told apart.

    The part before the first colon decides: ``regex:``, ``json-schema:``, ``calls:``, ``marks:``,
    ``distribution:``, ``judge:``, ``http:``, ``https:`` and the names of TEXT_RULES take the rest
    by their row in REWARDS, any other part is a module with the function after the colon. So a
    module of such a name must be wrapped in one of another name.
    """
    head, colon, rest = spec.partition(":")
    if spec in FORMULAS:
        return "formula"
    if spec in ("exact-match", "contains") or (colon and head == "regex"):
        return "match"
    if colon and head.strip().lower() in ("http", "https"):
        return "endpoint"
    if colon and head == "judge":
        return "judge"
    if colon and head == "json-schema":
        return "json-schema"
    if spec == VALID:
        return "arguments-valid"
    if head == "calls" and (not colon or rest):
        return "calls"
    if colon and head in TEXT_RULES:
        return "text rule"
    if colon and head == "marks":
        return "marks"
    if head == "distribution" and (not colon or rest):
        return "distribution"
    if colon and _is_dotted(head) and _is_dotted(rest):
        return "function"
    return "unknown"


def judges_answers(spec: str) -> bool:
    """Whether a reward by its name compares completions with right answers."""
    kind = reward_kind(spec)
    if kind == "formula":
        return FORMULAS[spec].gated
    return kind == "match" and parse_matcher(spec).needs_answer


def _of_function(function: RewardFunction, max_tokens: int, matcher: Matcher) -> Reward:
    """The reward that a function of the user's gives. Raises InputError: it is none, or takes other
    arguments than (example, completion).
    """
    if not callable(function):
        raise InputError(
            f"``reward`` is {shorten(function)}; give a function of (example, completion), or the"
            f" name of a reward: {', '.join(REWARDS)}"
        )
    module = getattr(function, "__module__", None) or type(function).__module__
    attribute = getattr(function, "__qualname__", None) or type(function).__qualname__
    spec = f"{module}:{attribute}"
    checked = checked_function(function, spec)
    label = attribute.rpartition(".")[2]
    return Reward(
        spec,
        spec,
        label,
        "linear",
        False,
        max_tokens,
        matcher,
        checked.score,
        rule=checked.rule,
        is_sum=None,
    )


def _unknown(spec: str) -> InputError:
    # A mistyped address may hold a password.
    quoted = spec
    if "//" in spec and "@" in spec:
        quoted = f"...{spec.rpartition('@')[2]}"
    hint = did_you_mean(quoted, REWARDS)
    return InputError(f"unknown reward {shorten(quoted)}{hint}; the rewards are\n{reward_list()}")


def reward_list() -> str:
    """A line for each form of a reward, with its meaning."""
    width = max(map(len, REWARDS))
    return "\n".join(f"  {name:<{width}}  {meaning}" for name, meaning in REWARDS.items())


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _match_reward(spec: str, max_tokens: int) -> Reward:
    matcher = parse_matcher(spec)
    name = spec.partition(":")[0]
    label = name
    if name == "regex":
        label = f"matches {shorten(spec.removeprefix('regex:'))}"

    def matches(example: Example, completion: Completion) -> float:
        return float(matcher(example, completion.text))

    return Reward(name, spec, label, "linear", matcher.needs_answer, max_tokens, matcher, matches)


def _formula(
    name: str, max_tokens: int, matcher: Matcher, thinking: Thinking | None, count: str
) -> Reward:
    formula = FORMULAS[name]
    token_cost = None
    if name == "tokens" and count == "all":
        token_cost = -TOKEN_COST

    def scored(example: Example, completion: Completion) -> float | LocatedReward:
        correct = formula.gated and matcher(example, completion.text)
        length = completion.n_tokens
        if thinking is not None and count != "all":
            length = thinking.counted(completion, count)
        value = formula.value(correct, max(length, 1), max_tokens)
        if token_cost is None:
            return value
        return LocatedReward(value, (Span(0, len(completion.text), value),))

    needs_answer = formula.gated and matcher.needs_answer
    label = formula.label
    if count != "all":
        label = f"{formula.label} (len: {count})"
    return Reward(
        name,
        name,
        label,
        formula.scale,
        needs_answer,
        max_tokens,
        matcher,
        scored,
        token_cost=token_cost,
        is_sum=token_cost is not None,
    )


def _rule_reward(spec: str, rule: NamedRule, max_tokens: int, matcher: Matcher) -> Reward:
    """The reward of a rule about the text alone."""

    def scored(example: Example, completion: Completion) -> LocatedReward:
        spans = rule.spans(completion.text)
        return LocatedReward(sum_of(spans), spans)

    return Reward(
        spec.partition(":")[0],
        spec,
        rule.label,
        "linear",
        False,
        max_tokens,
        matcher,
        scored,
        rule=rule,
        is_sum=True,
    )


def _distribution(spec: str, column: str, max_tokens: int, matcher: Matcher) -> Reward:
    """The distance to wanted shares, by the groups in ``column``."""

    def scored(example: Example, completion: Completion) -> float:
        raise InputError(
            f"{spec} compares the labels of all completions together with the wanted shares, and"
            " one completion alone has no reward; judge with blb eval, learn with"
            " ``learn_from=answers``"
        )

    return Reward(
        "distribution",
        spec,
        TOTAL_VARIATION,
        "linear",
        True,
        max_tokens,
        matcher,
        scored,
        grouped_by=column,
    )


def _remote(kind: str, remote: Remote, max_tokens: int, matcher: Matcher) -> Reward:
    return Reward(
        kind,
        remote.name,
        f"reward of {remote.name}",
        "linear",
        remote.needs_answer,
        max_tokens,
        matcher,
        remote.measure,
        remote,
        is_sum=isinstance(remote, Judge) and remote.file.quotes is not None,
    )
