"""Each setting is declared once, its step gets the value that the command line gives, and messages
have its name there.
"""

from __future__ import annotations

from typing import Any

import click
import pytest

from blackbox_lb.cli import main
from blackbox_lb.cli.echo import option_names, with_option_names
from blackbox_lb.cli.found import FLAGS, PATHS, TEXTS
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.plan import Plan
from tests.support.errors import raises_naming

ENOUGH = ["--task", "capitals", "--reward", "correct-and-short"]
"""What a fit is at least told."""

ARRIVALS: list[tuple[list[str], str | None, str, object]] = [
    (["--entries", "all"], None, "most_entries", None),
    (["--entries", "30"], None, "most_entries", 30),
    (["--labels", "Rome,Oslo"], None, "labels", ("Rome", "Oslo")),
    (["--estimator", "ips", "--estimator", "ips"], "sweep", "estimators", ("ips",)),
    (["--tau", "0.25", "--tau", "2"], "sweep", "tau", (0.25, 2.0)),
    (["--alpha-scale", "absolute"], "sweep", "alpha_scale", "absolute"),
    (["--unobserved", "drop"], "sweep", "unobserved", "drop"),
    (["--seed", "13"], "sweep", "seed", 13),
    (["--positive", "Rome", "--objective", "accuracy"], "goal", "positive", "Rome"),
]
"""Arguments of a fit whose value is not a field's as it stands, the part of the plan that they set
(None: the plan itself), its field and value.
"""


@pytest.mark.parametrize(("arguments", "owner", "name", "value"), ARRIVALS)
def test_what_an_option_of_a_fit_means_arrives_in_its_plan(
    arguments: list[str], owner: str | None, name: str, value: object
) -> None:
    """Under its own name or the plan's."""
    program = click.Context(main, **main.context_settings)
    command = main.get_command(program, "fit")
    assert command is not None
    given = command.make_context("fit", [*ENOUGH, *arguments], parent=program).params
    plan = Plan(**{field: given[field] for field in Plan.model_fields if field in given})
    holder = plan if owner is None else getattr(plan, owner)
    assert getattr(holder, name) == value


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tau": [0.5, -1.0]}, ["``tau=-1.0``", "above 0"]),
        ({"samples_per_prompt": 0}, ["``samples_per_prompt=0``", "from 1"]),
        ({"l2": ["strong"]}, ["``l2='strong'``", "number"]),
        ({"l2": [0]}, ["``l2=0``", "above 0"]),
        ({"entries": "most"}, ["``entries``", "'most'", "'few'"]),
        ({"entries": 0}, ["``entries``", "0 is neither", "from 1"]),
        ({"learn_from": "neither"}, ["``learn_from='neither'``", "'answers'"]),
        ({"estimator": ["ratio"]}, ["ratio", "projection"]),
        ({"deploy": "warm"}, ["warm", "temperature=T"]),
        ({"price": "cheap"}, ["cheap"]),
        ({"sampels": 3}, ["``sampels``", "there is no"]),
        (
            {"only_stored": True, "learn_from": "answers"},
            ["``only_stored``", "``learn_from=answers``"],
        ),
        ({"phases": "first", "learn_from": "answers"}, ["``phases``", "samples"]),
    ],
)
def test_a_wrong_value_is_an_error_of_ours(fields: dict[str, Any], words: list[str]) -> None:
    """With the value, the limit and the remedy, before any data are read."""
    with raises_naming(InputError, *words):
        Plan(reward="length", **fields)


def test_a_plan_without_a_reward_says_so() -> None:
    """It is the one thing that nobody else knows."""
    with raises_naming(InputError, "``reward``"):
        Plan(task="capitals")  # type: ignore[call-arg]


def test_what_is_said_of_options_by_name_is_said_of_options() -> None:
    """Rules of what a file that is merely found may set name no option that is gone."""
    assert {*TEXTS, *FLAGS, *PATHS} <= option_names()


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("lower ``max_tokens``", "lower --max-tokens"),
        ("use ``estimator=ips``, which", "use --estimator ips, which"),
        ("``depends_on='a b'`` is not known", "--depends-on 'a b' is not known"),
        ("its words: `max_tokens` and ``usage``", "its words: `max_tokens` and ``usage``"),
        ("``rival='words:w:-2'`` or ``top_logprobs``", "--rival 'words:w:-2' or --top-logprobs"),
    ],
)
def test_parameters_become_options(message: str, shown: str) -> None:
    """With their values; other words in backticks stay."""
    assert with_option_names(message) == shown
