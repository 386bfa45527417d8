"""The bias file: a learned bias with its tokenizer, its training data and its verdict.

A bias is one number a token id, in nats at temperature 1, added to the logits at every step (the
paper, section "Setting"): ``softmax((logits + bias) / temperature)``. A token without an entry has
bias 0. Reading or sending a bias needs neither numpy nor an estimator.
"""

from __future__ import annotations

import builtins
import json
import logging
import os
import unicodedata
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AwareDatetime,
    FailFast,
    Field,
    Strict,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from blackbox_lb._version import __version__
from blackbox_lb.bias.decisions import MendedQuestion
from blackbox_lb.bias.features import Scope
from blackbox_lb.bias.operating import OperatingCurve, Promise
from blackbox_lb.bias.phases import Boundary, Prefix
from blackbox_lb.bias.records import (
    Calibration,
    Compiled,
    Entry,
    PromptRecord,
    SamplingRecord,
    Verdict,
    headline,
)
from blackbox_lb.bias.request_bias import (
    AnyFeature,
    SentRange,
    check_sizes,
    features_hash,
    phases_of_features,
    to_request_bias,
)
from blackbox_lb.errors import BiasError, InputError, TokenizerMismatch
from blackbox_lb.records import Censoring, Count, Finding, Learned, Name, Row, Scalar
from blackbox_lb.safety.documents import first_problem, value_text
from blackbox_lb.safety.files import is_folder, write_whole
from blackbox_lb.safety.printable import UNSAFE, counted, printable
from blackbox_lb.safety.untrusted import parse_json, read_bounded

if TYPE_CHECKING:
    from blackbox_lb.types import Prompt


FORMAT: Literal["blackbox-lb/bias"] = "blackbox-lb/bias"
VERSION: Literal[4] = 4
"""What is written, and all that is read."""
RUN_FILE = "bias.json"
"""The bias file of a run's folder."""
MAX_BYTES = 64 * 2**20
MAX_ENTRIES = 1_000_000
MAX_VERDICT_ROWS = 1_000
MAX_PHRASES = 20_000
MAX_PHRASE = 10_000
"""Characters of one."""
OPTIONAL = ("prompts", "sent", "features", "operating", "calibration", "decisions", "phrases")
"""Fields that a file holds only where there is something in them."""
DIGITS = 4
"""Decimals of a nat that a shifted entry keeps."""
START = Prefix()
"""Nothing of an answer."""

log = logging.getLogger(__name__)


def _json(value: object) -> str:
    """One line of JSON, readable characters as themselves, unsafe ones as ``\\uXXXX``."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if line.isascii() and "\x7f" not in line:
        return line
    return "".join(json.dumps(c)[1:-1] if unicodedata.category(c) in UNSAFE else c for c in line)


class Bias(Row):
    """A learned bias with all it takes to apply, repeat and doubt it. Raises BiasError where a
    field is wrong.

    tokenizer: fingerprint of the vocabulary that the ids belong to. vocab_size: the number of its
    tokens. data_hash: SHA-256 of the
    task's examples in their splits. rollouts, tokens: counts of the training data. settings: the
    estimator's (tau, l2, alpha, positions ...). prompts: None where they were sent as the data have
    them. verdict: none means UNVERIFIED. operating: the
    points of a decision for or against one label, which ``at_point`` picks from. calibration: the
    probabilities of labels. features: what the bias depends on beside its entries. decisions:
    questions whose probabilities are mended where they are read, since no request takes that. sent:
    the range of a request's values, where there are features. phrases: words, phrases and patterns
    that the sender keeps out of an answer by stepping back, as lines of a list (``PhraseList``).
    """

    format: Literal["blackbox-lb/bias"] = FORMAT
    version: Literal[4] = VERSION
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
    prompts: PromptRecord | None = None
    created: AwareDatetime = Field(default_factory=lambda: datetime.now(UTC).replace(microsecond=0))
    blackbox_lb: Name = __version__
    censoring: Censoring | None = None
    compiled: Compiled | None = None
    learned: Learned | None = None
    findings: tuple[Finding, ...] = ()
    verdict: Annotated[tuple[Verdict, ...], FailFast(), Field(max_length=MAX_VERDICT_ROWS)] = ()
    sent: SentRange | None = None
    features: tuple[AnyFeature, ...] = ()
    operating: OperatingCurve | None = None
    calibration: Calibration | None = None
    decisions: tuple[MendedQuestion, ...] = ()
    phrases: Annotated[
        tuple[Annotated[str, Field(max_length=MAX_PHRASE)], ...],
        FailFast(),
        Field(max_length=MAX_PHRASES),
    ] = ()
    entries: Annotated[tuple[Entry, ...], FailFast(), Field(max_length=MAX_ENTRIES)]

    if (
        not TYPE_CHECKING
    ):  # A declared __init__ would hide the typed one that the mypy plugin makes from the fields.

        def __init__(self, /, **fields: object) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise BiasError(first_problem(error)) from None

    @field_validator("created")
    @classmethod
    def _utc(cls, created: datetime) -> datetime:
        try:
            return created.astimezone(UTC)
        except OverflowError:
            raise ValueError(
                f"field created is {created.isoformat()}, which is no date in UTC"
            ) from None

    @field_validator("entries")
    @classmethod
    def _sorted_unique(cls, entries: tuple[Entry, ...], info: ValidationInfo) -> tuple[Entry, ...]:
        ordered = tuple(sorted(entries, key=attrgetter("id")))
        if info.data.get("features") and ordered != entries:
            raise ValueError("the values of features go with entries in the order of their ids")
        for entry, following in pairwise(ordered):
            if entry.id == following.id:
                raise ValueError(
                    f"token id {entry.id} is listed twice ({entry.bias} and {following.bias}); keep"
                    " one entry a token"
                )
        return ordered

    @field_validator("phrases")
    @classmethod
    def _are_phrases(cls, phrases: tuple[str, ...]) -> tuple[str, ...]:
        if phrases:
            from blackbox_lb.bias.phrases import PhraseList

            try:
                PhraseList.of_entries(phrases)
            except InputError as error:
                raise ValueError(str(error)) from None
        return phrases

    @model_validator(mode="after")
    def _inside_vocabulary(self) -> Bias:
        if self.vocab_size is not None and self.entries and self.entries[-1].id >= self.vocab_size:
            raise ValueError(
                f"token id {self.entries[-1].id} is outside the vocabulary of {self.vocab_size}"
                " tokens"
            )
        return self

    @model_validator(mode="after")
    def _fit_together(self) -> Bias:
        if bool(self.features) != (self.sent is not None):
            raise ValueError("features and the range ``sent`` go together; give both, or neither")
        specs = [feature.spec for feature in self.features]
        if len(set(specs)) < len(specs):
            raise ValueError("a feature is listed twice; keep one")
        check_sizes(len(self.entries), self.features)
        phases_of_features(self.features)
        return self

    def __repr__(self) -> str:
        """One line: a notebook's cell or a traceback is no place for hundreds of entries."""
        phrases = ""
        if self.phrases:
            phrases = f" {counted(len(self.phrases), 'phrase')},"
        return (
            f"<Bias for {printable(self.model)}: {len(self.entries):,} entries,{phrases}"
            f" reward {printable(self.reward)}, {self.status}>"
        )

    __str__ = __repr__

    @property
    def logit_bias(self) -> dict[int, float]:
        """Token id -> nats, as the request field ``logit_bias`` takes it; sorted by id. Where there
        are features, what holds without any of them.

        Raises BiasError: see ``check_moves_tokens``.
        """
        self.check_moves_tokens()
        return {entry.id: entry.bias for entry in self.entries}

    @property
    def values(self) -> tuple[tuple[float, ...], ...]:
        """(1 + f, s) nats: those of the entries, then the vectors of all features."""
        rows = [vector.values for feature in self.features for vector in feature.vectors]
        return (tuple(entry.bias for entry in self.entries), *rows)

    @property
    def scopes(self) -> frozenset[Scope]:
        """What the bias depends on beside its entries: the prompt, the answer so far, or nothing of
        both.
        """
        return frozenset(feature.scope for feature in self.features)

    @property
    def depends_on(self) -> str:
        """The features as they are given on the command line, "" where there are none."""
        return ", ".join(feature.spec for feature in self.features)

    def at(self, prompt: Prompt, prefix: Prefix = START) -> dict[int, float]:
        """Token id -> nats of one request.

        Args:
            prompt: of the request.
            prefix: what came of the answer so far.

        Raises:
            BiasError: an embedding model is another than the one it was learned with.
        """
        sent = to_request_bias(self)
        return sent.at(prompt, sent.phases.of(prefix))

    def next_boundary(self, prefix: Prefix = START) -> Boundary:
        """Where the bias may change next in an answer, which is where a new request begins."""
        phases = phases_of_features(self.features)
        return phases.boundary(phases.after(0, prefix.text), prefix.tokens)

    @property
    def status(self) -> str:
        """The headline of the verdict in one line; UNVERIFIED without one."""
        word, sentence = self.headline
        return f"{word}: {sentence}" if sentence else word

    @property
    def headline(self) -> tuple[str, str]:
        """The word and the sentence of the verdict."""
        if self.decisions and not self.entries:
            return headline(self.verdict, "without mending")
        return headline(self.verdict)

    @property
    def prompted_endpoint(self) -> Literal["chat", "completions"]:
        """The endpoint of the requests that the bias is for: "completions" where it was learned on
        continuations of a text.
        """
        if self.sampling is not None and self.sampling.endpoint == "completions":
            return "completions"
        return "chat"

    @property
    def decides_alone(self) -> bool:
        """Whether the file mends decisions, and nothing in it is about completions."""
        return bool(self.decisions) and not self.entries and not self.features and not self.phrases

    def check_moves_tokens(self) -> None:
        """Raise BiasError where the file mends decisions, which no request takes, and nothing
        else.
        """
        if self.decides_alone:
            raise BiasError(
                "this bias file mends decisions and holds no logit bias; decide with Run.decide, or"
                " serve it with ``blb proxy --decide``"
            )

    def check_scopes(
        self, supported: Iterable[Scope], user: str, *, takes_phrases: bool = False
    ) -> None:
        """Check that who sends one vector can send this bias.

        Args:
            supported: what the bias may depend on beside its entries.
            user: who sends it, the beginning of a sentence.
            takes_phrases: whether phrases are kept out there, too.

        Raises:
            BiasError: the bias depends on more, or the file keeps phrases out and holds no vector.
                Of phrases beside a vector a warning says that they are not kept out.
        """
        self.check_moves_tokens()
        if self.phrases and not takes_phrases:
            count = counted(len(self.phrases), "phrase")
            if not self.entries:
                raise BiasError(
                    f"{user} takes a vector, and this file holds none: it keeps {count} out, which"
                    " only apply() and blb proxy do; send it with one of them"
                )
            log.warning(
                "this file also keeps %s out, which only apply() and blb proxy do; %s sends the"
                " vector alone",
                count,
                user,
            )
        if "prefix" in self.scopes.difference(supported):
            raise BiasError(
                f"{user} takes one vector for all positions, and this bias changes within an answer"
                f" ({printable(self.depends_on)}); send it with apply() or blb proxy, serve it"
                " inside vLLM (docs/serving.md), or learn one without ``phases``"
            )
        if "prompt" in self.scopes.difference(supported):
            raise BiasError(
                f"{user} takes a bias that is the same for all prompts, and this one depends on"
                f" {printable(self.depends_on)}; send it with apply(), blb proxy or"
                " logit_bias(bias, messages=...), or learn one without ``depends_on``"
            )

    def at_point(
        self,
        *,
        precision: float | None = None,
        recall: float | None = None,
        rate: float | None = None,
    ) -> Bias:
        """This bias at another operating point of its decision. It is UNVERIFIED: its promise rests
        on the prompts of the fit, and no completion with it was judged.

        Args:
            precision: the least share of right decisions for the label; the largest recall wins.
            recall: the least share of the label's prompts to be decided for it; the largest
                precision wins.
            rate: the largest share of all prompts to be decided for it.

        Raises:
            BiasError: the file holds no points, or none keeps the promise with 95 % confidence.
            InputError: not exactly one of the three, or no share between 0 and 1.
        """
        named = {"precision": precision, "recall": recall, "rate": rate}
        promises = [Promise.of(name, level) for name, level in named.items() if level is not None]
        if len(promises) != 1:
            raise InputError(
                f"an operating point is one of precision, recall and rate, and {len(promises)} are"
                " given; give one, as in bias.at_point(precision=.9)"
            )
        return self.at_promise(promises[0])

    def at_promise(self, promise: Promise) -> Bias:
        """See ``at_point``."""
        curve = self.operating
        if curve is None:
            raise BiasError(
                "this bias holds no operating points; learn one with ``objective``, as in"
                " ``objective=recall@precision=.95``, and ``positive``, the label that it decides"
                " for"
            )
        point = curve.at(promise.measure, promise.level)
        moved = point.shift - curve.shift
        entries = {entry.id: entry for entry in self.entries}
        for token in curve.token_ids:
            entry = entries.get(token, Entry(id=token, bias=0.0))
            entries[token] = entry.replacing(bias=round(entry.bias + moved, DIGITS))
        promised = curve.replacing(shift=point.shift, goal=promise.goal, checked=None)
        return self.verified(()).replacing(entries=tuple(entries.values()), operating=promised)

    def verified(self, verdict: Iterable[Verdict]) -> Bias:
        """Return the same bias with this verdict: earlier findings of a test are removed, all other
        findings stay.
        """
        findings = tuple(finding for finding in self.findings if finding.code != "test")
        return self.replacing(verdict=tuple(verdict), findings=findings)

    def check_tokenizer(self, fingerprint: str) -> None:
        """Raise TokenizerMismatch unless the bias was learned under the tokenizer with this
        fingerprint.
        """
        if fingerprint != self.tokenizer:
            raise TokenizerMismatch(
                f"this bias was learned under tokenizer {printable(self.tokenizer)} (model"
                f" {printable(self.model)}), but the server's is {printable(fingerprint)}; its"
                " token ids mean other tokens there: use the model it was learned on, or fit a new"
                " bias"
            )

    @classmethod
    def of(cls, bias: Bias | str | os.PathLike[str]) -> Bias:
        """The bias itself, or that of a file; see ``load``."""
        if isinstance(bias, Bias):
            return bias
        return cls.load(bias)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Bias:
        """Read a bias file; of a folder, the bias.json in it.

        Raises BiasError: missing, not JSON, not a bias file, another version, a bad field, above 64
        MiB or 1,000,000 entries.
        """
        if not isinstance(path, str | os.PathLike):
            raise BiasError(f"``path`` is a {type(path).__name__}; give the path of a bias file")
        path = bias_path(path)
        document = _document(path, _read(path))
        try:
            fingerprint = document.pop("fingerprint", "")
            bias = cls(**document)
            if fingerprint and fingerprint != features_hash(bias.features, bias.sent):
                raise BiasError(
                    "its features are not those that were learned: the fingerprint differs; restore"
                    " the file, or fit again"
                )
            return bias
        except BiasError as error:
            if "; " in str(error):
                remedy = ""
            else:
                remedy = "; correct it, or restore the file as `blb fit` wrote it"
            raise BiasError(f"{path}: {error}{remedy}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file in one step: a reader sees the old file or the new one, never half of it.
        Raises BiasError.
        """
        path = Path(path)
        content = "".join(self._lines()).encode()
        if len(content) > MAX_BYTES:
            raise BiasError(
                f"{path}: the bias would take {len(content):,} bytes, the limit is {MAX_BYTES:,};"
                " compile it to fewer entries"
            )
        try:
            write_whole(path, content)
        except OSError as error:
            raise BiasError(
                f"{path}: cannot be written ({error.strerror or error}); choose a writable folder"
            ) from None

    def _lines(self) -> Iterator[str]:
        document = self.model_dump(
            mode="json", exclude={name for name in OPTIONAL if not getattr(self, name)}
        )
        document["settings"] = dict(sorted(document["settings"].items()))
        if self.features:
            document["fingerprint"] = features_hash(self.features, self.sent)
        last = len(document) - 1
        yield "{\n"
        for place, (name, value) in enumerate(document.items()):
            yield f"  {_json(name)}: {_block(value)}{',' if place < last else ''}\n"
        yield "}\n"


def _block(value: Any) -> str:
    """A list or an object with one member a line, so that a diff shows the tokens that changed;
    anything else on its line.
    """
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"    {_feature(row)}" for row in value) + "\n  ]"
    if isinstance(value, dict) and value:
        return (
            "{\n"
            + ",\n".join(f"    {_json(name)}: {_rows(row)}" for name, row in value.items())
            + "\n  }"
        )
    return _json(value)


def _feature(row: Any) -> str:
    """A row of a list; of a feature each vector on a line of its own."""
    if not isinstance(row, dict) or not isinstance(row.get("vectors"), list):
        return _json(row)
    parts = [
        f"{_json(name)}: {_rows(part) if name == 'vectors' else _json(part)}"
        for name, part in row.items()
    ]
    return "{" + ", ".join(parts) + "}"


def _rows(value: Any) -> str:
    """Within an object: a list of objects with one of them a line, anything else on its line."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"      {_json(row)}" for row in value) + "\n    ]"
    return _json(value)


def bias_path(path: str | os.PathLike[str]) -> Path:
    """The bias file that a path means: bias.json in the folder of a run, else the file itself."""
    file = Path(path)
    if is_folder(file):
        return file / RUN_FILE
    return file


def _read(path: Path) -> builtins.bytes:
    try:
        return read_bounded(path, MAX_BYTES)
    except FileNotFoundError:
        raise BiasError(f"{path}: no such bias file; `blb fit` writes one") from None
    except OSError as error:
        reason = error.strerror or error
        raise BiasError(
            f"{path}: cannot be read ({reason}); give the path of a bias file"
        ) from None
    except ValueError as error:
        if "\0" in str(path):
            raise BiasError(
                f"{path}: cannot be read ({error}); give the path of a bias file"
            ) from None
        raise BiasError(
            f"{path}: larger than the limit of {MAX_BYTES:,} bytes for a bias file; compile the"
            " bias to fewer entries"
        ) from None


def _document(path: Path, content: builtins.bytes) -> dict[str, Any]:
    """The parsed file, checked to be a bias file of this version."""
    try:
        document = parse_json(content)
    except ValueError as error:
        raise BiasError(
            f"{path}: not JSON in UTF-8 ({error}); give a bias file as `blb fit` writes it"
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BiasError(
            f'{path}: JSON, but not a bias file (its "format" is not "{FORMAT}"); give a file that'
            " `blb fit` wrote"
        )
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise BiasError(
            f'{path}: "version" is {value_text(version)}, and blackbox-lb {__version__} reads'
            f" {VERSION}; take the release that wrote the file, or fit again: the completions in"
            " the run's store are used again, and not paid for again"
        )
    return document
