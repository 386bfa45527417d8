"""``blb providers``: the facts on each inference API, and their evidence."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from typing import TYPE_CHECKING, Any

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import argument, command
from blackbox_lb.cli.options import JsonOptions
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.plan.setting import setting
from blackbox_lb.providers.packaged import profile_names

if TYPE_CHECKING:
    from blackbox_lb.providers.hosted_models import HostedModel, HostedModels
    from blackbox_lb.providers.profile import Profile
    from blackbox_lb.providers.schema import Evidence

IDENTITY = frozenset({"name", "title", "homepage", "unknown", "evidence"})
CHOICES = frozenset(
    {
        *(
            "connection.api_key_env",
            "connection.base_url_env",
            "connection.concurrency",
            "connection.embedded",
        ),
        *("logprobs.limit_remedy", "logprobs.limit_is_setting"),
    }
)
"""Rows on how this package behaves: no facts of a provider, so they need no evidence."""
DOCUMENTATION = frozenset({"errors"})
"""Evidence that belongs to no row."""
LEGEND = """\
S source or official specification, R recorded traffic, L measured on a live server, D vendor documentation, 3 third-party report.
unproven: no better than D or 3. UNKNOWN: a guess, which is not used until blb doctor has seen it."""  # noqa: E501
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
WIDEST = 58
"""Widest row with its value, in columns, up to which the evidence is aligned."""
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
    """List the providers, or show all facts on NAME and their evidence."""
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
        _details(profiles[0])
    else:
        _overview(profiles)


def flattened(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted row -> value. Lists, empty tables and plain values are rows; other tables are taken
    apart.
    """
    rows: dict[str, Any] = {}
    for key, value in table.items():
        rows |= (
            flattened(value, f"{prefix}{key}.")
            if isinstance(value, Mapping) and value
            else {f"{prefix}{key}": value}
        )
    return rows


def evidence_of(profile: Profile, row: str) -> tuple[str, Evidence] | None:
    """The evidence of a dotted row and its name there: its own, else that of the nearest table
    around it.
    """
    while row:
        if row in profile.evidence:
            return row, profile.evidence[row]
        row = row.rpartition(".")[0]
    return None


def shown_rows(profile: Profile) -> dict[str, Any]:
    """Dotted row -> value: rows that the profile sets, and defaults with evidence of their own or
    known to be guesses.
    """
    rows = flattened(profile.model_dump(exclude=set(IDENTITY)))
    named = set(flattened(profile.model_dump(exclude=set(IDENTITY), exclude_unset=True))) | set(
        profile.evidence
    )
    return {row: value for row, value in rows.items() if row in named or row in profile.unknown}


def _overview(profiles: list[Profile]) -> None:
    from blackbox_lb.cli.terminal import print_table

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
        left_aligned=5,
    )
    echo(
        "key: the environment variable. learns from: samples, given answers (labels: of one token),"
        " by the logprobs of a token.\ntakes a bias: most entries, their range in nats, whole"
        " numbers where it takes no fractions.\nproven by: the weakest evidence of token ids,"
        " neutral sampling and the bias; unknown: a guess, which is\nnot used until blb doctor has"
        " seen it. All that is known of one: blb providers NAME"
    )


def _learns_from(profile: Profile) -> str:
    several = profile.reference is not None or profile.answers.continues is not False
    limit = _most(profile.logprobs.limit)
    if several:
        return f"samples, answers: {limit}"
    return f"samples, labels: {limit}"


def _takes(profile: Profile) -> str:
    rules = profile.bias
    entries = _most(rules.entries)
    if not rules.fractions:
        entries += " whole"
    return f"{entries}, {rules.low:g} to {rules.high:g}"


def _proven(profile: Profile) -> str:
    if not all(map(profile.is_known, NEEDED)):
        return "unknown"
    evidence = [evidence_of(profile, row) for row in NEEDED]
    best = [
        min(map(list(GRADES).index, proof[1].grade.split(", "))) if proof else len(GRADES)
        for proof in evidence
    ]
    return [*GRADES.values(), "no evidence"][max(best)]


def _most(limit: int | None) -> str:
    if limit is None:
        return "any"
    return f"{limit:,}"


def _details(profile: Profile) -> None:
    echo(f"{profile.name}: {profile.title}\n{profile.homepage}")
    sections: dict[str, dict[str, Any]] = {}
    for row, value in shown_rows(profile).items():
        table, _, key = row.rpartition(".")
        sections.setdefault(table or row, {})[key or row] = value
    printed: set[str] = set()
    for table, rows in sections.items():
        echo(f"\n[{table}]")
        for line in _section(profile, table, rows, printed):
            echo(line)
    for key, evidence in profile.evidence.items():
        if key in DOCUMENTATION:
            echo(f"\n[{key}]\n  {evidence.seen}\n      {_grade(evidence)}  {evidence.source}")
    echo(f"\n{LEGEND}")


def _section(
    profile: Profile, table: str, rows: Mapping[str, Any], printed: set[str]
) -> Iterator[str]:
    """The lines of one table. ``printed``: evidence whose remark is printed already."""
    labels = {key: f"{key} = {_value(value)}" for key, value in rows.items()}
    width = max((len(label) for label in labels.values() if len(label) <= WIDEST), default=0)
    for key, label in labels.items():
        row = key if key == table else f"{table}.{key}"
        evidence = evidence_of(profile, row)
        yield f"  {label:<{width}}  {_known(profile, row, evidence)}"
        if isinstance(rows[key], list) and rows[key] and isinstance(rows[key][0], Mapping):
            yield from (f"      {_entry(entry)}" for entry in rows[key])
        if evidence is not None and evidence[1].seen and evidence[0] not in printed:
            printed.add(evidence[0])
            about = ""
            if evidence[0] != row:
                about = f"{evidence[0]}: "
            yield f"      {about}{evidence[1].seen}"


def _entry(table: Mapping[str, Any]) -> str:
    """One table of a list on a line: its values, and the names of what is true."""
    parts = []
    for key, value in table.items():
        if value is True:
            parts.append(key.replace("_", " "))
        elif value:
            parts.append(str(value))
    return ": ".join(parts)


def _value(value: Any) -> str:
    """The value in TOML; a list of tables by its length, because they follow on lines of their
    own.
    """
    if value is None:
        return "(none)"
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return f"({len(value)})"
    return json.dumps(value, ensure_ascii=False)


def _known(profile: Profile, row: str, finding: tuple[str, Evidence] | None) -> str:
    mark = "UNKNOWN  "
    if profile.is_known(row):
        mark = ""
    if finding is None:
        if row in CHOICES:
            return f"{mark}(a setting of this package)"
        return f"{mark}(no evidence)"
    return f"{mark}{_grade(finding[1])}  {finding[1].source}"


def _grade(evidence: Evidence) -> str:
    proven = any(grade in "SRL" for grade in evidence.grade)
    if proven:
        return f"{evidence.grade} {evidence.date}"
    return f"{evidence.grade} {evidence.date} unproven"


def _models(provider: str, *, as_json: bool) -> None:
    """Print the list of a host's models that take a bias and return logprobs."""
    from blackbox_lb.cli.terminal import print_table
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
        left_aligned=3,
    )
    echo(f"bias and logprobs: {_evidence(hosted)}. Prices are for a million tokens.")
    echo(f"Source: {hosted.source}.")
    if any(_cuts(model, sent) for model in hosted.models):
        echo(CUT_BY_DEFAULT)
    echo(MEASURE_FIRST)


def _hosts(name: str, *, as_json: bool) -> None:
    """Print which hosts serve a model with a bias and logprobs."""
    from blackbox_lb.cli.terminal import print_table
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
