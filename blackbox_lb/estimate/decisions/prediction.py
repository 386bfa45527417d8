"""Prediction: the greedy first token under any bias, from the base model's list at that position.

Exact where the winning token is listed: ``argmax_y [log pi_0(y) + delta(y)]`` needs no normaliser.
A token outside a list is below its least listed one, so it can win only with a bias that outweighs
the difference.

Index letters: ``p`` prompts, ``k`` listed tokens.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector

COMPLETE = 1e-6
"""Largest unlisted probability of a complete list: the rest is rounding of float32."""


@dataclass(frozen=True, slots=True, eq=False)
class FirstLists:
    """The base model's lists at the first position of p prompts.

    ids: (p, k) token ids, -1 where a list is shorter. logprobs: (p, k) nats, -inf there.
    """

    ids: npt.NDArray[np.integer]
    logprobs: npt.NDArray[np.floating]

    def greedy(self, bias: Mapping[int, float]) -> Ids:
        """(p,) the first token of greedy decoding under ``bias`` (id -> nats)."""
        return self.taken(self.tilted(bias))

    def taken(self, tilted: Vector) -> Ids:
        """(p,) the token with the largest of ``tilted`` (p, k)."""
        best = tilted.argmax(axis=1)
        return np.asarray(self.ids[np.arange(len(best)), best], np.int64)

    def unsure(self, bias: Mapping[int, float]) -> Bools:
        """(p,) whether a token outside the list might win: it is at most as likely as the least
        listed one, and as all the rest.
        """
        return self.unsure_by(*self._everywhere(bias))

    def _everywhere(self, bias: Mapping[int, float]) -> tuple[Ids, Vector]:
        """(s,) the sorted tokens of ``bias``, and (p, s) its values at each prompt."""
        tokens = np.array(sorted(bias), np.int64)
        values = np.array([bias[token] for token in tokens.tolist()], np.float64)
        return tokens, np.broadcast_to(values, (len(self.ids), len(tokens)))

    def unsure_by(self, token_ids: Ids, values: npt.NDArray[np.float64]) -> Bools:
        """(p,) the same where each prompt has a bias of its own: ``values`` (p, s) nats of the
        sorted ``token_ids`` (s,).
        """
        least = np.where(self.ids >= 0, self.logprobs, np.inf).min(axis=1)
        unlisted = 1.0 - np.exp(self.logprobs.astype(np.float64)).sum(axis=1)
        most = np.minimum(least, np.log(np.maximum(unlisted, COMPLETE)))
        outside = np.ones((len(self.ids), len(token_ids) + 1), np.bool_)
        where = np.searchsorted(token_ids, self.ids)
        rows, columns = np.nonzero(np.append(token_ids, -2)[where] == self.ids)
        outside[rows, where[rows, columns]] = False
        lift = np.where(outside, np.pad(values, ((0, 0), (0, 1))), -np.inf).max(axis=1)
        won = self.tilted_by(token_ids, values).max(axis=1)
        return np.asarray((most + np.maximum(lift, 0.0) > won) & (unlisted > COMPLETE))

    def tilted(self, bias: Mapping[int, float]) -> Vector:
        """(p, k) ``log pi_0 + delta``, -inf where a list is shorter."""
        return self.tilted_by(*self._everywhere(bias))

    def tilted_by(self, token_ids: Ids, values: npt.NDArray[np.float64]) -> Vector:
        """(p, k) the same where each prompt has a bias of its own: ``values`` (p, s) nats of the
        sorted ``token_ids`` (s,).
        """
        if not len(token_ids):
            return self.logprobs.astype(np.float64)
        where = np.minimum(np.searchsorted(token_ids, self.ids), len(token_ids) - 1)
        own = np.take_along_axis(values, where, axis=1)
        return self.logprobs.astype(np.float64) + np.where(token_ids[where] == self.ids, own, 0.0)

    def share(self, bias: Mapping[int, float], groups: Sequence[Ids]) -> Vector:
        """(p, g) the probability of each group of tokens under ``bias``, among all groups; NaN
        where a list holds none of them.
        """
        tilted = self.tilted(bias)
        parts = np.stack(
            [
                np.exp(np.where(np.isin(self.ids, ids), tilted, -np.inf)).sum(axis=1)
                for ids in groups
            ],
            1,
        )
        whole = parts.sum(axis=1, keepdims=True)
        return np.asarray(
            np.divide(parts, whole, out=np.full(parts.shape, np.nan), where=whole > 0)
        )


def begins_right(tokens: Ids, accepted: Sequence[Ids]) -> Bools:
    """(p,) whether each token is one of those that begin an accepted answer of its prompt."""
    return np.array(
        [token in wanted for token, wanted in zip(tokens.tolist(), accepted, strict=True)], np.bool_
    )
