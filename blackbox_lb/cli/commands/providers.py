"""``blb providers``: the facts on each inference API, and their evidence."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import argument, command
from blackbox_lb.cli.options import JsonOptions
from blackbox_lb.cli.terminal import print_table
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.setting import setting
from blackbox_lb.providers.packaged import profile_names

if TYPE_CHECKING:
    from blackbox_lb.providers.hosted_models import HostedModel, HostedModels
    from blackbox_lb.providers.profile import Profile
    from blackbox_lb.providers.schema import Evidence

NEEDED = ("tokens.id", "neutral", "bias")
"""Without these rows there is no fit: the weakest evidence among them is that of the provider."""
GRADES = {
    "L": "measured on a live server",
    "R": "recorded traffic",
    "S": "specification",
    "D": "documentation",
    "3": "third-party report",
}
"""Grades of evidence in words, the best first."""
MEASURE_FIRST = (
    "Nobody has measured these: blb doctor --provider HOST --model NAME --tokenizer tokenizer.json"
    " --save mine.toml asks the host, and a fit takes --provider mine.toml."
)
CUT_BY_DEFAULT = (
    "cut by default: not sent by this profile, so that it may act; a profile of your own with"
    " top_k = 0 under [neutral] sends it, and asks the hosts that take it."
)


class ProvidersOptions(JsonOptions):
    name: str | None = argument(required=False)
    models: bool = setting(
        False,
        None,
        "List the models of NAME that take a bias and return logprobs, open weights first, by a"
        " list of a known date.",
    )
    hosts: str | None = setting(
        None,
        None,
        "List the hosts that serve MODEL with a bias and logprobs, by lists of a known date.",
        metavar="MODEL",
    )


@command("providers", ProvidersOptions, example="blb providers vllm")
def providers_command(options: ProvidersOptions) -> None:
    """List the providers, or print the file of facts on NAME, with their evidence."""
    name = options.name
    hosts = options.hosts
    if hosts is not None:
        if name is not None or options.models:
            raise InputError(
                "--hosts asks for the hosts of a model, and was given with"
                f" {'--models' if name is None else name}; leave one of them out"
            )
        _hosts(hosts, as_json=options.as_json)
        return
    if options.models:
        if name is None:
            raise InputError(
                "--models lists the models of one host, and none was named; give it, as in"
                " blb providers openrouter --models"
            )
        _models(name, as_json=options.as_json)
        return
    from blackbox_lb.providers.profile import load_profile

    profiles = [
        load_profile(profile_name) for profile_name in ([name] if name else profile_names())
    ]
    if options.as_json:
        print_json([profile.model_dump(mode="json") for profile in profiles])
    elif name:
        _details(name)
    else:
        _overview(profiles)


def evidence_of(profile: Profile, row: str) -> tuple[str, Evidence] | None:
    """The evidence of a dotted row and its name there: its own, else that of the nearest table
    around it.
    """
    while row:
        if row in profile.evidence:
            return row, profile.evidence[row]
        row = row.rpartition(".")[0]
    return None


def _overview(profiles: list[Profile]) -> None:
    print_table(
        "Providers",
        ("name", "key", "learns from", "takes a bias", "proven by"),
        (
            (
                profile.name,
                profile.connection.api_key_env or "none",
                _learns_from(profile),
                _takes(profile),
                _proven(profile),
            )
            for profile in profiles
        ),
        text_columns=range(5),
    )
    echo(
        "key: the environment variable. learns from: samples, given answers (labels: of one token),"
        " by the logprobs of\na token; or decisions, the probabilities of options. takes a bias:"
        " most entries, their range in nats, whole\nnumbers where it takes no fractions. proven"
        " by: the weakest evidence of token ids, neutral sampling and the\nbias, or of decisions;"
        " unknown: a guess, which is not used until blb doctor has seen it.\nAll that is known of"
        " one: blb providers NAME"
    )


def _learns_from(profile: Profile) -> str:
    if not profile.endpoints:
        return "decisions"
    several = profile.reference is not None or profile.answers.continues is not False
    limit = _most(profile.logprobs.limit)
    if several:
        return f"samples, answers: {limit}"
    return f"samples, labels: {limit}"


def _takes(profile: Profile) -> str:
    if not profile.endpoints:
        return "none"
    rules = profile.bias
    entries = _most(rules.entries)
    if not rules.fractions:
        entries += " whole"
    return f"{entries}, {rules.low:g} to {rules.high:g}"


def _proven(profile: Profile) -> str:
    needed = NEEDED if profile.endpoints else ("decisions",)
    if not all(map(profile.is_known, needed)):
        return "unknown"
    evidence = [evidence_of(profile, row) for row in needed]
    best = [
        min(map(list(GRADES).index, proof[1].grade.split(", "))) if proof else len(GRADES)
        for proof in evidence
    ]
    return [*GRADES.values(), "no evidence"][max(best)]


def _most(limit: int | None) -> str:
    if limit is None:
        return "any"
    return f"{limit:,}"


def _details(name: str) -> None:
    """Print the file of a profile, and those that it extends."""
    from blackbox_lb.providers.profile import read_profile
    from blackbox_lb.safety.untrusted import parse_toml, text_of_file

    file: str | None = name
    while file is not None:
        text = text_of_file(read_profile(file))
        echo(text)
        file = parse_toml(text.encode()).get("extends")
        if file is not None:
            echo(f"# Where it is not above, it is as in {file}:\n")


def _models(provider: str, *, as_json: bool) -> None:
    """Print the list of a host's models that take a bias and return logprobs."""
    from blackbox_lb.providers.hosted_models import load_models
    from blackbox_lb.providers.profile import load_profile

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
        text_columns=range(3),
    )
    echo(f"bias and logprobs: {_evidence(hosted)}. Prices are for a million tokens.")
    echo(f"Source: {hosted.source}.")
    if any(_cuts(model, sent) for model in hosted.models):
        echo(CUT_BY_DEFAULT)
    echo(MEASURE_FIRST)


def _hosts(name: str, *, as_json: bool) -> None:
    """Print which hosts serve a model with a bias and logprobs."""
    from blackbox_lb.providers.hosted_models import find_hosts

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
        text_columns=range(5),
    )
    echo("Prices are for a million tokens. Open weights also run on a server of your own: vLLM,")
    echo("SGLang, llama.cpp. " + MEASURE_FIRST)


def _document(hosted: HostedModels, model: HostedModel) -> dict[str, Any]:
    about_list = hosted.model_dump(mode="json", exclude={"models"})
    return about_list | {"model": model.model_dump(mode="json")}


def _evidence(hosted: HostedModels) -> str:
    """Whether a list shows ``logit_bias`` and logprobs for each model, or only for the host."""
    if hosted.fields == "each model":
        return "listed with both"
    return "taken by the host; of the model unknown"


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
