"""Rivals that are a bias without training: on the labels, or on texts that somebody writes down;
and such texts kept out of the answers without one.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import zip_longest
from pathlib import Path

from blackbox_lb.bias.phrases import PhraseList
from blackbox_lb.errors import InputError
from blackbox_lb.extras.rivals.case import Case, number
from blackbox_lb.jobs.evaluation.policies import HandBias, Policy, WithoutPhrases
from blackbox_lb.rollouts.answers.given_answers import AnswerTokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.stepped import PART
from blackbox_lb.safety.untrusted import read_bounded, text_of_file
from blackbox_lb.tasks.sets.labels import Labels

MAX_LIST = 1 << 20
"""Bytes of the largest list of words."""


def labels_only(case: Case, _value: str) -> Policy:
    """``labels-only``: the provider's highest bias on the tokens of the labels."""
    labels = case.decision("labels-only")
    return HandBias(rival="labels only", make=partial(lifted, labels=labels))


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
                " rename it, or drop ``rival=labels-only``"
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
                    f" {trials.session.profile.name} takes; drop ``rival=labels-only``"
                )
            break
        entries = more
    high = rules.high
    if not rules.fractions:
        high = float(int(high))
    return dict.fromkeys(entries, high), max(len(label[0]) for label in spellings)


def close(case: Case, value: str) -> Policy:
    """``close:NATS``: so many nats on the first token of the text that ends the thinking.

    Raises:
        InputError: the task names no thinking, or ``value`` is no number.
    """
    thinking = case.reward.thinking
    if thinking is None:
        raise InputError(
            f"``rival=close:{value}`` is about thinking; name it, as in"
            " ``thinking='inside:<think>..</think>'``"
        )
    nats = number(value, "close", float)
    text = thinking.phases.closing
    return HandBias(rival=f"'{text}' at {nats:+g}", make=partial(_of_text, text=text, value=nats))


def words(_case: Case, spec: str) -> Policy:
    """``words:FILE:NATS``: a list of words with one bias, one word a line.

    Each spelling of a word that is one token gets the bias.

    Raises:
        InputError: ``spec`` is not of that form, or the file cannot be read or is empty.
    """
    name, _, nats = spec.rpartition(":")
    try:
        value = float(nats)
        text = text_of_file(read_bounded(Path(name), MAX_LIST))
    except (OSError, ValueError) as error:
        raise InputError(
            f"``rival=words:{spec}``: {error}; give words:FILE:NATS, as in words:words.txt:-2, with"
            " one word a line"
        ) from None
    lines = [line.strip() for line in text.splitlines()]
    listed = tuple(dict.fromkeys(line for line in lines if line))
    if not listed:
        raise InputError(f"``rival=words:{spec}``: {name} holds no word; give one a line")
    return HandBias(
        rival=f"{Path(name).stem} at {value:+g}",
        make=partial(_of_words, words=listed, value=value),
    )


def phrases(_case: Case, value: str) -> Policy:
    """``phrases:FILE``: the words, phrases and patterns of a list are kept out by stepping back.

    Raises:
        InputError: the list is wrong; see ``PhraseList.load``.
    """
    loaded = PhraseList.load(value)
    return WithoutPhrases(
        rival="phrases",
        entries=loaded.entries,
        cost=(
            f"a completion a test prompt and sample without {len(loaded.lines):,} phrases, in parts"
            f" of {PART} tokens and two requests more for each phrase that the model begins"
        ),
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
