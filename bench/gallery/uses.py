"""The uses by name; all settings are fixed in their modules before any run."""

from __future__ import annotations

from collections.abc import Mapping

from bench.gallery.decisions import CONTINENTS, LABELS
from bench.gallery.formats import OPENERS, SCRIPT
from bench.gallery.limits import LIMITS
from bench.gallery.margins import MARGINS
from bench.gallery.reasoning import SCHOOL, SHORTER
from bench.gallery.records import NEWS_RECORDS, RECORDS
from bench.gallery.stories import STORIES
from bench.gallery.tools import TOOLS
from bench.gallery.use import Use

__all__ = ["USES"]

USES: Mapping[str, Use] = {
    "decisions": CONTINENTS,
    "labels": LABELS,
    "records": RECORDS,
    "news": NEWS_RECORDS,
    "openers": OPENERS,
    "script": SCRIPT,
    "shorter": SHORTER,
    "school": SCHOOL,
    "slop": STORIES,
    "tools": TOOLS,
    "margins": MARGINS,
    "limits": LIMITS,
}
