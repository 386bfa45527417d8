"""Checks of token identity: the ids and bytes in answers against the tokenizer."""

from collections.abc import Sequence
from contextlib import suppress
from difflib import SequenceMatcher

from blackbox_lb.errors import InputError, RequestRejected
from blackbox_lb.extras.doctor.asking.exam import EMOJI, SCRIPTS, WORDS, Exam
from blackbox_lb.extras.doctor.asking.probe import Withheld
from blackbox_lb.types import NO_TOKEN, UNNAMED, Completion, Prompt
from blackbox_lb.vocabulary import Vocabulary

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


async def check_tokenizer(exam: Exam) -> None:
    """The server's own tokenizer answers, and agrees with ``tokenizer``."""
    session = exam.probe.session
    if session.profile.tokenizer.source != "server":
        exam.vocabulary_size = session.vocabulary.size if session.vocabulary else None
        return
    exam.probe.count(2)
    tokenizer = await session.tokenizer()
    exam.vocabulary_size = tokenizer.vocabulary_size or (
        session.vocabulary.size if session.vocabulary else None
    )
    size = ""
    if exam.vocabulary_size:
        size = f", {exam.vocabulary_size:,} tokens"
    exam.findings.agree("tokenizer.tokenize", True, f"{tokenizer.fingerprint}{size}")


async def check_ids(exam: Exam) -> None:
    """Two short completions: listed ids print as the bytes beside them, and together as the
    text.
    """
    vocabulary = exam.probe.session.vocabulary
    kind = (exam.rules.id or exam.profile.tokens.id).partition(" ")[0]
    named = vocabulary if kind not in ("field", "string") else None
    completions = await _samples(exam, scripts=named is not None)
    _bytes(exam, completions)
    if named is not None:
        _named(exam, named, exact=kind == "bytes" and exam.profile.tokens.bytes_exact)
    elif exam.profile.tokenizer.source == "server" or vocabulary is not None:
        await _printed(exam, completions[0])
    else:
        exam.findings.skip(["tokens.id"], "nobody tells what an id prints as")


async def _samples(exam: Exam, scripts: bool) -> list[Completion]:
    """A completion of each prompt that no content filter withholds. Raises Withheld: it withholds
    the first.
    """
    samples = [(await exam.probe.ask(WORDS, max_tokens=TOKENS))[0]]
    more: list[tuple[Prompt, int]] = [(EMOJI, TOKENS)]
    if scripts:
        more.append((SCRIPTS, SCRIPT_TOKENS))
    for prompt, tokens in more:
        with suppress(Withheld):
            samples += await exam.probe.ask(prompt, max_tokens=tokens)
    return samples


def _named(exam: Exam, vocabulary: Vocabulary, exact: bool) -> None:
    """Check a vocabulary that gives the ids. It must have a token for each listed text and split
    the text as the model did. With the bytes of every token (``exact``) it must have each sampled
    token too.
    """
    completions = list(exam.completions())
    ids = [
        token
        for completion in completions
        for token in completion.top_ids.ravel().tolist()
        if token != NO_TOKEN
    ]
    unnamed = sum(token == UNNAMED for token in ids)
    evidence = f"{unnamed} of {len(ids)} listed tokens have no id under {vocabulary.name}"
    exam.trusted = unnamed <= STRANGE * len(ids)
    if exact:
        sampled = [_words(completion) for completion in completions]
        lost = sum(tokens.count(UNNAMED) for tokens in sampled)
        total = sum(map(len, sampled))
        listed = [
            completion
            for completion in completions
            if 1 < len(completion.token_ids) >= completion.n_tokens - 1
        ]  # an end token may be missing
        shared, split = _shared(listed, vocabulary)
        evidence += (
            f", {lost} of {total} sampled ones; {shared} of {split} tokens in its own splitting of"
            " the texts were sampled"
        )
        exam.trusted = exam.trusted and lost <= LOST and shared >= ALIKE * split
    exam.findings.agree("tokens.id", exam.trusted, evidence)


def _words(completion: Completion) -> list[int]:
    """The sampled ids, without an end token, which may have none."""
    ids: list[int] = completion.token_ids.tolist()
    if completion.finish_reason == "stop":
        return ids[:-1]
    return ids


def _shared(completions: Sequence[Completion], vocabulary: Vocabulary) -> tuple[int, int]:
    """How many tokens of the vocabulary's own splitting of the texts were sampled, in order, and
    how many it has.
    """
    shared = 0
    split = 0
    for completion in completions:
        try:
            encoded = vocabulary.encode(completion.text.rstrip("\N{REPLACEMENT CHARACTER}"))
        except InputError:  # it has no token for a byte of the text
            encoded = [NO_TOKEN] * len(completion.token_ids)
        same = SequenceMatcher(
            a=encoded, b=completion.token_ids.tolist(), autojunk=False
        ).get_matching_blocks()
        shared += sum(block.size for block in same)
        split += len(encoded)
    return shared, split


async def _printed(exam: Exam, completion: Completion) -> None:
    """What the tokenizer prints for the first ids of a completion, without spaces, which some print
    only inside a text.
    """
    ids = _lookups(completion)
    try:
        texts = [await exam.text_of(token) for token in ids]
    except RequestRejected as refusal:
        exam.trusted = False
        return exam.findings.agree(
            "tokens.id", False, f"the tokenizer refuses an id that was listed: {refusal}"
        )
    looked_up = [(token, text) for token, text in zip(ids, texts, strict=True) if text is not None]
    wrong = [token for token, text in looked_up if _differs(completion, token, text)]
    begun = set(completion.token_ids.tolist()[:SAMPLED])
    beginning = "".join(text for token, text in looked_up if token in begun)
    follows = "\N{REPLACEMENT CHARACTER}" in beginning or _dense(completion.text).startswith(
        _dense(beginning)
    )
    evidence = (
        f"{len(looked_up)} ids looked up, {len(wrong)} print other bytes than listed;"
        f" {beginning!r} begins {completion.text[:40]!r}"
    )
    if len(looked_up) < FEWEST:
        return exam.findings.skip(["tokens.id"], f"only {evidence}")
    exam.trusted = not wrong and follows
    return exam.findings.agree("tokens.id", exam.trusted, evidence)


def _lookups(completion: Completion) -> list[int]:
    """The first sampled ids, and some listed ones with known bytes. An end token has no text and
    is left out.
    """
    ids = completion.token_ids.tolist()
    sampled = ids
    if completion.finish_reason == "stop":
        sampled = ids[:-1]
    unsampled = [token for token in completion.token_bytes if token not in sampled]
    return [*sampled[:SAMPLED], *unsampled][:LOOKED_UP]


def _differs(completion: Completion, token: int, text: str) -> bool:
    raw = completion.token_bytes.get(token)
    return raw is not None and _dense(raw.decode("utf-8", "replace")) != _dense(text)


def _dense(text: str) -> str:
    return "".join(text.split())


def _bytes(exam: Exam, completions: list[Completion]) -> None:
    """The bytes of all tokens of a completion make up its text; parts of characters show whether
    they are the tokens' own.
    """
    row = "tokens.bytes_exact"
    if not exam.profile.tokens.bytes_exact:
        return exam.findings.skip([row], "bytes are not relied upon")
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
        parts += sum(_is_part(piece) for piece in pieces)
        # A character cut off by the end of the completion is printed as a replacement, or not at
        # all.
        wrong += joined != text and not joined.startswith(
            text.rstrip("\N{REPLACEMENT CHARACTER}".encode())
        )
    if not checked:
        return exam.findings.skip([row], "no completion tells the bytes of all its tokens")
    evidence = f"the bytes of {checked} tokens, {parts} of them parts of a character, "
    if wrong:
        return exam.findings.agree(row, False, f"{evidence}are not those of the text", False)
    if not parts:
        return exam.findings.skip([row], f"{evidence}are those of the text")
    return exam.findings.agree(row, True, f"{evidence}are those of the text")


def _pieces(exam: Exam, completion: Completion) -> list[bytes] | None:
    """The bytes of each token of a completion; None where one is not known. An end token adds
    none.
    """
    vocabulary = exam.probe.session.vocabulary
    ids = completion.token_ids.tolist()
    ended = completion.finish_reason == "stop" and ids and ids[-1] not in completion.token_bytes
    complete = completion.generated is None or completion.generated <= len(ids)
    if ended:
        ids = ids[:-1]
    pieces = [
        completion.token_bytes.get(token)
        or (vocabulary.ordinary.get(token) if vocabulary else None)
        for token in ids
    ]
    if complete and None not in pieces:
        return [piece for piece in pieces if piece]
    return None


def _is_part(piece: bytes) -> bool:
    try:
        piece.decode()
    except UnicodeDecodeError:
        return True
    return False
