"""Findings: one a row of the profile, what it claims, what was seen, and whether the two agree."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from blackbox_lb.errors import BlbError
from blackbox_lb.providers.profile import Profile
from blackbox_lb.providers.schema import Json

Status: TypeAlias = Literal["CONFIRMED", "CONTRADICTED", "NOT CHECKED", "MEASURED"]
"""MEASURED: a fact about which the profile claims nothing, or a limit that it draws tighter than
the server does.
"""


@dataclass(frozen=True, slots=True)
class RowFinding:
    """What was seen of one claim.

    row: dotted, as in the profile.
    evidence: one line with its numbers.
    found: the true value of the row, where it is known to be another than the claim. A
        contradiction without one is of a kind that no value of the row can cure.
    claim: what the profile says of the row, in words (``claim_of``).
    """

    row: str
    status: Status
    evidence: str
    found: Json | dict[str, Json] | None = None
    claim: str = ""

    @property
    def incurable(self) -> bool:
        """Contradicted, and no profile could say it right."""
        return self.status == "CONTRADICTED" and self.found is None


def agreement(row: str, agrees: bool, evidence: str, found: Any = None) -> RowFinding:
    """CONFIRMED or CONTRADICTED; ``found`` is what a contradicted row should say."""
    if agrees:
        return RowFinding(row, "CONFIRMED", evidence)
    return RowFinding(row, "CONTRADICTED", evidence, found)


def measured(row: str, evidence: str, found: Any = None) -> RowFinding:
    """A fact that contradicts nothing."""
    return RowFinding(row, "MEASURED", evidence, found)


def unchecked(row: str, reason: str) -> RowFinding:
    """NOT CHECKED, and why."""
    return RowFinding(row, "NOT CHECKED", reason)


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that was found, and what it cost. Tokens are as the provider counts them.

    ``entries``, ``named``: most entries of a bias, and the highest id in one, that were accepted.
    ``ended``: what ended the self-test before its end, an error or Ctrl-C; None where nothing did.
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
    ended: BlbError | None = None

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
            "ended": None if self.ended is None else str(self.ended),
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
