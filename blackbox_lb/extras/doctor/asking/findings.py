"""Findings: one a row of the profile, what it claims, what was seen, and whether the two agree."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import Json

Status: TypeAlias = Literal["CONFIRMED", "CONTRADICTED", "NOT CHECKED", "MEASURED"]
"""MEASURED: a fact about which the profile claims nothing, or a limit that it draws tighter than
the server does.
"""


@dataclass(frozen=True, slots=True)
class RowFinding:
    """``row``: dotted, as in the profile. ``evidence``: one line with its numbers.

    ``found``: the true value of the row, where it is known to be another than the claim. A
    contradiction without one is of a kind that no value of the row can cure.
    """

    row: str
    claim: str
    status: Status
    evidence: str
    found: Json | dict[str, Json] | None = None

    @property
    def incurable(self) -> bool:
        """Contradicted, and no profile could say it right."""
        return self.status == "CONTRADICTED" and self.found is None


class Findings:
    """The findings so far, one a row, in the order in which rows were first found; a later one
    replaces NOT CHECKED, and a contradiction a confirmation.
    """

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._rows: dict[str, RowFinding] = {}

    def add(
        self, row: str, status: Status, evidence: str, value: Json | dict[str, Json] | None = None
    ) -> None:
        """What was seen of ``row``. A reason why it was not checked gives way to any finding, and
        to a later reason.
        """
        finding = self._rows.get(row)
        if (
            finding is None
            or finding.status == "NOT CHECKED"
            or (finding.status, status) == ("CONFIRMED", "CONTRADICTED")
        ):
            self._rows[row] = RowFinding(row, claim_of(self._profile, row), status, evidence, value)

    def agree(self, row: str, agrees: bool, evidence: str, value: Json | None = None) -> None:
        """CONFIRMED or CONTRADICTED; ``value`` is what a contradicted row should say."""
        if agrees:
            self.add(row, "CONFIRMED", evidence)
        else:
            self.add(row, "CONTRADICTED", evidence, value)

    def skip(self, rows: Iterable[str], reason: str) -> None:
        """NOT CHECKED, for each of ``rows`` that nothing has been found of."""
        for row in rows:
            self.add(row, "NOT CHECKED", reason)

    def withdraw(self, row: str, reason: str) -> None:
        """NOT CHECKED in place of a contradiction that rested on what has turned out wrong."""
        if row in self._rows and self._rows[row].status == "CONTRADICTED":
            claim = self._rows[row].claim
            self._rows[row] = RowFinding(row, claim, "NOT CHECKED", reason)

    def settled(self, row: str) -> bool:
        """Whether anything was found of ``row``."""
        return row in self._rows and self._rows[row].status != "NOT CHECKED"

    def confirmed(self, row: str) -> bool:
        return row in self._rows and self._rows[row].status == "CONFIRMED"

    def all(self) -> tuple[RowFinding, ...]:
        return tuple(self._rows.values())


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found, and what it cost. Tokens are as the provider counts them.

    ``entries``, ``named``: most entries of a bias, and the highest id in one, that were accepted.
    """

    profile: Profile
    model: str
    endpoint: str
    base_url: str
    findings: Sequence[RowFinding]
    requests: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    entries: int = 0
    named: int | None = None

    @property
    def contradicted(self) -> tuple[RowFinding, ...]:
        """Where the profile is wrong."""
        return tuple(finding for finding in self.findings if finding.status == "CONTRADICTED")

    def as_json(self) -> dict[str, Any]:
        return {
            "provider": self.profile.name,
            "model": self.model,
            "endpoint": self.endpoint,
            "base_url": self.base_url,
            "contradicted": len(self.contradicted),
            "findings": [asdict(finding) for finding in self.findings],
            "requests": self.requests,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "seconds": round(self.seconds, 1),
        }


def claim_of(profile: Profile, row: str) -> str:
    """What the profile says of a dotted row, in words; "" where it has no such row."""
    if row == "bias":
        claim = "takes effect"
    elif row == "neutral":
        claim = "softmax(logits + bias)"
    else:
        try:
            value = value_of(profile.model_dump(), row)
        except (KeyError, TypeError):
            return ""
        claim = _in_words(value)
    if profile.is_known(row):
        return claim
    return f"{claim} (a guess)"


def _in_words(value: Any) -> str:
    """The value of a row: of a table its path or its names, of a list of tables their words."""
    if value is None:
        return "none known"
    if isinstance(value, dict):
        return str(value.get("path", ", ".join(value)))
    if isinstance(value, list):
        return ", ".join(str(item["words"] if isinstance(item, dict) else item) for item in value)
    return str(value)


def value_of(document: Any, row: str) -> Any:
    """What a profile's document holds at a dotted row. KeyError, TypeError: it has no such row."""
    for part in row.split("."):
        document = document[part]
    return document
