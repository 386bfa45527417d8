"""A page of the gallery: at most two screens of Markdown from its results."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.commands import Place
from bench.gallery.index import difference, number, signed
from bench.gallery.pictures import draw
from bench.gallery.results import (
    FEWEST_PROMPTS,
    JUDGEMENTS,
    MARGIN,
    Evaluation,
    Fit,
    Judgement,
    PageResults,
    Policy,
    Table,
    cut_name,
    rival_name,
)
from bench.gallery.use import Use
from bench.measuring import markdown
from bench.steps import COMPLETIONS, Step

# What ``blb fit`` says before it asks.
from blackbox_lb.jobs.runs.conclusion import smallest_effect

__all__ = ["beforehand", "page", "policies_table", "portable", "program_table", "write_page"]

MADE = "<!-- written by `python -m bench.gallery`, not by hand -->"
WIDTH = 120
MOST_TITLES = 5
"""Evaluations of a page whose best ways are named in sentences."""
LONGEST = 60
"""Characters of an instruction in a table."""
SMALLEST = "smallest difference that shows"
WITHOUT = "the model without a bias"
SIMPLEST = ("base", "rival", "bias", "rival and bias")
"""Kinds of policies, those that ask least first."""


def write_page(
    results: PageResults, use: Use, steps: Sequence[Step], place: Place, pages: Path
) -> None:
    """Write NAME.md, NAME.json and NAME.svg into ``pages``."""
    name = results.use
    text = results.model_dump_json(indent=1, exclude_defaults=True)
    part = pages / f"{name}.part"  # an index that is written meanwhile reads no half of it
    part.write_text(text + "\n", encoding="utf-8")
    part.replace(pages / f"{name}.json")
    picture = draw(results, pages / f"{name}.svg")
    commands = [_command(step, place) for step in steps if not step.repeats]
    left_out = sum(step.repeats for step in steps)
    written = page(results, use.intro, picture, commands, left_out)
    (pages / f"{name}.md").write_text(written, encoding="utf-8")


def page(
    results: PageResults, intro: str, picture: str, commands: Sequence[str], left_out: int = 0
) -> str:
    """The text of a page. ``left_out``: commands that are like one of ``commands``."""
    run = results.run
    made = f"{run.date}, {run.cores} cores; {', '.join([*results.models, ''])}"
    if run.small:
        made += "small size, "
    made += f"{run.minutes:.0f} min."
    parts = [f"# {results.title}\n\n{MADE}\n", _wrapped(intro)]
    settings = _wrapped(made)
    if results.evaluations:
        settings += _wrapped(f"{beforehand(results)} {_terms(results)}")
    parts.append(settings)
    if picture:
        parts.append(f"![The reward of every policy with its 95 % interval]({picture})\n")
    parts += [policies_table(evaluation) for evaluation in results.judged]
    if results.labelled:
        parts.append(_by_labels(results.labelled))
    sentences = what_came(results)
    if sentences:
        parts.append("## What came\n\n" + _bullets(sentences))
    parts += [
        _by_examples(results, evaluation)
        for evaluation in results.evaluations
        if evaluation.learned_from
    ]
    parts += [program_table(table) for table in _joined(results.tables)]
    ends = [f"{line}." for line in _fit_lines(results)]
    if ends:
        parts.append("## How the fits ended\n\n" + _bullets(ends))
    shown = "".join(f"$ {command}\n" for command in commands)
    small = " --small" if run.small else ""
    shown = f"$ uv run python -m bench.gallery {results.use}{small}   # all of these\n{shown}"
    if left_out:
        shown += f"# and {left_out} commands like these, with other data or numbers\n"
    parts.append(f"## Commands\n\n```console\n{shown}```\n")
    return "\n".join(parts)


def beforehand(results: PageResults) -> str:
    """What the numbers of test prompts can show, whatever comes; as ``blb fit`` says it before it
    asks.
    """
    sizes = {(evaluation.prompts, evaluation.is_share): None for evaluation in results.evaluations}
    parts: list[str] = []
    for prompts, is_share in sizes:
        effect = smallest_effect(prompts, is_share=is_share)
        if not is_share:
            effect += " of a prompt's difference"
        shows = "above about" if parts else "test prompts show differences above about"
        parts.append(f"{prompts} {shows} {effect}")
    return f"Said beforehand: {', '.join(parts)}."


def _terms(results: PageResults) -> str:
    """What "equal" and "open" mean on a page."""
    margins = []
    if any(evaluation.is_share for evaluation in results.evaluations):
        margins.append(signed(MARGIN))
    if not all(evaluation.is_share for evaluation in results.evaluations):
        margins.append("a tenth of what the model earns without a bias")
    return (
        f"Equal: the 95 % interval of the difference stays within ± {' or '.join(margins)}, on"
        f" {FEWEST_PROMPTS} prompts or more; open: these prompts do not tell."
    )


def _wrapped(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False) + "\n"


def _bullets(lines: Iterable[str]) -> str:
    return "".join(
        textwrap.fill(
            f"- {line}",
            WIDTH,
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
        for line in lines
    )


def _interval(policy: Policy) -> str:
    if policy.mean is None or policy.low is None or policy.high is None:
        return ""
    return f"{policy.mean:.2f} ({policy.low:.2f} to {policy.high:.2f})"


def _against(evaluation: Evaluation, policy: Policy, name: str) -> str:
    """The verdict of ``name`` against a policy, with the difference and its interval."""
    verdict = evaluation.judgement(policy, name)
    return f"{verdict} {difference(policy.differences.get(name))}".strip()


def _of_biases(evaluation: Evaluation, policy: Policy, verdicts: Mapping[str, str]) -> str:
    """The verdicts against a policy; the bias is named where there are several."""
    if policy.kind == "rival and bias":
        return ""
    if len(evaluation.at(policy.setting, "bias")) == 1:
        return "".join(verdicts.values())
    return ", ".join(f"{bias} {verdict}" for bias, verdict in verdicts.items())


def _beside_smallest(words: str, evaluation: Evaluation, setting: str) -> str:
    """The head of a column of verdicts, with the smallest difference that shows."""
    smallest = evaluation.smallest_difference(setting)
    if smallest is None:
        return words
    return f"{words} ({SMALLEST}: {signed(smallest)})"


def policies_table(evaluation: Evaluation) -> str:
    """A table for each setting, the highest reward first; of rivals that a bias joins, those with
    the best bias.
    """
    text = f"## {evaluation.title}\n"
    has_right = _has_right(evaluation)
    for setting in evaluation.settings:
        has_tokens = any(policy.tokens is not None for policy in evaluation.at(setting))
        has_log_loss = any(policy.log_loss is not None for policy in evaluation.at(setting))
        head = [f"{setting}, {evaluation.prompts} test prompts", evaluation.reward]
        if has_right:
            head.append("right")
        if has_tokens:
            head.append("tokens")
        against = "mended against it" if has_log_loss else "learned bias against it"
        head.append(_beside_smallest(against, evaluation, setting))
        if has_log_loss:
            head += ["log loss", against]
        best = evaluation.best(setting, "bias")
        rows = []
        for policy in sorted(evaluation.at(setting), key=_reward, reverse=True):
            is_joined = policy.kind == "rival and bias"
            if is_joined and best is not None and not policy.name.endswith(f" and {best.name}"):
                continue
            name = cut_name(policy.name, LONGEST)
            if policy.kind == "bias":
                name = f"**{name}**"
            cells = [name, _interval(policy)]
            if has_right:
                cells.append(number(policy.right))
            if has_tokens:
                cells.append("" if policy.tokens is None else f"{policy.tokens:.1f}")
            by_reward = {name: _against(evaluation, policy, name) for name in policy.verdicts}
            cells.append(_of_biases(evaluation, policy, by_reward))
            if has_log_loss:
                by_log_loss = _of_biases(evaluation, policy, policy.by_log_loss)
                cells += [number(policy.log_loss), by_log_loss]
            rows.append(cells)
        text += f"\n{markdown(head, rows)}\n"
    return text


def _reward(policy: Policy) -> float:
    return float("-inf") if policy.mean is None else policy.mean


def _has_right(evaluation: Evaluation) -> bool:
    """Whether right answers are known of every policy and are not what the reward says."""
    pairs = [(policy.right, policy.mean) for policy in evaluation.policies]
    return all(right is not None for right, _ in pairs) and any(
        right != mean for right, mean in pairs
    )


def _by_labels(labelled: dict[str, list[Evaluation]]) -> str:
    """One table of all tasks: the best bias beside the best rival for each number of labels."""
    first = next(iter(labelled.values()))[0]
    text = f"{first.prompts} test prompts; the best bias and the best rival by reward"
    text += f" ({first.reward}).{_draws(labelled)}{_smallest_by_labels(labelled)}"
    head = ["task", "labels", "base", "learned bias", "best rival", "learned bias against it"]
    rows = []
    for title, evaluations in labelled.items():
        for evaluation in evaluations:
            for setting in evaluation.settings:
                bias, best, _ = evaluation.ahead(setting)
                task = title if setting == evaluation.settings[0] else f"{title}, {setting}"
                rival = ""
                against = ""
                if best is not None:
                    rival = f"{rival_name(best.name)} {_mean_and_spread(best)}"
                    against = _against(evaluation, best, bias.name)
                base = _mean_and_spread(evaluation.base(setting))
                learned = f"**{bias.name}** {_interval(bias)}"
                if bias.spread is not None:
                    learned = f"**{bias.name}** {_mean_and_spread(bias)}"
                rows.append((task, str(evaluation.labels), base, learned, rival, against))
    return f"## By the number of labels\n\n{_wrapped(text)}\n{markdown(head, rows)}\n"


def _mean_and_spread(policy: Policy) -> str:
    """A reward, with its spread over draws of the labelled rows where there were several."""
    if policy.spread is None:
        return number(policy.mean)
    return f"{number(policy.mean)} ± {signed(policy.spread)}"


def _draws(labelled: dict[str, list[Evaluation]]) -> str:
    """What the rewards of a curve are means of, "" where the labelled rows were drawn once."""
    counts = {
        evaluation.draws
        for evaluations in labelled.values()
        for evaluation in evaluations
        if evaluation.draws is not None
    }
    if not counts:
        return ""
    draws = f"{max(counts)} draws"
    if len(counts) > 1:
        draws = f"{min(counts)} to {max(counts)} draws"
    return f" ±: mean of {draws} of the labelled rows and standard deviation between them."


def _smallest_by_labels(labelled: dict[str, list[Evaluation]]) -> str:
    """The smallest difference that shows, from the best row of a curve to the worst."""
    found = [
        smallest
        for evaluations in labelled.values()
        for evaluation in evaluations
        for setting in evaluation.settings
        if (smallest := evaluation.smallest_difference(setting)) is not None
    ]
    if not found:
        return ""
    least = signed(min(found))
    most = signed(max(found))
    if least == most:
        return f" {SMALLEST.capitalize()}: {least}."
    return f" {SMALLEST.capitalize()}: {least} to {most} by row."


def _by_examples(results: PageResults, curve: Evaluation) -> str:
    """The table of a curve by the number of examples."""
    setting = curve.settings[0]
    text = f"## How many {curve.examples}?\n\n"
    if curve.examples == COMPLETIONS:
        text += _wrapped(
            "The first completions of each training prompt from the same store, at one strength,"
            " without a search; the last row is the bias above."
        )
    else:
        text += _wrapped(
            f"The same fit of the first training and validation {curve.examples} together; the"
            " last row is the bias above."
        )
    against = _beside_smallest("against the base", curve, setting)
    rows = []
    for number_of_examples, policy in results.by_examples(curve, setting).items():
        verdict = ""
        for evaluation in results.evaluations:
            if evaluation.title == curve.title:
                base = evaluation.base(setting)
                verdict = _against(evaluation, base, policy.name) or verdict
        tokens = "" if policy.tokens is None else f"{policy.tokens:.1f}"
        rows.append([str(number_of_examples), _interval(policy), tokens, verdict])
    return f"{text}\n{markdown([curve.examples, curve.reward, 'tokens', against], rows)}\n"


def _joined(tables: Iterable[Table]) -> list[Table]:
    """The tables, each beside the one before it where both have the same rows."""
    joined: list[Table] = []
    for table in tables:
        both = joined[-1].beside(table) if joined else None
        if both is not None:
            joined[-1] = both
        else:
            joined.append(table)
    return joined


def program_table(table: Table) -> str:
    """A table that a program printed, and its notes."""
    rows = [[cut_name(cell, LONGEST).replace("|", "\\|") for cell in row] for row in table.rows]
    text = f"## {table.title}\n\n{markdown(table.head, rows)}\n"
    if table.notes:
        text += "\n" + _wrapped(" ".join(cut_name(note, LONGEST) for note in table.notes))
    return text


def what_came(results: PageResults) -> list[str]:
    """Sentences about the best ways, and then about who won, first where a rival does. Of many
    titles the tables alone tell the best ways.
    """
    titles = results.last if len(results.last) <= MOST_TITLES else []
    best = [
        _best_of(evaluation, named=len(titles) > 1)
        for evaluation in titles
        if any(policy.mean is not None for policy in evaluation.at(evaluation.settings[0]))
    ]
    ahead: list[str] = []
    others: list[str] = []
    for evaluation in results.judged:
        for setting in evaluation.settings:
            for bias in evaluation.at(setting, "bias"):
                sentence = _who_won(evaluation, setting, bias, named=len(results.judged) > 1)
                is_behind = any(
                    policy.verdicts.get(bias.name) == "loses"
                    for policy in evaluation.at(setting, "rival", "base")
                )
                (ahead if is_behind else others).append(sentence)
    return best + ahead + others + _who_won_by_labels(results.labelled)


def _best_of(evaluation: Evaluation, *, named: bool) -> str:
    """The ways with the highest reward at the first setting, and the others behind them.

    Ways whose rewards are shown alike share the first place; a rival with a bias is left out of it
    where something simpler is as good.
    """
    setting = evaluation.settings[0]
    scored = [policy for policy in evaluation.at(setting) if policy.mean is not None]
    scored.sort(key=lambda policy: SIMPLEST.index(policy.kind))
    most = number(max(map(_reward, scored)))
    leaders = [policy for policy in scored if number(policy.mean) == most]
    simple = [policy for policy in leaders if policy.kind != "rival and bias"]
    if simple:
        leaders = simple
    each = "" if len(leaders) == 1 else " each"
    text = f"{_listed([_way(evaluation, policy) for policy in leaders])} ({most}{each})"
    others = _behind(evaluation, leaders)
    if others:
        text += f"; {', '.join(others)}"
    where = [evaluation.title] if named else []
    if evaluation.labels is not None:
        where.append(f"{evaluation.labels} labels")
    if len(evaluation.settings) > 1:
        where.append(setting)
    if where:
        return f"Best ({', '.join(where)}): {text}."
    return f"Best: {text}."


def _behind(evaluation: Evaluation, leaders: Sequence[Policy]) -> list[str]:
    """Of each kind that does not lead the best policy, and what a rival with a bias consists of,
    with their rewards, the highest first; the base is left out where it is the last of several.
    """
    setting = evaluation.settings[0]
    alone: list[Policy] = []
    for pair in leaders:
        alone += [part for part in evaluation.joined(pair) if part not in alone]
    kinds = {policy.kind for policy in leaders}
    others = list(alone)
    for kind in ("base", "rival", "bias"):
        best = evaluation.best(setting, kind)
        if best is not None and kind not in kinds and best not in others:
            others.append(best)
    others.sort(key=_reward, reverse=True)
    if len(others) > 1 and others[-1].kind == "base":
        others.pop()
    return [
        f"{_way(evaluation, policy)}{' alone' if policy in alone else ''} {number(policy.mean)}"
        for policy in others
    ]


def _way(evaluation: Evaluation, policy: Policy) -> str:
    """A policy in a sentence; the text of an instruction stands in the table, and here where there
    are several. With a log loss it is of probabilities that a fit mended.
    """
    if policy.kind == "base":
        return WITHOUT if policy.log_loss is None else "the base"
    if policy.kind == "bias" and policy.log_loss is not None:
        return "the mended reading"
    if policy.kind == "bias":
        return "the learned bias" if policy.name == "bias" else f'the learned bias "{policy.name}"'
    joined = evaluation.joined(policy)
    if joined:
        return " with ".join(_way(evaluation, part) for part in joined)
    names = [rival_name(rival.name) for rival in evaluation.at(policy.setting, "rival")]
    named = rival_name(policy.name)
    if names.count("instruction") > 1:
        named = cut_name(policy.name, LONGEST)
    return re.sub("^instruction\\b", "the instruction", named)


def _who_won(evaluation: Evaluation, setting: str, bias: Policy, *, named: bool) -> str:
    """What came of one bias at one setting."""
    rivals: dict[Judgement, list[str]] = {verdict: [] for verdict in JUDGEMENTS}
    base = evaluation.base(setting)
    without = f"{_way(evaluation, base)} ({number(base.mean)})"
    against_base = evaluation.judgement(base, bias.name)
    if against_base == "equal" or against_base == "open":
        rivals[against_base].append(without)
    for rival in sorted(evaluation.at(setting, "rival"), key=_reward, reverse=True):
        verdict = evaluation.judgement(rival, bias.name)
        if verdict:
            rivals[verdict].append(f"{_way(evaluation, rival)} ({number(rival.mean)})")
    name = f"{_way(evaluation, bias)} ({number(bias.mean)})"
    sentences = []
    if rivals["loses"]:
        verb = "beats" if len(rivals["loses"]) == 1 else "beat"
        sentences.append(f"{_listed(rivals['loses'])} {verb} {name}")
    subject = name
    if against_base == "wins":
        sentences.append(f"{subject} beats {without}")
        subject = "it"
    if against_base == "loses":
        sentences.append(f"{subject} is worse than {without}")
        subject = "it"
    if rivals["wins"]:
        sentences.append(f"{subject} beats {_listed(rivals['wins'])}")
        subject = "it"
    if rivals["equal"]:
        sentences.append(f"{subject} is equal to {_listed(rivals['equal'])}")
        subject = "it"
    if rivals["open"]:
        sentences.append(f"these prompts do not tell {subject} from {_listed(rivals['open'])}")
    together: dict[str, list[str]] = {"more": [], "less": []}
    joined = evaluation.at(setting, "rival and bias")
    if bias is not evaluation.best(setting, "bias"):
        joined = []
    for pair in joined:
        parts = evaluation.joined(pair)
        added = pair.verdicts.get(parts[0].name, "level") if bias in parts else "level"
        if added != "level":
            effect = "more" if added == "wins" else "less"
            together[effect].append(f"{_way(evaluation, parts[0])} ({number(pair.mean)})")
    for effect, pairs in together.items():
        if pairs:
            verb = "earns" if len(pairs) == 1 else "earn"
            sentences.append(f"with the bias, {_listed(pairs)} {verb} {effect} than without")
    text = ". ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)
    where = setting.capitalize() if setting == "greedy" else f"At {setting}"
    if named:
        where = f"{evaluation.title}, {setting}"
    return f"{where}: {text}."


def _listed(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _who_won_by_labels(labelled: dict[str, list[Evaluation]]) -> list[str]:
    """For each rival that beats the best bias somewhere, where; then the counts of the others, and
    where the bias does not beat the base.
    """
    if not labelled:
        return []
    ahead: dict[str, dict[str, list[str]]] = {}
    unmoved: dict[str, list[str]] = {}
    counts = dict.fromkeys(JUDGEMENTS, 0)
    for title, evaluations in labelled.items():
        task = title.partition(",")[0]
        for evaluation in evaluations:
            for setting in evaluation.settings:
                bias, _, _ = evaluation.ahead(setting)
                labels = str(evaluation.labels)
                if setting != evaluation.settings[0]:
                    labels += f" at {setting}"
                if evaluation.base(setting).verdicts.get(bias.name) != "wins":
                    unmoved.setdefault(task, []).append(labels)
                for rival in evaluation.at(setting, "rival"):
                    verdict = evaluation.judgement(rival, bias.name)
                    if verdict == "loses":
                        places = ahead.setdefault(_way(evaluation, rival), {})
                        places.setdefault(task, []).append(labels)
                    elif verdict:
                        counts[verdict] += 1
    sentences = [
        f"Ahead of the best bias, with so many labels: {rival}, on {_places(places)}."
        for rival, places in ahead.items()
    ]
    if not ahead:
        sentences.append("No rival beats the best bias.")
    sentences.append(
        f"In the other comparisons the best bias wins {counts['wins']} times, is equal"
        f" {counts['equal']} times and open {counts['open']} times."
    )
    if unmoved:
        sentences.append(
            "The best bias is not shown to beat the model without it, with so many labels, on"
            f" {_places(unmoved)}."
        )
    return sentences


def _places(places: dict[str, list[str]]) -> str:
    """Tasks, each with its numbers of labels."""
    return _listed([f"{task} ({', '.join(labels)})" for task, labels in places.items()])


def _fit_lines(results: PageResults) -> list[str]:
    """How each fit ended; fits that ended alike share a line, with their seconds together."""
    alike: dict[str, list[Fit]] = {}
    for fit in results.fits:
        alike.setdefault(fit.end, []).append(fit)
    return [
        f"{', '.join(f'`{fit.name}`' for fit in fits)}"
        f" ({sum(fit.seconds for fit in fits):.0f} s): {end}"
        for end, fits in alike.items()
    ]


def portable(word: str, place: Place) -> str:
    """A word of a command, with the folders of the run replaced by OUT and DATA."""
    folders = {"OUT": place.out, "DATA": place.data}
    for name, folder in folders.items():
        word = re.sub(rf"(?<![\w./-]){re.escape(str(folder))}(?=/|$)", name, word)
    return word


def _command(step: Step, place: Place) -> str:
    """The command as a reader would type it, without this machine's folders."""
    variables = [f"{name}={value}" for name, value in step.variables.items()]
    program = ["uv", "run", "python", "-m", step.module] if step.module else ["blb"]
    words = (portable(word, place) for word in (*variables, *program, *step.words))
    return shlex.join(re.sub(r"(?<![\w.:/])/\S*/", "", word) for word in words)
