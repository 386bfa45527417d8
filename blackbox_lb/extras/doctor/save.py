"""A user's own profile from the findings: the rows that were wrong with their true values, and how
each row is known.
"""

from collections.abc import Mapping, Sequence, Set
from datetime import date
from pathlib import Path
from typing import Any

import tomli_w

from blackbox_lb.errors import InputError
from blackbox_lb.extras.doctor.findings import Report, value_of
from blackbox_lb.providers.packaged import is_profile_file
from blackbox_lb.providers.profile import load_profile
from blackbox_lb.providers.schema import Json
from blackbox_lb.safety.files import explained, replacing

LONGEST = 200
"""Characters of evidence kept with a row."""
PROVEN_BY = {"bias.format": "bias", "bias.high": "bias"}
"""Rows that another row's finding proves: a bias that acts was understood, and it was the largest.
"""
CAREFUL: Mapping[str, Json] = {
    "bias.fractions": False,
    "logprobs.meaning": "unknown",
    "sampling.n": 1,
    "sampling.seed": False,
    "sampling.shares_prompt": False,
    "tokens.bytes_exact": False,
}
"""Values that are right whatever the server does, at the cost of some convenience."""
OF_OTHER_SETUPS = frozenset({"bias.refused"})
"""Rows that claim nothing of the server at hand: they hold whatever it does."""
DOCUMENTED = frozenset("SRLD")
"""Grades of evidence that make a value more than a guess."""


def check_target(path: Path, provider: str) -> None:
    """Check that a profile can be saved at ``path``, before the first request.

    Raises InputError: another ending than .toml, a folder that does not exist, or the file that is
    being extended.
    """
    if path.suffix != ".toml":
        raise InputError(
            f"a profile is saved as a .toml file, and {path} is none; give ``save=NAME.toml``"
        )
    if not path.parent.is_dir():
        raise InputError(
            f"the folder {path.parent} does not exist; make it, or give another ``save``"
        )
    if is_profile_file(provider) and path.resolve() == Path(provider).resolve():
        raise InputError(
            f"``save={path}`` is the profile that is being checked, and extends it; give another"
            " name"
        )


def save_profile(
    report: Report, path: Path, provider: str, base_url: str | None = None
) -> dict[str, Json]:
    """Write what was found of ``provider`` (as given with ``provider``) to ``path``, for use as
    ``provider``.

    ``base_url``: the address to save, where it differs from the profile's. Returns the rows that
    were guesses and could not be checked, with the saved values, which are right in any case.

    Raises InputError: a contradiction that no row can cure, or a file that cannot be written.
    """
    incurable = [finding for finding in report.contradicted if finding.incurable]
    if incurable:
        reasons = "; ".join(f"{finding.row}: {finding.evidence}" for finding in incurable)
        raise InputError(
            f"no profile was saved, because none could make {report.profile.name} usable here:"
            f" {reasons}"
        )
    careful, open_rows = _unproven(report)
    document = tomli_w.dumps(_rows(report, path.stem, provider, base_url, careful, open_rows))
    with (
        explained(f"write {path}", "give another ``save``"),
        replacing(path, f".{path.stem}.new.toml") as draft,
    ):
        draft.write_text(document, encoding="utf-8")
        load_profile(str(draft))  # only what loads takes the file's place
    return careful


def _rows(
    report: Report,
    name: str,
    provider: str,
    base_url: str | None,
    careful: Mapping[str, Json],
    unknown: Sequence[str],
) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "extends": str(Path(provider).resolve()) if is_profile_file(provider) else provider,
        "name": name,
        "unknown": list(unknown),
    }
    if base_url is not None:
        rows |= report.profile.rows_of_its_host
        rows["connection"] = {**rows.get("connection", {}), "base_url": base_url}
    corrections = {
        finding.row: finding.found for finding in report.findings if finding.found is not None
    }
    for row, value in {**careful, **corrections}.items():
        table = rows
        (*outer, last) = row.split(".")
        for part in outer:
            table = table.setdefault(part, {})
        table[last] = value
    if not report.profile.tried(report.model) and any(
        finding.row == "bias" and finding.status == "CONFIRMED" for finding in report.findings
    ):
        rows.setdefault("models", {})["untried"] = []
    source = f"blb doctor, {report.model} on its {report.endpoint} endpoint"
    rows["evidence"] = {
        finding.row: {
            "grade": "L",
            "date": date.today(),
            "source": source,
            "seen": finding.evidence[:LONGEST],
        }
        for finding in report.findings
        if finding.claim and (finding.status == "CONFIRMED" or finding.found is not None)
    }
    return rows


def _unproven(report: Report) -> tuple[dict[str, Json], list[str]]:
    """Careful values for the profile's guesses that no check has settled, and the rows that remain
    guesses: those for which no value is right whatever the server does.

    A guessed table without any settled row remains a guess as a whole. Of a bias that was not seen
    to act, no row is settled by another.
    """
    profile = report.profile
    document = profile.model_dump()
    checked = {finding.row for finding in report.findings if finding.status != "NOT CHECKED"}
    accepted = {"bias.entries": report.entries or None, "bias.highest_id": report.named}
    bias_acts = "bias" in checked or "bias" not in profile.unknown
    careful: dict[str, Json] = {}
    guesses: list[str] = []
    for guess in profile.unknown:
        rows = set(_leaves(value_of(document, guess), guess)) - OF_OTHER_SETUPS
        open_rows = []
        for row in sorted(rows):
            acts = bias_acts or not row.startswith("bias.")
            evidence = profile.evidence.get(row)
            documented = evidence is not None and not DOCUMENTED.isdisjoint(evidence.grade)
            if _is_checked(checked, row) or (acts and documented and row not in profile.unknown):
                continue
            value = {**CAREFUL, **accepted}.get(row) if acts else None
            if value is None:
                open_rows.append(row)
            elif value != value_of(document, row):
                careful[row] = value
        guesses += [guess] if len(open_rows) == len(rows) else open_rows
    return careful, guesses


def _leaves(value: Any, row: str) -> list[str]:
    """The rows in a table; ``row`` itself where it is none."""
    if not isinstance(value, dict) or not value:
        return [row]
    return [leaf for key in value for leaf in _leaves(value[key], f"{row}.{key}")]


def _is_checked(checked: Set[str], row: str) -> bool:
    """Whether something was found of ``row``, or of a table that is checked as a whole."""
    parts = row.split(".")
    around = {".".join(parts[:length]) for length in range(1, len(parts) + 1)}
    return not checked.isdisjoint(around - {"bias"}) or PROVEN_BY.get(row) in checked
