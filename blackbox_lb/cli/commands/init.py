"""``blb init``: a few questions, and a blb.toml that answers them for every later command."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blackbox_lb.cli.completing import known, reward_names, task_names
from blackbox_lb.cli.echo import echo, for_screen
from blackbox_lb.cli.found import is_data
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import provider
from blackbox_lb.cli.resources import check_folder
from blackbox_lb.cli.settings import FILE, SHARED
from blackbox_lb.errors import BlbError, DataError, InputError
from blackbox_lb.jobs.plan.setting import Settings, setting
from blackbox_lb.safety.printable import did_you_mean, shell_line, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blackbox_lb.providers.profile import Profile
    from blackbox_lb.tasks.records.records import Record
    from blackbox_lb.types import Example

LOCAL = "local"
REWARD = "correct-and-short"
REWARD_OF_LABELS = "accuracy"
REWARD_OF_TEXTS = "length"
"""The rewards that are offered: for answers, for answers that are labels, for rows without any."""
MORE = """
# Any option of a command may stand here, under [fit], [eval], ... or for all of them above; blb COMMAND --help lists them.
# The command line goes first, then variables such as BLB_FIT_TAU, then this file. Relative paths start at its folder.
# [fit]
# tau = [0.25, 0.5, 1.0]
# max_tokens = 256
# deploy = ["temperature=0.5"]
# [eval]
# price = "0.15,0.60"
"""  # noqa: E501


class InitOptions(Settings):
    """Options of ``blb init``: answers, None for each question to ask."""

    provider: str | None = provider(None, "asked for")
    model: str | None = setting(None, None, "Model name. [default: asked for]")
    base_url: str | None = setting(
        None, None, "Address of the API, with its /v1. [default: asked for]"
    )
    task: str | None = setting(
        None,
        None,
        "A built-in task, or what else --task takes. [default: asked for]",
        shell_complete=known(task_names),
    )
    data: Path | None = setting(
        None, None, "Data file. [default: asked for; the only one in the folder]"
    )
    prompt_column: str | None = setting(
        None, None, "Column of --data with the text. [default: asked for; found in the file]"
    )
    answer_column: str | None = setting(
        None, None, "Column with the answer. [default: asked for; found in the file]"
    )
    prompt_template: str | None = setting(
        None,
        None,
        "Prompt put together from columns. [default: asked for; the text, and the labels where no"
        " prompt names them]",
    )
    reward: str | None = setting(
        None,
        None,
        "What a completion is worth. [default: asked for; one that suits the data]",
        shell_complete=known(reward_names),
    )
    max_tokens: int | None = setting(
        None,
        None,
        "Longest completion, in tokens. [default: asked for; room for the longest label]",
        ge=1,
    )
    out: Path = setting(FILE, None, "Where to write.")
    yes: bool = setting(False, None, "Ask nothing: defaults for what no option says.")
    force: bool = setting(False, None, "Overwrite the file.")


@command("init", InitOptions, example="blb init")
def init_command(options: InitOptions) -> None:
    """Ask which model, task and reward, check the answers, and write them into blb.toml.

    No key is asked for or written: keys stay in the environment.
    """
    from blackbox_lb.providers.profile import load_profile
    from blackbox_lb.safety.files import write_whole

    out = options.out
    if out.exists() and not options.force:
        raise InputError(f"{out} is there already; edit it, or overwrite it with --force")
    check_folder(out)
    ask = Questions(options.yes)
    name = ask.provider(options.provider)
    profile = load_profile(name)
    shared: dict[str, Any] = {"provider": name}
    shared |= ask.model(profile, options.model, options.base_url)
    shared |= ask.task(profile, options)
    shared = {key: value for key, value in shared.items() if value not in (None, "")}
    write_whole(out, _document(shared, out.parent).encode())
    _next(profile, out, shared)


class Questions:
    """Asks until an answer passes its check; with ``silent`` the default is the answer, and a bad
    one is an error.
    """

    def __init__(self, silent: bool) -> None:
        self._silent = silent

    def checked(self, question: str, value: str | None, default: str | None, check: Any) -> str:
        """``value``, or an answer to ``question``; ``check`` raises BlbError for a bad one."""
        if value is not None or self._silent:
            if value is None and default is None:
                option = question.partition(",")[0].lower().replace(" ", "-")
                raise InputError(f"{question}: there is no default for this; give --{option}")
            answer = value if value is not None else default or ""
            check(answer)
            return answer
        while True:
            usual = ""
            if default:
                usual = f" [{default}]"
            text = for_screen(question + usual, err=True)
            answer = click.prompt(text, default=default, show_default=False, err=True)
            try:
                check(answer)
            except BlbError as error:
                echo(f"  {error}", err=True)
                continue
            return str(answer)

    def provider(self, value: str | None) -> str:
        """The name of the provider, or the file of its profile."""
        from blackbox_lb.providers.profile import load_profile

        return self.checked(
            "Provider, blb providers lists them, or your own TOML", value, LOCAL, load_profile
        )

    def model(self, profile: Profile, model: str | None, base_url: str | None) -> dict[str, str]:
        """The model and its address, where the profile leaves them open."""
        from blackbox_lb.api.transport.channel import address_of
        from blackbox_lb.cli.keys import tell_end_of_model
        from blackbox_lb.providers.credentials import environment

        answers = {}
        if not profile.connection.embedded:
            usual = environment(profile.connection.base_url_env) or profile.connection.base_url
            address = self.checked("Base URL", base_url, usual, partial(address_of, profile))
            if address not in ("", usual):
                answers["base_url"] = address.strip()
        elif base_url is not None:
            raise InputError(
                f"{profile.name} starts its own engine and takes no --base-url; leave it out"
            )
        by_name = profile.tokenizer.source == "openai names"
        nobody: str | None = ""
        if by_name or not profile.connection.lists_models:
            nobody = next(iter(profile.models.work), None)
        hint = ""
        if nobody == "":
            hint = ", empty for the server's only one"
        if profile.connection.embedded:
            hint = ", a .gguf file or a hub name, empty for SmolLM2-135M-Instruct"
        name = self.checked(
            f"Model{hint}", model, nobody, lambda text: profile.check_model(text or None)
        )
        tell_end_of_model(profile, name or None)
        if name:
            answers["model"] = name
        return answers

    def task(self, profile: Profile, options: InitOptions) -> dict[str, Any]:
        """A task by name, or a data file with its columns; the reward, and what else the answers
        of the data suggest.
        """
        from blackbox_lb.tasks.load import BUILT_IN

        if options.task is not None and options.data is not None:
            raise InputError("--task and --data were both given; give one of them")
        if options.task is not None:
            return {"task": options.task, "reward": self._reward(options, REWARD)}
        files = data_files(Path())
        default = next(iter(BUILT_IN)) if profile.connection.embedded else None
        if files:
            default = files[0] if len(files) == 1 else None
        if len(files) > 1 and options.data is None:
            echo(f"Data files here: {', '.join(files)}", err=True)
        question = f"Data, a table, JSON or text, or a task ({', '.join(BUILT_IN)})"
        given = None if options.data is None else str(options.data)
        while True:
            answer = self.checked(question, given, default, _records)
            if _is_task(answer):
                return {"task": answer, "reward": self._reward(options, REWARD)}
            try:
                return {"data": answer, **self._rows(answer, options)}
            except DataError as error:
                if self._silent or given is not None:
                    raise
                echo(f"  {error}", err=True)

    def _rows(self, data: str, options: InitOptions) -> dict[str, Any]:
        """The columns, the template, the reward and the token limit for the rows of a file.

        Raises DataError: the rows cannot be used.
        """
        from blackbox_lb.tasks import load_task
        from blackbox_lb.tasks.records.files import PROMPT
        from blackbox_lb.tasks.records.hub_data import HUB
        from blackbox_lb.tasks.sets.labels import labels_of_task
        from blackbox_lb.tasks.sets.offers import labels_to_offer

        answers = self._columns(_records(data), options)
        columns = {key: value for key, value in answers.items() if value}
        answers |= {"prompt_template": options.prompt_template, "max_tokens": options.max_tokens}
        if data.startswith(HUB):
            return answers | {"reward": self._reward(options, REWARD)}
        has_answers = "answer_column" in answers
        task = load_task(data=Path(data), require_answers=has_answers, **columns)
        examples = (*task.train, *task.validation, *task.test)
        labels = labels_of_task(None, None, task)
        summary = f"{len(examples):,} prompts"
        names = []
        if labels is not None:
            names = labels_to_offer(labels.counts(examples))
            summary += f"; {len(names)} labels ({', '.join(names)}): a decision"
        for line in filter(None, [summary, task.note]):
            echo(f"  {line}", err=True)
        if labels is None:
            usual = REWARD if has_answers else REWARD_OF_TEXTS
            return answers | {"reward": self._reward(options, usual)}
        text = f"{{{columns.get('prompt_column', PROMPT)}}}"
        if options.prompt_template is None:
            check = partial(load_task, data=Path(data), **columns)
            answers["prompt_template"] = self._template(text, names, examples, check)
        answers["reward"] = self._reward(options, REWARD_OF_LABELS)
        answers["max_tokens"] = self._limit(names, options.max_tokens)
        return answers

    def _columns(self, records: Sequence[Record], options: InitOptions) -> dict[str, Any]:
        """The columns that have other names than the usual ones."""
        from blackbox_lb.tasks.records.files import ANSWER, MESSAGES, PROMPT
        from blackbox_lb.tasks.sets.offers import likely_columns

        answers: dict[str, Any] = {}
        if not records:
            answers["prompt_column"] = options.prompt_column
            answers["answer_column"] = options.answer_column
            return answers
        prompt, answer = likely_columns(records)
        check = partial(_check_column, records)
        if options.prompt_column is not None or prompt not in (PROMPT, MESSAGES):
            answers["prompt_column"] = self.checked(
                "Column with the text", options.prompt_column, prompt, check
            )
        if answer == ANSWER and options.answer_column is None:
            answers["answer_column"] = ""
        elif answer or options.answer_column is not None:
            answers["answer_column"] = self.checked(
                "Column with the answer", options.answer_column, answer, check
            )
        return answers

    def _template(
        self, text: str, names: Sequence[str], examples: Sequence[Example], check: Any
    ) -> str | None:
        """A template that names the labels where no prompt does; None for the text as it is."""
        from blackbox_lb.tasks.sets.offers import are_named, template_with_labels

        is_plain = all(len(example.prompt.messages) == 1 for example in examples)
        if not is_plain or are_named(names, examples):
            return None
        template = self.checked(
            f"Prompt, {text} for the text alone",
            None,
            template_with_labels(text, names),
            lambda template: check(prompt_template=template),
        )
        if template == text:
            return None
        return template

    def _reward(self, options: InitOptions, usual: str) -> str:
        from blackbox_lb.tasks import parse_reward

        check = partial(parse_reward, max_tokens=1)
        return self.checked("Reward, blb rewards lists them", options.reward, usual, check)

    def _limit(self, names: Sequence[str], limit: int | None) -> int:
        """The most tokens of an answer, by default enough for the longest label."""
        from blackbox_lb.tasks.sets.offers import tokens_of_longest

        given = None if limit is None else str(limit)
        enough = str(tokens_of_longest(names))
        return int(self.checked("Tokens of an answer at most", given, enough, _check_count))


def data_files(folder: Path) -> list[str]:
    """The names of the files in a folder that may hold rows, in order."""
    from blackbox_lb.tasks.records.records import SUFFIXES, TEXT_SUFFIX

    suffixes = {*SUFFIXES, TEXT_SUFFIX, ".parquet"}
    files = [path for path in folder.iterdir() if path.suffix.lower() in suffixes]
    return sorted(path.name for path in files if path.is_file() and path.name[0] != ".")


def _is_task(answer: str) -> bool:
    from blackbox_lb.tasks.load import BUILT_IN, HARNESS

    return answer in BUILT_IN or answer.startswith(HARNESS)


def _records(answer: str) -> list[Record]:
    """The rows of a file as they are; none of a task, a folder or a data set of the hub, which are
    read when they are needed. Raises DataError: no such file, or it cannot be read.
    """
    from blackbox_lb.tasks.records.files import records_of
    from blackbox_lb.tasks.records.hub_data import HUB

    if _is_task(answer) or answer.startswith(HUB) or Path(answer).is_dir():
        return []
    return list(records_of(Path(answer)))


def _check_column(records: Sequence[Record], column: str) -> None:
    """Raise InputError: no row has the column."""
    if not any(record.has(column) for record in records):
        names = list(dict.fromkeys(name for record in records for name in record.names))
        raise InputError(
            f"there is no column {shorten(column)}{did_you_mean(column, names)}; name one of"
            f" {', '.join(names)}"
        )


def _check_count(answer: str) -> None:
    """Raise InputError: the answer is no whole number from 1."""
    if not answer.isdecimal() or int(answer) < 1:
        raise InputError(f"{shorten(answer)} is no number of tokens; give a whole number from 1")


def _document(shared: dict[str, Any], folder: Path) -> str:
    """The file: answers as one table, and further options as comments."""
    import tomli_w

    for key in ("data", "provider"):
        path = Path(shared.get(key, ""))
        if shared.get(key) and path.is_file() and not path.is_absolute():
            shared[key] = Path(os.path.relpath(path, folder)).as_posix()
    return (
        "# Settings of blb, found here and from the folders below. Keys do not belong here: they"
        f" stay in the environment.\n[{SHARED}]\n{tomli_w.dumps(shared)}{MORE}"
    )


def _next(profile: Profile, out: Path, shared: dict[str, Any]) -> None:
    """The file written, the missing steps and the next command."""
    from blackbox_lb.providers.credentials import environment

    echo(f"wrote {out}:")
    for key, value in shared.items():
        echo(f"  {key} = {json.dumps(value, ensure_ascii=False)}")
    rules = profile.connection
    if rules.api_key_required and not (
        environment(rules.api_key_env) or environment(rules.token_env)
    ):
        where = ""
        if rules.api_key_url:
            where = f" (made at {rules.api_key_url})"
        echo(f"{rules.api_key_env} is not set: export your key{where} in it first")
    blb = ["blb"]
    is_found = out.name == FILE and out.parent.resolve() == Path.cwd()
    refused = [key for key, value in shared.items() if not is_data(key, value, out.parent)]
    if is_found and refused:
        echo(
            f"{' and '.join(refused)}: only a file that you name may set that, as below or in the"
            " variable BLB_CONFIG"
        )
    if refused or not is_found:
        blb += ["--config", str(out)]
    if profile.unknown:
        doctor = shell_line(*blb, "doctor", "--save", "mine.toml")
        echo(f"{len(profile.unknown)} rows of {profile.name} are guesses. First: {doctor}")
    step = "check" if shared["reward"] == REWARD_OF_LABELS else "fit"
    echo(f"next: {shell_line(*blb, step)}")
