"""Whether a bias arrives at the model, proved with a handful of tokens: gateways drop the field
``logit_bias`` silently, refuse it, or make whole numbers of its values.

Greedy requests of one token each, at most ``MOST_REQUESTS``. The first goes without a bias; the
second raises tokens of the bias by the largest value. Where values have fractions, two of these
tokens are raised by whole numbers until they change places, and then by what lies between.
Requests and replies are plain values, so that any client can carry them.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from blackbox_lb.bias.document import Bias
from blackbox_lb.bias.records import Entry
from blackbox_lb.providers.profile import Profile
from blackbox_lb.safety.printable import printable

PROMPT = "Say one word."
RAISED = 5
"""Tokens that are raised."""
HIGHEST = 100.0
"""Nats. OpenAI's own limit, where no profile says another."""
SURE = 30.0
"""Nats by which a raised token must lead all others that are not."""
FARTHEST = 16
"""Nats within which two raised tokens are brought to change places."""
MOST_REQUESTS = 10
NOISE = 0.03
"""Nats between two tokens that a server's noise does not reach."""
OWN_PROXY = "blb proxy adds the one of"
"""Words of the refusal by which ``blb proxy`` is recognised."""

Body: TypeAlias = dict[str, Any]
Reply: TypeAlias = Mapping[str, Any] | str
"""The JSON object of an answer, or the words of a refusal (400 to 499)."""
Word: TypeAlias = Literal["ARRIVES", "DROPPED", "REFUSED", "CANNOT BE TOLD"]


@dataclass(frozen=True, slots=True)
class Arrival:
    """Whether the bias arrives.

    sentence: what was seen, and the remedy. whole: whether values become whole numbers; None where
    that was not seen.
    """

    word: Word
    sentence: str
    whole: bool | None = None

    @property
    def fails(self) -> bool:
        """Whether requests go without the bias, or not at all."""
        return self.word in ("DROPPED", "REFUSED")


def asking(bias: Bias, model: str, profile: Profile | None) -> Generator[Body, Reply, Arrival]:
    """Yields the body of a request, is sent its reply, and returns what they prove.

    Args:
        bias: whose tokens are raised; it has to have their texts.
        model: its name in requests.
        profile: of the host, for its limits and the names of its fields; None for OpenAI's own.
    """
    high = HIGHEST if profile is None else min(profile.bias.high, HIGHEST)
    base_body = _body(bias, model, profile)
    reply = yield base_body
    if isinstance(reply, str):
        return Arrival(
            "CANNOT BE TOLD", f"a request without a bias is refused, too: {_short(reply)}"
        )
    base = _first(reply)
    raised = _raised(bias, base)
    if not bias.entries:
        return Arrival("CANNOT BE TOLD", "the bias file has no tokens to raise")
    if not raised:
        return Arrival(
            "CANNOT BE TOLD",
            "the bias file has no texts of its tokens that could be recognised in an answer",
        )
    if high < SURE:
        return Arrival(
            "CANNOT BE TOLD",
            f"the largest bias that the host takes is {high:g}, too little to be sure of",
        )
    reply = yield base_body | {"logit_bias": {str(entry.id): high for entry in raised.values()}}
    if isinstance(reply, str):
        if OWN_PROXY in reply:
            return Arrival(
                "CANNOT BE TOLD",
                "this address is a blb proxy, which adds the bias by itself; ask its upstream",
            )
        return Arrival(
            "REFUSED", f"the same request is answered without logit_bias: {_short(reply)}"
        )
    first = _first(reply)
    if first not in raised:
        if first == base:
            return Arrival(
                "DROPPED",
                f"tokens raised by {high:g} nats do not come: the answer begins with"
                f" '{printable(first)}', as it does without a bias; name logit_bias in what the"
                " gateway passes on (LiteLLM: drop_params, allowed_openai_params), or ask the"
                " model's own address",
            )
        return Arrival(
            "CANNOT BE TOLD",
            f"the answer begins with '{printable(first)}', which is neither a raised token nor"
            f" '{printable(base)}', the beginning without a bias",
        )
    seen = f"'{printable(first)}' was raised by {high:g} nats, and comes"
    remaining = [entry for text, entry in raised.items() if text != first]
    has_fractions = any(not entry.bias.is_integer() for entry in bias.entries)
    if not has_fractions or not remaining or high - FARTHEST < SURE:
        return Arrival("ARRIVES", seen)
    whole = yield from _is_whole(base_body, raised[first], remaining[0], high - FARTHEST)
    if isinstance(whole, str):
        return Arrival(
            "ARRIVES",
            f"{seen}; fractions of a nat are refused: {_short(whole)}; use blb compile --integers",
            whole=True,
        )
    if whole is None:
        return Arrival("ARRIVES", seen)
    if whole:
        return Arrival(
            "ARRIVES",
            f"{seen}, but values become whole numbers on the way: blb compile --integers says what"
            " that loses, and blb proxy behind the gateway sends them as they are",
            whole=True,
        )
    return Arrival("ARRIVES", f"{seen}; fractions of a nat arrive, too", whole=False)


def _is_whole(
    base_body: Body, leader: Entry, follower: Entry, nats: float
) -> Generator[Body, Reply, bool | str | None]:
    """Whether values become whole numbers, the words of a refusal, or None where that was not seen.

    nats: by which both tokens are raised. The follower comes first once it is raised by more than
    the leader's lead, which lies between two whole numbers. Cut to whole numbers, a value between
    these is the lower; rounded, it is the lower up to its half and the upper from there on.
    """

    def follows(more: float) -> Generator[Body, Reply, bool | str]:
        sent = {str(leader.id): nats, str(follower.id): nats + more}
        reply = yield base_body | {"logit_bias": sent}
        if isinstance(reply, str):
            return reply
        return _first(reply) == (follower.text or "").strip()

    low = 0
    high = FARTHEST
    if (yield from follows(high)) is not True:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        comes = yield from follows(middle)
        if comes is True:
            high = middle
        else:
            low = middle
    below_half = yield from follows(low + 0.5 - NOISE)
    if isinstance(below_half, str):
        return below_half
    if below_half:
        return False
    if (yield from follows(high - NOISE)) is False:
        return True
    return (yield from follows(low + 0.5 + NOISE)) is True


def _body(bias: Bias, model: str, profile: Profile | None) -> Body:
    """A greedy request of one token."""
    endpoint = bias.prompted_endpoint
    limit = "max_tokens"
    if profile is not None and endpoint in profile.endpoints:
        limit = profile.endpoint(endpoint).max_tokens
    body: Body = {"model": model, limit: 1, "temperature": 0}
    if endpoint == "completions":
        return body | {"prompt": PROMPT}
    return body | {"messages": [{"role": "user", "content": PROMPT}]}


def path_of(body: Body) -> str:
    """The path below the base URL of a body of ``asking``."""
    if "prompt" in body:
        return "/completions"
    return "/chat/completions"


def _raised(bias: Bias, without: str) -> dict[str, Entry]:
    """Tokens by their texts, none of which is the beginning without a bias, the most promoted
    first: letters or digits alone, because special tokens end an answer or stay unseen.
    """
    texts: dict[str, Entry] = {}
    for entry in sorted(bias.entries, key=lambda entry: -entry.bias):
        text = (entry.text or "").strip()
        if text.isalnum() and text != without and len(texts) < RAISED:
            texts.setdefault(text, entry)
    return texts


def _first(answer: Mapping[str, Any]) -> str:
    """The text of an answer of one token, without blanks around it; "" where it has none."""
    try:
        [choice] = answer["choices"]
        message = choice.get("message") or {}
        return str(message.get("content") or choice.get("text") or "").strip()
    except (KeyError, TypeError, ValueError, AttributeError):
        return ""


def _short(words: str) -> str:
    return printable(words[:300])
