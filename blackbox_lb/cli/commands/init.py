"""``blb init``: a few questions, and a blb.toml that answers them for every later command."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from blackbox_lb.cli.completing import known, reward_names, task_names
from blackbox_lb.cli.echo import echo, shown
from blackbox_lb.cli.found import is_data
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import provider
from blackbox_lb.cli.resources import check_folder
from blackbox_lb.cli.settings import FILE, SHARED
from blackbox_lb.errors import BlbError, InputError
from blackbox_lb.jobs.plan.setting import Settings, setting
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.safety.printable import shell_line

if TYPE_CHECKING:
    from blackbox_lb.providers.profile import Profile

LOCAL = "local"
REWARD = "correct-and-short"
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
    data: Path | None = setting(None, None, "Data file. [default: asked for]")
    reward: str | None = setting(
        None,
        None,
        "What a completion is worth. [default: asked for]",
        shell_complete=known(reward_names),
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
    from blackbox_lb.tasks import parse_reward

    out = options.out
    if out.exists() and not options.force:
        raise InputError(f"{out} is there already; edit it, or overwrite it with --force")
    check_folder(out)
    ask = Questions(options.yes)
    name = ask.provider(options.provider)
    profile = load_profile(name)
    shared = {"provider": name}
    shared |= ask.model(profile, options.model, options.base_url)
    shared |= ask.task(profile, options.task, options.data)
    shared["reward"] = ask.checked(
        "Reward", options.reward, REWARD, partial(parse_reward, max_tokens=1)
    )
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
            text = shown(question + usual)
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

        if value is None and not self._silent:
            echo(f"Providers: {', '.join(profile_names())}, or a path to your own TOML", err=True)
        return self.checked("Provider", value, LOCAL, load_profile)

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

    def task(self, profile: Profile, task: str | None, data: Path | None) -> dict[str, str]:
        """A task by name or a data file, read once as a check."""
        from blackbox_lb.tasks.load import BUILT_IN

        if task is not None and data is not None:
            raise InputError("--task and --data were both given; give one of them")
        if task is None:
            default = next(iter(BUILT_IN)) if profile.connection.embedded else None
            question = (
                "Data, a JSONL or CSV file with prompt and answer, or a task"
                f" ({', '.join(BUILT_IN)})"
            )
            answer = self.checked(question, None if data is None else str(data), default, _readable)
            if _is_task(answer):
                return {"task": answer}
            return {"data": answer}
        _readable(task)
        return {"task": task}


def _is_task(answer: str) -> bool:
    from blackbox_lb.tasks.load import BUILT_IN, HARNESS

    return answer in BUILT_IN or answer.startswith(HARNESS)


def _readable(answer: str) -> None:
    """Raise DataError or InputError: no such file, or unusable rows. Other names of tasks are
    looked up when they are needed.
    """
    from blackbox_lb.tasks import load_task
    from blackbox_lb.tasks.records.hub_data import HUB

    if _is_task(answer) or answer.startswith(HUB):
        return
    task = load_task(data=Path(answer), require_answers=False)
    sizes = (len(task.train), len(task.validation), len(task.test))
    echo("  {} training, {} validation and {} test prompts".format(*sizes), err=True)
    if task.note:
        echo(f"  {task.note}", err=True)


def _document(shared: dict[str, str], folder: Path) -> str:
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


def _next(profile: Profile, out: Path, shared: dict[str, str]) -> None:
    """The file written, the missing steps and the next command."""
    from blackbox_lb.providers.credentials import environment

    echo(f"wrote {out}")
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
    echo(f"next: {shell_line(*blb, 'fit')}")
