"""A page of the gallery, its picture and its row in the table of verdicts, from what the commands
printed.
"""

from __future__ import annotations

import importlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.gallery.uses import Place, Step, Use

__all__ = ["curves", "index", "points", "write_page"]

AGAINST = {"HELPS": "wins", "NO EVIDENCE": "level", "HURTS": "loses"}
BIAS, RIVAL, BASE = "#2171b5", "#969696", "#252525"
LONGEST = 60
"""Characters of an instruction on a page."""
UNTOLD = ("pays for these tokens", "is not distinguishable from")
"""Sentences of an evaluation that a page leaves out: its table has the tokens, and says "level"."""
ALOUD = ("WINS over", "HURTS", "WORSE", "is better than")
"""Sentences that the page of a curve keeps of each of its evaluations: its tables have the others.
"""
MADE = "<!-- written by `python -m bench.gallery`, not by hand -->\n\n"
INDEX = """# Gallery

What a learned bias does in each of these uses, beside what one would do instead, at the settings that people deploy with. Each page
comes from one command, `python -m bench.gallery NAME` in a checkout, whose settings stood in the script before its run; a run that
was made is on its page, whatever came. "Wins", "loses" and "level" are verdicts of `blb eval` on the same test prompts, p-values
adjusted for all comparisons of the evaluation; level means that these prompts do not tell the two apart.

| use | setting | model | base | learned bias | wins over | level with | loses to |
|---|---|---|---|---|---|---|---|
"""  # noqa: E501


def write_page(
    name: str,
    use: Use,
    done: Sequence[tuple[Step, Mapping[str, Any]]],
    pages: Path,
    at: Place,
    made: str,
) -> None:
    """Write NAME.md, NAME.json (the rows of the index) and a picture into ``pages``."""
    pages.mkdir(parents=True, exist_ok=True)
    judged = [
        (step.judges, found["document"])
        for step, found in done
        if step.judges and step.labels is None and not found["code"]
    ]
    drawn = curves(done)
    picture = _draw(judged, pages / f"{name}.svg") if judged else ""
    curved = _draw_curves(drawn, pages / f"{name}-curve.svg") if drawn else ""
    ends = [
        (f"{title}, {number} labels", curve[number])
        for title, curve in drawn.items()
        for number in sorted({min(curve), max(curve)})
    ]
    rows = [row for title, document in (*judged, *ends) for row in _verdicts(name, title, document)]
    (pages / f"{name}.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    models = sorted({Path(document["model"]).stem for _, document in (*judged, *ends)}) or [
        "no model"
    ]
    minutes = sum(found["seconds"] for _, found in done) / 60
    parts = [
        (
            f"# {use.title}\n\n{MADE}{use.intro}\n\n{made}; {', '.join(models)}; {minutes:.0f}"
            " minutes, what was stored before not asked for again.\n"
        ),
        *(
            [f"![The reward of every policy with its 95 % interval]({picture})\n"]
            if picture
            else []
        ),
        *(
            [f"![The reward of every policy by the number of labelled examples]({curved})\n"]
            if drawn
            else []
        ),
        *(_section(title, document) for title, document in judged),
        *(
            _table(table)
            for _, found in done
            for table in found.get("document", {}).get("tables", ())
        ),
        *(_curve_section(title, curve) for title, curve in drawn.items()),
        _others(done),
        "## Commands\n\n```console\n"
        + "".join(f"$ {_shown(step, at)}\n" for step, _ in done)
        + "```\n",
    ]
    (pages / f"{name}.md").write_text("\n".join(part for part in parts if part), encoding="utf-8")


def _shown(step: Step, at: Place) -> str:
    """The command as a reader would type it, with his own folders."""
    words = [
        (
            f'"$(cat {_short(word[1:], at)})"'
            if word.startswith("@")
            else shlex.quote(_short(word, at))
        )
        for word in step.words
    ]
    return " ".join((*(step.program or ("blb",)), *words))


def _named(name: str) -> str:
    """The name of a policy, a long instruction cut."""
    return re.sub(f'"(.{{{LONGEST}}}).*"', r'"\1…"', " ".join(name.split()))


def _short(text: str, at: Place) -> str:
    text = text.replace(str(at.out), "OUT")
    if at.data is not None:
        text = text.replace(str(at.data), "DATA")
    return re.sub(r"(?<![\w.])/\S*/", "", text)


def _alone(document: Mapping[str, Any]) -> list[str]:
    """The names of the policies that are a bias and nothing else."""
    return list(
        dict.fromkeys(
            each["name"]
            for each in document["policies"]
            if each["bias"] and each["name"] == each["bias"]
        )
    )


def _against(
    document: Mapping[str, Any], setting: str, metric: str, rival: str, bias: str
) -> str | None:
    """Whether ``bias`` wins, loses or is level, None where the two were not compared."""
    for each in document["comparisons"]:
        if (each["setting"], each["metric"], each["base"], each["other"]) == (
            setting,
            metric,
            rival,
            bias,
        ):
            return AGAINST[each["verdict"]]
    return None


def _number(mean: Mapping[str, float] | None) -> str:
    return "" if mean is None else f"{mean['mean']:.2f} ({mean['low']:.2f} to {mean['high']:.2f})"


def _measure(name: str) -> str:
    """The name of a reward; of a function without its module."""
    return name if " " in name else name.rpartition(":")[2]


def _drawn(name: str) -> str:
    """The name in a picture, whose font has no other letters than Latin ones."""
    name = re.sub(r'"(.{30}).*"', r'"\1…"', _named(name))
    return re.sub(r'".*[^\x00-\u024f…].*"', "an instruction", name)


def _section(title: str, document: Mapping[str, Any]) -> str:
    """A table of all policies, and what the evaluation says in words."""
    name, biases = document["label"], _alone(document)
    text, shown_name, right = f"## {title}\n\n", _measure(name), _right(document)
    for setting in dict.fromkeys(each["setting"] for each in document["policies"]):
        prompts = document["policies"][0]["prompts"]
        head = (
            f"| {setting}, {prompts} test prompts | {shown_name} |"
            f" {'right | ' if right else ''}tokens | learned bias against it |"
        )
        text += f"{head}\n{'|---' * (head.count('|') - 1)}|\n"
        for each in (each for each in document["policies"] if each["setting"] == setting):
            shown = f"**{each['name']}**" if each["name"] in biases else _named(each["name"])
            tokens = each["metrics"].get("tokens", {}).get("mean")
            beside = [f"{each['metrics']['accuracy']['mean']:.2f}"] if right else []
            row = (
                shown,
                _number(each["metrics"].get(name)),
                *beside,
                "" if tokens is None else f"{tokens:.1f}",
            )
            text += f"| {' | '.join((*row, _cell(document, setting, each['name'])))} |\n"
        text += "\n"
    return text + _said(
        document, [each for each in document["summary"] if not any(word in each for word in UNTOLD)]
    )


def _right(document: Mapping[str, Any]) -> bool:
    """Whether right answers are known of every policy and are not what the reward says."""
    pairs = [
        (each["metrics"].get("accuracy"), each["metrics"].get(document["label"]))
        for each in document["policies"]
    ]
    return all(right for right, _ in pairs) and any(
        right["mean"] != reward["mean"] for right, reward in pairs if right and reward
    )


def _said(document: Mapping[str, Any], sentences: Sequence[str], before: str = "") -> str:
    """A list of sentences of an evaluation, with the names of its policies as in the table."""
    said = "".join(f"- {before}{sentence}\n" for sentence in sentences)
    for each in sorted({policy["name"] for policy in document["policies"]}, key=len, reverse=True):
        said = said.replace(each, _named(each))
    return said


def _table(table: Mapping[str, Any]) -> str:
    """A table that a step printed: title, head, rows, and sentences under it."""
    rows = [
        table["head"],
        ["---"] * len(table["head"]),
        *([_named(cell).replace("|", "\\|") for cell in row] for row in table["rows"]),
    ]
    text = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return f"## {table['title']}\n\n{text}\n" + "".join(f"- {note}\n" for note in table["notes"])


def _others(done: Sequence[tuple[Step, Mapping[str, Any]]]) -> str:
    """What the fits and checks said, and the commands that failed."""
    lines = []
    for step, found in done:
        document = found.get("document", {})
        if found["code"]:
            lines.append(
                f"- `{step.name}` ended with exit code {found['code']}: {' '.join(found['error'])}"
            )
        elif "sentence" in document:
            lines.append(
                f"- `blb check` before `{step.name.removesuffix('_check')}`:"
                f" {document['sentence'].rstrip('.')}."
            )
        elif "instruction" in document:
            best, first = max(document["validation"]), document["validation"][0]
            lines.append(
                f"- `{step.name}`: {document['calls']} completions and"
                f" {len(document['candidates'])} instructions tried in {found['seconds']:.0f} s;"
                f" validation reward {first:.2f} at first, {best:.2f} with:"
                f" {json.dumps(document['instruction'], ensure_ascii=False)}."
            )
        elif "status" in document:
            kept = "--depends-on" in step.words and "slope_l2" not in document["chosen"]
            note = "; declined to depend on the prompt, the bias is a fixed one" if kept else ""
            lines.append(
                f"- Fit `{step.name}`: {document['status']}{note} ({found['seconds']:.0f} s)."
            )
    return "## The runs\n\n" + "\n".join(lines) + "\n"


def _verdicts(use: str, title: str, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row of the index for each setting and bias."""
    name, rows, biases = document["label"], [], _alone(document)
    for setting in dict.fromkeys(each["setting"] for each in document["policies"]):
        means = {
            each["name"]: each["metrics"].get(name)
            for each in document["policies"]
            if each["setting"] == setting
        }
        for bias in biases:
            row = {
                "use": use,
                "title": title,
                "setting": setting,
                "model": Path(document["model"]).stem,
                "bias": bias,
            }
            row |= {"base": means["base"], "learned": means[bias], "named": len(biases) > 1}
            rivals = {
                each: _against(document, setting, name, each, bias)
                for each in means
                if each not in ("base", *biases)
            }
            rows.append(
                row
                | {
                    word: [each for each, found in rivals.items() if found == word]
                    for word in AGAINST.values()
                }
            )
    return rows


def index(pages: Path) -> str:
    """The table of verdicts of all pages in the folder."""
    text = INDEX
    for path in sorted(pages.glob("*.json")):
        for row in json.loads(path.read_text(encoding="utf-8")):
            told = [", ".join(map(_named, row[word])) for word in ("wins", "level", "loses")]
            bias = f"{row['bias']}: " if row["named"] else ""
            cells = (
                f"[{row['title']}]({row['use']}.md)",
                row["setting"],
                row["model"],
                f"{row['base']['mean']:.2f}",
            )
            text += f"| {' | '.join((*cells, bias + _number(row['learned']), *told))} |\n"
    return text.replace("# Gallery\n\n", f"# Gallery\n\n{MADE}", 1)


def _pyplot() -> Any:
    matplotlib = importlib.import_module("matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "blackbox-lb"  # the same picture has the same ids
    return importlib.import_module("matplotlib.pyplot")


def _draw(judged: Sequence[tuple[str, Mapping[str, Any]]], path: Path) -> str:
    """A point with its interval for each policy, a panel for each evaluation and setting."""
    pyplot = _pyplot()
    panels = [
        (
            f"{title}, {setting}",
            [each for each in document["policies"] if each["setting"] == setting],
            document["label"],
        )
        for title, document in judged
        for setting in dict.fromkeys(each["setting"] for each in document["policies"])
    ]
    heights = [len(policies) + 2.5 for _, policies, _ in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(8, 0.24 * sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis, (title, policies, name) in zip(axes[:, 0], panels, strict=True):
        shown = [each for each in policies if name in each["metrics"]]
        for place, each in enumerate(reversed(shown)):
            mean = each["metrics"][name]
            colour = BASE if each["name"] == "base" else BIAS if each["bias"] else RIVAL
            axis.plot([mean["low"], mean["high"]], [place, place], color=colour, linewidth=1.5)
            axis.plot([mean["mean"]], [place], "o", color=colour, markersize=5)
        axis.set_yticks(
            range(len(shown)), [_drawn(each["name"]) for each in reversed(shown)], fontsize=8
        )
        axis.set_title(title, fontsize=9, loc="left")
        axis.set_xlabel(_measure(name), fontsize=8)
        axis.tick_params(axis="x", labelsize=8)
        axis.grid(axis="x", linewidth=0.3)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path.name


def curves(
    done: Sequence[tuple[Step, Mapping[str, Any]]],
) -> dict[str, dict[int, Mapping[str, Any]]]:
    """Evaluations that tell how many labelled examples their policies had, by title and by that
    number.
    """
    found = dict[str, dict[int, Mapping[str, Any]]]()
    for step, told in done:
        if step.labels is not None and not told["code"]:
            found.setdefault(step.judges, {})[step.labels] = told["document"]
    return found


def points(
    curve: Mapping[int, Mapping[str, Any]], setting: str
) -> dict[str, dict[int, Mapping[str, float]]]:
    """The reward of each policy at a setting by the number of labelled examples, smallest first,
    where it has one.
    """
    found = dict[str, dict[int, Mapping[str, float]]]()
    for number, document in sorted(curve.items()):
        for each in document["policies"]:
            if each["setting"] == setting and document["label"] in each["metrics"]:
                found.setdefault(each["name"], {})[number] = each["metrics"][document["label"]]
    return found


def _curve_section(title: str, curve: Mapping[int, Mapping[str, Any]]) -> str:
    """What must not be missed, then a table of rewards and one of verdicts for each setting, a
    column a number of labels.
    """
    text, documents = f"## {title}\n\n", list(curve.values())
    for number, document in sorted(curve.items()):
        text += _said(
            document,
            [each for each in document["summary"] if any(word in each for word in ALOUD)],
            f"{number} labels: ",
        )
    for setting in dict.fromkeys(
        each["setting"] for document in documents for each in document["policies"]
    ):
        known = points(curve, setting)
        numbers = sorted({number for found in known.values() for number in found})
        label, prompts = _measure(documents[0]["label"]), documents[0]["policies"][0]["prompts"]
        columns, line = (
            " | ".join(f"{number} labels" for number in numbers),
            "|---" * (len(numbers) + 1) + "|",
        )
        text = (
            text.rstrip("\n")
            + f"\n\n| {setting}, {prompts} test prompts, {label} | {columns} |\n{line}\n"
        )
        biases = {bias for document in documents for bias in _alone(document)}
        for name, found in known.items():
            shown = f"**{name}**" if name in biases else _named(name)
            text += (
                f"| {shown} | {' | '.join(_number(found.get(number)) for number in numbers)} |\n"
            )
        text += f"\n| learned bias against | {columns} |\n{line}\n"
        for name in known:
            cells = [_cell(curve[number], setting, name) for number in numbers]
            text += f"| {_named(name)} | {' | '.join(cells)} |\n" if any(cells) else ""
    return text


def _cell(document: Mapping[str, Any], setting: str, rival: str) -> str:
    """Whether each bias wins, loses or is level against the rival."""
    biases = _alone(document)
    found = {bias: _against(document, setting, document["label"], rival, bias) for bias in biases}
    return ", ".join(
        f"{bias} {word}" if len(biases) > 1 else word for bias, word in found.items() if word
    )


def _draw_curves(drawn: Mapping[str, Mapping[int, Mapping[str, Any]]], path: Path) -> str:
    """Reward against the number of labelled examples, a panel for each title at its first setting,
    intervals as thin bars.

    A policy that is the same with any number is a dashed line across; one that was judged with a
    bias besides is left out.
    """
    pyplot = _pyplot()
    lines = -(-len(drawn) // 2)
    figure, axes = pyplot.subplots(
        lines,
        min(len(drawn), 2),
        figsize=(9, 3.2 * lines + 0.6),
        squeeze=False,
        layout="constrained",
    )
    shown, seen = dict[str, Any](), dict[str, Any]()
    for axis, (title, curve) in zip(axes.flat, drawn.items(), strict=False):
        documents = [curve[number] for number in sorted(curve)]
        setting = documents[0]["policies"][0]["setting"]
        biases = {bias for document in documents for bias in _alone(document)}
        joined = {
            each["name"] for document in documents for each in document["policies"] if each["bias"]
        } - biases
        known = {
            name: found for name, found in points(curve, setting).items() if name not in joined
        }
        for place, (name, found) in enumerate(known.items()):
            kind = re.sub('".*"', "an instruction", name)
            colour = shown.setdefault(kind, BASE if name == "base" else f"C{len(shown) - 1}")
            flat = len(found) > 1 and len({mean["mean"] for mean in found.values()}) == 1
            kept = dict([max(found.items())]) if flat else found
            moved = [number * 1.035 ** (place - len(known) / 2) for number in kept]
            style = {
                "color": colour,
                "linewidth": 2 if name in biases else 1,
                "linestyle": "none" if len(found) == 1 else "-",
            }
            if flat:
                axis.axhline(kept[max(kept)]["mean"], color=colour, linewidth=1, linestyle="--")
            seen[kind] = axis.plot(
                moved, [mean["mean"] for mean in kept.values()], "o", markersize=3.5, **style
            )[0]
            for at, mean in zip(moved, kept.values(), strict=True):
                axis.plot([at, at], [mean["low"], mean["high"]], color=colour, linewidth=0.7)
        axis.set_xscale("log")
        axis.set_xticks(sorted(curve), [str(number) for number in sorted(curve)], fontsize=8)
        axis.minorticks_off()
        axis.set_title(f"{title}, {setting}", fontsize=9, loc="left")
        axis.set_xlabel("labelled examples", fontsize=8)
        axis.set_ylabel(_measure(documents[0]["label"]), fontsize=8)
        axis.tick_params(axis="y", labelsize=8)
        axis.grid(axis="y", linewidth=0.3)
    for axis in axes.flat[len(drawn) :]:
        axis.set_axis_off()
    figure.legend(
        seen.values(), seen, loc="outside lower center", ncols=4, fontsize=8, frameon=False
    )
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path.name
