"""What a command that ended well printed."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result


def ended_well(result: Result) -> Result:
    """The same result, which must have exit code 0."""
    assert result.exit_code == 0, result.output
    return result


def printed(result: Result) -> Any:
    """What it printed as JSON."""
    return json.loads(ended_well(result).stdout)
