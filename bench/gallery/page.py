"""A page of the gallery: at most two screens of Markdown from its results."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from bench.commands import Place
from bench.gallery.index import number
from bench.gallery.pictures import draw
from bench.gallery.results import (
    Evaluation,
    Fit,
    PageResults,
    Policy,
    Table,
    rival_name,
)
from bench.gallery.use import Use
from bench.steps import COMPLETIONS, Step

__all__ = ["page", "policies_table", "portable", "program_table", "write_page"]

MADE = "<!-- written by `python -m bench.gallery`, not by hand -->"
WIDTH = 120
LONGEST = 60
"""Characters of an instruction in a table."""


def write_page(
    results: PageResults, use: Use, steps: Sequence[Step], place: Place, pages: Path
) -> None:
    """Write NAME.md, NAME.json and NAME.svg into ``pages``."""
    name = results.use
    text = results.model_dump_json(indent=1, exclude_defaults=True)
    (pages / f"{name}.json").write_text(text + "\n", encoding="utf-8")
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
    parts = [f"# {results.title}\n\n{MADE}\n", _wrapped(intro), _wrapped(made)]
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
    parts += [program_table(table) for table in results.tables]
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


def _named(name: str) -> str:
    """The name of a policy in a table, a long instruction cut."""
    name = re.sub('^prompt \\+ (?=")', "instruction ", " ".join(name.split()))
    return re.sub(f'"(.{{{LONGEST}}}).*"', r'"\1…"', name)


def _in_words(name: str, *, has_text: bool = False) -> str:
    """The name of a rival in a sentence; the text of an instruction stands in the table, and here
    where there are several.
    """
    named = _named(name) if has_text else rival_name(name)
    return re.sub("^instruction\\b", "the instruction", named)


def _interval(policy: Policy) -> str:
    if policy.mean is None or policy.low is None or policy.high is None:
        return ""
    return f"{policy.mean:.2f} ({policy.low:.2f} to {policy.high:.2f})"


def _verdicts(policy: Policy, verdicts: Mapping[str, str], biases: Sequence[Policy]) -> str:
    """The verdicts against a policy; the bias is named where there are several."""
    if policy.kind == "rival and bias":
        return ""
    if len(biases) == 1:
        return "".join(verdicts.values())
    return ", ".join(f"{bias} {verdict}" for bias, verdict in verdicts.items())


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |\n"


def _head(cells: Sequence[str]) -> str:
    return _row(cells) + f"|{'---|' * len(cells)}\n"


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
        if has_log_loss:
            head += ["mended against it", "log loss", "mended against it"]
        else:
            head.append("learned bias against it")
        text += "\n" + _head(head)
        biases = evaluation.at(setting, "bias")
        policies = sorted(evaluation.at(setting), key=_reward, reverse=True)
        best = evaluation.best(setting, "bias")
        for policy in policies:
            is_joined = policy.kind == "rival and bias"
            if is_joined and best is not None and not policy.name.endswith(f" and {best.name}"):
                continue
            name = _named(policy.name)
            if policy.kind == "bias":
                name = f"**{name}**"
            cells = [name, _interval(policy)]
            if has_right:
                cells.append(number(policy.right))
            if has_tokens:
                cells.append("" if policy.tokens is None else f"{policy.tokens:.1f}")
            cells.append(_verdicts(policy, policy.verdicts, biases))
            if has_log_loss:
                cells += [number(policy.log_loss), _verdicts(policy, policy.by_log_loss, biases)]
            text += _row(cells)
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
    text = f"## By the number of labels\n\n{first.prompts} test prompts; the best bias and the best"
    text += f" rival by reward ({first.reward}).\n\n"
    head = ["task", "labels", "base", "learned bias", "best rival", "learned bias against it"]
    text += _head(head)
    for title, evaluations in labelled.items():
        for evaluation in evaluations:
            for setting in evaluation.settings:
                bias, best, verdict = evaluation.ahead(setting)
                task = title if setting == evaluation.settings[0] else f"{title}, {setting}"
                rival = "" if best is None else f"{rival_name(best.name)} {number(best.mean)}"
                base = number(evaluation.base(setting).mean)
                learned = f"**{bias.name}** {_interval(bias)}"
                text += _row((task, str(evaluation.labels), base, learned, rival, verdict))
    return text


def _by_examples(results: PageResults, curve: Evaluation) -> str:
    """The table of a curve by the number of examples."""
    setting = curve.settings[0]
    text = f"## How many {curve.examples}?\n\n"
    if curve.examples == COMPLETIONS:
        text += _wrapped(
            "The first completions of each training prompt from the same store, at one strength,"
            " l2 by cross-validation, without a search; the last row is the bias above."
        )
    else:
        text += _wrapped(
            f"The same fit of the first training and validation {curve.examples} together; the"
            " last row is the bias above."
        )
    text += "\n" + _head([curve.examples, curve.reward, "tokens", "against the base"])
    for number_of_examples, policy in results.by_examples(curve, setting).items():
        verdict = ""
        for evaluation in results.evaluations:
            if evaluation.title == curve.title:
                verdict = evaluation.base(setting).verdicts.get(policy.name, verdict)
        tokens = "" if policy.tokens is None else f"{policy.tokens:.1f}"
        text += _row([str(number_of_examples), _interval(policy), tokens, verdict])
    return text


def program_table(table: Table) -> str:
    """A table that a program printed, and its notes."""
    rows = "".join(_row(_named(cell).replace("|", "\\|") for cell in row) for row in table.rows)
    notes = "\n" + _wrapped(" ".join(_named(note) for note in table.notes)) if table.notes else ""
    return f"## {table.title}\n\n{_head(table.head)}{rows}{notes}"


def what_came(results: PageResults) -> list[str]:
    """Sentences about who won, first where a rival does."""
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
    return ahead + others + _who_won_by_labels(results.labelled)


def _who_won(evaluation: Evaluation, setting: str, bias: Policy, *, named: bool) -> str:
    """What came of one bias at one setting."""
    rivals: dict[str, list[str]] = {"loses": [], "level": [], "wins": []}
    alone = evaluation.at(setting, "rival")
    has_text = sum(rival_name(rival.name) == "instruction" for rival in alone) > 1
    for rival in sorted(alone, key=_reward, reverse=True):
        if bias.name in rival.verdicts:
            text = f"{_in_words(rival.name, has_text=has_text)} ({number(rival.mean)})"
            rivals[rival.verdicts[bias.name]].append(text)
    name = "the learned bias"
    if bias.name != "bias":
        name = f'the learned bias "{bias.name}"'
    base = evaluation.base(setting)
    without = "the model without a bias"
    if bias.log_loss is not None:  # of probabilities that a fit mended
        name = "the mended reading"
        without = "the base"
    name = f"{name} ({number(bias.mean)})"
    without = f"{without} ({number(base.mean)})"
    sentences = []
    if rivals["loses"]:
        verb = "beats" if len(rivals["loses"]) == 1 else "beat"
        sentences.append(f"{_listed(rivals['loses'])} {verb} {name}")
    against_base = {
        "wins": f"{name} beats {without}",
        "level": f"{name} is level with {without}",
        "loses": f"{name} is worse than {without}",
    }
    if bias.name in base.verdicts:
        sentences.append(against_base[base.verdicts[bias.name]])
    if rivals["wins"]:
        sentences.append(f"it beats {_listed(rivals['wins'])}")
    if rivals["level"]:
        verb = "is" if len(rivals["level"]) == 1 else "are"
        sentences.append(f"level with it {verb} {_listed(rivals['level'])}")
    together: dict[str, list[str]] = {"more": [], "less": []}
    joined = evaluation.at(setting, "rival and bias")
    if bias is not evaluation.best(setting, "bias"):
        joined = []
    for pair in joined:
        for rival_alone, verdict in pair.verdicts.items():
            if pair.name != f"{rival_alone} and {bias.name}" or verdict == "level":
                continue
            effect = "more" if verdict == "wins" else "less"
            text = _in_words(rival_alone, has_text=has_text)
            together[effect].append(f"{text} ({number(pair.mean)})")
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
    counts = {"wins": 0, "level": 0}
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
                    verdict = rival.verdicts.get(bias.name)
                    if verdict == "loses":
                        places = ahead.setdefault(_in_words(rival.name), {})
                        places.setdefault(task, []).append(labels)
                    elif verdict is not None:
                        counts[verdict] += 1
    sentences = [
        f"Ahead of the best bias, with so many labels: {rival}, on {_places(places)}."
        for rival, places in ahead.items()
    ]
    if not ahead:
        sentences.append("No rival beats the best bias.")
    sentences.append(
        f"In the other comparisons the best bias wins {counts['wins']} times and is level"
        f" {counts['level']} times."
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
        if folder is not None:
            word = re.sub(rf"(?<![\w./-]){re.escape(str(folder))}(?=/|$)", name, word)
    return word


def _command(step: Step, place: Place) -> str:
    """The command as a reader would type it, without this machine's folders."""
    variables = [f"{name}={value}" for name, value in step.variables.items()]
    program = ["uv", "run", "python", "-m", step.module] if step.module else ["blb"]
    words = (portable(word, place) for word in (*variables, *program, *step.words))
    return shlex.join(re.sub(r"(?<![\w.:/])/\S*/", "", word) for word in words)
