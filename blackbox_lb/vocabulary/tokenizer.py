"""Token identity: a token is an id under a tokenizer, and a tokenizer is identified by its ids for
one fixed text.

The fingerprint needs only a way to tokenise, so the same tokenizer has the same fingerprint behind
llama.cpp, vLLM, or tiktoken.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

PROBE_TEXT = (
    "The quick brown fox jumps over 13 lazy dogs; 1234567890 + 0.5 = 1234567890.5?\n\ndef"
    " f(x):\n\treturn {'key': x ** 2, \"other\": [None, True]}  # comment\n\\frac{a}{b} \\leq"
    " \\sum_{i=1}^{n} x_i^2 $100 50% #tag @name http://example.org/a?b=c&d=e\nÜberraschung, déjà"
    " vu, naïve façade, smørrebrød, żółw, Ελληνικά, Русский текст, עברית, العربية, हिन्दी, ไทย,"
    " 中文字符, 日本語テキスト, 한국어, 😀 👩‍👩‍👧 — “quotes” … ≠ ∞\nAntidisestablishmentarianism"
    " uncharacteristically Capital LETTERS camelCaseName snake_case_name    four spaces\r\n"
)
"""Words, numbers, code, mathematics, scripts and whitespace: tokenizers that differ at all split
some of it differently.

It leaves out the differences between implementations of one tokenizer: llama.cpp and transformers
differ on vulgar fractions.
"""


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """``fingerprint``: see ``fingerprint()``; ``vocabulary_size``: tokens, None where the provider
    does not give it.
    """

    fingerprint: str
    vocabulary_size: int | None


def fingerprint(probe_ids: Sequence[int]) -> str:
    """The fingerprint of the tokenizer that turns ``PROBE_TEXT``, without special tokens, into
    ``probe_ids``.
    """
    digest = hashlib.sha256(",".join(str(token) for token in probe_ids).encode()).hexdigest()
    return f"probe-sha256:{digest[:32]}"
