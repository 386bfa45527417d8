"""Rivals that are a bias without training: on the labels, or on texts that somebody writes down."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.case import Case
from blackbox_lb.jobs.evaluation.arms import Alternative
from blackbox_lb.rollouts.answers.given_answers import AnswerTokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.safety.untrusted import read_bounded, text_of_file
from blackbox_lb.tasks.rewards.thinking import Thinking
from blackbox_lb.tasks.sets.labels import Labels

MAX_LIST = 1 << 20
"""Bytes of the largest list of words."""


def labels_only(case: Case, _value: object) -> Alternative:
    """``labels_only``: the provider's highest bias on the tokens of the labels."""
    return Alternative(
        "labels only",
        own_bias=partial(lifted, labels=case.labels),
        cost="a completion a test prompt and sample",
    )


async def lifted(trials: Trials, labels: Labels) -> tuple[Mapping[int, float], int]:
    """The provider's highest bias on the tokens of the labels.

    For labels of one token these are the tokens that begin a spelling. A fixed bias acts alike at
    every position, so for longer labels all their tokens are allowed, and the model may mix them.
    Where the provider takes fewer entries than there are spellings, each label keeps its first
    ones.

    Returns:
        Token id -> nats, and the tokens of the longest label.

    Raises:
        InputError: no tokens that can be biased spell a label, or there are fewer entries than
            labels.
    """
    tokens = AnswerTokens(trials)
    rules = trials.session.profile.bias
    highest = trials.session.highest_id
    spellings = []  # of each label, as token ids
    for name, texts in zip(labels.names, labels.accepted, strict=True):
        spelled = await tokens.of((name, *sorted(texts)))
        sendable = [ids for ids in spelled.values() if highest is None or max(ids) <= highest]
        if not sendable:
            raise InputError(
                f"no token of {trials.session.model} that can be biased begins the label {name!r};"
                " rename it, or drop ``labels_only``"
            )
        spellings.append(sendable)
    in_turn = [ids for turn in zip_longest(*spellings) for ids in turn if ids is not None]
    entries: dict[int, None] = {}
    for place, ids in enumerate(in_turn):
        more = entries | dict.fromkeys(ids)
        if rules.entries is not None and len(more) > rules.entries:
            if place < len(spellings):
                raise InputError(
                    f"{len(spellings)} labels need more than the {rules.entries} entries that"
                    f" {trials.session.profile.name} takes; drop ``labels_only``"
                )
            break
        entries = more
    high = rules.high
    if not rules.fractions:
        high = float(int(high))
    return dict.fromkeys(entries, high), max(len(label[0]) for label in spellings)


def written(
    words: Sequence[str], close: Sequence[float], thinking: Thinking | None
) -> tuple[Alternative, ...]:
    """The alternatives that somebody writes down.

    Args:
        words: values of ``baseline_words``, lists of words with a bias.
        close: values of ``baseline_close``, biases in nats on the text that ends the thinking.
        thinking: how the model marks its thinking.

    Raises:
        InputError: a list cannot be read, or ``thinking`` is needed and not given.
    """
    if close and thinking is None:
        raise InputError(
            "``baseline_close`` is about thinking; name it, as in"
            " ``thinking='inside:<think>..</think>'``"
        )
    alternatives = [hand_list(spec) for spec in words]
    if thinking is not None:
        text = thinking.phases.closing
        for value in close:
            bias = partial(_of_text, text=text, value=value)
            alternatives.append(Alternative(f"'{text}' at {value:+g}", own_bias=bias))
    return tuple(dict.fromkeys(alternatives))


def hand_list(spec: str) -> Alternative:
    """A list of words with one bias, FILE:NATS, one word a line.

    Each spelling of a word that is one token gets the bias.

    Raises:
        InputError: ``spec`` is not of that form, or the file cannot be read or is empty.
    """
    name, _, number = spec.rpartition(":")
    try:
        value = float(number)
        text = text_of_file(read_bounded(Path(name), MAX_LIST))
    except (OSError, ValueError) as error:
        raise InputError(
            f"``baseline_words={spec!r}``: {error}; give FILE:NATS, as in words.txt:-2, with one"
            " word a line"
        ) from None
    lines = [line.strip() for line in text.splitlines()]
    words = tuple(dict.fromkeys(line for line in lines if line))
    if not words:
        raise InputError(f"``baseline_words={spec!r}``: {name} holds no word; give one a line")
    return Alternative(
        f"{Path(name).stem} at {value:+g}", own_bias=partial(_of_words, words=words, value=value)
    )


async def _of_words(
    trials: Trials, words: Sequence[str], value: float
) -> tuple[Mapping[int, float], int]:
    """Token id -> nats, of each spelling that is one token, and the longest completion."""
    spellings = AnswerTokens(trials)
    bias: dict[int, float] = {}
    missing = []
    for word in words:
        spelled = await spellings.of([word])
        tokens = [token for token, ids in spelled.items() if len(ids) == 1]
        bias |= dict.fromkeys(tokens, value)
        if not tokens:
            missing.append(word)
    if not bias:
        raise InputError(
            f"no word of the list is one token of {trials.session.model} in any spelling; give"
            " other words"
        )
    sentence = (
        f"the list has {len(bias)} tokens, spellings of {len(words) - len(missing)} of its"
        f" {len(words)} words"
    )
    if missing:
        sentence += f"; none of {', '.join(missing)}"
    trials.report.notice(sentence)
    return bias, trials.reward.max_tokens


async def _of_text(trials: Trials, text: str, value: float) -> tuple[Mapping[int, float], int]:
    """Token id -> nats, and the longest completion.

    The bias is on the first token of the text, and of the text after a space unless that token is
    the space alone.
    """
    bias = {}
    for spelling in (text, f" {text}"):
        ids = await trials.session.encode(spelling)
        if ids and (await trials.session.decode([ids[0]])).strip():
            bias[ids[0]] = value
    return bias, trials.reward.max_tokens
