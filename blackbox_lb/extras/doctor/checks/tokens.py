"""Checks of token identity: the ids and bytes in answers against the tokenizer."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from difflib import SequenceMatcher
from typing import TypeAlias

from blackbox_lb.errors import InputError, RequestRejected
from blackbox_lb.extras.doctor.exam import WORDS, Exam, Withheld
from blackbox_lb.extras.doctor.findings import RowFinding, agreement, unchecked
from blackbox_lb.types import NO_TOKEN, UNNAMED, Completion, Prompt
from blackbox_lb.vocabulary import Vocabulary
from blackbox_lb.vocabulary.tokenizer import Tokenizer

EMOJI = Prompt.user("Repeat these five emoji and write nothing else: 🦜🧶🪁🫖🧭")
"""Characters of several tokens each, in most vocabularies."""
SCRIPTS = Prompt.user(
    "Repeat this line and write nothing else: Donaudampfschifffahrt, Привет мир, 你好世界, नमस्ते"
    " दुनिया, γειά σου κόσμε"
)
"""Words that vocabularies split differently: most common English ones are a token in all of them.
"""
TOKENS = 12
SCRIPT_TOKENS = 24
LOOKED_UP = 8
SAMPLED = 5
FEWEST = 3
"""Ids that the server is asked to print, a request each; how many of them are sampled ones; how
many prove anything.
"""
STRANGE = 0.2
"""Share of listed tokens without an id above which the vocabulary is another model's, where
fragments of characters have none.
"""
LOST = 1
"""Sampled tokens without an id that may be special ones, where all others have one: of 13,057
tokens in recorded answers of OpenAI, the right vocabulary named all, another 3 to 44 of 100 not."""
ALIKE = 0.85
"""Share of a vocabulary's own splitting of the texts that is found among the sampled tokens, below
which it is another model's: a model rarely splits a text otherwise than its tokenizer, another
vocabulary about every second word of ``SCRIPTS``."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


async def ask_tokenizer(exam: Exam) -> Tokenizer | None:
    """The server's own tokenizer; None where the profile knows of none."""
    vocabulary = exam.session.vocabulary
    if vocabulary is not None:
        exam.vocabulary_size = vocabulary.size
    if exam.profile.tokenizer.source != "server":
        return None
    exam.count(2)
    tokenizer = await exam.session.tokenizer()
    exam.vocabulary_size = tokenizer.vocabulary_size or exam.vocabulary_size
    return tokenizer


def compare_tokenizer(exam: Exam, tokenizer: Tokenizer) -> Iterator[RowFinding]:
    """It answers, and agrees with ``tokenizer``."""
    size = ""
    if exam.vocabulary_size:
        size = f", {exam.vocabulary_size:,} tokens"
    yield agreement("tokenizer.tokenize", True, f"{tokenizer.fingerprint}{size}")


Texts: TypeAlias = Sequence[tuple[int, str | None]] | RequestRejected
"""Ids with what the tokenizer prints for them, None where nobody tells; or the refusal of one."""


async def ask_ids(exam: Exam) -> tuple[Sequence[Completion], Texts]:
    """A completion of each prompt that no content filter withholds, and lookups of ids of the first
    where no vocabulary gave them.
    """
    (first,) = await exam.ask(WORDS, max_tokens=TOKENS)
    completions = [first]
    with suppress(Withheld):
        completions += await exam.ask(EMOJI, max_tokens=TOKENS)
    if _naming(exam) is not None:
        with suppress(Withheld):
            completions += await exam.ask(SCRIPTS, max_tokens=SCRIPT_TOKENS)
        return completions, ()
    sampled = _without_end(first)
    unsampled = [token for token in first.token_bytes if token not in sampled]
    looked_up = [*sampled[:SAMPLED], *unsampled][:LOOKED_UP]
    try:
        texts = [(token, await exam.text_of(token)) for token in looked_up]
    except RequestRejected as refusal:
        return completions, refusal
    return completions, texts


def compare_ids(exam: Exam, answer: tuple[Sequence[Completion], Texts]) -> Iterator[RowFinding]:
    """Listed ids print as the bytes beside them, and together as the text."""
    completions, texts = answer
    yield _bytes(exam, completions)
    vocabulary = _naming(exam)
    if vocabulary is not None:
        yield _named(exam, vocabulary)
    elif exam.profile.tokenizer.source == "server" or exam.session.vocabulary is not None:
        yield _printed(completions[0], texts)
    else:
        yield unchecked("tokens.id", "nobody tells what an id prints as")


def _naming(exam: Exam) -> Vocabulary | None:
    """The vocabulary that gives the ids; None where the server does."""
    if exam.profile.gives_ids(exam.rules):
        return None
    return exam.session.vocabulary


def _named(exam: Exam, vocabulary: Vocabulary) -> RowFinding:
    """A vocabulary that gives the ids must have a token for each listed text and split the text as
    the model did. With the exact bytes of every token it must have each sampled token too.
    """
    ids = [token for token in exam.listed_ids() if token != NO_TOKEN]
    unnamed = ids.count(UNNAMED)
    evidence = f"{unnamed} of {len(ids)} listed tokens have no id under {vocabulary.name}"
    agrees = unnamed <= STRANGE * len(ids)
    kind, _ = exam.profile.token_ids(exam.rules)
    if kind == "bytes" and exam.profile.tokens.bytes_exact:
        sampled = [_without_end(completion) for completion in exam.completions()]
        lost = sum(tokens.count(UNNAMED) for tokens in sampled)
        total = sum(map(len, sampled))
        shared, split = _shared(list(exam.completions()), vocabulary)
        evidence += (
            f", {lost} of {total} sampled ones; {shared} of {split} tokens in its own splitting of"
            " the texts were sampled"
        )
        agrees = agrees and lost <= LOST and shared >= ALIKE * split
    return agreement("tokens.id", agrees, evidence)


def _without_end(completion: Completion) -> list[int]:
    """The sampled ids, without an end token, which may have none."""
    ids: list[int] = completion.token_ids.tolist()
    if completion.finish_reason == "stop":
        return ids[:-1]
    return ids


def _shared(completions: Sequence[Completion], vocabulary: Vocabulary) -> tuple[int, int]:
    """How many tokens of the vocabulary's own splitting of the texts were sampled, in order, and
    how many it has; of the completions that list all their tokens but an end token.
    """
    shared = 0
    split = 0
    for completion in completions:
        if not 1 < len(completion.token_ids) >= completion.n_tokens - 1:
            continue
        try:
            encoded = vocabulary.encode(completion.text.rstrip(REPLACEMENT))
        except InputError:  # it has no token for a byte of the text
            encoded = [NO_TOKEN] * len(completion.token_ids)
        matcher = SequenceMatcher(a=encoded, b=completion.token_ids.tolist(), autojunk=False)
        shared += sum(block.size for block in matcher.get_matching_blocks())
        split += len(encoded)
    return shared, split


def _printed(completion: Completion, texts: Texts) -> RowFinding:
    """The texts of ids of a completion against it, without spaces, which some print only inside a
    text.
    """
    if isinstance(texts, RequestRejected):
        evidence = f"the tokenizer refuses an id that was listed: {texts}"
        return agreement("tokens.id", False, evidence)
    readable = [(token, text) for token, text in texts if text is not None]
    wrong = 0
    for token, text in readable:
        raw = completion.token_bytes.get(token)
        wrong += raw is not None and _dense(raw.decode("utf-8", "replace")) != _dense(text)
    begun = completion.token_ids.tolist()[:SAMPLED]
    beginning = "".join(text for token, text in readable if token in begun)
    follows = REPLACEMENT in beginning or _dense(completion.text).startswith(_dense(beginning))
    evidence = (
        f"{len(readable)} ids looked up, {wrong} print other bytes than listed;"
        f" {beginning!r} begins {completion.text[:40]!r}"
    )
    if len(readable) < FEWEST:
        return unchecked("tokens.id", f"only {evidence}")
    return agreement("tokens.id", not wrong and follows, evidence)


def _dense(text: str) -> str:
    return "".join(text.split())


def _bytes(exam: Exam, completions: Sequence[Completion]) -> RowFinding:
    """The bytes of all tokens of a completion make up its text; parts of characters show whether
    they are the tokens' own.
    """
    row = "tokens.bytes_exact"
    if not exam.profile.tokens.bytes_exact:
        return unchecked(row, "bytes are not relied upon")
    checked = 0
    parts = 0
    wrong = 0
    for completion in completions:
        pieces = _pieces(exam, completion)
        if pieces is None:
            continue
        joined = b"".join(pieces).strip()
        text = completion.text.strip().encode()
        checked += len(pieces)
        parts += sum(piece.decode("utf-8", "ignore").encode() != piece for piece in pieces)
        # A character cut off by the end of the completion is printed as a replacement, or not at
        # all.
        wrong += joined != text and not joined.startswith(text.rstrip(REPLACEMENT.encode()))
    if not checked:
        return unchecked(row, "no completion tells the bytes of all its tokens")
    evidence = f"the bytes of {checked} tokens, {parts} of them parts of a character, "
    if wrong:
        return agreement(row, False, f"{evidence}are not those of the text", False)
    evidence += "are those of the text"
    if not parts:
        return unchecked(row, evidence)
    return agreement(row, True, evidence)


def _pieces(exam: Exam, completion: Completion) -> list[bytes] | None:
    """The bytes of each token of a completion; None where one is not known. An end token adds
    none.
    """
    ids = completion.token_ids.tolist()
    if completion.generated is not None and completion.generated > len(ids):
        return None
    if completion.finish_reason == "stop" and ids and ids[-1] not in completion.token_bytes:
        ids = ids[:-1]
    ordinary = exam.session.vocabulary.ordinary if exam.session.vocabulary else {}
    pieces = []
    for token in ids:
        piece = completion.token_bytes.get(token) or ordinary.get(token)
        if piece is None:
            return None
        pieces.append(piece)
    return pieces
