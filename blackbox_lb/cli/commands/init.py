"""``blb init``: a few questions, and a blb.toml that answers them for every later command."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blackbox_lb.cli.asking import REWARD_OF_LABELS, checked, data_answers
from blackbox_lb.cli.echo import echo
from blackbox_lb.cli.found import is_data
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import provider
from blackbox_lb.cli.resources import check_folder
from blackbox_lb.cli.settings import FILE, SHARED
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.setting import Settings, setting
from blackbox_lb.safety.printable import shell_line

if TYPE_CHECKING:
    from blackbox_lb.providers.profile import Profile

LOCAL = "local"
MORE = """
# Any option of a command may stand here, under [fit], [eval], ... or for all of them above; blb COMMAND --help-all lists them.
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
        None, None, "A built-in task, or what else --task takes. [default: asked for]"
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
    from blackbox_lb.safety.files import explained, write_whole

    out = options.out
    if out.exists() and not options.force:
        raise InputError(f"{out} is there already; edit it, or overwrite it with --force")
    check_folder(out)
    question = "Provider, blb providers lists them, or your own TOML"
    name = checked(options, question, options.provider, LOCAL, load_profile)
    profile = load_profile(name)
    shared: dict[str, Any] = {"provider": name}
    shared |= _model(options, profile)
    shared |= data_answers(options, profile.connection.embedded)
    shared = {key: value for key, value in shared.items() if value not in (None, "")}
    with explained(f"write {out}", "give another ``out``"):
        write_whole(out, _document(shared, out.parent).encode())
    _next(profile, out, shared)


def _model(options: InitOptions, profile: Profile) -> dict[str, str]:
    """The model and its address, where the profile leaves them open."""
    from blackbox_lb.api.transport.channel import address_of
    from blackbox_lb.cli.keys import tell_end_of_model
    from blackbox_lb.providers.credentials import environment

    answers = {}
    if not profile.connection.embedded:
        usual = environment(profile.connection.base_url_env) or profile.connection.base_url
        address = checked(
            options, "Base URL", options.base_url, usual, partial(address_of, profile)
        )
        if address not in ("", usual):
            answers["base_url"] = address.strip()
    elif options.base_url is not None:
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
    name = checked(
        options,
        f"Model{hint}",
        options.model,
        nobody,
        lambda text: profile.check_model(text or None),
    )
    tell_end_of_model(profile, name or None)
    if name:
        answers["model"] = name
    return answers


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
