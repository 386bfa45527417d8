"""The lists of ``blb providers``: the models of one host, and the hosts of one model."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.providers.hosted_models import (
    HostedModel,
    HostedModels,
    find_hosts,
    load_models,
)
from blackbox_lb.providers.profile import load_profile

OF_EACH_MODEL = "listed with both"
OF_THE_HOST = "taken by the host; of the model unknown"
"""Whether a list shows ``logit_bias`` and logprobs for each model, or only for the host."""
MEASURE_FIRST = (
    "Nobody has measured these: blb doctor --provider HOST --model NAME --tokenizer tokenizer.json"
    " --save mine.toml asks the host, and a fit takes --provider mine.toml."
)
CUT_BY_DEFAULT = (
    "cut by default: not sent by this profile, so that it may act; a profile of your own with"
    " top_k = 0 under [neutral] sends it, and asks the hosts that take it."
)


def print_models(provider: str, *, as_json: bool) -> None:
    """Print the list of a host's models that take a bias and return logprobs."""
    hosted = load_models(provider)
    if as_json:
        print_json(hosted.model_dump(mode="json"))
        return
    sent = frozenset(load_profile(provider).neutral)
    open_models = sum(model.open for model in hosted.models)
    print_table(
        f"{provider}: {len(hosted.models)} models, {open_models} of open weights, on {hosted.date}",
        ("model", "weights", "cut by default", "$ prompt", "$ completion"),
        (
            (model.name, _weights(model), _cuts(model, sent), *_prices(model))
            for model in hosted.models
        ),
        left_aligned=3,
    )
    echo(f"bias and logprobs: {_evidence(hosted)}. Prices are for a million tokens.")
    echo(f"Source: {hosted.source}.")
    if any(_cuts(model, sent) for model in hosted.models):
        echo(CUT_BY_DEFAULT)
    echo(MEASURE_FIRST)


def print_hosts(name: str, *, as_json: bool) -> None:
    """Print which hosts serve a model with a bias and logprobs."""
    matches = find_hosts(name)
    if as_json:
        print_json([_document(hosted, model) for hosted, model in matches])
        return
    print_table(
        f"Hosts of {name}",
        ("host", "model", "weights", "bias and logprobs", "list of", "$ prompt", "$ completion"),
        (
            (
                hosted.provider,
                model.name,
                _weights(model),
                _evidence(hosted),
                str(hosted.date),
                *_prices(model),
            )
            for hosted, model in matches
        ),
        left_aligned=5,
    )
    echo("Prices are for a million tokens. Open weights also run on a server of your own: vLLM,")
    echo("SGLang, llama.cpp. " + MEASURE_FIRST)


def _document(hosted: HostedModels, model: HostedModel) -> dict[str, Any]:
    about_list = hosted.model_dump(mode="json", exclude={"models"})
    return about_list | {"model": model.model_dump(mode="json")}


def _evidence(hosted: HostedModels) -> str:
    if hosted.fields == "each model":
        return OF_EACH_MODEL
    return OF_THE_HOST


def _weights(model: HostedModel) -> str:
    if not model.open:
        return "closed"
    return model.weights or "open"


def _cuts(model: HostedModel, sent: Set[str]) -> str:
    """The settings that truncate what is sampled from, but for those that each request sends."""
    cuts = {name: value for name, value in model.cuts.items() if name not in sent}
    return ", ".join(f"{name} {value}" for name, value in cuts.items())


def _prices(model: HostedModel) -> tuple[str, str]:
    if model.price is None:
        return "", ""
    prompt, completion = model.price
    return f"{prompt:g}", f"{completion:g}"
