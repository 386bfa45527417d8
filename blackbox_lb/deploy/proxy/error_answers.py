"""The proxy's own error answers, in the shape of OpenAI's errors, so that every SDK raises them
with their message.
"""

import json

from blackbox_lb.errors import BlbError


class ErrorAnswer(BlbError):
    """An answer to the client in place of the upstream's.

    status: of HTTP; from 500 the upstream's failure, below that the client's. The shape is that of
    https://platform.openai.com/docs/guides/error-codes.
    """

    def __init__(self, status: int, message: str, *, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.param = param

    @property
    def is_failure(self) -> bool:
        """Whether the upstream or the proxy failed; else the request is refused."""
        return self.status >= 500 and self.status != 501

    @property
    def body(self) -> bytes:
        kind = "invalid_request_error"
        if self.status >= 500:
            kind = "server_error"
        error = {"message": str(self), "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": error}).encode()
