"""blb.toml: every option of every command arrives from it, below the command line and the
environment, or is refused by name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from blackbox_lb.cli import main
from blackbox_lb.cli.commands import COMMANDS
from blackbox_lb.cli.settings import find_settings, keys_of
from blackbox_lb.errors import InputError
from tests.support.commands import blb
from tests.support.errors import raises_naming


def command_of(name: str) -> click.Command:
    """The command, imported."""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    return command


def sample(option: click.Option) -> tuple[Any, Any]:
    """A value for the file that is not the default, and what the command must get."""
    kind: click.ParamType[Any] = option.type
    if option.is_flag:
        return True, True
    if isinstance(kind, click.Choice):
        value: Any = next(
            choice for choice in reversed(list(kind.choices)) if choice != option.default
        )
        return ([value], (value,)) if option.multiple else (value, value)
    if isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        low, high = (getattr(kind, edge, None) for edge in ("min", "max"))
        value = int(low or 0) + 3 if high is None or high > 4 else 0.37 * high
    elif isinstance(kind, click.Path):
        value = "there.json"
    elif isinstance(kind, click.types.StringParamType):
        value = "x-1"
    else:
        value = 0.75
    return ([value], (value,)) if option.multiple else (value, value)


def received(arguments: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The options that the command's function would be called with."""
    seen: dict[str, Any] = {}
    command = command_of(name)
    monkeypatch.setattr(command, "callback", lambda **options: seen.update(options))
    for param in command.params:
        monkeypatch.setattr(param, "required", False)
    result = blb(*arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return seen


def toml_line(key: str, value: Any) -> str:
    """One key with its value."""
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return f"{key} = {text}\n"


def plain(value: Any) -> Any:
    """Paths as text and numbers as numbers, to compare what arrives with what was written."""
    if isinstance(value, tuple):
        return tuple(map(plain, value))
    return str(value) if isinstance(value, Path) else value


@pytest.mark.parametrize("name", [name for name in sorted(COMMANDS) if keys_of(command_of(name))])
@pytest.mark.parametrize("shared", [False, True])
def test_every_option_arrives_from_the_file(
    name: str, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The values of the command's own table; those of the shared table too, unless the option means
    another thing elsewhere. The file is named, so it may set all; a task takes the place of data.
    """
    monkeypatch.chdir(tmp_path)
    options = keys_of(command_of(name))
    settable = [key for key in options if not (shared and key in ("out", "save"))]
    others = [key for key in settable if key != "task"]
    for keys in (others, set(settable) - set(others)):
        samples = {key: sample(options[key]) for key in keys}
        lines = (toml_line(key, written) for key, (written, _) in samples.items())
        text = f"[{'defaults' if shared else name}]\n" + "".join(lines)
        (tmp_path / "blb.toml").write_text(text)
        got = received(["--config", "blb.toml", name], name, monkeypatch)
        arrived = {key: plain(got[options[key].name or ""]) for key in keys}
        assert arrived == {key: wanted for key, (_, wanted) in samples.items()}


@pytest.mark.parametrize("key", ["l2", "tokenizer", "test-samples"])
def test_the_command_line_wins_over_the_environment_over_the_file(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three different values the outermost arrives."""
    monkeypatch.chdir(tmp_path)
    option = keys_of(command_of("fit"))[key.replace("-", "_")]
    for_all = {"l2": 1.0, "tokenizer": "one", "test-samples": 7}
    (tmp_path / "blb.toml").write_text("[fit]\n" + toml_line(key, for_all[key]))

    def arrives(*arguments: str) -> Any:
        got = received(["fit", *arguments], "fit", monkeypatch)[option.name or ""]
        return got[0] if isinstance(got, tuple) else got

    assert arrives() == for_all[key]
    second, third = ("two", "three") if key == "tokenizer" else ("20", "30")
    monkeypatch.setenv(f"BLB_FIT_{key.upper().replace('-', '_')}", second)
    assert str(arrives()).removesuffix(".0") == second
    assert str(arrives(f"--{key}", third)).removesuffix(".0") == third


OWN_TABLE = '[defaults]\nprovider = "vllm"\n[fit]\nprovider = "sglang"\n'
ROWS = '[defaults]\ndata = "train.jsonl"\ntest_data = "test.jsonl"\n'
COLUMNS = (
    "[fit]\ndata = 'a.jsonl'\nvalidation_data = 'b.jsonl'\nfield = 'x'\nprefill = true\n"
    "prompt_column = 'x'\nanswer_column = 'x'\nmessages_column = 'x'\nprompt_template = 'x'\n"
)
WITHOUT_COLUMNS = {
    "validation_data": None,
    "field": None,
    "prefill": False,
    "prompt_column": "prompt",
    "answer_column": "answer",
    "messages_column": "messages",
    "prompt_template": None,
}
ADDRESS = '[defaults]\nprovider = "vllm"\nbase_url = "http://127.0.0.1:8000/v1"\nmodel = "m"\n'
OTHER_HOST = {"base_url": None, "model": None, "endpoint": None, "tokenizer": None}


@pytest.mark.parametrize(
    ("text", "words", "expected"),
    [
        (OWN_TABLE, "fit", {"provider": "sglang"}),
        (OWN_TABLE, "eval", {"provider": "vllm"}),
        (ROWS, "fit --task capitals", {"task": "capitals", "data": None, "test_data": None}),
        ('[fit]\ntask = "capitals"\n', "fit --data x.jsonl", {"task": None, "data": "x.jsonl"}),
        (COLUMNS, "fit --task capitals", WITHOUT_COLUMNS),
        (
            f'{ADDRESS}endpoint = "chat"\ntokenizer = "t"\n',
            "fit --provider openai",
            {"provider": "openai", **OTHER_HOST},
        ),
        (ADDRESS, "BLB_FIT_PROVIDER=openai fit", {"base_url": None}),
        (ADDRESS, "fit --provider=vllm", {"base_url": "http://127.0.0.1:8000/v1", "model": "m"}),
    ],
    ids=["own", "shared", "task", "data", "columns", "other", "environment", "same"],
)
def test_what_of_a_file_arrives(
    text: str,
    words: str,
    expected: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A command's own table wins over the shared one, which other commands keep. Who names a task
    on the command line does not get the file's data or what is said of its columns, nor the other
    way round; and a key for one provider does not go to the address of another, whether the command
    line or the environment names that.
    """
    monkeypatch.chdir(tmp_path)
    (tmp_path / "blb.toml").write_text(text)
    given = words.split()
    if given[0].startswith("BLB_"):
        monkeypatch.setenv(*given.pop(0).split("="))
    got = received(given, given[0], monkeypatch)
    assert {name: plain(got[name]) for name in expected} == expected


def test_the_nearest_file_upwards_counts_and_paths_start_at_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in a folder above is found, its relative paths are its own, and hub names stay what
    they are; so are those of a file that is named.
    """
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "mine.toml").write_text('extends = "vllm"\n')
    (tmp_path / "short.json").write_text("{}")
    (tmp_path / "blb.toml").write_text(
        '[defaults]\ndata = "train.jsonl"\nmodel = "org/name:Q4_1"\n'
        '[eval]\nprovider = "mine.toml"\n[proxy]\nbias = "s=short.json"\n'
    )
    monkeypatch.chdir(inner)
    got = received(["fit"], "fit", monkeypatch)
    assert got["data"] == tmp_path / "train.jsonl"
    assert got["model"] == "org/name:Q4_1"
    named = ["--config", str(tmp_path / "blb.toml"), "eval"]
    assert received(named, "eval", monkeypatch)["provider"] == str(tmp_path / "mine.toml")
    assert received(["proxy"], "proxy", monkeypatch)["biases"] == (f"s={tmp_path / 'short.json'}",)
    monkeypatch.chdir(tmp_path)
    assert received(["fit"], "fit", monkeypatch)["data"] == Path("train.jsonl"), (
        "no longer than need be"
    )


def test_config_names_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--config before BLB_CONFIG before what is found; an empty file switches all off."""
    monkeypatch.chdir(tmp_path)
    for name, seed in (("blb.toml", 1), ("two.toml", 2), ("three.toml", 3)):
        (tmp_path / name).write_text(f"[fit]\nseed = {seed}\n")
    (tmp_path / "none.toml").write_text("")
    assert received(["fit"], "fit", monkeypatch)["seed"] == 1
    monkeypatch.setenv("BLB_CONFIG", "two.toml")
    assert received(["fit"], "fit", monkeypatch)["seed"] == 2
    assert received(["--config", "three.toml", "fit"], "fit", monkeypatch)["seed"] == 3
    assert received(["--config", "none.toml", "fit"], "fit", monkeypatch)["seed"] is None


def test_what_the_file_gave_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file and the options that come from it, on stderr; not those that the command line gave,
    and nothing with --quiet, which the file itself cannot ask for.
    """
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "blb.toml"
    file.write_text('[defaults]\nprovider = "vllm"\nreward = "length"\ntask = "nothing"\n')
    said = blb("fit", "--reward", "contains").stderr
    assert f"{file} gives --provider, --task\n" in said
    assert "gives" not in blb("fit", "--quiet").stderr
    file.write_text(f'[defaults]\nquiet = true\n{ADDRESS.partition("]")[2]}task = "nothing"\n')
    assert "gives --provider, --model, --base-url" in blb("fit", "--reward", "length").stderr


def test_a_file_of_somebody_else_is_not_found_but_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is found must be the user's own; one that is named may be anybody's."""
    (tmp_path / "blb.toml").write_text("[fit]\nseed = 1\n")
    monkeypatch.setattr("os.getuid", lambda: (tmp_path / "blb.toml").stat().st_uid + 4711)
    monkeypatch.setattr("blackbox_lb.cli.settings.ROOT", -1)
    monkeypatch.chdir(tmp_path)
    with raises_naming(InputError, "blb.toml", "blb --config"):
        find_settings()
    assert find_settings(tmp_path / "blb.toml").tables == {"fit": {"seed": 1}}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "cp1252"])
def test_a_file_of_a_windows_editor(tmp_path: Path, encoding: str) -> None:
    """A mark before UTF-8 is skipped; another encoding gets the command that mends it."""
    path = tmp_path / "blb.toml"
    path.write_bytes('[fit]\ndata = "Bogotá.csv"\n'.encode(encoding))
    if encoding == "utf-8-sig":
        assert find_settings(path).tables == {"fit": {"data": "Bogotá.csv"}}
        return
    named = "UTF-16" if encoding == "utf-16" else "WINDOWS-1252"
    with raises_naming(InputError, f"iconv -f {named} -t UTF-8"):
        find_settings(path)
