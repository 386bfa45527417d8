"""The whole evaluation: every policy is drawn on the same test prompts, compared and reported."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from blackbox_lb.api.wire import asks_logprobs, takes_messages
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.request_bias import NO_BIAS, RequestBias, to_request_bias, to_vector
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.evaluation.compare import (
    comparisons,
    planned,
    row_of,
    unresolvable,
)
from blackbox_lb.jobs.evaluation.document import MOST_SHOWN, Evaluation, ShownPrompt
from blackbox_lb.jobs.evaluation.policies import BASE, Decides, Policy, policies_at
from blackbox_lb.jobs.evaluation.results import (
    Judged,
    PolicyAnswers,
    answers_of,
    collect_answers,
    concerned,
    decide,
)
from blackbox_lb.jobs.records.run_record import Remembering, provenance
from blackbox_lb.jobs.runs.names import TEST_SAMPLES
from blackbox_lb.rollouts.judging.decisions import check_wanted, confusable
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.judging.verdict import GREEDY, SAMPLED, Setting, parse_setting
from blackbox_lb.rollouts.stepped import check_parts
from blackbox_lb.tasks import Reward, Task
from blackbox_lb.types import Example

if TYPE_CHECKING:
    from blackbox_lb.providers.prices import Prices
    from blackbox_lb.tasks.sets.labels import Labels


@dataclass(frozen=True, slots=True)
class EvalPlan:
    """The settings of an evaluation. ``samples``: completions a prompt and policy. ``labels``: None
    where the task is no decision. ``go_on``: draw although no comparison can show anything.

    ``prices``: None where not known. ``parts``: judge the vector and the phrases of a bias that
    holds both by themselves, too.
    ``preset_options``: option -> value, what the command line does not show, for the record.
    """

    settings: tuple[Setting, ...] = (SAMPLED, GREEDY)
    rivals: tuple[Policy, ...] = ()
    samples: int = TEST_SAMPLES
    go_on: bool = False
    prices: Prices | None = None
    labels: Labels | None = None
    parts: bool = False
    preset_options: Mapping[str, str] = field(default_factory=dict)

    def judged(self, biases: Mapping[str, RequestBias]) -> list[Judged]:
        """Every policy at every setting."""
        parts: dict[str, RequestBias] = {}
        if self.parts:
            parts = parts_of(biases)
        return [
            (setting, policy)
            for setting in dict.fromkeys(self.settings)
            for policy in policies_at(setting, {**biases, **parts}, self.rivals, parts)
        ]


def parts_of(biases: Mapping[str, RequestBias]) -> dict[str, RequestBias]:
    """The vector and the phrases of each bias that holds both, as biases by themselves.

    Raises InputError: none does, or a name is taken.
    """
    parts: dict[str, RequestBias] = {}
    for name, bias in biases.items():
        if bias.token_ids and bias.phrase_entries:
            parts[f"{name} vector"] = to_vector(bias)
            parts[f"{name} phrases"] = RequestBias({}, phrase_entries=bias.phrase_entries)
    if not parts:
        raise InputError(
            "``parts`` judges a vector and phrases by themselves, and no bias holds both; leave it"
            " out"
        )
    taken = sorted(parts.keys() & biases.keys())
    if taken:
        raise InputError(
            f"a part of a bias and a bias would both be called {taken[0]!r}; give the bias another"
            " name with NAME=FILE"
        )
    return parts


def default_settings(biases: Iterable[Bias], reward: Reward) -> tuple[Setting, ...]:
    """The settings at which ``biases`` were judged; where none has a verdict, temperature 1 and
    greedy. Wanted shares have no greedy setting, and temperature 1 where none is left.
    """
    names = dict.fromkeys(row.setting for bias in biases for row in bias.verdict)
    settings = tuple(parse_setting(name.replace(" ", "=")) for name in names)
    if reward.of_shares:
        return tuple(setting for setting in settings if not setting.deterministic) or (SAMPLED,)
    return settings or (SAMPLED, GREEDY)


async def evaluate(
    trials: Trials, task: Task, biases: Mapping[str, Bias], plan: EvalPlan
) -> Evaluation:
    """Judge base, biases, rivals and both together on the test prompts. The trials' store is not
    asked for again.

    ``biases``: by their names in the result; they must fit the model's tokenizer and the provider's
    limits already.

    Raises ProviderError: the API failed; what was received is kept. InputError: a name that is
    taken, completions that cannot be ranked, or nothing to compare.
    """
    if BASE in biases:
        raise InputError(
            f"a bias cannot be called {BASE!r}, which is the policy without one; name it with"
            " NAME=FILE"
        )
    check_wanted(trials.reward, task.test, plan.settings)
    remembering = Remembering(trials.report)
    trials = replace(trials, report=remembering)
    examples = task.test
    values = {name: to_request_bias(bias, trials.store) for name, bias in biases.items()}
    for bias in values.values():
        check_parts(trials.session, bias)
    plan = replace(plan, rivals=tuple([await rival.ready(trials) for rival in plan.rivals]))
    judged = [
        (setting, policy)
        for setting, policy in plan.judged(values)
        if _is_ranked(trials, setting, policy)
    ]
    _check_names(judged)
    _announce(trials, plan, examples, judged)
    for name, document in biases.items():
        if document.task == task.name and document.data_hash not in (None, task.data_hash):
            trials.report.notice(
                f"{name} was learned on other examples of {task.name}, or on another division of"
                " them: make sure that no test prompt here is one that it was learned or chosen on"
                " (the same ``data``, ``test_data`` and limits)"
            )
    notices = [] if plan.labels is None else list(confusable(plan.labels, trials.reward.matcher))
    for sentence in [*notices, *([task.note] if task.note else [])]:
        trials.report.notice(sentence)
    first = next(iter(values.values()), NO_BIAS)
    results = await _results(trials, plan, examples, judged, first)
    return _evaluation(trials, task, plan, examples, results, remembering)


async def _results(
    trials: Trials,
    plan: EvalPlan,
    examples: Sequence[Example],
    judged: Sequence[Judged],
    first: RequestBias,
) -> list[PolicyAnswers]:
    """The results of all policies. Decisions made here come first, so that errors come in time, and
    are the same at all settings.

    first: the first bias; it is marked in answers of policies without one.
    """
    decided: dict[Policy, PolicyAnswers] = {}
    if plan.labels is not None:
        for setting, policy in judged:
            if isinstance(policy, Decides) and policy not in decided:
                decided[policy] = await decide(
                    trials, examples, setting, policy, plan.labels, first
                )
    drawn = [(setting, policy) for setting, policy in judged if policy not in decided]
    phrases = concerned(trials.reward, drawn)
    tables = iter(await collect_answers(trials, examples, drawn, plan.samples))
    results = []
    for setting, policy in judged:
        if policy in decided:
            results.append(replace(decided[policy], setting=setting))
            continue
        marked = policy.sent if policy.judged else first
        table = next(tables)
        results.append(
            answers_of(trials, examples, (setting, policy), table, plan.labels, marked, phrases)
        )
    return results


def _evaluation(
    trials: Trials,
    task: Task,
    plan: EvalPlan,
    examples: Sequence[Example],
    results: Sequence[PolicyAnswers],
    remembering: Remembering,
) -> Evaluation:
    label = trials.reward.label
    limit = trials.reward.max_tokens
    bases = {result.setting: result for result in results if result.policy.name == BASE}
    policies = tuple(
        row_of(result, label, limit, plan.prices, bases.get(result.setting)) for result in results
    )
    rows = comparisons(results, label)
    fewest = min((row.n_prompts for row in rows), default=0)
    if rows and fewest < len(examples):  # else it was said before the first request
        judged = [(result.setting, result.policy) for result in results]
        for sentence in unresolvable(fewest, judged, Counter(row.family for row in rows)):
            trials.report.notice(sentence)
    if plan.prices is not None and any(row.prompt_tokens == 0 for row in policies):
        trials.report.notice(
            f"{trials.session.profile.name} does not count prompt tokens: costs are of completions"
            " only"
        )
    return Evaluation(
        provider=trials.session.profile.name,
        model=trials.session.model,
        task=task.name,
        reward=trials.reward.name,
        label=label,
        policies=policies,
        comparisons=rows,
        examples=tuple(_shown(examples, results)),
        provenance=provenance(remembering.notices, settings=plan.preset_options),
    )


def _check_names(judged: Sequence[Judged]) -> None:
    """Raise InputError where two policies of a setting would have one name, and indistinguishable
    rows.
    """
    names = [(setting.name, policy.name) for setting, policy in judged]
    repeated = sorted({name for place, name in names if names.count((place, name)) > 1})
    if repeated:
        raise InputError(
            f"two policies would both be called {repeated[0]!r}; give the bias another name with"
            " NAME=FILE, and one list of phrases"
        )


def _is_ranked(trials: Trials, setting: Setting, policy: Policy) -> bool:
    """Whether the policy can be drawn; raises for one without a bias whose completions cannot be
    ranked, leaves out one with a bias, with a remark.
    """
    why = unranked(trials, setting, policy)
    if why is not None and policy.judged is None:
        raise InputError(
            f"``rival=best-of`` cannot rank completions at {setting.name}: {why}; drop it"
        )
    if why is not None:
        trials.report.notice(f"{setting.name}, {policy.name} is left out: {why}")
    return why is None


def unranked(trials: Trials, setting: Setting, policy: Policy) -> str | None:
    """The reason why the provider's logprobs cannot rank several completions by the base model;
    None where they can.
    """
    if policy.group == 1:
        return None
    profile = trials.session.profile
    where = trials.session.biased_endpoint
    if not asks_logprobs(profile.endpoint(where), trials.top_logprobs):
        return f"no logprobs are returned on the {where} endpoint of {profile.name}"
    sent = policy.bias
    is_biased = bool(sent) or sent.phrases is not None
    is_of_base = not is_biased and policy.drawn_at(setting).temperature == 1
    if profile.logprobs.meaning == "before bias" or is_of_base:
        return None
    verb = "is not known to return" if profile.logprobs.meaning == "unknown" else "does not return"
    return (
        f"{profile.name} {verb} the base model's logprobs with a bias or at another temperature"
        " than 1"
    )


def _announce(
    trials: Trials, plan: EvalPlan, examples: Sequence[Example], judged: Sequence[Judged]
) -> None:
    """Announce what is compared, and remarks on the prompts, before anything costs money.

    Raises InputError: so few prompts could show nothing among so many comparisons.
    """
    trials.report.notice(
        f"{len(judged)} policies on {len(examples)} test prompts, {plan.samples} completions of"
        " each (one where greedy); what is in the store is not asked for again"
    )
    if len(judged) > 1:
        counts = planned(judged, trials.reward, examples)
        trials.report.notice(
            f"{counts['primary']} primary comparisons (a bias with the base; without a bias, a"
            f" rival with it) and {counts['secondary']} secondary ones; p is adjusted within"
            " each of both"
        )
        hopeless = list(unresolvable(len(examples), judged, counts))
        if not plan.go_on and len(hopeless) == sum(count > 0 for count in counts.values()):
            raise InputError(f"{hopeless[0]}, or ``go_on`` to draw all the same")
        for sentence in hopeless:
            trials.report.notice(sentence)
    for cost in dict.fromkeys(
        f"{policy.rival}: {policy.cost}" for _, policy in judged if policy.cost
    ):
        trials.report.notice(cost)
    instructed = any("instruction" in policy.facts for _, policy in judged)
    if instructed and not takes_messages(trials.session.biased_endpoint):
        trials.report.notice(
            "the completions endpoint takes one text, so instructions stand at its very end, after"
            " any cue for the answer; a chat endpoint treats them more fairly"
        )
    elif instructed and any(
        example.prompt.messages[-1].content.rstrip().endswith(":") for example in examples
    ):
        trials.report.notice(
            "prompts end with a cue for the answer, and instructions stand after it, which may do"
            " an instruction less than justice"
        )


def _shown(examples: Sequence[Example], results: Sequence[PolicyAnswers]) -> Iterator[ShownPrompt]:
    """Answers of base and biases side by side, greedy ones where there are any, else first samples;
    without a bias, of all policies.

    Prompts where an answer differs from the base's come first; else their order is the task's.
    """
    settings = dict.fromkeys(result.setting for result in results)
    chosen = next((setting for setting in settings if setting.deterministic), next(iter(settings)))
    setting_results = [result for result in results if result.setting == chosen]
    biased = any(result.policy.judged for result in setting_results)
    sides = [result for result in setting_results if not (biased and result.policy.rival)]
    rows = list(zip(examples, *(side.first for side in sides), strict=True))
    rows.sort(key=lambda row: len({answer.text for answer in row[1:] if answer is not None}) < 2)
    for example, *answers in rows[:MOST_SHOWN]:
        yield ShownPrompt(
            id=example.id,
            prompt=example.prompt.text,
            answers=example.answers,
            completions=tuple(answer for answer in answers if answer is not None),
        )
