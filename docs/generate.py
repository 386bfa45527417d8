"""Writes docs/cli.md, the help of every command, docs/files.md, the files of a run, the tables of
rewards in docs/tasks.md, and llms.txt, the list of all pages for language models: ``uv run python
docs/generate.py``. A test compares them with the package.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click
from pydantic import BaseModel

from blackbox_lb.bias.document import Bias
from blackbox_lb.cli import main
from blackbox_lb.cli.commands import COMMANDS
from blackbox_lb.cli.grouped import ALL_OPTIONS
from blackbox_lb.extras.analysis.document import Analysis
from blackbox_lb.jobs.evaluation.document import Evaluation
from blackbox_lb.jobs.fitting.document import FitResult
from blackbox_lb.tasks.rewards.registry import FORMS

WIDTH = 100
HEAD = """# Command line

The help of every command, as `blb COMMAND --help-all` prints it (`--help` shows the options that most people need). What the commands have in common (blb.toml, exit codes, `--json`,
completion): [settings.md](settings.md).
"""  # noqa: E501


def commands() -> dict[str, click.Command]:
    """Every command, imported."""
    context = click.Context(main, info_name="blb")
    found = {name: main.get_command(context, name) for name in sorted(COMMANDS)}
    return {name: command for name, command in found.items() if command is not None}


def reference() -> str:
    """The help of every command, as Markdown."""
    settings = {**main.context_settings, "terminal_width": WIDTH, "max_content_width": WIDTH}
    context = click.Context(main, info_name="blb", **settings)
    pages = [HEAD, _page("blb", main.get_help(context))]
    for name, command in commands().items():
        inner = command.context_class(
            command, parent=context, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH
        )
        inner.meta[ALL_OPTIONS] = True
        pages.append(_page(f"blb {name}", command.get_help(inner)))
        for inside, each in sorted(getattr(command, "commands", {}).items()):
            within = click.Context(
                each, parent=inner, info_name=inside, terminal_width=WIDTH, max_content_width=WIDTH
            )
            pages.append("#" + _page(f"blb {name} {inside}", each.get_help(within)))
    return "\n".join(pages)


def _page(title: str, text: str) -> str:
    return f"## {title}\n\n```text\n{text}\n```\n"


FILES: tuple[tuple[str, str, type[BaseModel]], ...] = (
    (
        "bias.json",
        "`blb fit` writes it, and `blb eval --save` a new verdict into it. `learned.json` has the"
        " same form: the whole learned vector before the compile. A file with features also has"
        " their hash, `fingerprint`.",
        Bias,
    ),
    (
        "result.json",
        "`blb fit` writes it, and `--json` prints it; `Run.result` is the same.",
        FitResult,
    ),
    ("evaluation.json", "`blb eval` writes it, and `--json` prints it.", Evaluation),
    ("analysis.json", "`blb analyze` writes it, and `--json` prints it.", Analysis),
)
FILES_HEAD = """# Files of a run

The folder of `blb fit` holds these files beside the [store](store.md) of completions. Each is one JSON object in UTF-8 with a `format` and a `version`, and a file of another version is refused by
that number. Numbers are finite: what is not known is `null`, never NaN. Logprobs, biases and KL are in nats. `blb.FitResult` and `blb.Bias` give the same as JSON Schema:

```bash
python -c "import json, blackbox_lb as blb; print(json.dumps(blb.FitResult.model_json_schema()))"
```
"""  # noqa: E501


def files() -> str:
    """The fields of every file of a run, as Markdown."""
    pages = [FILES_HEAD]
    records: dict[str, dict[str, Any]] = {}
    for name, words, model in FILES:
        schema = model.model_json_schema(mode="serialization")
        records |= schema.pop("$defs", {})
        pages.append(f"## {name}\n\n{words}\n\n{_record(schema)}")
    pages.append("## Parts\n")
    pages += [f"### {name}\n\n{_record(records[name])}" for name in sorted(records)]
    return "\n".join(pages)


def _record(schema: dict[str, Any]) -> str:
    """What a record says of itself, and a row for each of its fields."""
    paragraphs = schema.get("description", "").replace("``", "`").split("\n\n")
    description = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    rows = [
        f"| `{name}` | {_type(field)} |" for name, field in schema.get("properties", {}).items()
    ]
    return "\n".join([description, "", "| field | type |", "|---|---|", *rows, ""])


def _type(schema: dict[str, Any]) -> str:
    """The type of a value in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if "anyOf" in schema or "oneOf" in schema:
        kinds = schema.get("anyOf") or schema["oneOf"]
        return " or ".join(dict.fromkeys(_type(kind) for kind in kinds))
    if schema.get("type") == "array" and "items" in schema:
        return f"list of {_type(schema['items'])}"
    values = schema.get("additionalProperties")
    if isinstance(values, dict) and values:
        return f"object of {_type(values)}"
    return str(schema.get("type", "any"))


TASKS = Path(__file__).with_name("tasks.md")
REWARDS = {
    "accuracy": ("accuracy with a tau", "", ""),
    "accuracy-gated-length": ("shorter among the correct, as in the paper's GRPO baseline", "", ""),
    "accuracy-minus-length": ("a price on length", "", ""),
    "arguments-valid": ("calls that run", "tools-and-calls", ""),
    "avoid": ("stock words, names, dashes", "words-to-avoid", "each hit"),
    "calls": ("agents that should call, or not", "tools-and-calls", ""),
    "contains": ("a keyword", "", ""),
    "correct-and-short": ("shorter among the correct", "", ""),
    "distribution": ("margins of personas, surveys, synthetic data", "wanted-shares", ""),
    "exact-match": ("a form", "", ""),
    "https": ("a scorer in another language", "", ""),
    "json-schema": ("structured output", "", ""),
    "judge": ("taste", "a-judge", "the passages that it quotes, where its file has a row `quotes`"),
    "length": ("shorter, right or wrong", "", ""),
    "log-accuracy": ("accuracy, as in the paper; tau has no effect", "", ""),
    "marks": ("what people object to", "marks-that-people-made", "each mark"),
    "module:function": ("anything", "a-function-of-your-own", "those that your function returns"),
    "regex": ("a form, a keyword", "", ""),
    "script": (
        "an answer in one script",
        "letters-of-another-script",
        "each letter outside the script",
    ),
    "tokens": ("shorter, with credit for each token", "", "every token, with equal amounts"),
}
"""Form of a reward -> what it is for, the heading about it ("" for none), its spans ("" for
none).
"""


def tasks() -> str:
    """docs/tasks.md, with its tables of rewards as the registry has them."""
    worth = [
        "| reward | a completion is worth | reported as | use it for |",
        "|---|---|---|---|",
        *(
            f"| {_linked(form.spelling, REWARDS[name][1])} | {form.meaning} | {form.shown} |"
            f" {REWARDS[name][0]} |"
            for name, form in FORMS.items()
        ),
    ]
    places = [
        "| reward | spans |",
        "|---|---|",
        *(
            f"| `{FORMS[name].spelling}` | {spans} |"
            for name, (*_, spans) in REWARDS.items()
            if spans
        ),
        "| all others | none: they score the completion as a whole |",
    ]
    text = TASKS.read_text(encoding="utf-8")
    for name, rows in (("rewards", worth), ("spans", places)):
        before, begin, rest = text.partition(f"<!-- {name}: written by docs/generate.py -->\n\n")
        _, end, after = rest.partition(f"\n\n<!-- end of {name} -->")
        text = before + begin + "\n".join(rows) + end + after
    return text


def _linked(spelling: str, section: str) -> str:
    """The form, with a link to the section about it."""
    return f"[`{spelling}`](#{section})" if section else f"`{spelling}`"


DOCS = Path(__file__).parent
LLMS_HEAD = """# blackbox_lb

> {summary}

Install it from a checkout: `pip install '.[local,report]'`; the command is `blb`, the package `blackbox_lb`. `blb COMMAND --help-all` prints every option, `help(blackbox_lb.fit)` every parameter.

## Pages
"""  # noqa: E501
SENTENCE = re.compile(r".+?[.:](?=\s|$)", re.DOTALL)
LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
BLOCK = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
NO_PROSE = ("<", "|", "#", "!", "1. ")
"""How a paragraph begins that is none."""


def llms() -> str:
    """llms.txt: what the package is, and a line for every page with its first sentence."""
    readme = DOCS.with_name("README.md").read_text(encoding="utf-8")
    lines = [LLMS_HEAD.format(summary=_first_paragraph(readme))]
    for page in sorted(DOCS.rglob("*.md"), key=lambda page: (page.parent != DOCS, page.as_posix())):
        text = page.read_text(encoding="utf-8")
        title = text.partition("\n")[0].removeprefix("# ")
        path = page.relative_to(DOCS.parent).as_posix()
        paragraph = _first_paragraph(text)
        sentence = SENTENCE.match(paragraph)
        words = paragraph if sentence is None else sentence[0].rstrip(":")
        lines.append(f"- [{title}]({path}): {words.replace('**', '')}")
    return "\n".join(lines) + "\n"


def _first_paragraph(text: str) -> str:
    """The first prose of a page in one line, without links."""
    for paragraph in BLOCK.sub("", text).split("\n\n")[1:]:
        if paragraph.strip() and not paragraph.startswith(NO_PROSE):
            return LINK.sub(r"\1", " ".join(paragraph.removeprefix("- ").split()))
    return ""


if __name__ == "__main__":
    DOCS.with_name("llms.txt").write_text(llms(), encoding="utf-8")
    Path(__file__).with_name("cli.md").write_text(reference(), encoding="utf-8")
    Path(__file__).with_name("files.md").write_text(files(), encoding="utf-8")
    TASKS.write_text(tasks(), encoding="utf-8")
