"""A session without a server: a program answers later from a file, on the user's own machine."""

from collections.abc import Sequence
from pathlib import Path

from blackbox_lb.api.session import Session
from blackbox_lb.errors import InputError
from blackbox_lb.vocabulary.tokenizer import Tokenizer


class OfflineSession(Session):
    """A ``Session`` without any request: its model is named, and its tokenizer is the vocabulary's.

    Raises, on entering:
        InputError: no model, or no vocabulary.
    """

    async def _served(self) -> Sequence[str]:
        if self._model is None or self.vocabulary is None:
            raise InputError(
                f"{self.profile.name} answers batch files without a server that could be asked:"
                " give --model, and its vocabulary with --tokenizer PATH/tokenizer.json (a --model"
                " that is a folder with a tokenizer.json needs none)"
            )
        return []

    async def tokenizer(self) -> Tokenizer:
        """The fingerprint and the size of the vocabulary."""
        if self.vocabulary is None:
            raise InputError("the session has not been entered: its vocabulary is not known yet")
        return Tokenizer(self.vocabulary.fingerprint, self.vocabulary.size)


def tokenizer_beside(model: str | None) -> str | None:
    """The tokenizer.json in a model's folder; None where there is none."""
    path = Path(model or "") / "tokenizer.json"
    return str(path) if model and path.is_file() else None
