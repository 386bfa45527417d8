"""``blb compile``: a bias file for another provider or another limit, from stored rollouts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from blackbox_lb.cli.echo import echo, print_json
from blackbox_lb.cli.grouped import command
from blackbox_lb.cli.options import AT, StoredBiasOptions
from blackbox_lb.cli.resources import check_folder, chosen_bias
from blackbox_lb.cli.terminal import print_conclusion
from blackbox_lb.errors import BiasError, InputError
from blackbox_lb.jobs.plan.setting import setting
from blackbox_lb.jobs.runs.names import LEARNED, STORE
from blackbox_lb.providers.packaged import profile_names
from blackbox_lb.safety.printable import counted, printable, shell_line

if TYPE_CHECKING:
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.jobs.runs.conclusion import Conclusion
    from blackbox_lb.providers.profile import Profile
    from blackbox_lb.rollouts.positions import Positions


class CompileOptions(StoredBiasOptions):
    entries: int | None = setting(
        None, None, "Most tokens in the bias. [default: the provider's limit]", ge=1
    )
    integers: bool = setting(
        False, None, "Whole numbers only, where the provider takes fractions too."
    )
    at: str | None = setting(None, None, AT, metavar="POINT")
    out: Path | None = setting(
        None, None, "Where to write. [default: as in learned-openai-300.json]"
    )


@command(
    "compile",
    CompileOptions,
    example="blb compile runs/train/learned.json --provider openai --entries 100",
)
def compile_command(options: CompileOptions) -> None:
    """Compile the bias file BIAS for a provider, at most so many entries, or whole numbers.

    Give learned.json, the whole learned vector that blb fit wrote beside bias.json. The values sent
    are those whose policy is closest to that of BIAS on the logged prefixes of the store's base
    completions, refitted; no server is asked. The share of the estimated gain that is kept is 1
    less the KL divergence to the policy of BIAS, as a share of that from the base model to it. The
    result is another policy and UNVERIFIED until blb eval has judged it.
    """
    from blackbox_lb.bias.document import Bias
    from blackbox_lb.bias.limits import (
        check_bias,
        highest_id,
        most_entries,
        profile_of,
        vocabulary_of,
    )
    from blackbox_lb.bias.operating import Promise
    from blackbox_lb.cli.keys import tell_end_of_model
    from blackbox_lb.jobs.compiling.compile import compile_bias
    from blackbox_lb.jobs.compiling.logged_prefixes import logged_prefixes
    from blackbox_lb.providers.profile import load_profile

    bias_file = chosen_bias(options.bias_file)
    bias = Bias.load(bias_file)
    bias.check_moves_tokens()
    if bias.phrases and not bias.entries:
        raise BiasError(
            f"{bias_file} keeps phrases out and holds no vector, which would be compiled; send it"
            " as it is, with apply() or blb proxy"
        )
    if options.at is not None:
        bias = bias.at_promise(Promise.parse(options.at))
    profile = profile_of(bias, options.provider)
    profile.require(["bias"], "compiling", bias.model)
    profile.check_model(bias.model)
    tell_end_of_model(profile, bias.model)
    limit = most_entries(profile, options.entries)
    collected_by = []
    if bias.provider in {*profile_names()} - {profile.name}:
        collected_by = [load_profile(bias.provider)]
    vocabulary = vocabulary_of(bias, [profile, *collected_by], options.tokenizer)
    store = options.store or bias_file.with_name(STORE)
    out = _out(bias_file, store, profile, limit, options)
    highest = highest_id(profile, vocabulary)
    prefixes = None
    if not bias.features:  # the effect of a bias that depends on the prompt is not estimated
        prefixes = logged_prefixes(store, bias, profile, vocabulary)
        if not options.as_json and not options.quiet:
            for sentence in _explanations(bias, bias_file, prefixes, store, options.entries):
                echo(sentence, err=True)
    compiled = compile_bias(
        bias,
        profile,
        None if prefixes is None else prefixes.next_token,
        highest_id=highest,
        entries=options.entries,
        integers=options.integers,
    )
    check_bias(compiled, profile, highest)
    compiled.save(out)
    document = {
        "entries": len(compiled.entries),
        "learned_entries": len(bias.entries),
        "bias": str(out),
        "judge": _judge(compiled, profile, options.provider, out),
    }
    if prefixes is not None:
        document |= _estimates(bias, compiled, prefixes, highest)
    if options.as_json:
        print_json(document)
        return
    print_conclusion(compile_conclusion(bias, compiled, profile, document))


def compile_conclusion(
    bias: Bias, compiled: Bias, profile: Profile, document: dict[str, Any]
) -> Conclusion:
    """The conclusion of a compile: what is kept, what is lost, and how to judge it.

    The two examples are the tokens whose values changed most.
    """
    from blackbox_lb.jobs.runs.answers import BeforeAfter
    from blackbox_lb.jobs.runs.conclusion import Conclusion, NextStep

    kind = "values"
    if compiled.compiled and compiled.compiled.integers:
        kind = "whole numbers"
    limits = f"{kind} from {profile.bias.low:g} to {profile.bias.high:g}"
    counts = f"{document['entries']:,} of {document['learned_entries']:,}"
    if bias.features:
        statements = [f"{counts} tokens may be biased for {profile.name}: {limits} in each request"]
        changes = []
    else:
        statements = [f"{counts} entries for {profile.name}: {limits}", *_losses(document, profile)]
        changes = sorted(
            bias.entries,
            key=lambda entry: -abs(compiled.logit_bias.get(entry.id, 0.0) - entry.bias),
        )
    if compiled.phrases:
        statements.append(_kept_phrases(compiled, profile))
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
        saved=document["bias"],
        steps=(NextStep(document["judge"]),),
    )


def _kept_phrases(compiled: Bias, profile: Profile) -> str:
    """What becomes of the phrases that the file keeps out."""
    from blackbox_lb.providers.stepping_back import endpoints_that_step_back

    count = counted(len(compiled.phrases), "phrase")
    if endpoints_that_step_back(profile):
        return f"{count} kept, which apply() and blb proxy step back from"
    return f"{count} kept, though nothing can step back with {profile.name}"


def _losses(document: dict[str, Any], profile: Profile) -> list[str]:
    """What is left of the estimated gain, and what became of the other entries."""
    reasons = []
    if document["refused"]:
        reasons.append(
            f"{document['refused']:,} of them above the highest id that {profile.name} takes"
        )
    if document["unlisted"]:
        reasons.append(f"{document['unlisted']:,} of them on no logged prefix listed, or sampled")
    dropped = f"{document['dropped']:,} dropped"
    if reasons:
        dropped += f" ({'; '.join(reasons)})"
    statements = [
        f"{document['kept_share']:.1%} of the estimated gain kept,"
        f" {document['kl_lost_nats_per_token']:.5f} nats of KL lost per token",
        f"{document['clipped']:,} clipped, {document['rounded']:,} rounded to 0, {dropped}",
    ]
    if document["unlisted_sent"]:
        statements.append(f"{document['unlisted_sent']:,} are sent whose effect is unknown")
    return statements


def _out(
    bias_file: Path, store: Path, profile: Profile, limit: int | None, options: CompileOptions
) -> Path:
    suffix = ""
    if options.integers and profile.bias.fractions:
        suffix = "-integers"
    name = f"{bias_file.stem}-{profile.name}-{'all' if limit is None else limit}{suffix}.json"
    out = options.out or bias_file.with_name(name)
    for needed, content in ((bias_file, "BIAS itself"), (store, "the rollout store")):
        if out.exists() and needed.exists() and out.samefile(needed):
            raise InputError(f"--out {out} is {content}, which would be lost; give another file")
    check_folder(out)
    return out


def _estimates(
    bias: Bias, compiled: Bias, prefixes: Positions, highest: int | None
) -> dict[str, Any]:
    """What the logged prefixes say. Of the learned entries, ``refused`` are above the provider's
    highest id, ``unlisted`` were never listed or sampled and are dropped, ``unlisted_sent`` are
    sent all the same.
    """
    from blackbox_lb.bias.records import Compiled

    unlisted = set(bias.logit_bias).difference(prefixes.next_token.token_ids.tolist())
    return {
        **(compiled.compiled or Compiled()).model_dump(),
        "refused": sum(highest is not None and token > highest for token in bias.logit_bias),
        "unlisted": len(unlisted.difference(compiled.logit_bias)),
        "unlisted_sent": len(unlisted.intersection(compiled.logit_bias)),
        "completions": len(prefixes.rollouts.keys),
        "positions": prefixes.next_token.n_positions,
        "remarks": prefixes.notices,
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


def _judge(compiled: Bias, profile: Profile, provider: str | None, out: Path) -> str:
    """The command that judges the result, with capitals in place of facts that the file lacks.
    ``provider``: as it was given.
    """
    from blackbox_lb.tasks.load import BUILT_IN

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
