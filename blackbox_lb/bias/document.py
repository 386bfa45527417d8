"""The bias file: a learned bias with its tokenizer, its training data and its verdict.

A bias is one number a token id, in nats at temperature 1, added to the logits at every step (the
paper, section "Setting"): ``softmax((logits + bias) / temperature)``. A token without an entry has
bias 0. Reading or sending a bias needs neither numpy nor an estimator.
"""

from __future__ import annotations

import builtins
import json
import os
import unicodedata
from collections import Counter
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
    field_validator,
    model_validator,
)

from blackbox_lb._version import __version__
from blackbox_lb.bias.calibration import Calibration
from blackbox_lb.bias.operating import OperatingCurve, Promise
from blackbox_lb.bias.phases import Phases, PhaseVector
from blackbox_lb.bias.prompt_bias import Dependence
from blackbox_lb.bias.records import (
    Censored,
    Compiled,
    Count,
    Entry,
    Learned,
    Name,
    RecordedFinding,
    Row,
    SamplingRecord,
    Scalar,
    Verdict,
)
from blackbox_lb.errors import BiasError, InputError, TokenizerMismatch
from blackbox_lb.safety.files import write_whole
from blackbox_lb.safety.printable import UNSAFE, printable
from blackbox_lb.safety.untrusted import parse_json, read_bounded

FORMAT: Literal["blackbox-lb/bias"] = "blackbox-lb/bias"
VERSION: Literal[3] = 3
"""The newest that is read. A bias with phases is written as version 3, one that depends on the
prompt as version 2, and one that is the same for all prompts and positions as version 1, which
every release reads."""
MAX_BYTES = 64 * 2**20
MAX_ENTRIES = 1_000_000
OPTIONAL = ("depends", "phases", "operating", "calibration")
"""Fields that a file holds only where there is something in them."""
DIGITS = 4
"""Decimals of a nat that a shifted entry keeps."""


def _json(value: object) -> str:
    """One line of JSON, readable characters as themselves, unsafe ones as ``\\uXXXX``."""
    line = json.dumps(value, ensure_ascii=False, allow_nan=False)
    if line.isascii() and "\x7f" not in line:
        return line
    return "".join(json.dumps(c)[1:-1] if unicodedata.category(c) in UNSAFE else c for c in line)


class Bias(Row):
    """A learned bias with all it takes to apply, repeat and doubt it. Raises BiasError where a
    field is wrong.

    tokenizer: fingerprint of the vocabulary that the ids belong to. data_hash: SHA-256 of the
    task's examples in their splits. rollouts, tokens: counts of the training data. settings: the
    estimator's (tau, l2, alpha, positions ...). verdict: none means UNVERIFIED. operating: the
    points of a decision for or against one label, which ``at`` picks from. calibration: the
    probabilities of labels.
    """

    format: Literal["blackbox-lb/bias"] = FORMAT
    version: Literal[1, 2, 3] = 1
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
    depends: Dependence | None = None
    phases: tuple[PhaseVector, ...] = ()
    operating: OperatingCurve | None = None
    calibration: Calibration | None = None
    entries: Annotated[tuple[Entry, ...], FailFast(), Field(max_length=MAX_ENTRIES)]

    if (
        not TYPE_CHECKING
    ):  # A declared __init__ would hide the typed one that the mypy plugin makes from the fields.

        def __init__(self, /, **fields: object) -> None:
            try:
                super().__init__(**fields)
            except ValidationError as error:
                raise BiasError(_sentence(error)) from None

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
    def _sorted_unique(cls, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
        ordered = tuple(sorted(entries, key=attrgetter("id")))
        for entry, following in pairwise(ordered):
            if entry.id == following.id:
                raise ValueError(
                    f"token id {entry.id} is listed twice ({entry.bias} and {following.bias}); keep"
                    " one entry a token"
                )
        return ordered

    @model_validator(mode="after")
    def _inside_vocabulary(self) -> Bias:
        if self.vocab_size is not None and self.entries and self.entries[-1].id >= self.vocab_size:
            raise ValueError(
                f"token id {self.entries[-1].id} is outside the vocabulary of {self.vocab_size}"
                " tokens"
            )
        return self

    @model_validator(mode="after")
    def _parts_of_the_version(self) -> Bias:
        for version, name, there in (
            (2, "features of the prompt", self.depends is not None),
            (3, "phases", bool(self.phases)),
        ):
            if there != (version == self.version):
                raise ValueError(f"version {self.version} {'with' if there else 'without'} {name}")
        features = self.depends.features if self.depends else ()
        sizes = {len(feature.values) for feature in features} | {
            len(phase.values) for phase in self.phases
        }
        if sizes - {len(self.entries)}:
            raise ValueError(
                f"a feature or phase has not one value for each of the {len(self.entries)} entries"
            )
        if self.phases:
            Phases.of(self.phases)
        return self

    def __repr__(self) -> str:
        """One line: a notebook's cell or a traceback is no place for hundreds of entries."""
        counts = Counter(row.verdict for row in self.verdict)
        verdict = ", ".join(f"{word} {count}" for word, count in counts.items()) or "UNVERIFIED"
        return (
            f"<Bias for {printable(self.model)}: {len(self.entries):,} entries,"
            f" reward {printable(self.reward)}, {verdict}>"
        )

    __str__ = __repr__

    @property
    def logit_bias(self) -> dict[int, float]:
        """Token id -> nats, as the request field ``logit_bias`` takes it; sorted by id. What all
        prompts have in common, where the bias ``depends`` on the prompt."""
        return {entry.id: entry.bias for entry in self.entries}

    @property
    def status(self) -> str:
        """UNVERIFIED, or for each metric and setting whether the bias HELPS, shows NO EVIDENCE or
        HURTS.
        """
        groups: dict[str, list[str]] = {"HELPS": [], "NO EVIDENCE": [], "HURTS": []}
        for row in self.verdict:
            groups[row.verdict].append(f"{row.metric} ({row.setting})")
        return (
            "; ".join(f"{name}: {', '.join(rows)}" for name, rows in groups.items() if rows)
            or "UNVERIFIED"
        )

    def same_for_all(self, who: str) -> Bias:
        """This bias, for what takes one vector only. BiasError: it depends on the prompt or has
        phases; ``who`` begins the sentence."""
        if self.phases:
            raise BiasError(
                f"{who} takes one vector for all positions, and this bias has phases"
                f" ({printable(Phases.of(self.phases).spec)}); serve it inside vLLM"
                " (docs/serving.md), judge it with blb eval, or learn one without ``phases``"
            )
        if self.depends is not None:
            raise BiasError(
                f"{who} takes a bias that is the same for all prompts, and this one depends on"
                f" {printable(self.depends.on)}; send it with apply(), blb proxy or"
                " logit_bias(bias, messages=...), or learn one without ``depends_on``"
            )
        return self

    def at(
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
                " given; give one, as in bias.at(precision=.9)"
            )
        return self.at_promise(promises[0])

    def at_promise(self, promise: Promise) -> Bias:
        """See ``at``."""
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
    def load(cls, path: str | os.PathLike[str]) -> Bias:
        """Read a bias file.

        Raises BiasError: missing, not JSON, not a bias file, a newer version, a bad field, above 64
        MiB or 1,000,000 entries.
        """
        path = Path(path)
        document = _document(path, _read(path))
        try:
            return cls(**document)
        except BiasError as error:
            remedy = (
                ""
                if "; " in str(error)
                else "; correct it, or restore the file as `blb fit` wrote it"
            )
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
        return "[\n" + ",\n".join(f"    {_json(row)}" for row in value) + "\n  ]"
    if isinstance(value, dict) and value:
        return (
            "{\n"
            + ",\n".join(f"    {_json(name)}: {_rows(row)}" for name, row in value.items())
            + "\n  }"
        )
    return _json(value)


def _rows(value: Any) -> str:
    """Within an object: a list of objects with one of them a line, anything else on its line."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"      {_json(row)}" for row in value) + "\n    ]"
    return _json(value)


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
    """The parsed file, checked to be a bias file of a version that this package reads."""
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
    if type(version) is not int or version < 1:
        raise BiasError(
            f'{path}: "version" is {_shown(version)}, not a positive integer; restore the file as'
            " it was written"
        )
    if version > VERSION:
        raise BiasError(
            f"{path}: bias format version {version}, but blackbox-lb {__version__} reads {VERSION};"
            " upgrade blackbox-lb"
        )
    return document


def _sentence(error: ValidationError) -> str:
    """One sentence on the first finding, with its field and value, and the number of further
    findings.
    """
    found = error.errors(include_url=False)
    first = found[0]
    field = "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"]
    ).lstrip(".")
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
