"""``python -m bench.gallery.writing``: what the completions of an evaluation of generated prose are
like, beside its reward.

It takes the words of ``blb eval``, and reads the completions of that evaluation from the store
without asking for any. For each policy it counts stock words and phrases, dashes, length and
repetition, and averages the logprobs that the model without a bias gives the texts. A second model
judges blind pairs of the base and each policy (``pairs``). A last table has the learned tokens of
what the reward counts beside the hand list (``variants``). It prints its tables as JSON.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from bench.gallery.pairs import Verdicts, asking, judged, shuffled, verdicts
from bench.gallery.rewards import FAMILIES, slop, words_of
from bench.gallery.variants import meant, variants
from blackbox_lb import RolloutStore, Task, Trials, connect, load_task, parse_reward
from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.request_bias import to_request_bias
from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.hand_lists import hand_list
from blackbox_lb.jobs.evaluation.arms import BASE, Alternative, Arm, alternatives, arms_at
from blackbox_lb.jobs.evaluation.compare import mean_of
from blackbox_lb.jobs.evaluation.document import Mean
from blackbox_lb.jobs.runs.names import TOP_LOGPROBS
from blackbox_lb.rollouts.judging.intervals import bootstrap
from blackbox_lb.rollouts.judging.verdict import SAMPLED, parse_setting
from blackbox_lb.rollouts.progress import Silent
from blackbox_lb.tasks import Reward
from blackbox_lb.types import Completion, Example

__all__ = ["MEASURES", "compared", "main", "repetition"]

Texts: TypeAlias = list[list[Completion]]
"""The completions of each test prompt."""
N = 3
JUDGED, SHOWN = 20, 20
"""Prompts of which the judge reads a text of each policy, and rows of the table of variants."""
COUNTED = (
    "Stock words, phrases and dashes are counted for each hundred words. Repeated 3-grams: the"
    " share of a text's 3-grams of words that occurred in it before."
)
MARKED = (
    "* The 95 % interval of the difference from the base, paired by prompt, is beyond 0 (not"
    " adjusted for several comparisons)."
)
LIKELIHOOD = (
    "Logprob a token: the mean, in nats, that the model without a bias gives the drawn tokens at"
    " temperature 1, after the prompt that they were drawn for."
)
INSTRUCTED = "† That prompt holds the instruction, so this is no likelihood under the plain prompt."


def repetition(text: str, n: int = N) -> float:
    """The share of a text's word n-grams that occurred in it before, 0 to 1; 0 where it has none.

    1 less distinct over all n-grams: seq-rep-n of Welleck et al. 2020, "Neural Text Generation with
    Unlikelihood Training", section 6.1, over words in lower case in place of tokens.
    """
    words = words_of(text)
    grams = list(zip(*(words[start:] for start in range(n)), strict=False))
    return (len(grams) - len(set(grams))) / len(grams) if grams else 0.0


def _per_hundred(completion: Completion, *kinds: str) -> float:
    """Matches of these kinds for each hundred words; of a text without words none."""
    found = sum(stock.kind in kinds for stock in slop(completion.text))
    return 100 * found / max(len(words_of(completion.text)), 1)


MEASURES: Mapping[str, Callable[[Completion], float]] = {
    "stock words and phrases": lambda each: _per_hundred(each, "word", "phrase"),
    "dashes": lambda each: _per_hundred(each, "dash"),
    "words": lambda each: float(len(words_of(each.text))),
    "repeated 3-grams": lambda each: repetition(each.text),
    "logprob a token": lambda each: float(each.logprobs.mean()) if len(each.logprobs) else 0.0,
}
LOGPROB = "logprob a token"


async def stored(trials: Trials, arm: Arm, examples: Sequence[Example], samples: int) -> Texts:
    """The completions that ``blb eval`` drew of an arm. Raises InputError: some are not in the
    store.
    """
    draw = trials.draw(
        arm.drawn_at, arm.sent or None, trials.session.biased_endpoint, arm.alternative.max_tokens
    )
    asked = [arm.alternative.asked(each) for each in examples]
    samples = 1 if arm.drawn_at.deterministic else samples
    keys = await trials.collect(arm.name, asked, draw, samples, scored=False, only_stored=True)
    if any(len(row) < samples for row in keys):
        raise InputError(
            f"{trials.store.path} lacks completions of {arm.name!r}; run blb eval with these words"
            " first"
        )
    return [list(trials.store.completions(row)) for row in keys]


def compared(
    policies: Mapping[str, Texts], measures: Sequence[str], instructed: Sequence[str] = ()
) -> dict[str, Any]:
    """The table of measures: a mean over prompts with its 95 % interval each, marked where the
    paired difference from the base is beyond its own. A policy of ``instructed`` has its logprobs
    marked: they are those of another prompt."""
    means = {
        name: {
            measure: [np.array(list(map(MEASURES[measure], each))) for each in texts]
            for measure in measures
        }
        for name, texts in policies.items()
    }
    rows = []
    for name, found in means.items():
        cells = [f"**{name}**" if name == "bias" else name]
        for measure, values in found.items():
            mean = mean_of(values)
            cell, base = _number(mean), means[BASE][measure]
            gap = bootstrap(
                np.array(
                    [one.mean() - other.mean() for one, other in zip(values, base, strict=True)]
                )
            )
            cell += " *" if name != BASE and (gap.low > 0 or gap.high < 0) else ""
            cells.append(cell + (" †" if measure == LOGPROB and name in instructed else ""))
        rows.append(cells)
    texts = next(iter(policies.values()))
    notes = [
        COUNTED,
        MARKED,
        *([LIKELIHOOD] if LOGPROB in measures else []),
        *([INSTRUCTED] if instructed else []),
    ]
    title = f"The texts, {sum(map(len, texts))} of each policy on {len(texts)} test prompts"
    return {"title": title, "head": ["policy", *measures], "rows": rows, "notes": notes}


async def judging(
    judge: Path, policies: Mapping[str, Texts], examples: Sequence[Example]
) -> dict[str, Any]:
    """The table of the blind judge: the first text of each policy beside the base's, and the base's
    beside its words shuffled.
    """
    examples = examples[:JUDGED]
    first = {name: [row[0].text for row in texts[:JUDGED]] for name, texts in policies.items()}
    mixed = [shuffled(text, number) for number, text in enumerate(first[BASE])]
    pairs = {"base, beside its words shuffled": list(zip(first[BASE], mixed, strict=True))}
    pairs |= {
        name: list(zip(texts, first[BASE], strict=True))
        for name, texts in first.items()
        if name != BASE
    }
    longest = 3 * max(len(text) for texts in first.values() for text in texts) + max(
        len(each.prompt.text) for each in examples
    )
    found = {}
    async with connect(
        "local", model=str(judge), max_tokens=1, longest_prompt=longest, concurrency=4
    ) as session:
        ask = asking(session)
        for name, texts in pairs.items():
            found[name] = verdicts(
                await asyncio.gather(
                    *(
                        judged(ask, each.prompt.text, *pair)
                        for each, pair in zip(examples, texts, strict=True)
                    )
                )
            )
    return judgement(judge.stem, found)


def judgement(judge: str, found: Mapping[str, Verdicts]) -> dict[str, Any]:
    """The table of a judge, by policy; the first pair is the one whose answer is known."""
    rows = [
        [
            name,
            _number(each.preference),
            *(f"{share:.2f}" for share in (each.wins, each.losses, each.flips)),
        ]
        for name, each in found.items()
    ]
    (_, known), *others = found.items()
    beyond = [
        name for name, each in others if each.preference.low > 0.5 or each.preference.high < 0.5
    ]
    place, flips = (
        np.mean([each.first for each in found.values()]),
        np.mean([each.flips for _, each in others]),
    )
    tells = (
        "tells at least these apart"
        if known.tells
        else "does not tell even these apart, so its other answers say nothing"
    )
    notes = [
        (
            f"Of {known.pairs} pairs of a text and the same words in a random order, it preferred"
            f" the text in both orders in {known.wins:.0%}; the preference is"
            f" {_number(known.preference)}: this judge {tells}."
        ),
        (
            f"Beyond chance are its answers on: {', '.join(beyond)}."
            if beyond
            else "No answer on a policy is beyond chance."
        ),
        (
            f"The text that it read first got {place:.2f} on average, and {flips:.0%} of the pairs"
            " with a policy flipped."
        ),
        (
            "Each pair is asked in both orders. The preference is the mean probability of the text"
            " in question over both, .5 where only the place counts; a flip is a pair whose two"
            " answers name different texts."
        ),
    ]
    head = [
        "text in question, beside the base's",
        "preference",
        "wins in both orders",
        "losses in both orders",
        "flips",
    ]
    return {"title": f"A blind judge, {judge}", "head": head, "rows": rows, "notes": notes}


def _number(mean: Mean) -> str:
    return f"{mean.mean:.2f} ({mean.low:.2f} to {mean.high:.2f})"


async def learned(
    trials: Trials, task: Task, samples: int, bias: Bias, hand: Alternative
) -> dict[str, Any]:
    """The table of the most negative learned tokens of what the reward counts, beside those of the
    hand list.
    """
    keys = await trials.collect(
        "training", task.train, trials.draw(SAMPLED), samples, scored=False, only_stored=True
    )
    known = trials.store.token_bytes(trials.tokenizer.fingerprint)
    drawn = [each for row in keys for each in trials.store.completions(row)]
    if not drawn:
        raise InputError(
            f"{trials.store.path} has no training completions of this task; run blb fit with these"
            " words first"
        )
    counted = meant(
        ([(token, known.get(token, b"")) for token in each.token_ids.tolist()] for each in drawn),
        slop,
    )
    texts = {token: raw.decode("utf-8", "replace") for token, raw in known.items()}
    found, others = variants(bias.logit_bias, texts, counted, hand.bias, FAMILIES)
    missing, looked = sum(each.hand_list != "on it" for each in found), len(found) + len(others)
    rows = [
        [f"`{each.text!r}`", f"{each.bias:+.2f}", each.inside, each.hand_list]
        for each in found[:SHOWN]
    ]
    notes = [
        (
            f"Of the {looked} most negative of {len(bias.logit_bias)} learned tokens, the reward"
            f" can have meant {len(found)}: at least half of their occurrences in {len(drawn)}"
            " training completions stood in what it counts."
        ),
        f"On the hand list, which has {len(hand.bias)} tokens, are {len(found) - missing} of these;"
        f" missing there are {missing}"
        + (f"; the table has the first {SHOWN}." if len(found) > SHOWN else "."),
        (
            f"The other {len(others)} stand mostly for what is not counted; the most negative of"
            f" them: {', '.join(f'`{text!r}`' for text in others[:12])}."
        ),
    ]
    head = ["token", "learned bias, nats", "most often in", "hand list"]
    return {
        "title": "What was learned, beside the hand list",
        "head": head,
        "rows": rows,
        "notes": notes,
    }


@click.command(help=__doc__)
@click.argument("biases", nargs=-1, required=True, metavar="NAME=FILE...")
@click.option("--provider", default="local", show_default=True)
@click.option("--model", help="The model that wrote the texts.")
@click.option("--base-url")
@click.option(
    "--judge",
    type=click.Path(exists=True, path_type=Path),
    help="A GGUF file: the second model, that judges pairs.",
)
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--reward", "spec", required=True)
@click.option("--max-tokens", type=int, required=True)
@click.option("--store", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--deploy", required=True)
@click.option(
    "--samples-per-prompt", type=int, required=True, help="Completions of a training prompt."
)
@click.option("--test-samples", type=int, required=True)
@click.option("--baseline-words", multiple=True, required=True, metavar="FILE:NATS")
@click.option("--baseline-prompt", multiple=True)
def main(
    biases: tuple[str, ...],
    judge: Path | None,
    data: Path,
    spec: str,
    max_tokens: int,
    store: Path,
    **more: Any,
) -> None:
    """Print the tables as JSON."""
    task, reward = (
        load_task(data=data, require_answers=False),
        parse_reward(spec, max_tokens=max_tokens),
    )
    loaded = {name: Bias.load(path) for name, _, path in (each.partition("=") for each in biases)}
    click.echo(
        json.dumps(
            {"tables": asyncio.run(_tables(loaded, judge, task, reward, store, more))},
            ensure_ascii=False,
        )
    )


async def _tables(
    biases: Mapping[str, Bias],
    judge: Path | None,
    task: Task,
    reward: Reward,
    path: Path,
    more: Mapping[str, Any],
) -> list[dict[str, Any]]:
    setting, examples = parse_setting(more["deploy"]), task.test
    said = alternatives(
        more["baseline_prompt"], (), (), (), settings=(setting,), limit=reward.max_tokens
    )
    hand = [hand_list(each) for each in more["baseline_words"]]
    async with connect(
        more["provider"],
        model=more["model"],
        base_url=more["base_url"],
        max_tokens=reward.max_tokens,
        longest_prompt=task.longest_prompt,
    ) as session:
        with RolloutStore(path, read_only=True) as store:
            trials = Trials(
                session, store, await session.tokenizer(), reward, Silent(), TOP_LOGPROBS
            )
            others = [await each.ready(trials) for each in (*said, *hand)]
            arms = arms_at(
                setting,
                {name: to_request_bias(bias, store) for name, bias in biases.items()},
                others,
            )
            policies = {
                arm.name: await stored(trials, arm, examples, more["test_samples"]) for arm in arms
            }
            measures = [each for each in MEASURES if each != LOGPROB or session.tells_base_logprobs]
            instructed = [arm.name for arm in arms if arm.alternative.instruction]
            tables = [compared(policies, measures, instructed)]
            samples = more["samples_per_prompt"]
            last = [
                await learned(trials, task, samples, bias, others[len(said)])
                for bias in biases.values()
            ]
    if judge is not None:
        tables.append(await judging(judge, policies, examples))
    return tables + last


if __name__ == "__main__":
    main()
