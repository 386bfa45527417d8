"""The action of ``blb compile``: choose and refit entries on logged prefixes, write the file,
report the loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.limits import check_bias, highest_id, most_entries, profile_of, vocabulary_of
from blackbox_lb.bias.records import Compiled
from blackbox_lb.cli.actions.eval_output import at_point
from blackbox_lb.cli.commands.learning.compile import CompileOptions
from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import arguments_for
from blackbox_lb.cli.keys import tell_end_of_model
from blackbox_lb.cli.terminal import print_conclusion, print_table
from blackbox_lb.errors import InputError
from blackbox_lb.jobs.compiling.compile import (
    Kept,
    compile_bias,
    gain_by_entries,
)
from blackbox_lb.jobs.compiling.logged_prefixes import logged_prefixes
from blackbox_lb.jobs.runs.answers import BeforeAfter
from blackbox_lb.jobs.runs.conclusion import Conclusion, NextStep
from blackbox_lb.jobs.runs.names import STORE
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.providers.profile import Profile, load_profile
from blackbox_lb.rollouts.positions import Positions
from blackbox_lb.safety.printable import printable, shell_line
from blackbox_lb.tasks.load import BUILT_IN

LEARNED = "learned.json"
"""The name under which ``blb fit`` writes the learned vector before the compile."""


def execute(options: CompileOptions) -> None:
    bias_file = options.bias_file
    bias = at_point(Bias.load(bias_file), options.at)
    profile = profile_of(bias, options.provider)
    profile.require(["bias"], "compiling", bias.model)
    profile.check_model(bias.model)
    tell_end_of_model(profile, bias.model)
    most_entries(profile, options.entries)
    collected_by = []
    if bias.provider in {*profile_names()} - {profile.name}:
        collected_by = [load_profile(bias.provider)]
    vocabulary = vocabulary_of(bias, [profile, *collected_by], options.tokenizer)
    store = options.store or bias_file.with_name(STORE)
    out = _out(store, profile, options)
    if bias.features:
        _compile_features(bias, profile, highest_id(profile, vocabulary), out, options)
        return
    prefixes = logged_prefixes(store, bias, profile, vocabulary)
    if not options.as_json and not options.quiet:
        for sentence in _explanations(bias, bias_file, prefixes, store, options.entries):
            echo(sentence, err=True)
    highest = highest_id(profile, vocabulary)
    table = prefixes.next_token
    compiled = compile_bias(
        bias, profile, table, highest_id=highest, **arguments_for(compile_bias, options)
    )
    compiled.save(out)
    rows = gain_by_entries(bias, profile, table, compiled, highest_id=highest)
    judge = _judge(compiled, profile, options.provider, out)
    if options.as_json:
        print_json(
            _document(bias, compiled, prefixes, rows, highest) | {"bias": str(out), "judge": judge}
        )
        return
    document = _document(bias, compiled, prefixes, rows, highest)
    if options.verbose:
        _table(rows, profile)
        _result(document, compiled, profile)
    print_conclusion(compile_conclusion(bias, compiled, profile, document, out, judge))


def compile_conclusion(
    bias: Bias,
    compiled: Bias,
    profile: Profile,
    document: dict[str, Any],
    out: Path,
    judge: str,
) -> Conclusion:
    """The conclusion of a compile: what is kept, what is lost, and how to judge it.

    The two examples are the tokens whose values changed most.
    """
    kind = "values"
    if document["integers"]:
        kind = "whole numbers"
    lost = f"{document['kl_lost_nats_per_token']:.5f} nats of KL lost per token"
    statements = [
        f"{document['entries']:,} of {document['learned_entries']:,} entries for {profile.name}:"
        f" {kind} from {profile.bias.low:g} to {profile.bias.high:g}",
        f"{document['kept_share']:.1%} of the estimated gain kept, {lost}",
        f"{document['clipped']:,} clipped, {document['rounded']:,} rounded to 0,"
        f" {document['dropped']:,} dropped",
    ]
    if document["unlisted_sent"]:
        statements.append(f"{document['unlisted_sent']:,} are sent whose effect is unknown")
    changes = sorted(
        bias.entries, key=lambda entry: -abs(compiled.logit_bias.get(entry.id, 0.0) - entry.bias)
    )
    examples = tuple(
        BeforeAfter(
            f"'{entry.readable}'",
            f"{entry.bias:+.2f}",
            f"{compiled.logit_bias.get(entry.id, 0.0):+.2f} nats",
        )
        for entry in changes[:2]
    )
    return Conclusion(
        "UNVERIFIED",
        tuple(statements),
        examples=examples,
        saved=str(out),
        steps=(NextStep(judge),),
    )


def _compile_features(
    bias: Bias, profile: Profile, highest: int | None, out: Path, options: CompileOptions
) -> None:
    """Without the prefixes in a store: what is lost is not estimated, and ``blb eval`` tells what
    is left.
    """
    compiled = compile_bias(
        bias, profile, None, highest_id=highest, **arguments_for(compile_bias, options)
    )
    check_bias(compiled, profile, highest)
    compiled.save(out)
    judge = _judge(compiled, profile, options.provider, out)
    if options.as_json:
        print_json(
            {
                "entries": len(compiled.entries),
                "learned_entries": len(bias.entries),
                "bias": str(out),
                "judge": judge,
            }
        )
        return
    kind = "values"
    if compiled.sent and compiled.sent.integers:
        kind = "whole numbers"
    echo(
        f"compiled for {profile.name}: {len(compiled.entries):,} of {len(bias.entries):,} tokens"
        f" may be biased, with {kind} from {profile.bias.low:g} to {profile.bias.high:g} in each"
        " request"
    )
    echo(f"wrote {out}, UNVERIFIED: judge it with\n  {judge}")


def _out(store: Path, profile: Profile, options: CompileOptions) -> Path:
    bias_file = options.bias_file
    limit = most_entries(profile, options.entries)
    suffix = ""
    if options.integers and profile.bias.fractions:
        suffix = "-integers"
    name = f"{bias_file.stem}-{profile.name}-{'all' if limit is None else limit}{suffix}.json"
    out = options.out or bias_file.with_name(name)
    for needed, content in ((bias_file, "BIAS itself"), (store, "the rollout store")):
        if out.exists() and needed.exists() and out.samefile(needed):
            raise InputError(f"--out {out} is {content}, which would be lost; give another file")
    if not out.parent.is_dir():
        raise InputError(
            f"there is no folder {out.parent} for the result; make it, or give another --out"
        )
    return out


def _document(
    bias: Bias, compiled: Bias, prefixes: Positions, rows: list[Kept], highest: int | None
) -> dict[str, Any]:
    """The report for JSON. Of the learned entries, ``refused`` are above the provider's highest id,
    ``unlisted`` were never listed or sampled and are dropped, ``unlisted_sent`` are sent all the
    same.
    """
    unlisted = set(bias.logit_bias).difference(prefixes.next_token.token_ids.tolist())
    return {
        "entries": len(compiled.entries),
        **(compiled.compiled or Compiled()).model_dump(),
        "learned_entries": len(bias.entries),
        "refused": sum(highest is not None and token > highest for token in bias.logit_bias),
        "unlisted": len(unlisted.difference(compiled.logit_bias)),
        "unlisted_sent": len(unlisted.intersection(compiled.logit_bias)),
        "completions": len(prefixes.rollouts.keys),
        "positions": prefixes.next_token.n_positions,
        "remarks": prefixes.notices,
        "table": [asdict(row) for row in rows],
    }


def _explanations(
    bias: Bias, bias_file: Path, prefixes: Positions, store: Path, limit: int | None
) -> Iterator[str]:
    """Sentences on what the estimate rests on, and what it cannot tell."""
    yield (
        f"{bias_file}: {len(bias.entries):,} entries, on {prefixes.next_token.n_positions:,}"
        f" positions of {len(prefixes.rollouts.keys):,} base completions in {store}"
    )
    yield from prefixes.notices
    learned_file = bias_file.with_name(LEARNED)
    if bias.compiled is not None:
        remedy = ""
        if learned_file.is_file() and learned_file != bias_file:
            remedy = f"; {learned_file} holds the whole learned vector"
        yield f"it was compiled before, so what follows is a share of what that left{remedy}"
    if not set(bias.logit_bias).intersection(prefixes.next_token.token_ids.tolist()):
        yield (
            "none of its tokens was listed or sampled there, so that nothing is known of what it"
            " does, or of what is lost"
        )
    if limit is not None and limit > len(bias.entries):
        yield f"it has fewer entries than the {limit:,} that may be used"


def _table(rows: list[Kept], profile: Profile) -> None:
    fractions, integers = (
        [row for row in rows if row.integers == of_integers] for of_integers in (False, True)
    )
    print_table(
        f"Estimated gain kept for {profile.name}, by most entries",
        (
            "entries",
            "fractions: kept",
            "KL lost (nats/token)",
            "whole numbers: kept",
            "KL lost",
            "not 0",
        ),
        (
            (
                f"{a.entries:,}",
                f"{a.kept:.1%}",
                f"{a.kl_lost:.5f}",
                f"{b.kept:.1%}",
                f"{b.kl_lost:.5f}",
                f"{b.listed:,}",
            )
            for a, b in zip(fractions, integers, strict=True)
        ),
        left_aligned=0,
    )


def _result(document: dict[str, Any], compiled: Bias, profile: Profile) -> None:
    kind = "values"
    if document["integers"]:
        kind = "whole numbers"
    echo(
        f"compiled for {profile.name}: {document['entries']:,} {kind} from {profile.bias.low:g} to"
        f" {profile.bias.high:g}, {document['kept_share']:.1%} of the estimated gain kept,"
        f" {document['kl_lost_nats_per_token']:.5f} nats of KL lost per token"
    )
    reasons = [
        f"{document[name]:,} of them {why}"
        for name, why in (
            ("refused", f"above the highest id that {profile.name} takes"),
            ("unlisted", "on no logged prefix listed, or sampled"),
        )
        if document[name]
    ]
    echo(
        f"{document['clipped']:,} clipped to the range, {document['rounded']:,} rounded to 0,"
        f" {document['dropped']:,} of {document['learned_entries']:,} dropped"
        + (f" ({'; '.join(reasons)})" if reasons else "")
    )
    if document["unlisted_sent"]:
        echo(
            f"{document['unlisted_sent']:,} that are sent were on no logged prefix listed, or"
            " sampled:"
            " their effect is unknown"
        )


def _judge(compiled: Bias, profile: Profile, provider: str | None, out: Path) -> str:
    """The command that judges the result, with capitals in place of facts that the file lacks.
    ``provider``: as it was given.
    """
    words = ["blb", "eval", str(out), "--provider", provider or profile.name]
    if not profile.connection.embedded:
        words += ["--model", _plain(compiled.model, "MODEL")]
    if compiled.task in BUILT_IN:
        words += ["--task", compiled.task]
    else:
        words += ["--data", "DATA.jsonl"]
    words += ["--reward", _plain(compiled.reward, "REWARD")]
    if compiled.sampling is not None:
        words += ["--max-tokens", str(compiled.sampling.max_tokens)]
    return shell_line(*words, "--save")


def _plain(text: str, instead: str) -> str:
    """``text`` of an untrusted bias file, or ``instead`` where it could move a terminal's
    cursor.
    """
    rest = text.replace("\\", "")
    if printable(rest) == rest:
        return text
    return instead
