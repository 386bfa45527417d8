"""The bias file: what was learned, under which tokenizer, from what, and whether it was shown to help.

A bias is one number a token id, in nats at temperature 1, added to the logits at every step (the paper, section
"Setting"): ``softmax((logits + bias) / temperature)``. A token without an entry has bias 0. Reading or sending a bias
needs neither numpy nor an estimator.
"""

from __future__ import annotations

import builtins
import json
import os
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import (
    AllowInfNan,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    FailFast,
    Field,
    Strict,
    ValidationError,
    field_validator,
    model_validator,
)

from blackbox_lb._version import __version__
from blackbox_lb.errors import BiasError, TokenizerMismatch
from blackbox_lb.safety.atomic_file import write_whole
from blackbox_lb.safety.printable import _UNSAFE, printable
from blackbox_lb.safety.untrusted import parse_json, read_bounded

__all__ = [
    "FORMAT",
    "MAX_BYTES",
    "MAX_ENTRIES",
    "VERSION",
    "Bias",
    "Censored",
    "Compiled",
    "Entry",
    "ExactEffects",
    "HeldOutGain",
    "Learned",
    "RecordedFinding",
    "SamplingRecord",
    "Scalar",
    "Verdict",
]

FORMAT: Literal["blackbox-lb/bias"] = "blackbox-lb/bias"
VERSION: Literal[1] = 1
MAX_BYTES = 64 * 2**20
MAX_ENTRIES = 1_000_000

# Numbers are strict: a quoted "2.9" or a true in a hand-edited file is an error, not a guess.
Finite: TypeAlias = Annotated[float, Strict(), AllowInfNan(False)]
Count: TypeAlias = Annotated[int, Strict(), Field(ge=0)]
Share: TypeAlias = Annotated[float, Strict(), Field(ge=0.0, le=1.0)]
Flag: TypeAlias = Annotated[bool, Strict()]
TokenId: TypeAlias = Annotated[int, Strict(), Field(ge=0, le=2**31 - 1)]
Name: TypeAlias = Annotated[str, Field(min_length=1)]
Scalar: TypeAlias = Flag | Annotated[int, Strict()] | Finite | str | None


def _json(value: object) -> str:
    """One line of JSON, readable characters as themselves, unsafe ones as ``\\uXXXX``."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if line.isascii() and "\x7f" not in line:
        return line
    return "".join(json.dumps(c)[1:-1] if unicodedata.category(c) in _UNSAFE else c for c in line)


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class Entry(_Model):
    """One biased token: its id, its bytes in hexadecimal, its readable text, its bias in nats.

    ``error`` is the standard error of the bias in nats, None where the estimator has none; ``seen`` counts how often the token was
    sampled in training.
    """

    id: TokenId
    bytes: Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")] | None = None
    text: str | None = None
    bias: Finite
    error: Annotated[Finite, Field(ge=0)] | None = None
    seen: Count = 0

    @property
    def readable(self) -> str:
        """The token for a person to read, safe to print: its text, else its bytes, else its id."""
        if self.text:
            return printable(self.text)
        return f"<bytes {self.bytes}>" if self.bytes else f"<token {self.id}>"


class SamplingRecord(_Model):
    """How the training completions were drawn, at temperature 1 from the untruncated distribution; both limits count tokens."""

    max_tokens: Annotated[int, Strict(), Field(ge=1)]
    top_logprobs: Count
    endpoint: Literal["chat", "completions", "responses"]


class Censored(_Model):
    """What the provider kept back of the tokens that were learned from.

    Of ``positions`` sampled tokens, ``outside`` were missing from the list of the likeliest, and ``bounded`` came without a
    logprob, so that only an upper bound is known, the least listed one. ``mass``: mean unlisted probability of a position, which
    is the chance that a sampled token is kept back. ``unobserved``: whether the estimator took the bound for the bounded ones or
    dropped them; None for an estimator that never reads them.
    """

    positions: Count
    outside: Count
    bounded: Count
    mass: Share
    unobserved: Literal["bound", "drop"] | None = None

    @model_validator(mode="after")
    def _of_positions(self) -> Censored:
        if max(self.outside, self.bounded) > self.positions:
            raise ValueError(
                f"censoring counts {self.outside} tokens outside and {self.bounded} bounded of only {self.positions} positions"
            )
        return self

    def sentence(self, listed: int | None = None) -> str:
        """All of it for a person to read; ``listed``: how many alternatives a position were asked for."""
        share = self.outside / self.positions if self.positions else 0.0
        done = {None: "", "bound": ", which is taken for it", "drop": "; they are left out"}[self.unobserved]
        missing = f"{self.bounded:,} have no logprob, only a bound (the least listed one){done}"
        return (
            f"{share:.1%} of sampled tokens ({self.outside:,} of {self.positions:,}) were outside the "
            f"{'lists' if listed is None else f'listed {listed}'}; {missing if self.bounded else 'none is without a logprob'}; "
            f"{self.mass:.1%} of the probability mass is unlisted"
        )


class ExactEffects(_Model):
    """What whole next-token distributions at ``positions`` of the training completions say of the bias: means, nats a token.

    ``kl_lost_nats_per_token`` and ``kept_share`` are as in ``Compiled``.
    ``log_normaliser_error``: root mean square of what the lists and their tail got wrong there, in nats.
    """

    positions: Count
    kl_nats_per_token: Finite
    kl_lost_nats_per_token: Finite
    kept_share: Finite
    log_normaliser_error: Finite


class HeldOutGain(_Model):
    """Log-likelihood over the base model's of completions that were held out, in nats a weighted token, with so many entries."""

    entries: Count
    gain: Finite
    error: Finite


class Compiled(_Model):
    """What the sparse compile kept and lost.

    ``entries_limit``: most entries allowed, None for no limit. ``kl_lost_nats_per_token``: KL between the learned and the
    compiled policy on logged prefixes. ``kept_share``: 1 less that loss as a share of the KL between the learned policy and
    the base. Entries counted: ``clipped`` lie on the limit of the range, ``rounded`` became 0 as whole numbers, ``dropped``
    were learned and are not listed. ``exact``: the same without a model of what lists leave out, None where that was not asked for.
    ``held_out``: what the number of entries was chosen by, empty where it was given.
    """

    entries_limit: Count | None = None
    integers: Flag = False
    kl_lost_nats_per_token: Finite | None = None
    kept_share: Share | None = None
    clipped: Count = 0
    rounded: Count = 0
    dropped: Count = 0
    exact: ExactEffects | None = None
    held_out: tuple[HeldOutGain, ...] = ()

    @property
    def sentence(self) -> str:
        """All of it for a person to read, but for ``exact``."""
        known = (
            (self.kept_share, "{:.1%} of the estimated gain kept"),
            (self.kl_lost_nats_per_token, "{:.5f} nats of KL lost a token"),
        )
        told = [text.format(value) for value, text in known if value is not None]
        told += [f"{self.clipped:,} clipped", f"{self.rounded:,} rounded to 0", f"{self.dropped:,} dropped"]
        rows = ", ".join(f"{row.entries:,}: {row.gain:.4f} ± {row.error:.4f}" for row in self.held_out)
        return ", ".join(told) + (f"; held-out gain by entries, in nats a weighted token: {rows}" if rows else "")


class Learned(_Model):
    """The learned bias over the whole vocabulary, before the compile, centred to mean 0 (the paper, "Logit-bias statistics").

    ``sampled_fraction`` of the vocabulary was sampled in training; ``sigma``, ``low`` and ``high`` are the standard deviation, the
    least and the largest value in nats; ``selected_fraction`` of the values are at least five times their median size.
    ``reliability``: what a bias of as many other prompts would correlate with this one, from two halves of the prompts; None where
    a half learned nothing.
    """

    sampled_fraction: Share
    sigma: Finite
    low: Finite
    high: Finite
    selected_fraction: Share
    reliability: Finite | None = None


class RecordedFinding(_Model):
    """One thing that was checked. ``word`` FAIL is a reason why the bias may not help; ``remedy`` is empty where there is none."""

    code: Name
    word: Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT CHECKED"]
    sentence: Name
    remedy: str = ""


class Verdict(_Model):
    """One metric at one sampling setting, base against biased, on fresh completions of unseen prompts.

    ``difference`` is biased - base in the metric's own unit, ``low`` and ``high`` its 95 % interval, ``p`` how likely so large a
    difference is by chance, adjusted for the rows judged beside it; ``n_base`` and ``n_biased`` count completions.
    """

    setting: Annotated[str, Field(pattern=r"^(greedy|temperature \d+(\.\d+)?)$")]
    metric: Name
    base: Finite
    biased: Finite
    difference: Finite
    low: Finite
    high: Finite
    p: Share
    n_prompts: Count
    n_base: Count
    n_biased: Count
    better: Literal["higher", "lower"]
    verdict: Literal["HELPS", "NO EVIDENCE", "HURTS"]

    @model_validator(mode="after")
    def _ordered(self) -> Verdict:
        if self.low > self.high:
            raise ValueError(
                f"the interval of {self.metric} runs from {self.low} down to {self.high}; low must not exceed high"
            )
        return self


class Bias(_Model):
    """A learned bias with everything needed to apply, repeat and doubt it. Raises BiasError where a field is wrong.

    ``tokenizer`` is the fingerprint of the vocabulary that the ids belong to; ``data_hash`` the SHA-256 of the task's
    examples in their splits; ``rollouts`` and ``tokens`` count what was learned from; ``settings`` are the estimator's
    (tau, l2, alpha, positions ...). No ``verdict`` means UNVERIFIED.
    """

    format: Literal["blackbox-lb/bias"] = FORMAT
    version: Literal[1] = VERSION
    provider: Name
    model: Name
    tokenizer: Name
    vocab_size: Annotated[int, Strict(), Field(ge=1)] | None = None
    task: str | None = None
    reward: Name
    estimator: Name
    settings: dict[str, Scalar] = Field(default_factory=dict)
    data_hash: str | None = None
    rollouts: Count = 0
    tokens: Count = 0
    sampling: SamplingRecord | None = None
    created: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    blackbox_lb: Name = __version__
    censoring: Censored | None = None
    compiled: Compiled | None = None
    learned: Learned | None = None
    findings: tuple[RecordedFinding, ...] = ()
    verdict: tuple[Verdict, ...] = ()
    entries: Annotated[tuple[Entry, ...], FailFast(), Field(max_length=MAX_ENTRIES)]

    if not TYPE_CHECKING:  # A declared __init__ would hide the typed one that the mypy plugin makes from the fields.

        def __init__(self, /, **fields: object) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise BiasError(_sentence(error)) from None

    @field_validator("created")
    @classmethod
    def _utc(cls, created: datetime) -> datetime:
        return created.astimezone(UTC)

    @field_validator("entries")
    @classmethod
    def _sorted_unique(cls, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        ordered = tuple(sorted(entries, key=attrgetter("id")))
        for entry, following in pairwise(ordered):
            if entry.id == following.id:
                raise ValueError(
                    f"token id {entry.id} is listed twice ({entry.bias} and {following.bias}); keep one entry a token"
                )
        return ordered

    @model_validator(mode="after")
    def _inside_vocabulary(self) -> Bias:
        if self.vocab_size is not None and self.entries and self.entries[-1].id >= self.vocab_size:
            raise ValueError(f"token id {self.entries[-1].id} is outside the vocabulary of {self.vocab_size} tokens")
        return self

    @property
    def logit_bias(self) -> dict[int, float]:
        """Token id -> nats, as the request field ``logit_bias`` takes it; sorted by id."""
        return {entry.id: entry.bias for entry in self.entries}

    @property
    def status(self) -> str:
        """UNVERIFIED, or which metric HELPS, shows NO EVIDENCE or HURTS at which setting."""
        groups: dict[str, list[str]] = {"HELPS": [], "NO EVIDENCE": [], "HURTS": []}
        for row in self.verdict:
            groups[row.verdict].append(f"{row.metric} ({row.setting})")
        return "; ".join(f"{name}: {', '.join(rows)}" for name, rows in groups.items() if rows) or "UNVERIFIED"

    def verified(self, verdict: Iterable[Verdict]) -> Bias:
        """The same bias with this verdict; what was found in the test before goes, all other findings stay."""
        findings = tuple(each for each in self.findings if each.code != "test")
        return Bias(**{**dict(self), "verdict": tuple(verdict), "findings": findings})

    def check_tokenizer(self, fingerprint: str) -> None:
        """Raises TokenizerMismatch unless the bias was learned under the tokenizer with this fingerprint."""
        if fingerprint != self.tokenizer:
            raise TokenizerMismatch(
                f"this bias was learned under tokenizer {printable(self.tokenizer)} (model {printable(self.model)}), "
                f"but the server's is {printable(fingerprint)}; its token ids mean other tokens there: "
                "use the model it was learned on, or fit a new bias"
            )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Bias:
        """Read a bias file.

        Raises BiasError: missing, not JSON, not a bias file, a newer version, a bad field, above 64 MiB or 1,000,000 entries.
        """
        path = Path(path)
        document = _document(path, _read(path))
        try:
            return cls(**document)
        except BiasError as error:
            remedy = "" if "; " in str(error) else "; correct it, or restore the file as `blb fit` wrote it"
            raise BiasError(f"{path}: {error}{remedy}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file in one step: a reader sees the old file or the new one, never half of it. Raises BiasError."""
        path = Path(path)
        content = "".join(self._lines()).encode()
        if len(content) > MAX_BYTES:
            raise BiasError(
                f"{path}: the bias would take {len(content):,} bytes, the limit is {MAX_BYTES:,}; compile it to fewer entries"
            )
        try:
            write_whole(path, content)
        except OSError as error:
            raise BiasError(
                f"{path}: cannot be written ({error.strerror or error}); choose a writable folder"
            ) from None

    def _lines(self) -> Iterator[str]:
        document = self.model_dump(mode="json")
        document["settings"] = dict(sorted(document["settings"].items()))
        last = len(document) - 1
        yield "{\n"
        for place, (name, value) in enumerate(document.items()):
            yield f"  {_json(name)}: {_block(value)}{',' if place < last else ''}\n"
        yield "}\n"


def _block(value: Any) -> str:
    """A list or an object with one member a line, so that a diff shows the tokens that changed; anything else on its line."""
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"    {_json(row)}" for row in value) + "\n  ]"
    if isinstance(value, dict) and value:
        return "{\n" + ",\n".join(f"    {_json(name)}: {_json(row)}" for name, row in value.items()) + "\n  }"
    return _json(value)


def _read(path: Path) -> builtins.bytes:
    try:
        return read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        raise BiasError(f"{path}: no such bias file; `blb fit` writes one") from None
    except OSError as error:
        reason = error.strerror or error
        raise BiasError(f"{path}: cannot be read ({reason}); give the path of a bias file") from None
    except ValueError as error:
        if "\0" in str(path):
            raise BiasError(f"{path}: cannot be read ({error}); give the path of a bias file") from None
        raise BiasError(
            f"{path}: larger than the limit of {MAX_BYTES:,} bytes for a bias file; compile the bias to fewer entries"
        ) from None


def _document(path: Path, content: builtins.bytes) -> dict[str, Any]:
    """The parsed file, known to be a bias file of a version that this package reads."""
    try:
        document = parse_json(content)
    except ValueError as error:
        raise BiasError(f"{path}: not JSON in UTF-8 ({error}); give a bias file as `blb fit` writes it") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BiasError(
            f'{path}: JSON, but not a bias file (its "format" is not "{FORMAT}"); give a file that `blb fit` wrote'
        )
    version = document.get("version")
    if type(version) is not int or version < 1:
        raise BiasError(
            f'{path}: "version" is {_shown(version)}, not a positive integer; restore the file as it was written'
        )
    if version > VERSION:
        raise BiasError(
            f"{path}: bias format version {version}, but blackbox-lb {__version__} reads {VERSION}; upgrade blackbox-lb"
        )
    return document


def _sentence(error: ValidationError) -> str:
    """The first finding as one sentence that names the field and its value, and how many more there are."""
    found = error.errors(include_url=False)
    first = found[0]
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]).lstrip(".")
    if first["type"] == "missing":
        message = f"field {field} is missing"
    elif first["type"] == "extra_forbidden":
        message = f"unknown field {printable(field)}"
    elif first["type"] == "value_error":
        message = str(first["ctx"]["error"])
    else:
        message = f"field {printable(field)} is {_shown(first['input'])}: {first['msg']}"
    return message + (f" (and {len(found) - 1} more)" if len(found) > 1 else "")


def _shown(value: object) -> str:
    if isinstance(value, list | tuple | dict):
        return f"{type(value).__name__} of {len(value):,}"
    text = f'"{printable(value)}"' if isinstance(value, str) else printable(repr(value))
    return text if len(text) <= 80 else text[:77] + "..."
