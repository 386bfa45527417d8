"""One answer: choices become completions, in arrays, with every number checked on the way in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from blackbox_lb.api.draw import Draw
from blackbox_lb.api.drift import SYSTEM_PARTS
from blackbox_lb.api.wire.decisions import decision_completion
from blackbox_lb.api.wire.dialects import DIALECTS, AnswerDialect
from blackbox_lb.api.wire.envelope import (
    CUT,
    REMEDY,
    SPECIAL,
    UNLISTED,
    count,
    fault_of_end,
    has_calls,
    has_thoughts,
    hides_call,
    is_blank,
    is_cut,
    is_filtered,
    lengths,
    quoted,
    reason_of,
    text_field,
    text_of,
)
from blackbox_lb.api.wire.identity import Identity
from blackbox_lb.api.wire.position import PositionReader, UnsupportedLayout
from blackbox_lb.api.wire.request import asks_logprobs
from blackbox_lb.api.wire.scanner import ParsedAnswer, loads
from blackbox_lb.errors import BlbError, CorruptResponse, NoLogprobs
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile
from blackbox_lb.types import NO_TOKEN, UNNAMED, Completion, Sampling, ending_of

if TYPE_CHECKING:
    from blackbox_lb.vocabulary import Vocabulary

Fault: TypeAlias = NoLogprobs | CorruptResponse
SHAPE = (KeyError, TypeError, IndexError, AttributeError, OverflowError, ValueError)
"""Python's errors for an answer of another shape than its dialect."""

HIDDEN_CALL = (
    "call a function, and the provider does not list the tokens of a call: their text is scored,"
    " and nothing can be learned from them; vLLM, SGLang and llama.cpp list these tokens"
)
"""A note on completions, behind their number."""
LONGEST_TOKEN = 1_024
"""Characters of the longest token of any vocabulary, with room: OpenAI's and Llama's have 128."""


def read_answer(
    profile: Profile, draw: Draw, answer: Any, vocabulary: Vocabulary | None, n: int
) -> list[Completion]:
    """``parse_response`` of an answer to a request for ``n`` completions. One with more or fewer is
    accepted where it is whole.

    Raises CorruptResponse: more or fewer than ``n``, and their tokens differ from the provider's
    count.
    """
    endpoint = draw.endpoint or profile.first_endpoint
    if endpoint == "decisions":
        return [decision_completion(profile, draw, answer)]
    completions = parse_response(profile, endpoint, answer, draw.sampling, vocabulary)
    if len(completions) != n and not all(completion.whole for completion in completions):
        raise CorruptResponse(
            f"{profile.name} answered with {len(completions)} completions where n = {n} were asked"
            " for, and its `usage` counts other tokens than they list; ask again, or set"
            " sampling.n = 1 in its profile"
        )
    return completions


def with_prompt(
    profile: Profile,
    endpoint: Endpoint,
    answer: Any,
    sampling: Sampling,
    completion: Completion,
    prompt_ids: Sequence[int],
    size: int,
) -> Completion:
    """Put the last ``size`` tokens of an answer's prompt, the ids ``prompt_ids``, before its
    ``completion``, each with its list.

    The row ``answers.prompt_logprobs`` names the lists.

    Raises CorruptResponse: another number of lists than of ids, or one without the id that it
    stands at.
    """
    rules = profile.endpoint(endpoint)
    name = str(profile.answers.prompt_logprobs)
    reader = PositionReader(
        profile,
        rules,
        DIALECTS[rules.dialect],
        Identity(profile, rules, None),
        sampling.top_logprobs,
    )
    with _described(profile, answer):
        lists = DIALECTS[rules.dialect].choices(profile, answer)[0][name]
        if len(lists) != len(prompt_ids):
            raise CorruptResponse(
                f"{profile.name} returned {len(lists)} lists in {name} for a prompt of"
                f" {len(prompt_ids)}"
                " tokens"
            )
        pairs = list(zip(prompt_ids, lists, strict=True))[len(prompt_ids) - size :]
        logprobs = [row[str(token)]["logprob"] for token, row in pairs]
        alternatives = [[(int(token), row[token]["logprob"]) for token in row] for _, row in pairs]
        before = reader.read(reader.listing([token for token, _ in pairs], logprobs, alternatives))
    width = max(before["top_ids"].shape[1], completion.top_ids.shape[1])
    return replace(
        completion,
        token_ids=np.concatenate([before["token_ids"], completion.token_ids]),
        logprobs=np.concatenate([before["logprobs"], completion.logprobs]),
        top_ids=_stacked(before["top_ids"], completion.top_ids, width, NO_TOKEN),
        top_logprobs=_stacked(before["top_logprobs"], completion.top_logprobs, width, -np.inf),
        propensities=None,
        bounded=_bounded(before["bounded"], len(pairs), completion),
    )


def _stacked(before: Any, after: Any, width: int, padding: float) -> Any:
    """The rows of two tables, padded to ``width``."""
    tables = [
        np.pad(table, ((0, 0), (0, width - table.shape[1])), constant_values=padding)
        for table in (before, after)
    ]
    return np.concatenate(tables)


def _bounded(before: Any, size: int, completion: Completion) -> Any:
    """Whether each logprob is only a bound, of ``size`` tokens and those of ``completion``; None
    where none is.
    """
    if before is None and completion.bounded is None:
        return None
    after = completion.bounded
    if before is None:
        before = np.zeros(size, np.bool_)
    if after is None:
        after = np.zeros(len(completion.token_ids), np.bool_)
    return np.concatenate([before, after])


def parse_response(
    profile: Profile,
    endpoint: Endpoint,
    answer: Any,
    sampling: Sampling,
    vocabulary: Vocabulary | None = None,
) -> list[Completion]:
    """All completions of one answer, in the order of its choices.

    A sampled token without a name is ``UNNAMED`` in ``token_ids``, and its completion is not whole.
    A completion that a content filter withheld or ended is not whole; one that it withheld has no
    positions, nor has one without logprobs, where the endpoint gives none or none were asked for.
    An unreadable choice counts the same where another one of the answer is readable, because the
    answer was paid for. If such a choice is blank (``is_blank``) and the provider counts as many
    tokens as the other choices list, it is a whole completion of no tokens.

    Raises NoLogprobs: no choice with token logprobs, which were asked for. CorruptResponse: no
    choices, or each one was broken off by the host, has its text in its thoughts alone
    (``fault_of_end``) or nowhere, or has a NaN or positive logprob, a missing id, or a list out of
    step with the tokens; neither logprobs nor a count of the tokens of a text. ProfileError: tokens
    are identified by bytes or text and ``vocabulary`` is missing, or not the model's.
    """
    if isinstance(answer, ParsedAnswer):
        try:
            return _parsed(profile, endpoint, answer, sampling, vocabulary)
        except (UnsupportedLayout, BlbError):
            answer = loads(answer.content)
    return _parsed(profile, endpoint, answer, sampling, vocabulary)


def _parsed(
    profile: Profile,
    endpoint: Endpoint,
    answer: Any,
    sampling: Sampling,
    vocabulary: Vocabulary | None,
) -> list[Completion]:
    rules = profile.endpoint(endpoint)
    dialect = DIALECTS[rules.dialect]
    reader = PositionReader(
        profile, rules, dialect, Identity(profile, rules, vocabulary), sampling.top_logprobs
    )
    with _described(profile, answer):
        choices = dialect.choices(profile, answer)
        alone = len(choices) == 1
        thoughts = [has_thoughts(answer, choice, alone=alone) for choice in choices]
        attempts = [
            _attempt(reader, endpoint, *choice_and_thought, answer, sampling)
            for choice_and_thought in zip(choices, thoughts, strict=True)
        ]
        read, faults = zip(*attempts, strict=True)
        if all(faults) and not (
            alone and _cut_at_once(profile, choices[0], _total(answer), sampling)
        ):
            raise faults[0]
        if sampling.stop and alone:
            read = (_up_to_stop(read[0], _total(answer)),)
        sizes = _sizes(profile, dialect, answer, choices, read, faults, thoughts, sampling)
        prompt_tokens = count(answer, "prompt_tokens", "input_tokens") or 0
        model = text_field(answer, "model")
        parts = [text_field(answer, name) for name in profile.models.systems]
        system = SYSTEM_PARTS.join(part for part in parts if part)
        completions = [
            replace(
                completion,
                prompt_tokens=prompt_tokens,
                model=model,
                generated=generated,
                whole=completion.whole and complete and not completion.filtered,
                fingerprint=system,
            )
            for completion, (generated, complete) in zip(read, sizes, strict=True)
        ]
        for completion in completions:
            for text in (
                completion.text,
                completion.finish_reason,
                completion.model,
                completion.fingerprint,
            ):
                # a ValueError for half of a surrogate pair: it is no text, and no file takes it
                text.encode()
        if not asks_logprobs(rules, sampling.top_logprobs):
            _check_counted(profile, endpoint, completions)
            return completions
        calling = [has_calls(choice) for choice in choices]
        notes = [
            _note(*facts) for facts in zip(completions, faults, thoughts, calling, strict=True)
        ]
        return [
            replace(completion, note=note) if note else completion
            for completion, note in zip(completions, notes, strict=True)
        ]


@contextmanager
def _described(profile: Profile, answer: Any) -> Iterator[None]:
    """Turn every error in here, by an answer of another shape than its profile's, into
    CorruptResponse.
    """
    try:
        yield
    except BlbError:
        raise
    except SHAPE as error:
        raise CorruptResponse(
            f"{profile.name} answered in a shape that its profile does not describe"
            f" ({type(error).__name__}: {str(error)[:100]}): {quoted(answer)}"
        ) from error


def _attempt(
    reader: PositionReader,
    endpoint: Endpoint,
    choice: dict[str, Any],
    thought: bool,
    answer: Any,
    sampling: Sampling,
) -> tuple[Completion, Fault | None]:
    """The readable part of the completion, and the reason why the rest is not readable."""
    too_long = _too_long(reader.profile, choice, sampling.max_tokens)
    if too_long is not None:
        return _completion("", choice, _no_positions(whole=False)), too_long
    try:
        with _described(reader.profile, answer):
            fields = _no_positions(whole=False)
            if ending_of(reason_of(choice)) != "broken off":
                fields = _read(reader, endpoint, choice)
            completion = _completion(text_of(choice), choice, fields)
            words = fault_of_end(choice)
            if words is None and not (completion.text or thought or sampling.stop):
                words = _other_text(reader, choice, completion)
        if words is not None:
            raise CorruptResponse(f"{reader.profile.name} {words}")
        return completion, None
    except (NoLogprobs, CorruptResponse) as error:
        fault: Fault = error
        with suppress(*SHAPE):
            text = text_of(choice)
            reason = reason_of(choice)
            if isinstance(fault, NoLogprobs) and is_cut(text, reason, thought=thought):
                fault = NoLogprobs(
                    f"{reader.profile.name} cut the answer inside its thinking, before any text:"
                    f" {REMEDY}"
                )
            elif (
                isinstance(fault, NoLogprobs)
                and reader.profile.logprobs.drops_fragments
                and reason == "length"
                and not text.strip("\ufffd")
            ):
                fault = CorruptResponse(
                    f"{reader.profile.name} lists no token: the only one may be a part of a"
                    " character"
                )
            return _completion(text, choice, _no_positions(whole=is_blank(choice, text))), fault
        return _completion("", choice, _no_positions(whole=False)), fault


def _other_text(
    reader: PositionReader, choice: dict[str, Any], completion: Completion
) -> str | None:
    """The fault of a completion without a text whose listed tokens spell one; None where they
    spell none but blanks, fragments of a character, and tokens that templates use.
    """
    if completion.filtered or not len(completion.token_ids):
        return None
    raw = reader.dialect.spelled(reader.profile, choice) or b""
    spelled = SPECIAL.sub("", raw.decode("utf-8", "ignore")).strip()
    if not spelled:
        return None
    return (
        f"answered with no text and lists tokens that spell {spelled!r:.60}: does a parser of the"
        " server take it away? Ask again, or start the server without its tool and reasoning"
        " parsers"
    )


def _too_long(profile: Profile, choice: dict[str, Any], max_tokens: int) -> CorruptResponse | None:
    """The fault of a text that ``max_tokens`` tokens cannot spell, so that no reward has to read
    it.
    """
    with suppress(*SHAPE):
        length = len(text_of(choice))
        most = LONGEST_TOKEN * max_tokens
        if length > most:
            return CorruptResponse(
                f"{profile.name} answered with a text of {length:,} characters, which is more than"
                f" the {max_tokens:,} tokens that were asked for can have ({most:,}); is this an"
                " inference API?"
            )
    return None


def _read(reader: PositionReader, endpoint: Endpoint, choice: dict[str, Any]) -> dict[str, Any]:
    """The fields of a completion from every token position; without any where there can be none, as
    of a call whose tokens the provider hides.
    """
    if reader.rules.ask_logprobs == "no" or is_filtered(choice) or hides_call(choice):
        return _no_positions(whole=False)
    if not isinstance(choice.get("logprobs"), dict):
        if not asks_logprobs(reader.rules, reader.asked):
            return _no_positions(whole=False)
        raise NoLogprobs(
            f"{reader.profile.name} returned no logprobs on its {endpoint} endpoint; learning needs"
            " the logprobs of sampled tokens: choose a model or server that returns"
            f" them{with_logprobs(reader.profile, endpoint)}, or, where nothing is learned, ask for"
            " none with ``top_logprobs=0``"
        )
    return reader.read(reader.dialect.listing(reader, choice))


def with_logprobs(profile: Profile, endpoint: Endpoint) -> str:
    """The end of a remedy: the endpoints beside this one that give logprobs, if there are any."""
    names = [
        name
        for name, rules in profile.endpoints.items()
        if rules.ask_logprobs != "no" and name != endpoint
    ]
    if not names:
        return ""
    return f", or ``endpoint={' or '.join(names)}``"


def _sizes(
    profile: Profile,
    dialect: AnswerDialect,
    answer: dict[str, Any],
    choices: Sequence[dict[str, Any]],
    read: Sequence[Completion],
    faults: Sequence[Fault | None],
    thoughts: Sequence[bool],
    sampling: Sampling,
) -> list[tuple[int | None, bool]]:
    """For each choice, its number of generated tokens and whether all of them were read."""
    # The provider counts the tokens of a withheld or unreadable choice: the sum then gives no
    # number for the others.
    hidden = [
        is_filtered(choice) or hides_call(choice) or (fault is not None and not completion.whole)
        for choice, completion, fault in zip(choices, read, faults, strict=True)
    ]
    total = _total(answer)
    if len(choices) > 1 and any(hidden):
        total = None
    sizes = lengths(
        total,
        [len(completion.token_ids) for completion in read],
        [completion.finish_reason for completion in read],
        end_token_listed=profile.logprobs.end_token_listed,
        most_cut=0 if profile.logprobs.stop_text_listed else _longest(sampling.stop),
    )
    sizes = [
        (
            size,
            _is_complete(
                profile,
                completion,
                size,
                complete,
                thought,
                partial(_spelled, profile, dialect, choice),
            ),
        )
        for (size, complete), choice, completion, thought in zip(
            sizes, choices, read, thoughts, strict=True
        )
    ]
    confirmed = total is not None and all(complete for _, complete in sizes)
    if confirmed or not any(faults):
        return sizes
    return [(None, fault is None) for fault in faults]  # a blank choice may have had no token


def _spelled(profile: Profile, dialect: AnswerDialect, choice: dict[str, Any]) -> bytes | None:
    """The bytes that the listed tokens spell; None where they are not to be compared with the
    text: a call stands in it in another form than the model wrote.
    """
    if has_calls(choice):
        return None
    return dialect.spelled(profile, choice)


def _is_complete(
    profile: Profile,
    read: Completion,
    size: int | None,
    complete: bool,
    thought: bool,
    listed: Callable[[], bytes | None],
) -> bool:
    """Whether all tokens are listed but those that end the completion, as far as this can be known;
    ``complete``: by their number.

    One token that is counted and not listed ends the completion unless the listed ones spell
    another text. Two do only where these spell the text: seen of three of 163 answers of Azure's
    gpt-4o, each of which was whole. Beside thoughts that are not known to be listed, any may belong
    to them, unless the list holds more than the text and an end token, so that the rest is that of
    a stop text.
    """
    rules = profile.logprobs
    hidden = 0
    if size is not None:
        hidden = size - len(read.token_ids)
    text = read.text.encode("utf-8", "surrogatepass")
    if (
        thought
        and rules.reasoning_listed is not True
        and (hidden or rules.reasoning_listed is False)
    ):
        sure = complete and rules.end_token_listed is True and rules.reasoning_listed is None
        return sure and len((listed() or b"").strip()) > len(text.strip())
    two = (
        hidden == 2
        and not complete
        and read.finish_reason == "stop"
        and rules.end_token_listed is not True
    )
    if not two and not (hidden == 1 and complete):
        return complete
    spelled = listed()
    if spelled is None:
        return not two
    return spelled == text or (thought and spelled.endswith(text))


def _note(read: Completion, fault: Fault | None, thought: bool, calls: bool) -> str:
    """The note on a completion, worded to follow the number of completions like it; see
    ``Completion.note``.

    calls: whether the provider sent calls of functions apart from its text.
    """
    if is_cut(read.text, read.finish_reason, thought=thought):
        return CUT
    if read.whole or read.filtered:
        return ""
    if read.broken_off:
        reason = read.finish_reason or None
        return (
            f"were broken off by the host (finish_reason {reason!r:.60}), beside others in the same"
            " answers"
        )
    if fault is not None:
        return "could not be read, beside others in the same answers"
    if calls:
        return HIDDEN_CALL
    if (read.token_ids == UNNAMED).any():
        return "are not whole: a listed token has no id that is certain"
    if thought:
        return UNLISTED
    return (
        "are not whole: the provider counts more tokens than it lists, or other ones than the"
        " text has"
    )


def _total(answer: dict[str, Any]) -> int | None:
    return count(answer, "completion_tokens", "output_tokens")


def _longest(stop: Sequence[str]) -> int:
    """Most tokens of a stop text: one for each of its bytes, and one for a space that a tokenizer
    puts first.
    """
    return max((len(text.encode()) + 1 for text in stop), default=0)


def _cut_at_once(
    profile: Profile, choice: dict[str, Any], total: int | None, sampling: Sampling
) -> bool:
    """Whether the completion began with a stop text, so that nothing is listed: llama.cpp then
    sends no logprobs.

    There may be a text all the same, that of the token in which the stop text begins.
    """
    if (
        profile.logprobs.stop_text_listed
        or total is None
        or not 0 < total <= _longest(sampling.stop)
    ):
        return False
    return reason_of(choice) == "stop" and is_blank(choice, "")


def _up_to_stop(completion: Completion, total: int | None) -> Completion:
    """The list without the tokens past the stop text that OpenAI's legacy endpoint lists and does
    not count.
    """
    if (
        total is None
        or not 0 < total < len(completion.token_ids)
        or completion.finish_reason != "stop"
    ):
        return completion
    names = ("token_ids", "logprobs", "top_ids", "top_logprobs", "propensities", "bounded")
    parts = {name: getattr(completion, name) for name in names}
    return replace(
        completion, **{name: part[:total] for name, part in parts.items() if part is not None}
    )


def _check_counted(profile: Profile, endpoint: Endpoint, completions: Sequence[Completion]) -> None:
    """Raise CorruptResponse for a text without a count of its tokens."""
    for completion in completions:
        if completion.text and not len(completion.token_ids) and completion.generated is None:
            raise CorruptResponse(
                f"{profile.name} gave no logprobs on its {endpoint} endpoint, and its `usage` does"
                f" not tell how many tokens a text of {len(completion.text)} characters has; choose"
                " a model or server that reports completion_tokens, with one completion a"
                f" request{with_logprobs(profile, endpoint)}"
            )


def _completion(text: str, choice: dict[str, Any], fields: dict[str, Any]) -> Completion:
    return Completion(text=text, finish_reason=reason_of(choice), **fields)


def _no_positions(*, whole: bool) -> dict[str, Any]:
    """The fields of a completion without positions; ``whole``: it has no tokens."""
    return {
        "token_ids": np.zeros(0, np.int32),
        "logprobs": np.zeros(0, np.float32),
        "top_ids": np.zeros((0, 0), np.int32),
        "top_logprobs": np.zeros((0, 0), np.float32),
        "whole": whole,
    }
