"""A user's own profile from the findings: the rows that were wrong with their true values, and how each row is known."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import tomli_w

from blackbox_lb.doctor.findings import Finding, Report
from blackbox_lb.errors import InputError
from blackbox_lb.profiles import Profile, load_profile

__all__ = ["check_target", "save_profile"]

LONGEST = 200
"""Characters of evidence kept with a row."""
PROVEN_BY = {"bias.format": "bias"}
"""Rows that another row's finding proves: a bias that acts was understood."""


def check_target(path: Path, provider: str) -> None:
    """Whether a profile can be saved there, known before anything is asked for.

    Raises:
        InputError: another ending than .toml, a folder that does not exist, or the file that is being extended.
    """
    if path.suffix != ".toml":
        raise InputError(f"a profile is saved as a .toml file, and {path} is none; give --save NAME.toml")
    if not path.parent.is_dir():
        raise InputError(f"the folder {path.parent} does not exist; make it, or give another --save")
    if provider.endswith(".toml") and path.resolve() == Path(provider).resolve():
        raise InputError(f"--save {path} is the profile that is being checked, and extends it; give another name")


def save_profile(report: Report, path: Path, provider: str, base_url: str | None = None) -> None:
    """Write what was found of ``provider`` (as given with --provider) to ``path``, for use as --provider.

    ``base_url``: the address to keep, where it is another than the profile's.

    Raises:
        InputError: a contradiction that no row can cure, or a file that cannot be written.
    """
    incurable = [finding for finding in report.contradicted if finding.incurable]
    if incurable:
        reasons = "; ".join(f"{finding.row}: {finding.evidence}" for finding in incurable)
        raise InputError(f"no profile was saved, because none could make {report.profile.name} usable here: {reasons}")
    document = tomli_w.dumps(_rows(report, path.stem, provider, base_url))
    try:
        _write(path, document)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror or error}); give another --save") from error


def _write(path: Path, document: str) -> None:
    """In one step, and only what loads."""
    temporary = path.with_name(f".{path.stem}.new.toml")
    try:
        temporary.write_text(document, encoding="utf-8")
        load_profile(str(temporary))
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _rows(report: Report, name: str, provider: str, base_url: str | None) -> dict[str, Any]:
    own = provider.endswith(".toml")
    rows: dict[str, Any] = {
        "extends": str(Path(provider).resolve()) if own else provider,
        "name": name,
        "unknown": _unproven(report.profile, report.findings),
    }
    if base_url is not None and _is_plain(base_url):
        rows["connection"] = {"base_url": base_url}
    for finding in report.findings:
        if finding.found is not None:
            _set(rows, finding.row.split("."), finding.found)
    rows["evidence"] = {
        finding.row: _evidence(report, finding)
        for finding in report.findings
        if finding.claim and (finding.status == "CONFIRMED" or finding.found is not None)
    }
    return rows


def _is_plain(address: str) -> bool:
    """Whether an address holds nothing that may be a secret."""
    parts = urlsplit(address)
    return not (parts.username or parts.password or parts.query)


def _set(rows: dict[str, Any], path: Sequence[str], value: object) -> None:
    for part in path[:-1]:
        rows = rows.setdefault(part, {})
    rows[path[-1]] = value


def _evidence(report: Report, finding: Finding) -> dict[str, Any]:
    return {
        "grade": "L",
        "date": date.today(),
        "source": f"blb doctor, {report.model} on its {report.endpoint} endpoint",
        "seen": finding.evidence[:LONGEST],
    }


def _unproven(profile: Profile, findings: Sequence[Finding]) -> list[str]:
    """What the profile guesses and nothing has shown; of a guessed table, only the rows that stayed open."""
    shown = {finding.row for finding in findings if finding.status != "NOT CHECKED"}
    open_rows = {finding.row for finding in findings if finding.status == "NOT CHECKED"}
    left: list[str] = []
    for guess in profile.unknown:
        if guess in shown or PROVEN_BY.get(guess) in shown:
            left += [row for row in sorted(open_rows) if row.startswith(f"{guess}.")]
        else:
            left.append(guess)
    return left
