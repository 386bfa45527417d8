"""Given answers as rollouts: the model's list of next tokens at the place of each answer, with the
answer in the place of a sample.

One token a prompt is asked for. The list at that first position holds the probability of every
likely way to begin; the tokens that begin a spelling of an accepted answer are the given answers of
the prompt. Where the profile has a way (``continued``), the likeliest spelling is followed to its
end, and the list after it is read, too: without it, a bias that lifts a label would lift it again
at the next place.

Where the answers of a prompt have wanted shares, the tokens that begin each of them have its share
together. One answer of each prompt, drawn by these shares, is followed; what comes after it is what
the model itself says there, since a distribution of the label leaves the rest of a text as it is.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from blackbox_lb.errors import InputError, NoLogprobs, RequestRejected
from blackbox_lb.estimate.decisions.first_lists import FirstLists
from blackbox_lb.estimate.inputs.checks import Bools, Ids, Vector
from blackbox_lb.estimate.inputs.rollouts import Rollouts
from blackbox_lb.literals import Endpoint
from blackbox_lb.providers.profile import Profile
from blackbox_lb.rollouts.answers.continued import lists_along
from blackbox_lb.rollouts.columns import columns
from blackbox_lb.rollouts.judging.trials import Draws, StagePart, Trials
from blackbox_lb.rollouts.judging.verdict import SAMPLED
from blackbox_lb.tasks.sets.labels import Labels, spellings
from blackbox_lb.types import Completion, EndTokens, Example

MOST_LISTED = 1_000
"""Alternatives that are asked for at a first position where the provider has no limit: the tokens
of rare labels are among them, and an answer stays below 100 kB."""
HARDLY = 0.05
"""Share of the first lists that must hold a way to begin an answer before longer spellings are left
aside for it.
"""
MOST_SHOWN = 12
"""Answers whose spellings are named."""
MOST_WANTED = 64
"""Tokens that begin an answer and get a bounded probability wherever a list misses them, the
commonest first.
"""


@dataclass(frozen=True, slots=True, eq=False)
class WantedTokens:
    """The tokens that begin answers with wanted shares, the same at every prompt.

    tokens: (a,) sorted. labels: (a,) the number of the label that each begins. shares: (p, a) the
    share of its label at each prompt, divided evenly among the tokens that begin it.
    """

    tokens: Ids
    labels: Ids
    shares: npt.NDArray[np.float64]

    @classmethod
    async def of(
        cls, tokens: AnswerTokens, examples: Sequence[Example], listed: Mapping[int, float]
    ) -> tuple[WantedTokens, dict[str, dict[int, tuple[int, ...]]]]:
        """The tokens of the labels of ``examples``; and of each label, token -> the spelling that
        it begins.

        listed: token -> the share of first lists that hold it. Raises InputError: a label begins
        like another, so that its first token does not tell which one it is.
        """
        labels = Labels.of_shares(examples)
        begins = [await tokens.of([name], listed) for name in labels.names]
        counts = Counter(token for spelled in begins for token in spelled)
        unambiguous = [
            {token: ids for token, ids in spelled.items() if counts[token] == 1}
            for spelled in begins
        ]
        for name, spelled in zip(labels.names, unambiguous, strict=True):
            if not spelled:
                raise InputError(
                    f"the label {name!r} begins with the same token as another one, or with none,"
                    " so its share cannot be learned from first tokens; rename the labels so that"
                    " they begin differently, as in 'a 18-29' and 'b 30-44'"
                )
        label_of = {token: number for number, part in enumerate(unambiguous) for token in part}
        order = sorted(label_of)
        numbers = np.array([label_of[token] for token in order], np.int64)
        sizes = np.bincount(numbers, minlength=len(labels.names))
        by_label = np.array([labels.shares(example) for example in examples])
        shares = (by_label / sizes)[:, numbers]
        by_name = dict(zip(labels.names, unambiguous, strict=True))
        return cls(np.array(order, np.int64), numbers, shares), by_name

    def drawn(self, examples: Sequence[Example]) -> list[Ids]:
        """(p,) the tokens that begin one label of each prompt, drawn by its shares; the same in
        every run.
        """
        chosen = []
        for example, shares in zip(examples, self.shares, strict=True):
            digest = hashlib.sha256(example.id.encode("utf-8", "surrogatepass")).digest()
            place = int.from_bytes(digest[:8]) / 2**64 * shares.sum()
            by_label = np.bincount(self.labels, weights=shares)
            label = int(np.searchsorted(np.cumsum(by_label), place, side="right"))
            label = min(label, int(np.flatnonzero(by_label)[-1]))
            chosen.append(self.tokens[self.labels == label])
        return chosen


@dataclass(frozen=True, slots=True, eq=False)
class AnswerStarts:
    """The first position of each prompt, with the tokens that begin one of its accepted answers.

    places: (p,) the number of each among all that were asked for. whole: their lists as they came.
    lists: the likeliest of each, with tokens that begin an answer of another prompt; these stand at
    its end at their bound where they are not listed. accepted: (p,) the tokens that begin an
    accepted answer of each. spelled: (p,) all tokens of the spelling that is likeliest to begin,
    over all prompts that accept the same. width: alternatives that were asked for. unanswered:
    prompts that came back without a list, which are not among the p. longer: prompts whose answers
    are all longer than one token. ambiguous: tokens that begin answers of prompts that accept
    different ones, which are left out. spellings: answer -> its spellings that are learned, of the
    first ``MOST_SHOWN`` answers. wanted: how ``accepted`` is divided where answers have shares of
    their own; None where the answers of a prompt are as good as each other.
    """

    examples: tuple[Example, ...]
    places: Ids
    whole: FirstLists
    lists: FirstLists
    accepted: tuple[Ids, ...]
    spelled: tuple[tuple[int, ...], ...]
    width: int
    unanswered: int
    longer: int
    ambiguous: int
    spellings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wanted: WantedTokens | None = None

    def labels_of(self, labels: Labels) -> Ids:
        """(p,) the number of each prompt's right label, -1 where it has none."""
        numbers = [labels.of(example) for example in self.examples]
        return np.array([-1 if number is None else number for number in numbers], np.int64)

    def only(self, rows: Bools) -> AnswerStarts:
        """Those of the ``rows`` (p,) of labelled prompts."""
        chosen = np.flatnonzero(rows).tolist()
        return replace(
            self,
            examples=tuple(self.examples[row] for row in chosen),
            places=self.places[rows],
            whole=self.whole.only(rows),
            lists=self.lists.only(rows),
            accepted=tuple(self.accepted[row] for row in chosen),
            spelled=tuple(self.spelled[row] for row in chosen),
        )

    def with_tokens(self, tokens: Iterable[int]) -> AnswerStarts:
        """The same with ``tokens`` in every list, at their probability or its bound: what may get a
        bias must not be overlooked.
        """
        common = np.union1d(_commonest(self.accepted), np.array(sorted(tokens), np.int64))
        return replace(self, lists=self.whole.with_tokens(common, self.accepted))

    @property
    def outside(self) -> int:
        """Prompts none of whose answers begins with a listed token."""
        return int((~self.whole.holds(self.accepted).any(axis=1)).sum())

    @property
    def sentence(self) -> str:
        """What was found, and what of it is not exact."""
        size = len(self.examples)
        parts = [
            f"{size} prompts with the first token of their answers, from lists of up to"
            f" {self.width:,} tokens"
        ]
        if self.outside:
            parts.append(
                f"{self.outside} answers begin outside the list and are taken at its least"
                " probability"
            )
        if self.longer:
            parts.append(f"{self.longer} answers are longer than one token")
        if self.unanswered:
            parts.append(f"{self.unanswered} prompts came without a list")
        if self.spellings:
            spellings = (
                f"{answer} as {', '.join(map(repr, texts))}"
                for answer, texts in self.spellings.items()
            )
            parts.append(f"spellings: {'; '.join(spellings)}")
        if self.ambiguous:
            parts.append(f"{self.ambiguous} tokens begin different answers and are left out")
        begins = [tokens.tolist() for tokens in self.accepted]
        shared = _ambiguous(self.examples, begins)
        alike = sum(not shared.isdisjoint(tokens) for tokens in begins)
        if alike:
            parts.append(
                f"{alike} answers begin with no other token than another answer does, so that their"
                " first token does not tell which it is"
            )
        return "; ".join(parts)

    def rollouts(self, weights: Vector | None = None) -> Rollouts:
        """A rollout of one token for each token that begins an accepted answer; ``weights`` (p,):
        of the prompts, 1 if None.
        """
        prompts = np.repeat(
            np.arange(len(self.accepted)), [len(accepted) for accepted in self.accepted]
        )
        tokens = np.concatenate([np.zeros(0, np.int64), *self.accepted])
        lists = self.lists.only(prompts)
        at = lists.ids == tokens[:, None]
        number = np.bincount(prompts, minlength=len(self.accepted))
        if weights is None:
            weights = np.ones(len(self.accepted))
        parts = 1.0 / np.maximum(number, 1)[prompts]
        answer_sets = np.zeros(len(tokens), np.int64)
        if self.wanted is not None:
            parts = self.wanted.shares.ravel()
            answer_sets = np.tile(self.wanted.labels, len(self.accepted))
        where = at.argmax(axis=1)
        rows = np.arange(len(tokens))
        return Rollouts(
            keys=tuple(
                f"{self.examples[p].id}\0{token}"
                for p, token in zip(prompts, tokens.tolist(), strict=True)
            ),
            prompts=self.places[prompts],
            rewards=np.zeros(len(tokens)),
            lengths=np.ones(len(tokens), np.int64),
            token_ids=tokens.astype(np.int32),
            logprobs=lists.logprobs[rows, where],
            top_ids=lists.ids.astype(np.int32),
            top_logprobs=lists.logprobs,
            bounded=~(self.whole.ids[prompts] == tokens[:, None]).any(axis=1),
            shares=weights[prompts] * parts,
            answer_sets=answer_sets,
        )


class AnswerTokens:
    """The tokens of the spellings of answers, asked of the model's tokenizer once for each text."""

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        self._ids = dict[str, tuple[int, ...]]()

    def texts(self, spellings: Iterable[tuple[int, ...]]) -> tuple[str, ...]:
        """The spellings that have these tokens."""
        targets = set(spellings)
        return tuple(text for text, ids in self._ids.items() if ids in targets)

    async def of(
        self, answers: Iterable[str], listed: Mapping[int, float] | None = None
    ) -> dict[int, tuple[int, ...]]:
        """Token -> the spelling that it begins, for all that begin one of ``answers``.

        Of the spellings of an answer those with the fewest tokens count: a model hardly writes the
        others, and what they begin with ("B" of "BUSINESS") begins much else. listed: token -> the
        share of first lists that hold it, where they are known; then a spelling counts only where
        it is listed at least half as often as the best of as many tokens, and longer ones come in
        where no shorter one is listed: of what no list holds nobody knows how far it is behind.
        """
        first_tokens: dict[int, tuple[int, ...]] = {}
        for answer in answers:
            encoded = []
            for text in spellings([answer]):
                if text not in self._ids:
                    self._ids[text] = await self._encoded(text)
                encoded.append(self._ids[text])
            sizes = [
                [ids for ids in encoded if len(ids) == size]
                for size in sorted({len(ids) for ids in encoded if ids})
            ]
            if listed is not None:
                shares = [
                    max(listed.get(ids[0], 0.0) for ids in candidates) for candidates in sizes
                ]
                at = next((number for number, share in enumerate(shares) if share >= HARDLY), None)
                if at is not None:
                    sizes = [
                        [ids for ids in sizes[at] if listed.get(ids[0], 0.0) >= shares[at] / 2]
                    ]
            for candidates in sizes[:1]:
                first_tokens |= {ids[0]: ids for ids in candidates}
        return first_tokens

    async def _encoded(self, text: str) -> tuple[int, ...]:
        """The tokens of ``text``. Empty where they decode to another text; spaces around the text
        do not count.
        """
        session = self._trials.session
        ids = await session.encode(text)
        if (await session.decode(ids)).strip() != text.strip():
            return ()
        return tuple(ids)


async def first_completions(
    trials: Trials, examples: Sequence[Example], title: str, listed: int | None
) -> tuple[list[Completion], int]:
    """A completion of one token for every example, with its list, drawn unless it is in the store;
    and the width of the lists.

    listed: alternatives of each list; None for as many as help and the provider lists.
    ProviderError: the API failed.
    """
    width = listed or await _longest(trials, examples, title)
    part = first_part(trials.draw, title, examples, width)
    [keys] = await trials.collect_all(part.name, [part], scored=False)
    return list(trials.store.completions(key for [key] in keys)), width


def listed_places(lists: FirstLists) -> Ids:
    """The places of the prompts that came with a first list. Raises NoLogprobs: none did."""
    places = np.flatnonzero(lists.has_list)
    if not len(places):
        raise NoLogprobs(
            f"none of {len(lists.has_list)} first tokens came with a list of alternatives; use a"
            " provider that returns logprobs"
        )
    return places


def first_part(draws: Draws, title: str, examples: Sequence[Example], width: int) -> StagePart:
    """The first token of every example with a list of ``width`` alternatives."""
    draw = draws(SAMPLED, max_tokens=1, top_logprobs=width)
    return StagePart(f"{title}, first tokens", examples, draw, 1)


async def _longest(trials: Trials, examples: Sequence[Example], title: str) -> int:
    """The most alternatives that help and the server lists; where the limit is a setting, one
    request finds out.
    """
    profile = trials.session.profile
    limit = profile.most_logprobs(trials.session.endpoint)
    most = most_listed(profile, trials.session.endpoint)
    if limit is None or limit >= most:
        return most
    part = first_part(trials.draw, title, examples[:1], MOST_LISTED)
    try:
        await trials.collect_all(f"{title}, long lists", [part], scored=False)
    except RequestRejected:
        return limit
    return MOST_LISTED


def most_listed(profile: Profile, endpoint: Endpoint) -> int:
    """The most alternatives that help and the provider may list: where the limit is a setting of
    the server, any number.
    """
    limit = profile.most_logprobs(endpoint)
    if limit is None or profile.logprobs.limit_is_setting:
        return MOST_LISTED
    return min(limit, MOST_LISTED)


async def first_tokens(
    trials: Trials, examples: Sequence[Example], title: str, listed: int | None
) -> AnswerStarts:
    """The first position of every example, drawn unless it is in the store.

    title: of the split, for messages. listed: alternatives of each list; None for as many as help
    and the provider lists.

    Raises InputError: an example without an answer, or with one that no token sequence of the
    tokenizer spells. NoLogprobs: no prompt came back with a list. ProviderError: the API failed;
    what was received is kept.
    """
    silent = [example.id for example in examples if not example.answers]
    if silent:
        raise InputError(
            f"{len(silent)} of {len(examples)} {title} rows have no answer, the first"
            f" {silent[0]!r}; give every row an answer, or use ``learn_from=samples``"
        )
    completions, width = await first_completions(trials, examples, title, listed)
    whole = FirstLists.of(completions)
    tokens = AnswerTokens(trials)
    listed_ids, counts = np.unique(whole.ids[whole.ids >= 0], return_counts=True)
    shares = dict(zip(listed_ids.tolist(), (counts / len(completions)).tolist(), strict=True))
    targets = None
    if any(example.weights for example in examples):
        targets, by_label = await WantedTokens.of(tokens, examples, shares)
        of_all = {token: ids for spelled in by_label.values() for token, ids in spelled.items()}
        begins = [of_all for _ in examples]
        spellings = {name: tokens.texts(spelled.values()) for name, spelled in by_label.items()}
    else:
        begins = [await tokens.of(example.answers, shares) for example in examples]
        spellings = _spellings(examples, begins, tokens)
    for example, candidates in zip(examples, begins, strict=True):
        if not candidates:
            raise InputError(
                f"no token of {trials.session.model} begins the answer {example.answers[0]!r} of"
                f" example {example.id!r}; give another answer"
            )
    ambiguous = _ambiguous(examples, begins)
    usable = [
        np.array(sorted(set(candidates) - ambiguous or set(candidates)), np.int64)
        for candidates in begins
    ]
    places = listed_places(whole)
    accepted = tuple(usable[place] for place in places)
    whole = whole.only(places)
    lists = whole.with_tokens(_commonest(accepted), accepted)
    remaining_examples = tuple(examples[place] for place in places.tolist())
    followed_by = accepted
    if targets is not None:
        targets = replace(targets, shares=targets.shares[places])
        followed_by = tuple(targets.drawn(remaining_examples))
    likeliest = _likeliest(lists, followed_by)
    spelled = tuple(begins[place][token] for place, token in zip(places, likeliest, strict=True))
    return AnswerStarts(
        remaining_examples,
        places,
        whole,
        lists,
        accepted,
        spelled,
        width,
        len(examples) - len(places),
        sum(len(ids) > 1 for ids in spelled),
        len(ambiguous),
        spellings,
        targets,
    )


async def followed(trials: Trials, starts: AnswerStarts) -> tuple[Rollouts, frozenset[int]] | None:
    """What comes after the first token of each answer: the rest of a longer one, then the token
    that ends it.

    Both count as completions of reward 0, which weigh 1: so the rest is learned too, and that
    nothing follows the answer. The base model did not draw them, so no part of that weight is a
    baseline.
    Where no end token is known or listed, the base model's likeliest token stands for it, so that
    greedy decoding goes on as it did. After an answer with a wanted share stands what the model
    drew there. The end tokens come beside the rollouts. None on a server that is not known to
    continue an answer, which is remarked.
    """
    room = trials.reward.max_tokens - 1
    answers = [
        (example.prompt, ids[:room])
        for example, ids in zip(starts.examples, starts.spelled, strict=True)
    ]
    lists = await lists_along(
        replace(trials, top_logprobs=starts.width), "training, along the answers", answers
    )
    if lists is None:
        longer = ""
        if starts.longer:
            longer = f"; of {starts.longer} longer answers the first token is learned"
        trials.report.notice(
            f"{trials.session.profile.name} is not known to continue a given answer: nothing is"
            f" learned of what follows it{longer}"
        )
        return None
    ends = _ends([continued[-1] for continued in lists if continued], trials.session.end_tokens)
    common = np.union1d(_commonest(starts.accepted), np.array(sorted(ends), np.int64))
    keys = list[str]()
    after = list[Completion]()
    tokens = list[int]()
    places = list[int]()
    for place, ids, continued in zip(starts.places.tolist(), starts.spelled, lists, strict=True):
        for size, completion in enumerate(continued, 1):
            if completion.whole and len(completion.token_ids):
                if size < len(ids):
                    token = ids[size]
                elif starts.wanted is not None:
                    token = int(completion.token_ids[0])
                else:
                    token = _after(completion, ends)
                keys.append(f"{place}\0after {size}")
                after.append(completion)
                tokens.append(token)
                places.append(place)
    if not keys:
        return None
    rows = dict(zip(keys, _with_tokens(after, tokens, common), strict=True))
    rest = columns(rows, places, [0.0] * len(rows), trials.end_tokens)
    return replace(rest, drawn_by_base=np.zeros(len(rows), np.bool_)), ends


def _ends(completions: Sequence[Completion], end_tokens: EndTokens) -> frozenset[int]:
    """The tokens that end an answer. Where end tokens are listed, these are the last tokens of the
    completions that stopped by themselves; otherwise all special tokens.
    """
    if end_tokens.listed:
        end_ids = {
            int(completion.token_ids[-1])
            for completion in completions
            if completion.finish_reason == "stop" and len(completion.token_ids)
        }
        if end_ids:
            return frozenset(end_ids)
    return end_tokens.ids


def _after(completion: Completion, ends: frozenset[int]) -> int:
    """The likeliest token of ``ends`` at the first position of a completion, else the likeliest of
    all.
    """
    listed = completion.top_ids[0].tolist()
    return int(next((token for token in listed if token in ends), listed[0]))


def _spellings(
    examples: Sequence[Example], begins: Sequence[dict[int, tuple[int, ...]]], tokens: AnswerTokens
) -> dict[str, tuple[str, ...]]:
    """The spellings of each of the first ``MOST_SHOWN`` answers."""
    texts: dict[str, tuple[str, ...]] = {}
    for example, candidates in zip(examples, begins, strict=True):
        if example.answers[0] not in texts and len(texts) < MOST_SHOWN:
            texts[example.answers[0]] = tokens.texts(candidates.values())
    return texts


def _with_tokens(
    completions: Sequence[Completion], tokens: Sequence[int], common: Ids
) -> Iterator[Completion]:
    """The first position of each completion with its one of ``tokens`` in the place of the one
    that was drawn.
    """
    whole = FirstLists.of(completions)
    lists = whole.with_tokens(common, [np.array([token], np.int64) for token in tokens])
    for row, (completion, token) in enumerate(zip(completions, tokens, strict=True)):
        logprobs = lists.logprobs[row].copy()
        at = int(np.flatnonzero(lists.ids[row] == token)[0])
        is_bound = token not in whole.ids[row]
        if completion.token_ids[0] == token and not (
            completion.bounded is not None and completion.bounded[0]
        ):
            logprobs[at] = completion.logprobs[0]
            is_bound = False
        yield replace(
            completion,
            token_ids=np.array([token], np.int32),
            logprobs=logprobs[at : at + 1],
            propensities=None,
            bounded=np.array([is_bound]),
            top_ids=lists.ids[row][None],
            top_logprobs=logprobs[None],
        )


def _commonest(accepted: Sequence[Ids]) -> Ids:
    """The tokens that begin most answers."""
    counts = Counter(token for tokens in accepted for token in tokens.tolist())
    return np.array([token for token, _ in counts.most_common(MOST_WANTED)], np.int64)


def _likeliest(lists: FirstLists, accepted: Sequence[Ids]) -> list[int]:
    """(p,) of each prompt's accepted tokens the one with the largest mean logprob over all prompts
    that accept the same.
    """
    sums: dict[tuple[int, ...], npt.NDArray[np.float64]] = {}
    for ids, logprobs, answer_ids in zip(lists.ids, lists.logprobs, accepted, strict=True):
        at = np.argsort(ids)[np.searchsorted(np.sort(ids), answer_ids)]
        sums[tuple(answer_ids.tolist())] = (
            sums.get(tuple(answer_ids.tolist()), np.zeros(len(answer_ids))) + logprobs[at]
        )
    best = {answer_ids: answer_ids[int(total.argmax())] for answer_ids, total in sums.items()}
    return [best[tuple(answer_ids.tolist())] for answer_ids in accepted]


def _ambiguous(examples: Sequence[Example], begins: Sequence[Iterable[int]]) -> set[int]:
    """Tokens that begin the answers of several examples which have no answer in common, so that
    they do not distinguish between these answers.
    """
    owners: dict[int, set[frozenset[str]]] = {}
    for example, candidates in zip(examples, begins, strict=True):
        for token in candidates:
            owners.setdefault(token, set()).add(
                frozenset(answer.casefold() for answer in example.answers)
            )
    return {
        token
        for token, sets in owners.items()
        if len(sets) > 1 and not frozenset.intersection(*sets)
    }
