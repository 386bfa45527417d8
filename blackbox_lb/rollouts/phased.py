"""Completions drawn phase by phase, where a server continues token ids, and the bias at logged
positions.

The first part is drawn with the bias of the first phase; where the phase changes, its tokens go
back as a part of the prompt, and the rest is drawn with the next bias. That is the distribution of
a bias that changes inside the server, token for token.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.session import Session
from blackbox_lb.bias.phases import MOST_PARTS, Phases
from blackbox_lb.bias.request_bias import RequestBias
from blackbox_lb.errors import InputError
from blackbox_lb.estimate.inputs.rollouts import Rollouts, padded
from blackbox_lb.types import NO_TOKEN, Completion, Prompt


def check_continues(session: Session, phases: Phases) -> None:
    """Raise InputError where the server takes no prompt of token ids, so that no part could be
    continued as it was drawn, or where a text of the phases could not be found in its tokens.
    """
    if not session.profile.follows_ids(session.vocabulary):
        raise InputError(
            f"{session.profile.name} is not known to continue token ids, and another split of the"
            " same text would be another prompt: a bias with phases cannot be drawn there; use"
            " vllm, llamacpp, local, or sglang with its ``tokenizer``, or leave out ``phases``"
        )
    exact = session.vocabulary is not None or session.profile.tokens.bytes_exact
    if not exact and not (phases.until + phases.back).isascii():
        raise InputError(
            f"{session.profile.name} tells no bytes of parts of a character, so that the text of"
            f" {phases.spec!r} could go unseen; give the model's vocabulary with ``tokenizer``, or"
            " texts of ASCII characters"
        )


async def complete_by_phase(session: Session, prompt: Prompt, draw: Draw) -> Completion:
    """One completion of a prompt with a bias that changes within an answer.

    A part that a text ends is drawn up to that text where the server lists the tokens of stop
    texts, else to its own end, and what follows the text is dropped.
    """
    rules = session.profile.reference
    phases = draw.bias.phases
    sampling = draw.sampling
    assert rules is not None  # checked before anything is drawn
    ids = await session.prompt_ids(prompt)
    parts = list[Completion]()
    token_ids = list[int]()
    state = 0
    while True:
        phase = phases.of_state(state, len(token_ids))
        boundary = phases.boundary(state, len(token_ids))
        last = len(parts) + 1 == MOST_PARTS
        size = sampling.max_tokens - len(token_ids)
        if boundary.tokens is not None:
            size = min(size, boundary.tokens)
        stop: tuple[str, ...] = ()
        if boundary.text and not last and session.profile.logprobs.stop_text_listed:
            stop = (boundary.text,)
        once = replace(draw.seeded(len(parts)), max_tokens=size, stop=stop)
        bias = RequestBias(draw.bias.at(prompt, phase))
        sent = Draw(once, bias, rules.endpoint, draw.fields)
        part = (await session.complete_many([*ids, *token_ids], sent))[0]
        tokens = part.token_ids.tolist()
        token_bytes = dict[int, bytes]()
        if phases.until:
            token_bytes = await bytes_of(session, tokens, part.token_bytes)
        met = False
        changed = False
        number = 0
        while number < len(tokens) and not changed:
            before = state
            state = phases.after(state, token_bytes.get(tokens[number], b""))
            met = phases.second(before) != phases.second(state)
            number = number + 1
            changed = not last and phases.of_state(state, len(token_ids) + number) != phase
        token_ids += tokens[:number]
        if number < len(tokens) or (
            met and stop
        ):  # it did not end here; the text lacks the stop text
            text = await session.decode(tokens[:number])
            part = first_tokens(part, number, text)
        parts.append(part)
        ended = not part.cut
        if (
            not changed
            or ended
            or not part.whole
            or part.filtered
            or len(token_ids) >= sampling.max_tokens
        ):
            return joined(parts, await _text_of(session, parts))


async def bytes_of(
    session: Session, tokens: Sequence[int], token_bytes: Mapping[int, bytes]
) -> dict[int, bytes]:
    """Token id -> its bytes, from ``token_bytes``, else from the vocabulary or the server,
    which are asked once for each.
    """
    unknown = [token for token in dict.fromkeys(tokens) if token not in token_bytes]
    return {**token_bytes, **dict(zip(unknown, await session.bytes_of(unknown), strict=True))}


async def phases_of(
    session: Session, phases: Phases, rollouts: Rollouts, token_bytes: Mapping[int, bytes]
) -> npt.NDArray[np.int64]:
    """(m,) the phase of each position. token_bytes: bytes of tokens, see ``bytes_of``."""
    if phases.until:
        token_bytes = await bytes_of(session, np.unique(rollouts.token_ids).tolist(), token_bytes)
    return phase_of_positions(phases, rollouts, token_bytes)


def phase_of_positions(
    phases: Phases, rollouts: Rollouts, token_bytes: Mapping[int, bytes]
) -> npt.NDArray[np.int64]:
    """(m,) the phase of each position. token_bytes: token id -> its bytes."""
    numbers = list[int]()
    start = 0
    ids = rollouts.token_ids.tolist()
    for size in rollouts.lengths.tolist():
        tokens = (token_bytes.get(token, b"") for token in ids[start : start + size])
        numbers += islice(phases.along(tokens), size)
        start += size
    return np.array(numbers, np.int64)


def bias_at_positions(
    bias: RequestBias,
    prompts: Sequence[Prompt],
    prompt_of: npt.NDArray[np.int64],
    phase_of: npt.NDArray[np.int64],
) -> Iterator[tuple[npt.NDArray[np.bool_], Mapping[int, float]]]:
    """Each map that requests get, with the positions (m,) where it acts.

    prompt_of: (m,) the prompt of each position, a place in ``prompts``. phase_of: (m,) its phase.
    """
    if "prompt" not in bias.scopes:
        prompt_of = np.zeros_like(prompt_of)
    if "prefix" not in bias.scopes:
        phase_of = np.zeros_like(phase_of)
    count = bias.phases.count
    contexts, context_of = np.unique(prompt_of * count + phase_of, return_inverse=True)
    bias.prepare([prompts[prompt] for prompt in np.unique(contexts // count).tolist()])
    for number, context in enumerate(contexts.tolist()):
        prompt, phase = divmod(context, count)
        yield context_of == number, bias.at(prompts[prompt], phase)


def first_tokens(part: Completion, number: int, text: str) -> Completion:
    """The first ``number`` tokens of a part, whose text is ``text``."""
    names = ("token_ids", "logprobs", "top_ids", "top_logprobs", "propensities", "bounded")
    columns = {name: value[:number] for name in names if (value := getattr(part, name)) is not None}
    return replace(part, **columns, text=text, generated=number, finish_reason="length")


async def _text_of(session: Session, parts: Sequence[Completion]) -> str:
    """The text of a completion that was drawn in parts."""
    last = parts[-1]
    if any(part.text.endswith("\ufffd") for part in parts[:-1]) or len(parts) > 2:
        ids = [token for part in parts[:-1] for token in part.token_ids.tolist()]
        return await session.decode(ids) + last.text
    return "".join(part.text for part in parts)


def joined(parts: Sequence[Completion], text: str) -> Completion:
    """All parts as the one completion that they are; the prompt counts once a part, as it is paid
    for.
    """
    width = max(part.top_ids.shape[1] for part in parts)
    counts = [part.n_tokens for part in parts]
    last = parts[-1]
    ids = np.concatenate([part.token_ids for part in parts])
    bounded = None
    if any(part.bounded is not None for part in parts):
        bounded = np.concatenate(
            [
                np.zeros(len(part.token_ids), np.bool_) if part.bounded is None else part.bounded
                for part in parts
            ]
        )
    return replace(
        last,
        text=text,
        token_ids=ids,
        logprobs=np.concatenate([part.logprobs for part in parts]),
        top_ids=np.concatenate([padded(part.top_ids, width, NO_TOKEN) for part in parts]),
        top_logprobs=np.concatenate([padded(part.top_logprobs, width, -np.inf) for part in parts]),
        prompt_tokens=sum(part.prompt_tokens for part in parts),
        whole=all(part.whole for part in parts),
        token_bytes={token: raw for part in parts for token, raw in part.token_bytes.items()},
        propensities=None,
        bounded=bounded,
        generated=sum(counts),
    )
