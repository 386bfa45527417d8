"""Bias files of versions 1 to 3, read as version 4.

Version 1 has entries alone. Version 2 has features of the prompt beside them, and version 3 phases,
each with a whole vector in place of the entries, which are those of the rest.
"""

from __future__ import annotations

import json
from hashlib import sha256
from typing import Annotated, Any

from pydantic import Field, ValidationError

from blackbox_lb.bias.features import Embedding, FeatureVector, parse_feature
from blackbox_lb.bias.phases import Phases
from blackbox_lb.bias.records import Count, Finite, Flag, Name, Row
from blackbox_lb.bias.request_bias import WIDEST
from blackbox_lb.errors import BiasError
from blackbox_lb.safety.printable import printable


class DependenceOf2(Row):
    """The part of version 2 on the prompt."""

    on: Name
    model_weight: Annotated[Finite, Field(gt=0, le=1)] = 1.0
    low: Finite
    high: Finite
    integers: Flag = False
    features: tuple[FeatureVector, ...]
    probe: tuple[Finite, ...] = ()
    fingerprint: str = ""

    @property
    def computed(self) -> str:
        """The fingerprint that belongs to these features."""
        left_out = {"fingerprint"} if self.probe else {"fingerprint", "probe"}
        document = self.model_dump(mode="json", exclude=left_out)
        for feature in document["features"]:
            del feature["errors"]
        text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        return sha256(text.encode()).hexdigest()


class PhaseOf3(Row):
    """A phase of version 3."""

    phase: Name
    values: tuple[Finite, ...]
    errors: tuple[Annotated[Finite, Field(ge=0)] | None, ...] = ()
    positions: Count = 0


def upgraded(document: dict[str, Any]) -> dict[str, Any]:
    """The fields of version 4 of a file of any version. Raises BiasError: parts of another version,
    or a wrong field among those that are no more.
    """
    version = document.get("version")
    if version == 4:
        return document
    fields = {name: value for name, value in document.items() if name != "version"}
    for later in ("features", "sent", "fingerprint"):
        if later in fields:
            raise BiasError(f"unknown field {later}")
    parts = {2: "depends", 3: "phases"}
    parts_present = {name: fields.pop(name) for name in parts.values() if name in fields}
    for of_version, name in parts.items():
        if bool(parts_present.get(name)) != (version == of_version):
            preposition = "without" if version == of_version else "with"
            raise BiasError(f"version {version} {preposition} {name}")
    try:
        if version == 2:
            return fields | _dependent(DependenceOf2(**parts_present["depends"]))
        if version == 3:
            return fields | _phased([PhaseOf3(**row) for row in parts_present["phases"]], fields)
    except (ValidationError, TypeError) as error:
        reason = "it has another form"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False)[0]
            place = ".".join(str(part) for part in first["loc"])
            reason = printable(f"{place}: {first['msg']}")
        name = "depends" if version == 2 else "phases"
        raise BiasError(f"field {name} is wrong ({reason})") from None
    return fields


def _dependent(dependence: DependenceOf2) -> dict[str, Any]:
    if dependence.fingerprint and dependence.fingerprint != dependence.computed:
        raise BiasError(
            "its features are not those that were learned: the fingerprint differs; restore the"
            " file, or fit again"
        )
    feature = parse_feature(dependence.on)
    if feature is None:
        raise BiasError("a bias that depends on nothing has no features; leave the field out")
    feature = feature.replacing(vectors=dependence.features)
    if isinstance(feature, Embedding):
        feature = feature.replacing(probe=dependence.probe)
    sent = {"low": dependence.low, "high": dependence.high, "integers": dependence.integers}
    return {"features": [feature.model_dump()], "sent": sent}


def _phased(rows: list[PhaseOf3], fields: dict[str, Any]) -> dict[str, Any]:
    """A phase had a vector of its own. Now it has the difference to that of the rest, whose
    standard error is not known.
    """
    rest = [_number(entry) for entry in fields.get("entries") or ()]
    phases = Phases.parse([row.phase for row in rows])
    if phases.names != tuple(row.phase for row in rows):
        raise BiasError(f"the phases {printable(phases.spec)} are not one a row")
    features = []
    for feature, row in zip(phases.features, rows, strict=True):
        if len(row.values) != len(rest):
            raise BiasError(
                f"a feature has not one value for each of the {len(rest)} entries; restore the"
                " file, or fit again"
            )
        moved = [value - common for value, common in zip(row.values, rest, strict=True)]
        phase_feature = feature.replacing(positions=row.positions).one_vector(moved)
        features.append(phase_feature.model_dump())
    return {"features": features, "sent": {"low": -WIDEST, "high": WIDEST}}


def _number(entry: Any) -> float:
    """The bias of an entry; 0 where it is none, which the entries' own check says."""
    value = None
    if isinstance(entry, dict):
        value = entry.get("bias")
    if isinstance(value, int | float):
        return float(value)
    return 0.0
