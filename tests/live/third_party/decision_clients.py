"""Clients of decision endpoints against ``blb proxy``, by base URL alone: the name of one and the
proxy's address without its /v1 as arguments, question and state in the environment variable
REQUEST, one JSON object on stdout.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from typing import Any, Literal

NAME, ROOT = sys.argv[1:]
REQUEST = json.loads(os.environ["REQUEST"])
STATE, QUESTION = REQUEST["state"], REQUEST["question"]
OPTIONS = list(QUESTION["criteria"])
os.environ["TYPESAFE_BASE_URL"] = ROOT
os.environ["TYPESAFE_API_KEY"] = "none"


def typesafe() -> dict[str, Any]:
    """The official client, with zstd for long bodies; each type of answer is read."""
    import_module("backports.zstd")
    sdk: Any = import_module("typesafe_sdk")
    questions = {
        "team": sdk.Choice(instructions=QUESTION["instructions"], criteria=QUESTION["criteria"]),
        "now": sdk.Noul(instructions="Danger?"),
        "tone": sdk.Score(criteria=["calm", "cross"]),
    }
    with sdk.TypeSafeClient() as client:
        answer = client.system_one(state=STATE, questions=questions)
        long = client.system_one(state=STATE * 2_000, questions=questions)
    assert 0 <= answer.nouls["now"].noul <= 1
    assert 0 <= answer.scores["tone"].score <= 1
    team = answer.choices["team"]
    return {
        "choice": team.choice,
        "probabilities": dict(team.probabilities),
        "long": long.choices["team"].choice,
    }


def openai() -> dict[str, Any]:
    """OpenAI's ``client.decisions``."""
    from openai import BadRequestError, OpenAI

    client: Any = OpenAI(base_url=f"{ROOT}/v1", api_key="none", max_retries=0)
    choice = {
        "type": "choice",
        "name": "team",
        "instructions": QUESTION["instructions"],
        "choices": [{"value": name} for name in OPTIONS],
    }
    predicate = {"type": "predicate", "instructions": "Danger?"}
    answer = client.decisions.create(model="m", input=STATE, questions=[predicate, choice])
    assert 0 <= answer.answers[0].probability <= 1
    team = answer.answers[1]
    try:
        client.decisions.create(model="m", input=STATE, questions=[{"type": "choice"}])
    except BadRequestError as error:
        refusal = str(error)
    return {
        "choice": team.choice,
        "probabilities": {row.value: row.probability for row in team.probabilities},
        "refusal": refusal,
    }


def langchain() -> dict[str, Any]:
    """langchain-typesafe."""
    package: Any = import_module("langchain_typesafe")
    question = package.Choice(instructions=QUESTION["instructions"], criteria=QUESTION["criteria"])
    answer = package.TypeSafeClassifier().invoke({"state": STATE, "questions": {"team": question}})
    team = answer.choices["team"]
    return {"choice": team.choice, "probabilities": dict(team.probabilities)}


def jev_eval() -> dict[str, Any]:
    """jev-eval's provider, which it asks for each row."""
    os.environ["TYPESAFE_AI_BASE_URL"] = f"{ROOT}/v1"
    os.environ["JEV_API_KEY"] = "none"
    answer: Any = import_module("jev_eval").provider_from_env().evaluate(STATE, {"team": QUESTION})
    team = answer.get("answers", answer)["team"]
    return {"choice": team["choice"], "probabilities": team["probabilities"]}


def dspy() -> dict[str, Any]:
    """DSPy's client of System One, under a signature with the question as a field."""
    package: Any = import_module("dspy")
    experimental: Any = import_module("dspy.experimental")
    labels = Literal[tuple(OPTIONS)]  # type: ignore[valid-type]
    signature = package.Signature(
        {
            "text": (str, package.InputField()),
            "team": (labels, package.OutputField(desc=QUESTION["instructions"])),
        },
        QUESTION["instructions"],
    )
    package.configure(lm=experimental.TypeSafe(cache=False))
    return {"choice": package.Predict(signature)(text=STATE).team}


CLIENTS = {
    "typesafe": typesafe,
    "openai": openai,
    "langchain": langchain,
    "jev_eval": jev_eval,
    "dspy": dspy,
}
print(json.dumps(CLIENTS[NAME]()))
