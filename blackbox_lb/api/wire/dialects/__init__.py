"""The listing of tokens by each kind of endpoint: one module a dialect, and one row for it in
``DIALECTS``.

The row ``dialect`` of a profile's endpoint gives the name.
"""

from collections.abc import Mapping

from blackbox_lb.api.wire.dialects.chat import CONTENT
from blackbox_lb.api.wire.dialects.completions import LEGACY
from blackbox_lb.api.wire.dialects.position import AnswerDialect
from blackbox_lb.api.wire.dialects.responses import RESPONSES
from blackbox_lb.api.wire.dialects.sglang import META

__all__ = ["DIALECTS", "AnswerDialect"]

DIALECTS: Mapping[str, AnswerDialect] = {
    "content": CONTENT,
    "legacy": LEGACY,
    "meta": META,
    "responses": RESPONSES,
}
