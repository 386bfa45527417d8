"""The tokens that begin the wanted opening of a decision with open labels.

One position decides: a completion begins with one of these tokens, or with any other. So the first
lists hold the probability of the opening at every prompt, and nothing has to be drawn.

Index letters: ``p`` prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from blackbox_lb.errors import InputError
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.inputs.checks import Ids, Vector
from blackbox_lb.rollouts.judging.trials import Trials
from blackbox_lb.safety.printable import shorten
from blackbox_lb.tasks.sets.labels import CALLS_TOOL, OpenLabels

SELDOM = 1e-3
"""Probability at the first position of every prompt below which a token is no way to begin: a shift
of several nats makes it no likely one.
"""
MOST_SHOWN = 12
"""Tokens of an opening that are named."""


@dataclass(frozen=True, slots=True)
class Opening:
    """The tokens that begin the wanted opening.

    tokens: sorted. texts: of each. cut: openings of several tokens, of which the first one counts.
    """

    tokens: Ids
    texts: tuple[str, ...]
    cut: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """What begins the opening, and what its first token does not tell."""
        shown = ", ".join(map(repr, self.texts[:MOST_SHOWN]))
        if len(self.texts) > MOST_SHOWN:
            shown += f" and {len(self.texts) - MOST_SHOWN} more"
        sentence = f"the opening begins with {shown}"
        if self.cut:
            cut = ", ".join(map(repr, self.cut))
            sentence += f"; of {cut} the first token counts, which does not tell what follows"
        return sentence


async def opening_of(trials: Trials, labels: OpenLabels, lists: Sequence[FirstLists]) -> Opening:
    """The tokens that begin an opening of ``labels``: those in the first ``lists`` whose text
    begins with one, and each opening that is one token.

    A text of several tokens that no listed token begins with counts by its first token, unless it
    is one of the common ways to call a tool, which the model may not have.

    Raises InputError: there is none, so that the model never begins in this way.
    """
    likely = [part.ids[(part.ids >= 0) & (part.logprobs >= np.log(SELDOM))] for part in lists]
    texts = await _texts(trials, np.unique(np.concatenate(likely)).tolist())
    openings = {token: text for token, text in texts.items() if labels.opens(text)}
    cut = []
    for opening in labels.openings:
        ids = await trials.session.encode(opening)
        decoded = (await trials.session.decode(ids)).strip()
        if decoded not in (opening, ""):  # a special token may be printed as nothing
            continue
        is_met = any(text.lstrip().startswith(opening) for text in openings.values())
        if len(ids) == 1:
            openings.setdefault(ids[0], opening)
        elif ids and not is_met and labels.spec != CALLS_TOOL:
            openings.setdefault(ids[0], opening)
            cut.append(opening)
    if not openings:
        raise InputError(
            f"no token of {trials.session.model} begins {shorten(', '.join(labels.openings))}; give"
            " the beginning of completions as the model writes them"
        )
    tokens = np.array(sorted(openings), np.int64)
    return Opening(tokens, tuple(openings[token] for token in tokens.tolist()), tuple(cut))


async def _texts(trials: Trials, tokens: Sequence[int]) -> dict[int, str]:
    """Token id -> its text, by the vocabulary or the answers so far, else by the server."""
    token_bytes = {
        **trials.session.texts_of_vocabulary(),
        **trials.store.token_bytes(trials.tokenizer.fingerprint),
    }
    texts = {
        token: token_bytes[token].decode("utf-8", "replace")
        for token in tokens
        if token_bytes.get(token)
    }
    unknown = [token for token in tokens if token not in texts]
    for token, text in zip(unknown, await trials.session.texts_of(unknown), strict=True):
        texts[token] = text or ""
    return texts


def opening_log_odds(lists: FirstLists, tokens: Ids) -> Vector:
    """(p,) log odds in nats that a completion begins with one of ``tokens``, at temperature 1.

    What a list leaves out counts as another beginning.
    """
    share = np.clip(lists.shares([tokens])[:, 0], 1e-12, 1 - 1e-12)
    return np.asarray(np.log(share) - np.log1p(-share))
