"""``--baseline-words``, ``--baseline-close`` and ``--baseline-thinking-tokens``: what somebody
writes down, without training.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from blackbox_lb.errors import InputError
from blackbox_lb.jobs.evaluation.arms import Alternative
from blackbox_lb.rollouts.answers.given_answers import AnswerTokens
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.rollouts.phased import ThinkingCap
from blackbox_lb.safety.untrusted import read_bounded
from blackbox_lb.tasks.rewards.thinking import Thinking


def written(
    words: Sequence[str], close: Sequence[float], budgets: Sequence[int], thinking: Thinking | None
) -> tuple[Alternative, ...]:
    """One alternative for each value. Raises InputError: a list that cannot be read, or no
    ``thinking`` is named.
    """
    if (close or budgets) and thinking is None:
        raise InputError(
            "--baseline-close and --baseline-thinking-tokens are about thinking; name it, as in "
            "--thinking 'inside:<think>..</think>'"
        )
    found = [hand_list(spec) for spec in words]
    if thinking is not None:
        text = thinking.phases.closing
        found += [
            Alternative(
                f"'{text}' at {value:+g}", own_bias=partial(_of_text, text=text, value=value)
            )
            for value in close
        ]
        found += [
            Alternative(
                f"thinking cut after {tokens}" if tokens else "no thinking",
                budget=ThinkingCap(thinking.phases, tokens),
            )
            for tokens in budgets
        ]
    return tuple(dict.fromkeys(found))


def hand_list(spec: str) -> Alternative:
    """FILE:VALUE, one text a line; each of its spellings as one token gets the value. Raises
    InputError: not so.
    """
    name, _, number = spec.rpartition(":")
    try:
        value = float(number)
        words = tuple(
            dict.fromkeys(
                line.strip()
                for line in read_bounded(Path(name), 1 << 20).decode().splitlines()
                if line.strip()
            )
        )
    except (OSError, ValueError) as error:
        raise InputError(
            f"--baseline-words {spec!r}: {error}; give FILE:NATS, as in words.txt:-2, with one word"
            " a line"
        ) from None
    if not words:
        raise InputError(f"--baseline-words {spec!r}: {name} holds no word; give one a line")
    return Alternative(
        f"{Path(name).stem} at {value:+g}", own_bias=partial(_of_words, words=words, value=value)
    )


async def _of_words(
    trials: Trials, words: Sequence[str], value: float
) -> tuple[Mapping[int, float], int]:
    """Token id -> nats of each spelling that is one token, and the longest completion."""
    spelled = AnswerTokens(trials)
    found = {
        word: [token for token, ids in (await spelled.of([word])).items() if len(ids) == 1]
        for word in words
    }
    bias = {token: value for tokens in found.values() for token in tokens}
    none = [word for word, tokens in found.items() if not tokens]
    if not bias:
        raise InputError(
            f"no word of the list is one token of {trials.session.model} in any spelling; give"
            " other words"
        )
    missing = f"; none of {', '.join(none)}" if none else ""
    trials.report.notice(
        f"the list has {len(bias)} tokens, spellings of {len(words) - len(none)} of its"
        f" {len(words)} words{missing}"
    )
    return bias, trials.reward.max_tokens


async def _of_text(trials: Trials, text: str, value: float) -> tuple[Mapping[int, float], int]:
    """The first token of the text, and of the text after a space where that is one of its own."""
    first = {ids[0] for each in (text, f" {text}") if (ids := await trials.session.encode(each))}
    return {
        token: value for token in first if (await trials.session.decode([token])).strip()
    }, trials.reward.max_tokens
