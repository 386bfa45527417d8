"""Values of HTTP headers: durations, numbers, dates, and how long a server asks to wait."""

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

MINUTE = 60.0
"""Seconds."""
DAY = 86_400.0
"""Seconds."""
_UNITS = {
    "d": DAY,
    "h": 3600.0,
    "m(?!s)": MINUTE,
    "s": 1.0,
    "ms": 1e-3,
    "[uµ]s": 1e-6,
    "ns": 1e-9,
}
"""Pattern of a unit -> its seconds, in the order in which a duration may have them."""
_NUMBER = r"[0-9]+(?:\.[0-9]+)?"
_DURATION = re.compile("".join(rf"(?:({_NUMBER}){unit})?" for unit in _UNITS))


def parse_duration(text: str) -> float | None:
    """Seconds of "17ms", "6m0s", "1h2m3.5s" or "250" (bare seconds); None for anything else."""
    text = text.strip()
    seconds = math.nan
    if re.fullmatch(_NUMBER, text):
        seconds = float(text)
    elif text and (match := _DURATION.fullmatch(text)):
        parts = zip(match.groups(), _UNITS.values(), strict=True)
        seconds = sum(float(number) * unit for number, unit in parts if number)
    if not math.isfinite(seconds):
        return None
    return seconds


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a refusal asks to wait, from ``retry-after-ms`` or else ``retry-after``.

    ``retry-after`` is in seconds or an HTTP date. A date counts from the answer's own ``date``,
    else from this machine's clock. A negative, past or invalid value counts as absent (None). 0
    milliseconds count where nothing else is given, because Azure sends them
    beside a ``retry-after`` of 1.
    https://www.rfc-editor.org/rfc/rfc9110#field.retry-after
    """
    fields = lowered(headers)
    milliseconds = parse_number(fields.get("retry-after-ms"))
    if milliseconds:
        return milliseconds / 1000
    value = fields.get("retry-after", "")
    seconds = parse_number(value)
    end = _date(value)
    if end is not None:
        start = _date(fields.get("date", "")) or datetime.now(UTC)
        seconds = (end - start).total_seconds()
        if seconds < 0:
            seconds = None
    if seconds is None:
        return milliseconds  # None, or 0
    return seconds


def lowered(headers: Mapping[str, str]) -> dict[str, str]:
    """The headers with their names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def parse_number(text: str | None) -> float | None:
    """A finite number of zero or more, else None; Azure sends -1 for unknown."""
    if text is None or not re.fullmatch(_NUMBER, text.strip()):
        return None
    value = float(text)
    if not math.isfinite(value):
        return None
    return value


def _date(text: str) -> datetime | None:
    """A date, in UTC where it names no time zone; None for none."""
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, OverflowError):
        return None
    if date.tzinfo is None:
        return date.replace(tzinfo=UTC)
    return date
